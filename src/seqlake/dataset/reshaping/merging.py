"""New datasets from old ones: repacked, cut down, joined, divided; the old ones are never touched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import KeepsFiles, Removable, ability
from seqlake.arguments import DATASET, DATASETS, TEXTS, takes
from seqlake.dataset import opening, progress
from seqlake.dataset.changing.evolving import followed
from seqlake.dataset.opening import nothing_left
from seqlake.dataset.reading import streaming
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.selection import Selection
from seqlake.dataset.writing import conforming, rehearsal
from seqlake.dataset.writing.carrying import Carrier, FilesMode
from seqlake.dataset.writing.ingest import first_width, undeclared
from seqlake.dataset.writing.parts import RowsPart, rows_of, rows_parts, write_parts
from seqlake.dataset.writing.staging import SHARD_BYTES, ShardShape, Staging
from seqlake.errors import (
    ColumnNotFoundError,
    CommitUnknownError,
    SchemaMismatchError,
    SeqlakeError,
    ValidationError,
)
from seqlake.executors import executor_if_asked
from seqlake.files.local import remove_empty_folders
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.stores import open_store
from seqlake.formats.lerobot import uniting
from seqlake.shards.ids import hash_ids
from seqlake.shares import RecordedRun, begun
from seqlake.spec.schema import dtype_of, is_list, is_number, no_column
from seqlake.versions import shard_formats
from seqlake.versions.ids import refuse_repeated
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from seqlake.dataset.dataset import Dataset
    from seqlake.executors import Executor
    from seqlake.protocols import Readable, Transaction
    from seqlake.spec.schema import Column, Schema

_NO_ID = "Rows of a dataset have a sequence_id, these have none."
_CONVERT = "Select the id column too; samples without one become sequences with sl.convert(..., sequence_id=COLUMN)."


@takes(source=DATASET)
def repack(
    source: Readable,
    out: str | os.PathLike[str],
    /,
    *,
    layout: str = "training",
    shards: str | None = None,
    rows_per_shard: int | None = None,
    bytes_per_shard: int = SHARD_BYTES,
    fixed_size_inner: bool = False,
    files: FilesMode = "copy",
    storage: Mapping[str, str] | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Dataset:
    """Write the rows of any dataset again, in order, into new shards.

    Side shards are folded in, deleted rows are gone, foreign layouts become ours.

    Args:
        source: A dataset, a selection, a scanned format.
        out: A new or empty folder or URI.
        layout: `training` or `archive`.
        shards: Their format: `parquet`, `lance` or `vortex`; by default as the source says.
        rows_per_shard: Close a shard at so many rows.
        bytes_per_shard: Close it once it has so many bytes.
        fixed_size_inner: Store fixed-size inner lists.
        files: What happens to files inside the source: `copy`, `hardlink` or `reference` (by absolute location).
        storage: Options of the new dataset's store.
        on: What writes: `"processes"`, `"ray"` or an `Executor`, each task at most about one shard; by default this
            process alone. `Resumable` and `Share` keep what is finished.
        workers: Tasks at a time of what `on` names.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: The rows have no id.

    Example:
        ```python
        repack(ds, "data/small", layout="archive")
        repack(ds, "data/same", on="processes", workers=8)
        ```
    """
    shape = ShardShape(
        rows=rows_per_shard, nbytes=bytes_per_shard, layout=layout, fixed_size_inner=fixed_size_inner, format=shards
    )
    executor = executor_if_asked(on, workers=workers)
    if executor is None:
        return _write([source], out, shape=shape, files=files, storage=storage)
    schema, excerpt = shard_formats.with_new(source.schema, shape.format), excerpt_of(source)
    identity = {"source": lambda: source.fingerprint, "out": absolute(out), "shape": repr(shape), "files": files}
    with (
        begun(executor, "repack", identity) as run,
        whole(out, schema, shape=shape, storage=storage, run=run) as (dataset, staging),
    ):
        copying = _Copying(excerpt, schema, files)
        write_parts(run, rows_parts(excerpt, shape), copying, staging=staging, table=dataset.table, schema=schema)
    return dataset


def excerpt_of(source: Readable, /) -> Excerpt:
    """What a source shows, with the options of its store, wherever it keeps them."""
    excerpt, place = Excerpt.of(source), MediaFiles.of(source)
    if excerpt.storage is not None or place.storage is None:
        return excerpt
    return Excerpt(
        excerpt.source,
        columns=excerpt.columns,
        rows=excerpt.rows,
        storage=place.storage,
        allow_outside=place.allow_outside,
    )


@dataclass(frozen=True, slots=True)
class _Copying:
    """Copies rows as they are."""

    source: Excerpt
    schema: Schema
    files: FilesMode

    def __call__(self, part: RowsPart, staging: Staging, /) -> None:
        _copy(rows_of(self.source, part), self.schema, staging, self.files)


@takes(selection=DATASET)
def subset(
    selection: Selection,
    out: str | os.PathLike[str],
    /,
    *,
    files: FilesMode = "copy",
    storage: Mapping[str, str] | None = None,
) -> Dataset:
    """Write a selection as a dataset of its own.

    Args:
        selection: Some rows and columns, `sequence_id` among them.
        out: A new or empty folder or URI.
        files: `copy`, `hardlink` or `reference`.
        storage: Options of the new dataset's store.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: The id column is not selected.

    Example:
        ```python
        subset(ds.where("reward > 40"), "data/good")
        ```
    """
    return _write([selection], out, shape=ShardShape(), files=files, storage=storage)


@takes(parts=DATASETS, prefixes=TEXTS)
def merge(
    parts: Sequence[Readable],
    out: str | os.PathLike[str],
    /,
    *,
    union: bool = False,
    columns: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
    prefixes: Sequence[str] = (),
    files: FilesMode = "copy",
    storage: Mapping[str, str] | None = None,
) -> Dataset:
    """Join the rows of datasets, in the order given.

    Args:
        parts: Datasets, selections, scanned formats.
        out: A new or empty folder or URI.
        union: Schemas may differ: the new dataset has the columns of all, null where a part lacks one, and numbers in
            the wider of two types that can hold both. Without it all must have the same schema.
        columns: Old name -> new name, in every part that has the column; or one such mapping for each part.
        prefixes: A text for each part that is put before its ids, so that parts may have the same.
        files: `copy`, `hardlink` or `reference`.
        storage: Options of the new dataset's store.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: Schemas differ; the message names the columns.
        DuplicateSequenceError: Two parts have a sequence of one id.

    Example:
        ```python
        ds = sl.merge([sl.open("data/monday"), sl.open("data/tuesday")], "data/week")
        ds = sl.merge([arm, hand], "data/all", union=True, columns={"obs": "state"}, prefixes=["arm/", "hand/"])
        ```
    """
    schema, origins = _joined(parts, union=union, columns=columns, prefixes=prefixes)
    schema, tasks = uniting.united(schema, [part.schema for part in parts])
    if rehearsal.under_way():
        _refuse_repeated(parts, prefixes, root=absolute(out))
    with whole(out, schema, shape=ShardShape(), storage=storage) as (dataset, staging):
        for part, names, prefix, numbers in zip(parts, origins, prefixes or [""] * len(parts), tasks, strict=True):
            _copy(part, schema, staging, files, origins=names, prefix=prefix, tasks=numbers)
    return dataset


def _joined(
    parts: Sequence[Readable],
    /,
    *,
    union: bool,
    columns: Mapping[str, str] | Sequence[Mapping[str, str]],
    prefixes: Sequence[str],
) -> tuple[Schema, list[dict[str, str]]]:
    """The schema that `merge` gives datasets, and for each of them where its columns come from.

    Raises:
        ValueError: No datasets, or names or prefixes that are not for them.
        SchemaMismatchError: Schemas differ; the message names the columns.
    """
    if not parts:
        raise ValueError("merge needs at least one dataset.")
    if len(prefixes) not in {0, len(parts)} or isinstance(prefixes, str):
        raise ValueError(f"prefixes: expected a text for each of {len(parts)} datasets, found {prefixes!r}.")
    schemas = [part.schema for part in parts]
    if any(schema.id is None for schema in schemas):
        raise SchemaMismatchError(_NO_ID, hint=_CONVERT)
    renamed = [_renamed(schema, names) for schema, names in zip(schemas, _each(columns, schemas), strict=True)]
    schema = united([one for one, _ in renamed]) if union else renamed[0][0]
    for number, (one, _) in enumerate(renamed if not union else (), 1):
        problems = conforming.differences(schema, one)
        if problems:
            raise SchemaMismatchError(
                f"Dataset {number - 1} does not have the schema of dataset 0:\n" + "\n".join(problems),
                hint="merge(..., union=True) joins datasets of different columns, columns={'old': 'new'} renames them.",
            )
    origins = [origins for _, origins in renamed]
    _refuse_other_widths(schema, parts, origins)
    return schema, origins


def _refuse_repeated(parts: Sequence[Readable], prefixes: Sequence[str], *, root: str) -> None:
    """The ids of all parts, each once; what a commit finds out of what was written."""
    ids = []
    for part, prefix in zip(parts, prefixes or [""] * len(parts), strict=True):
        batches = streaming.read(part, [str(part.schema.id)])
        ids += [pc.binary_join_element_wise(prefix, one.column(0).cast(pa.string()), "") for one in batches]
    every = pa.chunked_array(ids, pa.string())
    refuse_repeated(hash_ids(every), lambda some: [str(every[at]) for at in some.tolist()], root=root)


def _refuse_other_widths(schema: Schema, parts: Sequence[Readable], origins: Sequence[Mapping[str, str]]) -> None:
    """Signals that declare no dimension have one in all parts, as their first rows say."""
    for name in undeclared(schema):
        widths = [first_width(part, names.get(name, "")) for part, names in zip(parts, origins, strict=True)]
        known = [(width, number) for number, width in enumerate(widths) if width is not None]
        other = next(((width, number) for width, number in known if width != known[0][0]), None)
        if other is not None:
            raise SchemaMismatchError(
                f"Column {name!r}: dataset {other[1]} has {other[0]} numbers a step, dataset {known[0][1]} has "
                f"{known[0][0]}.",
                hint="A signal has one dimension: rename one of the two with columns=.",
            )


def _each(
    columns: Mapping[str, str] | Sequence[Mapping[str, str]], schemas: Sequence[Schema]
) -> Sequence[Mapping[str, str]]:
    """The new names of each part's columns. One mapping for all may name columns that only some parts have."""
    count = len(schemas)
    each = columns if isinstance(columns, Sequence) else [columns] * count
    given = each or [{}] * count
    if len(given) != count or not all(isinstance(one, Mapping) and TEXTS.fits([*one, *one.values()]) for one in given):
        raise ValueError(
            f"columns: expected new names by old ones, or one such mapping for each of {count} datasets; "
            f"found {columns!r}."
        )
    every = dict.fromkeys(name for schema in schemas for name in schema)
    for names, schema in zip(given, schemas, strict=True):
        known = schema if each is columns else every
        for name in names:
            if name not in known:
                raise no_column(name, known)
    return list(given)


def _renamed(schema: Schema, names: Mapping[str, str]) -> tuple[Schema, dict[str, str]]:
    """A part's schema under its new names, and where each column comes from."""
    there = {old: new for old, new in names.items() if old in schema}
    result = followed(schema.renamed(there), there) if there else schema
    return result, {there.get(old, old): old for old in schema.names}


def united(schemas: Sequence[Schema], /) -> Schema:
    """The columns of all, in the order in which they first come; each holds the cells of every schema.

    Raises:
        SchemaMismatchError: Two have a column that no type holds both kinds of, or that means two things.
    """
    columns: dict[str, Column] = {}
    problems = []
    for number, schema in enumerate(schemas):
        for name, column in schema.items():
            known = columns.get(name)
            both = column if known is None else _both(known, column)
            if both is None:
                problems.append(f"  {name}: {known} before, {column} in dataset {number}")
            else:
                columns[name] = both
    if problems:
        raise SchemaMismatchError(
            "Columns of one name differ in more than the width of their numbers:\n" + "\n".join(problems),
            hint="Rename one with columns={'old': 'new'}, or change its type first.",
        )
    optional = {name for name in columns if any(name not in schema or schema[name].nullable for schema in schemas)}
    joined = {name: replace(column, nullable=name in optional) for name, column in columns.items()}
    ids = {schema.id for schema in schemas}
    if len(ids) > 1:
        raise SchemaMismatchError(f"The ids of the rows have different names: {', '.join(sorted(map(str, ids)))}.")
    return schemas[0].with_columns(joined)


def _both(one: Column, other: Column) -> Column | None:
    """The column that holds cells of both; None where there is none."""
    if one.type is not None and other.type is not None and one.type != other.type:
        return None
    kind = one.type or other.type
    if one.logical == other.logical:
        return replace(one, type=kind)
    for wide, narrow in ((one, other), (other, one)):
        fitting = conforming.fits(narrow.logical, wide.logical) and wide.raw == narrow.raw
        numbers = (_values_of(narrow.logical), _values_of(wide.logical))
        if fitting and all(map(is_number, numbers)) and np.can_cast(dtype_of(numbers[0]), dtype_of(numbers[1])):
            return replace(wide, type=kind)
    return None


def _values_of(kind: pa.DataType) -> pa.DataType:
    while is_list(kind):
        kind = kind.value_type
    return kind


@takes(dataset=DATASET)
def split(
    dataset: Selection,
    out: str | os.PathLike[str],
    /,
    *,
    by: str = "split",
    files: FilesMode = "copy",
    storage: Mapping[str, str] | None = None,
) -> dict[str, Dataset]:
    """Write one dataset for each value of a column: `out/train`, `out/val`, ...

    Args:
        dataset: What to divide.
        out: A folder or URI; `out/<value>` must be new or empty.
        by: The column; every row must have a value that can name a folder.
        files: `copy`, `hardlink` or `reference`.
        storage: Options of the new datasets' stores.

    Returns:
        The datasets by value.

    Raises:
        SchemaMismatchError: No such column.
        ValidationError: Rows without a value, or values that cannot name a folder.

    Example:
        ```python
        split(ds, "data/parts")["train"]
        ```
    """
    if by == "split" and by not in dataset.schema:
        raise ColumnNotFoundError(
            f"No column 'split'; there are {', '.join(dataset.schema.names)}.",
            hint="assign_splits(ds, {'train': 0.8, 'val': 0.2}) makes it.",
        )
    dataset.schema[by]
    values = dataset.select(by).to_arrow().column(by).to_pylist()
    names = sorted({str(value) for value in values if value is not None})
    bad = [name for name in names if not name or name in {".", ".."} or set(name) & set('/\\:*?"<>|\0')]
    if bad or None in values:
        raise ValidationError(
            f"Every row needs a {by!r} that can name a folder; found {values.count(None)} null"
            + (f" and {bad[0]!r}." if bad else ".")
        )
    base = absolute(out).rstrip("/")
    numbers = np.array([names.index(str(value)) for value in values], np.int64)
    for name in names:
        opening.refuse_occupied(f"{base}/{name}", storage=storage)
    parts: dict[str, Dataset] = {}
    try:
        for number, name in enumerate(names):
            part = Selection(dataset, rows=np.flatnonzero(numbers == number).astype(np.int64))
            parts[name] = _write([part], f"{base}/{name}", shape=ShardShape(), files=files, storage=storage)
    except BaseException:
        for name, whole_one in parts.items():
            _take_back(whole_one, f"{base}/{name}", storage=storage)
        if is_local(base):
            remove_empty_folders(local_path(base))
        raise
    return parts


def _write(
    parts: Sequence[Readable],
    out: str | os.PathLike[str],
    *,
    shape: ShardShape,
    files: FilesMode,
    storage: Mapping[str, str] | None,
) -> Dataset:
    schema = shard_formats.with_new(parts[0].schema, shape.format)
    with whole(out, schema, shape=shape, storage=storage) as (dataset, staging):
        for part in parts:
            _copy(part, schema, staging, files)
    return dataset


@contextmanager
def whole(
    out: str | os.PathLike[str],
    schema: Schema,
    /,
    *,
    shape: ShardShape,
    storage: Mapping[str, str] | None,
    run: Executor | None = None,
) -> Iterator[tuple[Dataset, Staging]]:
    """A new dataset and where its rows are put: committed at the end of the block, or nothing of it is left.

    Args:
        out: Where.
        schema: Of the rows.
        shape: Of its shards.
        storage: Options of its store.
        run: What writes the rows; one that keeps receipts goes on with the same transaction, and loses nothing.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: The rows have no id.
    """
    if schema.id is None:
        raise SchemaMismatchError(
            _NO_ID,
            hint=_CONVERT,
        )

    kept = run if isinstance(run, RecordedRun) else None
    dataset, transaction = _begun(out, schema, storage, kept)
    staging, ready = Staging(dataset.table, schema, shape=shape, transaction=transaction), False
    try:
        yield dataset, staging
        ready = True
        if staging.written or staging.begun:
            staging.commit("append")
    except CommitUnknownError:
        raise  # it may stand: nothing of it may be removed
    except BaseException as error:
        if kept is not None and not (ready and isinstance(error, SeqlakeError)):
            raise  # what is finished serves the next process
        staging.discard()
        _take_back(dataset, out, storage=storage)
        if kept is not None:
            kept.forget()
        raise
    dataset.refresh()


def _begun(
    out: str | os.PathLike[str], schema: Schema, storage: Mapping[str, str] | None, kept: RecordedRun | None
) -> tuple[Dataset, Transaction | None]:
    """A new dataset; of shares the one that the first of them made, and the transaction that all write to."""

    def check() -> None:
        opening.refuse_occupied(out, storage=storage)
        rehearsal.stop_here()

    def begin() -> Dataset:
        with nothing_left(out, storage=storage):
            return opening.create(out, schema, storage=storage)

    def announce() -> Transaction:
        return begin().table.begin()

    if kept is None:
        check()
        return begin(), None
    mend = partial(opening.remove_bare, out, storage=storage)
    lost = partial(_lost, out, storage)
    transaction = kept.agree("transaction", announce, check=check, mend=mend, undo=lost)
    return opening.open(out, storage=storage), transaction


def _lost(out: str | os.PathLike[str], storage: Mapping[str, str] | None, transaction: Transaction) -> None:
    """Another process was first: its transaction is the one that all write to."""
    opening.open(out, storage=storage).table.discard(transaction)


def _copy(
    part: Readable,
    schema: Schema,
    staging: Staging,
    files: FilesMode,
    *,
    origins: Mapping[str, str] | None = None,
    prefix: str = "",
    tasks: Mapping[int, int] | None = None,
) -> None:
    """Rows of a part; `origins`: which of its columns becomes which, those that are not named are null.

    `tasks`: new numbers of tasks, of rows that came from LeRobot.
    """
    place = MediaFiles.of(part)
    known = ability(part, KeepsFiles)
    carrier = Carrier(schema, root=place.root, staging=staging, mode=files, storage=place.storage, known=known)
    names = {name: name for name in schema.names} if origins is None else origins
    for shard in progress.over(part.shards(), "write"):
        for batch in streaming.for_writing(shard, list(names.values())):
            under = _under(batch, schema, names, prefix)
            under = uniting.renumbered(under, tasks) if tasks else under
            for rows in staging.parts(under):
                staging.write(carrier.carry(rows))


def _under(batch: pa.RecordBatch, schema: Schema, names: Mapping[str, str], prefix: str) -> pa.RecordBatch:
    """Rows in the columns and types of a schema."""
    columns = [
        conforming.conform(batch.column(names[name]), field.type, where=f"column {name!r}")
        if name in names
        else pa.nulls(batch.num_rows, field.type)
        for name, field in zip(schema.names, schema.arrow, strict=True)
    ]
    if prefix and schema.id is not None:
        place = schema.names.index(schema.id)
        columns[place] = pc.binary_join_element_wise(prefix, columns[place], "")
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def _take_back(dataset: Dataset, out: str | os.PathLike[str], *, storage: Mapping[str, str] | None) -> None:
    """Remove a dataset of something that could not be finished; its place was new or empty before."""
    whole = ability(dataset.table, Removable)
    if whole is not None:  # its address is no folder
        whole.drop()
        return
    location = absolute(out)
    if is_local(location):
        shutil.rmtree(local_path(location), ignore_errors=True)
        return
    store = open_store(location, storage=storage)
    store.delete([path for path, _ in store.list()])

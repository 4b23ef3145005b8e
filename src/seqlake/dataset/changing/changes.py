"""Rows that are there already: cells updated, rows replaced or deleted, each as one commit.

Labels lie in side shards where the shard itself does not hold the column, so that labelling rewrites no temporal
byte; what a shard holds itself is changed by writing that shard anew, and no other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.dataset.changing import rewriting
from seqlake.dataset.changing.rewriting import LARGE
from seqlake.dataset.reading import query
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.writing import ingest
from seqlake.dataset.writing.carrying import brought
from seqlake.dataset.writing.encoding import Encodings, encoded
from seqlake.dataset.writing.ingest import Given
from seqlake.dataset.writing.references import mapped, may_name
from seqlake.dataset.writing.staging import ShardShape, Staging, open_for_changes
from seqlake.errors import SchemaMismatchError, SequenceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.media import Encoding
    from seqlake.protocols import Copied, Ints, Readable, Version
    from seqlake.spec.schema import Schema


def update(dataset: OpenDataset, data: Any, /) -> Version:
    """Change cells of rows that are there; what `Dataset.update` does."""
    open_for_changes(dataset)
    schema = dataset.schema
    given = small_cells(data, schema)
    rows = rows_of(dataset, _ids(given, schema), but="nothing was changed")
    staging = Staging(dataset.table, schema, shape=ShardShape())

    def change() -> list[str]:
        here = replace(given, cells=brought(data, given.cells, schema, staging))
        files = {file.path: file for file in staging.take_files()}
        return change_cells(staging, dataset.source, schema, here, rows, files=files)

    return _finish(dataset, staging, change)


def small_cells(data: Any, schema: Schema, /) -> Given:
    """Given cells, none of which is of a signal.

    Raises:
        SchemaMismatchError: One is.
    """
    given = ingest.given_cells(data, schema)
    large = [name for name in given.cells.column_names if schema[name].category in LARGE]
    if large:
        raise SchemaMismatchError(
            f"update changes scalar cells; found {', '.join(large)}.", hint="Replace signals with `upsert`."
        )
    return given


def upsert(dataset: OpenDataset, data: Any, /, *, encoding: Encoding | Mapping[str, Encoding] | None = None) -> Version:
    """Change rows that are there and add those that are not; what `Dataset.upsert` does."""
    open_for_changes(dataset)
    schema = dataset.schema
    staging = Staging(dataset.table, schema, shape=ShardShape())
    encode = partial(encoded, schema, encoding=Encodings.given(encoding, schema), scratch=staging.scratch)

    def change() -> list[str]:
        given = ingest.given_cells(data, schema, copy=staging.take_in, encode=encode)
        given = ingest.with_counted_lengths(given, schema)
        widths = ingest.Widths(schema, dataset.source)
        for batch in given.cells.to_batches():
            widths.check(dict(zip(batch.schema.names, batch.columns, strict=True)), "The data")
        given = replace(given, cells=brought(data, given.cells, schema, staging))
        rows = Excerpt.of(dataset).find_ids(_ids(given, schema))
        files = {file.path: file for file in staging.take_files()}
        gone = change_cells(staging, dataset.source, schema, given, rows, files=files)
        _insert(staging, schema, given.cells.take(pa.array(np.flatnonzero(rows < 0))), files)
        return gone

    return _finish(dataset, staging, change)


def fill(dataset: OpenDataset, cells: pa.Table, /, *, files: Mapping[str, Path] | None = None) -> Version:
    """Change cells of any kind of rows that are there.

    Args:
        dataset: Changed in its newest version, which it then shows.
        cells: Ids and columns, in logical types.
        files: New files, by what cells have in the place of their references.
    """
    schema = dataset.schema
    staging = Staging(dataset.table, schema, shape=ShardShape())
    rows = rows_of(dataset, cells.column(str(schema.id)).to_pylist(), but="nothing was changed")

    def change() -> list[str]:
        given = Given(cells=taken_in(cells, schema, staging, files or {}))
        copied = {file.path: file for file in staging.take_files()}
        return change_cells(staging, dataset.source, schema, given, rows, files=copied)

    return _finish(dataset, staging, change)


def taken_in(cells: pa.Table, schema: Schema, staging: Staging, files: Mapping[str, Path], /) -> pa.Table:
    """Cells with new files copied into the dataset, linked where they can be, and their references.

    Args:
        cells: Ids and columns.
        schema: With all these columns.
        staging: Where files go.
        files: By what cells have in the place of their references.
    """
    key = str(schema.id)
    for place, name in enumerate(cells.column_names if files else ()):
        if name == key or not may_name(schema[name]):
            continue
        new: list[Any] = []
        for of, cell in zip(cells.column(key).to_pylist(), cells.column(name).to_pylist(), strict=True):

            def moved(reference: str, of: str = of, name: str = name) -> str:
                path = files.get(reference)
                return reference if path is None else staging.copy_in(name, of, str(path), link=True)

            new.append(mapped(cell, moved))
        cells = cells.set_column(place, cells.schema.field(name), pa.array(new, cells.schema.field(name).type))
    return cells


def delete(dataset: OpenDataset, where: str | None = None, /, *, ids: Iterable[str] | None = None) -> Version:
    """Remove rows; what `Dataset.delete` does."""
    if (where is None) == (ids is None):
        raise ValueError("Say which rows: delete('reward < 0') or delete(ids=[...]).")
    open_for_changes(dataset)
    schema = dataset.schema
    if where is not None:
        rows = query.matching_rows(schema, where, dataset.batches)
    else:
        wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids or ()))
        rows = rows_of(dataset, wanted, but="nothing was deleted")
    staging = Staging(dataset.table, schema, shape=ShardShape())

    def change() -> list[str]:
        gone = []
        for one in rewriting.touched(dataset.source, rows):
            keep = np.setdiff1d(np.arange(one.shard.rows, dtype=np.int64), one.rows)
            if keep.size:
                rewriting.keep_only(staging, one.shard, schema, keep)
            gone.append(one.shard.key)
        return gone

    return _finish(dataset, staging, change, operation="delete")


def change_cells(
    staging: Staging,
    source: Readable,
    schema: Schema,
    given: Given,
    rows: Ints,
    /,
    *,
    files: Mapping[str, Copied] | None = None,
) -> list[str]:
    """Stage new cells for rows that are there.

    Args:
        staging: Where to.
        source: The snapshot that the change is made on.
        schema: With all given columns.
        given: The new cells, and the ids.
        rows: [given] global row numbers; rows with negative ones are left alone.
        files: Files that were copied in for given rows, by reference.

    Returns:
        The keys of the shards that leave.
    """
    gone: list[str] = []
    columns = [name for name in given.cells.column_names if name != schema.id]
    for one in rewriting.touched(source, rows):
        names = [name for name in columns if given.gives(name, one.given).any()]
        if not names:
            continue
        owns = bool(files) and bool(rewriting.named(given.cells.take(pa.array(one.given)), schema, files or {}))
        # A file is listed with the shard whose rows name it, so that such a shard is written anew too.
        if (
            owns
            or not staging.has_sides
            or any(rewriting.is_large(schema[name]) or rewriting.held(one.shard, name) for name in names)
        ):
            rewriting.rewrite(staging, one, schema, given, files)
            gone.append(one.shard.key)
        else:
            rewriting.put_beside(staging, one, schema, given, names)
    return gone


def rows_of(dataset: OpenDataset, ids: Sequence[str], /, *, but: str) -> Ints:
    """[ids] global row numbers.

    Raises:
        SequenceNotFoundError: One is not there; the message ends with `but`.
    """
    rows = Excerpt.of(dataset).find_ids(ids)
    missing = np.flatnonzero(rows < 0)
    if missing.size:
        raise SequenceNotFoundError(
            f"{missing.size} of {len(ids)} ids are not in the dataset, the first is {ids[int(missing[0])]!r}; {but}."
        )
    return rows


def _ids(given: Given, schema: Schema) -> list[str]:
    ids: list[str] = given.cells.column(str(schema.id)).to_pylist()
    return ids


def _insert(staging: Staging, schema: Schema, new: pa.Table, files: Mapping[str, Copied]) -> None:
    """Rows that are not there yet, in shards of their own."""
    if not new.num_rows:
        return
    _refuse_incomplete(schema, new)
    staging.shape = ShardShape()
    for batch in new.combine_chunks().to_batches(max_chunksize=1024):
        whole = rewriting.with_nulls(batch, schema)
        staging.carry(rewriting.named(pa.Table.from_batches([whole]), schema, files))
        staging.write(ingest.with_lengths(whole, schema))
    staging.close_shard()


def _refuse_incomplete(schema: Schema, new: pa.Table) -> None:
    """Rows that were there keep what is not given; new ones have nothing to keep."""
    for name in schema.names:
        if schema[name].nullable:
            continue
        missing = np.asarray(new.column(name).is_null()) if name in new.column_names else np.ones(len(new), np.bool_)
        if missing.any():
            first = new.column(str(schema.id))[int(np.flatnonzero(missing)[0])].as_py()
            raise SchemaMismatchError(
                f"Column {name!r}: expected a value in every row; {int(missing.sum())} new rows give none, the first "
                f"is {first!r}.",
                hint="Give one for each new row; `update` takes only ids that are there.",
            )


def _finish(dataset: OpenDataset, staging: Staging, change: Any, *, operation: str = "upsert") -> Version:
    """Stage, commit, show; on an error nothing is left behind."""
    # Begun before anything is read, so that a rival's commit in between is met as a conflict.
    parent = dataset.version
    try:
        staging.begin(parent)
        gone = change()
    except BaseException:
        staging.discard()
        raise
    if not (gone or staging.written or staging.sides):
        staging.discard()
        return parent
    version = staging.commit(operation, remove=gone)
    dataset.refresh()
    return version

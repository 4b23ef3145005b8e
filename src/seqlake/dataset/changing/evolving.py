"""Columns added, renamed, dropped and widened: one commit that rewrites no temporal byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.abilities import HasUnfolded, ability
from seqlake.dataset.changing import changes
from seqlake.dataset.changing.rewriting import held, one_chunk, write_anew
from seqlake.dataset.reading import query
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.writing import conforming
from seqlake.dataset.writing.ingest import Given, Widths
from seqlake.dataset.writing.staging import ShardShape, Staging, open_for_changes, partition_of
from seqlake.dataset.writing.values import cell
from seqlake.errors import CommitConflictError, CommitUnknownError, SchemaMismatchError
from seqlake.spec.column_types import ColumnType
from seqlake.spec.schema import Column, Schema, is_list
from seqlake.spec.unfolded import Unfolded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.protocols import Readable, Version

_TRIES = 10


def add_column(
    dataset: OpenDataset,
    name: str,
    kind: pa.DataType | pa.Field | ColumnType | Column,
    /,
    *,
    values: Mapping[str, Any] | None = None,
    sql: str | None = None,
) -> Version:
    """Add a column, null or filled; what `Dataset.add_column` does."""
    if values is not None and sql is not None:
        raise ValueError("A column is filled by values or by sql, not by both.")

    def cells(schema: Schema) -> Given | None:
        if sql is not None:
            return Given(cells=computed(dataset, name, sql, schema[name]))
        return None if values is None else Given(cells=_from_values(schema, name, values))

    def change() -> Version:
        if name in dataset.schema:
            raise SchemaMismatchError(
                f"There is a column {name!r} already ({dataset.schema[name]}).", hint="Change its cells with `update`."
            )
        return _added(dataset, {name: kind}, cells)

    return replayed(dataset, change)


def label(dataset: OpenDataset, labels: pa.Table, /) -> Version:
    """Put cells into columns by id, as one commit: columns that are there are changed, others are added.

    Args:
        dataset: Changed in its newest version, which it then shows.
        labels: Ids and one or more columns of scalars or vectors.

    Raises:
        SequenceNotFoundError: An id is not in the dataset.
        SchemaMismatchError: No ids, nothing beside them, or cells of another type than the column's.
    """
    open_for_changes(dataset)
    key = str(dataset.schema.id)
    if key not in labels.column_names or labels.num_columns < 2:
        raise SchemaMismatchError(
            f"Labels are a column {key!r} and others; found {', '.join(labels.column_names) or 'no columns'}."
        )

    def change() -> Version:
        new = {field.name: field.type for field in labels.schema if field.name not in dataset.schema}
        if not new:
            return changes.update(dataset, labels)
        kinds = {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in new.items()}
        return _added(dataset, kinds, lambda schema: changes.small_cells(labels, schema))

    return replayed(dataset, change)


def fill(
    dataset: OpenDataset,
    columns: Mapping[str, Column],
    table: pa.Table,
    /,
    *,
    files: Mapping[str, Path] | None = None,
) -> Version:
    """Put computed cells of any kind into columns by id, as one commit: those that are not there are added.

    Args:
        dataset: Changed in its newest version, which it then shows.
        columns: The columns to fill.
        table: Ids and these columns, in logical types; sequences that are gone meanwhile are left out.
        files: New files, by what cells have in the place of their references; they are copied in, or linked.

    Raises:
        SchemaMismatchError: A column breaks a rule of the format.
        ValidationError: Steps of a signal that declares no dimension are not equally wide.
    """

    def change() -> Version:
        ids = table.column(str(dataset.schema.id)).to_pylist()
        there = table.filter(pa.array(Excerpt.of(dataset).find_ids(ids) >= 0, pa.bool_()))
        widths = Widths(dataset.schema.with_columns(columns), dataset.source)
        for batch in there.to_batches():
            widths.check(dict(zip(batch.schema.names, batch.columns, strict=True)), "The results")
        new = {name: column for name, column in columns.items() if name not in dataset.schema}
        if new:
            return _added(dataset, new, lambda _: Given(cells=there) if len(there) else None, files=files)
        return changes.fill(dataset, there, files=files)

    return replayed(dataset, change)


def _added(
    dataset: OpenDataset,
    kinds: Mapping[str, pa.DataType | pa.Field | ColumnType | Column],
    cells: Callable[[Schema], Given | None],
    *,
    files: Mapping[str, Path] | None = None,
) -> Version:
    """New columns, and given cells of columns new and old, as one commit."""
    schema = dataset.schema.with_columns(kinds)
    for name in kinds:
        conforming.refuse_broken(schema, column=name)
        if not schema[name].nullable:
            raise SchemaMismatchError(f"{name!r} must be nullable: sequences without a value read null.")
    staging = Staging(dataset.table, schema, shape=ShardShape())
    try:
        staging.begin(dataset.version)
        gone: list[str] = []
        given = cells(schema)
        if given is not None:
            ids = given.cells.column(str(schema.id)).to_pylist()
            rows = changes.rows_of(dataset, ids, but="nothing was added")
            given = replace(given, cells=changes.taken_in(given.cells, schema, staging, files or {}))
            copied = {file.path: file for file in staging.take_files()}
            gone = changes.change_cells(staging, dataset.source, schema, given, rows, files=copied)
        for name in kinds:
            gone += _make_room(dataset, staging, schema, name, but=gone)
    except BaseException:
        staging.discard()
        raise
    return staging.commit("evolve", remove=gone, schema=schema)


def rename_column(dataset: OpenDataset, old: str, new: str, /, *, rewrite: bool = False) -> Version:
    """Rename a column; what `Dataset.rename_column` does."""

    def change() -> Version:
        schema = _known(dataset, old, "renamed")
        if new in schema:
            raise SchemaMismatchError(f"There is a column {new!r} already ({schema[new]}).")
        if not new:
            raise SchemaMismatchError("A column's name must not be empty.")
        renamed = followed(schema.renamed({old: new}), {old: new})
        return _commit(dataset, renamed, renamed={old: new}, rewrite=rewrite, comes=new)

    return replayed(dataset, change)


def drop_column(dataset: OpenDataset, name: str, /, *, rewrite: bool = False) -> Version:
    """Drop a column; what `Dataset.drop_column` does."""
    return replayed(
        dataset, lambda: _commit(dataset, _known(dataset, name, "dropped").without([name]), rewrite=rewrite)
    )


def widen_column(dataset: OpenDataset, name: str, kind: pa.DataType, /, *, rewrite: bool = False) -> Version:
    """Give a column a type that holds every value of its old one; what `Dataset.widen_column` does."""

    def change() -> Version:
        column = _known(dataset, name, "widened")[name]
        target = _widened(column, kind)
        if column.arrow == target:
            return dataset.version
        wider = Column(name, target, column.type, nullable=column.nullable)
        return _commit(dataset, dataset.schema.with_columns({name: wider}), rewrite=rewrite)

    return replayed(dataset, change)


def replayed(dataset: OpenDataset, change: Callable[[], Version]) -> Version:
    """Make a change on the newest version, anew when a rival's commit came between, up to 10 times.

    Raises:
        CommitConflictError: Rivals were faster every time.
    """
    for last in range(1, _TRIES + 1):
        open_for_changes(dataset)
        try:
            version = change()
        except CommitUnknownError:
            raise
        except CommitConflictError:
            if last == _TRIES:
                raise
            continue
        dataset.refresh()
        return version
    raise AssertionError("the last try returns or raises")


def _commit(
    dataset: OpenDataset,
    schema: Schema,
    *,
    renamed: Mapping[str, str] | None = None,
    rewrite: bool = False,
    comes: str = "",
) -> Version:
    staging = Staging(dataset.table, schema, shape=ShardShape())
    try:
        staging.begin(dataset.version)
        if rewrite:
            gone = _write_anew(dataset, schema, staging, renamed or {})
        else:
            gone = _make_room(dataset, staging, schema, comes, renamed=renamed)
    except BaseException:
        staging.discard()
        raise
    return staging.commit("evolve", remove=gone, schema=schema, renamed=renamed)


def _write_anew(dataset: OpenDataset, schema: Schema, staging: Staging, renamed: Mapping[str, str]) -> list[str]:
    """Every shard under the new schema, for tables whose files must hold what the schema says; gives the old keys."""
    lost = [name for name in partition_of(dataset.table) if name in dataset.schema and name not in schema]
    if lost:
        raise SchemaMismatchError(f"The table is partitioned by {', '.join(lost)}, which must keep name and place.")
    shards = dataset.source.shards()
    for shard in shards:
        write_anew(staging, shard, schema, dataset.schema.names, renamed)
    return [shard.key for shard in shards]


def _make_room(
    dataset: OpenDataset,
    staging: Staging,
    schema: Schema,
    name: str,
    *,
    but: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> list[str]:
    """Shards whose files hold a name for another column, or for one that is gone, written anew; gives the old keys.

    The name is to mean something else now, and no reader of such a file alone could know that it does not there.
    """
    known = ability(dataset.source, HasUnfolded)
    unfolded = Unfolded() if known is None else known.unfolded
    if name not in {*unfolded.renamed, *unfolded.dropped, *unfolded.reused}:
        return []
    shards = [shard for shard in dataset.source.shards() if shard.key not in but and held(shard, name)]
    for shard in shards:
        write_anew(staging, shard, schema, dataset.schema.names, renamed)
    return [shard.key for shard in shards]


def _known(dataset: OpenDataset, name: str, verb: str) -> Schema:
    schema = dataset.schema
    schema[name]
    if name == schema.id:
        raise SchemaMismatchError(f"{name!r} is the id of the rows and cannot be {verb}.")
    return schema


def followed(schema: Schema, names: Mapping[str, str], /) -> Schema:
    """Columns whose steps a renamed column times still name it.

    Args:
        schema: With the new names.
        names: Old name -> new name.
    """
    moved = {}
    for name in schema.names:
        column = schema[name]
        if column.type is None:
            continue
        naming = {field: names.get(str(column.type.get(field))) for field in ("timestamps", "origin")}
        changed = {field: new for field, new in naming.items() if new is not None}
        if changed:
            kind = ColumnType.from_json({**column.type.to_json(), **changed})
            moved[name] = Column(name, column.arrow, kind, nullable=column.nullable)
    return schema.with_columns(moved) if moved else schema


def _from_values(schema: Schema, name: str, values: Mapping[str, Any]) -> pa.Table:
    """Values by id as a table of ids and cells."""
    if not isinstance(values, Mapping):
        raise TypeError(f"values is a dict from sequence_id to value, found {type(values).__name__}.")
    field = schema.arrow.field(name)
    cells = [
        cell(value, schema[name], field.type, where=f"Sequence {key!r}, column {name!r}")
        for key, value in values.items()
    ]
    column = pa.concat_arrays(cells) if cells else pa.nulls(0, field.type)
    ids = pa.array(list(values), schema.arrow.field(str(schema.id)).type)
    return pa.table({str(schema.id): ids, name: column})


def computed(source: Readable, name: str, sql: str, column: Column | None = None, /) -> pa.Table:
    """A row expression over rows as a table of ids and cells.

    Args:
        source: The rows; signals are compared with their checksums, since what is computed of them gets new ones.
        name: What the cells are called.
        sql: The expression.
        column: What the cells must be; by default what the expression gives.

    Raises:
        QueryError: It cannot be used.
        SchemaMismatchError: It gives cells of another type.
    """
    rows = Excerpt.of(source).verified().with_id()
    key = str(rows.schema.id)
    asked = f"SELECT {query.quoted(key)}, (\n{sql}\n) AS value FROM dataset"
    ids, values = (one_chunk(one) for one in query.answers(rows, asked))
    wanted = None if column is None else column.logical
    try:
        values = values.cast(_without_decimals(values.type, wanted))
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(f"{name!r}: expected {wanted}, the expression gives other numbers: {error}") from None
    if column is not None and wanted is not None:
        if not conforming.fits(values.type, wanted):
            raise SchemaMismatchError(f"{name!r}: expected {wanted}, the expression gives {values.type}.")
        values = conforming.conform_column(values, column, wanted)
    return pa.table({key: ids, name: values})


def _without_decimals(kind: pa.DataType, wanted: pa.DataType | None) -> pa.DataType:
    """A type of SQL's answers, which count in decimals (0.5 is one, and so is the sum of integers), as numbers."""
    if is_list(kind):
        inner = wanted.value_type if wanted is not None and is_list(wanted) else None
        return kind if wanted is not None and inner is None else pa.list_(_without_decimals(kind.value_type, inner))
    if not pa.types.is_decimal(kind):
        return kind
    if pa.types.is_floating(wanted) if wanted is not None else kind.scale:
        return pa.float64()
    return pa.int64() if wanted is None or pa.types.is_integer(wanted) else kind


def _widened(column: Column, kind: pa.DataType) -> pa.DataType:
    """The stored type to reach; of a signal the type of its numbers may be given alone."""
    if column.raw:
        raise SchemaMismatchError(f"{column.name!r} holds raw cells, whose type cannot change; repack it instead.")
    value = column.value_type
    if value is not None and not is_list(kind):
        if not _wider(value, kind):
            raise _not_wider(column, value, kind)
        return _with_values(column.arrow, kind)
    if not _wider(column.arrow, kind):
        raise _not_wider(column, column.arrow, kind)
    return kind


def _with_values(lists: pa.DataType, value: pa.DataType) -> pa.DataType:
    if not is_list(lists):
        return value
    inner = _with_values(lists.value_type, value)
    return pa.list_(inner, lists.list_size) if pa.types.is_fixed_size_list(lists) else pa.list_(inner)


def _wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one type is a value of another."""
    is_ = pa.types
    if old == new:
        return True
    if is_list(old) and is_list(new):
        return _wider(old.value_type, new.value_type)
    if is_.is_integer(old) and is_.is_integer(new):
        return bool(new.bit_width > old.bit_width and (is_.is_signed_integer(new) or is_.is_unsigned_integer(old)))
    if is_.is_floating(new) and is_.is_floating(old):
        return bool(new.bit_width > old.bit_width)
    if is_.is_integer(old) and is_.is_floating(new):
        return bool(old.bit_width <= {16: 8, 32: 16, 64: 32}[new.bit_width])
    texts = (is_.is_string(old) and is_.is_large_string(new)) or (is_.is_binary(old) and is_.is_large_binary(new))
    return bool(texts or (is_.is_date32(old) and is_.is_date64(new)))


def _not_wider(column: Column, old: pa.DataType, new: pa.DataType) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{column.name!r}: {new} does not hold every {old}.",
        hint="Add a new column from it with add_column(..., sql=...), then drop the old one.",
    )

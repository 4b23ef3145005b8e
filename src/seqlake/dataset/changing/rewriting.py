"""Cells of some rows put beside a shard, or into a new shard in its place; no other shard is touched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.abilities import Physical, ability
from seqlake.dataset.reading.streaming import for_writing
from seqlake.dataset.writing.references import may_name
from seqlake.dataset.writing.staging import ShardShape
from seqlake.shards.columns import Columns, Stored
from seqlake.spec.rules.references import paths_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.dataset.writing.ingest import Given
    from seqlake.dataset.writing.staging import Staging
    from seqlake.protocols import Copied, Ints, Readable, Shard
    from seqlake.spec.schema import Column, Schema

LARGE = frozenset({"temporal", "frames"})
"""Categories that never lie in side shards: labels do, signals do not."""

_ENDLESS = 1 << 62


def is_large(column: Column, /) -> bool:
    """Whether cells of a column never lie in side shards: signals, and files that stand in the rows."""
    return column.category in LARGE or column.inline


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """Rows of one shard that a change is about.

    Attributes:
        shard: The shard.
        columns: Those of its version.
        rows: [n] rows of the shard, ascending.
        given: [n] which row of the given data belongs to each.
    """

    shard: Shard
    columns: Sequence[str]
    rows: Ints
    given: Ints


def touched(source: Readable, rows: Ints, /) -> Iterator[Touched]:
    """Global row numbers by shard; shards without any are left out.

    Args:
        source: A snapshot.
        rows: [given] global row number of each given row, each at most once; negative ones are left out.
    """
    shards = source.shards()
    starts = np.array([0, *accumulate(shard.rows for shard in shards)], np.int64)
    given = np.flatnonzero(rows >= 0)
    given = given[np.argsort(rows[given], kind="stable")]
    bounds = np.searchsorted(rows[given], starts)
    for number, shard in enumerate(shards):
        first, last = bounds[number], bounds[number + 1]
        if last > first:
            mine = given[first:last]
            yield Touched(shard=shard, columns=source.schema.names, rows=rows[mine] - starts[number], given=mine)


def held(shard: Shard, column: str, /) -> bool:
    """Whether the shard's own file holds a column of this name, so that a glob reader would see its values.

    One that its version does not have was dropped, or is called otherwise now.
    """
    if not isinstance(shard, Columns):
        return True
    place = shard.mapping.get(column, Stored(column))
    if not isinstance(place, Stored):
        return False
    reader = shard.shard.open()
    try:
        # A column that the file lacks reads null: it was added after the shard was written.
        file = ability(reader, Physical)
        return file is None or place.name in file.schema.names
    finally:
        reader.close()


def put_beside(staging: Staging, one: Touched, schema: Schema, given: Given, names: Sequence[str]) -> None:
    """A side shard with the given columns: given cells where there are some, else what was there.

    Args:
        staging: Where it goes.
        one: Which rows.
        schema: With the given columns.
        given: The new cells.
        names: The columns that the rows of this shard give.
    """
    there = [name for name in names if name in one.columns]
    parts = []
    start = 0
    for batch in for_writing(one.shard, there or [str(schema.id)]):
        old = with_nulls(batch, schema.select(names))
        parts.append(replaced(old, one, given, start))
        start += batch.num_rows
    staging.side(one.shard.key, pa.Table.from_batches(parts))


def rewrite(
    staging: Staging, one: Touched, schema: Schema, given: Given, files: Mapping[str, Copied] | None = None
) -> None:
    """A new shard with the given cells in place of the old ones.

    Args:
        staging: Where it goes.
        one: Which rows.
        schema: Of the new shard.
        given: The new cells by column.
        files: Files that were copied in for given rows, by reference.
    """
    old = [name for name in schema.names if name in one.columns]
    staging.shape = shape_of(one.shard, schema, one.columns)
    start = 0
    for batch in for_writing(one.shard, old):
        staging.write(replaced(with_nulls(batch, schema), one, given, start))
        start += batch.num_rows
    if files:
        staging.carry(named(given.cells.take(pa.array(one.given)), schema, files))
    staging.close_shard()


def keep_only(staging: Staging, shard: Shard, schema: Schema, keep: Ints | None = None) -> None:
    """A new shard with some rows of an old one, or all, in their order."""
    staging.shape = shape_of(shard, schema, schema.names)
    for batch in for_writing(shard, schema.names, rows=keep):
        staging.write(batch)
    staging.close_shard()


def write_anew(
    staging: Staging,
    shard: Shard,
    schema: Schema,
    columns: Sequence[str],
    renamed: Mapping[str, str] | None = None,
    *,
    turned: Mapping[str, Callable[[pa.Array], pa.Array]] | None = None,
) -> None:
    """A new shard with all rows of an old one under another schema; columns that it lacks are null.

    Args:
        staging: Where it goes.
        shard: The old one.
        schema: Of the new one.
        columns: Those of the version of the old one.
        renamed: Old column name -> new one.
        turned: Column -> what makes its new cells of the old ones.
    """
    before = {new: old for old, new in (renamed or {}).items()}
    there = {name: before.get(name, name) for name in schema.names if before.get(name, name) in columns}
    staging.shape = shape_of(shard, schema, columns)
    for batch in for_writing(shard, list(there.values())):
        cells = dict(zip(there, batch.columns, strict=True))
        cells |= {name: turn(cells[name]) for name, turn in (turned or {}).items()}
        rows = [cells.get(f.name, pa.nulls(batch.num_rows, f.type)) for f in schema.arrow]
        staging.write(pa.RecordBatch.from_arrays(rows, names=schema.names))
    staging.close_shard()


def with_nulls(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The batch with all columns of the schema; those that it lacks are null."""
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema.arrow
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def replaced(batch: pa.RecordBatch, one: Touched, given: Given, start: int) -> pa.RecordBatch:
    """The batch with given cells in the rows they belong to; columns that it lacks are left out.

    Args:
        batch: Rows `start` and on of the shard.
        one: Which rows of the shard, and which given ones.
        given: The new cells by column.
        start: The shard's row that the batch begins with.
    """
    first, last = np.searchsorted(one.rows, [start, start + batch.num_rows])
    rows, source = one.rows[first:last] - start, one.given[first:last]
    for name in given.cells.column_names:
        place = batch.schema.get_field_index(name)
        gives = given.gives(name, source)
        if place < 0 or not gives.any():
            continue
        new = one_chunk(given.cells.column(name).take(pa.array(source[gives])))
        order = np.arange(batch.num_rows)
        order[rows[gives]] = batch.num_rows + np.arange(len(new))
        joined = pa.concat_arrays([batch.column(place), new])
        batch = batch.set_column(place, batch.schema.field(place), joined.take(pa.array(order)))
    return batch


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """All chunks of a column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def shape_of(shard: Shard, schema: Schema, columns: Sequence[str]) -> ShardShape:
    """One shard in the layout of this one: `archive` where its signals were compressed.

    Args:
        shard: This one.
        schema: Of the new shard.
        columns: Those of the version of this one.
    """
    reader = shard.open()
    try:
        signals = [name for name in schema.names if schema[name].category == "temporal" and name in columns]
        stored = [name for name in signals if held(shard, name)]
        archive = bool(stored) and all(reader.flat(name) is None for name in stored)
    finally:
        reader.close()
    return ShardShape(nbytes=_ENDLESS, layout="archive" if archive else "training")


def named(rows: pa.Table, schema: Schema, files: Mapping[str, Copied]) -> Sequence[Copied]:
    """The copied-in files that these rows name."""
    paths: set[str] = set()
    for name in rows.column_names if files else ():
        if may_name(schema[name]):
            for cell in rows.column(name).to_pylist():
                paths.update(path for path, _ in paths_in(cell))
    return [files[path] for path in sorted(paths & files.keys())]

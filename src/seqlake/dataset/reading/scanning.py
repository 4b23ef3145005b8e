"""What SQL reads: columns of small cells, kept at hand, and signals, copied out of their files ahead of the query.

DuckDB asks for one batch after the other. Where the signals of a shard lie flat, the next batches are copied by other
threads meanwhile, each number once; a shard that must be decoded is read as everywhere else.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.dataset.reading import access, streaming
from seqlake.shards.cells import flat_portions, from_flat
from seqlake.shards.parquet.expansion import NARROW
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.protocols import Flat, Ints

_THREADS = 2
_AHEAD = 4  # batches that are copied before they are asked for


def batches(shows: Excerpt, columns: Sequence[str], /) -> Iterator[pa.RecordBatch]:
    """These columns of all rows that an excerpt shows, in order, in bounded batches of logical types.

    Args:
        shows: What is asked about.
        columns: At least one name.
    """
    schema = shows.schema
    types = pa.schema([schema.arrow.field(name) for name in columns])
    small = [name for name in columns if schema[name].category in NARROW]
    signals = [name for name in columns if name not in small]
    flat = all(schema[name].category == "temporal" for name in signals)
    table = _small(shows, small) if flat else None
    if table is None:
        yield from shows.batches(columns)
    elif signals:
        yield from _with_signals(shows, types, table)
    else:
        yield from table.to_batches()


def _small(shows: Excerpt, names: Sequence[str]) -> pa.Table | None:
    """Columns of small cells of the rows shown, in their order; None where they are better read in portions."""
    if not names:
        return pa.table({})
    types = pa.schema([shows.schema.arrow.field(name) for name in names])
    kept = shows.access.kept(names, read=shows.is_of_every_shard())
    if kept is not None:
        table = pa.table([kept[name] for name in names], schema=types)
        return table if shows.rows is None else table.take(pa.array(shows.rows))
    if shows.rows is None:
        return None
    batches, nbytes = [], 0
    for batch in shows.batches(names):
        batches.append(batch)
        nbytes += batch.nbytes
        if nbytes > access.KEPT:
            return None
    return pa.Table.from_batches(batches, schema=types).combine_chunks()


def _with_signals(shows: Excerpt, types: pa.Schema, small: pa.Table) -> Iterator[pa.RecordBatch]:
    signals = [name for name in types.names if name not in small.column_names]
    starts = np.array(shows.access.starts, np.int64)
    first = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="seqlake-sql") as pool:
        for number, rows in _by_shard(starts, shows.rows):
            flats = shows.access.flats(number, signals)
            if flats is None:
                shard = Rows(shows.access.shards[number], rows - starts[number])
                for batch in streaming.one_shard(shard, types.names):
                    yield from streaming.conformed(batch, types)
            else:
                beside = small.slice(first, len(rows))
                yield from _ahead(pool, _copies(types, beside, flats, rows - starts[number]))
            first += len(rows)


def _by_shard(starts: Ints, rows: Ints | None) -> Iterator[tuple[int, Ints]]:
    """Shards in the order of the rows, each with the numbers of rows that follow each other there."""
    if rows is None:
        for number, (start, stop) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
            if stop > start:
                yield number, np.arange(start, stop, dtype=np.int64)
        return
    numbers = np.searchsorted(starts, rows, side="right") - 1
    for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers)) + 1):
        if len(run):
            yield int(numbers[run[0]]), rows[run]


def _copies(
    types: pa.Schema, small: pa.Table, flats: dict[str, Flat], rows: Ints
) -> Iterator[Callable[[], pa.RecordBatch]]:
    """What makes each batch of some rows of one shard; the small columns have these rows alone."""

    def copied(start: int, stop: int) -> pa.RecordBatch:
        beside = small.slice(start, stop - start)
        arrays = [
            from_flat(flats[field.name], rows[start:stop], field.type)
            if field.name in flats
            else _one_array(beside.column(field.name))
            for field in types
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=types)

    for start, stop in flat_portions(list(flats.values()), rows):
        yield partial(copied, start, stop)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])


def _ahead(pool: ThreadPoolExecutor, copies: Iterator[Callable[[], pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The batches in order, the next ones on their way."""
    waiting = deque(pool.submit(copy) for copy in islice(copies, _AHEAD))
    try:
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(copy) for copy in islice(copies, 1))
    finally:
        for task in waiting:
            task.cancel()

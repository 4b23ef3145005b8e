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

from seqlake.dataset.reading import streaming
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
    kept = shows.access.kept(small)
    if kept is None or not all(schema[name].category in {*NARROW, "temporal"} for name in columns):
        yield from shows.batches(columns)
        return
    if len(small) == len(columns):
        table = pa.table([kept[name] for name in columns], schema=types)
        yield from (table if shows.rows is None else table.take(pa.array(shows.rows))).to_batches()
        return
    yield from _with_signals(shows, types, kept)


def _with_signals(shows: Excerpt, types: pa.Schema, kept: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
    signals = [name for name in types.names if name not in kept]
    starts = np.array(shows.access.starts, np.int64)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="seqlake-sql") as pool:
        for number, rows in _by_shard(starts, shows.rows):
            flats = shows.access.flats(number, signals)
            if flats is None:
                shard = Rows(shows.access.shards[number], rows - starts[number])
                for batch in streaming.one_shard(shard, types.names):
                    yield from streaming.conformed(batch, types)
                continue
            yield from _ahead(pool, _copies(types, kept, flats, rows, int(starts[number])))


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
    types: pa.Schema, kept: dict[str, pa.Array], flats: dict[str, Flat], rows: Ints, first: int
) -> Iterator[Callable[[], pa.RecordBatch]]:
    """What makes each batch of some rows of one shard."""

    def copied(part: Ints) -> pa.RecordBatch:
        numbers = pa.array(part)
        arrays = [
            kept[field.name].take(numbers)
            if field.name in kept
            else from_flat(flats[field.name], part - first, field.type)
            for field in types
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=types)

    for start, stop in flat_portions(list(flats.values()), rows - first):
        yield partial(copied, rows[start:stop])


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

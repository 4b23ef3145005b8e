"""The numbers of columns in chunks: views over flat shards, decoded batches of all others."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from seqlake.dataset.reading.cells import flat_cell, numbers_of, one_width
from seqlake.dataset.reading.streaming import one_shard
from seqlake.files.blobs import MemoryBlob
from seqlake.shards.cells import cast, fetched
from seqlake.spec.schema import dtype_of, is_binary, is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Readable, Shard
    from seqlake.spec.schema import Column, Schema

_BLOCK = 32 << 20  # bytes that one thread looks at before it gives a result
_SMALL = 256 << 10  # bytes of neighbouring steps that are worth a call of their own

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellBatch:
    """Some numbers of one column.

    Attributes:
        column: Its name.
        parts: Arrays [n, *shape of a step], of scalars [n], all of one shape; none where nothing says how wide a step
            would be.
        nulls: Null cells that were passed on the way.
    """

    column: str
    parts: Sequence[NDArray[Any]]
    nulls: int


def kept_dtype(column: Column, /) -> np.dtype[Any]:
    """The numpy type in which a column's smallest and largest numbers are kept; booleans count as 0 and 1."""
    kind = column.arrow if column.category == "scalar" else column.value_type
    assert kind is not None
    dtype: np.dtype[Any] = np.dtype(np.uint8) if pa.types.is_boolean(kind) else dtype_of(kind)
    return dtype


def pieces(
    source: Readable, columns: Sequence[str], /, *, passed: Callable[[], object] = lambda: None
) -> Iterator[Callable[[], Iterator[CellBatch]]]:
    """What threads may read independently; nothing is read before a piece is called.

    Args:
        source: Any readable.
        columns: Temporal, vector and numeric scalar columns.
        passed: Called whenever a shard has been handed out.
    """
    for shard in source.shards():
        yield from pieces_of(shard, source.schema, columns)
        passed()


def pieces_of(shard: Shard, schema: Schema, columns: Sequence[str], /) -> Iterator[Callable[[], Iterator[CellBatch]]]:
    """The pieces of one shard; see `pieces`."""
    rest = list(columns)
    with closing(shard.open()) as reader:
        for name in columns:
            flat = reader.flat(name) if schema[name].category == "temporal" and not schema[name].deep else None
            if flat is not None:
                rest.remove(name)
                nulls = int((flat.steps < 0).sum())
                for number, block in enumerate(blocks(flat)):
                    yield partial(_flat_chunk, name, block, 0 if number else nulls)
    if rest:
        yield partial(_decoded, shard, schema, rest)


def each(tasks: Iterable[T], work: Callable[[T], R], /, *, workers: int) -> Iterator[R]:
    """The results of some tasks in their order, worked on by threads that are never far ahead."""
    with ThreadPoolExecutor(workers, thread_name_prefix="seqlake-statistics") as pool:
        waiting: deque[Any] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(work, task))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for late in waiting:
                late.cancel()


def blocks(flat: Flat, /) -> list[Flat]:
    """The same steps as runs of neighbouring bytes, a block's worth at a time; at least one block."""
    there = flat.steps > 0
    start, steps = flat.start[there], flat.steps[there]
    begins = np.ones(len(start), bool)
    begins[1:] = start[1:] != start[:-1] + steps[:-1] * flat.stride
    first = np.flatnonzero(begins)
    start, steps = start[first], np.add.reduceat(steps, first) if len(first) else steps
    room = max(1, _BLOCK // max(flat.stride, 1))
    parts = -(-steps // room)
    which = np.repeat(np.arange(len(steps)), parts)
    number = np.arange(len(which)) - (np.cumsum(parts) - parts)[which]
    start, steps = start[which] + number * room * flat.stride, np.minimum(room, steps[which] - number * room)
    cuts = np.flatnonzero(np.diff((np.cumsum(steps) - 1) // room)) + 1
    pairs = zip(np.split(start, cuts), np.split(steps, cuts), strict=True)
    return [replace(flat, start=some, steps=many) for some, many in pairs]


def _flat_chunk(column: str, block: Flat, nulls: int) -> Iterator[CellBatch]:
    count = int(block.steps.sum())
    if block.blob.view() is None and count:
        ranges = fetched(block, block.start, block.start + (block.steps - 1) * block.stride + _width(block))
        block = replace(block, proof=None)
        runs: Iterator[Any] = (
            flat_cell(replace(block, blob=MemoryBlob(bytes(part)), start=np.zeros(1, np.int64), steps=steps[None]), 0)
            for part, steps in zip(ranges, block.steps, strict=True)
        )
    else:
        runs = (flat_cell(block, run) for run in range(len(block.steps)))
    parts = list(runs) or [np.empty((0, *block.shape), block.dtype)]
    if len(parts) * _SMALL > count * _width(block):
        parts = [np.concatenate(parts)]  # one call for each would take longer than the copy
    yield CellBatch(column=column, parts=parts, nulls=nulls)


def _width(flat: Flat) -> int:
    """Bytes of one step."""
    return int(np.prod(flat.shape, dtype=np.int64)) * flat.stored.itemsize


def _decoded(shard: Shard, schema: Schema, names: Sequence[str]) -> Iterator[CellBatch]:
    for batch in one_shard(shard, names):
        for name in names:
            cells = batch.column(name)
            values = numbers(cells, schema[name])
            yield CellBatch(column=name, parts=[] if values is None else [values], nulls=cells.null_count)


def numbers(cells: pa.Array, column: Column, /) -> NDArray[Any] | None:
    """All numbers of some cells, null cells left out.

    Args:
        cells: [rows] in any form of the column.
        column: A temporal, vector or numeric scalar column.

    Returns:
        [n, *shape of a step], of steps that are lists in lists [n, D] of their innermost ones; None where there is no
        step and none is declared.

    Raises:
        ValidationError: Steps of different widths, or a null where numpy has none.
    """
    if column.category == "scalar":
        return _array(cells.drop_null(), column)
    if is_binary(cells.type):
        cells = cast(cells, column.logical, column=column.name)
    nested = column.category == "vector" or column.nested
    steps = cells.drop_null() if column.category == "vector" else cells.flatten()
    if not nested:
        return _array(steps, column)
    while column.deep and is_list(steps.type.value_type) and not steps.null_count:
        steps = steps.flatten()
    width, declared = one_width(steps, column), declared_shape(column)
    if width is None:
        return None if declared is None else np.empty((0, *declared), kept_dtype(column))
    shape = declared if declared is not None and np.prod(declared) == width else (width,)
    return _array(steps.flatten(), column).reshape(len(steps), *shape)


def declared_shape(column: Column, /) -> tuple[int, ...] | None:
    """The shape of what is counted by itself: a step, or its last dimension where N of [T, N, D] may differ."""
    if column.category == "scalar":
        return ()
    return column.shape[-1:] if column.deep and column.shape is not None else column.shape


def _array(values: pa.Array, column: Column) -> NDArray[Any]:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return numbers_of(values, column)

"""Which bytes of a Parquet file are fetched, and how many a file of ours can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.files.ranges import GAP
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.shards.parquet.footer import Chunk, Footer

FRAME = 16 << 10  # bytes of a file of ours, and of each column in it, beside its values


def of_chunks(footer: Footer, chunks: Sequence[tuple[int, int]], /) -> list[list[int]]:
    """Ranges, [first byte, end], of some column chunks and of the end of the file; those near each other as one."""
    found: list[Chunk] = [footer.chunks[group][leaf] for group, leaf in chunks]
    ranges = [(chunk.start, chunk.stop) for chunk in found if chunk.stop > chunk.start]
    behind = max((chunk.stop for group in footer.chunks for chunk in group), default=0)  # indexes and footer
    merged: list[list[int]] = []
    for start, stop in sorted([*ranges, (behind, footer.blob.size)]):
        if merged and start - merged[-1][1] <= GAP:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return merged


def at_most(batch: pa.RecordBatch, /) -> int:
    """Bytes that rows can take in a file of ours, with their part of indexes and filters."""
    rows = int(batch.num_rows)
    return sum(_column_at_most(column) for column in batch.columns) + rows * (32 + 16 * len(batch.columns))


def _column_at_most(column: pa.Array) -> int:
    lists = 0
    while is_list(column.type):
        lists += len(column)
        column = column.flatten()
    values: int
    if pa.types.is_primitive(column.type):
        values = len(column) * max(4, int(column.type.bit_width) // 8)
    else:
        values = 2 * int(column.nbytes) + 8 * len(column)
    levels = (len(column) + lists) * 3 // 4  # at most 6 bits an entry, for two levels of lists
    return int((values + levels) * 1.02) + 1024

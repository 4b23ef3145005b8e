"""Rows of one commit written by many tasks: each writes some neighbouring rows of a source, one commit shows all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.dataset import progress
from seqlake.dataset.writing.staging import ShardShape, Staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.executors import Executor
    from seqlake.protocols import Readable, Shard, Table, Transaction
    from seqlake.spec.schema import Schema

LEAST = 32 << 20
"""Source bytes that are worth a shard of their own."""

PARTS = 16
"""So many parts are cut at least where there are bytes enough: some workers end at about the same time."""

_ROWS_OF_FILES, _PARTS_OF_FILES = 64, 64  # at least a part, where files are made for rows; parts then, at most


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Neighbouring rows that one task writes: at most about one full shard.

    Attributes:
        part: Its number, from 0.
        start: First row of the source.
        stop: One past the last.
        nbytes: Of these rows in the source, about.
    """

    part: int
    start: int
    stop: int
    nbytes: int


class WritesRows(Protocol):
    """What a verb does with some rows; picklable."""

    def __call__(self, part: RowsPart, staging: Staging, /) -> Any:
        """Write the rows into a transaction, and give what else there is to say: of what `packing.pack` takes."""


def rows_parts(source: Readable, shape: ShardShape, /, *, files: bool = False) -> list[RowsPart]:
    """The rows of a source in parts of at most about one full shard; the same on any number of workers.

    Args:
        source: Of the rows; no data file is opened.
        shape: Of the shards that are written; parts end where shards of so many rows would.
        files: Whether files are made for rows, so that few rows are much work.
    """
    shards = [shard for shard in source.shards() if shard.rows]
    rows = sum(shard.rows for shard in shards)
    total = sum(shard.nbytes for shard in shards)
    most = max(1, min(shape.nbytes, max(LEAST, -(-total // PARTS))))
    most_rows = max(_ROWS_OF_FILES, -(-rows // _PARTS_OF_FILES)) if files else rows
    ends: list[tuple[int, int]] = []
    start = row = 0
    held = 0.0
    for shard in shards:
        per_row = shard.nbytes / shard.rows
        left = shard.rows
        while left:
            room = max(1 if row == start else 0, int((most - held) / per_row) if per_row else left)
            taken = min(left, room, most_rows - (row - start))
            row, left, held = row + taken, left - taken, held + taken * per_row
            if left or row - start >= most_rows:
                ends.append((row, int(held)))
                start, held = row, 0.0
    if row > start:
        ends.append((row, int(held)))
    return [RowsPart(n, *one) for n, one in enumerate(_aligned(ends, shape.rows, rows))]


def _aligned(ends: Sequence[tuple[int, int]], each: int | None, rows: int) -> list[tuple[int, int, int]]:
    """Start, stop and bytes of parts that end at multiples of `each`."""
    parts: list[tuple[int, int, int]] = []
    start = held = 0
    for end, nbytes in ends:
        held += nbytes
        stop = end if each is None else min(rows, -(-end // each) * each)
        if stop > start:
            parts.append((start, stop, held))
            start, held = stop, 0
    return parts


def shard_parts(shards: Sequence[Shard], /, *, nbytes: int) -> list[RowsPart]:
    """Neighbouring whole shards that fill one of so many bytes; rows are counted through all of them.

    Args:
        shards: In their order.
        nbytes: What a full shard has.
    """
    parts: list[RowsPart] = []
    start = row = held = 0
    for shard in shards:
        row, held = row + shard.rows, held + shard.nbytes
        if held >= nbytes:
            parts.append(RowsPart(len(parts), start, row, held))
            start, held = row, 0
    return [*parts, RowsPart(len(parts), start, row, held)] if row > start else parts


def rows_of(source: Excerpt, part: RowsPart, /) -> Excerpt:
    """The rows of one part."""
    rows = np.arange(part.start, part.stop, dtype=np.int64)
    return source.cut(rows=rows if source.rows is None else source.rows[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """What an executor runs: one part, under a transaction that all share; run again it replaces what it wrote.

    Attributes:
        table: Where the rows go.
        schema: Of the rows.
        transaction: Of all parts.
        shape: How shards are written.
        write: What the verb does.
    """

    table: Table
    schema: Schema
    transaction: Transaction
    shape: ShardShape
    write: WritesRows

    def __call__(self, part: RowsPart, /) -> tuple[Any, ...]:
        """The shards that were written, and what else there is to say."""
        staging = Staging(
            self.table, self.schema, shape=self.shape, transaction=self.transaction, prefix=str(part.part)
        )
        try:
            with progress.enabled(False):  # who asked shows how far all of them are
                more = self.write(part, staging)
            staging.close_shard()
        except BaseException:
            staging.abandon()
            raise
        return tuple(staging.written), more


def write_parts(
    executor: Executor,
    parts: Sequence[RowsPart],
    write: WritesRows,
    /,
    *,
    staging: Staging,
    table: Table,
    schema: Schema,
    what: str = "write",
) -> list[Any]:
    """Have all parts written, and take their shards into a commit, in the order of the rows.

    Args:
        executor: What runs them.
        parts: All of them.
        write: What is done with each.
        staging: Of the commit; its transaction begins here if it has not yet.
        table: Where the rows go.
        schema: Of the rows.
        what: The verb, for who looks on.

    Returns:
        What each had to say besides.
    """
    writer = PartWriter(table=table, schema=schema, transaction=staging.transaction, shape=staging.shape, write=write)
    receipts: dict[int, tuple[Any, ...]] = {}
    total = (parts[-1].stop, sum(part.nbytes for part in parts)) if parts else (0, 0)
    with progress.of_parts(len(parts), *total, what) as step:

        def done(part: RowsPart, receipt: tuple[Any, ...]) -> None:
            receipts[part.part] = receipt
            step(part.stop - part.start, part.nbytes)

        executor.run(writer, parts, done=done, tick=staging.renew_if_due)
    staging.written += [one for part in parts for one in receipts[part.part][0]]
    return [receipts[part.part][1] for part in parts]

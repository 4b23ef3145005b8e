"""Encoded images that stand in rows: whole shards kept while there is room, single rows read where there is none."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from seqlake.protocols import Ints
    from seqlake.training.opened import Opened
    from seqlake.training.survey import Survey


class EncodedCells:
    """The cells of a column of images, for several threads.

    Args:
        name: The column.
        survey: Knows the shards.
        opened: Knows the room: what is kept here counts with the decoded shards.
    """

    def __init__(self, name: str, survey: Survey, opened: Opened) -> None:
        self._name = name
        self._survey = survey
        self._opened = opened
        self._lock = Lock()
        self._kept: dict[int, list[Any]] = {}  # shard -> a cell for each row

    def read(self, rows: Ints) -> dict[int, Any]:
        """The cells of some rows of one shard: row -> Arrow array of its images, None where null."""
        shard = int(self._opened.shard_of(rows[:1])[0])
        first = int(self._survey.first_rows[shard])
        with self._lock:  # one reading at a time: a second one would read the same shard
            if shard not in self._kept and self._opened.take_room(self._survey.shards[shard].nbytes):
                try:
                    self._kept[shard] = self._cells(shard, None)
                except BaseException:
                    self._opened.take_room(-self._survey.shards[shard].nbytes)  # nothing is kept
                    raise
            if shard in self._kept:
                cells = [self._kept[shard][row - first] for row in rows.tolist()]
            else:
                cells = self._cells(shard, rows - first)
        return dict(zip(rows.tolist(), cells, strict=True))

    def _cells(self, shard: int, rows: Ints | None) -> list[Any]:
        reader = self._opened.reader(shard)
        found: list[Any] = []
        try:
            for batch in reader.batches([self._name], rows=None if rows is None else rows.astype(np.int64)):
                cells = batch.column(0)
                found += [cells[number].values for number in range(len(cells))]
        finally:
            reader.close()
        return found

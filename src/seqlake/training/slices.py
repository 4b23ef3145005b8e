"""Long cells that are not flat, of which only the steps are read that windows take: of HDF5, zarr and their like.

To decode a cell once and keep it is fastest while cells are small, as signals of robots are. Depth maps and dense
arrays are not: of a gigabyte that an episode takes decoded a window needs a few megabytes.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import StepReader, ability
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, ShardReader
    from seqlake.training.cells import StepColumn
    from seqlake.training.survey import WindowSurvey

SMALL = 32 << 20
"""Bytes of a column of a shard up to which it is decoded as a whole."""
_OPEN = 16  # readers that stay open
_LOOSE = 8  # times as many steps as are wanted that are read, rather than each alone


class StepReaders:
    """Readers that stay open from one slice to the next, each for one thread at a time.

    Args:
        opened: Opens a shard by its number.
    """

    def __init__(self, opened: Callable[[int], ShardReader], /) -> None:
        self._opened = opened
        self._lock = Lock()
        self._pid = os.getpid()
        self._readers: OrderedDict[int, _Shared] = OrderedDict()
        self._unable: set[int] = set()  # shards that cannot read slices

    @contextmanager
    def use(self, shard: int, /) -> Iterator[StepReader | None]:
        """The reader of a shard, which nobody else uses meanwhile; None where it cannot read slices."""
        with self._lock:
            if self._pid != os.getpid():  # a parent's handles are the parent's
                self._pid, self._readers = os.getpid(), OrderedDict()
            shared = None if shard in self._unable else self._shared(shard)
        if shared is None:
            yield None
            return
        try:
            with shared.lock:
                yield shared.reader
        finally:
            with self._lock:
                shared.users -= 1

    def _shared(self, shard: int) -> _Shared | None:
        if shard not in self._readers:
            reader = self._opened(shard)
            able = ability(reader, StepReader)
            if able is None:
                reader.close()
                self._unable.add(shard)
                return None
            self._readers[shard] = _Shared(able)
        self._readers.move_to_end(shard)
        shared = self._readers[shard]
        shared.users += 1
        idle = [one for one, held in self._readers.items() if not held.users]
        for one in idle[: max(0, len(self._readers) - _OPEN)]:
            self._readers.pop(one).reader.close()
        return shared


class _Shared:
    """A reader that several threads take turns with."""

    def __init__(self, reader: StepReader, /) -> None:
        self.reader = reader
        self.lock = Lock()
        self.users = 0


class Slices:
    """Columns of shards whose windows are read step by step.

    Args:
        survey: The dataset through the window.
        cells: Temporal columns, by name.
    """

    def __init__(self, survey: WindowSurvey, cells: Mapping[str, StepColumn], /) -> None:
        self._survey = survey
        self._cells = cells
        self._names = set() if isinstance(survey.window, Whole) else cells.keys() - set(survey.times)
        self._readers = StepReaders(lambda shard: survey.shards[shard].open())
        self._sliced: dict[int, dict[str, Ints]] = {}

    def look(self, shard: int, reader: ShardReader, /) -> Mapping[str, Ints]:
        """Columns of a shard that are read so, and [rows] how many steps their cells have, -1 null.

        Args:
            shard: Its number.
            reader: Of it.
        """
        if shard not in self._sliced:
            able = ability(reader, StepReader) if self._names else None
            self._sliced[shard] = {} if able is None else dict(self._long(shard, able))
        return self._sliced[shard]

    def _long(self, shard: int, reader: StepReader) -> Iterator[tuple[str, Ints]]:
        first, stop = self._survey.first_rows[shard : shard + 2]
        for name in sorted(self._names):
            cells, counts = self._cells[name], self._survey.counts.get(name)
            if counts is None or cells.shape is None:
                continue
            steps = counts[first:stop]
            nbytes = int(np.maximum(steps, 0).sum()) * int(np.prod(cells.shape)) * cells.dtype.itemsize
            if nbytes > SMALL and reader.flat(name) is None:
                yield name, steps

    def known(self, shard: int, /) -> Mapping[str, Ints]:
        """As `look`, of a shard that was looked at; nothing of others."""
        return self._sliced.get(shard, {})

    def has(self, name: str, shards: Ints, /) -> NDArray[np.bool_]:
        """[n] whether a column is read so in these shards."""
        sliced = [shard for shard, columns in self._sliced.items() if name in columns]
        return np.isin(shards, sliced) if sliced else np.zeros(len(shards), np.bool_)

    def read(self, name: str, shard: int, row: int, numbers: Ints, /) -> NDArray[Any]:
        """[W, ...] some steps of a cell.

        Args:
            name: The column.
            shard: Where it is.
            row: Which of its rows.
            numbers: [W] steps that it has.

        Raises:
            CorruptFileError: They cannot be read.
        """
        wanted, places = np.unique(numbers, return_inverse=True)
        with self._readers.use(shard) as reader:
            assert reader is not None  # `look` asked
            low, high = int(wanted[0]), int(wanted[-1]) + 1
            if high - low <= _LOOSE * len(wanted):
                steps = reader.slice(name, row, low, high)[wanted - low]
            else:
                steps = np.concatenate([reader.slice(name, row, one, one + 1) for one in wanted.tolist()])
        return steps[places.reshape(-1)]

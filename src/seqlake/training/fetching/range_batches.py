"""Batches of windows that are read by range: what a chunk of samples needs is read at once, while others are in use."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.training.batches import Located, WindowAssembler
from seqlake.training.fetching.by_range import RangeSteps, read_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.batches import WindowChunk
    from seqlake.training.opened import Opened
    from seqlake.training.samples import Samples
    from seqlake.training.survey import WindowSurvey
    from seqlake.windows.tracks import Track

_Asked = tuple[str, "Ints", RangeSteps]
"""A column, places among the samples that are read by range, and what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRemote(Located):
    """Windows of one column of which some are being read by range.

    Attributes:
        places: [m] positions in [n] of those, ascending.
        reading: Column -> [m, W, ...] their steps.
    """

    places: Ints
    reading: Future[dict[str, NDArray[Any]]]

    def windows(self, chunk: WindowChunk, number: int) -> NDArray[Any]:
        """[B, W, ...] of a batch; waits for those that are being read."""
        cells, start = self.cells, number * chunk.size
        rows = chunk.samples.rows[start : start + chunk.size]
        low, high = np.searchsorted(self.places, [start, start + len(rows)])
        remote = self.places[low:high] - start
        values = np.empty((len(rows), self.track.width, *(cells.shape or ())), cells.dtype)
        others = np.ones(len(rows), np.bool_)
        others[remote] = False
        if others.any():
            values[others] = chunk.steps_of(cells, rows[others], self.numbers[start : start + len(rows)][others])
        if len(remote):
            read = self.reading.result()[self.track.column][low:high]
            values[remote] = read.reshape(len(remote), *values.shape[1:])
        return values


class RangeAssembler(WindowAssembler):
    """`Assembler` of a dataset of which some shards are read by range; the others are read as ever.

    `prepare` begins to read the windows of a chunk, all columns and shards side by side; its batches wait for them.
    """

    def __init__(self, survey: WindowSurvey, opened: Opened) -> None:
        super().__init__(survey, opened)
        self._pool: ThreadPoolExecutor | None = None
        self._asked: list[_Asked] = []
        self._places: Ints = np.zeros(0, np.int64)
        self._reading: Future[dict[str, NDArray[Any]]] | None = None

    def prepare(self, samples: Samples, *, size: int) -> WindowChunk:
        """Open the shards that the samples are in, and begin to read what is read by range; see `Assembler.prepare`."""
        self.opened.visit(samples.rows)
        self._places = np.flatnonzero(self.opened.ranged.has(self.opened.shard_of(samples.rows)))
        if not len(self._places):
            self._reading = None
            return super().prepare(samples, size=size)
        self._asked, self._reading = [], Future()
        chunk = super().prepare(samples, size=size)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="seqlake-windows")
        self._pool.submit(self._read, self._asked, len(self._places), self._reading)
        return chunk

    def close(self) -> None:
        """Forget what was to be read; what is being read ends by itself."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _locate(self, track: Track, samples: Samples, size: int) -> Located:
        if self._reading is None:
            return super()._locate(track, samples, size)
        located = self._locate_steps(track, samples, size)
        shards = self.opened.shard_of(samples.rows[self._places])
        for shard in np.unique(shards).tolist():
            inside = np.flatnonzero(shards == shard)
            places = self._places[inside]
            rows = samples.rows[places] - self.opened.rows(shard).start
            flat = self.opened.ranged.flats[shard][track.column]
            self._asked.append(
                (track.column, inside, RangeSteps(flat=flat, rows=rows, numbers=located.numbers[places]))
            )
        return LocatedRemote(
            track=track,
            cells=located.cells,
            mask=located.mask,
            missing=located.missing,
            runs=None,
            apart=located.apart,
            numbers=located.numbers,
            places=self._places,
            reading=self._reading,
        )

    def _read(self, asked: Sequence[_Asked], count: int, reading: Future[dict[str, NDArray[Any]]]) -> None:
        """Read what a chunk asks for, on the pool's thread."""
        try:
            arrays = read_steps([steps for _, _, steps in asked], self.opened.transfers)
            columns: dict[str, NDArray[Any]] = {}
            for (name, inside, _), values in zip(asked, arrays, strict=True):
                if name not in columns:
                    columns[name] = np.empty((count, *values.shape[1:]), values.dtype)
                columns[name][inside] = values
            reading.set_result(columns)
        except BaseException as error:  # noqa: BLE001 - raised where the windows are asked for
            reading.set_exception(error)

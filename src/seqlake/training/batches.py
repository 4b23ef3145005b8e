"""Batches from sample numbers: the arithmetic for many steps ahead, then one gather per column and batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.training.gather import clear
from seqlake.windows.edges import nearest
from seqlake.windows.spec import Whole, Window
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.cells import Cells
    from seqlake.training.opened import Opened
    from seqlake.training.survey import Survey
    from seqlake.windows.tracks import Track

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of some steps, in the order they are delivered.

    Attributes:
        epochs, numbers: [n] which sample of which epoch each is: the key of its random numbers.
        rows: [n] the row it comes from.
        anchors: [n] clock step it is anchored at.
        valid: [n] False where it is a repetition that fills a batch.
    """

    epochs: Ints
    numbers: Ints
    rows: Ints
    anchors: Ints
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Windows of consecutive steps: each is one range of bytes.

    Attributes:
        address: [n] of each window's first byte; any readable one where the window is also in `apart`.
        missing: Positions in [n * W], ascending, of the steps that do not exist.
        apart: Positions in [n], ascending, of windows that are assembled step by step: their bytes would leave
            the shard, or the edge rule repeats a step.
    """

    address: Ints
    missing: Ints
    apart: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Picks:
    """Windows whose steps are found one by one.

    Attributes:
        numbers: [n, W] sample numbers, moved to the nearest that exists.
        missing: Positions in [n * W], ascending, of the steps that do not exist.
    """

    numbers: Ints
    missing: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Everything about some steps but the values."""

    samples: Samples
    columns: dict[str, Runs | Picks]


class Assembler:
    """Turns samples into batches of arrays.

    `prepare` is arithmetic over many samples and may run on another thread, one call at a time; `batch` copies the
    values of one batch.
    """

    def __init__(self, survey: Survey, opened: Opened) -> None:
        self._survey = survey
        self._opened = opened
        self._buffers: dict[str, NDArray[np.uint8]] | None = None

    def reuse_buffers(self) -> None:
        """From now on windows of consecutive steps are written where the batch before was."""
        self._buffers = {}

    def prepare(self, samples: Samples) -> Chunk:
        """Open the shards that the samples are in, and find where each window lies."""
        self._opened.visit(samples.rows)
        return Chunk(
            samples=samples,
            columns={track.column: self._find(track, samples) for track in self._survey.tracks},
        )

    def batch(self, chunk: Chunk, start: int, stop: int) -> Batch:
        """The samples `start` to `stop` of a chunk as arrays whose first axis is the sample."""
        samples, opened = chunk.samples, self._opened
        rows, anchors = samples.rows[start:stop], samples.anchors[start:stop]
        batch: Batch = {}
        for track in self._survey.tracks:
            found = chunk.columns[track.column]
            low, high = np.searchsorted(found.missing, (start * track.width, stop * track.width))
            missing = found.missing[low:high] - start * track.width
            cells = opened.cells[track.column]
            if isinstance(found, Picks):
                values = self._picks(cells, rows, found.numbers[start:stop])
            else:
                values = self._runs(track, found, samples, slice(start, stop))
            mask = np.ones((stop - start, track.width), dtype=np.bool_)
            if len(missing):
                mask.reshape(-1)[missing] = False
                if self._edges != "clamp":
                    clear(values, missing)
            batch[track.column] = values if values.dtype == cells.dtype else values.astype(cells.dtype)
            batch[f"{track.column}_mask"] = mask
        if isinstance(self._survey.window, Whole):
            for name in self._survey.cells:
                batch.update(self._whole(name, rows, packed=self._survey.window.packed))
        for name, column in opened.values.items():
            assert column.values is not None
            batch[name] = column.values[rows]
            if name in self._survey.singles:
                batch[f"{name}_mask"] = column.present[rows]
        batch["start"] = anchors.copy()
        return batch

    @property
    def _edges(self) -> str:
        window = self._survey.window
        return window.edges if isinstance(window, Window) else "pad"

    def _find(self, track: Track, samples: Samples) -> Runs | Picks:
        cells = self._opened.cells[track.column]
        counts = cells.steps[samples.rows]
        steps = counts if self._survey.steps is None else self._survey.steps[samples.rows]
        first = track.first
        if first is not None and len(cells.layouts) == 1 and 0 < cells.layouts[0].width == cells.layouts[0].stride:
            return self._find_runs(track, samples, counts, np.minimum(counts, steps))
        numbers, mask = self._numbers(track, samples.rows, samples.anchors, steps=steps, counts=counts)
        return Picks(numbers=numbers, missing=np.flatnonzero(~mask))

    def _find_runs(self, track: Track, samples: Samples, counts: Ints, limit: Ints) -> Runs:
        cells, first, width = self._opened.cells[track.column], track.first, track.width
        assert first is not None
        stride = cells.layouts[0].stride
        begin = samples.anchors + first
        address = cells.address[samples.rows] + begin * stride
        edges = np.flatnonzero((begin < 0) | (begin + width > limit))
        offsets = begin[edges, None] + np.arange(width)
        lacks = (offsets < 0) | (offsets >= limit[edges, None])
        missing = (edges[:, None] * width + np.arange(width))[lacks]
        if self._edges == "clamp":
            apart = edges
        else:
            shard = self._opened.shard_of(samples.rows[edges])
            leaves = (address[edges] < cells.low[shard]) | (address[edges] + width * stride > cells.high[shard])
            apart = edges[leaves | (counts[edges] == 0)]
        if len(apart):
            inside = np.ones(len(address), dtype=np.bool_)
            inside[apart] = False
            somewhere = np.argmax(inside)
            address[apart] = address[somewhere] if inside[somewhere] else -1
        return Runs(address=address, missing=missing, apart=apart)

    def _numbers(
        self, track: Track, rows: Ints, anchors: Ints, *, steps: Ints, counts: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """[n, W] which sample stands at each moment, and whether it exists."""
        if track.timestamps is None:
            numbers = track.samples(anchors)
        else:
            times = track.nanoseconds(anchors)
            numbers = np.empty_like(times)
            for row in np.unique(rows):
                own = np.flatnonzero(rows == row)
                numbers[own] = samples_at(self._opened.cell(track.timestamps, int(row)), times[own])
        mask = track.exists(anchors, numbers, steps=steps, counts=counts)
        return nearest(numbers, track.available(steps=steps, counts=counts)), mask

    def _runs(self, track: Track, found: Runs, samples: Samples, part: slice) -> NDArray[Any]:
        cells = self._opened.cells[track.column]
        start, stop = part.start, part.stop
        layout, width = cells.layouts[0], track.width
        address = found.address[part]
        low, high = np.searchsorted(found.apart, (start, stop))
        apart = found.apart[low:high] - start
        assert cells.shape is not None
        shape = (stop - start, width, *cells.shape)
        if len(apart) and address[apart[0]] < 0:  # no window of this chunk is one readable range
            data = np.zeros((stop - start, width * layout.stride), dtype=np.uint8)
        else:
            data = self._opened.memory.gather(
                address, width * layout.stride, out=self._buffer(track.column, stop - start, width * layout.stride)
            )
        values = data.view(layout.stored).reshape(shape)
        if len(apart):
            rows = samples.rows[part][apart]
            numbers = track.samples(samples.anchors[part][apart])
            values[apart] = self._picks(cells, rows, nearest(numbers, self._limits(cells, rows)))
        return values

    def _limits(self, cells: Cells, rows: Ints) -> Ints:
        steps = self._survey.steps
        return cells.steps[rows] if steps is None else np.minimum(cells.steps[rows], steps[rows])

    def _buffer(self, name: str, rows: int, width: int) -> NDArray[np.uint8] | None:
        if self._buffers is None:
            return None
        if name not in self._buffers or self._buffers[name].shape != (rows, width):
            self._buffers[name] = np.empty((rows, width), dtype=np.uint8)
        return self._buffers[name]

    def _picks(self, cells: Cells, rows: Ints, numbers: Ints) -> NDArray[Any]:
        """[n, W, ...] steps gathered one by one; zeros where a row has none."""
        shape = cells.shape if cells.shape is not None else ()
        stored = cells.layouts[0].stored if len(cells.layouts) == 1 else cells.dtype
        values = np.zeros((*numbers.shape, *shape), dtype=stored)
        kinds = cells.layout[self._opened.shard_of(rows)]
        for kind, layout in enumerate(cells.layouts):
            own = np.flatnonzero((kinds == kind) & (cells.steps[rows] > 0))
            if not len(own) or not layout.width:
                continue
            addresses = cells.address[rows[own], None] + numbers[own] * layout.stride
            data = self._opened.memory.gather(addresses.reshape(-1), layout.width)
            values[own] = data.view(layout.stored).reshape(len(own), *values.shape[1:])
        return values

    def _whole(self, name: str, rows: Ints, *, packed: bool) -> Batch:
        """Whole cells: padded with their lengths, or end to end with their cumulative lengths."""
        cells = self._opened.cells[name]
        parts = [self._opened.cell(name, int(row)).astype(cells.dtype, copy=False) for row in rows]
        lengths = cells.steps[rows]
        if packed:
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            return {name: np.concatenate(parts), f"{name}_offsets": ends}
        padded = np.zeros((len(rows), max(lengths, default=0), *(cells.shape or ())), dtype=cells.dtype)
        for target, part in zip(padded, parts, strict=True):
            target[: len(part)] = part
        return {name: padded, f"{name}_length": lengths}

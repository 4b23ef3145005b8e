"""Batches from sample numbers: the arithmetic for many steps ahead, then one gather per column and batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.training.gather import batches_together, clear
from seqlake.training.survey import row_of
from seqlake.training.telemetry import ORIGINS
from seqlake.windows.edges import nearest
from seqlake.windows.spec import Whole, Window
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import BadSample, Harm
    from seqlake.training.cells import Cells
    from seqlake.training.gather import Ranges
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
        valid: [n] False where it is a repetition that fills a batch, or bad.
        bad: Position in [n] -> what is wrong with the sample that should be there.
        substituted: [n] True where another sample stands in its place; None where that never happens.
    """

    epochs: Ints
    numbers: Ints
    rows: Ints
    anchors: Ints
    valid: NDArray[np.bool_]
    bad: Mapping[int, Sequence[BadSample]] = field(default_factory=dict)
    substituted: NDArray[np.bool_] | None = None

    def part(self, start: int, stop: int) -> Samples:
        """Some that follow each other."""
        own = slice(start, stop)
        return Samples(
            epochs=self.epochs[own],
            numbers=self.numbers[own],
            rows=self.rows[own],
            anchors=self.anchors[own],
            valid=self.valid[own],
            bad={place - start: self.bad[place] for place in self.bad if start <= place < stop},
            substituted=None if self.substituted is None else self.substituted[own],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where the windows of one column lie.

    Attributes:
        mask: [n, W] True where the step exists.
        missing: For each batch, positions in its [B * W] of the steps to set to zero; empty where there are none.
        runs: Windows of consecutive steps, each one range of bytes; None where all are assembled step by step.
        apart: Positions in [n], ascending, of windows that are assembled step by step although `runs` is there: their
            bytes would leave the shard, or the edge rule repeats a step.
        numbers: [n, W], or [apart, W] where `runs` is there: sample numbers, moved to the nearest that exists.
    """

    mask: NDArray[np.bool_]
    missing: list[Ints]
    runs: Ranges | None
    apart: Ints
    numbers: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Everything about some steps but the numbers that fill memory.

    Attributes:
        samples: The samples.
        columns: For each temporal column, where its windows lie.
        values: [n] of every column with one value a sample, with its mask, and of what identifies the samples.
        size: B, samples of a batch.
        origins: Bytes of a batch's steps, on average, by where they are copied from: see `telemetry.ORIGINS`.
        pieces: The memory that it points into, which stays while it is in use.
    """

    samples: Samples
    size: int
    columns: dict[str, Found]
    values: Batch
    origins: Mapping[str, float]
    pieces: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A chunk cut into its batches: done once, so that little is left to do for each.

    Attributes:
        chunk: The chunk.
        ready: Name -> what gives a batch by its number; of columns that are made, only their place among the names.
        made: The columns of which more is to be done than copying.
    """

    chunk: Chunk
    ready: dict[str, Any]
    made: list[Track]


class Assembler:
    """Turns samples into batches of arrays.

    `prepare` does for many samples at once whatever is not copying windows, `batch` does the copying.
    """

    def __init__(self, survey: Survey, opened: Opened) -> None:
        self._survey = survey
        self.opened = opened
        self._buffers: dict[str, NDArray[np.uint8]] | None = None
        self._cut: _Cut | None = None

    def _origins(self, rows: Ints, shards: Ints, size: int) -> dict[str, float]:
        """Of `size` windows of these rows, of which `shards` says how many are in each."""
        opened = self.opened
        nbytes = float(self._window_bytes(size))
        for name in self._survey.cells:
            width = sum(layout.width for layout in opened.cells[name].layouts[:1])
            nbytes += float(opened.cells[name].steps[rows].mean()) * width * size
        if not nbytes:
            return {}
        shares = np.bincount(opened.origins, weights=shards, minlength=len(ORIGINS)) / len(rows)
        return {name: nbytes * share for name, share in zip(ORIGINS, shares.tolist(), strict=True) if share}

    def _window_bytes(self, size: int) -> int:
        """Bytes of so many samples' windows."""
        kinds = ((track.width, self.opened.cells[track.column].layouts[:1]) for track in self._survey.tracks)
        return size * sum(width * layout.width for width, layouts in kinds for layout in layouts)

    def _copied_together(self, size: int) -> int:
        """How many batches of `size` samples are copied at a time."""
        return batches_together(self._window_bytes(size)) if self._buffers is None else 1

    def reuse_buffers(self) -> None:
        """From now on windows of consecutive steps are written where the batch before was."""
        self._buffers = {}

    def prepare(self, samples: Samples, *, size: int) -> Chunk:
        """Open the shards that the samples are in, and find where each window lies.

        Args:
            samples: Of some batches, one after the other.
            size: B, samples of a batch.
        """
        shards = self.opened.visit(samples.rows)
        values: Batch = {}
        for name, column in self.opened.values.items():
            assert column.values is not None
            values[name] = column.values[samples.rows]
            if name in self._survey.singles:
                values[f"{name}_mask"] = column.present[samples.rows]
        values["start"] = samples.anchors
        return Chunk(
            samples=samples,
            size=size,
            columns={track.column: self._find(track, samples, size) for track in self._survey.tracks},
            values=values,
            origins=self._origins(samples.rows, shards, size),
            pieces=self.opened.memory.pieces,
        )

    def batch(self, chunk: Chunk, number: int) -> Batch:
        """One batch of a chunk, as arrays whose first axis is the sample."""
        if self._cut is None or self._cut.chunk is not chunk:
            self._cut = self._cut_up(chunk)
        batch: Batch = {name: batches[number] for name, batches in self._cut.ready.items()}
        for track in self._cut.made:
            found = chunk.columns[track.column]
            values = self._windows(track, found, chunk, number)
            if found.missing and len(missing := found.missing[number]):
                clear(values, missing)
            batch[track.column] = values.astype(self.opened.cells[track.column].dtype, copy=False)
        if isinstance(self._survey.window, Whole):
            rows = chunk.samples.rows[number * chunk.size : (number + 1) * chunk.size]
            for name in self._survey.cells:
                batch.update(self._whole(name, rows, packed=self._survey.window.packed))
        return batch

    def _cut_up(self, chunk: Chunk) -> _Cut:
        count = max(1, len(chunk.samples.rows) // max(1, chunk.size))
        ready: dict[str, Any] = {}
        made: list[Track] = []
        for track in self._survey.tracks:
            found, cells = chunk.columns[track.column], self.opened.cells[track.column]
            whole = found.runs is not None and not found.missing and not len(found.apart)
            copied = whole and self._buffers is None and cells.layouts[0].stored == cells.dtype
            ready[track.column] = found.runs if copied else range(count)
            if not copied:
                made.append(track)
            ready[f"{track.column}_mask"] = found.mask.reshape(count, chunk.size, track.width)
        if isinstance(self._survey.window, Whole):
            packed = self._survey.window.packed
            for name in self._survey.cells:
                ready[name] = ready[f"{name}_offsets" if packed else f"{name}_length"] = range(count)
        for name, values in chunk.values.items():
            ready[name] = values.reshape(count, chunk.size, *values.shape[1:])
        return _Cut(chunk=chunk, ready=ready, made=made)

    def close(self) -> None:
        """End what is done ahead of batches, if anything is."""
        self._cut = None

    def harmed(self, samples: Samples) -> Mapping[int, Sequence[Harm]]:  # noqa: ARG002 - a batch of samples, as it is made
        """Place in a batch -> what only making it showed to be bad: nothing, cells are looked at before."""
        return {}

    @property
    def _edges(self) -> str:
        window = self._survey.window
        return window.edges if isinstance(window, Window) else "pad"

    def _find(self, track: Track, samples: Samples, size: int) -> Found:
        cells = self.opened.cells[track.column]
        if (
            track.first is not None
            and len(cells.layouts) == 1
            and 0 < cells.layouts[0].width == cells.layouts[0].stride
        ):
            return self._find_runs(track, samples, size)
        return self._find_steps(track, samples, size)

    def _find_steps(self, track: Track, samples: Samples, size: int) -> Found:
        rows = samples.rows
        counts = self.opened.cells[track.column].steps[rows]
        steps = counts if self._survey.steps is None else self._survey.steps[rows]
        numbers, mask = self._numbers(track, rows, samples.anchors, steps=steps, counts=counts)
        nothing = np.zeros(0, dtype=np.int64)
        missing = self._by_batch(np.flatnonzero(~mask), mask.size, size * track.width)
        return Found(mask=mask, missing=missing, runs=None, apart=nothing, numbers=numbers)

    def _limits(self, cells: Cells, rows: Ints) -> Ints:
        """[n] steps that exist of a column and by the clock."""
        if self._survey.steps is None:
            return cells.steps[rows]
        if len(cells.steps) < len(rows):
            return np.minimum(cells.steps, self._survey.steps)[rows]
        return np.minimum(cells.steps[rows], self._survey.steps[rows])

    def _find_runs(self, track: Track, samples: Samples, size: int) -> Found:
        cells, first, width = self.opened.cells[track.column], track.first, track.width
        assert first is not None
        stride = cells.layouts[0].stride
        limit = self._limits(cells, samples.rows)
        begin = samples.anchors + first if first else samples.anchors
        address = begin * stride
        address += cells.address[samples.rows]
        beyond = begin > limit - width
        edges = np.flatnonzero(beyond if first >= 0 else beyond | (begin < 0))
        offsets = begin[edges, None] + np.arange(width)
        lacks = (offsets < 0) | (offsets >= limit[edges, None])
        mask = np.ones((len(begin), width), dtype=np.bool_)
        mask[edges] = ~lacks
        if self._edges == "clamp":
            apart = edges
        else:
            shard = self.opened.shard_of(samples.rows[edges])
            leaves = (address[edges] < cells.low[shard]) | (address[edges] + width * stride > cells.high[shard])
            apart = edges[leaves | (cells.steps[samples.rows[edges]] == 0)]
        runs = None
        if len(apart) < len(address):
            if len(apart):
                inside = np.ones(len(address), dtype=np.bool_)
                inside[apart] = False
                address[apart] = address[np.argmax(inside)]  # any readable one
            cell = cells.layouts[0].stored, (width, *(cells.shape or ()))
            at_once = self._copied_together(size)
            runs = self.opened.memory.ranges(address, width * stride, size=size, cell=cell, together=at_once)
        alone = slice(None) if runs is None else apart
        return Found(
            mask=mask,
            missing=self._by_batch((edges[:, None] * width + np.arange(width))[lacks], mask.size, size * width),
            runs=runs,
            apart=apart,
            numbers=nearest(track.samples(samples.anchors[alone]), limit[alone]),
        )

    def _by_batch(self, missing: Ints, total: int, size: int) -> list[Ints]:
        """Positions in [n * W] as positions in each batch's [B * W]."""
        if self._edges == "clamp" or not len(missing):
            return []
        firsts = np.arange(0, total, size)
        cuts = np.searchsorted(missing, firsts)
        return [part - first for part, first in zip(np.split(missing, cuts[1:]), firsts, strict=True)]

    def _numbers(
        self, track: Track, rows: Ints, anchors: Ints, *, steps: Ints, counts: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """[n, W] which sample stands at each moment, and whether it exists."""
        if track.timestamps is None:
            numbers = track.samples(anchors)
        else:
            numbers = np.empty((len(anchors), track.width), np.int64)
            for row in np.unique(rows).tolist():
                own = np.flatnonzero(rows == row)
                numbers[own] = samples_at(track, anchors[own], row_of(self.opened, row))
        mask = track.exists(anchors, numbers, steps=steps, counts=counts)
        return nearest(numbers, track.available(steps=steps, counts=counts)), mask

    def _windows(self, track: Track, found: Found, chunk: Chunk, number: int) -> NDArray[Any]:
        """[B, W, ...] in the type they are stored in; what missing steps hold is not yet decided."""
        cells, rows = self.opened.cells[track.column], chunk.samples.rows
        start, stop = number * chunk.size, (number + 1) * chunk.size
        if found.runs is None:
            return self.picks(cells, rows[start:stop], found.numbers[start:stop])
        out = None
        if self._buffers is not None:
            out = self._buffer(track.column, chunk.size, track.width * cells.layouts[0].stride)
        values = found.runs.copy(number, out=out)
        if len(found.apart):
            low, high = found.apart.searchsorted(start), found.apart.searchsorted(stop)
            alone = found.apart[low:high]
            values[alone - start] = self.picks(cells, rows[alone], found.numbers[low:high])
        return values

    def _buffer(self, name: str, rows: int, width: int) -> NDArray[np.uint8]:
        assert self._buffers is not None
        if name not in self._buffers or self._buffers[name].shape != (rows, width):
            self._buffers[name] = np.empty((rows, width), dtype=np.uint8)
        return self._buffers[name]

    def picks(self, cells: Cells, rows: Ints, numbers: Ints) -> NDArray[Any]:
        """[n, W, ...] steps gathered one by one; zeros where a row has none."""
        shape = cells.shape if cells.shape is not None else ()
        stored = cells.layouts[0].stored if len(cells.layouts) == 1 else cells.dtype
        values = np.zeros((*numbers.shape, *shape), dtype=stored)
        kinds = cells.layout[self.opened.shard_of(rows)]
        for kind, layout in enumerate(cells.layouts):
            own = np.flatnonzero((kinds == kind) & (cells.steps[rows] > 0))
            if not len(own) or not layout.width:
                continue
            addresses = cells.address[rows[own], None] + numbers[own] * layout.stride
            data = self.opened.memory.gather(addresses.reshape(-1), layout.width)
            values[own] = data.view(layout.stored).reshape(len(own), *values.shape[1:])
        return values

    def _whole(self, name: str, rows: Ints, *, packed: bool) -> Batch:
        """Whole cells: padded with their lengths, or end to end with their cumulative lengths."""
        cells = self.opened.cells[name]
        parts = [self.opened.cell(name, int(row)).astype(cells.dtype, copy=False) for row in rows]
        lengths = cells.steps[rows]
        if packed:
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            return {name: np.concatenate(parts), f"{name}_offsets": ends}
        padded = np.zeros((len(rows), max(lengths, default=0), *(cells.shape or ())), dtype=cells.dtype)
        for target, part in zip(padded, parts, strict=True):
            target[: len(part)] = part
        return {name: padded, f"{name}_length": lengths}

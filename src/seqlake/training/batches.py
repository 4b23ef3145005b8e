"""Batches of windows and whole sequences: the arithmetic for many steps ahead, then one gather per column and batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqlake.training.gather import batches_together, clear
from seqlake.training.telemetry import ORIGINS
from seqlake.windows.edges import nearest
from seqlake.windows.spec import Whole, Window
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.cells import StepColumn
    from seqlake.training.gather import Ranges
    from seqlake.training.opened import Opened
    from seqlake.training.samples import Batch, Samples
    from seqlake.training.survey import WindowSurvey
    from seqlake.windows.tracks import Track

StepsOf: TypeAlias = "Callable[[StepColumn, Ints, Ints], NDArray[Any]]"
"""(cells of a column, [n] rows, [n, W] step numbers) -> [n, W, ...] those steps, gathered one by one."""

Buffers: TypeAlias = "dict[str, NDArray[np.uint8]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where the windows of one column lie.

    Attributes:
        track: The column on the clock.
        cells: Its cells; of several datasets, those of one, which lie as all do.
        mask: [n, W] True where the step exists.
        missing: For each batch, positions in its [B * W] of the steps to set to zero; empty where there are none.
        runs: Windows of consecutive steps, each one range of bytes; None where all are assembled step by step.
        apart: Positions in [n], ascending, of windows that are assembled step by step although `runs` is there: their
            bytes would leave the shard, or the edge rule repeats a step.
        numbers: [n, W], or [apart, W] where `runs` is there: sample numbers, moved to the nearest that exists.
    """

    track: Track
    cells: StepColumn
    mask: NDArray[np.bool_]
    missing: list[Ints]
    runs: Ranges | None
    apart: Ints
    numbers: Ints

    @property
    def is_copied(self) -> bool:
        """Whether copying is all there is to do."""
        whole = self.runs is not None and not self.missing and not len(self.apart)
        return whole and self.cells.layouts[0].stored == self.cells.dtype

    def windows(self, chunk: WindowChunk, number: int) -> NDArray[Any]:
        """[B, W, ...] of a batch, in the type they are stored in; what missing steps hold is not yet decided."""
        rows, start = chunk.samples.rows, number * chunk.size
        stop = start + chunk.size
        if self.runs is None:
            return chunk.steps_of(self.cells, rows[start:stop], self.numbers[start:stop])
        out = None
        if chunk.buffers is not None:
            out = _buffer(chunk.buffers, self.track, self.cells, chunk.size)
        values = self.runs.copy(number, out=out)
        if len(self.apart):
            low, high = self.apart.searchsorted(start), self.apart.searchsorted(stop)
            alone = self.apart[low:high]
            values[alone - start] = chunk.steps_of(self.cells, rows[alone], self.numbers[low:high])
        return values


class WindowChunk:
    """`Chunk` of windows: what is left for a batch is to copy them.

    Args:
        samples: The samples.
        size: B, samples of a batch.
        columns: Of each temporal column, where its windows lie.
        values: [n] of every column with one value a sample, with its mask, and of what identifies the samples.
        origins: Bytes of a batch's steps, on average, by where they are copied from: see `telemetry.ORIGINS`.
        pieces: The memory that it points into, which stays while it is in use.
        steps_of: Gathers steps one by one.
        buffers: Where windows of consecutive steps are written; None for fresh memory.
        names: What batches hold of columns that are wanted whole.
        sequences: Rows -> those columns.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        size: int,
        columns: Sequence[Located],
        values: Batch,
        origins: Mapping[str, float],
        pieces: tuple[memoryview, ...],
        steps_of: StepsOf,
        buffers: Buffers | None = None,
        names: Iterable[str] = (),
        sequences: Callable[[Ints], Batch] | None = None,
    ) -> None:
        self.samples = samples
        self.size = size
        self.columns = columns
        self.values = values
        self.origins = origins
        self.steps_of = steps_of
        self.buffers = buffers
        self._sequences = sequences
        self.pieces = pieces
        # Name -> what gives a batch by its number; of columns with more to do than copying, only their places.
        self._ready: dict[str, Any] = {}
        self._others: list[Located] = []
        count = max(1, len(samples.rows) // max(1, size))
        for column in columns:
            name = column.track.column
            copied = buffers is None and column.is_copied
            self._ready[name] = column.runs if copied else range(count)
            if not copied:
                self._others.append(column)
            self._ready[f"{name}_mask"] = column.mask.reshape(count, size, column.track.width)
        self._ready |= dict.fromkeys(names, range(count))
        for name, each in values.items():
            self._ready[name] = each.reshape(count, size, *each.shape[1:])

    def batch(self, number: int, /) -> Batch:
        """One batch of it, as arrays whose first axis is the sample."""
        batch: Batch = {name: batches[number] for name, batches in self._ready.items()}
        for column in self._others:
            values = column.windows(self, number)
            if column.missing and len(missing := column.missing[number]):
                clear(values, missing)
            batch[column.track.column] = values.astype(column.cells.dtype, copy=False)
        if self._sequences is not None:
            batch.update(self._sequences(self.samples.rows[number * self.size : (number + 1) * self.size]))
        return batch


class WindowAssembler:
    """`Assembler` of windows and of whole sequences.

    `prepare` does for many samples at once whatever is not copying windows, its chunks do the copying.
    """

    def __init__(self, survey: WindowSurvey, opened: Opened) -> None:
        self.opened = opened
        self._survey = survey
        self._buffers: Buffers | None = None
        window = survey.window
        self._edges = window.edges if isinstance(window, Window) else "pad"

    def reuse_buffers(self) -> None:
        """From now on windows of consecutive steps are written where the batch before was."""
        self._buffers = {}

    def prepare(self, samples: Samples, *, size: int) -> WindowChunk:
        """Open the shards that the samples are in, and locate each window.

        Args:
            samples: Of some batches, one after the other.
            size: B, samples of a batch.
        """
        shards, survey = self.opened.visit(samples.rows), self._survey
        values: Batch = {}
        for name, column in self.opened.values.items():
            assert column.values is not None
            values[name] = column.values[samples.rows]
            if name in survey.singles:
                values[f"{name}_mask"] = column.present[samples.rows]
        values["start"] = samples.anchors
        is_whole = isinstance(survey.window, Whole)
        return WindowChunk(
            samples,
            size=size,
            columns=[self._locate(track, samples, size) for track in survey.tracks],
            values=values,
            origins=self._origins(samples.rows, shards, size),
            pieces=self.opened.pieces(np.flatnonzero(shards)),
            steps_of=self.steps_of,
            buffers=self._buffers,
            names=self._names() if is_whole else (),
            sequences=self._sequences if is_whole else None,
        )

    def harmed(self, samples: Samples) -> Mapping[int, Sequence[Harm]]:  # noqa: ARG002 - see `Assembler.harmed`
        """Nothing: cells are looked at before batches are made of them."""
        return {}

    def close(self) -> None:
        """Nothing is done ahead of batches."""

    def steps_of(self, cells: StepColumn, rows: Ints, numbers: Ints) -> NDArray[Any]:
        """[n, W, ...] steps gathered one by one; zeros where a row has none."""
        shape = cells.shape if cells.shape is not None else ()
        stored = cells.layouts[0].stored if len(cells.layouts) == 1 else cells.dtype
        values = np.zeros((*numbers.shape, *shape), dtype=stored)
        shards = self.opened.shard_of(rows)
        kinds, sliced = cells.layout[shards], self.opened.slices.has(cells.name, shards)
        for place in np.flatnonzero(sliced & (cells.steps[rows] > 0)).tolist():
            shard = int(shards[place])
            row = int(rows[place]) - self.opened.rows(shard).start
            values[place] = self.opened.slices.read(cells.name, shard, row, numbers[place])
        for kind, layout in enumerate(cells.layouts):
            places = np.flatnonzero((kinds == kind) & (cells.steps[rows] > 0) & ~sliced)
            if not len(places) or not layout.width:
                continue
            addresses = cells.address[rows[places], None] + numbers[places] * layout.stride
            data = self.opened.memory.gather(addresses.reshape(-1), layout.width)
            values[places] = data.view(layout.stored).reshape(len(places), *values.shape[1:])
        return values

    # ---- bytes

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
        return window_bytes([(track, self.opened.cells[track.column]) for track in self._survey.tracks], size)

    def _copied_together(self, size: int) -> int:
        """How many batches of `size` samples are copied at a time."""
        return batches_together(self._window_bytes(size)) if self._buffers is None else 1

    # ---- where windows lie

    def _locate(self, track: Track, samples: Samples, size: int) -> Located:
        cells = self.opened.cells[track.column]
        if (
            track.first is not None
            and not self.opened.slices.has(track.column, self.opened.shard_of(samples.rows)).any()
            and len(cells.layouts) == 1
            and 0 < cells.layouts[0].width == cells.layouts[0].stride
        ):
            return self._locate_runs(track, samples, size)
        return self._locate_steps(track, samples, size)

    def _locate_steps(self, track: Track, samples: Samples, size: int) -> Located:
        rows, cells = samples.rows, self.opened.cells[track.column]
        counts = cells.steps[rows]
        steps = counts if self._survey.steps is None else self._survey.steps[rows].astype(np.int64)
        numbers, mask = self._numbers(track, rows, samples.anchors, steps=steps, counts=counts)
        return Located(
            track=track,
            cells=cells,
            mask=mask,
            missing=by_batch(np.flatnonzero(~mask), mask.size, size * track.width, edges=self._edges),
            runs=None,
            apart=np.zeros(0, dtype=np.int64),
            numbers=numbers,
        )

    def _limits(self, cells: StepColumn, rows: Ints) -> Ints:
        """[n] steps that exist of a column and by the clock."""
        if self._survey.steps is None:
            return cells.steps[rows]
        if len(cells.steps) < len(rows):
            return np.minimum(cells.steps, self._survey.steps)[rows]
        return np.minimum(cells.steps[rows], self._survey.steps[rows])

    def _locate_runs(self, track: Track, samples: Samples, size: int) -> Located:
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
        missing = (edges[:, None] * width + np.arange(width))[lacks]
        return Located(
            track=track,
            cells=cells,
            mask=mask,
            missing=by_batch(missing, mask.size, size * width, edges=self._edges),
            runs=runs,
            apart=apart,
            numbers=nearest(track.samples(samples.anchors[alone]), limit[alone]),
        )

    def _numbers(
        self, track: Track, rows: Ints, anchors: Ints, *, steps: Ints, counts: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """[n, W] which sample stands at each moment, and whether it exists."""
        if track.timestamps is None:
            numbers = track.samples(anchors)
        else:
            numbers = np.empty((len(anchors), track.width), np.int64)
            for row in np.unique(rows).tolist():
                places = np.flatnonzero(rows == row)
                numbers[places] = samples_at(track, anchors[places], self.opened.times_of(row))
        mask = track.exists(anchors, numbers, steps=steps, counts=counts)
        return nearest(numbers, track.available(steps=steps, counts=counts)), mask

    # ---- whole sequences

    def _names(self) -> list[str]:
        """What batches of whole sequences hold of temporal columns, beside what a row has one value of."""
        window = self._survey.window
        more = "offsets" if isinstance(window, Whole) and window.packed else "length"
        return [each for name in self._survey.cells for each in (name, f"{name}_{more}")]

    def _sequences(self, rows: Ints) -> Batch:
        """Whole cells: padded with their lengths, or end to end with their cumulative lengths."""
        window = self._survey.window
        batch: Batch = {}
        for name in self._survey.cells:
            cells = self.opened.cells[name]
            parts = [self.opened.cell(name, int(row)).astype(cells.dtype, copy=False) for row in rows]
            lengths = cells.steps[rows]
            if isinstance(window, Whole) and window.packed:
                ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
                batch |= {name: np.concatenate(parts), f"{name}_offsets": ends}
                continue
            padded = np.zeros((len(rows), max(lengths, default=0), *(cells.shape or ())), dtype=cells.dtype)
            for target, part in zip(padded, parts, strict=True):
                target[: len(part)] = part
            batch |= {name: padded, f"{name}_length": lengths}
        return batch


def window_bytes(columns: Iterable[tuple[Track, StepColumn]], size: int, /) -> int:
    """Bytes of the windows of so many samples."""
    return size * sum(track.width * layout.width for track, cells in columns for layout in cells.layouts[:1])


def by_batch(missing: Ints, total: int, size: int, *, edges: str) -> list[Ints]:
    """Positions in [n * W] as positions in each batch's [B * W]; none where the edge rule repeats steps."""
    if edges == "clamp" or not len(missing):
        return []
    firsts = np.arange(0, total, size)
    cuts = np.searchsorted(missing, firsts)
    return [part - first for part, first in zip(np.split(missing, cuts[1:]), firsts, strict=True)]


def _buffer(buffers: Buffers, track: Track, cells: StepColumn, size: int) -> NDArray[np.uint8]:
    shape = size, track.width * cells.layouts[0].stride
    if track.column not in buffers or buffers[track.column].shape != shape:
        buffers[track.column] = np.empty(shape, dtype=np.uint8)
    return buffers[track.column]

"""All frames of whole sequences in one batch: padded to the longest, or end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.training.frames.batch import FrameBatch
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seqlake.protocols import Ints
    from seqlake.training.batches import Batch
    from seqlake.training.frames.batch import Task
    from seqlake.windows.frames import Shown


class SequenceFrames(FrameBatch):
    """`FrameBatch` of whole sequences: every frame that a row has, as often and at the rate that it has them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ends: list[Ints] = []  # of each column: [B + 1] cumulative numbers of frames

    @property
    def _packed(self) -> bool:
        window = self._frame_columns.survey.window
        return isinstance(window, Whole) and window.packed

    def _arranged(self, number: int) -> list[Task]:
        column = self._frame_columns.columns[number]
        shape, dtype = column.shape()
        found: list[tuple[Ints, Hashable, int, Shown]] = []
        counts = np.zeros(len(self.rows), np.int64)
        for own, row, key, clip in self._filmed(number, (shape, dtype)):
            first, shown = column.shown(row, clip)
            counts[own] = shown.count
            found.append((own, key, first, shown))
        self._ends.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
        size = (1, int(counts.sum())) if self._packed else (len(counts), int(counts.max(initial=0)))
        begins = self._ends[number] if self._packed else np.arange(len(counts)) * size[1]
        frames = self.allocate(column.track.column, (*size, *shape), dtype)
        wanted = np.zeros(size[0] * size[1], np.bool_)
        parts: dict[Hashable, list[tuple[Ints, Ints]]] = {}
        for own, key, first, shown in found:
            there = np.arange(shown.count) if shown.present is None else np.flatnonzero(shown.present)
            for slot in own.tolist():
                places = begins[slot] + there
                wanted[places] = True
                parts.setdefault(key, []).append((places, first + there))
        frames.reshape(-1, *shape)[~wanted] = 0
        self._frames.append(frames)
        self._masks.append(wanted.reshape(size))
        return self._dealt(number, parts, int(wanted.sum()))

    def _slots(self, number: int, places: Ints) -> Ints:
        width = max(1, int(self._masks[number].shape[1]))
        slots: Ints = (
            (np.searchsorted(self._ends[number], places, side="right") - 1) if self._packed else places // width
        )
        return slots

    def _named(self, number: int, name: str) -> Batch:
        frames, mask, ends = self._turned(self._frames[number]), self._masks[number], self._ends[number]
        if self._packed:
            return {name: frames[0], f"{name}_mask": mask[0], f"{name}_offsets": ends}
        return {name: frames, f"{name}_mask": mask, f"{name}_length": np.diff(ends)}

"""Batches of several datasets: windows of all of them are found ahead and copied in one go, as those of one dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.training.batches import Assembler, Chunk, Found
from seqlake.training.fetching.range_batches import RangeAssembler
from seqlake.training.gather import Memory
from seqlake.training.mixtures.parts import scattered, some, together
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.batches import Batch, Samples
    from seqlake.training.cells import Cells
    from seqlake.training.gather import Pace
    from seqlake.training.mixtures.sources import PreparedMix
    from seqlake.windows.tracks import Track

NAME, NUMBER = "source", "source_number"
"""What batches of several datasets say beside their columns."""

_Parts = dict[int, tuple["Ints", Chunk]]
"""Dataset -> the positions of its samples, and what is known of their windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixChunk:
    """Some steps' samples, of which each batch is prepared by itself.

    Attributes:
        parts: Of each batch; empty where that is done when it is made.
        origins: Bytes of the batch that was made last, by where they were copied from.
    """

    samples: Samples
    size: int
    parts: Sequence[_Parts] = ()
    origins: dict[str, float] = field(default_factory=dict)


class MixAssembler(Assembler):
    """`Assembler` of several datasets.

    Where the windows of all lie alike in memory they are copied by one index, whichever dataset each is of. Whole
    sequences, windows read by range and shards of unlike layouts are assembled dataset by dataset and put together.
    """

    def __init__(self, prepared: PreparedMix, *, sharers: int) -> None:
        super().__init__(prepared.surveys[0], prepared.opened)
        self._prepared = prepared
        self._assemblers = [member.assembler(sharers=sharers) for member in prepared.members]
        self._names = np.array([*prepared.mix.sources, None], dtype=object)[:-1]
        self._sequences = isinstance(prepared.settings.window, Whole)
        self._paces: dict[int, Pace] = {}
        self._reads = any(isinstance(assembler, RangeAssembler) for assembler in self._assemblers)

    def reuse_buffers(self) -> None:
        """Nothing: batches are put together in fresh memory."""

    def harmed(self, samples: Samples) -> dict[int, Sequence[Harm]]:
        """Place in a batch -> what only making it showed to be bad."""
        found: dict[int, Sequence[Harm]] = {}
        for member, which in self._prepared.by_member(samples.rows):
            own = some(samples, which, before=int(self._prepared.first_rows[member]))
            harms = self._assemblers[member].harmed(own)
            found |= {int(which[place]): harms[place] for place in harms}
        return {place: found[place] for place in found if place not in samples.bad}

    def prepare(self, samples: Samples, *, size: int) -> Chunk:
        """Find where the windows of some batches lie; see `Assembler.prepare`."""
        count = len(samples.rows)
        parts: list[_Parts] = []
        if self._reads:  # begin to read all of it
            parts = [self._parts(some(samples, slice(at, at + size))) for at in range(0, count, size)]
        elif count and not self._sequences and (found := self._one(samples, self._parts(samples), size)) is not None:
            return found
        return cast("Chunk", MixChunk(samples=samples, size=size, parts=parts))

    def batch(self, chunk: Chunk | MixChunk, number: int) -> Batch:
        """One batch of a chunk, with the source of each sample."""
        if isinstance(chunk, Chunk):
            return super().batch(chunk, number)
        own = slice(number * chunk.size, (number + 1) * chunk.size)
        samples = some(chunk.samples, own)
        found: list[tuple[Ints, Batch]] = []
        chunk.origins.clear()
        parts = chunk.parts[number] if chunk.parts else self._parts(samples)
        for member, (which, part) in parts.items():
            found.append((which, self._assemblers[member].batch(part, 0)))
            for origin, count in part.origins.items():
                chunk.origins[origin] = chunk.origins.get(origin, 0.0) + count
        return {**together(found, self._prepared.settings.window), **self._told(samples, parts)}

    def close(self) -> None:
        """End what is done ahead of batches."""
        super().close()
        for assembler in self._assemblers:
            assembler.close()

    def _parts(self, samples: Samples) -> _Parts:
        """The samples of each dataset, prepared as one batch."""
        found: _Parts = {}
        for member, which in self._prepared.by_member(samples.rows):
            mine = some(samples, which, before=int(self._prepared.first_rows[member]))
            found[member] = which, self._assemblers[member].prepare(mine, size=len(which))
        return found

    def _told(self, samples: Samples, parts: _Parts) -> Batch:
        """[n] name and number of the source of each sample."""
        members = np.zeros(len(samples.rows), dtype=np.int64)
        for member, (which, _) in parts.items():
            members[which] = member
        return {NAME: self._names[members], NUMBER: members}

    # ---- all datasets as one

    def _one(self, samples: Samples, parts: _Parts, size: int) -> Chunk | None:
        """What is known of the windows of all datasets; None where they do not lie alike."""
        opened = {member: self._prepared.members[member].opened for member in parts}
        if not all(_alike([opened[m].cells[track.column] for m in parts]) for track in self._survey.tracks):
            return None
        memory = Memory.joined([each.memory for each in opened.values()], paces=self._paces)
        self.opened.cells = next(iter(opened.values())).cells
        count = len(samples.rows)
        values = {
            name: scattered([(which, part.values[name]) for which, part in parts.values()], count, name=name)
            for name in next(iter(parts.values()))[1].values
        }
        origins: dict[str, float] = {}
        for _, part in parts.values():
            for origin, nbytes in part.origins.items():
                origins[origin] = origins.get(origin, 0.0) + nbytes * size / count
        return Chunk(
            samples=samples,
            size=size,
            columns={track.column: self._merged(track, parts, memory, count, size) for track in self._survey.tracks},
            values={**values, **self._told(samples, parts)},
            origins=origins,
            pieces=memory.pieces,
        )

    def _merged(self, track: Track, parts: _Parts, memory: Memory, count: int, size: int) -> Found:
        """Where the windows of one column lie, of all datasets."""
        found = [(which, part.columns[track.column]) for which, part in parts.values()]
        mask = scattered([(which, each.mask) for which, each in found], count, name=track.column)
        lacking = any(each.missing for _, each in found)
        missing = self._by_batch(np.flatnonzero(~mask), mask.size, size * track.width) if lacking else []
        readable = next((each.runs.addresses[:1] for _, each in found if each.runs is not None), None)
        if readable is None:
            numbers = scattered([(which, each.numbers) for which, each in found], count, name=track.column)
            return Found(mask=mask, missing=missing, runs=None, apart=np.zeros(0, np.int64), numbers=numbers)
        addresses = np.empty(count, np.int64)
        for which, each in found:
            addresses[which] = readable if each.runs is None else each.runs.addresses
        alone = np.concatenate([which if each.runs is None else which[each.apart] for which, each in found])
        order = np.argsort(alone, kind="stable")
        cells = self.opened.cells[track.column]
        layout = cells.layouts[0]
        cell = layout.stored, (track.width, *(cells.shape or ()))
        at_once = self._copied_together(size)
        return Found(
            mask=mask,
            missing=missing,
            runs=memory.ranges(addresses, track.width * layout.stride, size=size, cell=cell, together=at_once),
            apart=alone[order],
            numbers=np.concatenate([each.numbers for _, each in found])[order],
        )

    def picks(self, cells: Cells, rows: Ints, numbers: Ints) -> NDArray[Any]:
        """[n, W, ...] steps gathered one by one, dataset by dataset; rows are counted through all of them."""
        if not len(rows):
            return np.zeros((*numbers.shape, *(cells.shape or ())), cells.layouts[0].stored)
        parts: list[tuple[Ints, NDArray[Any]]] = []
        for member, own in self._prepared.by_member(rows):
            assembler, first = self._assemblers[member], self._prepared.first_rows[member]
            mine = assembler.opened.cells[cells.name]
            parts.append((own, assembler.picks(mine, rows[own] - first, numbers[own])))
        return scattered(parts, len(rows), name=cells.name)


def _alike(cells: Sequence[Cells]) -> bool:
    """Whether the steps of a column have one layout in all datasets."""
    return len({layout for each in cells for layout in each.layouts}) == 1 and len({each.shape for each in cells}) == 1

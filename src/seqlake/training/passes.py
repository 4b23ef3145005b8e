"""One pass over an epoch: batches in order, with the arithmetic for many steps done at a time.

It is done between batches and not on a thread of its own: measured, the interpreter's lock changing hands at every
numpy call cost more than a second core gave.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.batches import Samples
from seqlake.training.order import Order
from seqlake.training.randomness import Random
from seqlake.training.visits import visits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Ints
    from seqlake.training.batches import Assembler, Batch, Chunk
    from seqlake.training.frames import FrameBatch, FrameStream
    from seqlake.training.mixed import MixPlanner
    from seqlake.training.order import Shuffle
    from seqlake.training.steps import Steps
    from seqlake.training.survey import Survey
    from seqlake.training.transforms import Transform
    from seqlake.training.visits import Visits

_AHEAD = 1 << 15  # windows whose places are computed at a time
_FIRST = 1 << 10  # fewer at first, so that the first batch comes soon
_DECODED_AHEAD = 1  # batches whose frames are decoded while one is in use


class Planner:
    """Samples of steps: the order, and where each window of it begins."""

    def __init__(self, survey: Survey, steps: Steps, *, shuffle: Shuffle | None, seed: int) -> None:
        self._survey = survey
        self._steps = steps
        self._shuffle = shuffle
        self._seed = seed
        self._orders: dict[int, Order] = {}

    @property
    def local_batch(self) -> int:
        """Samples of a step on this rank."""
        return self._steps.local_batch

    def samples(self, epoch: int, position: int, steps: Ints) -> Samples:
        """The samples of some steps of the pass that begins at a sample of an epoch."""
        further, numbers, valid = self._steps.take(position, steps)
        windows = self._windows(epoch, further, numbers)
        rows, index = self._survey.axis.locate(windows)
        return Samples(
            epochs=epoch + further,
            numbers=numbers,
            rows=rows,
            anchors=self._survey.first + index * self._survey.stride,
            valid=valid,
        )

    def visits(self, epoch: int, position: int) -> Visits:
        """When each shard is needed by this rank in an epoch."""
        return visits(self._order(epoch), lanes=self._steps.lanes_of(position))

    def _windows(self, epoch: int, further: Ints, numbers: Ints) -> Ints:
        if not further.any():
            return self._order(epoch).windows(numbers)
        windows = np.empty_like(numbers)
        for extra in np.unique(further):
            own = further == extra
            windows[own] = self._order(epoch + int(extra)).windows(numbers[own])
        return windows

    def _order(self, epoch: int) -> Order:
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = Order(
                shard_windows=self._survey.axis.shard_windows, shuffle=self._shuffle, seed=self._seed, epoch=epoch
            )
        return self._orders[epoch]


class Pass:
    """An iterator over the batches of one pass, for one rank and optionally every k-th step only.

    Args:
        planner: Gives the samples of steps.
        assembler: Makes batches of them.
        position: (epoch, sample) where the pass begins.
        steps: The step numbers to deliver.
        transforms: Applied to each batch in turn.
        seed: For the transforms' random numbers.
        show_valid: Whether batches say which samples are repetitions.
        frames: Decodes frames, the next batch's while one is in use; None where the window asks for none.
    """

    def __init__(
        self,
        planner: Planner | MixPlanner,
        assembler: Assembler,
        *,
        position: tuple[int, int],
        steps: range,
        transforms: Sequence[Transform],
        seed: int,
        show_valid: bool,
        frames: FrameStream | None = None,
    ) -> None:
        self._assembler = assembler
        self._local = local_batch = planner.local_batch
        self._transforms = transforms
        self._seed = seed
        self._show_valid = show_valid
        self._frames = frames
        epoch, sample = position
        if assembler.opened.is_fetched:
            then = planner.visits(epoch + 1, 0)
            assembler.opened.expect(planner.visits(epoch, sample), sample, then=then)
        chunks = self._chunks(planner, position, steps)
        self._batches = ((chunk, at) for chunk in chunks for at in range(len(chunk.samples.rows) // local_batch))
        self._next: deque[tuple[Chunk, int, FrameBatch | None]] = deque()

    def _chunks(self, planner: Planner | MixPlanner, position: tuple[int, int], steps: range) -> Iterator[Chunk]:
        """Chunks in order; when one is begun, the one before it may still be in use, but no earlier one."""
        before = position[1]
        for part in _parts(steps, self._local):
            samples = planner.samples(*position, part)
            if len(samples.numbers) and not (samples.epochs > position[0]).any():
                self._assembler.opened.leave(before)
                before = int(samples.numbers.min())
            yield self._assembler.prepare(samples, size=self._local)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Batch:
        try:
            return self._delivered()
        except StopIteration:
            self.close()
            raise

    def close(self) -> None:
        """End what decodes ahead; nothing more is delivered."""
        self._batches.close()
        self._next.clear()
        if self._frames is not None:
            self._frames.close()

    def _delivered(self) -> Batch:
        chunk, at, under_way = self._come_to()
        samples, own = chunk.samples, slice(at * self._local, (at + 1) * self._local)
        batch = self._assembler.batch(chunk, at)
        if self._frames is not None and under_way is not None:
            batch.update(self._frames.take(under_way))
        if self._show_valid:
            batch["valid"] = samples.valid[own]
        if self._transforms:
            random = Random(seed=self._seed, epochs=samples.epochs[own], numbers=samples.numbers[own])
            for transform in self._transforms:
                batch = transform(batch, random)
        return batch

    def _come_to(self) -> tuple[Chunk, int, FrameBatch | None]:
        """The chunk of the next batch, its number in it and its frames; those of the batch after it are begun too."""
        while len(self._next) < (1 if self._frames is None else 1 + _DECODED_AHEAD):
            coming = next(self._batches, None)
            if coming is None:
                break
            self._next.append((*coming, self._begun(*coming)))
        if not self._next:
            raise StopIteration
        return self._next.popleft()

    def _begun(self, chunk: Chunk, at: int) -> FrameBatch | None:
        if self._frames is None:
            return None
        own = slice(at * self._local, (at + 1) * self._local)
        return self._frames.begin(chunk.samples.rows[own], chunk.samples.anchors[own])


def _parts(steps: range, local_batch: int) -> Iterator[Ints]:
    """Step numbers in the portions they are prepared in."""
    at, size = 0, _FIRST
    while at < len(steps):
        count = max(1, size // max(1, local_batch))
        yield np.array(steps[at : at + count], dtype=np.int64)
        at, size = at + count, _AHEAD

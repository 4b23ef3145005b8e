"""One pass over an epoch: batches in order, with the arithmetic for many steps done at a time.

It is done between batches and not on a thread of its own: measured, the interpreter's lock changing hands at every
numpy call cost more than a second core gave.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.bad_data.substitutes import Substitutes
from seqlake.training.batches import Samples
from seqlake.training.order import Order
from seqlake.training.randomness import Random
from seqlake.training.visits import visits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.bad_data.repair import Repair
    from seqlake.training.batches import Assembler, Batch, Chunk
    from seqlake.training.frames.ahead import FrameStream
    from seqlake.training.frames.batch import FrameBatch
    from seqlake.training.mixtures.samples import MixPlanner
    from seqlake.training.order import Shuffle
    from seqlake.training.settings import Settings
    from seqlake.training.steps import Steps
    from seqlake.training.survey import Survey
    from seqlake.training.telemetry import Meter
    from seqlake.training.visits import Visits

_Coming = tuple["Chunk", int, "FrameBatch | None"]
"""The chunk of a batch, its number in the chunk, and its frames on their way."""

_AHEAD = 1 << 16  # windows whose places are computed at a time
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

    def spread(self, position: int) -> float:
        """For each sample of this rank, how many there are in the lanes that it takes samples of."""
        steps = self._steps
        return steps.global_batch / max(1, steps.local_batch) * len(steps.lanes_of(position)) / steps.lanes

    def samples(self, epoch: int, position: int, steps: Ints) -> Samples:
        """The samples of some steps of the pass that begins at a sample of an epoch."""
        further, numbers, valid = self._steps.take(position, steps)
        return self._located(epoch, further, numbers, valid)

    def substitutes(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        """Samples to be tried in the places of others; see `Substitutes`."""
        choice = Substitutes(samples=self._steps.samples, shuffle=self._shuffle, seed=self._seed)
        others = choice.of(epochs, numbers)[:, attempt]
        first = int(epochs.min())
        return self._located(first, epochs - first, others, np.ones(len(others), np.bool_))

    def _located(self, epoch: int, further: Ints, numbers: Ints, valid: NDArray[np.bool_]) -> Samples:
        windows = self._windows(epoch, further, numbers)
        rows, anchors = self._survey.axis.locate(windows)
        if self._survey.stride != 1:
            anchors *= self._survey.stride
        first = self._survey.first
        if not isinstance(first, int):
            anchors += first[rows]
        elif first:
            anchors += first
        return Samples(
            epochs=epoch + further,
            numbers=numbers,
            rows=rows,
            anchors=anchors,
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
        settings: Transforms, seed and tail rule.
        frames: Decodes frames, the next batch's while one is in use; None where the window asks for none.
        repair: Deals with bad samples; None where they raise.
        meter: Counts what is done.
    """

    def __init__(
        self,
        planner: Planner | MixPlanner,
        assembler: Assembler,
        *,
        position: tuple[int, int],
        steps: range,
        settings: Settings,
        frames: FrameStream | None,
        repair: Repair | None,
        meter: Meter,
    ) -> None:
        self._planner = planner
        self._assembler = assembler
        self._local = planner.local_batch
        self._settings = settings
        self._frames = frames
        self._repair = repair
        self._meter = meter
        meter.ahead = 0 if frames is None else _DECODED_AHEAD
        self._since: float | None = None  # when the last batch was handed out
        epoch, sample = position
        if assembler.opened.is_fetched:
            then = planner.visits(epoch + 1, 0)
            assembler.opened.expect(planner.visits(epoch, sample), sample, then=then)
        chunks = self._chunks(position, steps)
        self._coming = self._begun_ahead(_one_ahead(chunks) if assembler.opened.is_ranged else chunks)

    def _chunks(self, position: tuple[int, int], steps: range) -> Iterator[Chunk]:
        """Chunks in order; when one is begun, the one before it may still be in use, but no earlier one."""
        before, opened, spent = position[1], self._assembler.opened, self._meter.seconds
        most = opened.portion or _AHEAD
        if opened.is_fetched and not opened.is_ranged:  # samples of other ranks and processes may lie between these
            most = max(1, int(most / steps.step / self._planner.spread(position[1])))
        most = min(_AHEAD, most)
        for part in parts(steps, self._local, most=most):
            began, opening = perf_counter(), opened.seconds
            samples = self._planner.samples(*position, part)
            ordered = perf_counter()
            if len(samples.numbers) and not (samples.epochs > position[0]).any():
                opened.leave(before, int(samples.numbers.max()))
                before = int(samples.numbers.min())
            if self._repair is not None:
                samples = self._repair.signals(samples)
            chunk = self._assembler.prepare(samples, size=self._local)
            opening = opened.seconds - opening
            spent["order"] += ordered - began
            spent["open"] += opening
            spent["locate"] += perf_counter() - ordered - opening
            yield chunk

    def _begun_ahead(self, chunks: Iterator[Chunk]) -> Generator[_Coming]:
        """Batches in order; the frames of the ones after each are begun before it is used."""
        frames, waiting = self._frames, deque[_Coming]()
        for chunk in chunks:
            for at in range(len(chunk.samples.rows) // self._local):
                if frames is None:
                    yield chunk, at, None
                    continue
                own = slice(at * self._local, (at + 1) * self._local)
                waiting.append((chunk, at, frames.begin(chunk.samples.rows[own], chunk.samples.anchors[own])))
                if len(waiting) > _DECODED_AHEAD:
                    yield waiting.popleft()
        yield from waiting

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Batch:
        began = perf_counter()
        try:
            batch = self._delivered()
        except StopIteration:
            self.close()
            raise
        meter, now = self._meter, perf_counter()
        meter.batches += 1
        meter.samples += self._local
        meter.inside += now - began
        meter.elapsed += now - (self._since or began)
        self._since = now
        return batch

    def close(self) -> None:
        """End what decodes ahead; nothing more is delivered."""
        self._coming.close()
        self._assembler.close()
        if self._frames is not None:
            self._frames.close()

    def _delivered(self) -> Batch:
        chunk, at, under_way = next(self._coming)
        spent, nbytes = self._meter.seconds, self._meter.nbytes
        began, opening = perf_counter(), self._assembler.opened.seconds
        batch = self._assembler.batch(chunk, at)
        gathered, opening = perf_counter(), self._assembler.opened.seconds - opening
        spent["open"] += opening
        spent["gather"] += gathered - began - opening
        for origin, count in chunk.origins.items():
            nbytes[origin] = nbytes.get(origin, 0.0) + count
        if self._frames is not None and under_way is not None:
            batch.update(self._frames.take(under_way))
            spent["decode"] += perf_counter() - gathered
        if self._repair is not None:
            self._repair.finish(
                batch,
                chunk.samples.part(at * self._local, (at + 1) * self._local),
                self._harmed(chunk, at),
            )
        elif self._settings.tail == "pad":
            batch["valid"] = chunk.samples.valid[at * self._local : (at + 1) * self._local]
        return self._transformed(batch, chunk.samples, at) if self._settings.transforms else batch

    def _harmed(self, chunk: Chunk, at: int) -> Mapping[int, Sequence[Harm]]:
        """Place in a batch -> what only reading or decoding it showed to be bad."""
        if self._frames is not None:
            return self._frames.harmed
        return self._assembler.harmed(chunk.samples.part(at * self._local, (at + 1) * self._local))

    def _transformed(self, batch: Batch, samples: Samples, at: int) -> Batch:
        began, own = perf_counter(), slice(at * self._local, (at + 1) * self._local)
        random = Random(seed=self._settings.seed, epochs=samples.epochs[own], numbers=samples.numbers[own])
        for transform in self._settings.transforms:
            batch = transform(batch, random)
        self._meter.seconds["transform"] += perf_counter() - began
        return batch


def parts(steps: range, local_batch: int, *, most: int) -> Iterator[Ints]:
    """Step numbers in the portions they are prepared in, of about `most` samples."""
    at, size = 0, min(_FIRST, most)
    while at < len(steps):
        count = max(1, size // max(1, local_batch))
        yield np.array(steps[at : at + count], dtype=np.int64)
        at, size = at + count, most


def _one_ahead(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The next is begun before one is handed out: what it needs is read meanwhile."""
    before: Chunk | None = None
    for chunk in chunks:
        if before is not None:
            yield before
        before = chunk
    if before is not None:
        yield before

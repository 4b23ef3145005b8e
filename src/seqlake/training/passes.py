"""Batches of an engine, in order: one pipeline for all of them, and a pass over an epoch that runs it ahead.

Batches with bad samples are made whole: masked, or with other samples in their places; shape and steps never change.

The arithmetic for many steps is done at a time, between batches and not on a thread of its own: measured, the
interpreter's lock changing hands at every numpy call cost more than a second core gave.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from itertools import islice, pairwise
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.bad_data.damage import BadSample
from seqlake.training.mixtures.parts import chosen, exchanged
from seqlake.training.needs import HORIZON, Course, cuts, portion
from seqlake.training.order import Visits
from seqlake.training.randomness import ATTEMPTS, Random
from seqlake.training.shard_cache import is_remote
from seqlake.training.telemetry import Meter
from seqlake.windows.clouds import joined
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.engine import FramesAhead, OpenShards, Planner, SampleChunk, TrainingEngine
    from seqlake.training.samples import Batch, Samples
    from seqlake.training.transforms import Transform

_Coming = tuple["SampleChunk", int, "FramesAhead | None"]
"""The chunk of a batch, its number in the chunk, and its frames on their way."""

_AHEAD = 1 << 16  # windows whose places are computed at a time
_DECODED_AHEAD = 1  # batches whose frames are decoded while one is in use


class Pipeline:
    """What becomes of samples: assembled, frames added, repaired, transformed.

    Passes, the map-style dataset and repair make their batches with it.

    Args:
        engine: Gives the parts.
        others: (epochs, sample numbers, attempt) -> samples to be tried in the places of bad ones; None where bad ones
            are not to be replaced.
        transforms: What users do to batches.
        meter: Counts what is done; None for nobody.
        reuse: Write signals where those of the batch before were.
        pads: Batches say which samples are repetitions.
        joins: Clouds become arrays of numbers.
    """

    def __init__(
        self,
        engine: TrainingEngine,
        *,
        others: Callable[[Ints, Ints, int], Samples] | None = None,
        transforms: Sequence[Transform] = (),
        meter: Meter | None = None,
        reuse: bool = False,
        pads: bool = False,
        joins: bool = True,
    ) -> None:
        self.opened: OpenShards = engine.opened
        self.meter: Meter = Meter() if meter is None else meter
        self._engine = engine
        self._transforms = transforms
        self._pads = pads
        self._clouds = [name for name in engine.surveys[0].clouds if joins]
        self._assembler = engine.assembler()
        if reuse:
            self._assembler.reuse_buffers()
        self._frames = engine.frames()
        self.has_frames: bool = self._frames is not None
        self._repair: Repair | None = None
        if others is not None and engine.settings.on_error.tolerant:
            self._repair = Repair(engine, others, self._as_they_are)

    def prepare(self, samples: Samples, *, size: int) -> SampleChunk:
        """Open the shards that samples are in, replace those whose cells are bad, and do whatever is not copying."""
        if self._repair is not None:
            samples = self._repair.signals(samples)
        return self._assembler.prepare(samples, size=size)

    def begin(self, chunk: SampleChunk, number: int) -> FramesAhead | None:
        """Have the frames of a batch decoded; None where there are none."""
        if self._frames is None:
            return None
        inside = slice(number * chunk.size, (number + 1) * chunk.size)
        return self._frames.begin(chunk.samples.rows[inside], chunk.samples.anchors[inside])

    def deliver(self, chunk: SampleChunk, number: int, frames: FramesAhead | None) -> Batch:
        """One batch of a chunk, with the frames that were begun for it."""
        spent, nbytes = self.meter.seconds, self.meter.nbytes
        began, opening = perf_counter(), self.opened.seconds
        batch = chunk.batch(number)
        gathered, opening = perf_counter(), self.opened.seconds - opening
        spent["open"] += opening
        spent["gather"] += gathered - began - opening
        for origin, count in chunk.origins.items():
            nbytes[origin] = nbytes.get(origin, 0.0) + count
        if frames is not None:
            batch.update(frames.take())
            spent["decode"] += perf_counter() - gathered
        start, stop = number * chunk.size, (number + 1) * chunk.size
        if self._repair is not None:
            self._repair.finish(batch, chunk.samples.part(start, stop), self._harmed(chunk, number, frames))
        elif self._pads:
            batch["valid"] = chunk.samples.valid[start:stop]
        for name in self._clouds:
            batch |= joined(name, batch[name], self._engine.settings.frames.points)
        return self._transformed(batch, chunk.samples, slice(start, stop)) if self._transforms else batch

    def at_once(self, samples: Samples) -> tuple[Batch, Mapping[int, Sequence[Harm]]]:
        """All of some samples as one batch, and place in it -> what only making it showed to be bad."""
        chunk = self.prepare(samples, size=len(samples.rows))
        frames = self.begin(chunk, 0)
        return self.deliver(chunk, 0, frames), self._harmed(chunk, 0, frames)

    def close(self) -> None:
        """End what decodes ahead."""
        self._assembler.close()
        if self._frames is not None:
            self._frames.close()

    def _harmed(self, chunk: SampleChunk, number: int, frames: FramesAhead | None) -> Mapping[int, Sequence[Harm]]:
        """Place in a batch -> what only reading or decoding it showed to be bad."""
        if frames is not None:
            return frames.harmed
        return self._assembler.harmed(chunk.samples.part(number * chunk.size, (number + 1) * chunk.size))

    def _as_they_are(self, samples: Samples) -> tuple[Batch, Mapping[int, Sequence[Harm]]]:
        """A batch of samples to be tried in places of others, and what is wrong with them."""
        with closing(Pipeline(self._engine, joins=False)) as pipeline:
            return pipeline.at_once(samples)

    def _transformed(self, batch: Batch, samples: Samples, inside: slice) -> Batch:
        began = perf_counter()
        seed = self._engine.settings.seed
        random = Random(seed=seed, epochs=samples.epochs[inside], numbers=samples.numbers[inside])
        for transform in self._transforms:
            batch = transform(batch, random)
        self.meter.seconds["transform"] += perf_counter() - began
        return batch


class Pass:
    """An iterator over the batches of one pass, for one rank and optionally every k-th step only.

    Args:
        engine: Gives the parts.
        position: (epoch, sample) where the pass begins.
        steps: The step numbers to deliver.
    """

    def __init__(self, engine: TrainingEngine, *, position: tuple[int, int], steps: range) -> None:
        settings, planner = engine.settings, engine.planner()
        self._planner = planner
        self._local = planner.local_batch
        self._steps = engine.steps
        self._share = _share(engine)
        self._meter = engine.meter
        self._pipeline = Pipeline(
            engine,
            others=planner.substitutes,
            transforms=settings.transforms,
            meter=engine.meter,
            reuse=settings.reuse,
            pads=settings.tail == "pad",
        )
        self._meter.ahead = _DECODED_AHEAD if self._pipeline.has_frames else 0
        self._since: float | None = None  # when the last batch was handed out
        self._most = _AHEAD
        self._begin(position, steps, engine)
        chunks = self._chunks(position, steps)
        self._coming = self._begun_ahead(_one_ahead(chunks) if self._pipeline.opened.is_ranged else chunks)

    def _begin(self, position: tuple[int, int], steps: range, engine: TrainingEngine) -> None:
        """Say when which shards will be needed, and let as many samples be prepared together as there is room for.

        Raises:
            CacheTooSmallError: There is none for what the order needs.
        """
        planner, opened, (epoch, sample) = self._planner, self._pipeline.opened, position
        if opened.is_ranged:
            self._most = min(_AHEAD, opened.portion or _AHEAD)
        if not opened.is_fetched:
            return
        strict = not engine.has_begun and (steps.step == 1 or not epoch)  # worker processes come with every epoch
        courses = _courses([planner], engine, position, steps)
        course = next(courses)
        mine = engine.samples * self._share / engine.steps.global_batch / steps.step  # others' lie between
        world, further_passes = engine.steps.world_size, HORIZON if strict else 0

        def sharing() -> tuple[Iterator[Course], Course]:
            order = f"{engine.identity} {engine.steps.global_batch} {world}"
            ranks = opened.join(blake2b(order.encode(), digest_size=16).hexdigest(), engine.steps.rank)
            present = _courses([engine.planner(rank=rank) for rank in sorted(ranks)], engine, position, steps)
            everyone = _courses([engine.planner(rank=rank) for rank in range(world)], engine, position, steps)
            return islice(present, 1 + further_passes), next(everyone)

        self._most = portion(
            course,
            islice(courses, further_passes),
            lambda look: opened.budgets(np.arange(engine.shards) if strict or world > 1 else course.shards, look=look),
            most=self._most,
            samples=mine,
            strict=strict,
            sharing=sharing if world > 1 and _in_folder(engine) else None,
        )
        engine.has_begun = True
        further = (sample + len(steps) * steps.step * engine.steps.global_batch) // max(1, engine.samples)
        opened.expect(course.visits, sample, then=planner.visits(epoch + max(1, further), 0))

    def _chunks(self, position: tuple[int, int], steps: range) -> Iterator[SampleChunk]:
        """Chunks in order; when one is begun, the one before it may still be in use, but no earlier one."""
        before, opened, spent = position[1], self._pipeline.opened, self._meter.seconds
        size = self._steps.global_batch
        for part in parts(steps, self._share, most=self._most):
            began, opening = perf_counter(), opened.seconds
            samples = self._planner.samples(*position, part)
            ordered = perf_counter()
            opened.leave(before, position[1] + (int(part[-1]) + 1) * size - 1)
            before = position[1] + int(part[0]) * size
            chunk = self._pipeline.prepare(samples, size=self._local)
            opening = opened.seconds - opening
            spent["order"] += ordered - began
            spent["open"] += opening
            spent["locate"] += perf_counter() - ordered - opening
            yield chunk

    def _begun_ahead(self, chunks: Iterator[SampleChunk]) -> Generator[_Coming]:
        """Batches in order; the frames of the ones after each are begun before it is used."""
        pipeline, waiting = self._pipeline, deque[_Coming]()
        for chunk in chunks:
            for at in range(len(chunk.samples.rows) // self._local):
                if not pipeline.has_frames:
                    yield chunk, at, None
                    continue
                waiting.append((chunk, at, pipeline.begin(chunk, at)))
                if len(waiting) > _DECODED_AHEAD:
                    yield waiting.popleft()
        yield from waiting

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Batch:
        began = perf_counter()
        try:
            batch = self._pipeline.deliver(*next(self._coming))
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
        self._pipeline.close()


def _share(engine: TrainingEngine) -> int:
    """Samples of a step on each rank, at least: all ranks cut a pass into the same portions."""
    return max(1, engine.steps.global_batch // engine.steps.world_size)


def _in_folder(engine: TrainingEngine) -> bool:
    return engine.settings.cache is not None and engine.settings.cache.path is not None


def holding(engine: TrainingEngine) -> tuple[int, int, int]:
    """The limit of copies, the least that an order needs, and what all would take, as `EpochPlan` says it."""
    opened, steps = engine.opened, range(engine.steps.count(0))
    if not steps:
        return 0, 0, 0
    courses = list(islice(_courses([engine.planner()], engine, (0, 0), steps), 1 + HORIZON))
    remote = any(is_remote(shard) for survey in engine.surveys for shard in survey.shards)
    numbers, share = np.arange(engine.shards), _share(engine)
    budgets = opened.budgets(numbers, look=not remote, kept=True)
    needs = [max((course.need(budget, share) for course in courses), key=lambda need: need.least) for budget in budgets]
    budget, need = max(zip(budgets, needs, strict=True), key=lambda pair: pair[1].least)
    if remote and need.least > budget.limit:  # a request each
        exact = opened.budgets(numbers, look=True, kept=True)[budgets.index(budget)]
        need = max((course.need(exact, share) for course in courses), key=lambda one: one.least)
    total = int(budget.held.sum())
    return (budget.limit, need.least, total) if total else (0, 0, 0)


def _courses(
    planners: Sequence[Planner], engine: TrainingEngine, position: tuple[int, int], steps: range
) -> Iterator[Course]:
    """This pass and those that follow, of one rank or of several."""
    epoch, sample = position
    while True:
        yield Course(
            visits=Visits.joined([_visits(planner, engine, (epoch, sample), steps) for planner in planners]),
            sample=sample,
            steps=steps,
            global_batch=engine.steps.global_batch,
            local_batch=_share(engine),
            ranks=len(planners),
        )
        further, sample = engine.steps.after(sample, engine.steps.count(sample))
        epoch, steps = epoch + further, range(steps.start, engine.steps.count(sample), steps.step)


def _visits(planner: Planner, engine: TrainingEngine, position: tuple[int, int], steps: range) -> Visits:
    """When each shard is needed in a pass, whose samples are counted on where it goes beyond its epoch."""
    (epoch, sample), size, samples = position, engine.steps.global_batch, engine.samples
    visits = [planner.visits(epoch, sample)]
    borders = range(samples, sample + (steps[-1] + 1) * size, samples) if len(steps) and samples else range(0)
    for border in borders:
        crosses = (border - sample) // size  # the step in which the epoch ends
        if engine.settings.tail == "carry":
            first = sample + -(-(border - sample) // size) * size
            visits.append(planner.visits(epoch + border // samples, (first - border) % samples).moved(border))
        if crosses in steps:  # and in which ranks have other lanes than in all others
            shards = planner.shards(epoch, sample, np.array([crosses]))
            low = np.full(len(shards), sample + crosses * size)
            visits.append(Visits(shards=shards, begins=low, ends=low + size))
    return Visits.joined(visits)


def parts(steps: range, local_batch: int, *, most: int) -> Iterator[Ints]:
    """Step numbers in the portions they are prepared in, of about `most` samples."""
    for first, stop in pairwise([*cuts(len(steps), local_batch, most=most).tolist(), len(steps)]):
        yield np.array(steps[first:stop], dtype=np.int64)


def _one_ahead(chunks: Iterator[SampleChunk]) -> Iterator[SampleChunk]:
    """The next is begun before one is handed out: what it needs is read meanwhile."""
    before: SampleChunk | None = None
    for chunk in chunks:
        if before is not None:
            yield before
        before = chunk
    if before is not None:
        yield before


class Repair:
    """What becomes of bad samples in one pass.

    Args:
        engine: The source through the window; its settings say what to do, its ledger is written.
        others: (epochs, sample numbers, attempt) -> samples to be tried in their places.
        batch_of: Samples -> a batch of them, and place in it -> what only making it showed to be bad.
    """

    def __init__(
        self,
        engine: TrainingEngine,
        others: Callable[[Ints, Ints, int], Samples],
        batch_of: Callable[[Samples], tuple[Batch, Mapping[int, Sequence[Harm]]]],
    ) -> None:
        self._engine = engine
        self._others = others
        self._batch_of = batch_of
        self._substitutes = engine.settings.on_error.policy == "substitute"

    def signals(self, samples: Samples, /) -> Samples:
        """The samples, their shards opened: those whose cells are bad marked, or others in their places."""
        self._engine.opened.visit(samples.rows)
        substituted = np.zeros(len(samples.rows), np.bool_) if self._substitutes else None
        bad = np.flatnonzero(self._engine.opened.harmed(samples.rows))
        if not len(bad):
            return replace(samples, substituted=substituted)
        entries = {
            place: self._entries(samples, place, self._engine.opened.harms_of(int(samples.rows[place])))
            for place in bad.tolist()
            if samples.valid[place]
        }
        rows, anchors, valid = samples.rows.copy(), samples.anchors.copy(), samples.valid.copy()
        valid[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            assert substituted is not None
            good = ~self._engine.opened.harmed(others.rows)
            mended = places[good]
            self._engine.opened.pin(others.rows[good])
            rows[mended], anchors[mended] = others.rows[good], others.anchors[good]
            valid[mended], substituted[mended] = samples.valid[mended], True
            return good

        if substituted is not None:
            self._fill(samples, bad, filled)
        return replace(samples, rows=rows, anchors=anchors, valid=valid, bad=entries, substituted=substituted)

    def finish(self, batch: Batch, samples: Samples, framed: Mapping[int, Sequence[Harm]], /) -> None:
        """Add `valid` to an assembled batch, refill places whose frames are bad, and enter all in the ledger.

        Args:
            batch: The batch; it gets `valid`, and `substituted` where that is the policy.
            samples: The batch's own.
            framed: Position in the batch -> what is wrong with its frames.

        Raises:
            BadDataError: There are more bad samples than the budget allows.
        """
        if not framed and not samples.bad:
            batch["valid"] = samples.valid
            if samples.substituted is not None:
                batch["substituted"] = samples.substituted
        else:
            self._refill(batch, samples, framed)

    def _refill(self, batch: Batch, samples: Samples, framed: Mapping[int, Sequence[Harm]]) -> None:
        valid = batch["valid"] = samples.valid.copy()
        substituted = np.zeros(len(valid), np.bool_) if samples.substituted is None else samples.substituted.copy()
        entries = {place: [*known] for place, known in samples.bad.items()}
        for place, harms in framed.items():
            # What is wrong with a substitute is no news: the sample that should be there has its entry.
            if not substituted[place] and (valid[place] or place in entries):
                entries.setdefault(place, []).extend(self._entries(samples, place, harms))
        bad = np.array(sorted(framed), np.int64)
        valid[bad] = substituted[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            values, harmed = self._batch_of(others)
            good = ~self._engine.opened.harmed(others.rows)
            good[list(harmed)] = False
            mended = places[good]
            self._exchange(batch, mended, values, good)
            valid[mended], substituted[mended] = samples.valid[mended], True
            return good

        if self._substitutes:
            if len(bad):
                self._fill(samples, bad, filled)
            batch["substituted"] = substituted
        self._engine.ledger.add(
            replace(entry, action="substituted" if substituted[place] else "masked")
            for place in sorted(entries)
            for entry in entries[place]
        )

    def _exchange(self, batch: Batch, places: Ints, others: Batch, good: NDArray[np.bool_]) -> None:
        """Put the good ones of other samples into some places of a batch."""
        window = self._engine.settings.window
        if isinstance(window, Whole) and not self._engine.surveys[0].by_row:  # of other lengths
            if len(places):
                batch.update(exchanged(batch, places, chosen(others, np.flatnonzero(good), window), window))
            return
        for name, values in others.items():
            if isinstance(values, list):
                for place, which in zip(places.tolist(), np.flatnonzero(good).tolist(), strict=True):
                    batch[name][place] = values[which]
            else:
                batch[name][places] = values[good]

    def _fill(self, samples: Samples, bad: Ints, filled: Callable[[Ints, Samples], NDArray[np.bool_]]) -> None:
        """Try one sample after the other for bad places; `filled` says which of them were good."""
        for attempt in range(ATTEMPTS):
            others = self._others(samples.epochs[bad], samples.numbers[bad], attempt)
            self._engine.opened.visit(others.rows)
            bad = bad[~filled(bad, others)]
            if not len(bad):
                return

    def _entries(self, samples: Samples, place: int, harms: Sequence[Harm]) -> list[BadSample]:
        name = self._engine.opened.id_of(int(samples.rows[place]))
        return [
            BadSample(
                sequence_id=name,
                column=harm.column,
                file=harm.file,
                error=harm.error,
                epoch=int(samples.epochs[place]),
                sample=int(samples.numbers[place]),
                start=int(samples.anchors[place]),
            )
            for harm in harms
        ]

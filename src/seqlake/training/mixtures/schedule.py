"""Which source each sample of a mixture comes from: exact whole-number proportions, found by arithmetic.

Weights become whole numbers that sum to a period P; one period is laid out by stride scheduling and repeats. Sample t
then comes from source `slots[t mod P]`, and is the source's own sample number `t div P * count + rank[t mod P]`. No
random numbers, no state: any sample is found without the ones before it, as in `order`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, isfinite, lcm
from numbers import Rational, Real
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.mixtures.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.protocols import Ints, Readable

MOST = 65_536
"""The longest period, and so the smallest share of a source: one sample in so many."""


class Mix:
    """Several datasets as one source of a `Loader`, in exact proportions.

    Each source keeps its own order and its own epochs: all its windows come once before any comes again. Of every P
    samples exactly the same number come from each source, P being the sum of the weights as whole numbers (at most
    65 536; weights of few digits, such as 0.7, 0.2 and 0.1, are met exactly).

    Args:
        sources: Name -> (dataset, weight). Weights count in proportion to each other, whatever the datasets' sizes.
        curriculum: Other weights from some sample on: `[(sample, {name: weight}), ...]`, ascending, counted over all
            epochs. A source that is not named keeps the weight it had; 0 leaves it out for that time.
        samples: Samples of an epoch of the mixture. By default as many as it takes until all windows of all sources
            that still have a weight at the end of the curriculum have come at least once.

    Raises:
        ValueError: A weight, sample or name that cannot be meant.
        TypeError: Anything but a pair of dataset and weight.

    Example:
        >>> mix = Mix({"all": (dataset, 0.7), "first": (dataset[:2], 0.3)}, curriculum=[(100_000, {"first": 0.1})])
        >>> mix.proportions.counts
        ((7, 3), (7, 1))
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Readable, float]],
        /,
        *,
        curriculum: Sequence[tuple[int, Mapping[str, float]]] = (),
        samples: int | None = None,
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise TypeError(f"Mix: expected {{name: (dataset, weight)}} with one source at least, found {sources!r}.")
        for name, pair in sources.items():
            if not isinstance(name, str) or not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"Mix: expected a name and (dataset, weight), found {name!r}: {pair!r}.")
        self.sources: dict[str, Readable] = {name: pair[0] for name, pair in sources.items()}
        self.weights: dict[str, float] = {name: pair[1] for name, pair in sources.items()}
        self.curriculum: tuple[tuple[int, dict[str, float]], ...] = tuple(
            (at, dict(weights)) for at, weights in curriculum
        )
        self.samples = samples
        self.proportions: Proportions = Proportions.of(self.weights, curriculum=self.curriculum, samples=samples)
        self.shares: Shares | None = None

    @classmethod
    def of_streams(
        cls,
        sources: Mapping[str, Readable],
        /,
        *,
        proportion: Mapping[str, float] | None = None,
        repeat: Mapping[str, float] | None = None,
        choose: Mapping[str, int] | None = None,
        epoch_size: int | None = None,
        seed: int = 9176,
    ) -> Mix:
        """Several datasets, mixed as MosaicML Streaming's `Stream` says it: the same number of each in every epoch.

        Args:
            sources: Name -> dataset. One that is not named below comes once in an epoch.
            proportion: Relative to each other; then of all sources. An epoch has as many samples as there are, or
                `epoch_size`.
            repeat: How often the samples of a source come in an epoch; 0.5 takes half of them.
            choose: How many samples of a source come in an epoch.
            epoch_size: Samples of an epoch, for proportions; or alone: of each source in proportion to its size.
            seed: Decides which sources have one sample more where proportions do not come out even: `shuffle_seed`.

        Raises:
            ValueError: Several kinds of share for one source, proportions of some sources only, or beside others.

        Example:
            >>> mix = Mix.of_streams({"all": dataset, "first": dataset[:2]}, repeat={"all": 2}, choose={"first": 3})
        """
        mix = cls({name: (source, 1) for name, source in sources.items()})
        mix.shares = Shares(
            names=tuple(mix.sources),
            proportion=dict(proportion or {}),
            repeat=dict(repeat or {}),
            choose=dict(choose or {}),
            epoch_size=epoch_size,
            seed=seed,
        )
        mix.shares.check()
        return mix

    def proportions_of(self, samples: Sequence[int]) -> Proportions:
        """In whole numbers, of sources that have so many samples each.

        Raises:
            ValueError: An epoch would have none.

        Example:
            >>> mix = Mix.of_streams({"all": dataset, "first": dataset[:2]}, repeat={"all": 0.5})
            >>> mix.proportions_of([64, 2]).counts
            ((16, 1),)
        """
        if self.shares is None:
            return self.proportions
        counts = self.shares.counts(samples)
        if not sum(counts):
            raise ValueError(f"Mix: an epoch would have no sample: {dict(zip(self.sources, counts, strict=True))}.")
        common = gcd(*counts)
        parts = tuple(count // common for count in counts)
        return Proportions(names=tuple(self.sources), begins=(0,), counts=(parts,), samples=sum(counts))

    def __repr__(self) -> str:
        first_lines = {name: repr(source).partition("\n")[0] for name, source in self.sources.items()}
        if self.shares is not None:
            given = [(kind, getattr(self.shares, kind)) for kind in ("proportion", "repeat", "choose", "epoch_size")]
            arguments = "".join(f", {kind}={share!r}" for kind, share in given if share)
            return (
                f"Mix.of_streams({{{', '.join(f'{name!r}: {line}' for name, line in first_lines.items())}}}{arguments})"
            )
        inner = ", ".join(f"{name!r}: ({line}, {self.weights[name]})" for name, line in first_lines.items())
        more = f", curriculum={list(self.curriculum)!r}" if self.curriculum else ""
        more += f", samples={self.samples}" if self.samples is not None else ""
        return f"Mix({{{inner}}}{more})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proportions:
    """Whole-number proportions of some named parts, and how they change.

    Attributes:
        names: Of the parts, in the order they were given.
        begins: The sample at which each stage begins; the first is 0.
        counts: For each stage, each part's samples in a period.
        samples: Samples of an epoch; None where it follows from the parts' sizes.
    """

    names: tuple[str, ...]
    begins: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    samples: int | None = None

    @classmethod
    def of(
        cls,
        weights: Mapping[str, float],
        *,
        curriculum: Sequence[tuple[int, Mapping[str, float]]] = (),
        samples: int | None = None,
    ) -> Proportions:
        """From weights as users write them.

        Raises:
            ValueError: A weight that is negative or not a number, stages that do not ascend, a name that is not there,
                or only zeros.
        """
        if samples is not None and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
            raise ValueError(f"Mix samples: expected a whole number from 1 on, found {samples!r}.")
        now = dict(weights)
        begins, counts = [0], [quantise(now)]
        for at, changed in curriculum:
            if not isinstance(at, int) or isinstance(at, bool) or at <= begins[-1]:
                raise ValueError(f"Mix curriculum: expected samples that ascend from above 0, found {at!r}.")
            unknown = [name for name in changed if name not in now]
            if unknown:
                raise ValueError(f"Mix curriculum: {unknown[0]!r} is none of the sources ({', '.join(now)}).")
            now.update(changed)
            begins.append(at)
            counts.append(quantise(now))
        return cls(names=tuple(now), begins=tuple(begins), counts=tuple(counts), samples=samples)

    @property
    def digest(self) -> str:
        """Other proportions, other digest: part of a loader's state."""
        text = repr((self.names, self.begins, self.counts, self.samples))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def quantise(weights: Mapping[str, float], /) -> tuple[int, ...]:
    """Weights as whole numbers in the same proportions, whose sum is at most 65 536.

    Weights of few digits are met exactly. Others are rounded so that the largest remainders are rounded up; a weight
    above 0 keeps at least one.

    Raises:
        ValueError: A weight that is negative or not a number, only zeros, or more weights than the longest period.

    Example:
        >>> quantise({"a": 0.7, "b": 0.2, "c": 0.1})
        (7, 2, 1)
    """
    given: list[tuple[str, object]] = list(weights.items())
    exact: list[Fraction] = []
    for name, weight in given:
        if isinstance(weight, bool) or not isinstance(weight, Real) or not isfinite(weight) or weight < 0:
            raise ValueError(f"Mix weight of {name!r}: expected a number from 0 on, found {weight!r}.")
        # As it is written: 0.1 means a tenth, not the nearest binary fraction.
        exact.append(Fraction(weight) if isinstance(weight, Rational) else Fraction(repr(float(weight))))
    total = sum(exact, Fraction(0))
    positive = sum(one > 0 for one in exact)
    if not total:
        raise ValueError("Mix weights: expected one above 0 at least, found only zeros.")
    if positive > MOST:
        raise ValueError(f"Mix weights: expected at most {MOST} above 0, found {positive}.")
    scale = lcm(*(one.denominator for one in exact))
    whole = [int(one * scale) for one in exact]
    common = gcd(*whole)
    if sum(whole) // common <= MOST:
        return tuple(one // common for one in whole)
    ideal = [one * MOST / total for one in exact]
    counts = [max(int(one), 1) if one else 0 for one in ideal]
    short = MOST - sum(counts)
    by_need = sorted(range(len(counts)), key=lambda k: (counts[k] - ideal[k], k))
    while short > 0:
        for k in [k for k in by_need if exact[k]][:short]:
            counts[k] += 1
            short -= 1
    while short < 0:  # many weights were lifted to one: those that are most above their share give
        most = max((k for k in range(len(counts)) if counts[k] > 1), key=lambda k: (counts[k] - ideal[k], -k))
        counts[most] -= 1
        short += 1
    return tuple(counts)


def lay_out(counts: Sequence[int], /) -> Ints:
    """[P] the part of each slot of one period, by stride scheduling: each part as evenly as it goes.

    The j-th of a part's c slots is due at (j + 1/2) / c of the period; slots are dealt by what is due first.

    Example:
        >>> lay_out([2, 1]).tolist()
        [0, 1, 0]
    """
    each = np.asarray(counts, dtype=np.int64)
    parts = np.repeat(np.arange(len(each)), each)
    number = np.arange(len(parts)) - np.repeat(np.cumsum(each) - each, each)
    # Fractions of whole numbers below 2**18: doubles keep all of them apart, and equal ones equal, on every machine.
    due = (2 * number + 1) / (2 * each[parts])
    return parts[np.argsort(due, kind="stable")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """Samples with the same proportions.

    Attributes:
        begin: The first sample.
        counts: [parts] samples in a period.
        before: [parts] samples of each part before `begin`.
        slots: [P] the part of each slot.
        rank: [P] how many slots before it in the period are the same part's.
    """

    begin: int
    counts: Ints
    before: Ints
    slots: Ints = field(repr=False)
    rank: Ints = field(repr=False)

    @classmethod
    def of(cls, counts: Sequence[int], *, begin: int, before: Ints) -> Stage:
        """Lay out the period of a stage."""
        slots = lay_out(counts)
        rank = np.empty_like(slots)
        by_part = np.argsort(slots, kind="stable")
        each = np.asarray(counts, dtype=np.int64)
        rank[by_part] = np.arange(len(slots)) - np.repeat(np.cumsum(each) - each, each)
        return cls(begin=begin, counts=each, before=before, slots=slots, rank=rank)

    @property
    def period(self) -> int:
        """P, the samples of a period."""
        return len(self.slots)

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """[n] samples of this stage -> the part of each, and its number among the part's samples."""
        periods = (samples - self.begin) // self.period
        slot = samples - self.begin - periods * self.period
        parts: Ints = self.slots[slot]
        numbers: Ints = self.before[parts] + periods * self.counts[parts] + self.rank[slot]
        return parts, numbers

    def taken(self, sample: int) -> Ints:
        """[parts] samples of each part before a sample of this stage (or its end)."""
        periods, slot = divmod(sample - self.begin, self.period)
        partly = np.bincount(self.slots[:slot], minlength=len(self.counts))
        taken: Ints = self.before + periods * self.counts + partly
        return taken

    def places(self, part: int, numbers: Ints) -> Ints:
        """[n] numbers among a part's samples, none before this stage -> the samples, were this the last stage."""
        count = self.counts[part]
        left = numbers - self.before[part]
        periods = left // count
        places: Ints = self.begin + periods * self.period + np.flatnonzero(self.slots == part)[left - periods * count]
        return places


class Schedule:
    """The part of every sample from 0 on, without end.

    Args:
        proportions: In whole numbers.

    Example:
        >>> schedule = Schedule(Proportions.of({"a": 2, "b": 1}))
        >>> parts, numbers = schedule.locate(np.arange(6))
        >>> parts.tolist(), numbers.tolist()
        ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3])
    """

    def __init__(self, proportions: Proportions, /) -> None:
        self.proportions = proportions
        self.stages: list[Stage | Rounds] = []
        before = np.zeros(len(proportions.names), dtype=np.int64)
        for begin, counts in zip(proportions.begins, proportions.counts, strict=True):
            if self.stages:
                before = self.stages[-1].taken(begin)
            self.stages.append(_stage(counts, begin=begin, before=before))
        self._begins = np.array(proportions.begins, dtype=np.int64)

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """[n] samples, counted over all epochs -> the part of each, and its number among the part's samples."""
        if len(self.stages) == 1:
            return self.stages[0].locate(samples)
        parts, numbers = np.empty_like(samples), np.empty_like(samples)
        stage_of = np.searchsorted(self._begins, samples, side="right") - 1
        for stage in np.unique(stage_of).tolist():
            inside = stage_of == stage
            parts[inside], numbers[inside] = self.stages[stage].locate(samples[inside])
        return parts, numbers

    def taken(self, sample: int) -> Ints:
        """[parts] samples of each part before a sample."""
        return self.stages[int(np.searchsorted(self._begins, sample, side="right")) - 1].taken(sample)

    def epoch(self, windows: Sequence[int]) -> int:
        """Samples of an epoch: as asked for, or until every part that keeps a weight has come at least once.

        Args:
            windows: Of each part.

        Raises:
            ValueError: A part with a weight has no window.
        """
        ever = np.max([stage.counts for stage in self.stages], axis=0)
        for name, count, weight in zip(self.proportions.names, windows, ever, strict=True):
            if weight and not count:
                raise ValueError(f"Mix: source {name!r} gives no window, and has a weight. Leave it out.")
        if self.proportions.samples is not None:
            return self.proportions.samples
        lasting = np.flatnonzero(self.stages[-1].counts).tolist()
        return max(int(self.places(part, np.array([windows[part] - 1]))[0]) + 1 for part in lasting)

    def places(self, part: int, numbers: Ints) -> Ints:
        """[n] numbers among a part's samples -> the samples: the inverse of `locate`; each must come some time."""
        begins = np.array([stage.before[part] for stage in self.stages])
        # Stages without the part begin where the next one does: the last of equals is the one that has it.
        stage_of = np.searchsorted(begins, numbers, side="right") - 1
        places = np.empty_like(numbers)
        for number in np.unique(stage_of).tolist():
            inside = stage_of == number
            places[inside] = self.stages[number].places(part, numbers[inside])
        return places


def _stage(counts: Sequence[int], *, begin: int, before: Ints) -> Stage | Rounds:
    """Weights never make long periods; numbers of samples do."""
    if sum(counts) <= MOST:
        return Stage.of(counts, begin=begin, before=before)
    nothing = np.zeros(len(counts), dtype=np.int64)
    return Rounds.of(
        counts,
        begin=begin,
        before=before,
        most=MOST,
        lay_out=lambda each: Stage.of(each.tolist(), begin=0, before=nothing),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """A `Stage` of a long period.

    Attributes:
        begin: The first sample.
        counts: [parts] samples in a period.
        before: [parts] samples of each part before `begin`.
        round: The slots that all rounds have.
        rest: The slots that are dealt out over the rounds.
        begins: [K] first sample of each round in the period.
        rests: [K + 1] how many slots of the rest come before each round.
        had: [K + 1, parts] samples of each part before each round.
    """

    begin: int
    counts: Ints
    before: Ints
    round: Stage = field(repr=False)
    rest: Stage = field(repr=False)
    begins: Ints = field(repr=False)
    rests: Ints = field(repr=False)
    had: Ints = field(repr=False)

    @classmethod
    def of(
        cls, counts: Sequence[int], *, begin: int, before: Ints, most: int, lay_out: Callable[[Ints], Stage]
    ) -> Rounds:
        """Cut a period into rounds of at most about `most` samples.

        Args:
            counts: [parts] samples in a period.
            begin: The first sample.
            before: [parts] samples of each part before it.
            most: Samples of a round.
            lay_out: Makes a stage of counts.
        """
        each = np.asarray(counts, dtype=np.int64)
        number = -(-int(each.sum()) // most)
        of_all, left = lay_out(each // number), lay_out(each % number)
        rounds = np.arange(number + 1)
        rests = rounds * left.period // number
        dealt = np.zeros((left.period + 1, len(each)), np.int64)
        dealt[np.arange(left.period) + 1, left.slots] = 1
        return cls(
            begin=begin,
            counts=each,
            before=before,
            round=of_all,
            rest=left,
            begins=(rounds * of_all.period + rests)[:-1],
            rests=rests,
            had=rounds[:, None] * of_all.counts + dealt.cumsum(axis=0)[rests],
        )

    @property
    def period(self) -> int:
        """N, the samples of a period."""
        return int(self.counts.sum())

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """The part of each sample; see `Stage.locate`."""
        periods = (samples - self.begin) // self.period
        place = samples - self.begin - periods * self.period
        rounds = np.searchsorted(self.begins, place, side="right") - 1
        slot = place - self.begins[rounds]
        parts, numbers = np.empty_like(slot), np.empty_like(slot)
        in_round = slot < self.round.period
        parts[in_round] = self.round.slots[slot[in_round]]
        numbers[in_round] = self.had[rounds[in_round], parts[in_round]] + self.round.rank[slot[in_round]]
        left = self.rests[rounds[~in_round]] + slot[~in_round] - self.round.period
        parts[~in_round] = self.rest.slots[left]
        numbers[~in_round] = (rounds[~in_round] + 1) * self.round.counts[parts[~in_round]] + self.rest.rank[left]
        numbers += self.before[parts] + periods * self.counts[parts]
        return parts, numbers

    def taken(self, sample: int) -> Ints:
        """Samples of each part; see `Stage.taken`."""
        periods, place = divmod(sample - self.begin, self.period)
        number = int(np.searchsorted(self.begins, place, side="right")) - 1
        slot, first = place - int(self.begins[number]), int(self.rests[number])
        slots = [self.round.slots[:slot], self.rest.slots[first : first + max(0, slot - self.round.period)]]
        partly = np.bincount(np.concatenate(slots), minlength=len(self.counts))
        taken: Ints = self.before + periods * self.counts + self.had[number] + partly
        return taken

    def places(self, part: int, numbers: Ints) -> Ints:
        """The samples of a part; see `Stage.places`."""
        periods = (numbers - self.before[part]) // self.counts[part]
        left = numbers - self.before[part] - periods * self.counts[part]
        had = self.had[:, part]
        rounds = np.searchsorted(had, left, side="right") - 1
        within = left - had[rounds]
        places: Ints = self.begin + periods * self.period + self.begins[rounds]
        in_round = within < self.round.counts[part]
        places[in_round] += np.flatnonzero(self.round.slots == part)[within[in_round]]
        before = left[~in_round] - (rounds[~in_round] + 1) * self.round.counts[part]
        slots = np.flatnonzero(self.rest.slots == part)[before]
        places[~in_round] += self.round.period + slots - self.rests[rounds[~in_round]]
        return places

"""What an epoch will be, known before any value is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import in_line
from seqlake.training.needs import size_text
from seqlake.training.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.training.mixtures.samples import Mixture, MixturePart
    from seqlake.training.order import Axis, Shuffle
    from seqlake.training.steps import Steps, Tail
    from seqlake.training.survey import WindowSurvey

_PARTS = 20  # of a mixture, in print
LOOKS = 8  # steps whose mixture is computed to tell the shuffle's quality


def _none() -> tuple[int, int, int]:
    return 0, 0, 0


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch of a loader; prints itself.

    Attributes:
        samples: Windows (or sequences) of an epoch.
        sequences: Rows of the dataset.
        empty: Rows that give no window.
        steps: Steps of an epoch, equal on every rank.
        global_batch: Samples of a step over all ranks.
        local_batch: Samples of a step on this rank.
        tail: The tail rule.
        dropped: Samples of an epoch that no step holds.
        padded: Repetitions that fill the last step.
        clock: The dataset's clock, and the rule that found it.
        columns: One line for each temporal column.
        shards: Shards with windows.
        lanes: Lanes of the order; 0 without shuffling.
        block: Windows that are mixed with each other in a lane.
        visits: Neighbouring windows that stay together.
        resident_shards: About how many shards are in use at any time.
        resident_bytes: Their size in bytes.
        batch_bytes: Bytes of the temporal columns of one batch on this rank; 0 where shapes are not declared.
        distinct: Sequences a global batch is drawn from, on average over some steps.
        distinct_ideal: What a uniform permutation of all windows would give.
        parts: Of a mixture, one line for each source or group.
        videos: One line for each set of training copies that frames come from.
        copies: Looks at some shards for what copies take: the limit, the least that works, and all of them.
    """

    samples: int
    sequences: int
    empty: int
    steps: int
    global_batch: int
    local_batch: int
    tail: Tail
    dropped: int
    padded: int
    clock: str
    columns: tuple[str, ...]
    shards: int
    lanes: int
    block: int
    visits: int
    resident_shards: int
    resident_bytes: int
    batch_bytes: int
    distinct: float
    distinct_ideal: float
    parts: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    copies: Callable[[], tuple[int, int, int]] = field(default=_none, repr=False, compare=False)

    @cached_property
    def _copies(self) -> tuple[int, int, int]:
        return self.copies()

    @property
    def copies_limit(self) -> int:
        """Bytes that copies of shards may take, where some cannot be read in place; else 0."""
        return self._copies[0]

    @property
    def copies_least(self) -> int:
        """The least limit with which this rank's order comes.

        Estimated generously where shards are remote and the limit is above it. Of a mixture in memory, of the dataset
        that needs most.
        """
        return self._copies[1]

    @property
    def copies_total(self) -> int:
        """What the copies of all shards would take: so much is held, or the limit where that is less."""
        return self._copies[2]

    @property
    def shuffle_quality(self) -> float:
        """Distinct sequences of a batch, as a part of what a uniform permutation gives."""
        return self.distinct / self.distinct_ideal if self.distinct_ideal else 1.0

    def __str__(self) -> str:
        visits = f", {self.visits} at a visit" if self.visits > 1 else ""
        shuffle = (
            f"{self.lanes} lanes, blocks of {self.block:,} windows{visits}: {self.distinct:,.0f} sequences a batch, "
            f"{min(1.0, self.shuffle_quality):.0%} of what a uniform permutation mixes"
            if self.lanes
            else "none: source order"
        )
        tail = {
            "drop": f"drop ({self.dropped:,} samples an epoch)",
            "pad": f"pad ({self.padded:,} repetitions, valid=False)",
            "carry": "carry (into the next epoch's first step)",
        }[self.tail]
        lines = [
            f"samples   {self.samples:,} from {self.sequences:,} rows ({self.empty:,} give none)",
            *(f"          {line}" for line in self.parts[:_PARTS]),
            *([f"          and {len(self.parts) - _PARTS:,} more"] if len(self.parts) > _PARTS else []),
            f"steps     {self.steps:,} of {self.global_batch:,} samples ({self.local_batch:,} on this rank)",
            f"tail      {tail}",
            f"clock     {self.clock}",
            *(f"          {line}" for line in self.columns),
            *(f"videos    from training copies: {line}" for line in self.videos),
            f"shuffle   {shuffle}",
            f"in use    about {self.resident_shards:,} of {self.shards:,} shards, {self.resident_bytes / 1e6:,.0f} MB",
            *self._copied(),
            f"a batch   {self.batch_bytes / 1e6:,.2f} MB",
        ]
        return "\n".join(map(in_line, lines))

    def _copied(self) -> list[str]:
        """What copies of shards take, where there are any."""
        if not self.copies_total:
            return []
        held = size_text(min(self.copies_total, self.copies_limit))
        enough = "" if self.copies_least <= self.copies_limit else ": too few"
        least = f"{self.copies_least:,} bytes is the least that this order needs, {self.copies_limit:,} are allowed"
        held = f"up to {held} are held of {size_text(self.copies_total)}"
        return [f"copies    shards cannot be read in place: {held}; {least}{enough}"]


def plan(survey: WindowSurvey, steps: Steps, *, shuffle: Shuffle | None, seed: int) -> EpochPlan:
    """Plan one epoch of a dataset."""
    axis = survey.axis
    windows, samples = axis.shard_windows, len(axis)
    with_windows = int((windows > 0).sum())
    count = steps.count(0)
    in_use = resident(axis, shuffle)
    total = sum(shard.nbytes for shard in survey.shards)
    distinct, ideal = _mixture(survey, steps, shuffle=shuffle, seed=seed)
    return EpochPlan(
        samples=samples,
        sequences=survey.rows,
        empty=survey.rows - int(np.count_nonzero(axis.row_windows)),
        steps=count,
        global_batch=steps.global_batch,
        local_batch=steps.local_batch,
        tail=steps.tail,
        dropped=steps.dropped(),
        padded=count * steps.global_batch - samples if steps.tail == "pad" else 0,
        clock=str(survey.clock),
        columns=survey.describe(),
        shards=with_windows,
        lanes=0 if shuffle is None else shuffle.lanes,
        block=0 if shuffle is None else shuffle.block,
        visits=1 if shuffle is None else shuffle.visits,
        resident_shards=in_use,
        resident_bytes=total * in_use // max(1, with_windows),
        batch_bytes=steps.local_batch * survey.sample_bytes,
        distinct=distinct,
        distinct_ideal=ideal,
    )


def resident(axis: Axis, shuffle: Shuffle | None) -> int:
    """About how many shards of an axis are in use at any time."""
    shards, samples = int((axis.shard_windows > 0).sum()), len(axis)
    if shuffle is None or not shards:
        return min(2, shards)
    span = -(-2 * shuffle.block * shards // max(1, samples)) + 1
    return shards if shuffle.block >= samples else min(shards, shuffle.lanes * span)


def _mixture(survey: WindowSurvey, steps: Steps, *, shuffle: Shuffle | None, seed: int) -> tuple[float, float]:
    """Distinct sequences of a global batch: as the order gives them, and as a uniform permutation would."""
    axis = survey.axis
    size = min(steps.global_batch, len(axis))
    if not size:
        return 0.0, 0.0
    order = Order(shard_windows=axis.shard_windows, shuffle=shuffle, seed=seed, epoch=0)
    starts = np.unique(np.linspace(0, len(axis) - size, LOOKS).astype(np.int64))
    distinct = [len(np.unique(axis.locate(order.windows(start + np.arange(size)))[0])) for start in starts]
    windows, rows = axis.spread()
    share = np.minimum(windows / len(axis), 1 - 1e-12)
    ideal = float(-(rows * np.expm1(size * np.log1p(-share))).sum())
    return float(np.mean(distinct)), min(ideal, float(size))


def plan_mixture(mixture: Mixture, surveys: Sequence[WindowSurvey], steps: Steps, /) -> EpochPlan:
    """Plan one epoch of a mixture; its numbers are those of all its datasets together.

    Args:
        mixture: Of sources or groups.
        surveys: Of each dataset.
        steps: Of an epoch.
    """
    count = steps.count(0)
    shards = [int((survey.axis.shard_windows > 0).sum()) for survey in surveys]
    in_use, in_use_bytes = 0, 0
    for number, survey in enumerate(surveys):
        shards_in_use = sum(resident(part.axis, part.shuffle) for part in mixture.parts if part.member == number)
        shards_in_use = min(shards_in_use, shards[number])
        in_use += shards_in_use
        in_use_bytes += sum(shard.nbytes for shard in survey.shards) * shards_in_use // max(1, shards[number])
    shuffles = [part.shuffle for part in mixture.parts if part.shuffle is not None]
    distinct, ideal = _mixed(mixture, steps)
    clocks = dict.fromkeys(str(survey.clock) for survey in surveys)
    return EpochPlan(
        samples=len(mixture),
        sequences=sum(survey.rows for survey in surveys),
        empty=sum(survey.rows - int(np.count_nonzero(survey.axis.row_windows)) for survey in surveys),
        steps=count,
        global_batch=steps.global_batch,
        local_batch=steps.local_batch,
        tail=steps.tail,
        dropped=steps.dropped(),
        padded=count * steps.global_batch - len(mixture) if steps.tail == "pad" else 0,
        clock="; ".join(clocks),
        columns=tuple(dict.fromkeys(line for survey in surveys for line in survey.describe())),
        shards=sum(shards),
        lanes=max((shuffle.lanes for shuffle in shuffles), default=0),
        block=max((shuffle.block for shuffle in shuffles), default=0),
        visits=max((shuffle.visits for shuffle in shuffles), default=1),
        resident_shards=in_use,
        resident_bytes=in_use_bytes,
        batch_bytes=steps.local_batch * max(survey.sample_bytes for survey in surveys),
        distinct=distinct,
        distinct_ideal=ideal,
        parts=tuple(_line(mixture, number, part) for number, part in enumerate(mixture.parts)),
    )


def _line(mixture: Mixture, number: int, part: MixturePart) -> str:
    """`own: 7 of 10 samples; 1,234 windows, 1.5 times an epoch`, with the shares of later stages."""
    shares = [f"{stage.counts[number]:,} of {stage.period:,}" for stage in mixture.schedule.stages]
    begins = mixture.schedule.proportions.begins[1:]
    later = "".join(f", from {begin:,} on {share}" for begin, share in zip(begins, shares[1:], strict=True))
    times = int(mixture.schedule.taken(len(mixture))[number]) / max(1, len(part.axis))
    return f"{part.name}: {shares[0]} samples{later}; {len(part.axis):,} windows, {times:.2f} times in epoch 0"


def _mixed(mixture: Mixture, steps: Steps) -> tuple[float, float]:
    """Distinct sequences of a global batch: as the orders give them, and as uniform permutations would."""
    size = min(steps.global_batch, len(mixture))
    starts = np.unique(np.linspace(0, len(mixture) - size, LOOKS).astype(np.int64)).tolist()
    shares = [part.axis.row_windows / max(1, len(part.axis)) for part in mixture.parts]
    shares = [np.log1p(-np.minimum(share, 1 - 1e-12)) for share in shares]
    distinct, ideal = [], []
    for start in starts:
        distinct.append(len(np.unique(mixture.locate(start + np.arange(size))[1])))
        drawn = mixture.schedule.taken(start + size) - mixture.schedule.taken(start)
        ideal.append(
            sum(float(-np.expm1(n * part_share).sum()) for n, part_share in zip(drawn.tolist(), shares, strict=True))
        )
    return float(np.mean(distinct)), min(float(np.mean(ideal)), float(size))

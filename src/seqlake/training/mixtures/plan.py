"""What an epoch of a mixture will be, known before any value is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.plan import LOOKS, Plan, resident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.training.mixtures.samples import Mixture, Part
    from seqlake.training.steps import Steps
    from seqlake.training.survey import Survey


def plan_mixture(mixture: Mixture, surveys: Sequence[Survey], steps: Steps, /) -> Plan:
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
        own = sum(resident(part.axis, part.shuffle) for part in mixture.parts if part.member == number)
        own = min(own, shards[number])
        in_use += own
        in_use_bytes += sum(shard.nbytes for shard in survey.shards) * own // max(1, shards[number])
    shuffles = [part.shuffle for part in mixture.parts if part.shuffle is not None]
    distinct, ideal = _mixed(mixture, steps)
    clocks = dict.fromkeys(str(survey.clock) for survey in surveys)
    return Plan(
        samples=len(mixture),
        sequences=sum(survey.rows for survey in surveys),
        empty=sum(int((np.diff(survey.axis.row_ends, prepend=0) == 0).sum()) for survey in surveys),
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


def _line(mixture: Mixture, number: int, part: Part) -> str:
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
    shares = [np.diff(part.axis.row_ends, prepend=0) / max(1, len(part.axis)) for part in mixture.parts]
    shares = [np.log1p(-np.minimum(share, 1 - 1e-12)) for share in shares]
    found, ideal = [], []
    for start in starts:
        found.append(len(np.unique(mixture.locate(start + np.arange(size))[1])))
        drawn = mixture.schedule.taken(start + size) - mixture.schedule.taken(start)
        ideal.append(sum(float(-np.expm1(n * own).sum()) for n, own in zip(drawn.tolist(), shares, strict=True)))
    return float(np.mean(found)), min(float(np.mean(ideal)), float(size))

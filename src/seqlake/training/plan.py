"""What an epoch will be, known before any value is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import in_line
from seqlake.training.order import Order

if TYPE_CHECKING:
    from seqlake.training.order import Axis, Shuffle
    from seqlake.training.steps import Steps, Tail
    from seqlake.training.survey import Survey

_PARTS = 20  # of a mixture, in print
LOOKS = 8  # steps whose mixture is computed to tell the shuffle's quality


@dataclass(frozen=True, kw_only=True)
class Plan:
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
            f"shuffle   {shuffle}",
            f"in use    about {self.resident_shards:,} of {self.shards:,} shards, {self.resident_bytes / 1e6:,.0f} MB",
            f"a batch   {self.batch_bytes / 1e6:,.2f} MB",
        ]
        return "\n".join(map(in_line, lines))


def plan(survey: Survey, steps: Steps, *, shuffle: Shuffle | None, seed: int) -> Plan:
    """Plan one epoch."""
    axis = survey.axis
    windows, samples = axis.shard_windows, len(axis)
    with_windows = int((windows > 0).sum())
    per_row = np.diff(axis.row_ends, prepend=0)
    count = steps.count(0)
    in_use = resident(axis, shuffle)
    total = sum(shard.nbytes for shard in survey.shards)
    distinct, ideal = _mixture(survey, steps, shuffle=shuffle, seed=seed)
    return Plan(
        samples=samples,
        sequences=survey.rows,
        empty=int((per_row == 0).sum()),
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


def _mixture(survey: Survey, steps: Steps, *, shuffle: Shuffle | None, seed: int) -> tuple[float, float]:
    """Distinct sequences of a global batch: as the order gives them, and as a uniform permutation would."""
    axis = survey.axis
    size = min(steps.global_batch, len(axis))
    if not size:
        return 0.0, 0.0
    order = Order(shard_windows=axis.shard_windows, shuffle=shuffle, seed=seed, epoch=0)
    starts = np.unique(np.linspace(0, len(axis) - size, LOOKS).astype(np.int64))
    found = [len(np.unique(axis.locate(order.windows(start + np.arange(size)))[0])) for start in starts]
    share = np.diff(axis.row_ends, prepend=0) / len(axis)
    ideal = float(-np.expm1(size * np.log1p(-np.minimum(share, 1 - 1e-12))).sum())
    return float(np.mean(found)), min(ideal, float(size))

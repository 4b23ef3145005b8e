"""Brings topics of different rates to one clock: at each step the sample held, the nearest one, or one in between."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqlake.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

Gaps = Literal["drop", "nan", "error"]
TIMES = "timestamp"
_SECOND = 1_000_000_000
_MOST_STEPS = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The clock of a scan.

    Attributes:
        topic: The topic whose messages are the steps; empty: a constant rate.
        rate: Steps per second, where there is no topic.
        most: Nanoseconds that a sample may be away from its step; None: any.
        gaps: What becomes of steps without a sample.
    """

    topic: str = ""
    rate: Fraction | None = None
    most: int | None = None
    gaps: Gaps = "drop"

    def steps(self, times: Ints | None, tracks: Sequence[Ints], /) -> Ints:
        """[T] the nanoseconds of each step.

        Args:
            times: Of the messages of `topic`.
            tracks: The times of everything that is brought to this clock.
        """
        if times is not None:
            return np.unique(times)
        held = [one for one in tracks if len(one)]
        if not held or self.rate is None:
            return np.empty(0, np.int64)
        first, last = min(int(one[0]) for one in held), max(int(one[-1]) for one in held)
        count = int(Fraction(last - first, _SECOND) * self.rate) + 1
        if count > _MOST_STEPS:
            raise ValidationError(f"From {first} to {last} nanoseconds are {count:,} steps at {self.rate} a second.")
        # Whole arithmetic: 1e9 / 30 is no whole number, and a sum of rounded ones drifts. Whole rounds of the rate go
        # first, so that nothing is beyond 64 bits.
        rate = self.rate
        seconds, rest = np.divmod(np.arange(count, dtype=np.int64), rate.numerator)
        each = _SECOND * rate.denominator
        if rate.numerator * each < 1 << 62:
            return np.asarray(first + seconds * each + rest * each // rate.numerator, np.int64)
        return np.array([first + k * each // rate.numerator for k in range(count)], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picked:
    """Which samples stand at each step.

    Attributes:
        before: [T] the sample at each step; with `weight` the one before it.
        after: [T] the one after it.
        weight: [T] how much of `after`; None where samples are taken as they are.
        valid: [T] whether there is one.
    """

    before: Ints
    after: Ints
    weight: NDArray[np.float64] | None
    valid: NDArray[np.bool_]


def pick(times: Ints, steps: Ints, how: str, most: int | None, /) -> Picked:
    """The samples of a column at each step.

    Args:
        times: [N] of its samples, ascending.
        steps: [T] of the clock.
        how: `hold`: the latest at or before a step; `nearest`: the one closest in time, of two the earlier one;
            `linear`: between the two around it.
        most: Nanoseconds that a sample may be away; with `linear`, that the two may be apart.
    """
    if not len(times):
        none = np.zeros(len(steps), np.int64)
        return Picked(before=none, after=none, weight=None, valid=np.zeros(len(steps), np.bool_))
    left = np.searchsorted(times, steps, "right") - 1
    before, after = np.clip(left, 0, None), np.clip(left + 1, None, len(times) - 1)
    exact = (left >= 0) & (times[before] == steps)
    if how == "linear":
        apart = times[after] - times[before]
        valid = exact | ((left >= 0) & (left + 1 < len(times)) & ((apart <= most) if most is not None else True))
        weight = np.where(exact | (apart == 0), 0.0, (steps - times[before]) / np.maximum(apart, 1))
        return Picked(before=before, after=after, weight=weight, valid=valid)
    if how == "nearest":
        closer = (left < 0) | (np.abs(times[after] - steps) < np.abs(steps - times[before]))
        before = np.where(closer, after, before)
        valid = np.ones(len(steps), np.bool_)
    else:
        valid = left >= 0
    if most is not None:
        valid &= np.abs(times[before] - steps) <= most
    return Picked(before=before, after=before, weight=None, valid=valid)


def kept(valid: Sequence[NDArray[np.bool_]], gaps: Gaps, count: int, /) -> slice:
    """The steps that stay: those between the first and the last at which every column has a sample."""
    if gaps != "drop" or not valid:
        return slice(0, count)
    whole = np.flatnonzero(np.logical_and.reduce(valid))
    return slice(int(whole[0]), int(whole[-1]) + 1) if len(whole) else slice(0, 0)


def between(values: NDArray[Any], picked: Picked, /) -> NDArray[Any]:
    """[T, ...] the values at each step, in their own type; NaN where there is none and the type has it."""
    taken: NDArray[Any] = values[picked.before]
    if picked.weight is not None:
        weight = picked.weight.reshape(-1, *[1] * (values.ndim - 1))
        low, high = taken.astype(np.float64), values[picked.after].astype(np.float64)
        taken = np.where(weight == 0, low, low + (high - low) * weight).astype(values.dtype)
    if not picked.valid.all() and values.dtype.kind == "f":
        taken = taken.copy()
        taken[~picked.valid] = np.nan
    return taken

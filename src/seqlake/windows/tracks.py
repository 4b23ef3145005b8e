"""Which sample of a column stands at a clock step: whole-number arithmetic over many anchors at once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from seqlake.windows.spec import Seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.stamps import Origin

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One column's samples around an anchor.

    The j-th sample asked for lies `offsets[j] / denominator` clock steps from the anchor. A column at another
    rate gives its latest sample at or before that moment: `floor(step * ratio)`, never by float arithmetic.

    Attributes:
        column: The column's name.
        offsets: Numerators of the offsets, in clock steps.
        denominator: Common denominator of the offsets.
        ratio: Samples of the column per clock step; 1 for a column at the clock's rate.
        timestamps: The column that says when each sample was taken, where the rate is not constant.
        origin: What the time stamps count from; see `spec.stamps.origin_of`.
        clock: Clock steps per second; known wherever `timestamps` is set.
    """

    column: str
    offsets: tuple[int, ...]
    denominator: int = 1
    ratio: Fraction = Fraction(1)
    timestamps: str | None = None
    origin: Origin = ()
    clock: Fraction | None = None

    @classmethod
    def of(
        cls,
        column: str,
        offsets: Sequence[int] | Seconds,
        *,
        ratio: Fraction = Fraction(1),
        timestamps: str | None = None,
        origin: Origin = (),
        clock: Fraction | None = None,
    ) -> Track:
        """A track from offsets as a `Window` holds them.

        Raises:
            ValueError: Offsets in seconds or timestamps without a clock.
        """
        if clock is None and (isinstance(offsets, Seconds) or timestamps):
            raise ValueError(
                f"Column {column!r} is asked for in seconds, but the dataset has no clock. Declare fps on a column, "
                "or give Window(..., clock=steps_per_second)."
            )
        if isinstance(offsets, Seconds):
            assert clock is not None
            steps = [time * clock for time in offsets.times()]
        else:
            steps = [Fraction(step) for step in offsets]
        denominator = lcm(*(step.denominator for step in steps))
        numerators = tuple(int(step * denominator) for step in steps)
        if ratio == 1 and timestamps is None:  # the sample at or before a moment between two steps
            numerators, denominator = tuple(n // denominator for n in numerators), 1
        return cls(
            column=column,
            offsets=numerators,
            denominator=denominator,
            ratio=ratio,
            timestamps=timestamps,
            origin=origin,
            clock=clock,
        )

    @property
    def width(self) -> int:
        """W, the number of samples a window holds of this column."""
        return len(self.offsets)

    @property
    def first(self) -> int | None:
        """The first offset where the samples are consecutive at every anchor; None where they are not."""
        if self.ratio != 1 or self.timestamps is not None:
            return None
        start = self.offsets[0]
        return start if self.offsets == tuple(range(start, start + self.width)) else None

    def moments(self, anchors: Ints) -> Ints:
        """[n] anchors -> [n, W] when each sample is asked for, in clock steps times `denominator`."""
        return anchors[:, None] * self.denominator + np.asarray(self.offsets, dtype=np.int64)

    def samples(self, anchors: Ints) -> Ints:
        """[n] anchors -> [n, W] sample numbers, as if the column went on for ever in both directions."""
        moments = self.moments(anchors)
        if self.ratio == 1 and self.denominator == 1:
            return moments
        numbers: Ints = moments * self.ratio.numerator // (self.denominator * self.ratio.denominator)
        return numbers

    def nanoseconds(self, anchors: Ints) -> Ints:
        """[n] anchors -> [n, W] times in whole nanoseconds after the sequence's start.

        Rounded up, so that a time stamp that was itself rounded to the next nanosecond is found.
        """
        assert self.clock is not None
        # In two parts, because moments * nanoseconds may not fit in 64 bits.
        second = self.denominator * self.clock.numerator
        whole, rest = np.divmod(self.moments(anchors) * self.clock.denominator, second)
        times: Ints = whole * NANOSECONDS - (-rest * NANOSECONDS // second)
        return times

    def exists(self, anchors: Ints, samples: Ints, *, steps: Ints, counts: Ints) -> NDArray[np.bool_]:
        """[n, W]: the moment lies within the sequence's N clock steps, and the column has that sample.

        Args:
            anchors: [n] clock steps.
            samples: [n, W] as `samples(anchors)` gives them, or as time stamps say.
            steps: [n] N, clock steps of each sequence.
            counts: [n] T, samples of this column in each sequence; a null cell (-1) has none.
        """
        moments = self.moments(anchors)
        inside = (moments >= 0) & (moments < steps[:, None] * self.denominator)
        return inside & (samples >= 0) & (samples < counts[:, None])

    def available(self, *, steps: Ints, counts: Ints) -> Ints:
        """[n] samples of the column that lie within the sequence's N clock steps."""
        if self.timestamps is not None:
            return counts
        ends = -(-steps * self.ratio.numerator // self.ratio.denominator)
        return np.minimum(counts, ends)

    def begins(self, late: int) -> int:
        """The first moment, in 1/denominator clock steps, that is so many nanoseconds after the sequence's start."""
        assert self.clock is not None
        # As `nanoseconds` rounds: the least moment of which more than late - 1 have passed.
        return max(
            0, (late - 1) * self.denominator * self.clock.numerator // (NANOSECONDS * self.clock.denominator) + 1
        )

    def bounds(
        self, *, steps: Ints, counts: Ints, ends: Ints | None = None, begins: Ints | None = None
    ) -> tuple[int | Ints, Ints]:
        """The first anchor, and for each sequence the last, at which every sample of this track exists.

        Args:
            steps: [rows] N of each sequence.
            counts: [rows] T of this column; -1 null.
            ends: [rows] how many moments have a sample, in 1/denominator clock steps, where its rate does not say it.
            begins: [rows] the first moment that has one, in 1/denominator clock steps, where time stamps say it.

        Returns:
            (first, [rows] last); the first is [rows], too, where sequences begin differently.
        """
        low, high = min(self.offsets), max(self.offsets)
        earliest: int | Ints = max(0, -(low // self.denominator))
        if begins is not None:
            earliest = np.maximum(earliest, -((low - begins) // self.denominator))
        last = (steps * self.denominator - 1 - high) // self.denominator
        if self.timestamps is None:
            if ends is None:
                # floor(moment * ratio) < T is moment < T / ratio, counted in 1 / denominator steps.
                scale = self.denominator * self.ratio.denominator
                ends = -(-np.maximum(counts, 0) * scale // self.ratio.numerator)
            last = np.minimum(last, (ends - 1 - high) // self.denominator)
        return earliest, np.where(counts > 0, last, -1)

"""Which frame stands at each moment of a window: by count at the clock's rate, by presentation time at another."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.spec.alignment import rounding
from seqlake.windows.edges import nearest
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column
    from seqlake.windows.tracks import Track


def framed(column: Column, /) -> bool:
    """Whether a window may take frames of this column: a video, or encoded images step by step."""
    if column.category == "frames":
        return True
    return column.category == "file" and column.type is not None and column.type.type == "video"


def by_time(track: Track, column: Column, /) -> bool:
    """Whether its frames are found by the file's own times: a video at another rate than the clock's."""
    return column.category == "file" and track.timestamps is None and track.ratio != 1


class Timed(Protocol):
    """What says when frames are shown: a decoder, or a view of one."""

    def __len__(self) -> int: ...

    @property
    def pts(self) -> Ints:
        """[frames] ticks, ascending."""

    @property
    def time_base(self) -> Fraction:
        """Seconds of a tick."""

    @property
    def present(self) -> NDArray[np.bool_] | None:
        """[frames] False where a step has no image; None where all have."""


class Decoded(Timed, Protocol):
    """Frames that can be had: `media.Frames`, or `Blank`."""

    def decode(self, indices: Ints, /) -> NDArray[Any]:
        """[N, height, width, channels]."""


class Blank:
    """The frames of a row that has none, of the shape that another row's have."""

    def __init__(self, like: Decoded | None, /) -> None:
        self._like = like

    def __len__(self) -> int:
        return 0

    @property
    def pts(self) -> Ints:
        """Nothing."""
        return np.zeros(0, np.int64)

    @property
    def time_base(self) -> Fraction:
        """Any."""
        return Fraction(1)

    @property
    def present(self) -> None:
        """All are, of none."""

    def decode(self, indices: Ints, /) -> NDArray[Any]:
        """[0, height, width, channels]."""
        return np.zeros((0, 0, 0, 3), np.uint8) if self._like is None else self._like.decode(indices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """The frames of one row.

    Attributes:
        count: How many.
        ticks: [count] when each is shown, in the file's ticks after the first; None where count alone decides.
        tick: Clock steps of one tick.
        slack: How much before its tick a frame counts as shown, in ticks; see `spec.alignment.rounding`.
        end: The tick from which the last one is not shown any more.
        present: [count] False where a step has no image; None where all have.
    """

    count: int
    ticks: Ints | None = None
    tick: Fraction | None = None
    slack: Fraction = Fraction(0)
    end: Fraction = Fraction(0)
    present: NDArray[np.bool_] | None = None

    @classmethod
    def timed(cls, pts: Ints, time_base: Fraction, track: Track, /) -> Shown:
        """Of a video whose times decide.

        Args:
            pts: [frames] of this row, ascending; the first is the row's zero.
            time_base: Seconds of a tick.
            track: Its column on the clock.
        """
        assert track.clock is not None
        tick = time_base * track.clock
        last = int(pts[-1] - pts[0]) if len(pts) else 0
        lasts = 1 / (track.ratio * tick)  # a frame, in ticks, by the declared rate
        end = last + lasts if len(pts) else Fraction(0)
        return cls(count=len(pts), ticks=pts - pts[:1], tick=tick, slack=rounding(time_base), end=end)

    def there(self, numbers: Ints) -> NDArray[np.bool_]:
        """Which of these frames exist."""
        inside: NDArray[np.bool_] = (numbers >= 0) & (numbers < self.count)
        if self.present is not None and self.count:
            inside &= self.present[np.clip(numbers, 0, self.count - 1)]
        return inside

    def times(self, moments: Ints, denominator: int) -> Ints:
        """Moments in clock steps times `denominator`, as ticks: the last that is not later, but for `slack`."""
        assert self.tick is not None
        ticks = 1 / (self.tick * denominator)
        whole = ticks.denominator * self.slack.denominator
        more = self.slack.numerator * ticks.denominator
        times: Ints = (moments * (ticks.numerator * self.slack.denominator) + more) // whole
        return times

    def moments(self, denominator: int) -> int:
        """How many moments, in 1/denominator clock steps from the start, have a frame; only where times decide."""
        assert self.tick is not None
        scaled = (self.end - self.slack) * self.tick * denominator
        return -(-scaled.numerator // scaled.denominator) if self.count else 0


def shown_of(track: Track, column: Column, frames: Timed, /) -> Shown:
    """What must be known of a row's frames to find them."""
    if by_time(track, column):
        return Shown.timed(frames.pts, frames.time_base, track)
    return Shown(count=len(frames), present=frames.present)


def find(
    track: Track, anchors: Ints, *, steps: Ints, shown: Shown, cell_of: Callable[[str], Any] | None = None
) -> tuple[Ints, NDArray[np.bool_]]:
    """The frames of one row's windows.

    Args:
        track: The column on the clock.
        anchors: [n] clock steps.
        steps: [n] N, clock steps of the row.
        shown: Its frames.
        cell_of: Gives the row's cell of a column, for time stamps and what they count from.

    Returns:
        [n, W] frame numbers, moved to the nearest that exists (0 where there is none), and [n, W] True where the
        moment lies within the sequence and has a frame.
    """
    counts = np.full(len(anchors), shown.count, dtype=np.int64)
    if track.timestamps is not None and cell_of is not None:
        numbers = samples_at(track, anchors, cell_of)
        available = counts
    elif shown.ticks is None:
        numbers = track.samples(anchors)
        available = track.available(steps=steps, counts=counts)
    else:
        times = shown.times(track.moments(anchors), track.denominator)
        numbers = np.searchsorted(shown.ticks, times, side="right") - 1
        available = np.searchsorted(shown.ticks, shown.times(steps, 1), side="left")
    mask = track.exists(anchors, numbers, steps=steps, counts=counts)
    if shown.ticks is not None:
        mask &= track.moments(anchors) < shown.moments(track.denominator)
    numbers = np.where(mask, numbers, nearest(numbers, available))
    if shown.present is not None:
        mask &= shown.there(numbers)
    return numbers, mask


def steps_shown(track: Track, shown: Shown, /) -> int:
    """N as this column counts it: clock steps that have a frame."""
    if shown.ticks is not None:
        return shown.moments(1)
    return shown.count * track.ratio.denominator // track.ratio.numerator

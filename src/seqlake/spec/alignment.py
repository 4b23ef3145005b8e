"""The clock: which sample of which column belongs to which time step; exact, never by float arithmetic.

Specification: "Synchronization". Frame i of a video corresponds to index i of a signal, and cameras of other rates
declare theirs; nothing there says the signal's own rate. The rule, in this order: the signal's own `fps`; the fps of
the video whose counted frames equal T; `length / duration_seconds`; the highest declared fps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from seqlake.spec.schema import Column, Schema

LOOKED_AT = 16
"""How many rows are looked at where the schema alone does not say the rate."""

_BROADCAST = tuple(Fraction(whole * 1000, 1001) for whole in (24, 30, 48, 60, 120))
_LARGEST_DENOMINATOR = 1001  # of the broadcast rates
_ROUNDING = Fraction(1, 1000)  # seconds
_RATIO = re.compile(r"\d{1,18}(/\d{1,18})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The one rate of a dataset, in steps per second.

    Attributes:
        rate: Steps per second; None where nothing says it.
        rule: How it was found, in words.
    """

    rate: Fraction | None
    rule: str

    def __str__(self) -> str:
        return self.rule if self.rate is None else f"{float(self.rate):g} steps per second ({self.rule})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one row shows of its length."""

    steps: Mapping[str, int] = field(default_factory=dict)
    """T of each temporal column."""

    frames: Mapping[str, int] = field(default_factory=dict)
    """Counted frames of each video."""

    length: int | None = None
    duration_seconds: float | None = None


def exact(rate: float | Fraction, /) -> Fraction:
    """A declared rate as a fraction: 29.97 is 30000/1001. A fraction is taken at its word.

    Raises:
        ValueError: Not a positive, finite number.

    Example:
        >>> exact(29.97), exact(30)
        (Fraction(30000, 1001), Fraction(30, 1))
    """
    if isinstance(rate, (bool, str)) or not _is_positive(rate):
        raise ValueError(f"A rate must be a positive number of steps per second, found {rate!r}.")
    if isinstance(rate, Fraction):
        return rate
    # People write broadcast rates with two or three decimals.
    return _simplest(Fraction(rate), tolerance=Fraction(1, 200))


def _is_positive(rate: Any) -> bool:
    try:
        return bool(0 < rate < float("inf"))
    except (TypeError, ValueError):  # nothing that compares with a number
        return False


def ratio(text: str, /) -> Fraction:
    """A ratio as `str` writes it, out of a file that anybody may have written.

    Unlike `Fraction(text)`, which computes the power of ten that a short text may name, and takes hours.

    Raises:
        ValueError: It is another text.

    Example:
        >>> ratio("30000/1001")
        Fraction(30000, 1001)
    """
    if not (isinstance(text, str) and _RATIO.fullmatch(text)):
        raise ValueError(f"expected a ratio as 30000/1001, found {text!r:.80}")
    return Fraction(text)


def _simplest(rate: Fraction, *, tolerance: Fraction) -> Fraction:
    for broadcast in _BROADCAST:
        if abs(rate - broadcast) < tolerance:
            return broadcast
    if rate < 1:  # a slow rate is told by its period
        return 1 / (1 / rate).limit_denominator(_LARGEST_DENOMINATOR)
    return rate.limit_denominator(_LARGEST_DENOMINATOR)


def even_rate(ticks: NDArray[np.int64], tick: Fraction, /) -> Fraction | None:
    """The constant rate that the times of frames show, as people would write it; None where they are uneven.

    Args:
        ticks: [frames] when each is shown, ascending.
        tick: Seconds of one.

    Example:
        >>> import numpy as np
        >>> even_rate(np.array([0, 33, 67, 100]), Fraction(1, 1000)), even_rate(np.array([0, 1, 5]), Fraction(1, 30))
        (Fraction(30, 1), None)
    """
    frames = len(ticks) - 1
    if frames < 1 or int(ticks[-1]) <= int(ticks[0]):
        return None
    mean = Fraction(int(ticks[-1]) - int(ticks[0]), frames)
    off = max(abs(int(one) - int(ticks[0]) - number * mean) for number, one in enumerate(ticks))
    if off > 1:  # each time is rounded to a tick
        return None
    loose = Fraction(1, frames)
    low, high = 1 / ((mean + loose) * tick), 1 / (max(mean - loose, mean / 2) * tick)
    measured = 1 / (mean * tick)
    written = [Fraction(round(measured)), *_BROADCAST, measured.limit_denominator(100)]
    return next((rate for rate in written if rate > 0 and low <= rate <= high), measured)


def own_rate(column: Column, /) -> Fraction | None:
    """The constant rate that a column declares: `fps`, or `sample_rate` of audio; None where it declares none.

    A column that names a `timestamps` column has no constant rate.
    """
    declared = None if column.type is None else column.type.rate
    return None if declared is None else exact(declared)


def clock_of(schema: Schema, /, *, observed: Sequence[Observed] = (), given: float | Fraction | None = None) -> Clock:
    """The clock of a dataset.

    Args:
        schema: Its columns, with the rates they declare.
        observed: What up to `LOOKED_AT` rows show; without them, the rules that need them are skipped.
        given: A rate that the caller insists on.

    Example:
        >>> from seqlake.spec.column_types import Trajectory
        >>> from seqlake.spec.schema import Schema
        >>> print(clock_of(Schema({"action": Trajectory(dim=7, fps=20)})))
        20 steps per second (fps of column 'action')
    """
    if given is not None:
        return Clock(rate=exact(given), rule="given")
    columns = list(schema.values())
    rates = {column.name: rate for column in columns if (rate := own_rate(column)) is not None}
    for column in columns:
        if column.name in rates and column.category in {"temporal", "frames"}:
            return Clock(rate=rates[column.name], rule=f"fps of column {column.name!r}")
    clock = (_by_counted_frames(schema, observed, rates) if rates else None) or _by_duration(observed)
    if clock is not None:
        return clock
    audio = {column.name for column in columns if column.type is not None and column.type.type == "audio"}
    declared = {name: rate for name, rate in rates.items() if name not in audio}
    if not declared:
        return Clock(rate=None, rule="no rate is declared and no row shows one")
    fastest = max(declared, key=lambda name: declared[name])
    return Clock(rate=declared[fastest], rule=f"the highest declared fps, of column {fastest!r}")


def _by_counted_frames(schema: Schema, observed: Sequence[Observed], rates: Mapping[str, Fraction]) -> Clock | None:
    # Signals with times of their own have a T of their own.
    signals = [n for n, column in schema.items() if column.category == "temporal" and on_clock(schema, n, None)]
    for name, rate in rates.items():
        pairs = [(row.frames[name], {row.steps.get(n, 0) for n in signals}) for row in observed if name in row.frames]
        pictured = [(frames, steps) for frames, steps in pairs if max(steps, default=0) > 0][:LOOKED_AT]
        if pictured and all(frames in steps for frames, steps in pictured):
            return Clock(rate=rate, rule=f"fps of video {name!r}, whose frames are as many as the steps")
    return None


def on_clock(schema: Schema, name: str, rate: Fraction | None, /) -> bool:
    """Whether the steps of a column are the clock's.

    It names no times, is not itself the times of another column, and has no rate of its own, or this one. The points
    of a cloud are no steps.

    Args:
        schema: All columns.
        name: One of them.
        rate: The clock's rate; None where nothing says it.
    """
    column = schema[name]
    if name in schema.stamp_columns or column.timeless or column.timestamps is not None:
        return False
    declared = own_rate(column)
    return declared is None or rate is None or declared == rate


def _by_duration(observed: Sequence[Observed]) -> Clock | None:
    for row in observed:
        length, seconds = row.length, row.duration_seconds
        if length is not None and length > 0 and seconds is not None and 0 < seconds < float("inf"):
            measured = Fraction(length) / Fraction(seconds)
            # A duration of 32 bits is exact to about 1e-7, too little to tell 30000/1001 from its neighbours.
            rate = _simplest(measured, tolerance=measured / 1_000_000)
            return Clock(rate=rate, rule="length / duration_seconds of the first row that has both")
    return None


def sample_at(step: int, /, *, clock: Fraction, rate: Fraction) -> int:
    """The latest sample at or before a step of the clock, of a column with its own constant rate.

    Args:
        step: A step of the clock; may be negative.
        clock: Steps per second.
        rate: Samples per second of the column.

    Example:
        >>> [sample_at(k, clock=Fraction(30), rate=Fraction(15)) for k in range(5)]
        [0, 0, 1, 1, 2]
    """
    ratio = rate / clock
    return step * ratio.numerator // ratio.denominator


def samples_of(step: int, /, *, clock: Fraction, rate: Fraction) -> range:
    """The samples within [step, step + 1): what audio gives for one step.

    Example:
        >>> samples_of(1, clock=Fraction(30), rate=Fraction(48_000))
        range(1600, 3200)
    """
    ratio = rate / clock
    first = -(-step * ratio.numerator // ratio.denominator)
    return range(first, -(-(step + 1) * ratio.numerator // ratio.denominator))


def rounding(time_base: Fraction, /) -> Fraction:
    """How much before its time, in ticks, a frame counts as shown.

    Files hold times in whole ticks: a frame of 66.67 ms stands at 67 in a container that counts milliseconds. So times
    are compared to within half a tick. Where a tick is as long as a frame it is exact, and a thousandth of a second is
    enough.

    Args:
        time_base: Seconds of a tick.

    Example:
        >>> rounding(Fraction(1, 1000)), rounding(Fraction(1, 25))
        (Fraction(1, 2), Fraction(1, 40))
    """
    return min(Fraction(1, 2), _ROUNDING / time_base)


def steps_of_row(row: Observed, schema: Schema, clock: Clock, columns: Sequence[str], /) -> int | None:
    """N, the number of clock steps of one row.

    T of the first temporal column of the window at the clock's rate; else `length`; else the counted frames of the
    first video; else floor(T * clock / rate) of the first column. None where the row shows nothing.

    Args:
        row: What the row shows.
        schema: Its columns.
        clock: Of the dataset.
        columns: The window's columns.
    """
    wanted = [name for name in schema if name in columns]
    for name in wanted:
        if schema[name].category == "temporal" and row.steps.get(name, -1) >= 0 and on_clock(schema, name, clock.rate):
            return row.steps[name]
    if row.length is not None and row.length >= 0:
        return row.length
    for name in wanted:
        if name in row.frames:
            return row.frames[name]
    for name in wanted:
        rate = own_rate(schema[name])
        if row.steps.get(name, -1) >= 0 and rate is not None and clock.rate is not None:
            scaled = row.steps[name] * clock.rate / rate
            return scaled.numerator // scaled.denominator
    return None

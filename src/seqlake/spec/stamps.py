"""Time stamps: which columns hold them, what they count from, and when they do not say a time at all.

Specification: "Synchronization". The fields `timestamps` and `origin` of a column's type are this project's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from seqlake.spec.schema import Schema

Origin = tuple[str, ...] | float
"""What time stamps count from: a moment, or the columns whose earliest time it is."""

_LATEST = 1 << 62  # nanoseconds either side of 0, so that differences fit in 64 bits
_CLOCKS = frozenset({"t", "time", "times", "timestamp", "timestamps", "time_stamp", "time_stamps"})
_CLOCK_ENDINGS = ("_timestamp", "_timestamps")
_FEWEST = 4  # stamps, where one of the steps between them can be told from the others
_COARSE = 1e-3  # seconds between two floating-point numbers, where stamps are not apart


def origin_of(schema: Schema, name: str, /) -> Origin:
    """What the time stamps of a column count from: the moment at which the sequence's clock stands at 0.

    A declared `origin`: a number, or the column that holds it (one time a row, or time stamps, of which the first
    counts). Without one, the earliest stamp of all columns that have stamps and declare no origin.

    Args:
        schema: All columns.
        name: One that names `timestamps`.
    """
    kind = schema[name].type
    declared = None if kind is None else kind.get("origin")
    if isinstance(declared, (int, float)) and not isinstance(declared, bool):
        return _in_unit(schema, kind.timestamps, declared) if kind is not None else declared
    if isinstance(declared, str) and declared in schema:
        return (declared,)
    kinds = [column.type for column in schema.values() if column.type is not None]
    named = {kind.timestamps for kind in kinds if kind.get("origin") is None}
    return tuple(name for name in schema if name in named)


def _in_unit(schema: Schema, times: object, number: float) -> float:
    """A number as time stamps count: a float where they are seconds, a whole number where they are nanoseconds."""
    if not isinstance(times, str) or times not in schema:
        return number
    column = schema[times]
    inner = column.value_type if column.raw else column.arrow
    while inner is not None and is_list(inner):
        inner = inner.value_type
    return float(number) if inner is None or pa.types.is_floating(inner) else int(number)


def stamps_fault(stamps: NDArray[Any], /) -> tuple[int, str] | None:
    """Why the time stamps of one sequence do not say when its samples were taken: at which step, and in words.

    Args:
        stamps: [T] whole numbers (nanoseconds), floating-point numbers (seconds), or numpy times.

    Example:
        >>> import numpy as np
        >>> stamps_fault(np.array([1.7e9, 1.7e9 + 0.1], "f4"))
        (0, 'float32 has no numbers less than 128 s apart near 1700000000; hold seconds as float64')
    """
    import numpy as np

    late = np.flatnonzero(~(stamps[1:] >= stamps[:-1]))  # rather than earlier than: NaN is neither
    if late.size:
        return int(late[0]) + 1, "a timestamp is not at or after the one before it"
    for step in sorted({0, len(stamps) - 1}) if len(stamps) else ():
        if not abs(moment(stamps[step])) < _LATEST:
            return step, f"{stamps[step]} is no time: expected whole nanoseconds, or seconds as floats"
    reason = coarse(stamps)
    return None if reason is None else (0, reason)


def called_a_clock(name: str, /) -> bool:
    """Whether a column's name, or a part of it between dots, says that its numbers are times.

    Example:
        >>> [called_a_clock(name) for name in ("observation.timestamp.start", "camera_timestamps", "lifetime")]
        [True, True, False]
    """
    parts = name.lower().replace("/", ".").split(".")
    return any(part in _CLOCKS or part.endswith(_CLOCK_ENDINGS) for part in parts)


def clock_fault(stamps: NDArray[Any], /) -> tuple[int, str] | None:
    """Where a clock was set while one sequence was recorded: at which step, and in words.

    It goes back; or it jumps ahead: one step lasts more than ten times all others together, and a hundred times what
    is usual. Numbers that are not finite are passed over.

    Args:
        stamps: [T] numbers in any unit, or numpy times.

    Example:
        >>> import numpy as np
        >>> clock_fault(np.array([0.0, 0.1, 0.05]))
        (2, 'the clock goes back, from 0.1 to 0.05')
        >>> clock_fault(np.array([0.0, 0.1, 0.2, 1.7e9, 1.7e9]))
        (3, 'the clock jumps ahead, from 0.2 to 1700000000.0')
        >>> clock_fault(np.array([0.0, 0.1, 0.2, 0.3, 2.5])) is None
        True
    """
    import numpy as np

    whole = stamps.view(np.int64) if stamps.dtype.kind in "mM" else stamps
    if whole.dtype.kind not in "iuf":
        return None
    places = np.flatnonzero(np.isfinite(whole))
    given, known = stamps[places], whole[places]
    steps = np.diff(known.astype(np.int64 if known.dtype.kind != "f" else np.float64))
    back = np.flatnonzero(steps < 0)
    if back.size:
        at = int(back[0]) + 1
        return int(places[at]), f"the clock goes back, from {given[at - 1]} to {given[at]}"
    if len(steps) < _FEWEST - 1:
        return None
    at = int(np.argmax(steps)) + 1
    longest, others = float(steps[at - 1]), np.delete(steps, at - 1).astype(np.float64)
    if longest > 10 * others.sum() and longest > 100 * float(np.median(others)) and others.any():
        return int(places[at]), f"the clock jumps ahead, from {given[at - 1]} to {given[at]}"
    return None


def moment(stamp: Any, /) -> float:
    """About how many nanoseconds a numpy number or time is, by the rule for time stamps."""
    import numpy as np

    if stamp.dtype.kind == "f":
        return float(stamp) * 1e9
    if stamp.dtype.kind in "mM":
        unit, count = np.datetime_data(stamp.dtype)
        return int(stamp.view(np.int64)) * count * {"s": 1e9, "ms": 1e6, "us": 1e3}.get(unit, 1)
    return int(stamp)


def apart(spans: Mapping[str, tuple[float, float]], /) -> tuple[str, str, float] | None:
    """Where nothing happens for longer than all else lasts: after what, before what, and for how long.

    Args:
        spans: When things begin and end, by name.

    Example:
        >>> apart({"force": (0, 2), "grip": (1, 3), "cam": (50, 53)})
        ('grip', 'cam', 47)
        >>> apart({"force": (0, 2), "cam": (5, 9)}) is None
        True
    """
    ordered = sorted(spans.items(), key=lambda one: one[1])
    gaps: list[tuple[str, str, float]] = []
    lasting, last, end = 0.0, "", 0.0
    for name, (first, stop) in ordered:
        if last and first > end:
            gaps.append((last, name, first - end))
        lasting += max(0, stop - (max(first, end) if last else first))
        if not last or stop > end:
            last, end = name, stop
    widest = max(gaps, key=lambda gap: gap[2], default=None)
    return widest if widest is not None and widest[2] > lasting > 0 else None


def coarse(stamps: NDArray[Any]) -> str | None:
    """Why a floating-point type cannot hold the time stamps of one sequence: [T] seconds."""
    import numpy as np

    if stamps.dtype.kind != "f" or not len(stamps) or not np.isfinite(stamps[[0, -1]]).all():
        return None
    last = np.abs(stamps[[0, -1]]).max()
    finest, apart = float(np.spacing(last)), float(stamps[-1]) - float(stamps[0])
    if finest <= (apart / (len(stamps) - 1) / 2 if apart > 0 else _COARSE):
        return None
    kind = stamps.dtype.name
    return f"{kind} has no numbers less than {finest:g} s apart near {float(last):.0f}; hold seconds as float64"

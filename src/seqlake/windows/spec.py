"""What one training example is made of: a window of steps, or a whole sequence.

Pure values: nothing here reads data, and nothing but the standard library is imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias

Edges = Literal["pad", "drop", "clamp"]
EDGES: tuple[Edges, ...] = ("pad", "drop", "clamp")

Rate: TypeAlias = "Fraction | float"


def exact(value: Rate | str, /) -> Fraction:
    """A number as the decimal that was written: 0.02 is 1/50, and 29.97 is 2997/100."""
    return Fraction(str(value)) if isinstance(value, float) else Fraction(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Offsets asked for in time: `start`, `start + every`, ... below `stop`, seconds from the anchor."""

    start: Fraction
    stop: Fraction
    every: Fraction

    def __len__(self) -> int:
        return max(0, -((self.start - self.stop) // self.every))

    def times(self) -> tuple[Fraction, ...]:
        """Every offset, in seconds."""
        return tuple(self.start + k * self.every for k in range(len(self)))

    def __repr__(self) -> str:
        return f"seconds({float(self.start):g}, {float(self.stop):g}, every={float(self.every):g})"


def seconds(start: Rate, stop: Rate, /, *, every: Rate) -> Seconds:
    """Offsets in seconds around the anchor, `stop` excluded as in `range`.

    Args:
        start: The first offset, in seconds; negative is before the anchor.
        stop: The end, in seconds; not included.
        every: The distance from one offset to the next, in seconds.

    Raises:
        ValueError: `every` is not positive, or the range is empty.

    Example:
        >>> seconds(-0.1, 0.1, every=0.05)
        seconds(-0.1, 0.1, every=0.05)
    """
    value = Seconds(start=exact(start), stop=exact(stop), every=exact(every)) if exact(every) > 0 else None
    if value is None or not len(value):
        raise ValueError(
            f"seconds({start}, {stop}, every={every}) names no step: expected start < stop and every > 0, in seconds."
        )
    return value


Offsets: TypeAlias = "range | Sequence[int] | Seconds | None"


def _offsets(column: str, value: object) -> range | tuple[int, ...] | Seconds | None:
    """Offsets in the one form that equal offsets share."""
    if value is None or isinstance(value, Seconds):
        return value
    if hasattr(value, "tolist"):  # numpy and torch
        value = value.tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, (range, Sequence)):
        advice = f" For one window of {value} steps write range({value})." if isinstance(value, int) else ""
        raise TypeError(
            f"Window column {column!r}: expected a range, a list of whole steps, seconds(...) or None (one value a "
            f"sample), found {value!r}.{advice}"
        )
    if not all(isinstance(step, int) and not isinstance(step, bool) for step in value):
        raise TypeError(f"Window column {column!r}: offsets are whole clock steps; for time use seconds(...).")
    steps = tuple(value)
    if not steps:
        raise ValueError(f"Window column {column!r} has no offsets; use None for a column with one value a sample.")
    stride = steps[1] - steps[0] if len(steps) > 1 else 1
    even = range(steps[0], steps[0] + stride * len(steps), stride) if stride else ()
    if steps == tuple(even):
        return even
    return steps


@dataclass(frozen=True, slots=True)
class Window:
    """Which steps of which columns make one training example.

    A window is anchored at t = 0, stride, 2 * stride, ... < N of each sequence, where N is the sequence's number
    of clock steps. Each column names its steps relative to the anchor.

    Args:
        columns: Column name -> offsets in clock steps (a `range` or a list), `seconds(...)`, or None for a
            scalar, vector or file column: one value a sample.
        stride: Clock steps from one anchor to the next.
        edges: What happens to offsets before the first or after the last step: `"pad"` gives zeros, `"clamp"`
            repeats the nearest step, `"drop"` keeps only anchors whose offsets all exist.
        clock: Steps per second, where the dataset should not decide it.

    Every batch also has `sequence_id`, `start` (the anchor) and, for each column, `<column>_mask`, True where
    the step exists. A bare mapping is understood as `Window(mapping)`.

    Raises:
        TypeError: Offsets are not whole numbers, or not offsets at all.
        ValueError: No columns, no offsets, an unknown edge rule, or a stride below 1.

    Example:
        >>> Window({"obs_state": range(-1, 1), "action": range(16)}, stride=4)
        Window({'obs_state': range(-1, 1), 'action': range(0, 16)}, stride=4, edges='pad')
    """

    columns: Mapping[str, Offsets]
    stride: int = field(default=1, kw_only=True)
    edges: Edges = field(default="pad", kw_only=True)
    clock: Rate | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not self.columns:
            raise ValueError(f"A window needs columns, as in Window({{'action': range(16)}}); found {self.columns!r}.")
        if not isinstance(self.stride, int) or self.stride < 1:
            raise ValueError(f"Window stride: expected a whole number of steps from 1 on, found {self.stride!r}.")
        if self.edges not in EDGES:
            raise ValueError(f"Window edges: expected one of {', '.join(EDGES)}, found {self.edges!r}.")
        clock = None if self.clock is None else exact(self.clock)
        if clock is not None and clock <= 0:
            raise ValueError(f"Window clock: expected steps per second above 0, found {self.clock!r}.")
        object.__setattr__(self, "columns", {name: _offsets(name, value) for name, value in self.columns.items()})
        object.__setattr__(self, "clock", clock)

    @property
    def digest(self) -> str:
        """16 hex digits, equal for equal windows in every process and version of Python."""
        return _digest(
            {
                "kind": "window",
                "columns": {name: _plain(offsets) for name, offsets in self.columns.items()},
                "stride": self.stride,
                "edges": self.edges,
                "clock": None if self.clock is None else str(self.clock),
            }
        )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        clock = "" if self.clock is None else f", clock={self.clock}"
        return f"Window({dict(self.columns)!r}, stride={self.stride}, edges={self.edges!r}{clock})"


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole rows as training examples: sequences, or samples of datasets whose rows are samples.

    A list of names is understood as `Whole(names)`, None as `Whole("*")`.

    Args:
        columns: The columns to deliver, `"*"` for all; videos and columns of images come as frames, all that a row has.
        packed: False pads each column of steps or frames to the longest of the batch and adds `<column>_length`;
            True lays the sequences end to end and adds `<column>_offsets`, the cumulative lengths.

    Example:
        >>> Whole(["action"], packed=True)
        Whole(('action',), packed=True)
    """

    columns: Sequence[str]
    packed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        names = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"Whole needs distinct column names, as in Whole(['action']); found {list(names)!r}.")
        object.__setattr__(self, "columns", names)

    @property
    def digest(self) -> str:
        """16 hex digits, equal for equal values in every process."""
        return _digest({"kind": "whole", "columns": list(self.columns), "packed": self.packed})

    def of(self, names: Sequence[str], /) -> Whole:
        """The same with every column named.

        Example:
            >>> Whole("*").of(["action", "task"])
            Whole(('action', 'task'), packed=False)
        """
        return replace(self, columns=tuple(names)) if tuple(self.columns) == ("*",) else self

    def __repr__(self) -> str:
        return f"Whole({tuple(self.columns)!r}, packed={self.packed})"


def as_window(value: object, /) -> Window | Whole:
    """A window as users may write it: a `Window`, a `Whole`, a bare mapping of offsets, names of columns, or None.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(value, (Window, Whole)):
        return value
    if isinstance(value, Mapping):
        return Window(value)
    if value is None:
        return Whole("*")
    if isinstance(value, Sequence) and not isinstance(value, str) and value and all(isinstance(n, str) for n in value):
        return Whole(value)
    raise TypeError(
        f"window: expected a mapping such as {{'action': range(16)}}, a Window, a Whole, names of columns or None for "
        f"all of them, found {value!r}."
    )


def _plain(offsets: Offsets) -> object:
    if offsets is None:
        return None
    if isinstance(offsets, Seconds):
        return [str(offsets.start), str(offsets.stop), str(offsets.every)]
    return list(offsets)


def _digest(value: object) -> str:
    # The order of columns does not change what a sample is.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Which samples of a sound belong to the time that a window spans: whole-number arithmetic, exact over hours.

Sample n of a sound with `rate` samples a second stands at n / rate seconds after the sequence's start. A window has
those that stand at or after its beginning and before its end, so that windows side by side have every sample once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake import media
from seqlake.abilities import HasSound, ability
from seqlake.errors import DecodeError, SchemaMismatchError, SeqlakeError
from seqlake.windows.sources import MediaFiles, located, spans_of
from seqlake.windows.spec import Seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints, Readable
    from seqlake.spec.schema import Column
    from seqlake.windows.sources import FileSpan
    from seqlake.windows.spec import Edges


def sounding(column: Column, /) -> bool:
    """Whether a window may take samples of this column: files of sound, named or inline."""
    return column.medium == "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSpan:
    """The time that a window spans, for one column of sound.

    Attributes:
        column: The column's name.
        start: Its beginning, in 1/denominator clock steps from the anchor.
        stop: Its end, likewise.
        denominator: Of both.
        clock: Clock steps per second.
    """

    column: str
    start: int
    stop: int
    denominator: int
    clock: Fraction

    @classmethod
    def of(cls, column: Column, offsets: object, clock: Fraction | None, /) -> SoundSpan:
        """The span of the steps, or of the seconds, that a `Window` names.

        Raises:
            SchemaMismatchError: Steps that are no span, or a column with time stamps.
            ValueError: There is no clock.
        """
        if column.timestamps is not None:
            raise SchemaMismatchError(
                f"Column {column.name!r} is sound with time stamps, and samples are found by their rate.",
                hint="Remove the field `timestamps` of the column's type.",
            )
        if clock is None:
            raise ValueError(
                f"Column {column.name!r} is sound, but the dataset has no clock that says how long a step is. Declare "
                "fps on a column, or give Window(..., clock=steps_per_second)."
            )
        if isinstance(offsets, Seconds):
            begin, end = offsets.start * clock, (offsets.start + len(offsets) * offsets.every) * clock
        elif isinstance(offsets, range) and offsets.step == 1:
            begin, end = Fraction(offsets.start), Fraction(offsets.stop)
        else:
            raise SchemaMismatchError(
                f"Column {column.name!r} is sound, of which a window has one span; found {offsets!r}.",
                hint="Name steps side by side, as in range(16), or seconds(-0.5, 0.5, every=0.5).",
            )
        denominator = lcm(begin.denominator, end.denominator)
        return cls(
            column=column.name,
            start=int(begin * denominator),
            stop=int(end * denominator),
            denominator=denominator,
            clock=clock,
        )

    @property
    def timestamps(self) -> None:
        """None: samples are found by their rate."""

    @property
    def seconds(self) -> Fraction:
        """How long it is."""
        return (self.stop - self.start) / (self.denominator * self.clock)

    def width(self, rate: int, /) -> int:
        """S, the samples that a window holds at a rate: as many as any has."""
        return _up(self.seconds * rate)

    def samples(self, anchors: Ints, rate: int, /) -> tuple[Ints, Ints]:
        """[n] anchors -> [n] the first sample of each window, and [n] one past its last."""
        scale = Fraction(rate) / (self.denominator * self.clock)
        moments = [anchor * self.denominator for anchor in anchors.tolist()]  # of Python, which has no largest number
        firsts = [_up((moment + self.start) * scale) for moment in moments]
        lasts = [_up((moment + self.stop) * scale) for moment in moments]
        return np.array(firsts, np.int64), np.array(lasts, np.int64)

    def available(self, steps: int, count: int, rate: int, /) -> int:
        """How many samples lie within a sequence's N clock steps, of `count` at a rate."""
        return max(0, min(count, _up(Fraction(steps * rate) / self.clock)))

    def steps(self, count: int, rate: int, /) -> int:
        """N as a sound counts it: clock steps that it lasts."""
        return int(Fraction(count, rate) * self.clock)

    def moments(self, count: int, rate: int, /) -> int:
        """How long a sound lasts, in whole 1/denominator clock steps."""
        return int(Fraction(count, rate) * self.clock * self.denominator)

    def bounds(
        self,
        *,
        steps: Ints,
        counts: Ints,
        ends: Ints | None = None,
        begins: Ints | None = None,  # noqa: ARG002 - as tracks have it
    ) -> tuple[int, Ints]:
        """The first anchor, and for each sequence the last, at which all of the window lies within the sound.

        Args:
            steps: [rows] N of each sequence.
            counts: [rows] samples; -1 null.
            ends: [rows] how long each lasts, in 1/denominator clock steps.
            begins: Nothing: it begins with the sequence.
        """
        ends = steps * self.denominator if ends is None else np.minimum(ends, steps * self.denominator)
        return max(0, -(self.start // self.denominator)), np.where(
            counts > 0, (ends - self.stop) // self.denominator, -1
        )


def _up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


@dataclass(frozen=True, slots=True, eq=False)
class SoundWindows:
    """Windows of one sound, as samples of it.

    Attributes:
        firsts: [n] the first sample of each window; may lie before the sound.
        mask: [n, S] whether a sample lies within the window's time, the sequence and the sound.
        present: [n, S] whether there is such a sample at all: the sample after a window's last is.
        available: How many samples there are to choose from.
    """

    firsts: Ints
    mask: NDArray[np.bool_]
    present: NDArray[np.bool_]
    available: int

    @classmethod
    def of(cls, span: SoundSpan, anchors: Ints, /, *, steps: int, count: int, rate: int) -> SoundWindows:
        """Windows at some anchors.

        Args:
            span: What each spans.
            anchors: [n] clock steps.
            steps: N, clock steps of the sequence.
            count: Samples of the sound, at `rate`.
            rate: Samples a second.
        """
        firsts, lasts = span.samples(anchors, rate)
        available = span.available(steps, count, rate)
        numbers = firsts[:, None] + np.arange(span.width(rate))
        present = (numbers >= 0) & (numbers < available)
        return cls(firsts, present & (numbers < lasts[:, None]), present, available)

    def needed(self, *, clamp: bool) -> tuple[Ints, Ints]:
        """[n] from which sample to which each window is made; equal where there is nothing to it."""
        width = self.mask.shape[1]
        if clamp and self.available:
            last = self.available - 1
            return np.clip(self.firsts, 0, last), np.clip(self.firsts + width - 1, 0, last) + 1
        return np.clip(self.firsts, 0, self.available), np.clip(self.firsts + width, 0, self.available)

    def together(self, *, gap: int, clamp: bool) -> list[tuple[list[int], int, int]]:
        """Windows that lie less than so many samples apart: which, and from which sample to which all of them are."""
        lows, highs = self.needed(clamp=clamp)
        runs: list[tuple[list[int], int, int]] = []
        for which in np.argsort(lows, kind="stable").tolist():
            low, high = int(lows[which]), int(highs[which])
            if low >= high:
                continue
            if runs and low <= runs[-1][2] + gap:
                before, first, last = runs[-1]
                runs[-1] = ([*before, which], first, max(last, high))
            else:
                runs.append(([which], low, high))
        return runs

    def fill(
        self, out: NDArray[np.float32], which: int, values: NDArray[np.float32], low: int, /, *, clamp: bool
    ) -> None:
        """Write one window.

        Args:
            out: [S, channels].
            which: The window.
            values: Samples from `low` on, with all that `needed` says.
            low: The number of the first.
            clamp: Samples that are missing are the nearest ones, and not zero.
        """
        first, there = int(self.firsts[which]), self.present[which]
        if clamp and self.available:
            numbers = np.clip(np.arange(first, first + len(out)), 0, self.available - 1)
            np.take(values, numbers - low, axis=0, out=out)
            return
        begin, end = (int(one[which]) for one in self.needed(clamp=False))
        out[~there] = 0
        out[begin - first : end - first] = values[begin - low : end - low]


class Heard(Protocol):
    """A sound whose samples can be had: a view of a file, or `Silence`."""

    @property
    def rate(self) -> int:
        """How many samples a second has."""

    @property
    def channels(self) -> int:
        """Numbers of a sample."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice, /) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class Silence:
    """The sound of a row that has none, of the rate and with the channels that others have."""

    rate: int
    channels: int

    def __len__(self) -> int:
        return 0

    def __getitem__(self, which: slice, /) -> NDArray[Any]:
        return np.zeros((0, self.channels), np.float32)


def hear(
    span: SoundSpan, anchor: Ints, sound: Heard, *, steps: int, edges: Edges
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """One window of one sound: [S, channels] and [S]."""
    windows = SoundWindows.of(span, anchor, steps=steps, count=len(sound), rate=sound.rate)
    clamp = edges == "clamp"
    (low,), (high,) = windows.needed(clamp=clamp)
    values = np.zeros((windows.mask.shape[1], sound.channels), np.float32)
    windows.fill(values, 0, sound[int(low) : int(high)], int(low), clamp=clamp)
    return values, windows.mask[0]


def sound_of(decoder: Decoder, location: str, /) -> HasSound:
    """A decoder as one of sound.

    Raises:
        DecodeError: It is one of something else.
    """
    known = ability(decoder, HasSound)
    if known is None:
        raise DecodeError(f"{location} is no sound: expected samples at a constant rate.")
    return known


def check_rate(column: Column, rate: int, expected: int, /) -> None:
    """Raise `SchemaMismatchError` unless a sound has the rate of its column."""
    if rate != expected:
        raise SchemaMismatchError(
            f"the sound of column {column.name!r} has {rate} samples a second, and the column has {expected}.",
            hint=f"Have all of them at one rate: loader.audio(rate={expected}); or mend `sample_rate` of the column.",
        )


def declared_rate(column: Column, /) -> int | None:
    """`sample_rate`, where the column declares a whole one."""
    rate = None if column.type is None else column.type.rate
    return int(rate) if rate is not None and rate == int(rate) else None


def count_sounds(source: Readable, files: MediaFiles, span: SoundSpan, rows: Ints, /) -> list[tuple[int, int] | None]:
    """Samples and rate of the sounds of some rows; each file is opened once, and decoded where nothing else tells.

    Args:
        source: The dataset.
        files: How its files are opened.
        span: Of the column.
        rows: [n] row numbers, ascending.

    Returns:
        [n] None where the cell is null.

    Raises:
        DamagedTableError: A file is not there.
        DecodeError: It cannot be read; the message names the row and the column.
    """
    column = source.schema[span.column]
    assert column.type is not None
    kind = column.type

    def look(row: int, place: FileSpan | None) -> tuple[int, int] | None:
        if place is None:
            return None
        try:
            decoder = media.open(files.source(place.reference, kind, data=place.data))
            sound = sound_of(decoder, place.reference)
            left, rate = max(0, len(sound) - place.first), sound.rate
            decoder.close()
        except (SeqlakeError, OSError) as error:
            raise located(error, f"row {row}, column {column.name!r}, {place.reference}") from error
        return left if place.count is None else min(left, place.count), rate

    counted: list[tuple[int, int] | None] = []
    numbers = rows.tolist()
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="seqlake-counting") as pool:
        for part in spans_of(source, column.name, rows):
            these = numbers[len(counted) : len(counted) + len(part)]
            counted += pool.map(look, these, part)
    return counted

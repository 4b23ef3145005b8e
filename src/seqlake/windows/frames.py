"""Which frame stands at each moment of a window: by count at the clock's rate, by presentation time at another.

Where no index says what a file holds, its frames are counted, each file opened once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from seqlake import media
from seqlake.bars import progress_bar
from seqlake.errors import SeqlakeError
from seqlake.spec.alignment import LOOKED_AT, Observed, on_clock, own_rate, rounding
from seqlake.windows.edges import nearest
from seqlake.windows.sources import FileSpan, MediaFiles, cells_of, located, place_of, spans_of
from seqlake.windows.timestamps import samples_at
from seqlake.windows.tracks import Track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Column


T = TypeVar("T")


def framed(column: Column, /) -> bool:
    """Whether a window may take frames of this column: a video, or encoded images step by step."""
    return column.category == "frames" or column.medium == "video"


def is_clouds(column: Column, /) -> bool:
    """Whether the frames of this column are clouds of points, one file a step."""
    return column.category == "frames" and column.type is not None and column.type.type == "4d"


def by_time(track: Track, column: Column, /) -> bool:
    """Whether its frames are found by the file's own times: a video at another rate than the clock's."""
    return column.medium is not None and track.timestamps is None and track.ratio != 1


class Timed(Protocol):
    """What says when frames are shown: a decoder, or a view of one."""

    def __len__(self) -> int: ...

    @property
    def pts(self) -> Ints:
        """[frames] ticks at which each is shown, ascending."""

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
        """No ticks: it has no frame."""
        return np.zeros(0, np.int64)

    @property
    def time_base(self) -> Fraction:
        """Any unit: it has no ticks."""
        return Fraction(1)

    @property
    def present(self) -> None:
        """None: no frame is absent, since there is none."""

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
    track: Track, anchors: Ints, *, steps: Ints, frames: Shown, cell_of: Callable[[str], Any] | None = None
) -> tuple[Ints, NDArray[np.bool_]]:
    """The frames of one row's windows.

    Args:
        track: The column on the clock.
        anchors: [n] clock steps.
        steps: [n] N, clock steps of the row.
        frames: What the row shows.
        cell_of: Gives the row's cell of a column, for time stamps and what they count from.

    Returns:
        [n, W] frame numbers, moved to the nearest that exists (0 where there is none), and [n, W] True where the
        moment lies within the sequence and has a frame.
    """
    counts = np.full(len(anchors), frames.count, dtype=np.int64)
    if track.timestamps is not None and cell_of is not None:
        numbers = samples_at(track, anchors, cell_of)
        available = counts
    elif frames.ticks is None:
        numbers, mask = find_by_count(track, anchors, steps=steps, counts=counts)
        return numbers, mask if frames.present is None else mask & frames.there(numbers)
    else:
        times = frames.times(track.moments(anchors), track.denominator)
        numbers = np.searchsorted(frames.ticks, times, side="right") - 1
        available = np.searchsorted(frames.ticks, frames.times(steps, 1), side="left")
    mask = track.exists(anchors, numbers, steps=steps, counts=counts)
    if frames.ticks is not None:
        mask &= track.moments(anchors) < frames.moments(track.denominator)
    numbers = np.where(mask, numbers, nearest(numbers, available))
    if frames.present is not None:
        mask &= frames.there(numbers)
    return numbers, mask


def find_by_count(track: Track, anchors: Ints, *, steps: Ints, counts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """As `find`, of windows of any rows, where the number of frames alone decides: no times, no steps without image.

    Args:
        track: The column on the clock.
        anchors: [n] clock steps.
        steps: [n] N, clock steps of the window's row.
        counts: [n] frames of the window's row.
    """
    numbers = track.samples(anchors)
    mask = track.exists(anchors, numbers, steps=steps, counts=counts)
    return np.where(mask, numbers, nearest(numbers, track.available(steps=steps, counts=counts))), mask


def steps_shown(track: Track, frames: Shown, /) -> int:
    """N as this column counts it: clock steps that have a frame."""
    if frames.ticks is not None:
        return frames.moments(1)
    return frames.count * track.ratio.denominator // track.ratio.numerator


def count_frames(source: Readable, files: MediaFiles, track: Track, rows: Ints, /) -> list[Shown | None]:
    """What some rows of a video column show, opening each file once; says what it does if it takes long.

    Args:
        source: The dataset.
        files: How its files are opened.
        track: The column on the clock.
        rows: [n] row numbers, ascending.

    Returns:
        [n] None where the cell is null.

    Raises:
        DamagedTableError: A file is not there.
        DecodeError: It cannot be read; the message names the sequence and the column.
    """
    column = source.schema[track.column]
    if column.inline:
        return _count_inline(source, files, track, rows)
    places = [place_of(cell) for cell in cells_of(source, column.name, rows)]
    timed = by_time(track, column)
    counted = {place: Shown(count=place.count) for place in places if place is not None and place.count is not None}
    wanted = {place.reference: row for place, row in zip(places, rows.tolist(), strict=True) if place and timed}
    wanted |= {p.reference: r for p, r in zip(places, rows.tolist(), strict=True) if p and p.count is None}
    known = dict(zip(wanted, _opened(source, files, column, wanted), strict=True))
    return [
        None
        if place is None
        else _shown(place, *known[place.reference], track, timed=timed)
        if place.reference in known
        else counted[place]
        for place in places
    ]


def _shown(place: FileSpan, pts: Ints, time_base: Fraction, track: Track, *, timed: bool) -> Shown:
    ticks = pts[place.first :][: place.count]
    return Shown.timed(ticks, time_base, track) if timed else Shown(count=len(ticks))


def _count_inline(source: Readable, files: MediaFiles, track: Track, rows: Ints) -> list[Shown | None]:
    """As `count_frames`, of videos that stand in the rows: batch by batch, since all of them would fill the memory."""
    column, timed = source.schema[track.column], by_time(track, source.schema[track.column])

    def look(row: int, place: FileSpan | None) -> Shown | None:
        if place is None:
            return None
        pts, time_base = _times(source, files, column, place, row)
        return _shown(place, pts, time_base, track, timed=timed)

    numbers = iter(rows.tolist())
    batches = (list(zip(islice(numbers, len(part)), part, strict=True)) for part in spans_of(source, column.name, rows))
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="seqlake-counting") as pool:
        looked = (one for cells in batches for one in pool.map(look, *zip(*cells, strict=True)))
        return list(_counting(looked, column, len(rows)))


def _opened(source: Readable, files: MediaFiles, column: Column, wanted: dict[str, int]) -> list[tuple[Ints, Fraction]]:
    """When the frames of each file are shown."""

    def look(reference: str) -> tuple[Ints, Fraction]:
        return _times(source, files, column, FileSpan(reference), wanted[reference])

    if len(wanted) < 2:
        return [look(reference) for reference in wanted]
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="seqlake-counting") as pool:
        return list(_counting(pool.map(look, wanted), column, len(wanted)))


def _counting(looked: Iterable[T], column: Column, count: int) -> Iterable[T]:
    """The same, with a bar where it takes long."""

    class Bar(progress_bar()):  # type: ignore[misc]
        monitor_interval = 0  # no thread of its own

    what = f"counting the frames of {column.name!r}"
    return Bar(looked, what, count, unit=" videos", delay=1, leave=False, disable=None)


def _times(source: Readable, files: MediaFiles, column: Column, place: FileSpan, row: int) -> tuple[Ints, Fraction]:
    """When the frames of a row's file are shown, and the seconds of a tick."""
    assert column.type is not None
    try:
        decoder = media.open(files.source(place.reference, column.type, data=place.data))
    except (SeqlakeError, OSError) as error:
        where = f"{_name(source, row)}, column {column.name!r}"
        raise located(error, where if place.data is not None else f"{where}, {place.reference}") from error
    times = decoder.pts, decoder.time_base
    decoder.close()
    return times


def _name(source: Readable, row: int) -> str:
    name = source.schema.id
    return f"row {row}" if name is None else f"sequence {cells_of(source, name, np.array([row]))[0]!r}"


def count_first_rows(source: Readable, files: MediaFiles, /) -> tuple[list[Observed], str]:
    """What the first rows that have a signal and a video show: T of each signal, and the frames of each video.

    Returns:
        Up to `LOOKED_AT` rows, and why a video could not be counted, "" where all could.
    """
    schema = source.schema
    signals = [name for name in schema if schema[name].category == "temporal" and on_clock(schema, name, None)]
    steps = {name: source.lengths(name) for name in signals}
    rows = np.flatnonzero(np.maximum.reduce(list(steps.values())) > 0)[:LOOKED_AT] if steps else np.zeros(0, np.int64)
    seen = [Observed(steps={name: int(lengths[row]) for name, lengths in steps.items()}) for row in rows.tolist()]
    failed = ""
    for name in (name for name in schema if _is_video(schema[name])):
        try:
            counts = count_frames(source, files, Track(column=name, offsets=(0,)), rows)
        except (SeqlakeError, OSError) as error:
            failed = failed or f"frames were not counted: {error}"
            continue
        for number, frames_shown in enumerate(counts):
            frames: dict[str, Any] = {} if frames_shown is None else {name: frames_shown.count}
            seen[number] = replace(seen[number], frames={**seen[number].frames, **frames})
    return seen, failed


def _is_video(column: Column) -> bool:
    return column.medium == "video" and own_rate(column) is not None

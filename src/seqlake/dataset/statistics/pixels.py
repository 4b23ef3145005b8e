"""What the pictures of a column are like, per channel, from evenly spaced frames of evenly spaced sequences.

Every value of a picture is one of 256 (of 65 536 where it has 16 bits), so the sample is counted once, value by value,
and everything follows from the counts exactly, in whole numbers, in whatever order threads deliver them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.statistics.chunks import each
from seqlake.dataset.statistics.ranks import rank_of
from seqlake.dataset.statistics.summary import ColumnStatistics
from seqlake.errors import ValidationError
from seqlake.media import depth_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Column

SEQUENCES = 128
"""So many sequences are looked at, at most."""

FRAMES = 1024
"""So many frames are, at most, shared among these sequences."""

_AT_ONCE = 8  # frames that are decoded before they are counted
_SMALL, _ABOUT = 300, 150  # pixels along the longer side: what is left whole, what larger pictures are thinned to


def evenly(count: int, most: int, /) -> Ints:
    """At most `most` numbers below `count`, in the middles of equal parts.

    Example:
        >>> evenly(100, 4).tolist(), evenly(3, 4).tolist()
        ([12, 37, 62, 87], [0, 1, 2])
    """
    taken = min(count, most)
    return (2 * np.arange(taken, dtype=np.int64) + 1) * count // (2 * max(taken, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """How often each channel has each value in some frames."""

    frames: int
    values: NDArray[np.int64]  # [channels, 256 or 65 536]


def statistics_of(
    source: Readable, name: str, points: Sequence[float], /, *, workers: int, progress: bool | None = None
) -> ColumnStatistics:
    """The statistics of a column of pictures, values scaled to [0, 1]; of depth maps the metres that were measured.

    Args:
        source: Any readable.
        name: The column.
        points: Quantiles.
        workers: Threads.
        progress: As for `statistics`.

    Raises:
        MissingFileError: A file is not there.
        CorruptFileError, CorruptFrameError, DecodeError: A picture cannot be decoded.
        ValidationError: Pictures of 8 and of 16 bits, or with other channels, in one column; or of floats.
    """
    from tqdm import tqdm

    excerpt = Excerpt.of(source)
    column = excerpt.schema[name]
    there = _there(excerpt, column)
    rows = np.flatnonzero(there)
    chosen = rows[evenly(len(rows), SEQUENCES)]
    look = partial(_look, excerpt, name, most=max(1, FRAMES // max(len(chosen), 1)))
    hidden = None if progress is None else not progress
    total: _Counted | None = None
    with tqdm(total=len(chosen), desc=f"pictures of {name}", unit=" sequences", disable=hidden) as bar:
        for counted in each(chosen.tolist(), look, workers=workers):
            total = _joined(total, counted, name)
            bar.update()
    return _finished(total, column, points, nulls=int(len(there) - there.sum()))


def _there(excerpt: Excerpt, column: Column) -> NDArray[np.bool_]:
    """[rows] whether a row has a cell."""
    if column.category == "frames":
        return excerpt.lengths(column.name) >= 0
    parts = [np.asarray(batch.column(0).is_valid()) for batch in excerpt.batches([column.name])]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def _look(excerpt: Excerpt, name: str, row: int, *, most: int) -> _Counted | None:
    """Count the values of one sequence's frames."""
    view, kind = excerpt[row][name], excerpt.schema[name].type
    if view is None:
        return None
    if kind is not None and kind.is_depth:
        view = view.codes
    counted: _Counted | None = None
    numbers = evenly(len(view), most)
    for start in range(0, len(numbers), _AT_ONCE):
        frames = _thinned(view.decode(numbers[start : start + _AT_ONCE]))
        if frames.dtype.kind == "f":
            raise ValidationError(
                f"Column {name!r} has pictures of {frames.dtype}: expected 8 or 16 bits, whose values are counted.",
                hint="Leave this column out.",
            )
        levels = 1 << (8 * frames.dtype.itemsize)
        values = [np.bincount(frames[..., c].ravel(), minlength=levels) for c in range(frames.shape[-1])]
        counted = _joined(counted, _Counted(frames=len(frames), values=np.stack(values).astype(np.int64)), name)
    return counted


def _thinned(frames: NDArray[Any]) -> NDArray[Any]:
    """Every k-th pixel of large pictures, in rows and in columns: it changes no pixel's value, as scaling would."""
    longer = max(frames.shape[1:3])
    step = 1 if longer < _SMALL else longer // _ABOUT
    return frames[:, ::step, ::step]


def _joined(one: _Counted | None, two: _Counted | None, name: str) -> _Counted | None:
    if one is None or two is None:
        return one or two
    if one.values.shape != two.values.shape:
        raise ValidationError(
            f"Column {name!r} has pictures of {_kind(one)} and of {_kind(two)}.",
            hint="Statistics are of pictures of one kind; leave this column out.",
        )
    return _Counted(frames=one.frames + two.frames, values=one.values + two.values)


def _kind(counted: _Counted) -> str:
    channels, levels = counted.values.shape
    return f"{channels} channels with {levels.bit_length() - 1} bits"


def _finished(total: _Counted | None, column: Column, points: Sequence[float], *, nulls: int) -> ColumnStatistics:
    values = np.zeros((3, 256), np.int64) if total is None else total.values
    channels, levels = values.shape
    metres = None if column.type is None else depth_levels(column.type, levels)
    if metres is not None:
        values = np.where(metres > 0, values, 0)  # 0 is no measurement
        numbers = [_of_levels(counts, points, metres) for counts in values]
    else:
        numbers = [_of_channel(counts, points) for counts in values]

    def scaled(which: int) -> NDArray[np.float64]:
        levels_of: NDArray[np.float64] = np.array([channel[which] for channel in numbers], np.float64)
        return levels_of if metres is not None else levels_of / (levels - 1)

    none = np.zeros(channels, np.int64)
    return ColumnStatistics(
        category=column.category,
        dtype=np.dtype(np.float64),
        nulls=nulls,
        count=values.sum(axis=1),
        min=scaled(0),
        max=scaled(1),
        mean=scaled(2),
        std=scaled(3),
        nan=none,
        inf=none,
        quantiles={point: scaled(4 + place) for place, point in enumerate(points)},
        frames=0 if total is None else total.frames,
    )


def _of_levels(counts: NDArray[np.int64], points: Sequence[float], metres: NDArray[np.float64]) -> list[float]:
    """As `_of_channel`, of values that stand for these metres, ascending."""
    least, most, *_, quantiles = *_of_channel(counts, ())[:2], [_of_channel(counts, [point])[-1] for point in points]
    if not counts.any():
        return [np.nan] * (4 + len(points))
    mean = float(np.average(metres, weights=counts))
    deviation = float(np.average((metres - mean) ** 2, weights=counts)) ** 0.5
    return [float(metres[int(least)]), float(metres[int(most)]), mean, deviation, *(metres[int(q)] for q in quantiles)]


def _of_channel(counts: NDArray[np.int64], points: Sequence[float]) -> list[float]:
    """Smallest, largest, mean, deviation and quantiles of values that occur so often; NaN where there is none."""
    count = int(counts.sum())
    if not count:
        return [np.nan] * (4 + len(points))
    there, up_to = np.flatnonzero(counts), np.cumsum(counts)
    # Python's whole numbers: sums of squares of 16 bits outgrow 64.
    pairs = [(int(value), int(counts[value])) for value in there]
    first = sum(value * often for value, often in pairs)
    second = sum(value * value * often for value, often in pairs)
    spread = count * second - first * first
    ranks = [int(np.searchsorted(up_to, rank_of(point, count), side="right")) for point in points]
    return [float(there[0]), float(there[-1]), first / count, (spread / count**2) ** 0.5, *map(float, ranks)]

"""Some evenly spaced pictures of a column, with their times: what contact sheets, terminals and notebooks show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing.clouds import cloud_at, drawn, ground, has_points, seen_from_above, steps_of
from seqlake.dataset.reading.views import MediaView, StepsView
from seqlake.errors import SeqlakeError
from seqlake.spec.alignment import clock_of, on_clock, own_rate
from seqlake.windows.frames import is_clouds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.dataset.reading.views import Row
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column, Schema

_RAMP = 200  # of 255 shades between the nearest and the farthest, so that the farthest is not black
_POINTS = 50_000  # of a cloud that is seen from above
_SQUARES = 2  # times a picture's size, from which on its pixels are to be seen

READ_ERRORS = (SeqlakeError, OSError, ValueError, ArithmeticError, LookupError, TypeError)
"""What reading a cell may raise; pictures of a sequence say so in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Pictures of one column side by side.

    Attributes:
        name: The column.
        pictures: Each uint8 [h, w, 3].
        labels: What stands below each.
        note: What stands behind the name; or what was wrong, in place of pictures.
    """

    name: str
    pictures: Sequence[NDArray[np.uint8]] = ()
    labels: Sequence[str] = ()
    note: str = ""


def is_pictures(column: Column, /) -> bool:
    """Whether a column holds pictures that can be shown: videos, images, frames columns."""
    if is_clouds(column):
        return False
    return column.category == "frames" or column.medium in {"video", "image"}


def is_drawn(column: Column, /) -> bool:
    """Whether a column has a strip: pictures, or clouds of points, which are seen from above."""
    return is_pictures(column) or has_points(column)


def strip(view: Row, name: str, /, *, count: int, box: tuple[int, int], enlarge: bool = False) -> Strip:
    """Evenly spaced pictures of one column; what cannot be read is said in the note.

    Args:
        view: The sequence.
        name: A column of pictures, or of clouds.
        count: How many, the first and the last among them.
        box: Width and height that each must fit in.
        enlarge: Show small ones larger; from twice the size on every pixel as a square.
    """
    try:
        frames: Any = view[name]
        if frames is None:
            return Strip(name=name, note="null")
        if has_points(view.schema[name]):
            return _from_above(view, name, count=count, size=min(box))
        there = len(frames)
        if not there:
            return Strip(name=name, note="no frames")
        places = np.unique(np.linspace(0, there - 1, count).round().astype(np.int64))
        first = frames.decode(places[:1])
        height, width = first.shape[1:3]
        room = min(box[0] / width, box[1] / height)
        scale = room if enlarge and room < _SQUARES else min(1.0, room)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        deep = first.dtype != np.uint8 and first.shape[-1] == 3 and isinstance(frames, MediaView)
        decoded = (frames.rgb if deep else frames).decode(places, size=size)
        kind = view.schema[name].type
        metres = kind is not None and kind.is_depth
        looks = _looks(decoded, deep=deep, metres=metres)
        pictures = displayable(decoded, metres=metres)
        if enlarge and room >= _SQUARES:
            pictures = pictures.repeat(int(room), axis=1).repeat(int(room), axis=2)
        return Strip(
            name=name,
            pictures=list(pictures),
            labels=_labels(view.schema, name, frames, places),
            note=f"{there} frame{'s' if there > 1 else ''}, {width}x{height}{looks}",
        )
    except READ_ERRORS as error:
        return Strip(name=name, note=str(error).partition("\n")[0])


def _from_above(view: Row, name: str, *, count: int, size: int) -> Strip:
    """Evenly spaced clouds of one column, all on the same ground."""
    column, cell = view.schema[name], view[name]
    there = steps_of(cell, column)
    present = np.flatnonzero(cell.present) if isinstance(cell, StepsView) else np.arange(there)
    if not len(present):
        return Strip(name=name, note="no clouds")
    places = present[np.unique(np.linspace(0, len(present) - 1, max(1, count)).round().astype(np.int64))]
    clouds = [drawn(cloud_at(cell, column, place), most=_POINTS) for place in places.tolist()]
    seen = ground(clouds)
    counts = sorted({one.total for one in clouds})
    points = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    rate = rate_of(view.schema, name) if there > 1 else None
    labels = [f"#{place}" if rate is None else f"{place / float(rate):.2f} s" for place in places.tolist()]
    many = f"{there} clouds of {points} points" if there > 1 else f"{points} points"
    return Strip(
        name=name,
        pictures=[seen_from_above(one, seen, size) for one in clouds],
        labels=labels if there > 1 else [],
        note=f"{many}, seen from above, {2 * seen.half:.3g} wide, coloured by {clouds[0].by}",
    )


def displayable(pictures: NDArray[Any], /, *, metres: bool = False) -> NDArray[np.uint8]:
    """Pictures as a screen can show them: 16 bits and floats are spread over grey, from the least to the most.

    Args:
        pictures: [N, h, w, 1 or 3]: uint8, uint16 or floats, of which those that are not finite are black.
        metres: They are depth: the nearest is the lightest, and what was not measured is black.

    Returns:
        uint8 [N, h, w, 3].
    """
    if pictures.dtype != np.uint8:
        there = _there(pictures, metres=metres)
        low, high = _span(pictures, there)
        with np.errstate(invalid="ignore", over="ignore"):
            spread = pictures.astype(np.float64) - low
            if metres:
                spread = 255 - spread * (_RAMP / max(high - low, 1e-6))
            else:
                spread *= 255 / (high - low) if high > low else 0
            pictures = np.where(there, spread, 0).astype(np.uint8)
    return pictures if pictures.shape[-1] == 3 else np.repeat(pictures[..., :1], 3, axis=-1)


def _there(pictures: NDArray[Any], *, metres: bool) -> NDArray[np.bool_]:
    """Which numbers are any."""
    there: NDArray[np.bool_] = np.isfinite(pictures)
    return there & (pictures > 0) if metres else there


def _span(pictures: NDArray[Any], there: NDArray[np.bool_]) -> tuple[float, float]:
    numbers = pictures[there]
    return (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)


def _looks(pictures: NDArray[Any], *, deep: bool, metres: bool) -> str:
    """What was done to show them, where it is not what they are."""
    if deep:
        return ", shown in 8 bits"
    if pictures.dtype == np.uint8:
        return ""
    low, high = _span(pictures, _there(pictures, metres=metres))
    if metres:
        return f", {low:.2f} m (light) to {high:.2f} m (dark), black: nothing measured"
    return f", {low:g} (black) to {high:g} (white)"


def rate_of(schema: Schema, name: str, /) -> Fraction | None:
    """Steps per second of a column: its own, or the clock's; None where they are not evenly spaced."""
    declared = own_rate(schema[name])
    if declared is not None:
        return declared
    clock = clock_of(schema).rate
    return clock if on_clock(schema, name, clock) else None


def _labels(schema: Schema, name: str, frames: Any, places: Ints) -> list[str]:
    """When each is shown, in seconds; its number where nothing says the rate."""
    if schema[name].category == "frames":
        rate = rate_of(schema, name)
        return [f"#{place}" if rate is None else f"{place / float(rate):.2f} s" for place in places.tolist()]
    return [f"{time:.2f} s" for time in frames.seconds[places].tolist()] if len(frames) > 1 else []

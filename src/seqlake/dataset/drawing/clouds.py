"""Clouds of points as pictures: thinned by one rule, a colour for each point, seen from above.

The rule: points without a place (NaN, infinite) are left out; of the others, where there are too many, one of each of
so many even spans of the file's order is kept. Which one of a span is fixed by arithmetic, and differs from span to
span: scans list their rings in turns, so that every n-th point of them would be of a few rings alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.reading.views import MediaView, StepsView
from seqlake.errors import DecodeError, MissingFileError, SchemaMismatchError
from seqlake.media import spatial
from seqlake.windows.frames import is_clouds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column

HEIGHT, RGB = "height", "rgb"
_TURN = 0.6180339887498949  # of a circle: no two spans near each other take the same place
FAR = 1e30
"""Coordinates beyond it are no places."""

_EXACT = 10_000.0  # up to which float32 keeps millimetres
_NAMED = 24  # fields that are offered as colours
_INTENSITIES = ("intensity", "reflectivity", "reflectance", "remission", "amplitude", "i")
_TRIPLES = (("red", "green", "blue"), ("r", "g", "b"), ("f_dc_0", "f_dc_1", "f_dc_2"))
_PACKED = ("rgb", "rgba")
_FIRST = 0.28209479177387814  # of spherical harmonics, the constant one
_ENDS = (1.0, 99.0)  # per cent of the values between which colours are spread
_VIRIDIS = np.array(
    [
        (72, 40, 120),
        (62, 74, 137),
        (49, 104, 142),
        (38, 130, 142),
        (31, 158, 137),
        (53, 183, 121),
        (110, 206, 88),
        (253, 231, 37),
    ],
    np.float64,
)
_NIGHT = (15, 19, 25)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnCloud:
    """So many points of a cloud, and what colours them.

    Attributes:
        points: float32 [n, 3] places, relative to `origin`.
        origin: What is to be added; zeros unless float32 would round them to more than a millimetre.
        colors: float32 [n, 3] red, green and blue from 0 to 1; None where a value colours them.
        values: float32 [n] the value of each, NaN where it has none; None where they have colours.
        span: Between which values the colours are to be spread.
        by: What colours them: `rgb`, `height`, or the name of a field.
        choices: What could.
        total: Points that the cloud has.
        lost: Those of them without a place.
    """

    points: NDArray[np.float32]
    origin: tuple[float, float, float]
    colors: NDArray[np.float32] | None
    values: NDArray[np.float32] | None
    span: tuple[float, float]
    by: str
    choices: tuple[str, ...]
    total: int
    lost: int


def has_points(column: Column, /) -> bool:
    """Whether a column holds clouds: one a row (`3d`), or one a step (`4d`), as files, bytes or numbers."""
    if is_clouds(column) or column.timeless or column.medium == "3d":
        return True
    return column.deep and column.type is not None and column.type.type == "4d"


def steps_of(value: Any, column: Column, /) -> int:
    """How many clouds a cell has."""
    return 1 if column.timeless or isinstance(value, MediaView) else len(value)


def cloud_at(value: Any, column: Column, step: int, /) -> NDArray[Any]:
    """One cloud of a cell, with all that is said of its points.

    Args:
        value: The cell, as a sequence gives it.
        column: Of it.
        step: Which; 0 of a cell with one.

    Returns:
        [points] structured, with `x`, `y` and `z`.

    Raises:
        MissingFileError: There is no such step, or it or the cell has no cloud.
        SchemaMismatchError: Points without three coordinates.
        DecodeError: A file that is no cloud, or damaged.
    """
    if value is None:
        raise MissingFileError(f"The cell of {column.name!r} is null.")
    count = steps_of(value, column)
    if not 0 <= step < count:
        raise MissingFileError(f"There is no step {step}; there are {count}.")
    if isinstance(value, MediaView):
        return spatial.colored_points(value.source())
    if isinstance(value, StepsView):
        if value.cells[step] is None:
            raise MissingFileError(f"Step {step} of {column.name!r} has no cloud.")
        cloud: NDArray[Any] = value.decode([step])[0]
        return cloud
    return _named(np.asarray(value if column.timeless else value[step]), column)


def _named(points: NDArray[Any], column: Column) -> NDArray[Any]:
    """[N, C] numbers under the names that the column's type gives, else the first three as coordinates."""
    if points.ndim != 2 or points.shape[1] < 3:
        raise SchemaMismatchError(
            f"{column.name!r}: expected points as [N, 3] or more numbers, found {list(points.shape)}."
        )
    given = column.type.get("fields") or column.type.get("names") if column.type is not None else None
    names = [str(one) for one in given] if isinstance(given, list) and len(given) == points.shape[1] else []
    if len(set(names)) < points.shape[1] or not {*spatial.XYZ} <= {*names}:
        names = [*spatial.XYZ, *(f"field {number}" for number in range(3, points.shape[1]))]
    cloud = np.empty(len(points), [(name, points.dtype) for name in names])
    for number, name in enumerate(names):
        cloud[name] = points[:, number]
    return cloud


def thinned(count: int, most: int, /) -> Ints:
    """[min(count, most)] ascending numbers: all, or one of each of `most` even spans.

    Example:
        >>> thinned(3, 5).tolist(), thinned(12, 4).tolist()
        ([0, 1, 2], [0, 4, 6, 11])
    """
    if count <= most:
        return np.arange(count, dtype=np.int64)
    edges = np.arange(most + 1, dtype=np.int64) * count // most
    turns = np.arange(most) * _TURN % 1.0
    places: Ints = edges[:-1] + (turns * np.diff(edges)).astype(np.int64)
    return places


def drawn(cloud: NDArray[Any], /, *, most: int, by: str | None = None) -> DrawnCloud:
    """A cloud thinned to at most `most` points, coloured.

    Args:
        cloud: [points] structured.
        most: Points that are kept.
        by: What colours them, one of the result's `choices`; by default colours that the points have, else an
            intensity that differs, else the height.

    Raises:
        SchemaMismatchError: Nothing of that name can colour them.
        DecodeError: It has no `x`, `y` and `z`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        there = np.flatnonzero(_have_places(cloud))
        some = cloud[there[thinned(len(there), most)]]
        places = np.stack([_numbers(some, axis) for axis in spatial.XYZ], -1)
        origin = origin_of(places)
        offered = _choices(cloud.dtype)
        chosen = by or _usual(some, offered)
        if chosen not in offered:
            raise SchemaMismatchError(
                f"Points cannot be coloured by {chosen!r:.80}.", hint=f"Choose one of: {', '.join(offered)}."
            )
        colors = _colors(some) if chosen == RGB else None
        values = None
        if colors is None:
            values = (places[:, 2] if chosen == HEIGHT else _numbers(some, chosen)).astype(np.float32)
        return DrawnCloud(
            points=(places - origin).astype(np.float32),
            origin=tuple(origin.tolist()),
            colors=colors,
            values=values,
            span=(0.0, 1.0) if values is None else _span(values),
            by=chosen,
            choices=offered,
            total=len(cloud),
            lost=len(cloud) - len(there),
        )


def origin_of(places: NDArray[np.float64], /) -> NDArray[np.float64]:
    """[3] what [n, 3] places are taken from before they become float32: zeros where that keeps millimetres as they are.

    Example:
        >>> origin_of(np.array([[500_000.5, 0.0, 2.0]])).tolist()
        [500000.0, 0.0, 2.0]
    """
    widest = float(np.abs(places).max(initial=0.0))
    return np.floor(places.mean(axis=0)) if widest > _EXACT else np.zeros(3)


def _have_places(cloud: NDArray[Any]) -> NDArray[np.bool_]:
    """[points] whether each is somewhere; of one axis after the other, since clouds are large."""
    there = np.ones(len(cloud), np.bool_)
    named: Mapping[str, Any] = cloud.dtype.fields or {}
    for axis in spatial.XYZ:
        if axis not in named or named[axis][0].shape:
            raise DecodeError(f"Points have no field {axis!r}; there are {', '.join(named) or 'none'}.")
        there &= np.abs(cloud[axis]) < FAR
    return there


def _numbers(cloud: NDArray[Any], name: str) -> NDArray[np.float64]:
    """[points] one field as float64."""
    numbers: NDArray[np.float64] = cloud[name].astype(np.float64)
    return numbers


def _choices(kind: np.dtype[Any]) -> tuple[str, ...]:
    """What can colour points of a type: their colours, their height, and fields of numbers."""
    named: Mapping[str, Any] = kind.fields or {}
    triple = _triple(named)
    packed = next((one for one in _PACKED if _packs(named, one)), None)
    used = {*spatial.XYZ, HEIGHT, RGB, *(triple or ()), *([packed] if packed and not triple else [])}
    fields = [name for name, (one, *_) in named.items() if name not in used and not one.shape and one.kind in "fiub"]
    likely = sorted(fields, key=lambda name: (name.lower() not in _INTENSITIES, name.lower() != "ring"))
    return (*([RGB] if triple or packed else []), HEIGHT, *likely[:_NAMED])


def _triple(named: Mapping[str, Any]) -> tuple[str, str, str] | None:
    known = {name for name, (one, *_) in named.items() if not one.shape}
    return next((one for one in _TRIPLES if {*one} <= known), None)


def _packs(named: Mapping[str, Any], name: str) -> bool:
    """Whether a field holds three bytes of colour in one number, as those of PCL do."""
    return name in named and not named[name][0].shape and named[name][0].itemsize == 4


def _usual(cloud: NDArray[Any], offered: Sequence[str]) -> str:
    """What colours points that nobody chose a colour for."""
    if offered[0] == RGB:
        return RGB
    for name in offered:
        if name.lower() in _INTENSITIES:
            low, high = _span(_numbers(cloud, name).astype(np.float32))
            if high > low:
                return name
    return HEIGHT


def _colors(cloud: NDArray[Any]) -> NDArray[np.float32]:
    """[points, 3] red, green and blue from 0 to 1."""
    named: Mapping[str, Any] = cloud.dtype.fields or {}
    triple = _triple(named)
    if triple is None:
        name = next(one for one in _PACKED if _packs(named, one))
        bits = np.ascontiguousarray(cloud[name]).view(np.uint32)
        parts = np.stack([bits >> 16 & 255, bits >> 8 & 255, bits & 255], -1)
        return (parts / 255).astype(np.float32)
    parts = np.stack([_numbers(cloud, name) for name in triple], -1)
    if triple[0].startswith("f_dc"):
        parts = 0.5 + _FIRST * parts
    elif named[triple[0]][0].kind != "f" or (np.nanmax(parts, initial=0.0) > 1):
        deep = named[triple[0]][0].itemsize > 1 and np.nanmax(parts, initial=0.0) > 255
        parts = parts / (65535 if deep else 255)
    return np.clip(np.nan_to_num(parts, nan=0.5), 0, 1).astype(np.float32)


def _span(values: NDArray[np.float32]) -> tuple[float, float]:
    """Between which values nearly all are."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return (0.0, 0.0)
    low, high = np.percentile(finite.astype(np.float64), _ENDS).tolist()
    return (float(low), float(high)) if high > low else (float(finite.min()), float(finite.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The square that is seen from above.

    Attributes:
        centre: Of it.
        half: From its centre to its sides.
    """

    centre: tuple[float, float]
    half: float


def ground(clouds: Sequence[DrawnCloud], /) -> Ground:
    """What nearly all points of some clouds stand on; a square of side 2 where there are none."""
    places = [(one.points[:, :2].astype(np.float64) + one.origin[:2]) for one in clouds]
    joined = np.concatenate([np.zeros((0, 2)), *places])
    if not len(joined):
        return Ground(centre=(0.0, 0.0), half=1.0)
    low, high = np.percentile(joined, _ENDS, axis=0)
    x, y = ((low + high) / 2).tolist()
    return Ground(centre=(x, y), half=max(float((high - low).max()) * 0.54, 1e-6))


def seen_from_above(cloud: DrawnCloud, ground: Ground, size: int, /) -> NDArray[np.uint8]:
    """A cloud seen from above, the highest point of each pixel on top: uint8 [size, size, 3]; y points up."""
    picture = np.empty((size, size, 3), np.uint8)
    picture[:] = _NIGHT
    scale = size / (2 * ground.half)
    x = (cloud.points[:, 0].astype(np.float64) + cloud.origin[0] - ground.centre[0]) * scale + size / 2
    y = size / 2 - (cloud.points[:, 1].astype(np.float64) + cloud.origin[1] - ground.centre[1]) * scale
    order = np.argsort(cloud.points[:, 2], kind="stable")
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    order = order[inside[order]]
    picture[y[order].astype(np.int64), x[order].astype(np.int64)] = _shades(cloud)[order]
    return picture


def _shades(cloud: DrawnCloud) -> NDArray[np.uint8]:
    """[n, 3] the colour of each point."""
    if cloud.colors is not None:
        return (cloud.colors * 255).astype(np.uint8)
    assert cloud.values is not None
    low, high = cloud.span
    share = (cloud.values.astype(np.float64) - low) / (high - low) if high > low else np.full(len(cloud.points), 0.5)
    place = np.clip(np.nan_to_num(share, nan=0.0, posinf=1.0, neginf=0.0), 0, 1) * (len(_VIRIDIS) - 1)
    at = np.minimum(place.astype(np.int64), len(_VIRIDIS) - 2)
    part = (place - at)[:, None]
    shades: NDArray[np.uint8] = (_VIRIDIS[at] * (1 - part) + _VIRIDIS[at + 1] * part).astype(np.uint8)
    return shades

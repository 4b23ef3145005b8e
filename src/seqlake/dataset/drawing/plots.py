"""Curves with axes, a title and a legend: as SVG, as PNG, or drawn into a larger picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from seqlake.dataset.drawing.canvas import FAINT, GREY, INK, Canvas, line_height, save, width_of
from seqlake.errors import in_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

COLORS = (
    *("#2f6fdf", "#e4572e", "#2a9d6f", "#8a4fd3", "#d99a00", "#0e9aa7", "#c2407e", "#6b7a1c"),
    *("#8db4f5", "#f5a58f", "#86cfb1", "#c2a1ec", "#f0cf7a", "#7fd0d6", "#e29cc0", "#b5c077"),
)
"""Of curves: a dimension has the same colour in every picture."""

_SIDE = 16  # pixels left and right of everything
_TITLE, _LEGEND, _TICK = 13, 11, 10  # sizes of text
_SWATCH = 14  # pixels of a legend's bit of line
_POINTS = 2  # for each pixel: the lowest and the highest value there
_LANE, _LANE_GAP = 46, 8
_DOT = np.array([[-1.5, 0], [1.5, 0], [0, 0], [0, -1.5], [0, 1.5]])  # a line through one point alone
_DIFFER = 10  # a curve that would be lower than a tenth of the plot is not drawn on the scale of the others


class Text(NamedTuple):
    """One line of text, its upper left corner at a place."""

    x: float
    y: float
    text: str
    color: str
    size: int
    bold: bool = False


class Line(NamedTuple):
    """A line through points [N, 2]."""

    points: NDArray[np.float64]
    color: str


class Fill(NamedTuple):
    """A rectangle that is painted."""

    x: float
    y: float
    width: float
    height: float
    color: str
    opacity: float = 1


Mark: TypeAlias = Text | Line | Fill


class _Scale(NamedTuple):
    """Values from low to high, laid over pixels."""

    low: float
    high: float
    start: float
    stop: float

    def place(self, values: Any) -> Any:
        # Divided one by one: the difference of the largest numbers there are is more than a number can say.
        span = self.high / 2 - self.low / 2
        share = (np.asarray(values) / 2 - self.low / 2) / span if span > 0 else np.full(np.shape(values), 0.5)
        return self.start + share * (self.stop - self.start)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot.

    Where curves of different names have very different ranges each is drawn in a lane and on a scale of its own.

    Attributes:
        title: What it shows.
        curves: Name and [N, 2] points of each; a name that comes again has one colour and one line in the legend.
            Values that are not finite leave gaps.
        unit: Of the horizontal axis, as in `s`.
        note: What else there is to say, below the title.
        width: Pixels, margins included.
        height: Pixels, margins included; by default what its curves need.
    """

    title: str
    curves: Sequence[tuple[str, NDArray[Any]]]
    unit: str | None = None
    note: str = ""
    width: int = 460
    height: int = 0

    @cached_property
    def lanes(self) -> list[list[tuple[str, NDArray[np.float64]]]]:
        """The curves that share a scale."""
        curves = [(name, np.asarray(curve, np.float64).reshape(-1, 2)) for name, curve in self.curves]
        names = [name for name, _ in curves]
        if len(names) > 1 and len(set(names)) == len(names) and _ranges_differ([curve for _, curve in curves]):
            return [[one] for one in curves]
        return [curves] if curves else []

    def legend(self) -> list[tuple[str, str]]:
        """Name and colour of each curve, once."""
        names = dict.fromkeys(name for name, _ in self.curves)
        return [(name, COLORS[number % len(COLORS)]) for number, name in enumerate(names)]

    @cached_property
    def needed(self) -> int:
        """Pixels of height that its header and its curves need: more for more dimensions."""
        header = max((mark.y + line_height(mark.size) for mark in self._header() if isinstance(mark, Text)), default=0)
        if not self.lanes:
            return round(header) + 8
        together = min(190, 80 + 14 * len(self.legend()))
        plots = together if len(self.lanes) == 1 else len(self.lanes) * (_LANE + _LANE_GAP)
        return round(header) + 6 + plots + line_height(_TICK) + 14

    def marks(self) -> Iterator[Mark]:
        """What is to be drawn, from the back to the front."""
        header = list(self._header())
        yield from header
        if not self.lanes:
            return
        top = 6 + max(mark.y + line_height(mark.size) for mark in header if isinstance(mark, Text))
        bottom = (self.height or self.needed) - line_height(_TICK) - 10
        each = (bottom - top - _LANE_GAP * (len(self.lanes) - 1)) / len(self.lanes)
        lanes = []
        for number, curves in enumerate(self.lanes):
            above = top + number * (each + _LANE_GAP)
            lanes.append((curves, _Scale(*_extent(curves, 1), above + each - 1, above)))
        labels = [label for _, scale in lanes for _, label in _ticks_of(scale, 30)]
        left = _SIDE + max((width_of(label, size=_TICK) for label in labels), default=0) + 6
        across = _Scale(*_extent([one for curves in self.lanes for one in curves], 0), left, self.width - _SIDE - 1)
        for curves, scale in lanes:
            yield from self._lane(curves, across, scale)
        for value, label in _ticks_of(across, 90):
            text = f"{label} {self.unit or ''}".rstrip()
            wide = width_of(text, size=_TICK)
            x = min(max(0.0, float(across.place(value)) - wide / 2), self.width - wide)
            yield Text(x, bottom + 4, text, GREY, _TICK)

    def draw(self, canvas: Canvas, x: int, y: int, /) -> None:
        """Draw it with its upper left corner at a place."""
        for mark in self.marks():
            if isinstance(mark, Text):
                place = round(x + mark.x), round(y + mark.y)
                canvas.text(*place, mark.text, color=mark.color, size=mark.size, bold=mark.bold)
            elif isinstance(mark, Fill):
                size = round(mark.width), round(mark.height)
                canvas.fill(round(x + mark.x), round(y + mark.y), *size, color=mark.color, opacity=mark.opacity)
            else:
                canvas.line(mark.points + np.array([x, y]), color=mark.color)

    def spark(self, width: int, height: int, /) -> Iterator[Line]:
        """The curves alone, in a small space."""
        across = _Scale(*_extent([one for curves in self.lanes for one in curves], 0), 0, width - 1)
        for curves in self.lanes:
            yield from self._lines(curves, across, _Scale(*_extent(curves, 1), height - 1, 0), width)

    def _header(self) -> Iterator[Mark]:
        """Title, legend and note, wrapped to the width."""
        yield Text(_SIDE, 6, self.title, INK, _TITLE, True)
        x, y = _SIDE + width_of(self.title, size=_TITLE, bold=True) + 16, 6
        right, down = self.width - _SIDE, line_height(_LEGEND) + 1
        names = self.legend() if len(self.lanes) == 1 else []  # a lane has its name in it
        for name, color in names if [name for name, _ in names] != [self.title] else ():
            wide = _SWATCH + 4 + width_of(name, size=_LEGEND)
            if x + wide > right and x > _SIDE:
                x, y = _SIDE, y + (line_height(_TITLE) if y == 6 else down)
            yield Fill(x, y + line_height(_LEGEND) // 2, _SWATCH, 3, color)
            yield Text(x + _SWATCH + 4, y + 1, name, color, _LEGEND)
            x += wide + 12
        for line in wrapped(self.note.split(), right - _SIDE, size=_LEGEND, between=" "):
            y += line_height(_TITLE) if y == 6 else down
            yield Text(_SIDE, y, line, GREY, _LEGEND)

    def _lane(self, curves: Sequence[tuple[str, NDArray[np.float64]]], across: _Scale, scale: _Scale) -> Iterator[Mark]:
        for value, label in _ticks_of(scale, 30):
            y = round(float(scale.place(value)))
            yield Fill(across.start, y, across.stop - across.start + 1, 1, FAINT)
            x, tall = across.start - 6 - width_of(label, size=_TICK), line_height(_TICK)
            if len(self.lanes) > 1:  # two at the edges of neighbours would run into each other
                y = round(min(max(y, scale.stop + (tall - _LANE_GAP) / 2), scale.start - (tall - _LANE_GAP) / 2))
            yield Text(x, y - tall // 2, label, GREY, _TICK)
        for value, _ in _ticks_of(across, 90):
            yield Fill(round(float(across.place(value))), scale.stop, 1, scale.start - scale.stop + 1, FAINT)
        lines = list(self._lines(curves, across, scale, self.width))
        yield from lines
        if len(self.lanes) > 1:
            ((name, _),) = curves
            wide, tall = width_of(name, size=_LEGEND) + 6, line_height(_LEGEND)
            points = np.concatenate([np.empty((0, 2)), *(line.points for line in lines)])
            corners = [
                (x, y) for y in (scale.stop, scale.start - tall) for x in (across.start + 4, across.stop - wide - 4)
            ]
            across_at, down_at = min(
                corners, key=lambda at: int(((points >= at) & (points < np.add(at, (wide, tall)))).all(1).sum())
            )
            yield Fill(across_at, down_at, wide, tall, "#ffffff", 0.8)
            yield Text(across_at + 3, down_at, name, dict(self.legend())[name], _LEGEND)

    def _lines(
        self, curves: Sequence[tuple[str, NDArray[np.float64]]], across: _Scale, scale: _Scale, width: int
    ) -> Iterator[Line]:
        colors = dict(self.legend())
        for name, points in curves:
            for run in runs(np.asarray(np.isfinite(points).all(1))):
                x, y = envelope(points[run], _POINTS * width).T
                line = np.stack([across.place(x), scale.place(y)], -1)
                yield Line(line + _DOT if len(line) == 1 else line, colors[name])


def _extent(curves: Iterable[tuple[str, NDArray[np.float64]]], axis: int) -> tuple[float, float]:
    """Lowest and highest finite value; a little around it where there is only one."""
    points = np.concatenate([np.empty((0, 2)), *(curve for _, curve in curves)])
    values = points[np.isfinite(points).all(1), axis]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    around = (abs(low) / 10 or 0.5) if low == high else 0.0
    return low - around, high + around


def _ranges_differ(curves: Sequence[NDArray[np.float64]]) -> bool:
    """Whether some curve would be as good as flat on the scale of all."""
    ranges = [_extent([("", curve)], 1) for curve in curves if np.isfinite(curve).all(1).any()]
    if not ranges:
        return False
    every = max(high for _, high in ranges) / 2 - min(low for low, _ in ranges) / 2
    return any(high / 2 - low / 2 < every / _DIFFER for low, high in ranges)


def _ticks_of(scale: _Scale, apart: int) -> list[tuple[float, str]]:
    return ticks(scale.low, scale.high, max(2, int(abs(scale.stop - scale.start) // apart)))


def ticks(low: float, high: float, most: int, /) -> list[tuple[float, str]]:
    """Round values within a range, with what is written at each.

    Args:
        low: The least.
        high: The greatest.
        most: How many at most, about.

    Example:
        >>> [label for _, label in ticks(0.03, 1.07, 4)]
        ['0.5', '1.0']
    """
    span = high - low
    if not (math.isfinite(span) and span > 0 and span > 1e-12 * max(abs(low), abs(high))):
        return [(value, f"{value:.3g}") for value in dict.fromkeys((low, high))]
    size = 10.0 ** math.floor(math.log10(span / most))
    steps = [size * one for one in (10, 5, 2, 1, 0.5)]
    wide = [step for step in steps if step >= span / most]
    for step in [*reversed(wide), *(step for step in steps if step < span / most)]:
        values = (np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step).tolist()
        if len(values) > 1:
            break
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    plain = digits <= 4 and max(abs(low), abs(high)) < 1e12
    return [(value, f"{value + 0.0:.{digits}f}" if plain else f"{value:.4g}") for value in values]


def wrapped(parts: Iterable[str], room: int, /, *, size: int, between: str) -> list[str]:
    """Texts side by side, in as many lines as they need.

    Args:
        parts: Each stays whole.
        room: Pixels of a line.
        size: Of the text.
        between: What stands between two.

    Example:
        >>> wrapped(["one", "two", "three"], 60, size=12, between=" ")
        ['one two', 'three']
    """
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and width_of(longer, size=size) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def svg(panels: Sequence[Panel], path: Path, /) -> None:
    """Write the panels side by side as one SVG file."""
    width, height = sum(panel.width for panel in panels), max(panel.height or panel.needed for panel in panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="Inter, sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    left = 0
    for panel in panels:
        parts += [f'<g transform="translate({left},0)">', *map(_element, panel.marks()), "</g>"]
        left += panel.width
    path.write_text("".join([*parts, "</svg>"]), encoding="utf-8")


def _element(mark: Mark) -> str:
    if isinstance(mark, Text):
        weight = ' font-weight="600"' if mark.bold else ""
        place = f'x="{mark.x:.1f}" y="{mark.y + 1.06 * mark.size:.1f}" font-size="{mark.size}"'
        return f'<text {place}{weight} fill="{mark.color}">{escape(in_line(mark.text))}</text>'
    if isinstance(mark, Fill):
        place = f'x="{mark.x:.1f}" y="{mark.y:.1f}" width="{mark.width:.1f}" height="{mark.height:.1f}"'
        return f'<rect {place} fill="{mark.color}" fill-opacity="{mark.opacity:g}"/>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
    return f'<polyline points="{points}" fill="none" stroke="{mark.color}" stroke-width="1.4"/>'


def png(panels: Sequence[Panel], path: Path, /) -> None:
    """Write the panels side by side as one PNG picture."""
    heights = [panel.height or panel.needed for panel in panels]
    canvas = Canvas(sum(panel.width for panel in panels), max(heights))
    left = 0
    for panel in panels:
        panel.draw(canvas, left, 0)
        left += panel.width
    save(canvas.pixels, path)


def envelope(points: NDArray[Any], most: int, /) -> NDArray[Any]:
    """At most so many of the points [N, 2]: the lowest and highest of each stretch, so that no spike disappears.

    Args:
        points: In the order of x, all finite.
        most: How many to keep, about.

    Example:
        >>> envelope(np.array([[0, 1], [1, 9], [2, 1], [3, 2]]), 2).tolist()
        [[0, 1], [1, 9]]
    """
    if len(points) <= most:
        return points
    stretches = np.array_split(np.arange(len(points)), max(1, most // _POINTS))
    kept: list[int] = []
    for stretch in stretches:
        values = points[stretch, 1]
        kept += sorted({int(stretch[values.argmin()]), int(stretch[values.argmax()])})
    return points[kept]


def runs(present: NDArray[np.bool_], /) -> Iterable[slice]:
    """The unbroken stretches of True.

    Example:
        >>> list(runs(np.array([True, True, False, True])))
        [slice(0, 2, None), slice(3, 4, None)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], present, [False]])))
    return [slice(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]

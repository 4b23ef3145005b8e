"""Curves with a frame, a title and a legend: as SVG, as PNG, or drawn into a larger picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing.canvas import FAINT, GREY, LINE, Canvas, save, width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

COLORS = ("#4363d8", "#e6194b", "#3cb44b", "#f58231", "#911eb4", "#469990", "#9a6324", "#808000")
"""Of curves: a dimension has the same colour in every picture."""

_MARGIN = 34
_POINTS = 2  # for each pixel: the lowest and the highest value there


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot.

    Attributes:
        title: What it shows.
        curves: Name and [N, 2] points of each; a name that comes again has one colour and one line in the legend.
            Values that are not finite leave gaps.
        unit: Of the horizontal axis, as in `s`; its ends are named where it is given.
        width: Pixels, margins included.
        height: Pixels, margins included.
    """

    title: str
    curves: Sequence[tuple[str, NDArray[Any]]]
    unit: str | None = None
    width: int = 460
    height: int = 300

    def range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lowest and highest x and y of all finite points."""
        points = np.concatenate([np.empty((0, 2)), *(np.asarray(curve, np.float64) for _, curve in self.curves)])
        points = points[np.isfinite(points).all(1)]
        return (points.min(0), points.max(0)) if len(points) else (np.zeros(2), np.ones(2))

    def placed(self) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
        """Name, colour and [n, 2] pixels of every unbroken piece of every curve, y downwards."""
        low, high = self.range()
        room = np.array([self.width - 2 * _MARGIN - 1, self.height - 2 * _MARGIN - 1])
        scale = room / np.where(high > low, high - low, 1)
        colors = dict(self.legend())
        for name, curve in self.curves:
            points = np.asarray(curve, np.float64)
            for run in runs(np.asarray(np.isfinite(points).all(1))):
                part = envelope(points[run], 2 * self.width)
                x, y = ((part - low) * scale).T
                yield name, colors[name], np.stack([x + _MARGIN, self.height - _MARGIN - 1 - y], -1)

    def legend(self) -> list[tuple[str, str]]:
        """Name and colour of each curve, once."""
        names = dict.fromkeys(name for name, _ in self.curves)
        return [(name, COLORS[number % len(COLORS)]) for number, name in enumerate(names)]

    def draw(self, canvas: Canvas, x: int, y: int, /) -> None:
        """Draw it with its upper left corner at a place."""
        right, bottom = x + self.width - _MARGIN, y + self.height - _MARGIN
        canvas.text(x + _MARGIN, y + _MARGIN - 2 * LINE - 3, self.title, scale=2)
        canvas.box(x + _MARGIN, y + _MARGIN, self.width - 2 * _MARGIN, self.height - 2 * _MARGIN)
        for _, color, points in self.placed():
            canvas.line(points + np.array([x, y]), color=color)
        (left, low), (end, high) = self.range()
        for value, place in ((high, y + _MARGIN), (low, bottom - LINE)):
            label = f"{value:.3g}"
            canvas.text(max(x, x + _MARGIN - 3 - width_of(label)), place, label, color=GREY)
        if self.unit is not None:
            canvas.text(x + _MARGIN, bottom + 3, f"{left:.4g} {self.unit}".rstrip(), color=GREY)
            label = f"{end:.4g} {self.unit}".rstrip()
            canvas.text(right - width_of(label), bottom + 3, label, color=GREY)
        place = x + _MARGIN + width_of(self.title, scale=2) + 12
        for name, color in self.legend():
            if place + width_of(name) > right:
                break
            place = canvas.text(place, y + _MARGIN - LINE - 2, name, color=color) + 8


def svg(panels: Sequence[Panel], path: Path, /) -> None:
    """Write the panels side by side as one SVG file."""
    width, height = sum(panel.width for panel in panels), max(panel.height for panel in panels)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        )
    ]
    left = 0
    for panel in panels:
        parts.append(f'<g transform="translate({left},0)">')
        parts.append(
            f'<text x="{panel.width / 2}" y="18" text-anchor="middle" font-size="13">{escape(panel.title)}</text>'
        )
        parts.append(
            f'<rect x="{_MARGIN}" y="{_MARGIN}" width="{panel.width - 2 * _MARGIN}" '
            f'height="{panel.height - 2 * _MARGIN}" fill="none" stroke="{FAINT}"/>'
        )
        for _, color, points in panel.placed():
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-opacity="0.7"/>')
        for row, (name, color) in enumerate(panel.legend()):
            parts.append(f'<text x="{_MARGIN + 6}" y="{_MARGIN + 14 + 14 * row}" fill="{color}">{escape(name)}</text>')
        parts.append("</g>")
        left += panel.width
    path.write_text("".join([*parts, "</svg>"]), encoding="utf-8")


def png(panels: Sequence[Panel], path: Path, /) -> None:
    """Write the panels side by side as one PNG picture."""
    canvas = Canvas(sum(panel.width for panel in panels), max(panel.height for panel in panels))
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

"""A few curves as SVG, and as PNG, without a plotting library."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

COLORS = ("#4363d8", "#e6194b", "#3cb44b", "#f58231", "#911eb4", "#469990", "#9a6324", "#808000")
WIDTH, HEIGHT, MARGIN = 460, 300, 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture: a title and named curves, each [N, 2] points."""

    title: str
    curves: Sequence[tuple[str, NDArray[Any]]]

    def placed(self) -> list[NDArray[Any]]:
        """The curves in pixels of this panel, y downwards."""
        points = np.concatenate([curve for _, curve in self.curves])
        low, high = points.min(0), points.max(0)
        room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
        scale = room / np.where(high > low, high - low, 1)
        places = [(curve - low) * scale + MARGIN for _, curve in self.curves]
        return [np.stack([p[:, 0], HEIGHT - p[:, 1]], -1) for p in places]


def svg(panels: Sequence[Panel], path: Path, /) -> None:
    """Write the panels side by side as one SVG file."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        )
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * WIDTH},0)">')
        parts.append(f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-size="13">{escape(panel.title)}</text>')
        parts.append(
            f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}" '
            'fill="none" stroke="#ccc"/>'
        )
        names: dict[str, str] = {}
        for (name, _), points in zip(panel.curves, panel.placed(), strict=True):
            color = names.setdefault(name, COLORS[len(names) % len(COLORS)])
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-opacity="0.7"/>')
        for row, (name, color) in enumerate(names.items()):
            parts.append(f'<text x="{MARGIN + 6}" y="{MARGIN + 14 + 14 * row}" fill="{color}">{escape(name)}</text>')
        parts.append("</g>")
    path.write_text("".join([*parts, "</svg>"]), encoding="utf-8")


def png(panels: Sequence[Panel], path: Path, /) -> None:
    """Write the curves as one PNG picture, without text."""
    import av

    picture = np.full((HEIGHT, WIDTH * len(panels), 3), 255, np.uint8)
    for number, panel in enumerate(panels):
        left = number * WIDTH
        picture[MARGIN : HEIGHT - MARGIN, [left + MARGIN, left + WIDTH - MARGIN]] = 204
        picture[[MARGIN, HEIGHT - MARGIN], left + MARGIN : left + WIDTH - MARGIN] = 204
        names: dict[str, str] = {}
        for (name, _), points in zip(panel.curves, panel.placed(), strict=True):
            color = names.setdefault(name, COLORS[len(names) % len(COLORS)])
            x, y = _dense(points).T
            picture[y.clip(0, HEIGHT - 1), left + x.clip(0, WIDTH - 1)] = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as file:
        stream = file.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = picture.shape[1], picture.shape[0], "rgb24"
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        file.mux([*stream.encode(frame), *stream.encode()])


def _dense(points: NDArray[Any]) -> NDArray[np.int64]:
    """Pixels along a line through the points, [M, 2]."""
    length = np.abs(np.diff(points, axis=0)).max(1)
    along = np.concatenate([[0.0], np.cumsum(np.maximum(length, 1e-9))])
    at = np.arange(0, along[-1], 0.5)
    return np.stack([np.interp(at, along, points[:, i]) for i in (0, 1)], -1).round().astype(np.int64)

"""A picture to draw on: lines, boxes, text and other pictures, as an array."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing import _font
from seqlake.media._encoding import encode_image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

INK, GREY, FAINT, RED = "#202020", "#707070", "#cccccc", "#b00020"
LINE = _font.HEIGHT
"""Pixels from one line of text to the next, at scale 1."""


class Canvas:
    """A white picture; what is drawn beyond its edges is left out.

    Args:
        width: Pixels.
        height: Pixels.

    Attributes:
        pixels: uint8 [height, width, 3].
    """

    def __init__(self, width: int, height: int, /) -> None:
        self.pixels = np.full((height, width, 3), 255, np.uint8)

    def text(self, x: int, y: int, text: str, /, *, color: str = INK, scale: int = 1) -> int:
        """Write one line with its upper left corner at a place; gives where it ends."""
        dots = np.kron(_font.dots(text), np.ones((scale, scale), np.bool_))
        area = self._area(x, y, dots.shape[1], dots.shape[0])
        area[_part(dots, x, y, area)] = rgb(color)
        return x + int(dots.shape[1])

    def box(self, x: int, y: int, width: int, height: int, /, *, color: str = FAINT) -> None:
        """The outline of a rectangle."""
        for area in (
            self._area(x, y, width, 1),
            self._area(x, y + height - 1, width, 1),
            self._area(x, y, 1, height),
            self._area(x + width - 1, y, 1, height),
        ):
            area[:] = rgb(color)

    def line(self, points: NDArray[Any], /, *, color: str = INK) -> None:
        """A line through points [N, 2] in pixels, y downwards."""
        x, y = _dense(points).T
        height, width = self.pixels.shape[:2]
        seen = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        self.pixels[y[seen], x[seen]] = rgb(color)

    def paste(self, picture: NDArray[np.uint8], x: int, y: int, /) -> None:
        """Put a picture, uint8 [h, w, 3], with its upper left corner at a place."""
        area = self._area(x, y, picture.shape[1], picture.shape[0])
        area[:] = _part(picture, x, y, area)

    def _area(self, x: int, y: int, width: int, height: int) -> NDArray[np.uint8]:
        return self.pixels[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]


def rgb(color: str, /) -> tuple[int, int, int]:
    """`#rrggbb` as three numbers.

    Example:
        >>> rgb("#ff0080")
        (255, 0, 128)
    """
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def save(pixels: NDArray[np.uint8], path: Path, /) -> None:
    """Write a picture, uint8 [H, W, 3], as PNG; the file appears whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        fresh.write_bytes(encode_image(pixels))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def width_of(text: str, /, *, scale: int = 1) -> int:
    """Pixels that a line of text takes."""
    return scale * int(_font.dots(text).shape[1])


def _part(picture: NDArray[Any], x: int, y: int, area: NDArray[Any]) -> NDArray[Any]:
    """What of a picture at a place lies within the canvas."""
    top, left = max(0, -y), max(0, -x)
    return picture[top : top + area.shape[0], left : left + area.shape[1]]


def _dense(points: NDArray[Any]) -> NDArray[np.int64]:
    """Pixels along a line through the points, [M, 2]."""
    if len(points) < 2:
        return points.round().astype(np.int64)
    length = np.abs(np.diff(points, axis=0)).max(1)
    along = np.concatenate([[0.0], np.cumsum(np.maximum(length, 1e-9))])
    at = np.append(np.arange(0, along[-1], 0.5), along[-1])
    return np.stack([np.interp(at, along, points[:, i]) for i in (0, 1)], -1).round().astype(np.int64)

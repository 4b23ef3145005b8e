"""A picture to draw on: smooth lines, boxes, text and other pictures, as an array.

The letters are those of Inter, drawn once by `scripts/typeface` and scaled to the size that is asked for: Pillow is no
dependency of the core, and the font that it brings has few letters beyond ASCII.
"""

from __future__ import annotations

import secrets
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import in_line
from seqlake.media import encode_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

INK, GREY, FAINT, RED = "#1b1f24", "#6b7480", "#e3e6ea", "#c4222f"
TEXT = 12
"""Pixels of ordinary text: the height of an em."""

_EM = 40  # of the letters as they are stored
_LINE = 1.4  # ems from one line to the next
_FINE = 4  # a line is drawn on so many dots a pixel, each way


def line_height(size: int = TEXT, /) -> int:
    """Pixels from one line of text to the next."""
    return round(_LINE * size)


@dataclass(frozen=True, slots=True)
class _Letter:
    pixels: NDArray[np.uint8]  # [rows, width], how much of each is ink
    advance: int  # to the next letter
    left: int  # columns before its start


class _Face:
    """The letters of one weight."""

    def __init__(self, weight: str) -> None:
        with np.load(Path(__file__).with_name("letters.npz")) as stored:
            codes, shape = stored[f"{weight}_codes"].tolist(), stored[f"{weight}_shape"]
            pixels, self.ascent = stored[f"{weight}_pixels"], int(stored[f"{weight}_ascent"])
        parts = np.split(pixels, np.cumsum(shape[:-1, 1]), axis=1)
        self.rows = len(pixels)
        self.letters = {
            chr(code): _Letter(part, advance, left)
            for code, part, (advance, _, left) in zip(codes, parts, shape.tolist(), strict=True)
        }
        self.unknown = _frame(self.rows, self.ascent)

    def text(self, text: str) -> list[_Letter]:
        """Its letters; what has none is read without its marks, and else an empty frame."""
        whole = [one for one in unicodedata.normalize("NFC", in_line(text)) if not unicodedata.combining(one)]
        return [self.letters.get(one) or self.letters.get(_bare(one)) or self.unknown for one in whole]


def _bare(one: str) -> str:
    """A letter without its marks. What would be another text without them, `≢`, or by half, `ﬁ` and `⑩`, stays."""
    base = unicodedata.normalize("NFD", one)[0]
    return base if base.isalpha() else one


def _frame(rows: int, ascent: int) -> _Letter:
    pixels = np.zeros((rows, 22), np.uint8)
    pixels[ascent - 29 : ascent, 3:19] = 255
    pixels[ascent - 26 : ascent - 3, 6:16] = 0
    return _Letter(pixels, 22, 0)


@cache
def _face(bold: bool) -> _Face:  # noqa: FBT001 - two weights
    return _Face("bold" if bold else "regular")


def width_of(text: str, /, *, size: int = TEXT, bold: bool = False) -> int:
    """Pixels that a line of text takes."""
    return int(np.ceil(sum(one.advance for one in _face(bold).text(text)) * size / _EM))


def shortened(text: str, room: int, /, *, size: int = TEXT, bold: bool = False) -> str:
    """The text, or as much of its beginning as a line of so many pixels holds, with an ellipsis.

    Example:
        >>> shortened("a rather long name", 60)
        'a rather …'
    """
    if width_of(text, size=size, bold=bold) <= room:
        return text
    while text and width_of(f"{text}…", size=size, bold=bold) > room:
        text = text[:-1]
    return f"{text}…"


def ink(text: str, /, *, size: int = TEXT, bold: bool = False) -> NDArray[np.float32]:
    """A line of text as what part of each pixel it covers, [line height, width], from 0 to 1.

    Args:
        text: One line; characters without a letter here are an empty frame.
        size: Pixels of an em.
        bold: Heavier letters.

    Example:
        >>> ink("ab", size=20).shape
        (28, 24)
    """
    face = _face(bold)
    letters = face.text(text)
    drawn = np.zeros((face.rows, sum(one.advance for one in letters) + 2 * _EM), np.uint8)
    x = _EM  # letters may reach beyond their own width, the first and the last too
    for one in letters:
        area = drawn[:, x - one.left : x - one.left + one.pixels.shape[1]]
        np.maximum(area, one.pixels, out=area)
        x += one.advance
    scale, height = size / _EM, line_height(size)
    baseline = round(0.5 * height + 0.36 * size)  # capitals stand in the middle of the line
    rows = face.ascent + (np.arange(height + 1) - baseline) / scale
    columns = _EM + np.arange(width_of(text, size=size, bold=bold) + 1) / scale
    covered = _mean_between(_mean_between(drawn.astype(np.float32), rows).T, columns).T
    return np.asarray(covered * (scale * scale / 255), np.float32)


def _mean_between(values: NDArray[np.float32], edges: NDArray[np.float64]) -> NDArray[np.float32]:
    """The sum of rows between each two edges, parts of rows counted in part."""
    sums = np.concatenate([np.zeros((1, values.shape[1]), np.float64), np.cumsum(values, axis=0, dtype=np.float64)])
    at = np.clip(edges, 0, len(values))
    whole = np.minimum(at.astype(np.int64), len(values) - 1)
    cumulated = sums[whole] + (at - whole)[:, None] * values[whole]
    return np.asarray(np.diff(cumulated, axis=0), np.float32)


class Canvas:
    """A white picture; what is drawn beyond its edges is left out.

    Args:
        width: Pixels.
        height: Pixels.

    Attributes:
        pixels: uint8 [height, width, 3].
    """

    def __init__(self, width: int, height: int, /) -> None:
        self.pixels: NDArray[np.uint8] = np.full((height, width, 3), 255, np.uint8)

    def text(self, x: int, y: int, text: str, /, *, color: str = INK, size: int = TEXT, bold: bool = False) -> int:
        """Write one line with its upper left corner at a place; gives where it ends."""
        covered = ink(text, size=size, bold=bold)
        self._blend(covered, x, y, color)
        return x + int(covered.shape[1])

    def fill(self, x: int, y: int, width: int, height: int, /, *, color: str = FAINT, opacity: float = 1) -> None:
        """Paint a rectangle, as dense as `opacity` says."""
        self._blend(np.full((max(0, height), max(0, width)), opacity, np.float32), x, y, color)

    def line(self, points: NDArray[Any], /, *, color: str = INK, width: float = 1.4) -> None:
        """A smooth line through the middles of pixels [N, 2], y downwards, so many pixels wide."""
        height, across = self.pixels.shape[:2]
        places = np.asarray(points, np.float64)
        reach = np.ceil(width) + 1
        least = np.floor(np.clip(places.min(0) - reach, 0, (across, height))).astype(int)
        most = np.ceil(np.clip(places.max(0) + reach + 1, 0, (across, height))).astype(int)
        if (most <= least).any():
            return
        columns, rows = (most - least).tolist()
        fine = np.zeros((_FINE * rows, _FINE * columns), np.bool_)
        x, y = np.floor(_dense((places + 0.5 - least) * _FINE)).astype(np.int64).T
        inside = (x >= 0) & (x < fine.shape[1]) & (y >= 0) & (y < fine.shape[0])
        fine[y[inside], x[inside]] = True
        covered = _thicker(fine, width * _FINE / 2).reshape(rows, _FINE, columns, _FINE).mean((1, 3), dtype=np.float32)
        self._blend(covered, int(least[0]), int(least[1]), color)

    def paste(self, picture: NDArray[np.uint8], x: int, y: int, /) -> None:
        """Put a picture, uint8 [h, w, 3], with its upper left corner at a place."""
        area = self._area(x, y, picture.shape[1], picture.shape[0])
        area[:] = _part(picture, x, y, area)

    def _blend(self, covered: NDArray[np.float32], x: int, y: int, color: str) -> None:
        area = self._area(x, y, covered.shape[1], covered.shape[0])
        part = _part(covered, x, y, area)[..., None]
        area[:] = np.rint(area * (1 - part) + np.array(rgb(color), np.float32) * part)

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


def _part(picture: NDArray[Any], x: int, y: int, area: NDArray[Any]) -> NDArray[Any]:
    """What of a picture at a place lies within the canvas."""
    top, left = max(0, -y), max(0, -x)
    return picture[top : top + area.shape[0], left : left + area.shape[1]]


def _thicker(dots: NDArray[np.bool_], radius: float) -> NDArray[np.bool_]:
    """Every dot as a disc."""
    reach = int(radius)
    padded = np.pad(dots, reach)
    result = np.zeros_like(dots)
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            if down * down + right * right <= radius * radius:
                top, left = reach + down, reach + right
                result |= padded[top : top + dots.shape[0], left : left + dots.shape[1]]
    return result


def _dense(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places along a line through the points, [M, 2], half a unit apart at most."""
    if len(points) < 2:
        return points
    length = np.abs(np.diff(points, axis=0)).max(1)
    along = np.concatenate([[0.0], np.cumsum(np.maximum(length, 1e-9))])
    at = np.append(np.arange(0, along[-1], 0.5), along[-1])
    return np.stack([np.interp(at, along, points[:, i]) for i in (0, 1)], -1)

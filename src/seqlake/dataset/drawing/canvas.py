"""A picture to draw on: lines, boxes, text and other pictures, as an array.

The letters are here because every picture needs them: Pillow is no dependency of the core, and the one font that it
brings has ASCII letters only, too.
"""

from __future__ import annotations

import secrets
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.media import encode_image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

WIDTH, HEIGHT = 6, 9
"""Dots from one letter to the next, and from one line to the next."""

# Of each character from space to tilde five columns, left to right, each a byte with the top dot lowest.
_COLUMNS = bytes.fromhex(
    "0000000000 00005f0000 0007000700 147f147f14 242a7f2a12 2313086462 3649562050 0005030000 001c224100 0041221c00"
    "2a1c7f1c2a 08083e0808 0050300000 0808080808 0060600000 2010080402 3e5149453e 00427f4000 4261514946 2141454b31"
    "1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e 0036360000 0056360000 0814224100 1414141414"
    "0041221408 0201510906 324979413e 7e1111117e 7f49494936 3e41414122 7f4141221c 7f49494941 7f09090901 3e4149497a"
    "7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e 7f09090906 3e4151215e"
    "7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f 6314081463 0708700807 6151494543 007f414100"
    "0204081020 0041417f00 0402010204 4040404040 0001020400 2054545478 7f48444438 3844444420 384444487f 3854545418"
    "087e090102 0c5252523e 7f08040478 00447d4000 2040443d00 7f10284400 00417f4000 7c04180478 7c08040478 3844444438"
    "7c14141408 081414187c 7c08040408 4854545420 043f444020 3c4040207c 1c2040201c 3c4030403c 4428102844 0c5050503c"
    "4464544c44 0008364100 00007f0000 0041360800 1008081008"
)
_UNKNOWN = bytes.fromhex("7f4141417f")


def dots(text: str, /) -> NDArray[np.bool_]:
    """The text as dots, [9, 6 x letters]; what has no letter here is an empty frame.

    Example:
        >>> dots("ab").shape
        (9, 12)
    """
    plain = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    letters = [_letter(one) for one in plain]
    return np.concatenate(letters, axis=1) if letters else np.zeros((HEIGHT, 0), np.bool_)


@cache
def _letter(one: str) -> NDArray[np.bool_]:
    place = 5 * (ord(one) - ord(" "))
    columns = _COLUMNS[place : place + 5] if 0 <= place < len(_COLUMNS) else _UNKNOWN
    glyph = np.zeros((HEIGHT, WIDTH), np.bool_)
    glyph[1:8, :5] = np.unpackbits(np.frombuffer(columns, np.uint8)[None], axis=0, bitorder="little")[:7]
    return glyph


INK, GREY, FAINT, RED = "#202020", "#707070", "#cccccc", "#b00020"
LINE = HEIGHT
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
        letters = np.kron(dots(text), np.ones((scale, scale), np.bool_))
        area = self._area(x, y, letters.shape[1], letters.shape[0])
        area[_part(letters, x, y, area)] = rgb(color)
        return x + int(letters.shape[1])

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
    return scale * int(dots(text).shape[1])


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

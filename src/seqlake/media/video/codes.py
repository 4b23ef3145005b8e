"""Pictures as the numbers that their file stores: no matrix, no range, no rounding to 8 bits.

What pixels a column hands out is decided here: RGB of 8 bits by FFmpeg's converter, or these codes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seqlake.errors import DecodeError
from seqlake.media._frames import centres
from seqlake.media.video.pixels import Converter, planes_of, turned
from seqlake.spec.pixel_formats import RGB, differs, plain

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.media.video.packets import StreamInfo
    from seqlake.spec.column_types import ColumnType

# By the name without the order of bytes: places of red, green and blue (or grey) among all samples of a pixel.
_PACKED = {
    "rgb48": ((0, 1, 2), 3),
    "bgr48": ((2, 1, 0), 3),
    "rgba64": ((0, 1, 2), 4),
    "bgra64": ((2, 1, 0), 4),
    "ya16": ((0,), 2),
}
_HIGH = {"p010": 6, "p012": 4, "p016": 0, "p210": 6, "p212": 4, "p216": 0, "p410": 6, "p412": 4, "p416": 0}
_PLANAR = ("gray", "yuv", "gbr")  # what the names of planar pixels begin with


class Pixels(NamedTuple):
    """What the pixels of a file are, as far as arrays differ by it.

    Attributes:
        name: Without the order of bytes, which arrays do not keep.
        bits: Of a sample.
        channels: 1 for grey, else 3; alpha is left out.
        why: Why codes cannot be handed out; empty where they can.
    """

    name: str
    bits: int
    channels: int
    why: str = ""


@cache
def pixels_of(pix_fmt: str, /) -> Pixels:
    """What FFmpeg's name of pixels stands for."""
    import av

    name = plain(pix_fmt)
    try:
        parts = av.VideoFormat(pix_fmt).components
    except ValueError:  # no such pixels: the decoder says so
        return Pixels(name, 8, 3)
    bits = max((part.bits for part in parts), default=8)
    channels = 1 if sum(not part.is_alpha for part in parts) < 3 else 3
    known = name in _PACKED or name in _HIGH or name.startswith(_PLANAR)
    if bits > 16 or "f16" in name or "f32" in name:
        known = False
    why = "" if known else f"its pixels are {pix_fmt}, whose codes are not read here"
    return Pixels(name, bits, channels, why)


def unread(pix_fmt: str, column: ColumnType | None, /) -> str:
    """Why frames of such a file are not handed out for a column; empty where they are."""
    declared = None if column is None else column.pixel_format
    if declared is not None and plain(declared) == RGB:
        return ""
    there, wanted = pixels_of(pix_fmt), pixels_of(pix_fmt if declared is None else declared)
    depth = column is not None and column.is_depth
    stored = depth or max(wanted.bits, there.bits) > 8 or (declared is not None and wanted.channels == 1)
    if stored and declared is not None and differs(declared, pix_fmt):
        return f"its pixels are {pix_fmt}, and its column declares {declared}"
    return there.why if stored else ""


def converter_of(stream: StreamInfo, column: ColumnType | None, location: str, /) -> Converter | Codes:
    """What makes arrays of a stream's pictures, as its column wants them.

    Raises:
        DecodeError: The column declares other pixels, or nothing here reads their codes.
    """
    why = unread(stream.pix_fmt, column)
    if why:
        raise DecodeError(
            f"{location}: {why}. Declare pixel_format={stream.pix_fmt!r} for its codes or {RGB!r} for RGB of 8 bits, "
            "or encode the file anew, as in: ffmpeg -i FILE -pix_fmt gray16le -c:v ffv1 OUT.mkv",
            path=location,
        )
    declared = None if column is None else column.pixel_format
    there = pixels_of(stream.pix_fmt)
    if declared is not None and plain(declared) == RGB:
        return Converter(stream)
    if (column is not None and column.is_depth) or (declared is not None and plain(declared) == "gray"):
        return Codes(stream, channels=1)
    return Codes(stream, channels=there.channels) if there.bits > 8 else Converter(stream)


class Codes:
    """Turns pictures into the numbers that are stored, channels last; for one thread at a time.

    Grey has one channel; colour has three, in the order of its name: red, green, blue, or luma and two of chroma, each
    of which stands at every pixel that shares it.

    Args:
        stream: Says how large pictures are and how they are turned, and which pixels they have.
        channels: 1 takes the first: grey, or luma.
    """

    def __init__(self, stream: StreamInfo, /, *, channels: int) -> None:
        self._turn = stream.turn
        self._name = stream.pix_fmt
        self._pixels = pixels_of(stream.pix_fmt)
        self.channels = channels
        self.dtype: np.dtype[np.uint8 | np.uint16] = np.dtype(np.uint16 if self._pixels.bits > 8 else np.uint8)

    def convert(self, frame: VideoFrame, out: NDArray[Any], /) -> None:
        """Write one picture into `out` [height, width, channels]; scaled by taking the nearest pixels."""
        height, width = out.shape[:2] if self._turn[0] else out.shape[1::-1]
        rows, columns = centres(frame.height, height), centres(frame.width, width)
        whole = (height, width) == (frame.height, frame.width)
        for channel, plane in enumerate(self._planes(frame)):
            down, right = (_halved(*pair) for pair in zip((frame.height, frame.width), plane.shape, strict=True))
            picture = plane if whole and not (down or right) else plane[(rows >> down)[:, None], columns >> right]
            out[..., channel] = turned(picture, self._turn)

    def _planes(self, frame: VideoFrame) -> list[NDArray[Any]]:
        """[rows, columns] of each channel, as the planes lie."""
        name, stored = self._pixels.name, self.dtype.newbyteorder(">" if self._name.endswith("be") else "<")
        planes = [plane.view(stored) for plane in planes_of(frame)]
        if name in _PACKED:
            places, step = _PACKED[name]
            return [planes[0][:, place::step] for place in places[: self.channels]]
        if name in _HIGH:
            split = [planes[0], planes[1][:, ::2], planes[1][:, 1::2]]
            return [plane >> _HIGH[name] for plane in split[: self.channels]]
        parts = [part for part in frame.format.components if not part.is_alpha]
        return [planes[part.plane] for part in parts[: self.channels]]


def _halved(whole: int, part: int) -> int:
    """How many times a side was halved, rounded up."""
    return next(times for times in range(8) if -(-whole >> times) == part)

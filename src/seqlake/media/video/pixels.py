"""Decoded pictures as RGB arrays: one converter per decoder, the file's own colour tags, rotation applied."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError
from seqlake.media.video.swscale import Direct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.media.video.packets import Stream

_UPRIGHT = (1, 0, 0, 1)


class Converter:
    """Turns pictures into uint8 RGB, channels last; for one thread at a time.

    Args:
        stream: Says how large pictures are and how they are turned.
    """

    def __init__(self, stream: Stream, /) -> None:
        self._turn = stream.turn
        self._coded = (stream.width, stream.height)
        self._direct = Direct(*self._coded) if stream.turn == _UPRIGHT else None
        self._reformat: Callable[..., VideoFrame] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as shown."""
        width, height = self._coded
        return (height, width) if self._turn[0] else (width, height)

    def convert(self, frame: VideoFrame, out: NDArray[np.uint8], /) -> None:
        """Write one picture into `out` [height, width, 3], scaled to it.

        Scaling down averages areas, scaling up is bicubic, both in the same pass as the conversion.
        """
        if self._direct is not None and self._direct.convert(frame, out):
            return
        if self._reformat is None:
            from av.video.reformatter import VideoReformatter

            self._reformat = VideoReformatter().reformat
        height, width = out.shape[:2] if self._turn[0] else out.shape[1::-1]
        how = "AREA" if width * height < frame.width * frame.height else "BICUBIC"
        with convertible(frame):
            picture = self._reformat(frame, width=width, height=height, format="rgb24", interpolation=how, threads=1)
        out[:] = turned(rows_of(picture), self._turn)


@cache
def too_deep(pix_fmt: str, /) -> str:
    """Why pictures of such pixels are not given as RGB of 8 bits; empty where nothing is lost by it."""
    import av

    try:
        bits = max((part.bits for part in av.VideoFormat(pix_fmt).components), default=8)
    except ValueError:  # no such pixels: the decoder says so
        return ""
    if bits <= 8:
        return ""
    return f"its pixels have {bits} bits ({pix_fmt}), and frames are given in 8"


@contextmanager
def convertible(frame: VideoFrame, /) -> Iterator[None]:
    """Names what FFmpeg's converter refuses.

    Raises:
        DecodeError: Pixels or a colour space that it does not know, as YCgCo.
    """
    import av

    try:
        yield
    except (av.FFmpegError, OSError, ValueError) as error:
        raise DecodeError(
            f"{frame.format.name} pixels in colour space {int(frame.colorspace)} (as H.273 numbers them) cannot be "
            f"converted by FFmpeg: {error}. Encode the file anew, as in: ffmpeg -i FILE -pix_fmt yuv420p OUT.mp4"
        ) from error


def rows_of(picture: VideoFrame, /) -> NDArray[np.uint8]:
    """[height, width, 3] view of a packed RGB picture, whose rows may be padded."""
    plane = picture.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(picture.height, plane.line_size)  # type: ignore[call-overload]
    made: NDArray[np.uint8] = rows[:, : 3 * picture.width].reshape(picture.height, picture.width, 3)
    return made


def turned(picture: NDArray[Any], turn: tuple[int, int, int, int], /) -> NDArray[Any]:
    """A picture as its display matrix shows it: transposed and mirrored.

    Example:
        >>> turned(np.array([[1, 2], [3, 4]]), (0, 1, -1, 0)).tolist()  # a quarter to the right
        [[3, 1], [4, 2]]
    """
    a, b, c, d = turn
    if a:
        return picture[:: d or 1, ::a]
    return picture.swapaxes(0, 1)[:: b or 1, :: c or 1]


def planes_of(frame: VideoFrame, /) -> list[NDArray[np.uint8]]:
    """[rows, bytes] views of every plane, without what pads its rows; a palette is the last."""
    kind, made = frame.format, list[Any]()
    for number, plane in enumerate(frame.planes):
        held = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload]
        parts = [part for part in kind.components if part.plane == number]
        if not parts:
            made.append(held[None])
            continue
        wide = (kind.padded_bits_per_pixel + 7) // 8 if len(kind.components) == len(parts) else 0
        wide = wide or len(parts) * (1 + (max(part.bits for part in parts) > 8))
        made.append(held.reshape(plane.height, plane.line_size)[:, : plane.width * wide])
    return made


def fingerprint(frame: VideoFrame, /) -> int:
    """A number that other pictures do not have, but by a rare chance."""
    made = 0
    for plane in planes_of(frame):
        made = zlib.crc32(np.ascontiguousarray(plane).data, made)
    return made

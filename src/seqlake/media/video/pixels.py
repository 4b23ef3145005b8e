"""Decoded pictures as RGB arrays: one converter per decoder, the file's own colour tags, rotation applied.

PyAV's reformatter converts into a frame of its own, from which the picture must be copied once more: at 640 x 480 that
takes 1.7 times as long as `libswscale` takes to write into the array that is delivered. So the libswscale inside PyAV's
wheel is called here. It is the one that the reformatter itself calls: the bytes are the same. Where it is not found, or
a picture is of a kind that was not compared, the reformatter does it.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.media.video.packets import StreamInfo

_UPRIGHT = (1, 0, 0, 1)
_BICUBIC = 4
_ONE = 1 << 16  # contrast and saturation, as fixed-point numbers
_MATRICES = {
    0: 5,
    1: 1,
    2: 5,
    4: 4,
    5: 5,
    6: 5,
    7: 7,
    9: 9,
}  # AVColorSpace -> which of swscale's tables of coefficients
_FULL = 2  # AVColorRange
_FORMATS = frozenset({"yuv420p", "yuvj420p"})
_WHOLE = 32  # pixels; its loops write beyond the end of a row whose width is no multiple of their step

_Kind = tuple[str, int, int]  # pixel format, AVColorSpace, AVColorRange
_Pointers = ctypes.c_void_p * 4
_Strides = ctypes.c_int * 4


@cache
def _libraries() -> tuple[Any, Any] | None:
    """Libswscale and libavutil as PyAV has loaded them; None where its build keeps them elsewhere."""
    import av

    package = Path(av.__file__).parent
    loaded = []
    for name in ("swscale", "avutil"):
        files = [*package.parent.glob(f"av.libs/lib{name}[-.]*"), *package.glob(f".dylibs/lib{name}.*")]
        if len(files) != 1:
            return None
        try:
            loaded.append(ctypes.CDLL(str(files[0])))
        except OSError:
            return None
    swscale, avutil = loaded
    swscale.sws_getContext.restype = swscale.sws_getCoefficients.restype = ctypes.c_void_p
    swscale.sws_getContext.argtypes = [ctypes.c_int] * 7 + [ctypes.c_void_p] * 3
    swscale.sws_setColorspaceDetails.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 4
    ]  # fmt: skip
    swscale.sws_freeContext.argtypes = [ctypes.c_void_p]
    swscale.sws_scale.argtypes = [
        ctypes.c_void_p, _Pointers, _Strides, ctypes.c_int, ctypes.c_int, _Pointers, _Strides
    ]  # fmt: skip
    return swscale, avutil


class Direct:
    """Converts pictures of one size into arrays; for one thread at a time."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._fits = not width % _WHOLE and not height % 2
        self._kind: _Kind | None = None
        self._context: int | None = None
        self._scale: Any = None

    def convert(self, frame: VideoFrame, out: NDArray[np.uint8], /) -> bool:
        """Write one picture into `out` [height, width, 3], C-contiguous; False where somebody else must."""
        size = self._size
        if out.shape[1::-1] != size or (frame.width, frame.height) != size or not out.flags.c_contiguous:
            return False
        kind = (frame.format.name, int(frame.colorspace), int(frame.color_range))
        if kind != self._kind:
            self._kind, self._context = kind, self._made(*kind)
        if self._context is None:
            return False
        planes = frame.planes
        source = _Pointers(*[plane.buffer_ptr for plane in planes])
        strides = _Strides(*[plane.line_size for plane in planes])
        target = _Pointers(out.ctypes.data)
        done = self._scale(self._context, source, strides, 0, size[1], target, _Strides(out.strides[0]))
        return bool(done == size[1])

    def _made(self, name: str, matrix: int, span: int) -> int | None:
        libraries = _libraries()
        if libraries is None or not self._fits or name not in _FORMATS or matrix not in _MATRICES:
            return None
        swscale, avutil = libraries
        source, target = (avutil.av_get_pix_fmt(text.encode()) for text in (name, "rgb24"))
        context: int | None = swscale.sws_getContext(
            *self._size, source, *self._size, target, _BICUBIC, None, None, None
        )
        if not context:
            return None
        # Not when the interpreter ends: a thread may be in the middle of a picture then.
        weakref.finalize(self, swscale.sws_freeContext, context).atexit = False
        table = swscale.sws_getCoefficients(_MATRICES[matrix])
        full = int(span == _FULL or name == "yuvj420p")
        if swscale.sws_setColorspaceDetails(context, table, full, table, 1, 0, _ONE, _ONE) < 0:
            return None
        self._scale = swscale.sws_scale
        return context


class Converter:
    """Turns pictures into uint8 RGB, channels last; for one thread at a time.

    Args:
        stream: Says how large pictures are and how they are turned.
    """

    channels = 3
    dtype: np.dtype[np.uint8] = np.dtype(np.uint8)

    def __init__(self, stream: StreamInfo, /) -> None:
        self._turn = stream.turn
        self._coded = (stream.width, stream.height)
        self._direct = Direct(*self._coded) if stream.turn == _UPRIGHT else None
        self._reformat: Callable[..., VideoFrame] | None = None

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
    pixels: NDArray[np.uint8] = rows[:, : 3 * picture.width].reshape(picture.height, picture.width, 3)
    return pixels


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
    kind, planes = frame.format, list[Any]()
    for number, plane in enumerate(frame.planes):
        held = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload]
        parts = [part for part in kind.components if part.plane == number]
        if not parts:
            planes.append(held[None])
            continue
        wide = (kind.padded_bits_per_pixel + 7) // 8 if len(kind.components) == len(parts) else 0
        wide = wide or len(parts) * (1 + (max(part.bits for part in parts) > 8))
        planes.append(held.reshape(plane.height, plane.line_size)[:, : plane.width * wide])
    return planes


def fingerprint(frame: VideoFrame, /) -> int:
    """A number that other pictures do not have, but by a rare chance."""
    checksum = 0
    for plane in planes_of(frame):
        checksum = zlib.crc32(np.ascontiguousarray(plane).data, checksum)
    return checksum

"""FFmpeg's own conversion to RGB, written straight into the array that is delivered.

PyAV's reformatter converts into a frame of its own, from which the picture must be copied once more. The `libswscale`
inside PyAV's wheel is the one it uses itself, so the bytes are the same. Where it is not found, or a picture is of a
kind that was not compared, the reformatter does it.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

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
        found = [*package.parent.glob(f"av.libs/lib{name}[-.]*"), *package.glob(f".dylibs/lib{name}.*")]
        if len(found) != 1:
            return None
        try:
            loaded.append(ctypes.CDLL(str(found[0])))
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
        made: int | None = swscale.sws_getContext(*self._size, source, *self._size, target, _BICUBIC, None, None, None)
        if not made:
            return None
        # Not when the interpreter ends: a thread may be in the middle of a picture then.
        weakref.finalize(self, swscale.sws_freeContext, made).atexit = False
        table = swscale.sws_getCoefficients(_MATRICES[matrix])
        full = int(span == _FULL or name == "yuvj420p")
        if swscale.sws_setColorspaceDetails(made, table, full, table, 1, 0, _ONE, _ONE) < 0:
            return None
        self._scale = swscale.sws_scale
        return made

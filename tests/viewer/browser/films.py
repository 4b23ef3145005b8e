"""Films whose frames say which they are: black and white blocks, which survive any codec and any scaling.

A picture has 4 x 3 blocks. The first is white and the second black, so that a reader needs no thresholds; the other ten
are the frame's number, highest bit first.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from seqlake.media._priority import kept_priority

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

WIDTH, HEIGHT = 160, 96
ACROSS, DOWN = 4, 3

CODECS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "h264": ("libx264", "mp4", "yuv420p", {"preset": "ultrafast", "g": "30", "bf": "0"}),
    "b_frames": ("libx264", "mp4", "yuv420p", {"preset": "veryfast", "g": "48", "bf": "3", "b-adapt": "0"}),
    "vp9": ("libvpx-vp9", "webm", "yuv420p", {"deadline": "realtime", "cpu-used": "8", "g": "30"}),
    "av1": ("libsvtav1", "mp4", "yuv420p", {"preset": "8", "crf": "20", "g": "30"}),
    "hevc": ("libx265", "mp4", "yuv420p", {"preset": "ultrafast", "g": "30", "x265-params": "log-level=none"}),
    "mpeg4": ("mpeg4", "mp4", "yuv420p", {"g": "30", "q:v": "3"}),
}
"""Encoder, container, pixels and options of each kind."""


def blocks(number: int) -> NDArray[np.uint8]:
    """The picture of one frame, uint8 [HEIGHT, WIDTH]."""
    bits = [1, 0, *((number >> bit) & 1 for bit in range(9, -1, -1))]
    small = np.array(bits, np.uint8).reshape(DOWN, ACROSS) * 255
    return np.kron(small, np.ones((HEIGHT // DOWN, WIDTH // ACROSS), np.uint8))


def film(
    path: Path, kind: str, frames: int, *, fps: int = 30, ticks: Sequence[int] | None = None, first: int = 0
) -> Path:
    """Write frames 0, 1, 2, ... as a film.

    Args:
        path: Without its suffix.
        kind: One of `CODECS`.
        frames: How many.
        fps: Frames per second, of a constant rate.
        ticks: When each frame is shown, in 1/600 s; instead of a constant rate.
        first: What the first frame says.
    """
    encoder, container, pixels, options = CODECS[kind]
    place = path.with_suffix(f".{container}")
    base = Fraction(1, 600)
    shown = ticks if ticks is not None else [number * 600 // fps for number in range(frames)]
    settings: dict[str, Any] = {"movflags": "+faststart"} if container == "mp4" else {}
    with kept_priority(), av.open(str(place), "w", options=settings) as file:
        stream = file.add_stream(encoder, rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixels
        stream.codec_context.thread_count = 1
        stream.time_base = stream.codec_context.time_base = base
        for number, at in zip(range(frames), shown, strict=True):
            picture = av.VideoFrame.from_ndarray(blocks(first + number), format="gray").reformat(format=pixels)
            picture.pts, picture.time_base = at, base
            file.mux(stream.encode(picture))
        file.mux(stream.encode(None))
    return place


def depths(frames: int) -> NDArray[np.uint16]:
    """The same as distances in millimetres: white is 400 mm, black 3 000 mm."""
    return np.stack([np.where(blocks(number) > 0, 400, 3000).astype(np.uint16) for number in range(frames)])

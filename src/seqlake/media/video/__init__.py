"""Video: exact frames by number, from a packet index and byte ranges, decoded by FFmpeg through PyAV.

One group of pictures is decoded once for all frames that a call wants of it. What is opened without a kept index is
indexed first; indexes are remembered in this process by location and token, and on disk for files elsewhere.
"""

from __future__ import annotations

from seqlake.media.video.opening import VideoDecoder, index, open_video

__all__ = ["DEVICES", "VideoDecoder", "index", "open", "types"]

DEVICES = ("cpu",)
"""For which it is taken without being chosen."""

open = open_video  # noqa: A001 - the name that the protocol gives it


def types() -> tuple[str, ...]:
    """The column types that it opens."""
    return ("video",)

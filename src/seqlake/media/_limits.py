"""What one file of media may cost; how a limit holds is `files.limits`."""

from __future__ import annotations

from seqlake.files.limits import Limit

PIXELS = Limit(name="SEQLAKE_MAX_PIXELS", default=1 << 27, unit="pixels")
"""Of one picture; those of 16 bits count twice. Half as many for a frame of a video, whose decoder holds several."""

PACKETS = Limit(name="SEQLAKE_MAX_PACKETS", default=1 << 22, unit="packets")
"""Of one file of media; 38 hours of video at 30 frames per second."""

SOUND = Limit(name="SEQLAKE_MAX_SOUND", default=1 << 30, unit="bytes of decoded sound")
"""Of one file, four for each sample of each channel; or a hundred times what the file has, where that is more."""

POINTS = Limit(name="SEQLAKE_MAX_POINTS", default=1 << 25, unit="points and faces")
"""Of one mesh, cloud or scene."""


def frame_pixels() -> int:
    """The limit for a frame of a video."""
    return PIXELS.value // 2


def guard(most: int, /) -> dict[str, str]:
    """Options of a decoder that hold it near a limit, whatever the packets say; it counts rows with their padding."""
    return {"max_pixels": str(2 * most + (1 << 20))}

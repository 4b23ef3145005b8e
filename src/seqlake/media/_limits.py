"""What one file may cost: it says itself how large it is unpacked, and whoever wrote it may lie, or mean harm.

Sizes are compared with the bytes that are there, and with these limits, before memory is taken. A limit is a number of
the environment: workers of loaders and commands have it like the process that they come from.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from seqlake.errors import DecodeError, SeqlakeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that is taken on.

    Attributes:
        name: Of the variable that raises it.
        default: Where it is not set.
        unit: What is counted.
    """

    name: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """What holds now.

        Raises:
            SeqlakeError: The variable is no whole number.
        """
        text = os.environ.get(self.name, "")
        try:
            return int(text) if text else self.default
        except ValueError:
            raise SeqlakeError(f"{self.name}: expected a whole number of {self.unit}, found {text!r}.") from None

    def hold(self, found: int, what: str, /, *, most: int | None = None, path: str | None = None) -> None:
        """Refuse what is above it.

        Args:
            found: How many there are, or would be.
            what: The file or picture, as the message begins.
            most: What holds instead of the limit itself, where it is derived from it.
            path: The file.

        Raises:
            DecodeError: There are more.
        """
        most = self.value if most is None else most
        if found > most:
            raise DecodeError(
                f"{what} would take {found:,} {self.unit}; the limit is {most:,}.",
                path=path,
                hint=f"If you trust it, raise the limit: export {self.name}={self.value * (found // max(most, 1) + 1)}",
            )


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

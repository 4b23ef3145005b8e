"""The result of one cut of a video or a sound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult:
    """The result of one cut.

    Attributes:
        frames: How many frames, or samples, it has.
        encoded: How many frames were encoded again; the packets of all others were copied.
        suffix: What the file's name should end in.
        note: Why the whole clip was encoded again, where it was.
    """

    frames: int
    encoded: int
    suffix: str
    note: str = ""

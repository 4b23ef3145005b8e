"""The result of one cut of a video or a sound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult:
    """The result of one cut.

    Attributes:
        frames: How many frames, or samples, it has.
        encoded: How many frames were encoded again; the packets of all others were copied.
        suffix: What the file's name should end in.
        note: Why the whole clip was encoded again, where it was.
        index: Its packet indexes, as `Source.index` takes them: it was read back already.
    """

    frames: int
    encoded: int
    suffix: str
    note: str = ""
    index: Mapping[int, bytes] = field(default_factory=dict)

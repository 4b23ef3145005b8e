"""Frames that wait for their encoder: the first in memory, the next on disk, up to a budget.

A robot must not stand still because an encoder is slow for a while. Its frames keep their order, whichever of them
wait where.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from seqlake.dataset.writing.encoding import TimedFrame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OnFull = Literal["error", "wait", "drop"]
"""What `Recording.add` does with a frame when no more may wait."""

IN_MEMORY = 16  # frames of one camera: half a second at 30 fps, 15 MB at 640x480
SPILL_BYTES = 4 << 30
_PART = 64 << 20  # bytes of one file: one that is read is removed
_LEFT = 256 << 20  # bytes of the disk that are left to others


def checked_on_full(on_full: str, spill_bytes: int, /) -> tuple[OnFull, int]:
    """What a caller asked for, if it is possible.

    Raises:
        ValueError: It is not.
    """
    known: dict[str, OnFull] = {name: name for name in get_args(OnFull)}
    if on_full not in known:
        raise ValueError(f"on_full: expected one of {', '.join(known)}, found {on_full!r}.")
    if isinstance(spill_bytes, bool) or not isinstance(spill_bytes, int) or spill_bytes < 0:
        raise ValueError(f"spill_bytes: expected a number of bytes, 0 for none, found {spill_bytes!r}.")
    return known[on_full], spill_bytes


class Spill:
    """The disk that all cameras of a take share.

    Args:
        limit: Bytes that may lie there at a time.
        scratch: Gives a path for a file.

    Attributes:
        most: Bytes that lay there at a time, at most.
    """

    def __init__(self, limit: int, scratch: Callable[[], Path]) -> None:
        self._limit = limit
        self._scratch = scratch
        self._used = 0
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self.most: int = 0

    def fits(self, nbytes: int, /) -> bool:
        """Whether so many bytes more may lie there."""
        if self._used + nbytes > self._limit:
            return False
        if self._folder is None:
            self._folder = self._scratch().parent
        return shutil.disk_usage(self._folder).free > nbytes + _LEFT

    def count(self, nbytes: int, /) -> None:
        """So many bytes came, or went."""
        with self._lock:
            self._used += nbytes
            self.most = max(self.most, self._used)

    def path(self) -> Path:
        """A file for more of them."""
        return self._scratch()


@dataclass(slots=True)
class _Part:
    """One file of frames that wait."""

    path: Path
    nbytes: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class _Spilled:
    """A frame on disk."""

    part: _Part
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    time: int | None
    timed: bool

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class WaitingFrames:
    """The frames of one camera in the order in which they came; whoever calls holds a lock.

    Args:
        spill: The disk that may be used.
    """

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._frames: deque[Any] = deque()
        self._in_memory = 0
        self._part: _Part | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def has_room(self, frame: Any, /) -> bool:
        """Whether one more may wait."""
        picture = _picture(frame)
        return picture is None or self._in_memory < IN_MEMORY or self._spill.fits(picture.nbytes)

    def put(self, frame: Any, /) -> None:
        """Keep a copy of a frame.

        Raises:
            OSError: The disk cannot be written.
        """
        picture = _picture(frame)
        if picture is None:
            self._frames.append(frame)
        elif self._in_memory < IN_MEMORY:
            self._frames.append(frame.copy())
            self._in_memory += 1
        else:
            self._frames.append(self._spilled(frame, picture))

    def get(self) -> Any:
        """The oldest; there must be one."""
        frame = self._frames.popleft()
        if isinstance(frame, _Spilled):
            return self._read(frame)
        if _picture(frame) is not None:
            self._in_memory -= 1
        return frame

    def clear(self) -> None:
        """Drop all, and their files."""
        parts = {id(one.part): one.part for one in self._frames if isinstance(one, _Spilled)}
        self._spill.count(-sum(one.nbytes for one in self._frames if isinstance(one, _Spilled)))
        self._frames.clear()
        self._in_memory, self._part = 0, None
        for part in parts.values():
            part.path.unlink(missing_ok=True)

    def _spilled(self, frame: Any, picture: np.ndarray) -> _Spilled:
        if self._part is None or self._part.nbytes >= _PART:
            self._part = _Part(self._spill.path())
        part = self._part
        with part.path.open("ab") as file:
            file.write(np.ascontiguousarray(picture).data)
        timed = isinstance(frame, TimedFrame)
        spilled = _Spilled(part, part.nbytes, picture.shape, picture.dtype, frame.time if timed else None, timed)
        part.nbytes += spilled.nbytes
        part.waiting += 1
        self._spill.count(spilled.nbytes)
        return spilled

    def _read(self, frame: _Spilled) -> Any:
        part, count = frame.part, int(np.prod(frame.shape))
        picture = np.fromfile(part.path, frame.dtype, count, offset=frame.offset).reshape(frame.shape)
        part.waiting -= 1
        self._spill.count(-frame.nbytes)
        if not part.waiting:
            part.path.unlink(missing_ok=True)
            if part is self._part:
                self._part = None
        return TimedFrame(picture, frame.time) if frame.timed else picture


def _picture(frame: Any) -> np.ndarray | None:
    """The pixels of a frame; None of one that is encoded already."""
    if isinstance(frame, TimedFrame):
        return frame.picture
    return frame if isinstance(frame, np.ndarray) else None

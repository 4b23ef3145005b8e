"""Files of this machine as blobs: mapped, and looked at again at every visit."""

from __future__ import annotations

import errno
import os
import stat
import sys
import weakref
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import ShardChangedError
from seqlake.files.mapping import HELD, map_file
from seqlake.files.memory import bounded, refuse_more_than_memory

if TYPE_CHECKING:
    from seqlake.protocols import Ints

_PIECE = 64 << 20
# A file that another machine truncates under a map kills this process, so these are read instead.
_NETWORK = ("nfs", "cifs", "smb", "9p", "lustre", "beegfs", "ceph", "gpfs", "afs", "glusterfs", "fuse.", "orangefs")


def state_of(status: os.stat_result, /) -> tuple[int, int, int]:
    """What tells one state of a file from another: size, time of its last change, inode."""
    return status.st_size, status.st_mtime_ns, status.st_ino


class _Owner:
    """Whose copy it is; lives as long as its blob."""

    __slots__ = ("__weakref__",)


class LocalBlob:
    """A file that does not change, mapped into memory when it is first looked at.

    It pickles as a description; every process makes its own maps.

    Args:
        path: The file; it must be there.
        mapped: Whether to map it; False reads it into memory, as is always done on network file systems.

    Raises:
        FileNotFoundError: It is not there, or is a folder.
    """

    __slots__ = ("_device", "_key", "_owner", "_path", "_state", "mapped", "size")

    def __init__(self, path: str | os.PathLike[str], /, *, mapped: bool = True) -> None:
        self._path = os.fspath(path)
        status = os.stat(self._path)  # noqa: PTH116 - a string, at every visit
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a file", self._path)
        self.size = status.st_size
        self._state = state_of(status)
        self.mapped = mapped
        self._device = status.st_dev
        self._own()

    @property
    def location(self) -> str:
        """The path."""
        return self._path

    @property
    def token(self) -> str:
        """Size, time of the last change and inode; another token means other bytes."""
        return "-".join(map(str, self._state))

    def view(self) -> memoryview:
        """All of it, read-only; the same map for all blobs of this file in this process.

        Raises:
            ShardChangedError: The file is not what it was when this blob was made.
            FileNotFoundError: It is gone, or has another name by now.
        """
        self._check(os.stat(self._path))  # noqa: PTH116 - a string, at every visit
        shared = (self._device, self._state)
        found = HELD.get(self._key) or (HELD.get(shared) if self.mapped else None)
        return self._hold(shared) if found is None else found

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it, each read by itself: safe even if the file is truncated meanwhile.

        Raises:
            ShardChangedError: The file changed, or does not reach that far.
            CorruptFileError: They are more than this machine could hold.
        """
        with open(self._path, "rb", buffering=0) as file:  # noqa: PTH123 - a string
            self._check(os.fstat(file.fileno()))
            firsts, ends = bounded(starts, stops, self.size, self._path)
            refuse_more_than_memory(sum(ends) - sum(firsts), self._path)
            return [_read(file.fileno(), first, end, self._path) for first, end in zip(firsts, ends, strict=True)]

    def let_go(self) -> None:
        """Keep no map of it: when it is removed, the disk gets its bytes back as soon as nobody looks at them."""
        HELD.forget((self._device, self._state))
        HELD.forget(self._key)

    def _hold(self, shared: tuple[int, tuple[int, int, int]]) -> memoryview:
        with open(self._path, "rb", buffering=0) as file:  # noqa: PTH123 - a string
            self._check(os.fstat(file.fileno()))
            if self.mapped and not on_network(self._device):
                return HELD.keep(shared, map_file(file.fileno(), self.size), copied=False)
            refuse_more_than_memory(self.size, self._path)
            # Not shared, and gone with this blob: a map keeps its inode from a new file, a copy does not.
            return HELD.keep(self._key, _read(file.fileno(), 0, self.size, self._path), copied=True)

    def _own(self) -> None:
        self._owner = _Owner()
        self._key = weakref.ref(self._owner, HELD.forget)

    def _check(self, status: os.stat_result) -> None:
        if state_of(status) != self._state:
            raise ShardChangedError(
                f"{self._path} changed while it was open: expected size, time and inode {self._state}, found "
                f"{state_of(status)}. Shards never change; open the dataset again.",
                path=self._path,
            )

    def __getstate__(self) -> tuple[str, bool, int, tuple[int, int, int], int]:
        return (self._path, self.mapped, self.size, self._state, self._device)

    def __setstate__(self, state: tuple[str, bool, int, tuple[int, int, int], int]) -> None:
        self._path, self.mapped, self.size, self._state, self._device = state
        self._own()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalBlob) and (self._path, self.token) == (other._path, other.token)

    def __hash__(self) -> int:
        return hash((self._path, self.token))

    def __repr__(self) -> str:
        return f"LocalBlob({self._path!r}, {self.size} bytes)"


def _read(fd: int, start: int, stop: int, path: str) -> memoryview:
    out = np.empty(stop - start, np.uint8).data
    done = 0
    while done < len(out):
        got = _read_into(fd, out[done : done + _PIECE], start + done)
        if not got:
            raise ShardChangedError(
                f"{path}: expected bytes {start} to {stop}, the file ends at {start + done}. Open the dataset again.",
                path=path,
            )
        done += got
    return out.toreadonly()


def _read_into(fd: int, out: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [out], offset)
    os.lseek(fd, offset, os.SEEK_SET)
    piece = os.read(fd, len(out))
    out[: len(piece)] = piece
    return len(piece)


def on_network(device: int, /) -> bool:
    """Whether a device (`st_dev`) is a network file system, as far as the system says: Linux does."""
    return file_system(device).startswith(_NETWORK)


@lru_cache(maxsize=64)
def file_system(device: int, /) -> str:
    """The type of the file system on a device, as in `ext4` or `nfs4`; empty where nobody says."""
    if sys.platform != "linux":
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split()[2:3] == [number]:
            return right.split(" ")[0]
    return ""

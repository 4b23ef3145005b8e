"""Blobs of this machine: files, mapped into memory and checked at every visit, and bytes that are in memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
import weakref
from collections import deque
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import ShardChangedError
from seqlake.files.limits import refuse_more_than_memory
from seqlake.resting import at_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from seqlake.protocols import Blob, Ints

_PIECE = 64 << 20
# A file that another machine truncates under a map kills this process, so these are read instead.
_NETWORK = ("nfs", "cifs", "smb", "9p", "lustre", "beegfs", "ceph", "gpfs", "afs", "glusterfs", "fuse.", "orangefs")
MOST_MAPS = 16_384
MOST_COPIED = 2 << 30
_LOOKED_AT = 2  # files of maps, whenever a new one is kept: to look for one takes some microseconds
_READ, _SHARED = 1, 1


class _Map:
    """An address that numpy can look at; unmapped when the last view of it is gone."""

    def __init__(self, address: int, size: int, unmap: Callable[[ctypes.c_void_p, int], int]) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        # Not at exit: views may outlive it there, and the process takes its maps with it.
        weakref.finalize(self, unmap, ctypes.c_void_p(address), size).atexit = False


def map_file(fd: int, size: int, /) -> memoryview:
    """The first `size` bytes of an open file as memory; the descriptor may be closed.

    Raises:
        OSError: The system has no room for one more map.
    """
    if size == 0:
        return memoryview(b"")
    if os.name == "nt":
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    system = ctypes.CDLL(None, use_errno=True)
    call, unmap = system.mmap, system.munmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = call(None, size, _READ, _SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} (mapping {size} bytes)")
    return np.asarray(_Map(address, size, unmap)).data


class KeptMemory:
    """Memory that blobs share, by the state of their file; what was used longest ago is let go first.

    Letting go ends a map only when nobody else looks at it, so nothing is ever pulled from under a reader. A disk gets
    the bytes of a removed file back when its last map ends: so whenever a map is kept, the files of some others are
    looked for, and maps of those that another process removed or replaced are let go.

    Args:
        most_maps: How many maps and copies are kept.
        most_copied: How many bytes of copies (files that may not be mapped) are kept.
    """

    def __init__(self, *, most_maps: int = MOST_MAPS, most_copied: int = MOST_COPIED) -> None:
        self.most_maps = most_maps
        self.most_copied = most_copied
        self._kept: dict[Hashable, tuple[memoryview, int]] = {}
        self._files: deque[tuple[str, Hashable]] = deque()  # in turns

    def get(self, key: Hashable, /) -> memoryview | None:
        """What is kept under this key; it is the newest from now on."""
        # No lock, which a fork could leave taken: single operations of a dict are atomic.
        entry = self._kept.pop(key, None)
        if entry is None:
            return None
        self._kept[key] = entry
        return entry[0]

    def keep(self, key: Hashable, memory: memoryview, /, *, copied: bool, path: str | None = None) -> memoryview:
        """Keep this, and let go of what is too much.

        Args:
            key: What it is found by.
            memory: A map or a copy.
            copied: Whether it is a copy.
            path: Of a map the file, whose device and state are the key.
        """
        self._kept[key] = (memory, memory.nbytes if copied else 0)
        if path is not None:
            self._let_go_of_removed()
            self._files.append((path, key))
        while len(self._kept) > self.most_maps or (copied and self._copied() > self.most_copied):
            oldest = next(iter(list(self._kept)), key)
            if oldest == key:
                break  # what was asked for is had, however large
            self._kept.pop(oldest, None)
        return memory

    def forget(self, key: Hashable, /) -> None:
        """Let go of what is kept under this key."""
        self._kept.pop(key, None)

    def clear(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        self._files.clear()

    def _let_go_of_removed(self) -> None:
        """Look for the files of a few maps, those first that were not looked for longest."""
        for _ in range(min(_LOOKED_AT, len(self._files))):
            try:
                path, key = self._files.popleft()
            except IndexError:  # another thread looks for the last
                return
            if key in self._kept and _key_of(path) == key:
                self._files.append((path, key))
            else:
                self._kept.pop(key, None)

    def _copied(self) -> int:
        return sum(size for _, size in list(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)


# The limits are the process's, so its blobs share one.
HELD = KeptMemory()
at_rest(HELD.clear)


def state_of(status: os.stat_result, /) -> tuple[int, int, int]:
    """What tells one state of a file from another: size, time of its last change, inode."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def _key_of(path: str) -> tuple[int, tuple[int, int, int]] | None:
    """What a map of this file is kept by; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a string
    except OSError:
        return None
    return status.st_dev, state_of(status)


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
        self.size: int = status.st_size
        self._state = state_of(status)
        self.mapped: bool = mapped
        self._device = status.st_dev
        self._own()

    @property
    def location(self) -> str:
        """The path of the file."""
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
        memory = HELD.get(self._key) or (HELD.get(shared) if self.mapped else None)
        return self._hold(shared) if memory is None else memory

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
                return HELD.keep(shared, map_file(file.fileno(), self.size), copied=False, path=self._path)
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
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    except OSError:
        return ""
    for line in lines:  # in names blanks and line feeds are escaped; carriage returns and separators are not
        left, _, right = line.partition(b" - ")
        if left.split(b" ")[2:3] == [number]:
            return right.split(b" ")[0].decode("utf-8", "replace")
    return ""


def bounded(starts: Ints, stops: Ints, size: int, location: str, /) -> tuple[list[int], list[int]]:
    """Ranges as Python numbers, if they lie in the bytes that are there.

    Raises:
        ShardChangedError: One does not; whoever asked knew other bytes.
    """
    firsts, ends = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    if firsts.shape != ends.shape:
        raise ValueError(f"expected as many stops as starts, found {ends.size} and {firsts.size}.")
    wrong = np.flatnonzero((firsts < 0) | (ends < firsts) | (ends > size))
    if wrong.size:
        row = int(wrong[0])
        raise ShardChangedError(
            f"{location}: expected bytes {int(firsts[row])} to {int(ends[row])}, found {size} bytes in all. "
            "The file or its index changed; open the dataset again, and `seqlake validate` it if this stays.",
            path=location,
        )
    return firsts.tolist(), ends.tolist()


class MemoryBlob:
    """Bytes in memory.

    Args:
        data: The bytes; not copied.
        location: What messages call them.
        token: What tells them from others, where that is known; else a hash, made when it is asked for.

    Attributes:
        known: Whether the token was given, and so costs nothing.

    Example:
        >>> MemoryBlob(b"abc").size
        3
    """

    __slots__ = ("_data", "_token", "known", "location")

    def __init__(self, data: bytes | bytearray | memoryview, /, *, location: str = "memory", token: str = "") -> None:
        self._data = memoryview(data).toreadonly().cast("B")
        self._token = token
        self.known: bool = bool(token)
        self.location: str = location

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self._data)

    @property
    def token(self) -> str:
        """What was given; else a hash of the bytes."""
        if not self._token:
            self._token = blake2b(self._data, digest_size=12).hexdigest()
        return self._token

    def view(self) -> memoryview:
        """All of it, read-only."""
        return self._data

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it, not copied; one that leaves it raises, as a short read of a file would."""
        firsts, ends = bounded(starts, stops, self.size, self.location)
        return [self._data[first:end] for first, end in zip(firsts, ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryBlob) and (self.location, self._data) == (other.location, other._data)

    def __hash__(self) -> int:
        return hash((self.location, self.size))

    def __reduce__(self) -> tuple[object, ...]:
        return (_memory_blob, (bytes(self._data), self.location, self._token if self.known else ""))

    def __repr__(self) -> str:
        return f"MemoryBlob({self.location!r}, {self.size} bytes)"


def _memory_blob(data: bytes, location: str, token: str) -> MemoryBlob:
    return MemoryBlob(data, location=location, token=token)


class PartBlob:
    """Bytes `start` to `stop` of another blob, as a blob.

    Args:
        whole: The other.
        start: Its first byte here.
        stop: The byte after the last.
        location: What messages call it.

    Example:
        >>> bytes(PartBlob(MemoryBlob(b"abcdef"), 2, 4, "the middle").view())
        b'cd'
    """

    def __init__(self, whole: Blob, start: int, stop: int, location: str, /) -> None:
        self.whole = whole
        self.start = start
        self.size: int = stop - start
        self.location = location

    @property
    def token(self) -> str:
        """The whole's location and token, with the place in it."""
        return f"{self.whole.location}:{self.whole.token}-{self.start}-{self.size}"

    def view(self) -> memoryview | None:
        """All of it as memory, where the whole is."""
        view = self.whole.view()
        return None if view is None else view[self.start : self.start + self.size]

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it, by places in it."""
        bounded(starts, stops, self.size, self.location)
        return self.whole.ranges(np.asarray(starts) + self.start, np.asarray(stops) + self.start)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r}, {self.size} bytes)"


def inline_location(name: str = "", /) -> str:
    """What messages call a file that stands in a row, by the name it once had."""
    return f"inline {name}" if name else "inline bytes"

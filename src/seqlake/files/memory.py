"""Bytes that are held in memory, as a blob."""

from __future__ import annotations

import operator
import os
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError, ShardChangedError

if TYPE_CHECKING:
    from seqlake.protocols import Ints


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


_SMALL = 256 << 20  # nobody is asked about
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def refuse_more_than_memory(nbytes: int, location: str, /) -> None:
    """Refuse to hold at once what somebody declared and this machine could not hold.

    Args:
        nbytes: How much.
        location: Of what, for the message.

    Raises:
        CorruptFileError: It is more than half of the memory there is, and more than 256 MiB.
    """
    if nbytes > _SMALL and nbytes > (room := machine_memory() // 2):
        raise CorruptFileError(
            f"{location}: {nbytes:,} bytes of it would have to be held at once, more than half of this machine's "
            f"memory ({room:,} bytes).",
            path=location,
            hint="If it is really that large, read it in parts, or on a larger machine.",
        )


def limit_of(name: str, value: object, /) -> int:
    """A limit in bytes, as somebody gave it.

    Args:
        name: Of the argument.
        value: What was given.

    Raises:
        ValueError: No whole number of at least one.
    """
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # what is none raises
    except TypeError:
        found = 0
    if isinstance(value, bool) or found < 1:
        raise ValueError(f"{name}: expected a number of bytes, as 1 << 30, found {value!r}.")
    return found


def machine_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or what a container or `ulimit -v` leaves of it."""
    found = [1 << 40]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if sys.platform != "win32":
        import resource

        found.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        found.append(int(_CGROUP.read_text(encoding="ascii")))
    return min(one for one in found if one > 0)


def free_memory() -> int:
    """Bytes that this process may still take: what is free of the machine, its container and its `ulimit -v`."""
    found = [machine_memory()]
    with suppress(OSError, ValueError, IndexError):  # not Linux
        told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        found.append(1024 * sum(int(told[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in told))
    if sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        with suppress(OSError, ValueError, IndexError):
            taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            found += [limit - taken] * (limit > 0)
    with suppress(OSError, ValueError):
        taken = int(_CGROUP.with_name("memory.current").read_text(encoding="ascii"))
        told = dict(line.split() for line in _CGROUP.with_name("memory.stat").read_text(encoding="ascii").splitlines())
        found.append(int(_CGROUP.read_text(encoding="ascii")) - taken + int(told.get("inactive_file", 0)))
    return max(0, min(found))


class MemoryBlob:
    """Bytes in memory.

    Args:
        data: The bytes; not copied.
        location: What messages call them.

    Example:
        >>> MemoryBlob(b"abc").size
        3
    """

    __slots__ = ("_data", "_token", "location")

    def __init__(self, data: bytes | bytearray | memoryview, /, *, location: str = "memory") -> None:
        self._data = memoryview(data).toreadonly().cast("B")
        self._token = ""
        self.location = location

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self._data)

    @property
    def token(self) -> str:
        """A hash of the bytes."""
        if not self._token:
            self._token = blake2b(self._data, digest_size=12).hexdigest()
        return self._token

    def view(self) -> memoryview:
        """All of it."""
        return self._data

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it, not copied; one that leaves it raises, as a short read of a file would."""
        firsts, ends = bounded(starts, stops, self.size, self.location)
        return [self._data[first:end] for first, end in zip(firsts, ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryBlob) and (self.location, self._data) == (other.location, other._data)

    def __hash__(self) -> int:
        return hash((self.location, self.token))

    def __reduce__(self) -> tuple[object, ...]:
        return (_memory_blob, (bytes(self._data), self.location))

    def __repr__(self) -> str:
        return f"MemoryBlob({self.location!r}, {self.size} bytes)"


def _memory_blob(data: bytes, location: str) -> MemoryBlob:
    return MemoryBlob(data, location=location)

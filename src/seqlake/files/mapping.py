"""Files as memory: mapped without holding their descriptors, and bounded in number.

A process may have 65 530 maps (Linux) but often only 1 024 open files, and Python's own `mmap` keeps a descriptor
for each map before 3.13. So POSIX maps are made by the system's call, and live as long as somebody looks at them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MOST_MAPS = 16_384
MOST_COPIED = 2 << 30
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


class Held:
    """Memory that blobs share, by the state of their file; what was used longest ago is let go first.

    Letting go ends a map only when nobody else looks at it, so nothing is ever pulled from under a reader.

    Args:
        most_maps: How many maps and copies are kept.
        most_copied: How many bytes of copies (files that may not be mapped) are kept.
    """

    def __init__(self, *, most_maps: int = MOST_MAPS, most_copied: int = MOST_COPIED) -> None:
        self.most_maps = most_maps
        self.most_copied = most_copied
        self._kept: dict[Hashable, tuple[memoryview, int]] = {}

    def get(self, key: Hashable, /) -> memoryview | None:
        """What is kept under this key; it is the newest from now on."""
        # No lock, which a fork could leave taken: single operations of a dict are atomic.
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._kept[key] = found
        return found[0]

    def keep(self, key: Hashable, memory: memoryview, /, *, copied: bool) -> memoryview:
        """Keep this, and let go of what is too much."""
        self._kept[key] = (memory, memory.nbytes if copied else 0)
        while len(self._kept) > self.most_maps or (copied and self._copied() > self.most_copied):
            oldest = next(iter(list(self._kept)), key)
            if oldest == key:
                break  # what was asked for is had, however large
            self._kept.pop(oldest, None)
        return memory

    def forget(self, key: Hashable, /) -> None:
        """Let go of what is kept under this key."""
        self._kept.pop(key, None)

    def _copied(self) -> int:
        return sum(size for _, size in list(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)


# The limits are the process's, so its blobs share one.
HELD = Held()

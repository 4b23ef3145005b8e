"""The bytes of an HDF5 file as a file of Python's, which h5py reads through: on this disk, in memory, or by range.

HDF5's own way to open a file would lock it, and fails where another part of this process has it open with other flags.
And it would read whatever is there: its library runs in a circle over a heap of values in which one is said to be empty
and free, and nobody can stop it.
"""

from __future__ import annotations

import io
import os
import re
import struct
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.files.locations import is_local, local_path

if TYPE_CHECKING:
    from pathlib import Path

    from seqlake.protocols import Blob

_BLOCK, _BLOCKS = 512 << 10, 64  # of a remote file, read and kept at a time
_WHOLE = 8 << 20  # remote files up to this size are fetched at once
_HEAP = re.compile(rb"GCOL\x01\0\0\0")
_HEAD = 16  # bytes of the head of a heap, and of each value in it
_LOOKED_AT = 1 << 20  # bytes of a read in which a heap may begin; longer ones are values
_MOST_HEAP = 64 << 20


class Hdf5Bytes(io.RawIOBase):
    """A file that is read at any place, and looked at as it is read; its kinds say in `fill` where bytes come from.

    Args:
        end: Where it ends.
    """

    def __init__(self, end: int, /) -> None:
        super().__init__()
        self.end = end
        self._place = 0
        self._sound: set[int] = set()  # where heaps begin that end

    def fill(self, buffer: Any, place: int, /) -> int:
        """Fill a buffer with the bytes at a place; how many were there."""
        raise NotImplementedError

    def readable(self) -> bool:
        """True: that is what it is for."""
        return True

    def seekable(self) -> bool:
        """True: any byte can be read next."""
        return True

    def tell(self) -> int:
        """Where the next byte lies."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte; beyond the end there is nothing to read."""
        self._place = max(0, {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.end}[whence] + offset)
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer; how many bytes were left to fill it with.

        Raises:
            OSError: A heap begins in it that HDF5 would never come to the end of.
        """
        target = memoryview(buffer).cast("B")[: max(0, self.end - self._place)]
        start = self._place
        count = self.fill(target, start) if len(target) else 0
        self._place += count
        if count <= _LOOKED_AT:
            for heap in _HEAP.finditer(target[:count]):
                self._refuse_endless(start + heap.start())
        return count

    def _refuse_endless(self, start: int) -> None:
        """Follow the values of a heap as HDF5 does: each says where the next one is."""
        if start in self._sound:
            return
        data = self._bytes(start, start + _HEAD)
        size = struct.unpack_from("<Q", data, 8)[0] if len(data) == _HEAD else 0
        data = self._bytes(start, min(start + min(size, _MOST_HEAP), self.end))
        place = _HEAD
        while place + _HEAD <= len(data):
            number, _, _, length = struct.unpack_from("<HHIQ", data, place)
            more = _HEAD + ((length + 7) & ~7) % (1 << 64) if number else length
            if not 0 < more % (1 << 64) <= size:
                raise OSError(f"the heap at byte {start} is damaged")
            place += more
        self._sound.add(start)

    def _bytes(self, start: int, stop: int) -> bytearray:
        data = bytearray(max(0, min(stop, self.end) - start))
        return data[: self.fill(memoryview(data), start)] if data else data


class LocalHdf5(Hdf5Bytes):
    """A file of this machine, read at places that it alone knows: processes that were forked share none of them.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path, /) -> None:
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._fd)
        super().__init__(os.fstat(self._fd).st_size)

    def fill(self, buffer: Any, place: int, /) -> int:
        """Read from the disk."""
        if hasattr(os, "preadv"):
            return os.preadv(self._fd, [buffer], place)
        os.lseek(self._fd, place, os.SEEK_SET)
        data = os.read(self._fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file for good."""
        super().close()
        self._close()


class HeldHdf5(Hdf5Bytes):
    """A file that is in memory.

    Args:
        data: All of it.
    """

    def __init__(self, data: memoryview, /) -> None:
        super().__init__(len(data))
        self._data = data

    def fill(self, buffer: Any, place: int, /) -> int:
        """Copy what is in memory."""
        part = self._data[place : place + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


class RemoteHdf5(Hdf5Bytes):
    """A remote file that is read a few bytes here and there: by blocks, of which those used last are kept.

    Args:
        blob: Its bytes.
    """

    def __init__(self, blob: Blob, /) -> None:
        super().__init__(blob.size)
        self._blob = blob
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    def fill(self, buffer: Any, place: int, /) -> int:
        """Read by range; what is longer than a block in one request."""
        stop = min(place + len(buffer), self.end)
        if stop - place >= _BLOCK:
            buffer[: stop - place] = self._blob.ranges(np.array([place]), np.array([stop]))[0]
            return stop - place
        at = place
        while at < stop:
            number, inner = divmod(at, _BLOCK)
            part = self._block(number)[inner : inner + stop - at]
            buffer[at - place : at - place + len(part)] = part
            at += len(part)
        return max(0, stop - place)

    def _block(self, number: int) -> memoryview:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        start = number * _BLOCK
        stop = min(start + _BLOCK, self.end)
        block = self._blocks[number] = self._blob.ranges(np.array([start]), np.array([stop]))[0]
        if len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        return block


def bytes_of(blob: Blob, /) -> Hdf5Bytes:
    """The bytes of a blob as a file: of one elsewhere a small one comes whole, of others the blocks that are needed."""
    if is_local(blob.location) and local_path(blob.location).is_file():
        return LocalHdf5(local_path(blob.location))
    view = blob.view()
    if view is None and blob.size > _WHOLE:
        return RemoteHdf5(blob)
    return HeldHdf5(blob.ranges(np.array([0]), np.array([blob.size]))[0] if view is None else view)

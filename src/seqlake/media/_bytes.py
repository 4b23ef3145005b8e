"""A source's bytes: as a file for FFmpeg's demuxers, and by range for decoders that need no container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import DecodeError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.reading import BlobFile

if TYPE_CHECKING:
    from seqlake.protocols import Blob, Source

_BLOCK = 4 << 20  # read at once where only ranges can be had
_BLOCKS = 8


def blob_of(source: Source, /) -> Blob:
    """The bytes as a blob, also where they stand in the row."""
    return MemoryBlob(source.blob) if isinstance(source.blob, (bytes, bytearray, memoryview)) else source.blob


def part_of(source: Source, /) -> tuple[int, int | None]:
    """The first frame of this source in its file, and how many there are; all the rest by default.

    Raises:
        DecodeError: Whoever wrote the row named none.
    """
    if source.first < 0 or (source.count or 0) < 0:
        raise DecodeError(
            f"{blob_of(source).location}: expected a part that begins at frame 0 or later, found {source.count} frames "
            f"from {source.first}. Mend `first_frame` and `num_frames` of the row."
        )
    return source.first, source.count


def all_of(source: Source, /) -> bytes | memoryview:
    """All bytes at once: for pictures, which are small."""
    blob = blob_of(source)
    view = blob.view()
    return blob.ranges(np.array([0]), np.array([blob.size]))[0] if view is None else view


class BlobBytes(BlobFile):
    """A blob as the file that a demuxer reads: mapped memory, or a few large blocks of a remote one.

    Example:
        >>> BlobBytes(MemoryBlob(b"abc")).read(2)
        b'ab'
    """

    def __init__(self, blob: Blob, /) -> None:
        super().__init__(blob)
        self._view = blob.view()
        self._blocks: dict[int, memoryview] = {}

    @property
    def mapped(self) -> bool:
        """Whether all of it is memory, so that looking here and there costs no requests."""
        return self._view is not None

    def between(self, start: int, stop: int, /) -> bytes:
        """Bytes `start` to `stop`, or to the end of the file."""
        stop = min(stop, self.end)
        if self._view is not None:
            return bytes(self._view[start:stop])
        first, last = start // _BLOCK, max(start, stop - 1) // _BLOCK
        if first == last:
            at = first * _BLOCK
            return bytes(self._block(first)[start - at : stop - at]) if start < stop else b""
        pieces = [(max(start, number * _BLOCK), number) for number in range(first, last + 1)]
        return b"".join(self._block(n)[a - n * _BLOCK : stop - n * _BLOCK] for a, n in pieces)

    def _block(self, number: int) -> memoryview:
        if number not in self._blocks:
            if len(self._blocks) >= _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            start = number * _BLOCK
            stop = min(start + _BLOCK, self._blob.size)
            self._blocks[number] = self._blob.ranges(np.array([start]), np.array([stop]))[0]
        return self._blocks[number]

    def read(self, size: int = -1) -> bytes:
        """The next bytes, all that are left by default."""
        data = self.between(self._place, self.end if size < 0 else self._place + size)
        self._place += len(data)
        return data

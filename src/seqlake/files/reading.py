"""A blob as a Python file object, for libraries that want one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seqlake.protocols import Blob


class BlobFile(io.RawIOBase):
    """A blob as a readable, seekable file: every read is a request, so wrap it in `io.BufferedReader` for small ones.

    Attributes:
        end: Where the file ends; may be set to less than the blob's size.

    Example:
        >>> from seqlake.files.blobs import MemoryBlob
        >>> BlobFile(MemoryBlob(b"abc")).read(2)
        b'ab'
    """

    def __init__(self, blob: Blob, /) -> None:
        super().__init__()
        self._blob = blob
        self._place = 0
        self.end: int = blob.size

    def readable(self) -> bool:
        """True: a blob can be read."""
        return True

    def seekable(self) -> bool:
        """True: any byte can be read next."""
        return True

    def tell(self) -> int:
        """Where the next byte lies."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte; beyond the end there is nothing to read."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.end}[whence]
        self._place = max(0, begin + offset)
        return self._place

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer; how many bytes were left to fill it with."""
        target = memoryview(buffer).cast("B")
        stop = min(self._place + len(target), self.end)
        count = max(0, stop - self._place)
        if count:
            target[:count] = self._blob.ranges(np.array([self._place]), np.array([stop]))[0]
            self._place = stop
        return count

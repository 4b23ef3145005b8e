"""Bytes that are held in memory, as a blob."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import ShardChangedError

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

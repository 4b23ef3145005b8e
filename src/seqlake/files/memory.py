"""Bytes that are held in memory, as a blob."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from seqlake.errors import ShardChangedError

if TYPE_CHECKING:
    from seqlake.protocols import Ints


def sliced(data: memoryview, starts: Ints, stops: Ints, location: str, /) -> list[memoryview]:
    """Ranges of memory; one that leaves it raises, as a short read of a file would."""
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if not 0 <= start <= stop <= len(data):
            raise ShardChangedError(
                f"{location}: expected bytes {start} to {stop}, found {len(data)} bytes. Was it truncated? Open again.",
                path=location,
            )
    return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


class MemoryBlob:
    """Bytes in memory.

    Args:
        data: The bytes; not copied.
        location: What messages call them.

    Example:
        >>> MemoryBlob(b"abc").size
        3
    """

    __slots__ = ("_data", "location")

    def __init__(self, data: bytes | bytearray | memoryview, /, *, location: str = "memory") -> None:
        self._data = memoryview(data).toreadonly().cast("B")
        self.location = location

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self._data)

    @property
    def token(self) -> str:
        """A hash of the bytes."""
        return blake2b(self._data, digest_size=12).hexdigest()

    def view(self) -> memoryview:
        """All of it."""
        return self._data

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it."""
        return sliced(self._data, starts, stops, self.location)

    def __reduce__(self) -> tuple[object, ...]:
        return (_memory_blob, (bytes(self._data), self.location))

    def __repr__(self) -> str:
        return f"MemoryBlob({self.location!r}, {self.size} bytes)"


def _memory_blob(data: bytes, location: str) -> MemoryBlob:
    return MemoryBlob(data, location=location)

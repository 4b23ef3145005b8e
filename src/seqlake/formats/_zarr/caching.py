"""Decoded chunks of arrays, held in memory within a limit."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Rows: TypeAlias = NDArray[Any]

CACHE_BYTES = 32 << 20
_IDLE = 16  # looks at each chunk held, on average, before the oldest makes room for another


class ChunkCache:
    """Decoded chunks of all arrays of a store, within a limit; safe for threads.

    What is used longest ago goes first. Where parts of a chunk are enough, it is held only once its parts have cost as
    much as the whole, and makes room only at the cost of chunks that were not used for long.

    Args:
        limit: Bytes; chunks beyond them are decoded again when they are needed. 0 holds none.
    """

    def __init__(self, limit: int = CACHE_BYTES, /) -> None:
        self.limit = limit
        self.nbytes: int = 0
        self._held: OrderedDict[tuple[str, int], Rows] = OrderedDict()
        self._used: dict[tuple[str, int], int] = {}  # when each was used last
        self._parts: dict[tuple[str, int], int] = {}  # bytes decoded of chunks that are not held
        self._now = 0
        self._lock = Lock()

    def get(self, key: tuple[str, int], make: Callable[[], Rows], /) -> Rows:
        """The chunk of a key, decoded where it is not held."""
        with self._lock:
            held = self._held.get(key)
            self._now += 1
            if held is not None:
                self._held.move_to_end(key)
                self._used[key] = self._now
                return held
        chunk = make()
        if chunk.nbytes <= self.limit:
            with self._lock:
                if key not in self._held:
                    self._held[key] = chunk
                    self._used[key] = self._now
                    self._parts.pop(key, None)
                    self.nbytes += chunk.nbytes
                while self.nbytes > self.limit:
                    gone, rows = self._held.popitem(last=False)
                    self.nbytes -= rows.nbytes
                    del self._used[gone]
        return chunk

    def holds(self, key: tuple[str, int], /) -> bool:
        """Whether a chunk is held."""
        return key in self._held

    def wants(self, key: tuple[str, int], nbytes: int, /, *, after: int) -> bool:
        """Whether a chunk is held, or should be from now on: parts of it have cost `after` bytes or more."""
        with self._lock:
            if key in self._held or self._parts.get(key, 0) < after or nbytes > self.limit:
                return key in self._held
            oldest = next(iter(self._held), None)
            idle = oldest is None or self._now - self._used[oldest] > _IDLE * len(self._held)
            return idle or self.nbytes + nbytes <= self.limit

    def count_part(self, key: tuple[str, int], nbytes: int, /) -> None:
        """A part of a chunk was decoded and is not held."""
        with self._lock:
            self._now += 1
            self._parts[key] = self._parts.get(key, 0) + nbytes

    def __reduce__(self) -> tuple[object, ...]:
        return (ChunkCache, (self.limit,))

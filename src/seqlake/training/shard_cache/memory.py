"""Local copies of shards in the memory of one process: bounded, farthest next use goes first."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from seqlake.errors import CacheTooSmallError
from seqlake.training.shard_cache.copies import LocalCopy, NoRoomError, enough

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.protocols import Shard
    from seqlake.training.shard_cache.originals import Original
    from seqlake.training.shard_cache.sizes import Size

_LOOK = 0.5  # seconds between two looks at whether waiting still makes sense


@dataclass(slots=True)
class Room:
    """Memory that a loader may use for shards that cannot be read in place.

    Attributes:
        limit: Bytes.
        decoded: Bytes of it that hold decoded columns.
    """

    limit: int
    decoded: int = 0


class _Entry(NamedTuple):
    shard: Shard
    nbytes: int


class InMemory:
    """Copies in memory; see `Copies`. For threads of one process.

    Args:
        room: How much there is, and what else takes of it.
    """

    def __init__(self, room: Room, /) -> None:
        self.room = room
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}  # the one that was taken longest ago first
        self._making: dict[str, int] = {}  # key -> bytes set aside
        self._holders: Counter[str] = Counter()
        self._next: dict[str, int] = {}  # key -> shards that are needed sooner

    @property
    def nbytes(self) -> int:
        """Bytes that copies take, those on their way among them."""
        with self._changed:
            return self._taken()

    def find(self, original: Original, /) -> LocalCopy | None:
        """One that is there, held; None where it is not."""
        with self._changed:
            return self._hold(original.key) if original.key in self._entries else None

    def make(self, original: Original, /, *, ahead: bool = False) -> LocalCopy | None:
        """One, fetched if it is not there; see `Copies.make`."""
        key = original.key
        with self._changed:
            while not ahead and key in self._making:  # by another thread, which gives up by itself
                self._changed.wait(_LOOK)
            if key in self._entries or key in self._making:
                return None if ahead else self._hold(key)
            self._making[key] = 0
        try:
            entry = _Entry(*original.fetched(partial(self._reserve, original, ahead=ahead)))
        except BaseException:
            with self._changed:
                del self._making[key]
                self._changed.notify_all()
            raise
        with self._changed:
            del self._making[key]
            self._entries[key] = entry
            self._changed.notify_all()
            return None if ahead else self._hold(key)

    def expect(self, keys: Sequence[str], /) -> None:
        """Say which are needed next, the soonest first."""
        with self._changed:
            self._next = {key: place for place, key in enumerate(keys)}

    def join(self, order: str, rank: int, /) -> set[int]:  # noqa: ARG002 - see `Copies.join`
        """This rank alone: memory is not shared."""
        return {rank}

    def size(self, original: Original, steps: Mapping[str, int], /, *, look: bool) -> Size:  # noqa: ARG002 - see `Copies.size`
        """What a copy takes at most; what is decoded counts beside it."""
        return original.size_in_memory(look=look)

    def count(self, nbytes: int, /) -> None:
        """Count bytes as decoded without asking whether there is room; fewer than none give back."""
        with self._changed:
            self.room.decoded += nbytes
            self._changed.notify_all()

    def take_room(self, nbytes: int, /, *, wait: bool) -> bool:
        """Count so many bytes as decoded, and let go of copies that nobody holds for them; whether there was room.

        Args:
            nbytes: How many.
            wait: For copies on their way, which can go as soon as they are there.
        """
        with self._changed:
            while not self._free(nbytes - self._left()):
                if not wait or not any(self._making.values()):
                    return False
                self._changed.wait(_LOOK)
            self.room.decoded += nbytes
            return True

    def _hold(self, key: str) -> LocalCopy:
        entry = self._entries[key] = self._entries.pop(key)
        self._holders[key] += 1
        return LocalCopy(entry.shard, nbytes=entry.nbytes, release=partial(self._let_go, key))

    def _let_go(self, key: str) -> None:
        with self._changed:
            self._holders[key] -= 1
            self._changed.notify_all()

    def _taken(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values()) + sum(self._making.values())

    def _left(self) -> int:
        return self.room.limit - self.room.decoded - self._taken()

    def _reserve(self, original: Original, nbytes: int, *, ahead: bool) -> None:
        key = original.key
        with self._changed:
            while not self._free(nbytes - self._left() - self._making[key], than=key if ahead else None):
                if ahead:
                    raise NoRoomError
                held = self.room.decoded + sum(
                    entry.nbytes for other, entry in self._entries.items() if self._holders[other]
                )
                if held + nbytes > self.room.limit or not any(self._making.values()):
                    raise self._too_small(original, nbytes, held)
                self._changed.wait(_LOOK)  # what is on its way can go as soon as it is there
            self._making[key] = nbytes

    def _free(self, nbytes: int, *, than: str | None = None) -> bool:
        """Let go of so many bytes, or of nothing; only of what is needed later than a key, if one is given."""
        if nbytes <= 0:
            return True
        far = len(self._next)
        bound = -1 if than is None else self._next.get(than, far)
        candidates = [
            (self._next.get(key, far), key, entry.nbytes)
            for key, entry in self._entries.items()
            if not self._holders[key]
        ]
        gone = enough(sorted(candidates, key=lambda one: -one[0]), nbytes, beyond=bound)
        for key in gone or ():
            del self._entries[key]
        return gone is not None

    def _too_small(self, original: Original, nbytes: int, held: int) -> CacheTooSmallError:
        least = held + nbytes
        return CacheTooSmallError(
            f"{original}: copies of shards may take {self.room.limit} bytes of memory; {held} are in use and this one "
            f"needs {nbytes} more, so {least} is the least that works.",
            hint=f'Allow more, Loader(..., cache=Cache(limit={least})), or give a folder, Cache("/nvme/cache"), '
            "or let fewer shards be in use: shuffle=Shuffle(lanes=, block=).",
        )

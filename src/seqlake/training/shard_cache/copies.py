"""Local copies of shards: one that is held, one that is being made, and which go where there is no room for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from seqlake.protocols import Shard


class NoRoomError(Exception):
    """Nothing that is needed later could make room for a shard that was to be fetched ahead."""


def enough(farthest: Iterable[tuple[int, str, int]], nbytes: int, /, *, beyond: int) -> list[str] | None:
    """Which copies go to make so many bytes free; None where all that may go are too few, and then none goes.

    Args:
        farthest: How many shards are needed sooner than each that may go, its key and its bytes; the farthest first.
        nbytes: What is wanted.
        beyond: Only those go before which more shards are needed than this.
    """
    gone: list[str] = []
    for at, key, size in farthest:
        if nbytes <= 0 or at <= beyond:
            break
        gone.append(key)
        nbytes -= size
    return gone if nbytes <= 0 else None


class LocalCopy:
    """A shard of this machine that stays until it is released; as a context manager, at its end.

    Args:
        shard: The shard: same rows, same order.
        nbytes: Bytes that it takes.
        release: Called once, when it may go.
    """

    def __init__(self, shard: Shard, /, *, nbytes: int, release: Callable[[], object]) -> None:
        self.nbytes = nbytes
        self._shard: Shard | None = shard
        self._release = release

    @property
    def shard(self) -> Shard:
        """The shard.

        Raises:
            ValueError: It was released.
        """
        if self._shard is None:
            raise ValueError("This local copy of a shard was released: take it again.")
        return self._shard

    def release(self) -> None:
        """It may be removed from now on; again does nothing."""
        if self._shard is not None:
            self._shard = None
            self._release()

    def __enter__(self) -> Shard:
        return self.shard

    def __exit__(self, *_: object) -> None:
        self.release()


class HeldCopy:
    """A file in the folder of a cache, which stays there until it is released.

    Args:
        key: Its key.
        path: The file.
        record: What was written about it when it was made.
        release: Called once, when it may go; says whether this process holds it no more.
    """

    def __init__(self, key: str, path: Path, record: Mapping[str, Any], /, *, release: Callable[[str], bool]) -> None:
        self.key = key
        self.path = path
        self.record = record
        self._release: Callable[[str], bool] | None = release

    def release(self) -> bool:
        """It may be removed from now on; again does nothing. Whether this process holds it no more."""
        release, self._release = self._release, None
        return release is not None and release(self.key)


class Draft:
    """A copy that is being made in the folder of a cache.

    Args:
        path: Where to write it.
        reserve: Sets bytes aside; see `reserve`.

    Attributes:
        beside: Where to put what is needed only while it is made.
        room: Bytes that are set aside for it.
    """

    def __init__(self, path: Path, /, *, reserve: Callable[[int], object]) -> None:
        self.path = path
        self.beside: Path = path.with_suffix(".mirror")
        self.room: int = 0
        self._reserve = reserve

    def reserve(self, nbytes: int, /) -> None:
        """Set bytes aside, in all, before they are written; others are removed for them.

        Raises:
            CacheTooSmallError: There is no such room.
            NoRoomError: There is none for a copy that is made ahead.
        """
        if nbytes > self.room:
            self._reserve(nbytes)
            self.room = nbytes

    def remove(self) -> None:
        """Remove what was written."""
        self.path.unlink(missing_ok=True)
        self.beside.unlink(missing_ok=True)

"""What caches of shards have in common: local shards that stay until they are released, found or made by source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from seqlake.protocols import Shard
    from seqlake.training.shard_cache.cache import Held, ShardCache
    from seqlake.training.shard_cache.sources import CacheSource


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


class LocalShard:
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


class Copies(Protocol):
    """Where local shards lie: bounded; what is needed farthest ahead goes first."""

    def find(self, source: CacheSource, /) -> LocalShard | None:
        """One that is there, held; None where it is not."""

    def make(self, source: CacheSource, /, *, ahead: bool = False) -> LocalShard | None:
        """One, made if it is not there, and held; None for `ahead`, which holds nothing.

        Raises:
            CacheTooSmallError: It does not fit beside what is in use; says the least limit that works.
            NoRoomError: The same, for `ahead`: nothing that is needed sooner makes room.
            OSError: It cannot be fetched.
            CorruptFileError: Its bytes do not match their checksums.
        """

    def expect(self, keys: Sequence[str], /) -> None:
        """Say which are needed next, the soonest first."""


class InFolder:
    """Copies in a folder that processes share; see `Copies`.

    Args:
        cache: The folder.
    """

    def __init__(self, cache: ShardCache, /) -> None:
        self.cache = cache

    def find(self, source: CacheSource, /) -> LocalShard | None:
        """One that is there, held; None where it is not, or is damaged."""
        return _local(source, self.cache.find(source.key))

    def make(self, source: CacheSource, /, *, ahead: bool = False) -> LocalShard | None:
        """One, made if it is not there; see `ShardCache.make`."""
        return _local(source, self.cache.make(source.key, source.fill, name=source, ahead=ahead))

    def expect(self, keys: Sequence[str], /) -> None:
        """Say which are needed next, the soonest first."""
        self.cache.expect(keys)


def _local(source: CacheSource, held: Held | None) -> LocalShard | None:
    if held is None:
        return None
    try:
        return source.local(held)
    except BaseException:
        held.release()
        raise

"""Copies of shards that a loader has open: taken when it comes to them, released when no later sample needs them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CacheTooSmallError, SeqlakeError
from seqlake.training.cache import Cache
from seqlake.training.fetching.ahead import Fetcher
from seqlake.training.shard_cache import InFolder, InMemory, Room, ShardCache
from seqlake.training.telemetry import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Shard
    from seqlake.spec.schema import Schema
    from seqlake.training.fetching.transfers import Transfers
    from seqlake.training.order import Visits
    from seqlake.training.shard_cache import Copies, LocalCopy
    from seqlake.training.shard_cache.sizes import Size, StepsOf


class Residents:
    """Open local copies of shards, by number; for one consumer, in one process.

    Args:
        fetcher: Where they come from.
        keep: All shards fit at the same time: those that came stay.
        memory: The memory that there is for copies and for what is decoded.

    Attributes:
        open: Shard number -> the copy.
        room: How much memory there is, and how much of it what is decoded takes.
        in_folder: Whether copies lie in a folder, and not in memory.
        folder: Which it is.
        limit: Bytes that copies may take there, or in memory.
        is_fetched: Whether there are any, as far as the first and the last shard tell: to look at all takes long.

    Example:
        ```python
        residents = Residents(fetcher)
        residents.begin(order.visits(), sample=0)
        for first in range(0, len(order), step):
            left = residents.leave(first)                         # forget what lies in these
            come = residents.come_to(shards_of(first, first + step))  # {3: LocalCopy, ...}: look into these
        ```
    """

    def __init__(self, fetcher: Fetcher, /, *, keep: bool = False, memory: InMemory | None = None) -> None:
        self._memory = InMemory(Room(0)) if memory is None else memory
        self.open: dict[int, LocalCopy] = {}
        self.room: Room = self._memory.room
        self.in_folder = False
        self.is_fetched = True
        self.folder: str | None = None
        self.limit: int = self.room.limit
        self._fetcher = fetcher
        self._keep = keep
        self._visits: Visits | None = None
        self._coming: list[int] | None = None  # what to schedule as soon as one shard is needed
        self._came = False

    @classmethod
    def of(
        cls,
        shards: Sequence[Shard],
        schema: Schema,
        cache: Cache | None,
        transfers: Transfers,
        /,
        *,
        whole: NDArray[np.bool_],
        needs: Callable[[Shard], bool],
        steps: Callable[[int], Mapping[str, StepsOf]] | None = None,
        decoded: float = 0,
    ) -> Residents:
        """What a loader holds of shards that cannot be read in place; none of them is open yet.

        Args:
            shards: Of the dataset.
            schema: The columns wanted, with the types that the shards show.
            cache: Room for copies and for what is decoded.
            transfers: What reads stores.
            whole: [shards] False for those that are never copied: their windows are read by range.
            needs: Whether a shard is read from a copy in memory.
            steps: Shard number -> columns of steps that are decoded in memory.
            decoded: Bytes that all can take in memory beside their copies, decoded; infinite where nobody knows.
        """
        folder: str | PathLike[str] | None = None if cache is None else cache.path
        room = Room((cache if cache is not None and folder is None else Cache()).nbytes)
        memory = InMemory(room)
        copies: Copies = memory
        if cache is not None and folder is not None:
            copies = InFolder(ShardCache(folder, limit=cache.nbytes))
        copied = [shard for shard, is_whole in zip(shards, whole.tolist(), strict=True) if is_whole]
        is_fetched = folder is not None or any(_is_copied(shard, needs) for shard in (*copied[:1], *copied[-1:]))
        nbytes = sum(shard.nbytes for shard in copied) if is_fetched else 0
        largest = max((shard.nbytes for shard in copied), default=0) if is_fetched else 0
        residents = cls(
            Fetcher(shards, schema, copies=copies, transfers=transfers, steps=steps),
            # One more than there are, since a compressed one comes beside its bytes as they are read.
            keep=folder is None and nbytes + largest + decoded <= room.limit,
            memory=memory,
        )
        residents.in_folder, residents.is_fetched = folder is not None, is_fetched
        if cache is not None and folder is not None:
            residents.folder, residents.limit = os.path.abspath(folder), cache.nbytes  # noqa: PTH100 - as the cache has it
        return residents

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are in use, by copies and by what is decoded."""
        return self.room.decoded + self._memory.nbytes

    @property
    def has_course(self) -> bool:
        """Whether an epoch was begun that says which shards are needed when."""
        return self._visits is not None

    def count(self, nbytes: int, /) -> None:
        """Count bytes of memory as decoded, or with fewer than none as free again, without asking for room."""
        self._memory.count(nbytes)

    def take_room(self, nbytes: int, /, *, wait: bool = False) -> bool:
        """Count bytes of memory as decoded, if there is room, if need be instead of copies that nobody uses."""
        return self._memory.take_room(nbytes, wait=wait)

    @property
    def keeps(self) -> bool:
        """Whether all shards fit into memory at the same time, so that those that came stay."""
        return self._keep

    def size(self, shard: int, steps: Mapping[str, int], /, *, look: bool) -> Size:
        """What a copy of a shard takes, known before it is made; see `Original.size_in_folder`."""
        return self._fetcher.size(shard, steps, look=look)

    def join(self, order: str, rank: int, /) -> set[int]:
        """Say which rank of an order this is; all ranks that share the room for copies."""
        return self._fetcher.join(order, rank)

    def begin(self, visits: Visits, /, *, sample: int = 0, then: Visits | None = None) -> None:
        """Begin an epoch, at any sample; what is open stays so.

        Nothing is fetched before the first shard is come to: those that can be read in place never are.

        Args:
            visits: Of this epoch.
            sample: Where in it.
            then: Of the next epoch, whose first shards are fetched while this one ends.
        """
        self._visits = visits.after(sample)
        shards = self._visits.shards.tolist()
        now = {shard for shard in self.open if shard in shards}
        for shard in now:
            shards.remove(shard)  # its first visit needs no fetching
        self._coming = [*shards, *(then.shards.tolist() if then is not None else [])]
        self._schedule()

    def _schedule(self) -> None:
        if self._came and self._coming is not None:
            self._fetcher.schedule(self._coming)
            self._coming = None

    def announce(self, shards: Sequence[int], /) -> None:
        """Say which shards will be come to at once, where no epoch was begun that says so: they come side by side."""
        if self._visits is None and len(shards) > 1:
            self._fetcher.schedule(shards)

    def come_to(self, shards: Ints, /) -> dict[int, LocalCopy]:
        """Take shards that are needed now; those that were not open yet, by number.

        Raises:
            CacheTooSmallError: They do not fit beside those that are open.
            OSError: One cannot be fetched.
        """
        come: dict[int, LocalCopy] = {}
        self._came = True
        self._schedule()
        try:
            for shard in np.unique(shards).tolist():
                if shard not in self.open:
                    come[shard] = self.open[shard] = self._fetcher.take(shard)
        except CacheTooSmallError as error:
            if self._visits is not None:
                sizes = np.array([self._fetcher.nbytes(shard) for shard in self._visits.shards.tolist()], np.int64)
                held = self._visits
                error.add_note(
                    f"From here on up to {held.most()} shards are in use at a time, whose files have "
                    f"{held.most(sizes)} bytes. loader.plan() says before anything is read how many an order needs."
                )
            raise
        return come

    def soonest(self, shards: Iterable[int], /) -> Iterator[int]:
        """Shards that are come to one by one, in the order in which they come: the next ones come meanwhile."""
        left = dict.fromkeys(shards)
        while left:
            shard = self._fetcher.soonest(left)
            del left[shard]
            yield shard

    def leave(
        self, sample: int, /, *, until: int = 0, keep: Collection[int] = (), others: Collection[int] = ()
    ) -> list[int]:
        """Release the shards that no sample from this one on needs before they would come again; their numbers.

        Args:
            sample: Where the epoch is.
            until: The last sample that is come to next: shards that it needs stay.
            keep: Shards that stay.
            others: Shards that are in memory without a copy.

        Whoever looks into their memory must have let go of it: it may be gone at any time.
        """
        if self._visits is None or self._keep:
            return []
        self._visits = self._visits.after(sample)
        begun = self._visits.begins <= max(sample, until)
        needed = set(self._visits.shards[begun].tolist())
        left = [shard for shard in (*self.open, *others) if shard not in needed and shard not in keep]
        for shard in left:
            self.release(shard)
        return left

    def release(self, shard: int, /) -> None:
        """Release a shard, if it is open."""
        if shard in self.open:
            self.open.pop(shard).release()

    def fetched(self) -> Fetched:
        """What was copied so far."""
        counts, traffic = self._fetcher.fetched, self._fetcher.transfers.traffic
        return Fetched(
            nbytes=traffic.nbytes,
            requests=traffic.requests,
            retries=traffic.retries,
            hits=counts.hits,
            misses=counts.misses,
            waited=counts.waited,
        )

    def close(self) -> None:
        """Release all copies that are open."""
        while self.open:
            self.open.popitem()[1].release()


def _is_copied(shard: Shard, needs: Callable[[Shard], bool]) -> bool:
    try:
        return needs(shard)
    except (SeqlakeError, OSError):
        return False  # whoever opens it meets the error

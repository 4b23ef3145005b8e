"""The local shards that a pass has open: taken when it comes to them, released when no later sample needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.telemetry import Fetched

if TYPE_CHECKING:
    from collections.abc import Collection

    from seqlake.protocols import Ints
    from seqlake.training.fetching.ahead import Fetcher
    from seqlake.training.shard_cache import LocalShard
    from seqlake.training.visits import Visits


class Residents:
    """Open local shards, by number; for one consumer.

    Args:
        fetcher: Where they come from.

    Attributes:
        open: Shard number -> the local shard.

    Example:
        ```python
        residents = Residents(fetcher)
        residents.begin(visits(order), sample=0)
        for first in range(0, len(order), step):
            left = residents.leave(first)                         # forget what lies in these
            come = residents.come_to(shards_of(first, first + step))  # {3: LocalShard, ...}: look into these
        ```
    """

    def __init__(self, fetcher: Fetcher, /) -> None:
        self.open: dict[int, LocalShard] = {}
        self._fetcher = fetcher
        self._visits: Visits | None = None
        self._coming: list[int] | None = None  # what to schedule as soon as one shard is needed
        self._came = False

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

    def come_to(self, shards: Ints, /) -> dict[int, LocalShard]:
        """Take shards that are needed now; those that were not open yet, by number.

        Raises:
            CacheTooSmallError: They do not fit beside those that are open.
            OSError: One cannot be fetched.
        """
        come: dict[int, LocalShard] = {}
        self._came = True
        self._schedule()
        for shard in np.unique(shards).tolist():
            if shard not in self.open:
                come[shard] = self.open[shard] = self._fetcher.take(shard)
        return come

    def leave(self, sample: int, /, *, keep: Collection[int] = ()) -> list[int]:
        """Release the shards that no sample from this one on needs before they would come again; their numbers.

        Args:
            sample: Where the epoch is.
            keep: Shards that stay.

        Whoever looks into their memory must have let go of it: it may be gone at any time.
        """
        if self._visits is None:
            return []
        self._visits = self._visits.after(sample)
        begun = self._visits.begins <= sample
        needed = set(self._visits.shards[begun].tolist())
        left = [shard for shard in self.open if shard not in needed and shard not in keep]
        for shard in left:
            self.open.pop(shard).release()
        return left

    def fetched(self) -> Fetched:
        """What was copied so far."""
        own, traffic = self._fetcher.fetched, self._fetcher.transfers.traffic
        return Fetched(
            nbytes=traffic.nbytes,
            requests=traffic.requests,
            retries=traffic.retries,
            hits=own.hits,
            misses=own.misses,
            waited=own.waited,
        )

    def close(self) -> None:
        """Release all."""
        while self.open:
            self.open.popitem()[1].release()

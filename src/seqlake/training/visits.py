"""When each shard is needed, from the order's arithmetic alone: nothing is enumerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.order import Order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Visits:
    """Stretches of an epoch in which shards are needed, the one that begins first being first.

    A shard that lies in two lanes has one for each; in no other sample than these is it needed.

    Attributes:
        shards: [visits] shard numbers.
        begins: [visits] the first sample that may need the shard.
        ends: [visits] the sample from which on it is not needed any more.
    """

    shards: Ints
    begins: Ints
    ends: Ints

    def after(self, sample: int, /) -> Visits:
        """Those that are not over at a sample."""
        left = self.ends > sample
        return Visits(shards=self.shards[left], begins=self.begins[left], ends=self.ends[left])

    def of(self, shards: NDArray[np.bool_], /) -> Visits:
        """Those of some shards: [shards] True where wanted."""
        wanted = shards[self.shards]
        return Visits(shards=self.shards[wanted], begins=self.begins[wanted], ends=self.ends[wanted])

    def moved(self, samples: int, /) -> Visits:
        """The same, each so many samples later."""
        return Visits(shards=self.shards, begins=self.begins + samples, ends=self.ends + samples)

    @classmethod
    def joined(cls, parts: Sequence[Visits], /) -> Visits:
        """Those of several parts of an epoch."""
        if len(parts) == 1:
            return parts[0]
        shards, begins, ends = (
            np.concatenate(one) for one in zip(*((part.shards, part.begins, part.ends) for part in parts), strict=True)
        )
        order = np.lexsort((shards, begins))
        return cls(shards=shards[order], begins=begins[order], ends=ends[order])

    def needed(self, first: int, stop: int, /) -> Ints:
        """Shards that some of the samples may need."""
        needed: Ints = np.unique(self.shards[(self.begins < stop) & (self.ends > first)])
        return needed

    def most(self, sizes: Ints | None = None, /) -> int:
        """Shards that are needed at the same time, at most; or their bytes, with those of each visit's shard."""
        moments = np.concatenate([self.begins, self.ends])
        sizes = np.ones(len(self.shards), np.int64) if sizes is None else sizes
        change = np.concatenate([sizes, -sizes])
        order = np.lexsort((change, moments))  # one that ends makes room for one that begins
        return int(np.cumsum(change[order]).max(initial=0))


def visits(order: Order, /, *, lanes: Iterable[int] | None = None) -> Visits:
    """When each shard is needed in an epoch.

    Windows travel at most to the border of the blocks they are mixed in, so the samples that can hold a shard's windows
    lie between two borders.

    Args:
        order: Of the epoch.
        lanes: Only these: a rank of several takes few.
    """
    total = len(order)
    sizes = order.shard_windows
    if order.shuffle is None:
        ends = np.cumsum(sizes)
        has = np.flatnonzero(sizes)
        return Visits(shards=has, begins=(ends - sizes)[has], ends=ends[has])
    shards = order._shards  # noqa: SLF001 - this and the next few: the order's own stages, told in other words
    count = order._lanes  # noqa: SLF001 - see above
    lengths, places = order._lane_spans  # noqa: SLF001 - see above
    mixed_twice = len(order._passes()) > 1  # noqa: SLF001 - see above
    stops = np.cumsum(sizes[shards])
    starts = stops - sizes[shards]
    spans: list[tuple[Ints, Ints, Ints]] = []
    for lane in range(count) if lanes is None else sorted(set(lanes)):
        low, high = int(places[lane]), int(places[lane] + lengths[lane])
        inside = np.flatnonzero((starts < high) & (stops > low))
        first = np.maximum(starts[inside], low) - low
        last = np.minimum(stops[inside], high) - low - 1
        size = order.shuffle.visits
        first, last = _travelled(first // size, last // size, order.block, twice=mixed_twice)
        first, last = first * size, last * size + size - 1
        last = np.minimum(last, high - low - 1)
        spans.append((shards[inside], first * count + lane, np.minimum(last * count + lane + 1, total)))
    if not spans:
        nothing = np.zeros(0, np.int64)
        return Visits(shards=nothing, begins=nothing, ends=nothing)
    which, begins, ends = (np.concatenate(part) for part in zip(*spans, strict=True))
    by_begin = np.lexsort((which, begins))
    return Visits(shards=which[by_begin], begins=begins[by_begin], ends=ends[by_begin])


def _travelled(first: Ints, last: Ints, block: int, *, twice: bool) -> tuple[Ints, Ints]:
    """The first and last place in a lane that windows from `first` to `last` can have after mixing."""
    if twice:  # blocks that begin half a block earlier are mixed last, so undone first
        shift = block - block // 2
        first = np.maximum((first + shift) // block * block - shift, 0)
        last = ((last + shift) // block + 1) * block - shift - 1
    return first // block * block, (last // block + 1) * block - 1

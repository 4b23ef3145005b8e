"""A whole epoch through a cache that holds a part of the dataset: every shard comes once, and is there when needed."""

from __future__ import annotations

import numpy as np
import pytest

from seqlake.errors import CacheTooSmallError
from seqlake.training.fetching.ahead import Fetcher
from seqlake.training.order import Order, Shuffle
from seqlake.training.residents import Residents
from seqlake.training.shard_cache import InFolder, ShardCache

from . import sharing

SHARDS, WINDOWS, STEP = 24, 30, 16


class Small:
    """The shard of a number, small."""

    def __init__(self, number: int) -> None:
        whole = sharing.shard(number)
        self.table = whole.table.slice(0, 1)
        self.key, self.rows, self.nbytes = f"small#{number}", 1, 32_000
        self.opened = 0

    def open(self):
        from seqlake.shards.memory import ArrowReader

        self.opened += 1
        return ArrowReader(self.table)


def order_of(epoch: int) -> Order:
    return Order(shard_windows=np.full(SHARDS, WINDOWS), shuffle=Shuffle(lanes=2, block=60), seed=0, epoch=epoch)


def room_of_one(tmp_path) -> int:
    cache = ShardCache(tmp_path / "one", limit=1 << 30)
    with Fetcher([Small(0)], sharing.SCHEMA, copies=InFolder(cache)) as fetcher:
        fetcher.take(0).release()
    size = cache.nbytes()
    cache.close()
    return size


def test_every_shard_comes_once_an_epoch_through_a_cache_of_a_part(tmp_path) -> None:
    shards = [Small(number) for number in range(SHARDS)]
    most = order_of(0).visits().most()
    assert most < SHARDS - 6
    cache = ShardCache(tmp_path / "cache", limit=(most + 3) * room_of_one(tmp_path) + 100_000, patience=10)
    with Fetcher(shards, sharing.SCHEMA, copies=InFolder(cache), ahead=2) as fetcher:
        residents = Residents(fetcher)
        straddling = 0
        for epoch in range(2):
            order = order_of(epoch)
            found = order.visits()
            straddling += len(found.shards)
            residents.begin(found, then=order_of(epoch + 1).visits() if epoch == 0 else None)
            for first in range(0, len(order), STEP):
                samples = np.arange(first, min(first + STEP, len(order)))
                needed = np.unique(order.windows(samples) // WINDOWS)
                residents.leave(first)
                residents.come_to(needed)
                assert set(needed.tolist()) <= set(residents.open)
                assert all(local.shard.rows == 1 for local in residents.open.values())
                assert sharing.on_disk(cache) <= cache.limit
        residents.close()
    assert sum(shard.opened for shard in shards) <= straddling + 4  # but for what the end of an epoch turned out
    cache.close()


def test_a_cache_of_too_few_shards_says_so(tmp_path) -> None:
    shards = [Small(number) for number in range(SHARDS)]
    cache = ShardCache(tmp_path / "cache", limit=int(3.5 * room_of_one(tmp_path)), patience=1)
    with Fetcher(shards, sharing.SCHEMA, copies=InFolder(cache)) as fetcher:
        residents = Residents(fetcher)
        residents.begin(order_of(0).visits())
        with pytest.raises(CacheTooSmallError, match="least that works") as refused:
            residents.come_to(np.arange(8))
        most = order_of(0).visits().most()
        (note,) = [note for note in refused.value.__notes__ if "at a time" in note]
        assert f"up to {most} shards are in use at a time, whose files have {most * shards[0].nbytes} bytes" in note
        residents.close()
    cache.close()


def test_an_epoch_that_begins_in_the_middle_reads_nothing_of_what_lies_before(tmp_path) -> None:
    shards = [Small(number) for number in range(SHARDS)]
    cache = ShardCache(tmp_path / "cache", limit=1 << 30, patience=10)
    order, sample = order_of(0), 500
    with Fetcher(shards, sharing.SCHEMA, copies=InFolder(cache), ahead=SHARDS) as fetcher:
        residents = Residents(fetcher)
        residents.begin(order.visits(), sample=sample)
        for first in range(sample, len(order), STEP):
            residents.leave(first)
            residents.come_to(order.windows(np.arange(first, min(first + STEP, len(order)))) // WINDOWS)
        residents.close()
    later = set(order.visits().after(sample).shards.tolist())
    assert {number for number, shard in enumerate(shards) if shard.opened} <= later
    assert len(later) < SHARDS
    cache.close()


def test_shards_that_come_next_are_not_released_before(tmp_path) -> None:
    shards = [Small(number) for number in range(SHARDS)]
    found = order_of(0).visits()
    late = int(np.argmax(found.begins > STEP))
    shard, begin = int(found.shards[late]), int(found.begins[late])
    with Fetcher(shards, sharing.SCHEMA, copies=InFolder(ShardCache(tmp_path / "cache", limit=1 << 30))) as fetcher:
        residents = Residents(fetcher)
        residents.begin(found)
        residents.come_to(np.array([shard]))
        assert residents.leave(0, until=begin) == []
        assert residents.leave(0, until=begin - 1) == [shard]
        residents.close()

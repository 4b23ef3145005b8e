"""A process that shares a shard cache; run by the cache's tests.

Arguments: folder, limit, number of this process, rounds, what to do ("train", "stall").
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress

import numpy as np
import pyarrow as pa

from seqlake.shards.memory import ArrowShard
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.shard_cache import Original, ShardCache

SCHEMA = Schema({"action": Trajectory(dim=4)})
STEPS = 2000


def shard(number: int) -> ArrowShard:
    """20 rows of known numbers."""
    cells = [
        np.full((STEPS, 4), number * 100 + row, np.float32) + np.arange(STEPS, dtype=np.float32)[:, None] / STEPS
        for row in range(20)
    ]
    ids = [f"{number}-{row}" for row in range(20)]
    kind = SCHEMA.arrow.field("action").type
    flat = pa.FixedSizeListArray.from_arrays(np.concatenate(cells).reshape(-1), type=kind.value_type)
    lists = pa.ListArray.from_arrays(np.arange(21, dtype=np.int32) * STEPS, flat, type=kind)
    return ArrowShard(pa.table({"sequence_id": ids, "action": lists}), key=f"known#{number}")


def right(local, number: int) -> bool:
    """Whether a local shard holds what `shard(number)` does."""
    reader = local.open()
    flat = reader.flat("action")
    data = np.frombuffer(flat.blob.view(), np.uint8)
    for row in (0, 7, 19):
        start = int(flat.start[row])
        values = data[start : start + STEPS * 16].view(np.float32).reshape(STEPS, 4)
        if not np.array_equal(values[:, 0], number * 100 + row + np.arange(STEPS, dtype=np.float32) / STEPS):
            return False
    reader.close()
    return True


def on_disk(cache: ShardCache) -> int:
    """Bytes that everything in the cache's folder takes, at one moment: nothing is removed or added meanwhile."""
    total = 0
    with cache._locked():
        for path in (cache.path / "shards").iterdir():
            with suppress(FileNotFoundError):
                total += path.stat().st_blocks * 512
    return total


class Slow(Original):
    """Takes its time, with half of the shard written."""

    def fill(self, part):
        part.reserve(100_000)
        part.path.write_bytes(b"half a shard")
        print("stalls", flush=True)
        time.sleep(60)
        raise AssertionError("was to be killed")


def main() -> None:
    folder, limit, me, rounds, what = sys.argv[1:]
    cache = ShardCache(folder, limit=int(limit), patience=30)
    transfers = Transfers()
    if what == "stall":
        source = Slow(shard(99), SCHEMA, transfers)
        cache.make(source.key, source.fill, name=source.name)
    print("ready", flush=True)
    chance = random.Random(int(me))
    for turn in range(int(rounds)):
        number = chance.randrange(8)
        source = Original(shard(number), SCHEMA, transfers)
        held = cache.make(source.key, source.fill, name=source.name)
        with source.local(held) as local:
            if not right(local, number):
                print("wrong", number, flush=True)
                sys.exit(1)
        print("turn", turn, flush=True)
    cache.close()
    transfers.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()

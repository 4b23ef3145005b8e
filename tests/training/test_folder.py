"""The loader over shards that cannot be read in place, through a cache in a folder."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.errors import CacheTooSmallError
from seqlake.files.stores import open_store
from seqlake.shards.columns import Columns
from seqlake.shards.files import parquet_shard
from seqlake.training import passes
from seqlake.training.cache import Cache
from seqlake.training.loader import Loader
from seqlake.training.order import Shuffle
from seqlake.training.shard_cache import ShardCache
from seqlake.training.steps import Steps
from seqlake.windows.spec import Whole

from .faulty import Proxy
from .sharing import on_disk

WINDOW = {"obs_state": range(-1, 1), "action": range(4), "reward": None}


def same(one, other) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["archive", "arrow", "parquet"])
@pytest.mark.parametrize("shuffle", [True, False, Shuffle(lanes=2, block=40)])
def test_batches_are_those_of_local_flat_shards(kind, shuffle, arm, readable, tmp_path) -> None:
    schema, rows = arm([40, 3, 0, 25, 60, 12, -1, 33] * 4)
    options = {"window": WINDOW, "batch_size": 16, "shuffle": shuffle, "seed": 1}
    plain = Loader(readable(schema, rows, shards=8), **options)
    cached = Loader(readable(schema, rows, shards=8, kind=kind), cache=Cache(tmp_path / "cache", "1 GB"), **options)
    for _ in range(2):
        for one, other in zip(plain, cached, strict=True):
            same(one, other)
    assert (tmp_path / "cache").exists() or kind == "parquet"


def test_a_cache_of_a_part_is_enough_where_blocks_are_small(arm, readable, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(passes, "_AHEAD", 1 << 10)
    schema, rows = arm([1000] * 48, action=24, state=1)
    options = {"window": {"action": range(4)}, "batch_size": 16, "shuffle": Shuffle(lanes=1, block=3000), "seed": 1}
    plain = Loader(readable(schema, rows, shards=24), **options)
    limit = 14 * 260_000
    cache = ShardCache(tmp_path / "cache", limit=limit)  # of somebody who looks on
    cached = Loader(
        readable(schema, rows, shards=24, kind="archive"), cache=Cache(tmp_path / "cache", limit), **options
    )
    for one, other in zip(plain, cached, strict=True):
        same(one, other)
        assert on_disk(cache) <= limit
    cache.close()
    too_small = Cache(tmp_path / "small", 500_000)
    small = Loader(readable(schema, rows, shards=24, kind="archive"), cache=too_small, **options)
    with pytest.raises(CacheTooSmallError, match="least that works"):
        list(small)


def test_shards_in_a_bucket(arm, readable, tmp_path, s3_bucket) -> None:
    schema, rows = arm([40, 3, 0, 25, 60, 12, -1, 33] * 4)
    local = readable(schema, rows, shards=6, kind="parquet")
    put = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        store = open_store(s3_bucket.uri, storage={**s3_bucket.storage, "endpoint": proxy.url})
        parts = []
        for number in range(6):
            put.put(f"{number}.parquet", tmp_path / f"parquet-{number}.parquet")
            parts.append(Columns(parquet_shard(store.blob(f"{number}.parquet")), schema, {}))
        remote = readable(schema, rows, shards=1)
        remote.parts = parts
        options = {"window": WINDOW, "batch_size": 16, "seed": 1}
        loader = Loader(remote, cache=Cache(tmp_path / "cache", "1 GB"), **options)
        len(loader)
        proxy.reset_counts()
        plain = Loader(local, **options)
        for _ in range(2):
            for one, other in zip(plain, loader, strict=True):
                same(one, other)
        assert sum(proxy.seen.values()) == 6
        assert proxy.nbytes == sum((tmp_path / f"parquet-{n}.parquet").stat().st_size for n in range(6))
        whole = Loader(remote, window=Whole(["action"]), batch_size=4, cache=Cache(tmp_path / "cache", "1 GB"))
        assert len(list(whole)) == 8


def test_passes_side_by_side_do_not_pull_memory_from_under_each_other(arm, readable, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(passes, "_AHEAD", 1 << 10)
    schema, rows = arm([1000] * 24, action=24, state=1)
    options = {"window": {"action": range(4)}, "batch_size": 16, "shuffle": Shuffle(lanes=1, block=1000), "seed": 1}
    plain = Loader(readable(schema, rows, shards=12), **options)
    archive = readable(schema, rows, shards=12, kind="archive")
    first = Loader(archive, cache=Cache(tmp_path / "cache", 4_500_000), **options)
    second = first.map_batch(lambda batch: batch)  # shares what is open
    second.set_epoch(3)
    other = Loader(readable(schema, rows, shards=12), **options)
    other.set_epoch(3)
    for steps, (one, two, three, four) in enumerate(zip(plain, first, other, second, strict=False)):
        same(one, two)
        same(three, four)
        if steps > 1000:
            break


def test_a_loader_that_is_gone_leaves_no_thread_and_holds_nothing(arm, readable, begun, tmp_path) -> None:
    schema, rows = arm([40] * 12)
    archive = readable(schema, rows, shards=6, kind="archive")
    loader = Loader(archive, window=WINDOW, batch_size=4, cache=Cache(tmp_path / "cache", "1 GB"))
    list(loader)
    del loader
    deadline = time.monotonic() + 60
    gc.collect()
    while begun() and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()  # a thread at its last task held what the collector would have taken before
    assert begun() == []
    cache = ShardCache(tmp_path / "cache", limit=10**9)
    with cache._locked() as user:
        assert user.inventory().held == set()
    cache.close()


@settings(max_examples=200, deadline=None)
@given(
    lanes=st.integers(1, 9),
    batch=st.integers(1, 40),
    world=st.integers(1, 5),
    samples=st.integers(50, 400),
    position=st.integers(0, 49),
)
def test_a_rank_knows_its_lanes(lanes, batch, world, samples, position) -> None:
    for rank in range(world):
        steps = Steps(
            samples=samples, lanes=lanes, global_batch=batch * world, rank=rank, world_size=world, tail="drop"
        )
        count = steps.count(position)
        if count:
            _, numbers, _ = steps.take(position, np.arange(count))
            assert set((numbers % lanes).tolist()) <= set(steps.lanes_of(position).tolist())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork"])
def test_workers_share_the_folder(context, arm, readable, tmp_path) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    schema, rows = arm([40, 3, 25, 60, 12, 33] * 4)
    options = {"window": WINDOW, "batch_size": 16, "seed": 1}
    plain = Loader(readable(schema, rows, shards=8), **options)
    archive = readable(schema, rows, shards=8, kind="archive")
    cached = Loader(archive, cache=Cache(tmp_path / "cache", "1 GB"), **options)
    next(iter(cached))  # the parent has threads and holds shards
    cached.set_epoch(0)
    data = torch_data.DataLoader(
        cached.torch(), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=60
    )
    for one, other in zip(plain, data, strict=True):
        assert np.array_equal(one["action"], other["action"].numpy())
    assert len(list((tmp_path / "cache" / "shards").glob("*.parquet"))) == 8


def test_shards_that_are_read_in_place_are_not_copied(arm, readable, tmp_path) -> None:
    schema, rows = arm([30] * 12)
    loader = Loader(
        readable(schema, rows, kind="parquet", shards=4),
        window={"action": range(4)},
        batch_size=16,
        cache=Cache(tmp_path / "cache"),
    )
    list(loader)
    opened = loader._engine.opened
    assert not opened._residents._fetcher._making
    assert not (tmp_path / "cache").exists()
    assert set(loader.report().nbytes) == {"mapped"}

"""Shards of a bucket in memory: side by side, ahead of use and once, within the limit, and as true as any other."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import CacheTooSmallError, CorruptFileError
from seqlake.files.stores import open_store
from seqlake.training import passes
from seqlake.training.fetching import transfers as moving
from seqlake.training.opened import Opened
from seqlake.training.shard_cache import InMemory, NoRoomError, Original, Room, originals

WINDOW = {"action": range(4)}
BOTH = {"action": range(4), "state": range(4)}


def arms_of(rows_per_shard: int, layout: str, s3_bucket, tmp_path) -> list[sl.Dataset]:
    """The same 25 rows in a bucket and on a disk."""
    random = np.random.default_rng(1)
    rows = [
        {"task": f"t{n}", "action": random.normal(size=(steps, 3)), "state": random.normal(size=(steps, 500))}
        for n, steps in enumerate(random.integers(4, 40, 25).tolist())
    ]
    schema = sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=3), "state": sl.Trajectory(dim=500)})
    found = []
    for place, storage in ((s3_bucket.uri + "/arm", s3_bucket.storage), (str(tmp_path / "arm"), None)):
        dataset = sl.create(place, schema, storage=storage)
        with dataset.writer(layout=layout, rows_per_shard=rows_per_shard) as writer:
            for number, row in enumerate(rows):
                writer.add(f"ep_{number:02d}", **{k: np.float32(v) if k != "task" else v for k, v in row.items()})
        found.append(sl.open(place, storage=storage))
    return found


@pytest.fixture(params=["training", "archive"])
def arms(request, s3_bucket, tmp_path):
    """Five shards."""
    return arms_of(5, request.param, s3_bucket, tmp_path)


def batches(dataset, window=WINDOW, **options) -> list[dict]:
    return list(sl.Loader(dataset, window=window, batch_size=8, seed=3, **options).tail("pad"))


def same(one: list[dict], other: list[dict]) -> bool:
    names = [name for name in one[0] if name != "sequence_id"]
    return len(one) == len(other) and all(
        np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in names
    )


def test_batches_are_those_of_a_disk_and_each_shard_comes_once(arms, asked) -> None:
    there, here = arms
    loader = sl.Loader(there, window=WINDOW, batch_size=8, seed=3).tail("pad")
    asked.clear()
    assert same(list(loader), batches(here))
    of_shards = [path for _, path in asked if path.endswith(".parquet")]
    assert len(of_shards) == len(set(of_shards)) == 5
    asked.clear()
    assert len(list(loader)) > 0
    assert not [path for _, path in asked if path.endswith(".parquet")]
    report = loader.report()
    assert report.nbytes["memory"] > 0
    assert report.nbytes.get("mapped", 0) == 0


def test_large_files_are_fetched_in_part(arms, monkeypatch) -> None:
    there, here = arms
    for module in (originals, moving):
        monkeypatch.setattr(module, "LARGEST", 8 << 10)
    monkeypatch.setattr(originals, "GAP", 1 << 10)
    loader = sl.Loader(there, window=WINDOW, batch_size=8, seed=3).tail("pad")
    assert same(list(loader), batches(here))
    assert loader.report().fetched.nbytes < sum(shard.nbytes for shard in there.shards()) / 2


def test_shards_come_side_by_side(arms, monkeypatch) -> None:
    there, here = arms
    at_once, met, real = threading.Barrier(5), [], moving.Transfers.parts

    def parts(self, blob, ranges, **options):
        met.append(at_once.wait(timeout=20))
        return real(self, blob, ranges, **options)

    monkeypatch.setattr(moving.Transfers, "parts", parts)
    assert same(batches(there), batches(here))
    assert sorted(met) == [0, 1, 2, 3, 4]


def test_what_came_is_looked_into_while_the_rest_comes(arms, monkeypatch) -> None:
    there, here = arms
    looked_into, others_are, real, take = [], threading.Event(), moving.Transfers.parts, Opened.take

    def parts(self, blob, ranges, **options):
        if blob.location.endswith("-1.parquet"):
            assert others_are.wait(timeout=20)
        return real(self, blob, ranges, **options)

    def counted(self, reader, shard, names):
        take(self, reader, shard, names)
        looked_into.append(shard)
        if len(looked_into) == 4:
            others_are.set()

    monkeypatch.setattr(moving.Transfers, "parts", parts)
    expected = batches(here)
    monkeypatch.setattr(Opened, "take", counted)
    assert same(batches(there), expected)
    assert looked_into[-1] == 1


def test_what_has_no_room_is_not_fetched(arms, monkeypatch) -> None:
    there, here = arms
    fetched, real = [], moving.Transfers.parts

    def parts(self, blob, ranges, **options):
        fetched.append(blob)
        return real(self, blob, ranges, **options)

    monkeypatch.setattr(moving.Transfers, "parts", parts)
    with pytest.raises(CacheTooSmallError, match="is the least that works"):
        batches(there, cache=sl.Cache(limit=1000))
    assert not fetched
    needs = sum(shard.nbytes for shard in there.shards())
    assert same(batches(there, cache=sl.Cache(limit=2 * needs)), batches(here))
    assert len(fetched) == 5


@pytest.mark.parametrize("layout", ["training", "archive"])
def test_memory_for_a_part_is_enough_where_few_shards_are_in_use(layout, s3_bucket, tmp_path, asked) -> None:
    there, here = arms_of(1, layout, s3_bucket, tmp_path)
    sizes = [shard.nbytes for shard in here.shards()]
    options = {"window": BOTH, "shuffle": sl.Shuffle(lanes=1, block=20), "batch_size": 8, "seed": 1}
    limit = 10 * max(sizes)
    assert limit < sum(sizes)
    loader = sl.Loader(there, **options, cache=sl.Cache(limit=limit)).tail("pad")
    local = sl.Loader(here, **options).tail("pad")
    len(loader)
    asked.clear()
    for _ in range(2):
        for one, other in zip(local, loader, strict=True):
            assert same([one], [other])
            assert 0 < loader.report().held <= limit
    # Each shard once an epoch, and of a third epoch what there was room for.
    assert len([path for _, path in asked if path.endswith(".parquet")]) <= 2 * len(sizes) + limit // min(sizes)
    assert loader.report().nbytes.keys() == {"memory"}


def test_where_there_is_no_room_a_shard_is_not_looked_at_again(s3_bucket, tmp_path, asked, monkeypatch) -> None:
    there, here = arms_of(1, "training", s3_bucket, tmp_path)
    for module in (originals, moving):
        monkeypatch.setattr(module, "LARGEST", 512)  # every file is asked for its footer first
    monkeypatch.setattr(originals, "GAP", 64)
    looks, real = Counter(), Original._wanted

    def wanted(self, footer):
        looks[self.shard.key] += 1
        return real(self, footer)

    monkeypatch.setattr(Original, "_wanted", wanted)
    options = {"window": WINDOW, "shuffle": sl.Shuffle(lanes=1, block=20), "batch_size": 8, "seed": 1}
    loader = sl.Loader(there, **options, cache=sl.Cache(limit=23_000, fetch="whole")).tail("pad")
    for one, other in zip(sl.Loader(here, **options).tail("pad"), loader, strict=True):
        assert same([one], [other])
    assert set(looks.values()) == {1}


def test_shards_come_while_others_are_in_use(arms, asked, monkeypatch) -> None:
    there, here = arms
    monkeypatch.setattr(passes, "_AHEAD", 8)
    loader = sl.Loader(there, window=BOTH, batch_size=8, shuffle=False)
    len(loader)
    asked.clear()
    found = [next(batches := iter(loader))]
    deadline = time.monotonic() + 20
    while len([path for _, path in asked if path.endswith(".parquet")]) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len([path for _, path in asked if path.endswith(".parquet")]) == 5  # the first batch lies in one shard
    found += batches
    assert same(found, list(sl.Loader(here, window=BOTH, batch_size=8, shuffle=False)))
    assert loader.report().fetched.hits >= 4


def test_samples_of_a_bucket_come_side_by_side_and_once(s3_bucket, tmp_path, asked, monkeypatch) -> None:
    put = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    (tmp_path / "plain").mkdir()
    for number in range(5):
        path = tmp_path / "plain" / f"{number}.parquet"
        pq.write_table(pa.table({"n": range(number * 10, number * 10 + 10), "text": ["x" * 1000] * 10}), path)
        put.put(f"plain/{path.name}", path)
    there, here = sl.scan(f"{s3_bucket.uri}/plain", storage=s3_bucket.storage), sl.scan(tmp_path / "plain")
    at_once, real = threading.Barrier(5), moving.Transfers.parts

    def parts(self, blob, ranges, **options):
        at_once.wait(timeout=20)
        return real(self, blob, ranges, **options)

    monkeypatch.setattr(moving.Transfers, "parts", parts)
    options = {"window": None, "batch_size": 5, "seed": 2}
    loader = sl.Loader(there, **options)
    len(loader)
    asked.clear()
    found = [batch["n"].tolist() for _ in range(2) for batch in loader]
    assert found[:10] == [batch["n"].tolist() for batch in sl.Loader(here, **options)]
    assert len(found) == 20
    of_shards = [path for _, path in asked if path.endswith(".parquet")]
    assert len(of_shards) == len(set(of_shards)) == 5
    assert loader.report().nbytes.keys() == {"memory"}
    assert loader.report().held > 0


def test_samples_need_room_for_the_columns_that_are_wanted(s3_bucket, tmp_path, monkeypatch) -> None:
    for module in (originals, moving):
        monkeypatch.setattr(module, "LARGEST", 512)
    monkeypatch.setattr(originals, "GAP", 64)
    put = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for number in range(5):
        path = tmp_path / f"{number}.parquet"
        noise = [bytes(one) for one in np.random.default_rng(number).integers(0, 256, (10, 5000), np.uint8)]
        pq.write_table(pa.table({"n": range(number * 10, number * 10 + 10), "noise": noise}), path)
        put.put(f"wide/{path.name}", path)
    there = sl.scan(f"{s3_bucket.uri}/wide", storage=s3_bucket.storage)
    assert sum(shard.nbytes for shard in there.shards()) > 200_000
    loader = sl.Loader(there, window=["n"], batch_size=5, cache=sl.Cache(limit=40_000))
    assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(50))


def ours(before: set[threading.Thread]) -> set[threading.Thread]:
    """Threads of ours that began since; another test may hold a loader with its own."""
    return {one for one in set(threading.enumerate()) - before if one.name.startswith("seqlake")}


@pytest.mark.sampled(every=2, start=1)
def test_after_a_failure_the_next_loader_reads_all(arms, monkeypatch) -> None:
    there, here = arms
    bad = there.shards()[2]
    real, before = Original.fetched, set(threading.enumerate())

    def fetch(source, *others):
        if source.shard.key == bad.key:
            raise OSError(5, "the line is broken", "s3://somewhere")
        return real(source, *others)

    monkeypatch.setattr(Original, "fetched", fetch)
    with pytest.raises(OSError, match="the line is broken"):
        batches(there)
    monkeypatch.setattr(Original, "fetched", real)
    assert same(batches(there), batches(here))
    deadline = time.monotonic() + 100  # a client may pause before it asks again
    while (left := ours(before)) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not left


def test_bytes_that_arrive_wrong_are_fetched_again_and_told_if_they_stay_so(arms, monkeypatch) -> None:
    there, here = arms
    monkeypatch.setattr(moving, "_FIRST_PAUSE", 0.001)
    real, wrong = moving.Transfers.parts, []

    def parts(self, blob, ranges, **options):
        data = bytearray(real(self, blob, ranges, **options))
        if blob.location not in wrong or stays:
            wrong.append(blob.location)
            data[len(data) // 3] ^= 1  # in a page of values
        return memoryview(data)

    monkeypatch.setattr(moving.Transfers, "parts", parts)
    stays = False
    assert same(batches(there, BOTH), batches(here, BOTH))
    assert len(wrong) == 5
    stays = True
    with pytest.raises(CorruptFileError, match="arrived so 3 times"):
        batches(there, BOTH)


def test_an_error_does_not_wait_for_what_hangs(arms, monkeypatch) -> None:
    there, _ = arms
    shards, over, ended = there.shards(), threading.Event(), []

    def fetch(source, *_others):
        if source.shard.key == shards[0].key:
            raise OSError(5, "the line is broken", "s3://somewhere")
        over.wait(timeout=30)
        ended.append(source)
        raise OSError(5, "too late", "s3://somewhere")

    monkeypatch.setattr(Original, "fetched", fetch)
    try:
        with pytest.raises(OSError, match="the line is broken"):
            batches(there, shuffle=False)
        assert not ended
    finally:
        over.set()


def test_worker_processes_and_datasets_divide_the_memory_that_none_was_given(arm, readable) -> None:
    source = readable(*arm([50] * 4))
    whole = sl.Cache().nbytes
    limits = []
    both = sl.Mix({"a": (source, 1), "b": (source, 1)})
    for data, cache in ((source, None), (source, sl.Cache(limit=777)), (both, None)):
        loader = pickle.loads(pickle.dumps(sl.Loader(data, window={"action": range(4)}, batch_size=4, cache=cache)))
        loader._engine.share(3)  # as a worker process of torch does
        next(loader.batches(range(1)))
        opened = loader._engine.opened
        limits.append([member._residents.room.limit for member in getattr(opened, "_members", [opened])])
    assert limits == [[whole // 3], [777], [whole // 6] * 2]


def limit_here(batch):
    engine = torch_data.get_worker_info().dataset.loader._engine
    return {"limit": np.array([engine.opened._residents.room.limit])}


def test_a_worker_process_of_torch_takes_its_part(arm, readable) -> None:
    loader = sl.Loader(readable(*arm([50] * 4)), window={"action": range(4)}, batch_size=40).map_batch(limit_here)
    batches = torch_data.DataLoader(loader.torch(), batch_size=None, num_workers=2, timeout=60)
    limits = {int(batch["limit"]) for batch in batches}
    assert limits == {sl.Cache().nbytes // 2}


# ---- the copies themselves


class Known:
    """A source of known size that counts how often it is fetched."""

    def __init__(self, key: str, nbytes: int = 100) -> None:
        self.key, self.nbytes, self.fetches = key, nbytes, 0
        self.go_on = threading.Event()
        self.go_on.set()

    def fetched(self, reserve):
        reserve(self.nbytes)
        self.fetches += 1
        assert self.go_on.wait(timeout=20)
        return f"shard {self.key}", self.nbytes

    def __str__(self) -> str:
        return f"shard {self.key}"


@pytest.fixture
def five():
    return {key: Known(key) for key in "abcde"}


def test_what_is_needed_farthest_ahead_goes_first(five) -> None:
    copies = InMemory(Room(300))
    for key in "abc":
        copies.make(five[key]).release()
    copies.expect(["c", "a", "d", "b"])
    with copies.make(five["d"]) as shard:
        assert shard == "shard d"
        assert copies.find(five["b"]) is None
        assert copies.nbytes == 300
    copies.make(five["e"]).release()  # needed by nobody later, but now
    assert copies.find(five["d"]) is None
    assert all(copies.find(five[key]) for key in "ace")


def test_what_comes_ahead_takes_the_place_of_nothing_needed_sooner(five) -> None:
    copies = InMemory(Room(200))
    copies.expect(["a", "b", "c", "d"])
    for key in "ab":
        assert copies.make(five[key], ahead=True) is None
    with pytest.raises(NoRoomError):
        copies.make(five["c"], ahead=True)
    assert not five["c"].fetches
    copies.expect(["b", "c"])
    copies.make(five["c"], ahead=True)
    assert copies.find(five["a"]) is None


def test_what_is_in_use_stays_and_the_least_that_works_is_named(five) -> None:
    room = Room(250)
    copies = InMemory(room)
    held = [copies.make(five[key]) for key in "ab"]
    with pytest.raises(CacheTooSmallError, match="so 300 is the least that works"):
        copies.make(five["c"])
    held[0].release()
    held[0].release()  # again does nothing
    with pytest.raises(ValueError, match="was released"):
        _ = held[0].shard
    copies.make(five["c"])
    assert copies.find(five["a"]) is None
    assert held[1].shard == "shard b"
    room.decoded = 100  # what is decoded counts as well
    held[1].release()
    with pytest.raises(CacheTooSmallError, match="so 300 is the least that works"):
        copies.make(five["a"])
    assert not copies.take_room(100, wait=False)
    assert copies.take_room(50, wait=False)
    assert copies.nbytes == 100


def test_threads_that_want_one_shard_fetch_it_once_and_room_on_its_way_is_waited_for(five) -> None:
    copies, found = InMemory(Room(100)), []
    five["a"].go_on.clear()
    threads = [threading.Thread(target=lambda: found.append(copies.make(five["a"]))) for _ in range(3)]
    ahead = threading.Thread(target=lambda: copies.make(five["b"], ahead=True))
    for thread in threads:
        thread.start()
    five["a"].go_on.set()
    for thread in threads:
        thread.join(timeout=20)
    assert five["a"].fetches == 1
    for local in found:
        local.release()
    five["b"].go_on.clear()
    copies.expect(["b", "c", "a"])
    ahead.start()
    while not five["b"].fetches:
        time.sleep(0.001)
    last = threading.Thread(target=lambda: found.append(copies.make(five["c"])))
    last.start()
    last.join(timeout=0.2)
    assert last.is_alive()  # all of the room is set aside for `b`, which nobody holds
    five["b"].go_on.set()
    last.join(timeout=20)
    assert found[-1].shard == "shard c"
    assert copies.nbytes == 100


def test_a_failure_leaves_nothing(five) -> None:
    copies = InMemory(Room(100))

    def fail(reserve):
        reserve(80)
        raise OSError(5, "the line is broken")

    five["a"].fetched = fail
    with pytest.raises(OSError, match="broken"):
        copies.make(five["a"])
    assert copies.nbytes == 0
    copies.make(five["b"])


@settings(max_examples=100, deadline=None)
@given(
    limit=st.integers(300, 900),
    steps=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 3)), max_size=40),
)
def test_the_limit_holds_whatever_comes(limit, steps) -> None:
    sources = {key: Known(key, 100 + 20 * number) for number, key in enumerate("abcdefgh")}
    copies, held = InMemory(Room(limit)), []
    for key, ahead, kept in steps:
        copies.expect([key, *sources])
        while len(held) > kept:
            held.pop(0).release()
        in_use = {local.shard for local in held}
        with suppress(NoRoomError if ahead else CacheTooSmallError):
            local = copies.make(sources[key], ahead=ahead)
            assert (local is None) == ahead
            held += [] if local is None else [local]
        assert copies.nbytes <= limit
        assert in_use <= {shard for shard, _ in copies._entries.values()}

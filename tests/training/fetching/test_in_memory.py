"""Shards of a bucket in memory: fetched side by side and once, within the limit, and as true as any other."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CacheTooSmallError, CorruptFileError
from seqlake.training.fetching import in_memory
from seqlake.training.fetching import transfers as moving
from seqlake.training.shard_cache import sources

WINDOW = {"action": range(4)}
BOTH = {"action": range(4), "state": range(4)}


@pytest.fixture(params=["training", "archive"])
def arms(request, s3_bucket, tmp_path):
    """The same five shards in a bucket and on a disk."""
    random = np.random.default_rng(1)
    rows = [
        {"task": f"t{n}", "action": random.normal(size=(steps, 3)), "state": random.normal(size=(steps, 500))}
        for n, steps in enumerate(random.integers(4, 40, 25).tolist())
    ]
    schema = sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=3), "state": sl.Trajectory(dim=500)})
    found = []
    for place, storage in ((s3_bucket.uri + "/arm", s3_bucket.storage), (str(tmp_path / "arm"), None)):
        dataset = sl.create(place, schema, storage=storage)
        with dataset.writer(layout=request.param, rows_per_shard=5) as writer:
            for number, row in enumerate(rows):
                writer.add(f"ep_{number:02d}", **{k: np.float32(v) if k != "task" else v for k, v in row.items()})
        found.append(sl.open(place, storage=storage))
    return found


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
    for module in (sources, moving):
        monkeypatch.setattr(module, "LARGEST", 8 << 10)
    monkeypatch.setattr(sources, "GAP", 1 << 10)
    loader = sl.Loader(there, window=WINDOW, batch_size=8, seed=3).tail("pad")
    assert same(list(loader), batches(here))
    assert loader.report().fetched.nbytes < sum(shard.nbytes for shard in there.shards()) / 2


def test_shards_come_side_by_side(arms, monkeypatch) -> None:
    there, here = arms
    at_once, met, real = threading.Barrier(5), [], moving.Transfers.parts

    def parts(self, blob, ranges):
        met.append(at_once.wait(timeout=20))
        return real(self, blob, ranges)

    monkeypatch.setattr(moving.Transfers, "parts", parts)
    assert same(batches(there), batches(here))
    assert sorted(met) == [0, 1, 2, 3, 4]


def test_what_has_no_room_is_not_fetched(arms, monkeypatch) -> None:
    there, here = arms
    fetched, real = [], in_memory._fetch

    def fetch(source, *others):
        fetched.append(source)
        return real(source, *others)

    monkeypatch.setattr(in_memory, "_fetch", fetch)
    needs = sum(shard.nbytes for shard in there.shards())
    with pytest.raises(CacheTooSmallError):
        batches(there, cache=sl.Cache(limit=1000))
    assert not fetched
    assert same(batches(there, cache=sl.Cache(limit=2 * needs)), batches(here))
    assert len(fetched) == 5


def test_after_a_failure_the_next_loader_reads_all(arms, monkeypatch) -> None:
    there, here = arms
    bad = there.shards()[2]
    real = in_memory._fetch

    def fetch(source, *others):
        if source.shard.key == bad.key:
            raise OSError(5, "the line is broken", "s3://somewhere")
        return real(source, *others)

    monkeypatch.setattr(in_memory, "_fetch", fetch)
    with pytest.raises(OSError, match="the line is broken"):
        batches(there)
    monkeypatch.setattr(in_memory, "_fetch", real)
    assert same(batches(there), batches(here))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("seqlake-memory")]


def test_bytes_that_arrive_wrong_are_fetched_again_and_told_if_they_stay_so(arms, monkeypatch) -> None:
    there, here = arms
    monkeypatch.setattr(moving, "_FIRST_PAUSE", 0.001)
    real, wrong = moving.Transfers.parts, []

    def parts(self, blob, ranges):
        data = bytearray(real(self, blob, ranges))
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

    monkeypatch.setattr(in_memory, "_fetch", fetch)
    try:
        with pytest.raises(OSError, match="the line is broken"):
            batches(there, shuffle=False)
        assert not ended
    finally:
        over.set()

"""What a loader says it did, against what it delivered."""

from __future__ import annotations

import numpy as np
import pytest

import seqlake as sl
from seqlake.training import passes
from seqlake.training.fetching import transfers
from seqlake.training.telemetry import STAGES

from . import films
from .faulty import Proxy


class Clock:
    """A clock on which every reading takes a second, and the consumer as long as it says."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def loader_of(readable, arm, kind="flat", **options):
    schema, rows = arm([40] * 12)
    window = {"action": range(16), "obs_state": [0]}
    return sl.Loader(readable(schema, rows, kind=kind), window=window, batch_size=20, **options)


def test_nothing_was_done_before_the_first_batch(readable, arm):
    report = loader_of(readable, arm).report()
    assert (report.batches, report.samples, report.elapsed, report.wait_share) == (0, 0, 0.0, 0.0)
    assert report.nbytes == {}
    assert str(report).startswith("delivered  0 batches, 0 samples")


@pytest.mark.parametrize(("kind", "origin"), [("flat", "mapped"), ("parquet", "mapped"), ("archive", "memory")])
def test_bytes_are_those_of_the_windows_delivered(readable, arm, kind, origin):
    loader = loader_of(readable, arm, kind)
    delivered = [sum(batch[name].nbytes for name in ("action", "obs_state")) for batch in loader]
    report = loader.report()
    assert report.batches == len(delivered) == 24
    assert report.samples == 480
    assert report.nbytes == {origin: sum(delivered)}
    assert report.held == (12 * 40 * 8 * 4 if kind == "archive" else 0)
    assert origin in str(report)
    list(loader)
    assert loader.report().samples == 960  # over all passes


def test_whole_sequences_count_their_steps(readable, arm):
    schema, rows = arm([10, 20, 30, 40])
    loader = sl.Loader(readable(schema, rows), window=sl.Whole(["action"], packed=True), batch_size=2, shuffle=False)
    assert sum(batch["action"].nbytes for batch in loader) == loader.report().nbytes["mapped"] == 100 * 3 * 4


def test_waiting_is_told_from_the_consumers_own_time(readable, arm, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(passes, "perf_counter", clock)
    loader = loader_of(readable, arm)
    batches = iter(loader)
    next(batches)
    first = clock.now
    assert loader.report().elapsed == loader.report().waited == first - 1
    for _ in range(3):
        clock.now += 100
        next(batches)
    report = loader.report()
    assert report.elapsed == clock.now - 1
    assert report.waited == report.elapsed - 3 * 101  # reading the clock to begin with takes a second as well
    assert 0 < report.wait_share < 0.2
    assert sum(report.stages.values()) <= report.waited
    clock.now += 1000
    batches.close()
    next(iter(loader))  # another pass: the pause between the two is nobody's
    assert loader.report().elapsed < 1000


def test_stages_are_those_that_a_loader_has(readable, arm):
    loader = loader_of(readable, arm).map_batch(lambda batch: batch)
    next(iter(loader))
    stages = loader.report().stages
    assert tuple(stages) == STAGES
    assert all(stages[name] > 0 for name in ("order", "open", "gather", "transform"))
    assert stages["decode"] == 0
    assert not loader.map_batch(lambda batch: batch).report().batches  # each loader its own


def test_frames_are_counted_once_for_a_batch(tmp_path):
    ds = films.arm(tmp_path)
    loader = sl.Loader(ds, window={"cam": range(-1, 2), "action": [0]}, batch_size=40, shuffle=False).frames(threads=2)
    assert next(iter(loader))["cam"].shape[:2] == (40, 3)
    report = loader.report()
    assert report.frames_delivered == 120
    assert report.frames_decoded == 40  # neighbouring windows share their frames
    assert report.decode_seconds > 0
    assert report.ahead == 1
    assert 0 <= report.ready <= 1
    assert report.stages["decode"] > 0
    assert "40 decoded for 120 delivered" in str(report)


def test_windows_of_bad_samples_are_delivered_too(readable, arm):
    loader = loader_of(readable, arm).on_error("mask")
    assert sum(len(batch["valid"]) for batch in loader) == loader.report().samples
    assert np.isfinite(loader.report().samples_per_second)


def test_what_a_cache_fetched_is_told(readable, arm, tmp_path):
    schema, rows = arm([40] * 12)
    source = readable(schema, rows, shards=4, kind="archive")
    loader = sl.Loader(source, window={"action": range(16)}, batch_size=20, cache=sl.Cache(tmp_path / "cache"))
    delivered = sum(batch["action"].nbytes for batch in loader)
    report = loader.report()
    assert report.nbytes == {"cache": delivered}
    assert report.fetched.hits + report.fetched.misses == 4
    assert report.read_amplification is None  # nothing came from a store
    assert "of 4 shards were there" in str(report)


def test_bytes_from_a_store_are_counted(s3_bucket, tmp_path):
    at = f"{s3_bucket.uri}/arm"
    schema = sl.Schema({"action": sl.Trajectory(dim=8)})
    with sl.create(at, schema, storage=s3_bucket.storage).writer(rows_per_shard=5) as writer:
        for number in range(20):
            writer.add(str(number), action=np.full((400, 8), number, np.float32))
    ds = sl.open(at, storage=s3_bucket.storage)
    cache = sl.Cache(tmp_path / "cache")
    loader = sl.Loader(ds, window=sl.Window({"action": range(4)}, stride=4), batch_size=100, cache=cache)
    delivered = sum(batch["action"].nbytes for batch in loader)
    report = loader.report()
    values = 20 * 400 * 8 * 4
    assert delivered == report.nbytes["cache"] == values
    assert values <= report.fetched.nbytes < 1.2 * values + 40_000
    assert report.fetched.requests >= 4
    assert report.read_amplification == report.fetched.nbytes / delivered


def test_what_is_read_of_remote_videos_is_counted(s3_bucket, tmp_path):
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        storage = {**s3_bucket.storage, "endpoint": proxy.url}
        films.arm(tmp_path, at=f"{s3_bucket.uri}/arm", storage=storage)
        ds = sl.open(f"{s3_bucket.uri}/arm", storage=storage)
        window = sl.Window({"cam": range(2), "action": [0]}, stride=20)
        loader = sl.Loader(ds, window=window, batch_size=5, shuffle=False)
        (tmp_path / "local").mkdir()
        local = sl.Loader(films.arm(tmp_path / "local"), window=window, batch_size=5, shuffle=False)
        loader.plan()
        proxy.reset_counts()
        for ours, theirs in zip(loader, local, strict=True):
            np.testing.assert_array_equal(ours["cam"], theirs["cam"])
        films_read = sum(count for (path, _), count in proxy.seen.items() if path.endswith(".mp4"))
    report = loader.report()
    assert report.files.requests == films_read > 0
    assert 0 < report.files.nbytes < proxy.nbytes  # the rest are shards
    assert f"in {films_read:,} requests" in str(report)
    assert local.report().files.requests == 0


def test_videos_in_stores_are_read_again_after_errors_that_pass(s3_bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "_FIRST_PAUSE", 0.001)
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        storage = {**s3_bucket.storage, "endpoint": proxy.url, "timeout": "5s"}
        films.arm(tmp_path, at=f"{s3_bucket.uri}/arm", storage=storage)
        ds = sl.open(f"{s3_bucket.uri}/arm", storage=storage)
        proxy.rule = lambda path, span, number: "reset" if path.endswith(".mp4") and span and number == 1 else None
        loader = sl.Loader(ds, window=sl.Window({"cam": range(2)}, stride=20), batch_size=4, shuffle=False).tail("drop")
        seen = [batch["cam"] for batch in loader]
    assert proxy.faults["reset"] > 0
    assert all(frames.any() for frames in seen[:1])

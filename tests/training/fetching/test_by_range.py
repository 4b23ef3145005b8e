"""Windows of remote shards read by range: the same batches, and only their bytes asked for; the proxy counts."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

import seqlake as sl
from seqlake.errors import CacheTooSmallError
from seqlake.files import ranges
from seqlake.files.stores import open_store
from seqlake.training.fetching import by_range
from seqlake.training.fetching import transfers as moving

from ..faulty import Proxy, always_well  # noqa: TID252 - tests are no package that could be named

SCHEMA = sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=4), "state": sl.Trajectory(dim=6)})
LENGTHS = [300, 0, 180, 260, 120, 400, 90, 310]
GAP = 512


def cell(row: int, steps: int, dim: int) -> np.ndarray:
    return (1000 * row + np.arange(steps * dim, dtype=np.float32)).reshape(steps, dim)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Eight sequences in four shards."""
    root = tmp_path_factory.mktemp("written")
    with sl.create(root / "arm", SCHEMA).writer(rows_per_shard=2) as writer:
        for row, steps in enumerate(LENGTHS):
            action = None if row == 6 else cell(row, steps, 4)
            writer.add(f"ep_{row}", task=f"t{row}", action=action, state=cell(row, steps, 6))
    return root / "arm"


@pytest.fixture
def store(written, s3_bucket, monkeypatch):
    """They lie in a bucket behind a proxy, and are opened through it."""
    for module in (ranges, by_range):
        monkeypatch.setattr(module, "GAP", GAP)
    monkeypatch.setattr("seqlake.shards.parquet.footer._TAIL", 4 << 10)
    monkeypatch.setattr(moving, "_FIRST_PAUSE", 0.001)
    bucket = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for path in written.rglob("*"):
        if path.is_file():
            bucket.put(f"arm/{path.relative_to(written).as_posix()}", path)
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        storage = {**s3_bucket.storage, "endpoint": proxy.url, "timeout": "5s"}
        yield proxy, sl.open(f"{s3_bucket.uri}/arm", storage=storage)


def load(ds, tmp_path, *, fetch="range", folder=False, window=None, **options) -> sl.Loader:
    window = window or sl.Window({"action": range(-2, 3), "state": [0, 7], "task": None}, stride=60)
    cache = sl.Cache(tmp_path / "cache" if folder else None, limit="1 GB", fetch=fetch)
    return sl.Loader(ds, window=window, cache=cache, **{"batch_size": 8, "seed": 3, **options}).tail("pad")


def same(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name].dtype == theirs[name].dtype
            assert_array_equal(ours[name], theirs[name])


def asked(proxy, needle="part-") -> int:
    return sum(count for (path, _), count in proxy.seen.items() if needle in path)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("edges", "folder"), [("pad", False), ("clamp", True), ("drop", False)])
def test_batches_are_those_of_whole_shards(store, tmp_path, edges, folder):
    _, ds = store
    offsets = {"action": range(-2, 3), "state": [9, 0, -3], "task": None}
    window = sl.Window(offsets, stride=40, edges=edges)
    for shuffle in (True, sl.Shuffle(lanes=2, block=20)):
        options = {"window": window, "shuffle": shuffle, "folder": folder}
        loader = load(ds, tmp_path, **options)
        same(list(loader), list(load(ds, tmp_path, fetch="whole", **options)))
        assert set(loader.report().nbytes) == {"range"}
        whole = load(ds, tmp_path, fetch="whole", **options)
        whole.set_epoch(1)
        same(list(loader), list(whole))


def test_only_the_bytes_of_windows_are_asked_for(store, tmp_path):
    proxy, ds = store
    loader = load(ds, tmp_path, window=sl.Window({"action": range(4)}, stride=60))
    loader.plan()
    proxy.reset_counts()
    batches = list(loader)
    windows = sum(int(batch["valid"].sum()) for batch in batches)
    anchors = [(row, start) for row, steps in enumerate(LENGTHS) if row != 6 for start in range(0, steps, 60)]
    assert windows == len(anchors)
    least = sum(min(4, LENGTHS[row] - start) for row, start in anchors) * 16
    ours = loader.report().fetched
    assert ours.nbytes == proxy.nbytes
    assert ours.requests == asked(proxy)
    # Of each shard its end with footer and index, and its scalar columns; then a request for each window.
    around = asked(proxy) - len(anchors)
    assert 0 < around <= 4 * 3 + 2
    ends = sum(shard.nbytes for shard in ds.shards()) - sum(LENGTHS) * 40 + LENGTHS[6] * 16
    assert least <= proxy.nbytes <= least + 2 * ends
    before = proxy.nbytes
    list(loader)  # the next epoch knows where everything lies
    assert proxy.nbytes - before == pytest.approx(least, abs=4 * 16)
    whole = load(ds, tmp_path, fetch="whole", folder=True, window=sl.Window({"action": range(4)}, stride=60))
    proxy.reset_counts()
    list(whole)
    assert proxy.nbytes > 4 * least


def test_neighbours_are_one_request(store, tmp_path):
    proxy, ds = store
    window = sl.Window({"action": range(4)}, stride=10)  # 160 bytes apart
    loader = load(ds, tmp_path, window=window, shuffle=False, batch_size=500)
    loader.plan()
    proxy.reset_counts()
    list(loader)
    assert asked(proxy) <= 4 * 4 + 2


def test_auto_reads_by_range_where_windows_are_few(store, tmp_path):
    proxy, ds = store
    few = ds.where("sequence_id = 'ep_5' OR sequence_id = 'ep_7'")
    for folder, source, stride, origins in [
        (True, few, 200, {"range"}),  # 4 windows of two shards
        (False, few, 200, {"range"}),
        (False, few, 100, {"memory"}),  # 7 of two sequences,
        (True, few, 100, {"range"}),  # but they lie among four
        (True, ds, 5, {"cache"}),
        (False, ds, 5, {"memory"}),
        (True, few, 1, {"cache"}),  # each step four times
    ]:
        window = sl.Window({"action": range(4)}, stride=stride)
        loader = load(source, tmp_path, fetch="auto", folder=folder, window=window, batch_size=2)
        expected = load(source, tmp_path, fetch="whole", window=window, batch_size=2)
        same(list(loader), list(expected))
        assert set(loader.report().nbytes) == origins
    assert sl.Cache().fetch == "auto"
    assert asked(proxy)


def test_shards_of_both_kinds_in_one_batch(store, tmp_path):
    _, ds = store
    some = ds.where("sequence_id <> 'ep_4'")  # of the third shard one sequence of 400 steps is left
    window = sl.Window({"action": range(2), "state": [0]}, stride=40)
    loader = load(some, tmp_path, fetch="auto", window=window, batch_size=6)
    opened = loader._engine.opened
    opened.ranged.wanted[:] = [True, False, True, False]
    same(list(loader), list(load(some, tmp_path, fetch="whole", window=window, batch_size=6)))
    assert set(loader.report().nbytes) == {"range", "memory"}


def test_local_and_compressed_shards_are_read_as_ever(tmp_path, readable, arm):
    schema, rows = arm([50] * 12)
    for kind, origin in (("parquet", "mapped"), ("archive", "memory")):
        loader = load(readable(schema, rows, kind=kind), tmp_path, window=sl.Window({"action": [0]}, stride=25))
        list(loader)
        assert set(loader.report().nbytes) == {origin}


def test_a_web_server_is_as_good_as_a_bucket(store, tmp_path):
    proxy, ds = store
    web = sl.open(ds.location.replace("s3://", f"{proxy.url}/"))
    loader = load(web, tmp_path)
    same(list(loader), list(load(ds, tmp_path, fetch="whole")))
    assert set(loader.report().nbytes) == {"range"}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("fault", ["503", "reset", "truncate", "slow", "flip"])
def test_faults_that_pass_change_nothing(store, tmp_path, fault):
    proxy, ds = store
    expected = list(load(ds, tmp_path, fetch="whole"))
    whole = fault == "flip"  # parts of pages have no checksum, whole ones have
    lock, seen = threading.Lock(), set()

    def first_time(path, span, number):
        end = span.rpartition("-")[2]
        with lock:
            fresh = (path, end) not in seen
            seen.add((path, end))
        return fault if fresh and "part-" in path else None

    proxy.rule = first_time
    same(list(load(ds, tmp_path, fetch="whole" if whole else "range", folder=whole)), expected)
    assert proxy.faults[fault] > (3 if whole else 8)


def test_a_fault_that_stays_is_raised_where_the_window_is_asked_for(store, tmp_path, monkeypatch):
    monkeypatch.setattr("seqlake.files.remote._RETRIES", {"max_retries": 0})
    monkeypatch.setattr(moving, "_LONGEST_PAUSE", 0.01)
    proxy, ds = store
    loader = load(ds, tmp_path)
    list(loader)  # all shards are open
    proxy.rule = lambda path, span, n: "reset" if "part-" in path else None
    with pytest.raises(OSError, match="failed 4 times"):
        next(iter(loader))
    proxy.rule = always_well
    assert len(list(loader)) == len(loader)


def test_resumption_reads_nothing_of_what_was_skipped(store, tmp_path):
    proxy, ds = store
    window = sl.Window({"action": range(4)}, stride=20)
    loader = load(ds, tmp_path, window=window, batch_size=4)
    whole = list(loader)
    state = load(ds, tmp_path, window=window, batch_size=4).state_dict(steps=len(whole) - 2)
    again = load(ds, tmp_path, window=window, batch_size=4)
    again.load_state_dict(state)
    proxy.reset_counts()
    same(list(again), whole[-2:])
    assert asked(proxy) <= 4 * 3 + 2 + 8


def test_how_many_windows_are_read_together_follows_from_their_size(readable, arm):
    def portion(source, width):
        loader = sl.Loader(source, window={"action": range(width)}, batch_size=4, cache=sl.Cache(fetch="range"))
        return loader._engine.opened.portion

    small, large = (readable(*arm([50] * 4, action=action)) for action in (1, 1024))
    assert portion(small, 1) == 1 << 15
    assert portion(large, 64) == (32 << 20) // (64 * 4096)
    schema, rows = arm([50] * 4)
    undeclared = readable(sl.Schema({**schema, "action": sl.Trajectory()}), rows)
    assert portion(undeclared, 64) == 1 << 9
    loader = sl.Loader(small, window={"action": [0]}, batch_size=4)
    assert loader._engine.opened.portion is None


def test_chunks_are_of_bounded_size_and_one_is_read_ahead(store, tmp_path, monkeypatch):
    _, ds = store
    monkeypatch.setattr("seqlake.training.fetching.by_range._AT_A_TIME", 4 * 64)
    window = sl.Window({"action": range(4)}, stride=10)
    expected = list(load(ds, tmp_path, fetch="whole", window=window, batch_size=2))
    asked_for = []
    real = by_range.read_steps
    monkeypatch.setattr(
        "seqlake.training.fetching.range_batches.read_steps",
        lambda wanted, transfers: (asked_for.append(sum(len(one.rows) for one in wanted)), real(wanted, transfers))[1],
    )
    loader = load(ds, tmp_path, window=window, batch_size=2)
    batches = iter(loader)
    first = next(batches)
    assert len(asked_for) <= 3
    same([first, *batches], expected)
    assert max(asked_for) <= 4
    batches.close()


def test_a_mixture_map_style_windows_and_bad_data_by_range(store, tmp_path):
    _, ds = store
    mix = sl.Mix({"early": (ds.where("sequence_id < 'ep_3'"), 1), "late": (ds.where("sequence_id >= 'ep_3'"), 2)})
    found, expected = (list(load(mix, tmp_path, fetch=fetch, batch_size=16)) for fetch in ("range", "whole"))
    same(found, expected)
    one, other = (load(ds, tmp_path, fetch=fetch).dataset() for fetch in ("range", "whole"))
    for number in (0, 7, -1):
        for name, value in other[number].items():
            assert_array_equal(one[number][name], value)
    same(list(load(ds, tmp_path).on_error("mask")), list(load(ds, tmp_path, fetch="whole").on_error("mask")))


def test_a_loop_that_is_left_leaves_no_reader(store, tmp_path):
    _, ds = store
    for left_after in (0, 1, 100):
        batches = iter(load(ds, tmp_path))
        list(itertools.islice(batches, left_after))
        batches.close()
        deadline = time.monotonic() + 20
        while (left := [t for t in threading.enumerate() if t.name.startswith("seqlake-windows")]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.01)
        assert not left


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="Cache fetch: expected one of auto, range, whole, found 'some'"):
        sl.Cache(fetch="some")


def test_where_memory_is_short_ranges_still_fit(store, tmp_path):
    _, ds = store
    window = sl.Window({"action": range(2)}, stride=50)
    short = sl.Loader(ds, window=window, batch_size=4, cache=sl.Cache(limit=1000, fetch="whole"))
    with pytest.raises(CacheTooSmallError):
        next(iter(short))
    by_range = sl.Loader(ds, window=window, batch_size=4, cache=sl.Cache(limit=1000, fetch="range"))
    assert len(list(by_range)) == len(by_range)

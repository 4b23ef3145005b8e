"""Fetching ahead and by range, from a store that fails: nothing wrong is delivered, nothing hangs, nothing stays."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqlake.errors import CorruptFileError, ForkedProcessError, ShardChangedError
from seqlake.files import ranges
from seqlake.files.remote import ObjectBlob
from seqlake.files.stores import open_blob, open_store
from seqlake.shards import parquet
from seqlake.shards.columns import Columns, Stored
from seqlake.shards.files import parquet_shard
from seqlake.shards.rows import Rows
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.training.fetching import transfers as moving
from seqlake.training.fetching.ahead import Fetcher
from seqlake.training.fetching.by_range import RangeSteps, asked_bytes, look, read_steps
from seqlake.training.fetching.transfers import RequestPiece, Transfers
from seqlake.training.shard_cache import InFolder, InMemory, Room, ShardCache, originals

from ..faulty import Proxy, always_well  # noqa: TID252 - tests are no package that could be named
from ..sharing import on_disk  # noqa: TID252 - the same

SCHEMA = Schema({"task": pa.string(), "action": Trajectory(dim=3), "state": Trajectory(dim=40)})
ROWS = 12


def rows_of(number: int) -> list[dict]:
    random = np.random.default_rng(number)
    steps = [0, 700, *random.integers(100, 400, ROWS - 2).tolist()]
    return [
        {
            "sequence_id": f"{number}-{row}",
            "task": f"task {row % 3}",
            "action": None if row == 5 else random.normal(size=(count, 3)).astype(np.float32),
            "state": random.normal(size=(count, 40)).astype(np.float32),
        }
        for row, count in enumerate(steps)
    ]


def write(path: Path, rows: list[dict], *, layout: str) -> None:
    writer = parquet.create(path, SCHEMA, layout=layout)
    arrow = SCHEMA.arrow
    for row in rows:
        cells = {name: cell.tolist() if isinstance(cell, np.ndarray) else cell for name, cell in row.items()}
        writer.write(pa.record_batch([pa.array([cells[field.name]], field.type) for field in arrow], schema=arrow))
    writer.close()


@dataclass
class Remote:
    """Shards in a bucket behind a proxy, and what is in them."""

    proxy: Proxy
    store: object
    shards: list
    rows: list[list[dict]]
    sizes: list[int]


@pytest.fixture
def remote(s3_bucket, tmp_path, monkeypatch):
    """A function that puts shards of a layout into a bucket."""
    monkeypatch.setattr(moving, "_FIRST_PAUSE", 0.001)
    put = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        store = open_store(s3_bucket.uri, storage={**s3_bucket.storage, "endpoint": proxy.url, "timeout": "5s"})

        def make(count: int = 4, *, layout: str = "training") -> Remote:
            made = Remote(proxy, store, [], [rows_of(number) for number in range(count)], [])
            for number, rows in enumerate(made.rows):
                path = tmp_path / f"{number}.parquet"
                write(path, rows, layout=layout)
                put.put(f"{layout}-{number}.parquet", path)
                made.sizes.append(path.stat().st_size)
                shard = parquet_shard(store.blob(f"{layout}-{number}.parquet"))
                made.shards.append(Columns(shard, SCHEMA, {"task": Stored("task")}))
            proxy.reset_counts()
            return made

        yield make


@pytest.fixture(params=["folder", "memory"])
def fetching(request, tmp_path):
    """A function that makes a fetcher; afterwards no thread, half-made file or user is left."""
    before = set(threading.enumerate())
    made: list[tuple[Fetcher, ShardCache]] = []
    in_folder = request.param == "folder"

    def make(
        remote: Remote, *, columns=("sequence_id", "task", "action", "state"), limit=1 << 30, **options
    ) -> Fetcher:
        patience = options.pop("patience", 20)
        cache = ShardCache(tmp_path / "cache", limit=limit, patience=patience)
        transfers = Transfers(patience=patience, **{k: options.pop(k) for k in ("threads", "budget") if k in options})
        copies = InFolder(cache) if in_folder else InMemory(Room(limit))
        fetcher = Fetcher(remote.shards, SCHEMA.select(columns), copies=copies, transfers=transfers, **options)
        made.append((fetcher, cache))
        return fetcher

    yield make
    for fetcher, cache in made:
        fetcher.close()
        cache.close()
        if not in_folder:
            assert not cache.path.exists()
            continue
        assert not list((cache.path / "users").iterdir())
        assert {path.suffix for path in (cache.path / "shards").iterdir()} <= {".parquet", ".json"}
    left = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("seqlake")}
    assert not left


def taken(fetcher: Fetcher) -> int:
    """Bytes that the copies take."""
    return on_disk(fetcher._copies.cache) if isinstance(fetcher._copies, InFolder) else fetcher._copies.nbytes


def check(shard, rows: list[dict], columns=("task", "action", "state"), *, in_place: bool = True) -> None:
    """A local shard holds these rows, and its signals are read in place."""
    reader = shard.open()
    found = pa.Table.from_batches(list(reader.batches(list(columns))))
    for name in columns:
        for cell, row in zip(found.column(name).to_pylist(), rows, strict=True):
            expected = row[name]
            assert cell == (expected.tolist() if isinstance(expected, np.ndarray) else expected)
        assert name == "task" or not in_place or reader.flat(name) is not None
    reader.close()


def first_times(fault: str, times: int = 1):
    """Each range fails the first time it is asked for; what a client asks again after a fault comes through."""
    lock, count = threading.Lock(), {}

    def rule(path: str, span: str, number: int) -> str | None:
        end = span.rpartition("-")[2]  # a client resumes behind what it has
        with lock:
            count[path, end] = count.get((path, end), 0) + 1
            return fault if count[path, end] <= times else None

    return rule


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["training", "archive"])
@pytest.mark.parametrize("fault", ["503", "reset", "truncate", "flip", "slow"])
def test_faults_that_pass_harm_nobody(fault, layout, remote, fetching, monkeypatch) -> None:
    for module in (originals, moving):
        monkeypatch.setattr(module, "LARGEST", 64 << 10)  # several requests a shard
    data = remote(2, layout=layout)
    fetcher = fetching(data)
    data.proxy.rule = first_times(fault)
    fetcher.schedule([1, 0])
    for number in (1, 0):
        with fetcher.take(number) as shard:
            # What is archived is written anew in a folder, and decoded from memory by whoever takes it.
            check(shard, data.rows[number], in_place=layout == "training" or isinstance(fetcher._copies, InFolder))
    assert data.proxy.faults[fault] > 2
    assert fetcher.fetched.hits + fetcher.fetched.misses == 2


@pytest.mark.parametrize(("fault", "kind"), [("503", OSError), ("reset", OSError), ("flip", CorruptFileError)])
def test_faults_that_stay_are_told_with_shard_and_cause(fault, kind, remote, fetching, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.files.remote._RETRIES", {"max_retries": 0})
    data = remote(2)
    fetcher = fetching(data)
    data.proxy.rule = lambda path, span, n: fault if "training-1" in path else None
    fetcher.schedule([0, 1])
    with fetcher.take(0) as shard:
        check(shard, data.rows[0])
    with pytest.raises(kind, match=r"training-1\.parquet"):
        fetcher.take(1)
    data.proxy.rule = always_well  # the next attempt begins anew
    with fetcher.take(1) as shard:
        check(shard, data.rows[1])


def test_a_changed_file_is_an_error(remote, fetching) -> None:
    data = remote(1)
    fetcher = fetching(data)
    data.store.put("training-0.parquet", b"x" * data.sizes[0])
    with pytest.raises(ShardChangedError, match="changed while it was open"):
        fetcher.take(0)


@pytest.mark.sampled(every=2)
def test_a_server_that_hangs_ends_the_waiting_and_is_named(remote, fetching) -> None:
    data = remote(2)
    fetcher = fetching(data, patience=0.5)
    data.proxy.rule = lambda path, span, n: "hang" if "training-0" in path else None
    with pytest.raises(TimeoutError, match=r"training-0\.parquet"):
        fetcher.take(0)
    fetcher.schedule([0])
    time.sleep(0.1)  # now somebody else waits, and the consumer for them
    with pytest.raises(TimeoutError, match=r"training-0\.parquet"):
        fetcher.take(0)
    fetcher.transfers.patience = 60  # a busy machine may take longer than the half second
    data.proxy.rule = always_well
    data.proxy.let_go.set()
    with fetcher.take(1) as shard:
        check(shard, data.rows[1])


def test_closing_in_the_middle_leaves_nothing(remote, fetching, monkeypatch) -> None:
    for module in (originals, moving):
        monkeypatch.setattr(module, "LARGEST", 16 << 10)
    data = remote(4)
    data.proxy.rule = lambda *_: "slow"
    fetcher = fetching(data, threads=2)
    fetcher.schedule(range(4))
    while not data.proxy.faults["slow"]:
        time.sleep(0.005)
    began = time.monotonic()
    fetcher.close()
    assert time.monotonic() - began < 5
    with pytest.raises(RuntimeError, match="closed"):
        fetcher.take(0)


def test_shards_come_ahead_in_order_and_whole(remote, fetching) -> None:
    data = remote(6)
    fetcher = fetching(data, ahead=3)
    fetcher.schedule([4, 2, 0, 5])
    deadline = time.monotonic() + 20
    while len(fetcher._there) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    asked = {int(re.search(r"-(\d)\.parquet", path)[1]) for path, _ in data.proxy.seen}
    assert asked == {4, 2, 0}
    assert sum(data.proxy.seen.values()) == 3  # small shards take one request each
    assert data.proxy.nbytes == sum(data.sizes[number] for number in (4, 2, 0))
    for number in (4, 2, 0, 5):
        with fetcher.take(number) as shard:
            check(shard, data.rows[number])
    assert fetcher.fetched.hits >= 3
    assert fetcher.transfers.traffic.nbytes == sum(data.sizes[number] for number in (4, 2, 0, 5))


def test_the_soonest_is_what_is_there_then_what_comes_first(remote, fetching, monkeypatch) -> None:
    data = remote(3)
    fetcher, part = fetching(data), ObjectBlob.part
    may_come = [threading.Event() for _ in range(3)]

    def in_turn(blob, *args):
        assert may_come[int(re.search(r"-(\d)\.parquet", blob.location)[1])].wait(timeout=20)
        return part(blob, *args)

    monkeypatch.setattr(ObjectBlob, "part", in_turn)
    assert fetcher.soonest([1, 0]) == 1  # none is on its way
    fetcher.schedule(range(3))
    may_come[2].set()
    assert fetcher.soonest(range(3)) == fetcher.soonest(range(3)) == 2
    threading.Timer(0.05, may_come[0].set).start()
    assert fetcher.soonest([1, 0]) == 0
    assert fetcher.fetched.waited > 0
    may_come[1].set()
    for number in (2, 0, 1):
        with fetcher.take(number) as shard:
            check(shard, data.rows[number])


def test_what_fails_is_told_when_it_is_taken(remote, fetching, monkeypatch) -> None:
    data = remote(2)
    fetcher = fetching(data)

    def refused(blob, *_):
        raise PermissionError(errno.EACCES, "the store refused", blob.location)

    monkeypatch.setattr(ObjectBlob, "part", refused)
    fetcher.schedule([1])
    assert fetcher.soonest([1]) == 1
    with pytest.raises(PermissionError):
        fetcher.take(1)


def test_as_many_shards_come_at_a_time_as_requests_may_be_under_way(remote, fetching, monkeypatch) -> None:
    data = remote(6)
    fetcher, all_asked, part = fetching(data, threads=6), threading.Barrier(6), ObjectBlob.part

    def answered_together(*args):
        all_asked.wait(timeout=10)
        return part(*args)

    monkeypatch.setattr(ObjectBlob, "part", answered_together)
    fetcher.schedule(range(6))
    for number in range(6):
        with fetcher.take(number) as shard:
            check(shard, data.rows[number])
    assert not all_asked.broken


def test_what_comes_ahead_takes_the_place_of_nothing_needed_sooner(remote, fetching) -> None:
    data = remote(5)
    limit = int(3.4 * max(data.sizes))
    fetcher = fetching(data, limit=limit, ahead=4)
    fetcher.schedule([0, 1, 2, 3, 4])
    for number in range(5):
        with fetcher.take(number) as shard:
            check(shard, data.rows[number])
            assert taken(fetcher) <= limit
    assert fetcher.transfers.traffic.nbytes == sum(data.sizes)  # nothing was fetched twice


def test_bytes_under_way_stay_within_the_budget() -> None:
    now, most, lock = 0, 0, threading.Lock()

    class Counting:
        location, size, token = "counted", 1 << 20, "t"

        def view(self):
            return None

        def ranges(self, starts, stops):
            nonlocal now, most
            size = int((stops - starts).sum())
            with lock:
                now += size
                most = max(most, now)
            time.sleep(0.002)
            with lock:
                now -= size
            return [memoryview(bytes(size))]

    transfers = Transfers(threads=8, budget=100_000)
    got = []
    pieces = [RequestPiece(Counting(), at, at + 30_000 + at % 7) for at in range(0, 900_000, 30_000)]
    transfers.each(pieces, lambda number, data: got.append((number, len(data))))
    assert most <= 100_000
    transfers.each([RequestPiece(Counting(), 0, 500_000)], lambda number, data: got.append((number, len(data))))
    transfers.close()
    assert sorted(got[:-1]) == [(n, p.stop - p.start) for n, p in enumerate(pieces)]
    assert got[-1] == (0, 500_000)
    assert most == 500_000  # alone
    assert transfers.traffic.requests == len(pieces) + 1


def test_whoever_gives_up_leaves_its_room_to_others() -> None:
    class Slow:
        location, token, size = "slow", "", 10**9

        def view(self):
            return None

        def ranges(self, starts, stops):
            time.sleep(0.01)
            return [memoryview(bytes(int((stops - starts).sum())))]

    def give_up(_number, _data):
        raise KeyError("enough")

    transfers = Transfers(threads=4, budget=100_000, patience=20)
    pieces = [RequestPiece(Slow(), at, at + 50_000) for at in range(0, 500_000, 50_000)]
    for _ in range(3):
        with pytest.raises(KeyError, match="enough"):
            transfers.each(pieces, give_up)
    got = []
    transfers.each(pieces, lambda number, _data: got.append(number))
    transfers.close()
    assert sorted(got) == list(range(10))
    assert transfers._under_way == 0


def test_columns_of_a_large_file_come_alone(remote, fetching, monkeypatch) -> None:
    for module in (ranges, originals, moving):
        monkeypatch.setattr(module, "LARGEST", 32 << 10)
    for module in (ranges, originals):
        monkeypatch.setattr(module, "GAP", 1 << 10)
    data = remote(1)
    fetcher = fetching(data, columns=("sequence_id", "action"))
    with fetcher.take(0) as shard:
        check(shard, data.rows[0], ["action"])
        assert taken(fetcher) < data.sizes[0] // 2
    wanted = sum(12 * len(row["action"]) for row in data.rows[0] if row["action"] is not None)
    assert wanted < data.proxy.nbytes < wanted + 130_000  # the end of the file comes with it
    assert data.sizes[0] > 400_000


def test_few_rows_of_a_remote_file_are_written_anew(remote, fetching, monkeypatch) -> None:
    data = remote(1)
    keep = np.array([7, 1, 1, 3])
    data.shards = [Rows(data.shards[0], keep)]
    fetcher = fetching(data)
    with fetcher.take(0) as shard:
        check(shard, [data.rows[0][row] for row in keep])


# ---- by range
def flats(shard, columns, transfers):
    found = look(shard, columns, transfers)
    return None if found is None else found.flats


def windows(random, rows: list[dict], name: str, count: int, width: int, *, gap: int = 1):
    """Random windows of a shard's rows, and what they hold."""
    has = [n for n, row in enumerate(rows) if row[name] is not None and len(row[name]) > width * gap]
    picked = random.choice(has, count)
    first = np.array([random.integers(0, len(rows[row][name]) - width * gap) for row in picked])
    numbers = first[:, None] + np.arange(width) * gap
    return picked, numbers, np.stack([rows[row][name][own] for row, own in zip(picked, numbers, strict=True)])


@pytest.mark.parametrize("fault", [None, "503", "reset", "truncate", "slow"])
def test_windows_by_range_are_right(fault, remote) -> None:
    data = remote(2)
    transfers = Transfers(patience=20)
    random = np.random.default_rng(0)
    places = [flats(shard, ["action", "state"], transfers) for shard in data.shards]
    if fault:
        data.proxy.rule = first_times(fault)
    wanted, expected = [], []
    for number, name, width, gap in [(0, "action", 4, 1), (1, "state", 16, 1), (1, "action", 3, 7), (0, "state", 1, 1)]:
        rows, numbers, values = windows(random, data.rows[number], name, 20, width, gap=gap)
        wanted.append(RangeSteps(flat=places[number][name], rows=rows, numbers=numbers))
        expected.append(values)
    for got, values in zip(read_steps(wanted, transfers), expected, strict=True):
        assert got.dtype == np.float32
        assert np.array_equal(got, values)
    transfers.close()


def test_rows_without_steps_give_zeros_and_steps_that_are_not_there_are_refused(remote) -> None:
    data = remote(1)
    transfers = Transfers(patience=20)
    flat = flats(data.shards[0], ["action"], transfers)["action"]
    rows = np.array([0, 5, 1])
    (got,) = read_steps([RangeSteps(flat=flat, rows=rows, numbers=np.array([[0, 0], [0, 0], [3, 699]]))], transfers)
    assert not got[:2].any()
    assert np.array_equal(got[2], data.rows[0][1]["action"][[3, 699]])
    with pytest.raises(IndexError, match="nearest"):
        read_steps([RangeSteps(flat=flat, rows=rows[2:], numbers=np.array([[700]]))], transfers)
    transfers.close()


def test_only_the_bytes_of_windows_are_read(remote, monkeypatch) -> None:
    monkeypatch.setattr(ranges, "GAP", 4 << 10)
    data = remote(1)
    transfers = Transfers(patience=20)
    flat = flats(data.shards[0], ["state"], transfers)["state"]
    data.proxy.reset_counts()
    before = transfers.traffic.nbytes
    wanted = [RangeSteps(flat=flat, rows=np.array([1, 8, 1]), numbers=np.array([[600], [20], [10]]) + np.arange(8))]
    read_steps(wanted, transfers)
    assert asked_bytes(wanted) == 3 * 8 * 160
    assert transfers.traffic.nbytes - before == data.proxy.nbytes == asked_bytes(wanted)
    assert sum(data.proxy.seen.values()) == 3
    near = [RangeSteps(flat=flat, rows=np.array([1, 1, 1]), numbers=np.array([[100], [110], [104]]) + np.arange(8))]
    data.proxy.reset_counts()
    read_steps(near, transfers)
    assert asked_bytes(near) == 18 * 160
    assert sum(data.proxy.seen.values()) == 1
    transfers.close()


def test_finding_out_where_windows_lie_takes_few_requests(remote, monkeypatch) -> None:
    """The index is sealed with the footer: no page is asked for its header."""
    monkeypatch.setattr("seqlake.shards.parquet.footer._TAIL", 4 << 10)
    data = remote(1)
    transfers = Transfers(patience=20)
    data.proxy.reset_counts()
    assert flats(data.shards[0], ["action", "state"], transfers) is not None
    assert sum(data.proxy.seen.values()) <= 3
    assert data.proxy.nbytes < 20 << 10
    transfers.close()


def test_pauses_are_random_bounded_and_end_with_closing() -> None:
    transfers = Transfers()
    waited = []
    transfers._closed.wait = waited.append
    for attempt in range(1, 200):
        transfers.pause(1 + attempt % 12)
    assert max(waited) <= moving._LONGEST_PAUSE
    assert len(set(waited)) > 150
    first = [pause for pause, attempt in zip(waited, range(1, 200), strict=True) if attempt % 12 == 0]
    assert 0 < max(first) <= 0.1
    transfers = Transfers()
    transfers.close()
    began = time.monotonic()
    transfers.pause(12)
    assert time.monotonic() - began < 1


def test_a_web_server_is_as_good_as_a_bucket(remote, fetching, s3_bucket, monkeypatch) -> None:
    for module in (originals, moving):
        monkeypatch.setattr(module, "LARGEST", 64 << 10)
    data = remote(1)
    blob = open_blob(f"{data.proxy.url}/{s3_bucket.uri.removeprefix('s3://')}/training-0.parquet")
    data.shards = [Columns(parquet_shard(blob), SCHEMA, {})]
    data.proxy.rule = first_times("truncate")
    fetcher = fetching(data)
    with fetcher.take(0) as shard:
        check(shard, data.rows[0])
    assert data.proxy.faults["truncate"] > 2


def test_compressed_shards_are_not_read_by_range(remote) -> None:
    data = remote(1, layout="archive")
    transfers = Transfers(patience=20)
    assert flats(data.shards[0], ["action"], transfers) is None
    transfers.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_is_refused_at_once(remote, fetching) -> None:
    data = remote(2)
    fetcher = fetching(data)
    with fetcher.take(0) as shard:
        check(shard, data.rows[0])
    child = os.fork()
    if not child:
        code = 1
        try:
            refused = 0
            fetcher._making[1] = Future()  # as if it had been on its way when the process was forked
            try:
                fetcher.soonest([1])
            except ForkedProcessError:
                refused += 1
            for again in (fetcher, Fetcher(data.shards, SCHEMA, copies=fetcher._copies)):
                try:
                    again.take(1)
                except ForkedProcessError:
                    refused += 1
            code = 0 if refused == 3 else 3
        finally:
            os._exit(code)
    deadline = time.monotonic() + 5
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not done[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done == (child, 0)
    if isinstance(fetcher._copies, InFolder):
        assert fetcher._copies.cache.nbytes() > 0  # and what the child was is gone

"""Compressed Parquet trains in the memory it was given: what an order needs is known before its first batch, and true.

The same order comes as with room for everything, or nothing does.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import CacheTooSmallError
from seqlake.files.stores import open_store
from seqlake.training.shard_cache import Original, ShardCache
from seqlake.training.shard_cache.layers import InSteps

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named
from .sharing import on_disk

WINDOW = {"action": range(1)}


def plain(
    folder: Path, shards: int, *, rows: int = 8, steps: int = 50, dim: int = 4, unlike: bool = False
) -> sl.Dataset:
    """Shards as pyarrow writes them: compressed, with dictionaries, without an index."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(shards)
    for number in range(shards):
        count = 1 + number % (2 * rows) if unlike else rows
        cells = [random.standard_normal((steps, dim)).astype("f4").tolist() for _ in range(count)]
        table = pa.table(
            {
                "sequence_id": [f"{number}-{row}" for row in range(count)],
                "task": ["the same long text for every row " * 4] * count,
                "action": pa.array(cells, pa.list_(pa.list_(pa.float32(), dim))),
            }
        )
        pq.write_table(table, folder / f"{number:03}.parquet")
    return sl.scan(folder)


def same(one: dict, other: dict) -> bool:
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


def least_of(loader: sl.Loader) -> int:
    """What the refusal of a loader says is the least, which comes before its first batch."""
    with pytest.raises(CacheTooSmallError, match="is the least that works") as refused:
        next(iter(loader))
    return int(re.search(r"(\d+) bytes is the least", str(refused.value))[1])


def epochs(loader: sl.Loader, unlimited: sl.Loader, *, passes: int = 2, cache: ShardCache | None = None) -> int:
    """Compare the batches of some epochs, with what is held at each."""
    compared, limit = 0, loader._settings.cache.nbytes
    for _ in range(passes):
        for one, other in zip(loader, unlimited, strict=True):
            assert same(one, other)
            compared += 1
            if cache is None:
                assert loader.report().held <= limit
            elif compared % 16 == 0:
                assert on_disk(cache) <= limit
    return compared


@pytest.fixture(scope="module")
def thirty(tmp_path_factory) -> sl.Dataset:
    """30 shards of 8 000 windows."""
    return plain(tmp_path_factory.mktemp("thirty") / "data", 30, rows=40, steps=200, dim=12)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("megabytes", [1.5, 4.4, 6, 8])
@pytest.mark.parametrize("folder", [True, False])
def test_thirty_shards_of_which_few_fit(thirty, megabytes, folder, tmp_path) -> None:
    options = {"window": WINDOW, "batch_size": 512, "shuffle": sl.Shuffle(lanes=1, block=2000)}
    limit = int(megabytes * 1e6)
    cache = sl.Cache(tmp_path / "cache" if folder else None, limit)
    assert limit < 240_000 * 48  # what all shards take
    watched = ShardCache(tmp_path / "cache", limit=limit) if folder else None
    loader = sl.Loader(thirty, **options, cache=cache)
    assert epochs(loader, sl.Loader(thirty, **options), cache=watched) == 2 * 468
    if watched is not None:
        watched.close()


MANY = {"window": WINDOW, "batch_size": 32, "seed": 1}
SHUFFLES = [False, True, sl.Shuffle(lanes=1, block=200), sl.Shuffle(lanes=3, block=100), sl.Shuffle(block=90, visits=5)]


@pytest.mark.sampled
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
def test_the_least_is_true(shuffle, folder, tail, tmp_path) -> None:
    source = plain(tmp_path / "data", 12, unlike=True)

    def loader(limit: int | None) -> sl.Loader:
        cache = None if limit is None else sl.Cache(tmp_path / f"cache-{limit}" if folder else None, limit)
        return sl.Loader(source, **MANY, shuffle=shuffle, cache=cache).tail(tail)

    least = least_of(loader(1))
    assert least_of(loader(least - 1)) == least
    assert epochs(loader(least), loader(None), passes=3) > 100


@pytest.mark.sampled
@settings(max_examples=40 if SOAK else 12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shards=st.integers(1, 9),
    rows=st.integers(1, 6),
    steps=st.integers(1, 40),
    unlike=st.booleans(),
    lanes=st.integers(0, 4),
    block=st.integers(0, 150),
    visits=st.integers(1, 4),
    batch=st.integers(1, 40),
    world=st.integers(1, 3),
    share=st.floats(0.01, 1.5),
    folder=st.booleans(),
    tail=st.sampled_from(["drop", "pad", "carry"]),
    begin=st.floats(0, 1),
)
def test_an_order_is_refused_before_its_first_batch_or_comes_as_it_is(
    tmp_path, shards, rows, steps, unlike, lanes, block, visits, batch, world, share, folder, tail, begin
) -> None:
    place = tmp_path / f"{shards}-{rows}-{steps}-{unlike}"
    source = sl.scan(place) if place.exists() else plain(place, shards, rows=rows, steps=steps, unlike=unlike)
    shuffle = sl.Shuffle(lanes=lanes, block=block, visits=visits)
    everything = sum(shard.rows for shard in source.shards()) * steps * 16 * (3 if folder else 1)
    place = Path(tempfile.mkdtemp(dir=tmp_path))  # what an example before left may still be at work in its own
    cache = sl.Cache(place if folder else None, int(everything * share) + 40_000 * folder)
    options = {"window": WINDOW, "batch_size": batch, "shuffle": shuffle, "world_size": world, "rank": world - 1}
    loader = sl.Loader(source, **options, cache=cache).tail(tail)
    unlimited = sl.Loader(source, **options).tail(tail)
    count = len(loader)
    if not count:
        return
    state = loader.state_dict(steps=int(count * begin))
    for one in (loader, unlimited):
        one.load_state_dict(state)
    try:
        next(iter(loader))
    except CacheTooSmallError as refused:
        least = int(re.search(r"(\d+) bytes is the least that works", str(refused))[1])
        assert least > cache.nbytes
        again = [
            sl.Loader(source, **options, cache=replace(cache, limit=size)).tail(tail) for size in (least - 1, least)
        ]
        for one in (*again, unlimited):
            one.load_state_dict(state)
        assert least_of(again[0]) == least
        epochs(again[1], unlimited)
        return
    for one in (loader, unlimited):
        one.load_state_dict(state)
    epochs(loader, unlimited)


# ---- samples, mixtures, ranks, worker processes


def samples(folder: Path, *, shards: int = 10, start: int = 0) -> sl.Dataset:
    """Rows without names in compressed files of another format."""
    with sl.create(folder, {"n": "int", "text": "str"}, format="mds", compression="zstd", size_limit=4000) as writer:
        for number in range(start, start + shards * 50):
            writer.write({"n": number, "text": f"sample {number} " * 4})
    return sl.scan(folder)


@pytest.mark.sampled
@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("shuffle", [False, True, sl.Shuffle(lanes=2, block=40)])
def test_samples_come_in_the_least_that_their_order_needs(folder, shuffle, tmp_path) -> None:
    source = samples(tmp_path / "samples")
    assert len(source.shards()) > 5

    def loader(limit: int | None) -> sl.Loader:
        cache = None if limit is None else sl.Cache(tmp_path / f"cache-{limit}" if folder else None, limit)
        return sl.Loader(source, window=None, batch_size=8, shuffle=shuffle, cache=cache)

    least = least_of(loader(1))
    assert least_of(loader(least - 1)) == least
    assert epochs(loader(least), loader(None)) > 100


@pytest.mark.sampled
@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("shuffle", [True, sl.Shuffle(lanes=1, block=100)])
def test_datasets_of_a_mixture_come_in_the_least_that_their_orders_need(folder, shuffle, tmp_path) -> None:
    one, other = plain(tmp_path / "one", 8), plain(tmp_path / "other", 5, rows=20, steps=20)

    def loader(limit: int | None) -> sl.Loader:
        cache = None if limit is None else sl.Cache(tmp_path / f"cache-{limit}" if folder else None, limit)
        return sl.Loader(sl.Mix({"one": (one, 2), "other": (other, 1)}), **MANY, shuffle=shuffle, cache=cache)

    least = least_of(loader(1))
    assert least_of(loader(least - 1)) == least
    unlimited = loader(None)
    for _ in range(2):
        for mine, theirs in zip(loader(least), unlimited, strict=True):
            assert same(mine, theirs)
        unlimited.set_epoch(0)


@pytest.mark.parametrize("folder", [True, False])
def test_the_plan_says_what_is_held_and_the_least_that_works(folder, tmp_path) -> None:
    source = plain(tmp_path / "data", 12, unlike=True)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=1, block=200)}

    def loader(limit: int) -> sl.Loader:
        return sl.Loader(source, **options, cache=sl.Cache(tmp_path / "cache" if folder else None, limit))

    least = least_of(loader(1))
    for limit in (1, least - 1, least, 10**9):
        plan = loader(limit).plan()
        assert (plan.copies_limit, plan.copies_least) == (limit, least)
        assert f"{least:,} bytes is the least that this order needs, {limit:,} are allowed" in str(plan)
        assert str(plan).count("too few") == (limit < least)
    windows = len(sl.Loader(source, **options).dataset())
    assert plan.copies_total >= 16 * windows
    if not folder:
        assert plan.copies_total == 16 * windows
    in_place = sl.create(tmp_path / "own", {"action": sl.Trajectory(dim=2)})
    in_place.append([{"sequence_id": "a", "action": np.zeros((40, 2))}])
    plan = sl.Loader(in_place, window=WINDOW, batch_size=4).plan()
    assert plan.copies_total == plan.copies_least == 0
    assert "copies" not in str(plan)


RANK = """
import sys, time, pathlib
import numpy as np
import seqlake as sl
from seqlake.errors import CacheTooSmallError

data, cache, limit, rank, world, out = sys.argv[1:]
rank, world = int(rank), int(world)
loader = sl.Loader(sl.scan(data), window={"action": range(1)}, batch_size=8, shuffle=sl.Shuffle(lanes=4, block=100),
                   rank=rank, world_size=world, cache=sl.Cache(cache, int(limit)))
steps = pathlib.Path(out)

def wait(done):
    end = time.monotonic() + 100
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)

delivered = []
for turn in range(world):  # they begin one after the other
    if turn == rank:
        try:
            batches = iter(loader)
            delivered.append(next(batches)["action"])
        except CacheTooSmallError as error:
            (steps / "refused").write_text(f"{len(delivered)} {error}")
            sys.exit(3)
        (steps / f"begun-{rank}").touch()
    wait(lambda: (steps / f"begun-{turn}").exists() or (steps / "refused").exists())
if (steps / "refused").exists():
    sys.exit(4)
for number, batch in enumerate(batches):  # and go on in step, as training does
    delivered.append(batch["action"])
    (steps / f"{rank}-{number}").touch()
    wait(lambda: all((steps / f"{other}-{number}").exists() for other in range(world)))
np.save(steps / f"rank-{rank}.npy", np.concatenate(delivered))
"""


RANKS = 4


@pytest.mark.soak
def test_ranks_that_share_a_folder_are_counted_together(tmp_path) -> None:
    source = plain(tmp_path / "data", 24)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=4, block=100), "batch_size": 8, "seed": 0}

    def run(limit: int, name: str) -> list[int]:
        (tmp_path / name).mkdir()
        place = [str(tmp_path / "data"), str(tmp_path / f"cache-{name}"), str(limit)]
        ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, *place, str(rank), str(RANKS), str(tmp_path / name)])
            for rank in range(RANKS)
        ]
        return [rank.wait(timeout=300) for rank in ranks]

    alone = max(
        least_of(sl.Loader(source, **options, rank=rank, world_size=RANKS, cache=sl.Cache(tmp_path / "one", 1)))
        for rank in range(RANKS)
    )
    codes = run(alone + 40_000, "few")
    assert sorted(set(codes)) == [3, 4]  # one refuses, before its first batch; the others learn of it
    refused = (tmp_path / "few" / "refused").read_text()
    assert refused.startswith("0 ")
    assert re.search(r"on the [234] ranks that share the folder", refused)
    everyone = sl.Loader(source, **options, cache=sl.Cache(tmp_path / "all", 1)).global_batch(8 * RANKS)
    assert run(2 * least_of(everyone), "enough") == [0] * RANKS
    for rank in range(RANKS):
        expected = [batch["action"] for batch in sl.Loader(source, **options, rank=rank, world_size=RANKS)]
        assert np.array_equal(np.load(tmp_path / "enough" / f"rank-{rank}.npy"), np.concatenate(expected))


def test_groups_come_in_the_least_that_their_orders_need(tmp_path) -> None:
    source = plain(tmp_path / "data", 12)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=1, block=60)}

    def loader(limit: int) -> sl.Loader:
        return sl.Loader(source, **options, cache=sl.Cache(limit=limit)).weights("task")

    least = least_of(loader(1))
    assert least_of(loader(least - 1)) == least
    assert least < 12 * 8 * 50 * 16
    assert epochs(loader(least), sl.Loader(source, **options).weights("task")) > 100


def test_a_rank_needs_what_its_own_lanes_need(tmp_path) -> None:
    source = plain(tmp_path / "data", 24)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=4, block=100), "batch_size": 8}
    alone = least_of(sl.Loader(source, **options, cache=sl.Cache(limit=1)).global_batch(32))
    shared = [
        least_of(sl.Loader(source, **options, rank=rank, world_size=4, cache=sl.Cache(limit=1))) for rank in range(4)
    ]
    assert max(shared) < alone / 2
    for rank, least in enumerate(shared):
        mine = {**options, "rank": rank, "world_size": 4}
        assert epochs(sl.Loader(source, **mine, cache=sl.Cache(limit=least)), sl.Loader(source, **mine))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("folder", [True, False])
def test_worker_processes_come_in_the_least_that_their_orders_need(folder, tmp_path) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    source = plain(tmp_path / "data", 24, rows=4)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=1, block=100)}

    def batches(limit: int):
        cache = sl.Cache(tmp_path / "cache" if folder else None, limit)
        loader = sl.Loader(source, **options, cache=cache)
        return torch_data.DataLoader(
            loader.torch(), batch_size=None, num_workers=2, multiprocessing_context="forkserver", timeout=100
        )

    with pytest.raises(CacheTooSmallError, match="is the least that works") as refused:
        list(batches(1))
    least = int(re.search(r"(\d+) bytes is the least", str(refused.value))[1])
    for one, other in zip(sl.Loader(source, **options), batches(least), strict=True):
        assert np.array_equal(one["action"], other["action"].numpy())


def test_windows_by_number_make_room_for_each_other(tmp_path) -> None:
    source = plain(tmp_path / "data", 12)
    shard = 8 * 50 * 16
    windows = sl.Loader(source, **MANY, cache=sl.Cache(limit=2 * shard)).dataset()
    expected = sl.Loader(source, **MANY).dataset()
    for number in [*range(0, len(windows), 97), *range(len(windows) - 1, 0, -131)]:
        assert np.array_equal(windows[number]["action"], expected[number]["action"])
    with pytest.raises(CacheTooSmallError):
        windows.batch(range(0, len(windows), 300))  # of all shards at once


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("bucket", [False, True])
def test_what_comes_next_is_decoded_ahead_in_memory(bucket, s3_bucket, tmp_path, monkeypatch) -> None:
    here = source = plain(tmp_path / "data", 24)
    if bucket:
        put = open_store(s3_bucket.uri, storage=s3_bucket.storage)
        for path in (tmp_path / "data").glob("*.parquet"):
            put.put(f"ahead/{path.name}", path)
        source = sl.scan(f"{s3_bucket.uri}/ahead", storage=s3_bucket.storage)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=1, block=100)}
    expected = iter(list(sl.Loader(here, **options)))
    decoded: dict[str, str] = {}  # shard -> the thread that asked for it
    fetched = Original.fetched

    def watched(original: Original, reserve):
        copy, nbytes = fetched(original, reserve)
        assert isinstance(copy, InSteps)
        decoded[original.shard.key] = threading.current_thread().name
        return copy, nbytes

    monkeypatch.setattr(Original, "fetched", watched)
    loader = sl.Loader(source, **options, cache=sl.Cache(limit=110_000))
    batches = iter(loader)
    assert same(next(batches), next(expected))
    shards, opened = source.shards(), loader._engine.opened
    end = time.monotonic() + 60
    while not decoded.keys() - {shards[number].key for number in opened._residents.open}:
        assert time.monotonic() < end, "nothing was decoded before it was come to"
        time.sleep(0.01)
    for one, other in zip(batches, expected, strict=True):
        assert same(one, other)
    ahead = [name for name in decoded.values() if name.startswith("seqlake-ahead")]
    assert len(decoded) == 24
    assert len(ahead) > 12


PROGRAM = """
import sys
import seqlake as sl

def rss():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) << 10

source = sl.scan(sys.argv[1])
limit = int(sys.argv[2])
loader = sl.Loader(source, window={"action": range(1)}, batch_size=64, shuffle=sl.Shuffle(lanes=1, block=8000),
                   cache=sl.Cache(limit=limit))
next(iter(loader))
before, most = rss(), 0
for _ in range(2):
    for number, batch in enumerate(loader):
        assert loader.report().held <= limit
        if number % 50 == 0:
            most = max(most, rss())
print(most - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux how much memory there is")
def test_memory_does_not_grow_with_what_was_decoded(tmp_path) -> None:
    everything = 24 * 20 * 200 * 256 * 4  # 98 MB
    plain(tmp_path / "data", 24, rows=20, steps=200, dim=256)
    limit = everything // 4
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), str(limit)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < limit + everything // 3  # what one shard's reading takes, and what the system keeps


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("folder", [True, False])
def test_a_bucket_is_read_in_the_least_that_its_order_needs(folder, s3_bucket, tmp_path) -> None:
    here = plain(tmp_path / "data", 8)
    put = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for number, path in enumerate(sorted((tmp_path / "data").glob("*.parquet"))):
        put.put(f"plain/{number:03}.parquet", path)
    there = sl.scan(f"{s3_bucket.uri}/plain", storage=s3_bucket.storage)
    options = {**MANY, "shuffle": sl.Shuffle(lanes=1, block=60)}

    def loader(limit: int) -> sl.Loader:
        return sl.Loader(there, **options, cache=sl.Cache(tmp_path / f"cache-{limit}" if folder else None, limit))

    least = least_of(loader(1))
    assert least_of(loader(least - 1)) == least
    assert epochs(loader(least), sl.Loader(here, **options)) > 100

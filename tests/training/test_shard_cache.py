"""The shard cache: same rows, bounded, shared, and clean whatever happens to its users."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqlake.errors import CacheTooSmallError, UnsafeReferenceError
from seqlake.shards.memory import ArrowShard
from seqlake.shards.rows import Rows
from seqlake.spec.schema import Schema
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.shard_cache import Draft, NoRoomError, Original, ShardCache, folder, proof

from . import sharing
from .sharing import on_disk

LIMIT = 100 << 20


@pytest.fixture
def cache(tmp_path):
    made = ShardCache(tmp_path / "cache", limit=LIMIT, patience=5)
    yield made
    made.close()


@pytest.fixture
def transfers():
    made = Transfers()
    yield made
    made.close()


def table(shard, columns) -> pa.Table:
    reader = shard.open()
    try:
        return pa.Table.from_batches(list(reader.batches(columns)))
    finally:
        reader.close()


def known(cache: ShardCache, transfers: Transfers, number: int, **options):
    """Shard `number` of those whose values are known."""
    source = Original(sharing.shard(number), sharing.SCHEMA, transfers)
    held = cache.make(source.key, source.fill, name=source.name, **options)
    return None if held is None else source.local(held)


def size_of_one(tmp_path, transfers) -> int:
    aside = ShardCache(tmp_path / "aside", limit=LIMIT)
    known(aside, transfers, 0)
    size = aside.nbytes()
    aside.close()
    return size


@pytest.mark.parametrize("kind", ["arrow", "archive", "rows"])
def test_a_local_shard_has_the_same_rows_in_the_same_order(kind, arm, readable, cache, transfers) -> None:
    schema, rows = arm([5, 0, -1, 300, 17, 40, 9, 1])
    data = readable(schema, rows, shards=1, kind="arrow" if kind == "arrow" else "archive")
    (shard,) = data.shards()
    if kind == "rows":
        shard = Rows(shard, np.array([6, 0, 2, 3]))
    wanted = schema.select(["sequence_id", "action", "reward"])
    source = Original(shard, wanted, transfers)
    with source.local(cache.make(source.key, source.fill, name=source.name)) as local:
        assert local.rows == shard.rows
        assert table(local, list(wanted)).to_pylist() == table(shard, list(wanted)).to_pylist()
        flat = local.open().flat("action")
        assert flat is not None
        cells = table(shard, ["action"]).column(0).to_pylist()
        assert flat.steps.tolist() == [-1 if cell is None else len(cell) for cell in cells]
        view = flat.blob.view()
        for start, cell in zip(flat.start.tolist(), cells, strict=True):
            got = np.frombuffer(view[start : start + 12 * len(cell or [])], np.float32)
            assert np.array_equal(got.reshape(-1, 3), np.array(cell or [], np.float32).reshape(-1, 3))


def test_it_is_made_once_and_its_bytes_are_proved_once(cache, transfers, monkeypatch) -> None:
    known(cache, transfers, 1).release()

    def unused(*_):
        raise AssertionError("read once more")

    monkeypatch.setattr(Original, "fill", unused)
    monkeypatch.setattr(proof, "_is_whole", unused)
    again = ShardCache(cache.path, limit=LIMIT)
    with known(again, transfers, 1) as local:
        assert sharing.right(local, 1)
    again.close()


def test_a_copied_cache_is_proved_anew_and_believed(cache, transfers, tmp_path, monkeypatch) -> None:
    import shutil

    known(cache, transfers, 1).release()
    cache.close()
    shutil.copytree(cache.path, tmp_path / "copy")
    hashed = []
    own = proof._is_whole
    monkeypatch.setattr(proof, "_is_whole", lambda *a: hashed.append(a) or own(*a))
    monkeypatch.setattr(Original, "fill", None)
    copy = ShardCache(tmp_path / "copy", limit=LIMIT)
    for _ in range(2):
        known(copy, transfers, 1).release()
    assert len(hashed) == 1
    copy.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "zeros", "record", "gone"])
def test_a_damaged_entry_is_made_again(damage, cache, transfers) -> None:
    local = known(cache, transfers, 1)
    path = Path(local.shard.shard.blob.location)
    local.release()
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    elif damage == "truncate":
        os.truncate(path, len(data) // 2)
    elif damage == "zeros":
        path.write_bytes(bytes(len(data)))
    elif damage == "record":
        path.with_suffix(".json").write_text('{"form": "mir')
    else:
        path.unlink()
    with known(cache, transfers, 1) as local:
        assert sharing.right(local, 1)


def test_what_is_needed_farthest_ahead_goes_first(tmp_path, transfers) -> None:
    size = size_of_one(tmp_path, transfers)
    cache = ShardCache(tmp_path / "cache", limit=4 * size, patience=5)
    keys = [Original(sharing.shard(n), sharing.SCHEMA, transfers).key for n in range(6)]
    for number in range(3):
        known(cache, transfers, number).release()
    cache.expect([keys[2], keys[3], keys[0], keys[1]])
    known(cache, transfers, 3).release()
    there = {number for number in range(6) if cache.has(keys[number])}
    assert there == {0, 2, 3}
    with pytest.raises(NoRoomError):  # nobody will need 4, so it takes nobody's place
        known(cache, transfers, 4, ahead=True)
    known(cache, transfers, 4).release()  # but now it is needed
    assert {number for number in range(6) if cache.has(keys[number])} == {2, 3, 4}
    assert on_disk(cache) <= cache.limit
    cache.close()


def test_what_another_process_will_need_counts_as_well(tmp_path, transfers) -> None:
    size = size_of_one(tmp_path, transfers)
    mine = ShardCache(tmp_path / "cache", limit=4 * size, patience=5)
    theirs = ShardCache(tmp_path / "cache", limit=4 * size, patience=5)
    keys = [Original(sharing.shard(n), sharing.SCHEMA, transfers).key for n in range(4)]
    for number in range(3):
        known(mine, transfers, number).release()
    mine.expect([keys[1], keys[2], keys[3]])
    theirs.expect([keys[0], keys[2]])
    known(mine, transfers, 3).release()
    assert not mine.has(keys[2])
    assert mine.has(keys[0])
    mine.close()
    theirs.close()


def test_a_shard_in_use_stays_and_the_least_size_is_named(tmp_path, transfers) -> None:
    size = size_of_one(tmp_path, transfers)
    cache = ShardCache(tmp_path / "cache", limit=int(3.2 * size), patience=5)
    held = [known(cache, transfers, number) for number in range(2)]
    with pytest.raises(CacheTooSmallError, match=r"limit=\d+") as error:
        known(cache, transfers, 2)
    assert all(sharing.right(local.shard, number) for number, local in enumerate(held))
    least = int(str(error.value).partition("limit=")[2].partition(")")[0])
    assert not list((cache.path / "shards").glob("*.part"))
    cache.limit = least
    with known(cache, transfers, 2) as local:
        assert sharing.right(local, 2)
    for local in held:
        local.release()
    cache.close()


def test_the_least_size_that_is_named_works(tmp_path, transfers, arm, readable) -> None:
    schema, rows = arm([200] * 400, action=30)
    (shard,) = readable(schema, rows, shards=1, kind="archive").shards()
    cache = ShardCache(tmp_path / "cache", limit=1 << 20, patience=5)
    source = Original(shard, schema, transfers)
    with pytest.raises(CacheTooSmallError) as error:
        cache.make(source.key, source.fill, name=source.name)
    cache.limit = int(str(error.value).partition("limit=")[2].partition(")")[0])
    source.local(cache.make(source.key, source.fill, name=source.name)).release()
    assert on_disk(cache) <= cache.limit
    cache.close()


def test_other_peoples_files_are_left_alone(tmp_path, transfers) -> None:
    folder = tmp_path / "cache"
    theirs = [folder / "notes.txt", folder / "shards" / "mine.parquet", folder / "shards" / ("a" * 31 + "g.parquet")]
    theirs += [folder / "shards" / "x.part", folder / "users" / "me.user"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    cache = ShardCache(folder, limit=int(2.2 * size_of_one(tmp_path, transfers)), patience=5)
    for number in range(3):
        known(cache, transfers, number).release()
    cache.close()
    assert all(path.read_text() == "theirs" for path in theirs)
    assert not list((folder / "users").glob("[0-9]*"))


@pytest.mark.parametrize("full_disk", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_removes_what_can_go_then_says_so(tmp_path, transfers, monkeypatch, full_disk) -> None:
    cache = ShardCache(tmp_path / "cache", limit=LIMIT, patience=5)
    for number in range(3):
        known(cache, transfers, number).release()
    room = on_disk(cache)
    rewrite = Original._rewrite

    def full(self, part, shard, *, beside):
        record = rewrite(self, part, shard, beside=beside)
        if on_disk(cache) > room:
            raise OSError(full_disk, os.strerror(full_disk))
        return record

    monkeypatch.setattr(Original, "_rewrite", full)
    local = known(cache, transfers, 3)
    assert sharing.right(local.shard, 3)
    keep = [local, *(known(cache, transfers, number) for number in (4, 5))]
    with pytest.raises(OSError, match="disk is full") as error:
        known(cache, transfers, 6)
    assert error.value.errno == full_disk
    assert not list((cache.path / "shards").glob("*.part"))
    for one in keep:
        one.release()
    cache.close()


def test_threads_that_want_one_shard_make_it_once(cache, transfers, monkeypatch) -> None:
    filled = []
    fill = Original.fill

    def counted(self, part):
        filled.append(1)
        time.sleep(0.1)
        return fill(self, part)

    monkeypatch.setattr(Original, "fill", counted)
    found = []
    threads = [threading.Thread(target=lambda: found.append(known(cache, transfers, 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(filled) == 1
    assert len(found) == 4
    assert all(sharing.right(local.shard, 1) for local in found)
    for local in found:
        local.release()


def test_a_failure_leaves_nothing(cache, transfers, monkeypatch) -> None:
    def broken(self, part):
        part.reserve(1000)
        part.path.write_bytes(b"half")
        raise ValueError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(Original, "fill", broken)
        with pytest.raises(ValueError, match="broken"):
            known(cache, transfers, 1)
    assert not list((cache.path / "shards").iterdir())
    assert cache.nbytes() == 0
    with known(cache, transfers, 1) as local:
        assert sharing.right(local, 1)


def test_a_removed_shard_gives_its_bytes_back(cache, transfers) -> None:
    """No map of it stays behind after it was released."""
    local = known(cache, transfers, 1)
    path = local.shard.shard.blob.location
    assert sharing.right(local.shard, 1)
    maps = Path("/proc/self/maps")
    assert os.fsencode(path) in maps.read_bytes()  # no text: libraries map what has no name in UTF-8
    local.release()
    assert os.fsencode(path) not in maps.read_bytes()


def test_a_removed_folder_is_made_again(cache, transfers) -> None:
    import shutil

    known(cache, transfers, 1).release()
    shutil.rmtree(cache.path)
    with known(cache, transfers, 1) as local:
        assert sharing.right(local, 1)


# ---- several processes
def start(cache: ShardCache, me: int, *, rounds: int = 12, what: str = "train", limit: int | None = None):
    return subprocess.Popen(
        [sys.executable, sharing.__file__, str(cache.path), str(limit or cache.limit), str(me), str(rounds), what],
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> str:
    try:
        process.wait(timeout=60)  # what it says fits into a pipe
        with process.stdout as said:
            return said.read()
    finally:
        process.kill()


def test_killing_some_of_those_who_share_harms_nobody(tmp_path, transfers) -> None:
    cache = ShardCache(tmp_path / "cache", limit=int(5.5 * size_of_one(tmp_path, transfers)), patience=30)
    worker = start(cache, 4, rounds=10_000)
    victim = start(cache, 3, what="stall")
    assert victim.stdout.readline() == "stalls\n"
    assert list((cache.path / "shards").glob("*.part"))
    processes = [start(cache, me) for me in range(3)]
    assert [process.stdout.readline() for process in (*processes, worker)] == ["ready\n"] * 4
    for dying in (victim, worker):
        dying.kill()
        dying.wait(timeout=10)
        dying.stdout.close()
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, on_disk(cache))
        time.sleep(0.005)
    outputs = [ended(process) for process in processes]
    assert all(out.endswith("done\n") and "wrong" not in out for out in outputs)
    assert most <= cache.limit
    assert cache.nbytes() <= cache.limit  # the next to come in puts right what the dead left
    assert not list((cache.path / "shards").glob("*.part"))
    assert len(list((cache.path / "users").iterdir())) == 1
    with known(cache, transfers, 99) as local:
        assert sharing.right(local, 99)
    cache.close()
    assert not list((cache.path / "users").iterdir())


def test_a_process_that_does_not_get_on_is_named_and_its_shard_free_when_it_ends(tmp_path, transfers) -> None:
    cache = ShardCache(tmp_path / "cache", limit=LIMIT, patience=0.3)
    other = start(cache, 0, what="stall")
    assert other.stdout.readline() == "stalls\n"
    try:
        with pytest.raises(TimeoutError, match=f"process {other.pid} makes the local copy"):
            known(cache, transfers, 99)
        assert known(cache, transfers, 99, ahead=True) is None
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=10)
        other.stdout.close()
    with known(cache, transfers, 99) as local:
        assert sharing.right(local, 99)
    cache.close()


def test_the_holder_of_the_folders_lock_is_named(tmp_path) -> None:
    cache = ShardCache(tmp_path / "cache", limit=LIMIT, patience=0.2)
    cache.nbytes()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._locked():
            held.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    try:
        with pytest.raises(TimeoutError, match=f"held by process {os.getpid()}"):
            cache.nbytes()
    finally:
        over.set()
        thread.join(timeout=5)
    cache.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_is_a_user_of_its_own(cache, transfers) -> None:
    local = known(cache, transfers, 1)
    child = os.fork()
    if not child:
        code = 1
        try:
            mine = known(cache, transfers, 1)
            code = 0 if sharing.right(mine.shard, 1) and len(list((cache.path / "users").iterdir())) == 2 else 2
            mine.release()
            cache.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    with cache._locked() as user:  # what the parent holds is still held
        assert user.inventory().held == {Original(sharing.shard(1), sharing.SCHEMA, transfers).key}
    local.release()


def test_a_child_does_not_keep_the_locks_of_a_killed_parent(tmp_path, transfers) -> None:
    """A worker that was forked survives its parent; what the parent held is free all the same."""
    code = (
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import sharing\n"
        "from seqlake.training.shard_cache import ShardCache, Original\n"
        "from seqlake.training.fetching.transfers import Transfers\n"
        f"cache = ShardCache({str(tmp_path / 'cache')!r}, limit={LIMIT})\n"
        "source = Original(sharing.shard(1), sharing.SCHEMA, Transfers())\n"
        "held = cache.make(source.key, source.fill, name='s')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    cache = ShardCache(tmp_path / "cache", limit=LIMIT)
    with cache._locked() as user:
        assert len(user.inventory().held) == 1
    parent.kill()
    parent.wait(timeout=10)
    with cache._locked() as user:
        assert user.inventory().held == set()
    parent.stdin.close()
    parent.stdout.close()
    cache.close()


def test_a_cache_that_is_forgotten_holds_nothing(tmp_path, transfers) -> None:
    cache = ShardCache(tmp_path / "cache", limit=LIMIT)
    local = known(cache, transfers, 1)
    other = ShardCache(tmp_path / "cache", limit=LIMIT)
    with other._locked() as user:
        assert len(user.inventory().held) == 1
    del local, cache
    with other._locked() as user:
        assert user.inventory().held == set()
    other.close()


@pytest.mark.parametrize("kind", ["numbers", "texts", "tiny", "null", "images", "struct"])
def test_what_is_set_aside_is_never_less_than_what_is_written(kind, tmp_path, transfers) -> None:
    random = np.random.default_rng(0)
    columns = {
        "numbers": pa.array(
            random.normal(size=(300, 50, 7)).astype(np.float32).tolist(), pa.list_(pa.list_(pa.float32()))
        ),
        "tiny": pa.array(random.integers(0, 99, (300, 50, 7)).tolist(), pa.list_(pa.list_(pa.int8()))),
        "texts": pa.array([random.bytes(int(n)).hex() for n in random.integers(0, 300, 300)]),
        "null": pa.nulls(300, pa.list_(pa.list_(pa.float64()))),
        "images": pa.array([[random.bytes(500)] * 3 for _ in range(300)], pa.list_(pa.binary())),
        "struct": pa.array([{"a": n, "b": str(n)} for n in range(300)]),
    }
    table = pa.table({"sequence_id": [str(n) for n in range(300)], kind: columns[kind]})
    cache = ShardCache(tmp_path / "cache", limit=LIMIT, patience=5)
    source = Original(ArrowShard(table), Schema.from_arrow(table.schema, metadata=None), transfers)
    room = []

    def fill(part):
        record = source.fill(part)
        room.append((part.room, part.path.stat().st_size))
        return record

    source.local(cache.make(source.key, fill, name="x")).release()
    assert room[0][0] >= room[0][1]
    cache.close()


def test_what_another_process_made_anew_is_not_removed(cache, transfers, monkeypatch) -> None:
    """Two find the same damage; the slower one must not remove what the faster one made and holds."""
    local = known(cache, transfers, 1)
    path = Path(local.shard.shard.blob.location)
    local.release()
    os.truncate(path, 1000)
    other = ShardCache(cache.path, limit=LIMIT)
    judge, theirs = proof.proved, []

    def slow(*arguments):
        found = judge(*arguments)
        monkeypatch.setattr("seqlake.training.shard_cache.cache.proved", judge)
        theirs.append(known(other, transfers, 1))
        return found

    monkeypatch.setattr("seqlake.training.shard_cache.cache.proved", slow)
    with known(cache, transfers, 1) as mine:
        assert sharing.right(mine, 1)
        assert sharing.right(theirs[0].shard, 1)
    theirs[0].release()
    other.close()


def test_a_shard_that_is_there_is_not_replaced_by_one_that_comes_ahead(cache, transfers) -> None:
    with known(cache, transfers, 1) as local:
        inode = Path(local.shard.blob.location).stat().st_ino
        assert known(cache, transfers, 1, ahead=True) is None
        assert Path(local.shard.blob.location).stat().st_ino == inode
        assert sharing.right(local, 1)


def test_a_program_that_ends_does_not_wait_for_what_is_fetched_ahead(tmp_path) -> None:
    code = (
        "import sys, threading, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import sharing\n"
        "from seqlake.training.fetching.ahead import Fetcher\n"
        "from seqlake.training.shard_cache import InFolder, ShardCache\n"
        "class Slow:\n"
        "    def __init__(self, n):\n"
        "        self.table, self.key, self.rows, self.nbytes = sharing.shard(n).table, f'slow#{n}', 20, 1\n"
        "    def open(self): return self\n"
        "    def close(self): pass\n"
        "    def batches(self, columns, rows=None):\n"
        "        for _ in range(1000):\n"
        "            print('.', flush=True)\n"
        "            began.set()\n"
        "            time.sleep(0.1)\n"
        "            yield self.table.select(columns).slice(0, 1).combine_chunks().to_batches()[0]\n"
        "began = threading.Event()\n"
        f"cache = ShardCache({str(tmp_path / 'cache')!r}, limit={LIMIT})\n"
        "fetcher = Fetcher([Slow(n) for n in range(8)], sharing.SCHEMA, copies=InFolder(cache))\n"
        "fetcher.schedule(range(8))\n"
        "assert began.wait(30)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=True)
    assert ended.stdout.startswith(".")
    assert not ended.stderr


def test_a_shard_more_is_not_a_look_at_every_other(tmp_path, monkeypatch) -> None:
    looks: list[object] = []
    real = folder.allocated
    monkeypatch.setattr(folder, "allocated", lambda status: (looks.append(status), real(status))[1])
    cache = ShardCache(tmp_path / "cache", limit=10**9)

    def fill(part: Draft) -> dict[str, str]:
        part.reserve(10_000)
        part.path.write_bytes(bytes(5000))
        return {"form": "copy"}

    counts = []
    for number in range(40):
        looks.clear()
        held = cache.make(f"{number:032x}", fill, name=number)
        assert held is not None
        held.release()
        counts.append(len(looks))
    assert counts[-1] <= counts[5] <= 8
    assert 40 * 8192 < cache.nbytes() < 40 * 24_000
    cache.close()


@pytest.mark.parametrize("name", ["shards", "users"])
def test_a_folder_behind_a_link_is_not_the_caches_to_clean(tmp_path, name):
    other, mine = folder.Folder(tmp_path / "other"), folder.Folder(tmp_path / "mine")
    with other.locked(patience=1), mine.locked(patience=1):
        left = (other.shard("0" * 32), other.users / f"1-{'0' * 16}.user", other.part("1" * 32, f"1-{'0' * 16}"))
        for path in left:
            path.write_bytes(b"kept")
    (tmp_path / "mine" / name).rmdir()
    (tmp_path / "mine" / name).symlink_to(tmp_path / "other" / name)
    with pytest.raises(UnsafeReferenceError, match="is a link"), mine.locked(patience=1):
        mine.inventory("2-0")
    assert all(path.read_bytes() == b"kept" for path in left)

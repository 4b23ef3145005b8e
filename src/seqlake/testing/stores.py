"""The contract of a store, as tests: a new kind of store inherits them.

```text
class TestMyStore(StoreTests):
    @pytest.fixture
    def store(self): return MyStore(...)     # empty
```
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import protocols
from seqlake.abilities import SeesNames, ability
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.writing.ingest import File
from seqlake.errors import ShardChangedError, UnsafeReferenceError
from seqlake.spec.column_types import ColumnType
from seqlake.tables.standalone.table import StandaloneTable
from seqlake.testing import samples
from seqlake.testing.strict import Strict

if TYPE_CHECKING:
    from seqlake.protocols import Ints, Store

NAMES = [
    "a", "b/1", "b/10", "b/2", "b.x", "b2/x", "c/ü ñ/%41 +=&", "c/%2e%2e", "c/q?#.mp4", "c/UPPER", "c/upper",
    "d/日本/é",
]  # fmt: skip

UNSAFE = ["", "/etc/passwd", "../out", "a/../../out", "a//b", ".", "a/.", "C:/x", "a\\b", "a\0b"]

_FRESH = """
import pickle, sys
import numpy as np
blob = pickle.load(sys.stdin.buffer)
sys.stdout.write(f"{blob.size} {bytes(blob.ranges(np.array([1]), np.array([3]))[0])} {blob.token}")
"""


def _ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def _raises(kind: type[BaseException], call: Any, *args: Any, **options: Any) -> BaseException:
    try:
        call(*args, **options)
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


class StoreTests:
    """Laws of `Store` and `Blob`."""

    def test_what_was_put_is_there(self, store: Store) -> None:
        """Whole, under its name, with its size; replaced when put again."""
        for number, name in enumerate(NAMES):
            store.put(name, b"x" * number)
        assert list(store.list()) == sorted((name, number) for number, name in enumerate(NAMES))
        store.put("a", b"again")
        blob = store.blob("a")
        assert (blob.size, bytes(blob.ranges(_ints(0), _ints(5))[0])) == (5, b"again")

    def test_a_file_is_put_like_bytes(self, store: Store, tmp_path: Path) -> None:
        """From elsewhere on this machine."""
        (tmp_path / "source.bin").write_bytes(b"0123456789" * 1000)
        store.put("from/file", tmp_path / "source.bin")
        assert store.blob("from/file").size == 10_000
        assert (tmp_path / "source.bin").exists()

    def test_lists_a_folder_and_goes_on_after_a_name(self, store: Store) -> None:
        """A prefix is a folder's name, not the beginning of one."""
        for name in NAMES:
            store.put(name, b"x")
        assert [name for name, _ in store.list("b")] == ["b/1", "b/10", "b/2"]
        assert [name for name, _ in store.list("b", after="b/1")] == ["b/10", "b/2"]
        assert [name for name, _ in store.list("b/")] == ["b/1", "b/10", "b/2"]
        assert [name for name, _ in store.list(after="c/UPPER")] == sorted(n for n in NAMES if n > "c/UPPER")
        assert list(store.list("nothing")) == list(store.list("a")) == []

    def test_names_that_are_taken_are_seen(self, store: Store) -> None:
        """Where that costs next to nothing: files and folders, and nothing else."""
        known = ability(store, SeesNames)
        store.put("c/1", b"x")
        assert known is None or list(known.taken(["a", "c/1", "c/2", "c/1/d"])) == ["c/1"]

    def test_if_absent_lets_one_win(self, store: Store) -> None:
        """Rivals at the same instant: one makes it, the others are told."""

        def attempt(number: int) -> int | None:
            try:
                store.put("v/1", f"{number}".encode(), if_absent=True, temporary=f"staged/{number}.tmp")
            except FileExistsError:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            winners = [n for n in pool.map(attempt, range(16)) if n is not None]
        assert len(winners) == 1
        blob = store.blob("v/1")
        assert bytes(blob.ranges(_ints(0), _ints(blob.size))[0]) == f"{winners[0]}".encode()
        assert [name for name, _ in store.list()] == ["v/1"]

    def test_missing_is_file_not_found(self, store: Store) -> None:
        """With the name in the message."""
        assert "nowhere" in str(_raises(FileNotFoundError, store.blob, "nowhere"))

    def test_ranges_equal_slices(self, store: Store) -> None:
        """In the order asked for, overlapping, empty, far apart."""
        data = np.random.default_rng(0).bytes(1_000_000)
        store.put("large", data)
        blob = store.blob("large")
        starts, stops = _ints(999_000, 0, 10, 500_000, 7), _ints(1_000_000, 1, 10, 700_000, 9)
        parts = [bytes(part) for part in blob.ranges(starts, stops)]
        assert parts == [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        assert blob.ranges(_ints(), _ints()) == []
        view = blob.view()
        assert view is None or bytes(view) == data

    def test_many_ranges_equal_slices(self, store: Store) -> None:
        """As a gather asks for them: unsorted, some twice, some next to each other."""
        data = np.random.default_rng(1).bytes(300_000)
        store.put("many", data)
        random = np.random.default_rng(2)
        starts = random.integers(0, 299_000, 500)
        stops = starts + random.integers(0, 1000, 500)
        parts = store.blob("many").ranges(starts, stops)
        assert [bytes(p) for p in parts] == [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]

    def test_ranges_past_the_end_raise(self, store: Store) -> None:
        """A range is never cut short."""
        store.put("small", b"abc")
        for start, stop in [(1, 4), (-1, 2), (2, 1), (4, 4)]:
            _raises(ShardChangedError, store.blob("small").ranges, _ints(start), _ints(stop))

    def test_changed_bytes_are_noticed(self, store: Store) -> None:
        """A blob stands for the bytes that were there when it was made."""
        store.put("shard", b"before")
        blob = store.blob("shard")
        token = blob.token
        store.put("shard", b"after!!")
        _raises(ShardChangedError, blob.ranges, _ints(0), _ints(3))
        assert store.blob("shard").token != token
        blob = store.blob("shard")
        store.delete(["shard"])
        _raises(FileNotFoundError, blob.ranges, _ints(0), _ints(3))

    def test_copy_makes_a_second_name(self, store: Store) -> None:
        """And never replaces one."""
        store.put("a", b"one")
        store.copy("a", "b/copy")
        assert store.blob("b/copy").size == 3
        _raises(FileExistsError, store.copy, "a", "b/copy")
        _raises(FileNotFoundError, store.copy, "nothing", "b/other")

    def test_move_can_be_repeated(self, store: Store) -> None:
        """Whoever finishes another's work moves again."""
        store.put("staged/part", b"one")
        store.move("staged/part", "data/part")
        store.move("staged/part", "data/part")
        assert list(store.list()) == [("data/part", 3)]
        _raises(FileNotFoundError, store.move, "staged/nothing", "data/nothing")

    def test_delete_can_be_repeated(self, store: Store) -> None:
        """What is gone is fine."""
        store.put("a", b"one")
        store.put("b", b"two")
        store.delete(["a", "never/there"])
        store.delete(["a"])
        store.delete([])
        assert list(store.list()) == [("b", 3)]
        store.sync("", "b", "never")

    def test_names_stay_below_the_root(self, store: Store) -> None:
        """Names inside manifests are input too."""
        store.put("a", b"one")
        for name in UNSAFE:
            _raises(UnsafeReferenceError, store.blob, name)
            _raises(UnsafeReferenceError, store.put, name, b"")
            _raises(UnsafeReferenceError, store.move, "a", name)
            _raises(UnsafeReferenceError, store.delete, [name])

    def test_descriptions_travel(self, store: Store) -> None:
        """To another process, without handles."""
        store.put("a", b"one")
        blob = store.blob("a")
        blob.view()
        again = pickle.loads(pickle.dumps(blob))
        assert bytes(again.ranges(_ints(0), _ints(3))[0]) == b"one"
        assert again.token == blob.token
        assert pickle.loads(pickle.dumps(store)) == store

    def test_descriptions_open_in_a_fresh_process(self, store: Store) -> None:
        """As a worker does that was not forked."""
        store.put("a", b"one")
        blob = store.blob("a")
        said = subprocess.run([sys.executable, "-c", _FRESH], input=pickle.dumps(blob), capture_output=True, check=True)
        assert said.stdout.decode() == f"3 b'ne' {blob.token}"

    def test_local_is_a_path_or_none(self, store: Store) -> None:
        """Where other code may write; `put` of that very path makes it durable."""
        path = store.local("staged/part")
        if path is not None:
            assert isinstance(path, Path)
            path.write_bytes(b"one")
            store.put("staged/part", path)
            assert list(store.list()) == [("staged/part", 3)]

    def test_nobody_asks_for_more_than_the_protocol(self, store: Store, tmp_path: Path) -> None:
        """A dataset is made, changed, read and cleaned up over a proxy that lets nothing else through."""
        table = StandaloneTable.created(Strict(store, protocols.Store), samples.arm_schema())
        ds = Dataset(table, table.snapshot(), location=store.root)
        ds.append(list(samples.arm_episodes(6)))
        ds.add_column("picture", ColumnType("image"))
        path = tmp_path / "picture.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\n")
        ds.upsert([{"sequence_id": "ep_0000", "picture": File(path)}])
        ds.delete(ids=["ep_0001"])
        assert len(ds) == 5
        assert path.stat().st_size in [size for _, size in store.list("files")]
        assert ds.sql("SELECT count(*) FROM dataset").fetchall() == [(5,)]
        assert ds["ep_0002"]["action"].shape[1] == samples.ACTION
        ds.vacuum(older_than=timedelta(0))
        assert ds.validate(depth="rows").ok

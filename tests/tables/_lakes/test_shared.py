"""What lakes share, on a Delta table: derived files that may go, writers that were given up, shards that are gone."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    DamagedTableError,
    DuplicateSequenceError,
    SchemaMismatchError,
)
from seqlake.protocols import Change
from seqlake.spec.schema import comparable
from seqlake.tables import delta
from seqlake.tables._lakes import committing, types
from seqlake.testing import tables
from seqlake.versions import markers

pytest.importorskip("deltalake")


@pytest.fixture
def table(tmp_path):
    return delta.create(str(tmp_path / "t"), tables.SCHEMA)


def again(table):
    return pickle.loads(pickle.dumps(table))


def index_files(table):
    return sorted(Path(table.root, "_seqlake", "index").glob("*.arrow"))


@pytest.mark.parametrize("harm", ["removed", "cut off", "of another shard"])
def test_an_index_that_cannot_be_used_costs_speed_and_no_truth(table, harm):
    tables.append(table, ["a", "b"])
    tables.append(table, ["c"])
    one, two = index_files(table)
    if harm == "removed":
        one.unlink()
    elif harm == "cut off":
        one.write_bytes(one.read_bytes()[:100])
    else:
        one.write_bytes(two.read_bytes())
    found = again(table)
    assert tables.rows_of(found.snapshot()) == tables.expected(["a", "b", "c"])
    assert found.snapshot().find_ids(["b", "c", "x"]).tolist() == [1, 2, -1]
    lengths = [len(tables.episode(one)["action"] or ()) for one in "abc"]
    assert [max(length, 0) for length in found.snapshot().lengths("action").tolist()] == lengths
    with pytest.raises(DuplicateSequenceError):
        tables.append(found, ["b"])


def test_many_index_files_become_one(table):
    ids = [f"ep_{number}" for number in range(20)]
    for one in ids:
        tables.append(table, [one])
    assert Path(table.root, "_seqlake", "index", "merged").exists()
    table.vacuum(older_than=timedelta(0))
    found = again(table)
    assert found.snapshot().find_ids(ids).tolist() == list(range(20))
    assert tables.rows_of(found.snapshot()) == tables.expected(ids)
    with pytest.raises(DuplicateSequenceError):
        tables.append(found, ["ep_3"])


def test_a_writer_that_was_given_up_commits_nothing(table, monkeypatch):
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("late")])
    now = markers.now()
    monkeypatch.setattr(markers, "now", lambda: now + timedelta(hours=3))
    again(table).vacuum(older_than=timedelta(0))
    with pytest.raises((CommitConflictError, FileNotFoundError)):
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    assert tables.rows_of(table.snapshot()) == {}


def test_a_writer_that_lives_is_never_given_up(table):
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("a")])
    again(table).vacuum(older_than=timedelta(0))
    table.commit(Change(operation="append", add=[written]), transaction=transaction)
    assert tables.rows_of(table.snapshot()) == tables.expected(["a"])


def test_what_a_dead_writer_left_is_collected(table, monkeypatch):
    transaction = table.begin()
    tables.write(table, transaction, [tables.episode("a")])
    now = markers.now()
    monkeypatch.setattr(markers, "now", lambda: now + timedelta(hours=3))
    assert any(transaction.id in path for path in again(table).vacuum(older_than=timedelta(0)))
    assert not [path for path in Path(table.root).rglob("*") if transaction.id in path.name]


def test_columns_added_at_once_are_both_there(tmp_path):
    location = f"delta:{tmp_path}/t"
    one = sl.create(location, {"reward": pa.float32()})
    two = sl.open(location)
    one.add_column("first", pa.string())
    two.add_column("second", pa.string())
    one.refresh()
    assert one.schema.names == ["sequence_id", "reward", "first", "second"]


def test_a_schema_changed_meanwhile_is_a_conflict(table):
    other = again(table)
    first, second = table.begin(), other.begin()
    schema = table.snapshot().schema
    table.commit(Change(operation="evolve", schema=schema.with_columns({"x": pa.string()})), transaction=first)
    with pytest.raises(CommitConflictError, match="schema"):
        other.commit(Change(operation="evolve", schema=schema.with_columns({"y": pa.string()})), transaction=second)


def test_rows_appended_while_a_column_was_added_read_null_in_it(table):
    other = again(table)
    first, second = table.begin(), other.begin()
    written = tables.write(other, second, [tables.episode("a")])
    schema = table.snapshot().schema.with_columns({"split": pa.string()})
    table.commit(Change(operation="evolve", schema=schema), transaction=first)
    other.commit(Change(operation="append", add=[written]), transaction=second)
    assert tables.rows_of(table.snapshot()) == {"a": {**tables.episode("a"), "split": None}}


def test_shards_of_others_are_indexed_once(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    ds = sl.create(f"delta:{tmp_path}/t", {"action": sl.Trajectory(dim=2)})
    theirs = pa.table({"sequence_id": ["a", "b"], "action": [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]})
    deltalake.write_deltalake(
        ds.table.root, theirs.cast(types.lake_schema(ds.schema, ds.table.engine.lake_type)), mode="append"
    )
    ds.refresh()
    (theirs,) = ds.table.state().files
    assert ds.adopt().id == 1
    found = again(ds.table)
    assert found.context.sidecar.find(found.state().files)[theirs.name].counts(theirs.name)[0] == 2
    assert found.snapshot().lengths("action").tolist() == [1, 2]
    assert found.snapshot().find_ids(["b"]).tolist() == [1]


def test_a_shard_that_is_gone_is_said_to_be(table):
    tables.append(table, ["a"])
    (path,) = Path(table.root, "data").glob("*.parquet")
    path.unlink()
    with pytest.raises(DamagedTableError, match="gone"):
        tables.rows_of(again(table).snapshot())
    assert [finding.code for finding in again(table).snapshot().check("metadata")] == ["T501"]


def test_copied_files_that_are_gone_are_found(tmp_path):
    film = tmp_path / "film.bin"
    film.write_bytes(b"moving")
    ds = sl.create(f"delta:{tmp_path}/t", {"cam": sl.Video(fps=10)})
    with ds.writer() as writer:
        writer.add("a", cam=sl.File(str(film)))
    (copied,) = [path for path in Path(ds.table.root, "_seqlake", "files").rglob("*") if path.is_file()]
    copied.unlink()
    assert "T510" in {finding.code for finding in sl.open(ds.location).validate(depth="files").findings}


def test_files_of_each_partition_are_listed_with_its_shard(tmp_path):
    film = tmp_path / "film.bin"
    film.write_bytes(b"moving")
    ds = sl.create(f"delta:{tmp_path}/t", {"split": pa.string(), "cam": sl.Video(fps=10)}, partition_by=["split"])
    with ds.writer() as writer:
        for number in range(6):
            writer.add(f"ep_{number}", split=["train", "val"][number % 2], cam=sl.File(str(film)))
    snapshot = ds.table.snapshot()
    listed = {
        path.partition("/")[0] or "root": len(snapshot.copied(shard.key))
        for shard in snapshot.shards()
        for path in [shard.key.removeprefix("data/")]
    }
    assert listed == {"split=train": 3, "split=val": 3}
    ds.delete("split = 'val'")
    ds.vacuum(older_than=timedelta(0))
    left = [path for path in Path(ds.table.root, "_seqlake", "files").rglob("*") if path.is_file()]
    assert len(left) == 3


def test_types_that_a_lake_lacks_become_wider_ones(tmp_path):
    kinds = {"count": pa.uint8(), "half": pa.float16(), "word": pa.large_string(), "action": sl.Trajectory(dim=2)}
    ds = sl.create(f"delta:{tmp_path}/t", kinds)
    ds.append([{"sequence_id": "a", "count": 255, "half": 0.5, "word": "x", "action": np.ones((3, 2))}])
    assert [str(ds.schema[name].arrow) for name in ("count", "half", "word")] == ["int16", "float", "string"]
    row = sl.open(ds.location)["a"]
    assert (row["count"], row["half"], row["word"]) == (255, 0.5, "x")
    assert len(sl.create(f"delta:{tmp_path}/t", kinds, exist_ok=True)) == 1
    with pytest.raises(SchemaMismatchError, match="other columns"):
        sl.create(f"delta:{tmp_path}/t", {**kinds, "more": pa.string()}, exist_ok=True)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.duration("s"), pa.time64("us"), pa.timestamp("ns")])
def test_types_that_nothing_holds_are_refused(tmp_path, kind):
    with pytest.raises(SchemaMismatchError, match="'odd'"):
        sl.create(f"delta:{tmp_path}/t", {"odd": kind})
    assert not (tmp_path / "t" / "_delta_log").exists()


def test_a_lakes_schema_is_freed_of_what_readers_differ_in():
    inner = pa.large_list(pa.field("element", pa.float32()))
    told = pa.schema(
        [
            pa.field("action", pa.list_(pa.field("l", inner))),
            pa.field("word", pa.string_view()),
            pa.field("time", pa.timestamp("us", "Etc/UTC")),
            pa.field("link", pa.struct([pa.field("url", pa.large_string())])),
        ]
    )
    assert comparable(told) == pa.schema(
        [
            pa.field("action", pa.list_(pa.list_(pa.float32()))),
            pa.field("word", pa.string()),
            pa.field("time", pa.timestamp("us", "UTC")),
            pa.field("link", pa.struct([pa.field("url", pa.string())])),
        ]
    )


def test_a_commit_in_doubt_keeps_what_it_staged(table, monkeypatch):
    """The lake may make it yet."""
    commit = table.engine.commit

    def unheard(proposal):
        raise CommitUnknownError("no answer")

    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("a")])
    monkeypatch.setattr(table.engine, "commit", lambda proposal: made.append(proposal) or unheard(proposal))
    made = []
    with pytest.raises(CommitUnknownError):
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    monkeypatch.undo()
    again(table).discard(transaction)
    table.discard(transaction)
    commit(made[0])
    assert tables.rows_of(table.snapshot()) == tables.expected(["a"])


def test_a_commit_stands_whatever_a_client_raises_afterwards(table, monkeypatch):
    def broken(*_):
        raise RuntimeError("of a lake's client")

    monkeypatch.setattr(committing, "_after", broken)
    tables.append(table, ["a"])
    assert tables.rows_of(table.snapshot()) == tables.expected(["a"])


@pytest.mark.parametrize("inside", ["below", "data/below"])
def test_datasets_below_the_table_are_left_alone(table, inside, monkeypatch):
    tables.append(table, ["a"])
    other = sl.create(str(Path(table.root, inside)), {"reward": pa.float32()})
    other.append([{"sequence_id": "theirs", "reward": 1.0}])
    now = markers.now()
    monkeypatch.setattr(markers, "now", lambda: now + timedelta(hours=3))
    table.vacuum(older_than=timedelta(0))
    assert sl.open(other.location).to_arrow()["reward"].to_pylist() == [1.0]


def test_a_shard_of_others_that_is_gone_stops_no_collection(table, monkeypatch):
    import deltalake

    theirs = pa.table({"sequence_id": ["x"], "reward": pa.array([1.0], pa.float32())})
    deltalake.write_deltalake(table.root, theirs, mode="append", schema_mode="merge")
    (path,) = [file.name for file in table.state().files]
    Path(table.root, path).unlink()
    transaction = table.begin()
    tables.write(table, transaction, [tables.episode("a")])
    now = markers.now()
    monkeypatch.setattr(markers, "now", lambda: now + timedelta(hours=3))
    assert any(transaction.id in path for path in again(table).vacuum(older_than=timedelta(hours=1)))


def test_the_lake_is_not_asked_for_each_batch(tmp_path, monkeypatch):
    table = sl.create(f"delta:{tmp_path}/p", {"split": pa.string()}, partition_by=["split"]).table
    batch = pa.RecordBatch.from_pydict({"sequence_id": ["a", "b"], "split": ["train", None]})
    table.begin()
    monkeypatch.setattr(table.engine, "state", None)
    assert list(table.partition_values(batch)) == [("train",), (None,)]


def test_an_append_reads_the_newest_version_before_at_and_after_its_commit(tmp_path, monkeypatch):
    ds = sl.create(f"delta:{tmp_path}/t", {"reward": pa.float32()})
    ds.append([{"sequence_id": "a"}])
    asked = []
    real = type(ds.table.engine).state
    monkeypatch.setattr(type(ds.table.engine), "state", lambda self, *given: asked.append(given) or real(self, *given))
    ds.append([{"sequence_id": "b"}])
    assert asked == [(None,)] * 3
    assert ds.select("sequence_id").to_arrow().column(0).to_pylist() == ["a", "b"]

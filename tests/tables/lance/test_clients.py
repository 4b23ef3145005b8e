"""Lance datasets that the package lance and seqlake write in turn: each reads what the other did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import (
    DatasetNotFoundError,
    DuplicateSequenceError,
    ReadOnlyError,
    SchemaMismatchError,
    TagExistsError,
    VersionNotFoundError,
)

if TYPE_CHECKING:
    from pathlib import Path

lance = pytest.importorskip("lance")

SCHEMA = sl.Schema({"task": pa.string(), "reward": pa.float64(), "action": sl.Trajectory(dim=4)})


def rows(first: int, count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(first)
    return [
        {
            "sequence_id": f"ep_{n:03}",
            "task": ["pick", "place"][n % 2],
            "reward": float(n),
            "action": random.random((int(random.integers(1, 30)), 4)).astype(np.float32),
        }
        for n in range(first, first + count)
    ]


def theirs(ds: Any) -> list[dict[str, Any]]:
    """The rows as the package reads them."""
    table = lance.dataset(str(ds.root)).to_table()
    return sorted(table.to_pylist(), key=lambda row: row["sequence_id"])


def ours(ds: Any) -> list[dict[str, Any]]:
    return sorted(ds.to_arrow().to_pylist(), key=lambda row: row["sequence_id"])


@pytest.fixture
def ds(tmp_path: Path) -> sl.Dataset:
    made = sl.create(f"lance:{tmp_path}/t", SCHEMA)
    made.append(rows(0, 20))
    made.append(rows(20, 20))
    return made


def test_the_package_reads_every_version_of_ours(ds: sl.Dataset) -> None:
    assert ours(ds) == theirs(ds)
    assert ds.shards()[0].open().flat("action") is not None
    ds.delete(ids=["ep_003", "ep_021"])
    ds.update([{"sequence_id": "ep_004", "reward": 99.0}])
    ds.upsert(rows(39, 3))
    ds.rename_column("task", "job")
    ds.add_column("length", pa.int64(), sql="len(action)")
    ds.drop_column("reward")
    ds.add_column("reward", pa.float32())
    ds.append([{"sequence_id": "new", "reward": 1.5, "action": np.ones((3, 4), np.float32)}])
    assert len(ds) == 41
    assert ours(ds) == theirs(ds)
    assert ds.validate(depth="rows").ok
    for version in ds.versions():
        there = lance.dataset(str(ds.root), version=version.id)
        assert there.count_rows() == version.rows == len(sl.open(ds.location, version=version))
    sl.compact(ds)
    assert ours(ds) == theirs(ds)


def test_what_the_package_does_is_read(ds: sl.Dataset) -> None:
    truth = lance.dataset(str(ds.root))
    more = pa.Table.from_pylist(
        [{"sequence_id": "z", "task": "x", "reward": 1.0, "action": [[1.0, 2.0, 3.0, 4.0]] * 3}], truth.schema
    )
    truth = lance.write_dataset(more, truth, mode="append")
    truth.delete("sequence_id IN ('ep_002', 'ep_038')")
    truth.update({"reward": "reward + 1"}, where="sequence_id = 'ep_005'")
    truth.add_columns({"twice": "reward * 2"})
    truth.alter_columns({"path": "reward", "name": "score"})
    truth.add_columns({"reward": "score * 3"})
    truth.drop_columns(["task"])
    ds = sl.open(ds.location)
    assert list(ds.schema.names) == ["sequence_id", "score", "action", "twice", "reward"]
    assert ours(ds) == theirs(ds)
    assert len(ds) == 39
    question = "SELECT sum(score), sum(twice), sum(reward), sum(len(action)) FROM dataset"
    assert ds.sql(question).fetchall() == [
        tuple(
            sum(one)
            for one in zip(*((r["score"], r["twice"], r["reward"], len(r["action"])) for r in theirs(ds)), strict=True)
        )
    ]
    (batch,) = sl.Loader(ds, window={"action": range(4)}, batch_size=int(ds.lengths("action").sum()))
    assert sorted(set(batch["sequence_id"])) == [row["sequence_id"] for row in theirs(ds)]
    assert ds["z"]["action"].shape == (3, 4)
    with pytest.raises(DuplicateSequenceError, match="'z'"):
        ds.append([{"sequence_id": "z"}])
    ds.append([{"sequence_id": "y", "score": 0.5, "reward": 0.25}])
    ds.delete("score > 30")
    assert ours(ds) == theirs(ds)
    truth = lance.dataset(str(ds.root))
    truth.optimize.compact_files()
    assert ours(sl.open(ds.location)) == theirs(ds)
    assert ds.validate(depth="rows").ok


def test_a_dataset_of_the_package_opens_and_may_become_one_of_ours(tmp_path: Path) -> None:
    cells = [[[float(n), 1.0]] * n for n in range(5)]
    table = pa.table(
        {
            "sequence_id": [f"s{n}" for n in range(5)],
            "force": pa.array(cells, pa.list_(pa.list_(pa.float32(), 2))),
            "info": [{"a": n} for n in range(5)],
        }
    )
    native = lance.write_dataset(table, str(tmp_path / "t"))
    for location in (f"lance:{tmp_path}/t", native):
        opened = sl.open(location)
        assert opened.to_arrow().to_pylist() == table.to_pylist()
        assert opened.table.kind == "lance"
    native.update_metadata(
        {"mixtrain": '{"mixtrain": "1.0", "column_types": {"force": {"type": "trajectory", "dim": 2}}}'}
    )
    assert sl.open(native).schema["force"].category == "temporal"
    ds = sl.open(f"lance:{tmp_path}/t")
    ds.append([{"sequence_id": "new", "force": [[1.0, 2.0]], "info": {"a": 9}}])
    assert ours(ds) == theirs(ds)
    assert len(ds) == 6


def test_tags_are_those_of_lance_and_stay_through_a_cleanup(ds: sl.Dataset) -> None:
    from datetime import timedelta

    first = ds.versions()[1]
    ds.tag("first", first)
    assert lance.dataset(str(ds.root)).tags.get_version("first") == first.id
    lance.dataset(str(ds.root)).tags.create("theirs", 3)
    assert dict(ds.tags()) == {"first": 2, "theirs": 3}
    with pytest.raises(TagExistsError):
        ds.tag("first", ds.versions()[0])
    ds.delete("true")
    ds.append(rows(90, 2))
    ds.vacuum(older_than=timedelta(0))
    assert len(sl.open(ds.location, version="first")) == 20
    assert len(sl.open(ds.location)) == 2
    assert [version.id for version in ds.versions()] == [2, 3, 5]
    ds.untag("first")
    with pytest.raises(VersionNotFoundError):
        sl.open(ds.location, version="first")


def test_a_lance_folder_without_the_prefix_says_how_to_open_it(ds: sl.Dataset) -> None:
    with pytest.raises(DatasetNotFoundError, match="lance:"):
        sl.open(str(ds.root))


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match="partitions"):
        sl.create(f"lance:{tmp_path}/p", SCHEMA, partition_by=["task"])
    with pytest.raises(SchemaMismatchError, match="dot"):
        sl.create(f"lance:{tmp_path}/p", {"a.b": pa.int64()})
    stable = pa.table({"sequence_id": ["a"], "x": [1]})
    lance.write_dataset(stable, str(tmp_path / "s"), enable_stable_row_ids=True)
    ds = sl.open(f"lance:{tmp_path}/s")
    assert len(ds) == 1
    with pytest.raises(ReadOnlyError, match="stable"):
        ds.append([{"sequence_id": "b", "x": 2}])
    vectors = pa.table({"sequence_id": ["a"], "v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))})
    lance.write_dataset(vectors, str(tmp_path / "v"))
    ds = sl.open(f"lance:{tmp_path}/v")
    ds.append([{"sequence_id": "b", "v": [1.0, 2.0]}])
    assert ours(ds) == theirs(ds)


def test_every_kind_of_column_comes_back(tmp_path: Path) -> None:
    schema = sl.Schema(
        {
            "task": pa.string(),
            "info": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
            "pose": pa.list_(pa.list_(pa.float64())),
            "vector": sl.Embedding(dim=5),
            "note": pa.list_(pa.string()),
        }
    )
    ds = sl.create(f"lance:{tmp_path}/t", schema)
    cells = {"info": {"a": 1, "b": ["x", None]}, "pose": np.ones((2, 3)), "vector": np.ones(5, np.float32)}
    ds.append([{"sequence_id": "a", "task": None, "note": ["n"], **cells}, {"sequence_id": "b"}])
    assert ours(ds) == theirs(ds)
    copy = sl.repack(ds, f"lance:{tmp_path}/u", layout="archive")
    assert ours(copy) == theirs(copy) == ours(ds)
    plain = sl.repack(copy, tmp_path / "plain")
    assert ours(plain) == ours(ds)
    back = sl.convert(plain, f"lance:{tmp_path}/back", adopt=True)
    assert ours(back) == theirs(back) == ours(ds)

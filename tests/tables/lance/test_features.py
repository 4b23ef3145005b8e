"""What others' Lance datasets may have: read rightly, or refused in one sentence; and a rollback beside rivals."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CommitConflictError, ReadOnlyError, UnsupportedVersionError
from seqlake.tables.lance.engine import LanceEngine

if TYPE_CHECKING:
    from pathlib import Path

lance = pytest.importorskip("lance")


def table(first: int = 0, count: int = 5) -> pa.Table:
    cells = [[[float(n), 1.0]] * (n % 4) for n in range(first, first + count)]
    return pa.table(
        {
            "sequence_id": [f"s{n}" for n in range(first, first + count)],
            "reward": [float(n) for n in range(first, first + count)],
            "force": pa.array(cells, pa.list_(pa.list_(pa.float32(), 2))),
        }
    )


def rows(ds: Any) -> list[dict[str, Any]]:
    return sorted(ds.to_arrow().to_pylist(), key=lambda row: row["sequence_id"])


def theirs(place: Any) -> list[dict[str, Any]]:
    return sorted(lance.dataset(str(place)).to_table().to_pylist(), key=lambda row: row["sequence_id"])


@pytest.mark.parametrize("version", ["2.0", pytest.param("2.1", marks=pytest.mark.soak), "2.2"])
def test_every_storage_format_is_read_and_written_into(tmp_path: Path, version: str) -> None:
    place = tmp_path / "t"
    lance.write_dataset(table(), str(place), data_storage_version=version)
    ds = sl.open(f"lance:{place}")
    assert rows(ds) == table().to_pylist()
    ds.append([{"sequence_id": "x", "reward": 9.0, "force": [[1.0, 2.0]]}])
    ds.delete("reward = 1")
    lance.dataset(str(place)).delete("reward = 2")
    ds = sl.open(ds.location)
    assert rows(ds) == theirs(place)
    assert len(ds) == 4
    assert ds.validate(depth="rows").ok
    lance.dataset(str(place)).optimize.compact_files()
    assert rows(sl.open(ds.location)) == theirs(place)


def test_the_storage_format_before_2_is_refused(tmp_path: Path) -> None:
    lance.write_dataset(table(), str(tmp_path / "t"), data_storage_version="legacy")
    with pytest.raises(UnsupportedVersionError, match=r"storage format 0\.1; expected 2\.0"):
        sl.open(f"lance:{tmp_path}/t")


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_blob_columns_are_read_and_not_written(tmp_path: Path, version: str) -> None:
    """Lance takes the pages of a shard of ours for a blob's: it could not read the rows that we add."""
    data = [b"x" * 100, None, b"y" * 200_000]
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("sequence_id", pa.string()), field])
    lance.write_dataset(
        pa.table([pa.array(["a", "b", "c"]), pa.array(data, pa.large_binary())], schema=schema),
        str(tmp_path / "t"),
        data_storage_version=version,
    )
    ds = sl.open(f"lance:{tmp_path}/t")
    assert [row["b"] for row in rows(ds)] == data
    with pytest.raises(ReadOnlyError, match="'b' is a blob column"):
        ds.append([{"sequence_id": "d", "b": b"z"}])


def test_blobs_of_version_2_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("sequence_id", pa.string()), lance.blob_field("b")])
    cells = pa.table([pa.array(["a"]), lance.blob_array([b"x"])], schema=schema)
    lance.write_dataset(cells, str(tmp_path / "t"), data_storage_version="2.2")
    with pytest.raises(UnsupportedVersionError, match="'b' has blobs of version 2"):
        sl.open(f"lance:{tmp_path}/t")


def test_json_is_refused_since_its_files_hold_something_else(tmp_path: Path) -> None:
    cells = pa.table({"sequence_id": ["a"], "j": pa.array(['{"a": 1}'], pa.json_())})
    lance.write_dataset(cells, str(tmp_path / "t"))
    with pytest.raises(UnsupportedVersionError, match="'j' has JSON"):
        sl.open(f"lance:{tmp_path}/t")


@pytest.mark.parametrize("key", ["packed", "lance-encoding:packed"])
def test_packed_structs_are_read_and_not_written(tmp_path: Path, key: str) -> None:
    """Lance showed the structs of rows that we added as nulls."""
    cells = pa.array([{"a": 1, "b": 2.0}, {"a": 3, "b": 4.0}])
    schema = pa.schema([pa.field("sequence_id", pa.string()), pa.field("s", cells.type, metadata={key: "true"})])
    lance.write_dataset(pa.table([pa.array(["a", "b"]), cells], schema=schema), str(tmp_path / "t"))
    ds = sl.open(f"lance:{tmp_path}/t")
    assert rows(ds) == theirs(tmp_path / "t")
    with pytest.raises(ReadOnlyError, match="'s' is a packed struct"):
        ds.append([{"sequence_id": "c", "s": {"a": 5, "b": 6.0}}])


def test_stable_row_ids_are_read_and_nothing_is_written(tmp_path: Path) -> None:
    lance.write_dataset(table(), str(tmp_path / "t"), enable_stable_row_ids=True)
    lance.dataset(str(tmp_path / "t")).delete("reward = 1")
    ds = sl.open(f"lance:{tmp_path}/t")
    assert rows(ds) == theirs(tmp_path / "t")
    changes = [
        lambda: ds.append([{"sequence_id": "x"}]),
        lambda: ds.delete("reward = 2"),
        lambda: ds.rename_column("reward", "score"),
        lambda: ds.rollback(1),
    ]
    for change in changes:
        with pytest.raises(ReadOnlyError, match="stable"):
            change()
    assert len(lance.dataset(str(tmp_path / "t")).versions()) == 2


def test_branches_and_clones_are_refused_and_a_vacuum_keeps_what_they_read(tmp_path: Path) -> None:
    ds = sl.create(f"lance:{tmp_path}/t", {"reward": pa.float64(), "log": sl.ColumnType("mcap")})
    (tmp_path / "log.mcap").write_bytes(b"carried")
    ds.append([{"sequence_id": "a", "reward": 1.0, "log": sl.File(tmp_path / "log.mcap")}])
    native = lance.dataset(str(tmp_path / "t"))
    branch = native.create_branch("trial")
    branch.insert(pa.table({"sequence_id": ["z"], "reward": [2.0], "log": pa.array([None], pa.string())}))
    native.tags.create("kept", native.version)
    native.shallow_clone(str(tmp_path / "clone"), "kept")
    native.tags.delete("kept")
    for place in (branch, f"lance:{branch.uri}", f"lance:{tmp_path}/clone"):
        with pytest.raises(UnsupportedVersionError, match="branch or a shallow clone"):
            sl.open(place)
    assert len(sl.open(native)) == 1
    ds.delete("true")
    ds.vacuum(older_than=timedelta(0))
    there = lance.dataset(str(tmp_path / "t")).checkout_version(("trial", None)).to_table().to_pylist()
    assert [row["sequence_id"] for row in there] == ["a", "z"]
    assert (tmp_path / "t" / there[0]["log"]).read_bytes() == b"carried"
    native.branches.delete("trial")
    ds.vacuum(older_than=timedelta(0))
    assert not list((tmp_path / "t" / "data").iterdir())


@pytest.mark.parametrize(
    ("rival", "deleted"),
    [
        ("ours", False),
        ("append", True),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in [("ours", True), ("append", False)]),
        *(pytest.param(one, deleted, marks=pytest.mark.soak) for one in ("delete", "evolve") for deleted in (0, 1)),
    ],
)
def test_a_rollback_notices_a_rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rival: str, deleted: bool) -> None:
    """It comes after the newest version was read and before the commit; Lance's own `restore` takes it away."""
    ds = sl.create(f"lance:{tmp_path}/t", {"reward": pa.float64()})
    ds.append([{"sequence_id": f"s{n}", "reward": float(n)} for n in range(5)])
    if deleted:
        lance.dataset(str(tmp_path / "t")).delete("reward = 0")
    target = sl.open(ds.location).versions()[-1]
    ds = sl.open(ds.location)
    ds.append([{"sequence_id": "later", "reward": 9.0}])
    truth, committed = sl.open(ds.location).to_arrow().to_pylist(), LanceEngine._committed

    def act() -> None:
        native = lance.dataset(str(tmp_path / "t"))
        if rival == "ours":
            sl.open(ds.location).append([{"sequence_id": "rival", "reward": 1.0}])
        elif rival == "append":
            lance.write_dataset(pa.table({"sequence_id": ["rival"], "reward": [1.0]}), native, mode="append")
        elif rival == "delete":
            native.delete("reward = 3")
        else:
            native.add_columns({"twice": "reward * 2"})

    def slower(engine: Any, base: Any, operation: Any, properties: Any) -> Any:
        monkeypatch.setattr(LanceEngine, "_committed", committed)
        act()
        return committed(engine, base, operation, properties)

    monkeypatch.setattr(LanceEngine, "_committed", slower)
    with pytest.raises(CommitConflictError, match="another commit came meanwhile"):
        ds.rollback(target)
    now = sl.open(ds.location)
    gone = 3.0 if rival == "delete" else None
    wanted = {row["sequence_id"] for row in truth if row["reward"] != gone}
    assert {row["sequence_id"] for row in rows(now)} == wanted | ({"rival"} if rival in {"ours", "append"} else set())
    assert ("twice" in now.schema) == (rival == "evolve")
    assert rows(now) == theirs(tmp_path / "t")
    now.rollback(target)
    assert rows(sl.open(ds.location)) == theirs(tmp_path / "t")
    assert len(sl.open(ds.location)) == (4 if deleted else 5)


def test_a_rollback_brings_schema_and_property_back(tmp_path: Path) -> None:
    ds = sl.create(f"lance:{tmp_path}/t", {"reward": pa.float64(), "action": sl.Trajectory(dim=2)})
    ds.append([{"sequence_id": "a", "reward": 1.0, "action": np.ones((3, 2), np.float32)}])
    before, schema = rows(ds), ds.schema
    version = ds.versions()[-1]
    ds.rename_column("reward", "score")
    ds.drop_column("action")
    ds.add_column("reward", pa.string())
    ds.append([{"sequence_id": "b", "score": 2.0, "reward": "x"}])
    ds.rollback(version)
    ds = sl.open(ds.location)
    assert rows(ds) == theirs(tmp_path / "t") == before
    assert ds.schema == schema
    assert ds.versions()[-1].operation == "rollback"
    ds.add_column("fresh", pa.int64(), sql="len(action)")
    ds.append([{"sequence_id": "c", "fresh": 4}])
    assert rows(ds) == theirs(tmp_path / "t")
    assert ds.validate(depth="rows").ok


def test_columns_that_an_index_covers(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    native = lance.write_dataset(table(count=300), place)
    native.create_scalar_index("reward", "BTREE")
    native.create_scalar_index("sequence_id", "BTREE")

    def count(condition: str) -> int:
        return int(lance.dataset(place).to_table(filter=condition).num_rows)

    ds = sl.open(f"lance:{place}")
    ds.append([{"sequence_id": "new", "reward": 1234.0}])
    ds.update([{"sequence_id": "s3", "reward": 777.0}])
    assert (count("reward = 1234"), count("reward = 777"), count("reward = 3"), count("reward = 5")) == (1, 1, 0, 1)
    ds.rename_column("reward", "score")
    assert (count("score = 1234"), count("score = 777"), count("score = 3"), count("score = 5")) == (1, 1, 0, 1)
    lance.dataset(place).optimize.optimize_indices()
    ds = sl.open(ds.location)
    ds.append([{"sequence_id": "newer", "score": 1235.0}])
    assert (count("score = 1234"), count("score = 1235")) == (1, 1)
    ds.drop_column("score")
    assert [one.name for one in lance.dataset(place).describe_indices()] == ["sequence_id_idx"]
    assert (count("sequence_id = 'newer'"), count("sequence_id = 's5'")) == (1, 1)
    ds.add_column("score", pa.float64(), values={"s1": 4.0})
    assert (count("score = 4"), count("sequence_id = 's1'")) == (1, 1)
    lance.dataset(place).optimize.compact_files()
    lance.dataset(place).optimize.optimize_indices()
    assert rows(sl.open(ds.location)) == theirs(place)
    assert count("sequence_id = 's7'") == 1


def test_a_bucket_holds_a_dataset_that_both_write(s3_bucket: Any) -> None:
    uri, storage = s3_bucket
    ds = sl.create(f"lance:{uri}/t", {"action": sl.Trajectory(dim=2)}, storage=storage)
    ds.append([{"sequence_id": f"ep_{n}", "action": np.full((4, 2), n, np.float32)} for n in range(6)])
    native = ds.table.context.engine.dataset()
    more = pa.Table.from_pylist([{"sequence_id": "z", "action": [[7.0, 8.0]] * 3}], native.schema)
    native = lance.write_dataset(more, native, mode="append")
    native.delete("sequence_id = 'ep_2'")
    for place in (f"lance:{uri}/t", native):
        again = sl.open(place, storage=storage if isinstance(place, str) else None)
        assert rows(again) == sorted(native.to_table().to_pylist(), key=lambda row: row["sequence_id"])
        (batch,) = sl.Loader(again, window={"action": range(2)}, batch_size=23)
        assert len(set(batch["sequence_id"])) == 6
    again.append([{"sequence_id": "y", "action": np.ones((2, 2), np.float32)}])
    again.delete(ids=["ep_3"])
    native = again.table.context.engine.dataset()
    assert rows(again) == sorted(native.to_table().to_pylist(), key=lambda row: row["sequence_id"])
    assert len(again) == 6

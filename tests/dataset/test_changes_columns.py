"""Columns added, renamed, dropped, widened: old rows read as they should, no signal is rewritten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqlake.dataset import opening
from seqlake.dataset.dataset import Dataset
from seqlake.errors import QueryError, SchemaMismatchError, SequenceNotFoundError
from seqlake.spec.column_types import Embedding, Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing import samples

EPISODES = {e["sequence_id"]: e for e in samples.arm_episodes(6)}


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return samples.arm_dataset(tmp_path / "arm", count=6, rows_per_shard=2)


def column(ds: Dataset, name: str) -> dict[str, object]:
    table = opening.open(ds.location).select("sequence_id", name).to_arrow()
    return dict(zip(*(table.column(i).to_pylist() for i in (0, 1)), strict=True))


def files(ds: Dataset) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in Path(ds.location, "data").glob("*.parquet")}


def test_an_added_column_is_null_or_filled_and_lies_beside(ds: Dataset) -> None:
    before = files(ds)
    assert ds.add_column("a", pa.int32()).operation == "evolve"
    ds.add_column("b", pa.string(), values={"ep_0001": "x", "ep_0005": None})
    ds.add_column("c", pa.float32(), sql="reward / 2")
    ds.add_column("d", pa.float32(), sql="list_max(list_transform(action, lambda s: s[1]))")
    ds.add_column("e", Embedding(dim=2), values={"ep_0000": np.array([1, 2])})
    ds.add_column("f", pa.int8(), sql="CASE WHEN success THEN 1 END")
    ds.add_column("g", pa.float64(), sql="0.5")
    assert files(ds) == before
    assert column(ds, "a") == dict.fromkeys(EPISODES)
    assert column(ds, "b") == dict.fromkeys(EPISODES) | {"ep_0001": "x"}
    assert column(ds, "c") == {one: np.float32(e["reward"]) / 2 for one, e in EPISODES.items()}
    assert column(ds, "d") == {one: e["action"][:, 0].max() for one, e in EPISODES.items()}
    assert column(ds, "e") == dict.fromkeys(EPISODES) | {"ep_0000": [1, 2]}
    assert column(ds, "f") == {one: 1 if e["success"] else None for one, e in EPISODES.items()}
    assert column(ds, "g") == dict.fromkeys(EPISODES, 0.5)
    ds.append([{"sequence_id": "new", "a": 3, "b": "y"}])
    assert (column(ds, "a")["new"], column(ds, "b")["new"], column(ds, "c")["new"]) == (3, "y", None)
    assert opening.open(ds.location).validate(depth="rows").ok


def test_an_added_signal_goes_into_the_shards_it_touches(ds: Dataset) -> None:
    before = files(ds)
    ds.add_column("force", Trajectory(dim=3), values={"ep_0002": np.ones((5, 3))})
    assert len(files(ds).items() & before.items()) == 2
    assert ds["ep_0002"]["force"].tolist() == np.ones((5, 3)).tolist()
    assert ds["ep_0001"]["force"] is None
    for one, episode in EPISODES.items():
        assert np.array_equal(ds[one]["action"], episode["action"])


def test_renamed_dropped_and_added_again(ds: Dataset) -> None:
    before = files(ds)
    ds.rename_column("action", "act")
    ds.rename_column("reward", "score")
    ds.drop_column("task")
    assert files(ds) == before
    ds.add_column("task", pa.string())  # no file may go on holding the old cells under a name that means others
    assert not files(ds).keys() & before.keys()
    after = files(ds)
    ds.add_column("reward", pa.int64(), values={"ep_0000": 1})
    assert files(ds) == after
    assert column(ds, "task") == dict.fromkeys(EPISODES)
    assert column(ds, "reward") == dict.fromkeys(EPISODES) | {"ep_0000": 1}
    assert column(ds, "score") == {one: e["reward"] for one, e in EPISODES.items()}
    for one, episode in EPISODES.items():
        assert np.array_equal(ds[one]["act"], episode["action"])
    assert ds.schema["act"].dim == 12
    assert ds.shards()[0].open().flat("act") is not None
    ds.update([{"sequence_id": "ep_0001", "score": 2.0, "task": "x"}])
    assert (column(ds, "score")["ep_0001"], column(ds, "task")["ep_0001"]) == (2.0, "x")
    assert opening.open(ds.location, version=1)["ep_0001"]["task"] == "place"


def test_widened(ds: Dataset) -> None:
    before = files(ds)
    ds.widen_column("reward", pa.float64())
    ds.widen_column("action", pa.float64())
    ds.add_column("n", pa.int8(), values={"ep_0000": 5})
    ds.widen_column("n", pa.int64())
    assert ds.widen_column("n", pa.int64()) == ds.version
    assert files(ds) == before
    assert column(ds, "n")["ep_0000"] == 5
    assert ds["ep_0000"]["action"].dtype == np.float64
    assert np.array_equal(ds["ep_0000"]["action"], EPISODES["ep_0000"]["action"])
    ds.append([{"sequence_id": "new", "n": 2**40, "reward": 1e300}])
    assert (column(ds, "n")["new"], column(ds, "reward")["new"]) == (2**40, 1e300)


def test_a_times_column_keeps_its_name_in_the_column_it_times(tmp_path: Path) -> None:
    schema = Schema({"t": pa.list_(pa.int64()), "x": Trajectory(dim=1, timestamps="t")})
    ds = opening.create(tmp_path / "ds", schema)
    ds.rename_column("t", "stamps")
    assert opening.open(tmp_path / "ds").schema["x"].type.get("timestamps") == "stamps"


def test_what_cannot_be_done_is_said_and_changes_nothing(ds: Dataset) -> None:
    version = ds.version
    for change, kind, message in [
        (lambda: ds.add_column("task", pa.string()), SchemaMismatchError, "already"),
        (
            lambda: ds.add_column("n", pa.field("n", pa.int64(), nullable=False)),
            SchemaMismatchError,
            "must be nullable",
        ),
        (lambda: ds.add_column("n", pa.int64(), values={"nobody": 1}), SequenceNotFoundError, "nothing was added"),
        (lambda: ds.add_column("n", pa.int64(), values={"ep_0000": "x"}), SchemaMismatchError, "expected int64"),
        (lambda: ds.add_column("n", pa.int64(), values=[1, 2]), TypeError, "a dict from sequence_id"),
        (lambda: ds.add_column("n", pa.int64(), values={}, sql="1"), ValueError, "not by both"),
        (lambda: ds.add_column("n", pa.int64(), sql="tusk"), QueryError, "tusk"),
        (lambda: ds.add_column("n", pa.int64(), sql="task"), SchemaMismatchError, "the expression gives string"),
        (lambda: ds.rename_column("tusk", "x"), SchemaMismatchError, "Did you mean 'task'"),
        (lambda: ds.rename_column("task", "reward"), SchemaMismatchError, "already"),
        (lambda: ds.rename_column("task", ""), SchemaMismatchError, "must not be empty"),
        (lambda: ds.rename_column("sequence_id", "id"), SchemaMismatchError, "is the id"),
        (lambda: ds.drop_column("sequence_id"), SchemaMismatchError, "is the id"),
        (lambda: ds.drop_column("tusk"), SchemaMismatchError, "Did you mean 'task'"),
        (lambda: ds.widen_column("reward", pa.float16()), SchemaMismatchError, "does not hold every float"),
        (lambda: ds.widen_column("length", pa.float64()), SchemaMismatchError, "does not hold every int64"),
        (lambda: ds.widen_column("task", pa.int64()), SchemaMismatchError, "does not hold every string"),
    ]:
        with pytest.raises(kind, match=message):
            change()
        assert opening.open(ds.location).version == version


def test_rivals_who_change_columns_are_met_by_doing_it_again(ds: Dataset) -> None:
    first, second = opening.open(ds.location), opening.open(ds.location)
    first.add_column("a", pa.int64())
    second.add_column("b", pa.int64(), values={"ep_0000": 1})
    first.rename_column("b", "c")
    second.drop_column("a")
    assert second.schema.names[-1] == "c"
    assert column(ds, "c")["ep_0000"] == 1


def test_a_rival_in_the_middle_is_met_by_doing_it_again(ds: Dataset) -> None:
    rival = opening.open(ds.location)
    table, inner = ds.table, ds.table.begin
    pending = [lambda: rival.add_column("theirs", pa.int64()), lambda: rival.delete(ids=["ep_0000"])]

    def begin(*args: object) -> object:
        transaction = inner(*args)
        if pending:
            pending.pop(0)()
        return transaction

    table.begin = begin
    ds.add_column("mine", pa.int64(), sql="length")
    assert ds.schema.names[-2:] == ["theirs", "mine"]
    assert column(ds, "mine") == {one: len(e["action"]) for one, e in EPISODES.items() if one != "ep_0000"}

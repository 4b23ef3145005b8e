"""Fold: what the files say becomes what the dataset says, beside rivals, old versions and other homes."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset.changing import folding
from seqlake.errors import CommitConflictError, VersionNotFoundError

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named


@pytest.fixture
def ds(tmp_path: Path) -> sl.Dataset:
    made = sl.create(tmp_path / "arm", sl.Schema({"reward": pa.float32(), "action": sl.Trajectory(dim=2)}))
    for number in range(3):
        row = {"sequence_id": f"ep_{number}", "reward": number, "action": np.full((5, 2), number)}
        made.append([row], layout="archive" if number == 1 else "training")
    return made


def files(ds: sl.Dataset) -> dict[str, list[str]]:
    return {path.name: pq.read_schema(path).names for path in Path(ds.location, "data").iterdir()}


def test_only_shards_that_say_otherwise_are_written(ds: sl.Dataset) -> None:
    before = ds.version
    ds.add_column("good", pa.bool_())
    ds.fold()
    assert (before.id, ds.version.id, ds.version.operation) == (3, 5, "fold")
    kept = files(ds)
    ds.update([{"sequence_id": "ep_1", "good": True}])  # the files hold the column now
    assert len(files(ds).keys() & kept.keys()) == 2
    assert ds.fold() == ds.version
    ds.add_column("grade", pa.int8(), values={"ep_0": 3})
    assert ds.unfolded.beside == ("grade",)
    ds.fold()
    assert {row["sequence_id"]: row["grade"] for row in pq.read_table(Path(ds.location, "data")).to_pylist()} == {
        "ep_0": 3,
        "ep_1": None,
        "ep_2": None,
    }


def test_a_shard_keeps_its_layout_and_old_versions_their_rows(ds: sl.Dataset) -> None:
    old = ds.version
    truth = ds.to_arrow().sort_by("sequence_id")
    ds.rename_column("action", "act")
    ds.drop_column("reward")
    ds.fold()
    flat = {one.key: one.open().flat("act") is not None for one in ds.shards()}
    assert sorted(flat.values()) == [False, True, True]
    assert sl.open(ds.location, version=old).to_arrow().sort_by("sequence_id").equals(truth)
    ds.vacuum(older_than=timedelta(0))
    with pytest.raises(VersionNotFoundError):
        sl.open(ds.location, version=old)
    assert [row["act"][0] for row in ds.to_arrow().sort_by("sequence_id").to_pylist()] == [[n, n] for n in range(3)]


@pytest.mark.parametrize("after", ["label", "rename", "append"])
def test_a_rival_in_between(ds: sl.Dataset, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ds.add_column("good", pa.bool_(), values={"ep_0": True})
    rival = sl.open(ds.location)

    def first_the_rival(*arguments: object) -> None:
        if after == "label":
            rival.update([{"sequence_id": "ep_0", "good": False}])
        elif after == "rename":
            rival.rename_column("reward", "score")
        else:
            rival.append([{"sequence_id": "new", "reward": 1}])
        monkeypatch.setattr(folding, "keep_only", keep_only)
        keep_only(*arguments)

    keep_only = folding.keep_only
    monkeypatch.setattr(folding, "keep_only", first_the_rival)
    if after == "append":
        ds.fold()
        assert len(ds) == 4
        assert not ds.unfolded
        return
    with pytest.raises(CommitConflictError):
        ds.fold()
    assert sl.open(ds.location).version == rival.version
    ds.fold()
    assert len({frozenset(columns) for columns in files(ds).values()}) == 1
    assert ds["ep_0"]["good"] is (after != "label")
    assert not ds.unfolded


def test_an_append_that_a_rename_overtook_is_said(ds: sl.Dataset) -> None:
    ds.delete("true")
    late = sl.open(ds.location)
    with late.writer() as writer:
        writer.add("late", reward=1, action=np.ones((2, 2)))
        writer._staging.close_shard()
        ds.rename_column("action", "act")
        assert "x_seqlake" not in json.loads(Path(ds.location, "mixtrain.json").read_text())
        writer.commit()
    said = json.loads(Path(ds.location, "mixtrain.json").read_text())
    assert said["x_seqlake"] == {"renamed": {"action": "act"}}
    assert said["column_types"].keys() == {"act", "action"}


def test_wider_numbers_are_folded(ds: sl.Dataset) -> None:
    ds.widen_column("reward", pa.float64())
    assert len(ds.lagging()) == 3
    ds.fold()
    assert {pq.read_schema(path).field("reward").type for path in Path(ds.location, "data").iterdir()} == {pa.float64()}
    assert not ds.lagging()


def test_a_folder_without_its_log_is_a_dataset_again(ds: sl.Dataset) -> None:
    """What only the key explained is no part of it; what the files hold is."""
    ds.rename_column("action", "act")
    ds.add_column("cam", sl.Video(fps=10))
    shutil.rmtree(Path(ds.location, "_seqlake"))
    alone = sl.open(ds.location)
    assert alone.schema.names == ["sequence_id", "reward", "action"]
    assert alone.schema.metadata == sl.Metadata(column_types={"action": sl.Trajectory(dim=2)})
    assert not {finding.severity for finding in alone.validate(depth="rows").findings} - {"note"}
    alone.append([{"sequence_id": "later", "reward": 1}])
    assert json.loads(Path(ds.location, "mixtrain.json").read_text()) == {
        "mixtrain": "1.0",
        "column_types": {"action": {"type": "trajectory", "dim": 2}},
    }


def test_copies_do_not_carry_the_key(ds: sl.Dataset, tmp_path: Path) -> None:
    ds.rename_column("action", "act")
    before = ds.fingerprint
    copy = sl.subset(ds, tmp_path / "copy")
    assert "x_seqlake" not in json.loads((tmp_path / "copy/mixtrain.json").read_text())
    assert copy.schema == ds.schema
    assert sl.create(tmp_path / "made", ds.schema).schema == ds.schema
    assert sl.open(ds.location).fingerprint == before


def test_a_key_changed_by_hand_is_put_right(ds: sl.Dataset) -> None:
    ds.rename_column("action", "act")
    path = Path(ds.location, "mixtrain.json")
    true = json.loads(path.read_text())
    path.write_text(json.dumps({**true, "x_seqlake": {"renamed": {"action": "act"}, "dropped": ["other"]}}))
    assert not ds.table.metadata_edited()
    ds.append([{"sequence_id": "later", "reward": 1}])
    assert json.loads(path.read_text()) == true


def test_info_and_repr_say_when_it_is_due(ds: sl.Dataset) -> None:
    assert "fold is due" not in repr(ds)
    ds.rename_column("action", "act")
    assert "fold is due" in repr(ds).splitlines()[0]
    assert ds.unfolded.lines() == ["columns under older names: action (now act)"]
    assert "fold is due" not in repr(sl.open(ds.location, version=3))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", PLACES)
def test_a_lake_says_it_itself(kind: str, tmp_path: Path) -> None:
    ds = sl.create(PLACES[kind].format(folder=tmp_path, name="ds"), sl.Schema({"reward": pa.float32()}))
    ds.append([{"sequence_id": f"ep_{n}", "reward": n} for n in range(3)])
    ds.add_column("good", pa.bool_(), values={"ep_1": True})
    truth = ds.to_arrow().to_pylist()
    ds.fold()
    assert not ds.unfolded
    assert ds.to_arrow().to_pylist() == truth
    assert ds.fold() == ds.version

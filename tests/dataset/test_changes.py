"""Rows that are there already: what changes, what stays, which bytes are touched, who wins."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqlake.dataset import opening
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.writing.ingest import File
from seqlake.errors import (
    CommitConflictError,
    DuplicateSequenceError,
    QueryError,
    SchemaMismatchError,
    SequenceNotFoundError,
    ValidationError,
    VersionNotFoundError,
)
from seqlake.spec.column_types import Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.testing import samples

EPISODES = {e["sequence_id"]: e for e in samples.arm_episodes(9)}


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return samples.arm_dataset(tmp_path / "arm", count=9, rows_per_shard=3)


def shard_names(ds: Dataset) -> list[str]:
    return [shard.key.partition("#")[0] for shard in ds.shards()]


def column(ds: Dataset, name: str) -> dict[str, object]:
    table = ds.select("sequence_id", name).to_arrow()
    return dict(zip(*(table.column(i).to_pylist() for i in (0, 1)), strict=True))


def check_signals(ds: Dataset) -> None:
    """Every signal of the sample episodes that are left, bit for bit, and the same rows for every reader."""
    for sequence in ds:
        if sequence.id in EPISODES:
            for name in ("action", "obs_state"):
                assert np.array_equal(sequence[name], EPISODES[sequence.id][name])
    assert opening.open(ds.location).to_arrow().equals(ds.to_arrow())
    assert not opening.open(ds.location).validate(depth="files").errors


def signal_files(ds: Dataset) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in Path(ds.location, "data").glob("*.parquet")}


class Meanwhile:
    """A table on which somebody else commits between the beginning of a change and its end."""

    def __init__(self, table: object, rival: object) -> None:
        self._table, self._rival = table, rival

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def begin(self, *args: object) -> object:
        transaction = self._table.begin(*args)
        rival, self._rival = self._rival, None
        if rival is not None:
            rival()
        return transaction


# ---- update


def test_a_number_of_days_is_no_timedelta(ds: Dataset) -> None:
    with pytest.raises(TypeError, match=r"older_than is a timedelta, as in timedelta\(days=7\), found 7"):
        ds.vacuum(older_than=7)


def test_update_rewrites_only_the_shards_it_touches(ds: Dataset) -> None:
    before = shard_names(ds)
    version = ds.update(
        [{"sequence_id": "ep_0004", "reward": -1.5, "task": "new"}, {"sequence_id": "ep_0003", "task": None}]
    )
    assert (version.operation, version.rows) == ("upsert", 9)
    after = shard_names(ds)
    assert len(set(before) & set(after)) == 2
    assert column(ds, "reward")["ep_0004"] == -1.5
    assert column(ds, "task")["ep_0004"] == "new"
    tasks = {one: e["task"] for one, e in EPISODES.items()} | {"ep_0004": "new", "ep_0003": None}
    assert column(ds, "task") == tasks
    assert column(ds, "reward") == {one: e["reward"] for one, e in EPISODES.items()} | {"ep_0004": -1.5}
    check_signals(ds)


def test_labels_rewrite_no_signal(ds: Dataset) -> None:
    """Added, filled and changed again: the shards stay the files they were."""
    before = signal_files(ds)
    ds.add_column("label", pa.string())
    ds.update([{"sequence_id": "ep_0001", "label": "good"}, {"sequence_id": "ep_0008", "label": "bad"}])
    ds.update(pa.table({"sequence_id": ["ep_0002", "ep_0008"], "label": ["fine", None]}))
    assert signal_files(ds) == before
    labels = dict.fromkeys(EPISODES) | {"ep_0001": "good", "ep_0002": "fine"}
    assert column(ds, "label") == labels
    assert list(column(ds, "label")) == list(EPISODES)
    check_signals(ds)
    ds.update([{"sequence_id": "ep_0001", "label": "best", "reward": 0.0}])
    assert column(ds, "label") == labels | {"ep_0001": "best"}
    assert len(signal_files(ds).items() & before.items()) == 2
    check_signals(ds)


def test_update_refuses_what_it_cannot_do(ds: Dataset) -> None:
    before = ds.version
    for data, kind, message in [
        (
            [{"sequence_id": "nobody", "reward": 1}],
            SequenceNotFoundError,
            "1 of 1 ids .* 'nobody'; nothing was changed",
        ),
        ([{"sequence_id": "ep_0001", "action": np.zeros((1, 12))}], SchemaMismatchError, "upsert"),
        ([{"sequence_id": "ep_0001", "rewrad": 1}], SchemaMismatchError, "did you mean 'reward'"),
        ([{"sequence_id": "ep_0001", "reward": "1"}], SchemaMismatchError, "expected float"),
        ([{"sequence_id": "ep_0001"}, {"sequence_id": "ep_0001"}], DuplicateSequenceError, "ep_0001"),
        ([{"reward": 1}], SchemaMismatchError, "expected a 'sequence_id'"),
    ]:
        with pytest.raises(kind, match=message):
            ds.update(data)
    assert opening.open(ds.location).version == before
    assert ds.update([]) == before
    assert ds.update([{"sequence_id": "ep_0001"}]) == before
    assert ds.vacuum(older_than=timedelta(0), dry_run=True) == []


# ---- upsert


def test_upsert_changes_and_adds(ds: Dataset) -> None:
    rows = [
        {"sequence_id": "new", "task": "t", "action": np.ones((4, 12), np.float32)},
        {"sequence_id": "ep_0005", "action": np.zeros((2, 12), np.float32), "reward": 7.0},
    ]
    assert ds.upsert(rows).rows == 10
    assert ds["ep_0005"]["action"].shape == (2, 12)
    assert ds["ep_0005"]["length"] == 2
    assert ds["ep_0005"]["task"] == EPISODES["ep_0005"]["task"]
    assert np.array_equal(ds["ep_0005"]["obs_state"], EPISODES["ep_0005"]["obs_state"])
    assert (ds["new"]["length"], ds["new"]["reward"], ds["new"]["obs_state"]) == (4, None, None)
    others = {one: e["reward"] for one, e in EPISODES.items()} | {"ep_0005": 7.0, "new": None}
    assert column(ds, "reward") == others
    ds.upsert(pa.table({"sequence_id": ["new", "newer"], "reward": [1.0, 2.0]}))
    assert column(ds, "reward") == others | {"new": 1.0, "newer": 2.0}


def test_files_of_changed_rows_survive_collection(tmp_path: Path) -> None:
    schema = Schema({"cam": Video(fps=30), "n": pa.int64(), "x": Trajectory(dim=1)})
    ds = opening.create(tmp_path / "ds", schema)
    clips = []
    for number in range(4):
        clips.append(tmp_path / f"{number}.mp4")
        clips[-1].write_bytes(bytes([number]) * 10)
    with ds.writer(rows_per_shard=2) as writer:
        for number in range(3):
            writer.add(str(number), cam=File(clips[number]), n=number)
    ds.update([{"sequence_id": "0", "n": 5}])
    ds.upsert([{"sequence_id": "1", "cam": File(clips[3])}, {"sequence_id": "late", "cam": File(clips[0])}])
    ds.update([{"sequence_id": "1", "n": 7}])
    removed = ds.vacuum(older_than=timedelta(0))
    found = {one: Path(ds.location, str(path)).read_bytes()[0] for one, path in column(ds, "cam").items()}
    assert found == {"0": 0, "1": 3, "2": 2, "late": 0}
    assert sum(path.startswith("files/") for path in removed) == 1
    assert {f.code for f in ds.validate(depth="files")} == {"F409"}  # there, and no videos
    with pytest.raises(SchemaMismatchError, match="a File cannot be copied in here"):
        ds.update([{"sequence_id": "1", "cam": File(clips[3])}])


# ---- delete


def test_delete_touches_only_its_shards(ds: Dataset) -> None:
    before = shard_names(ds)
    assert ds.delete(ids=["ep_0003", "ep_0005"]).rows == 7
    assert len(set(before) & set(shard_names(ds))) == 2
    assert sorted(column(ds, "task")) == [one for one in EPISODES if one not in {"ep_0003", "ep_0005"}]
    check_signals(ds)
    assert ds.delete(ids=["ep_0000", "ep_0001", "ep_0002"]).rows == 4
    assert len(ds.shards()) == 2
    check_signals(ds)


def test_delete_by_condition_and_what_it_says(ds: Dataset) -> None:
    gone = {one for one, e in EPISODES.items() if e["task"] == "pick"}
    assert ds.delete("task = 'pick'").operation == "delete"
    assert set(column(ds, "task")) == set(EPISODES) - gone
    version = ds.version
    assert ds.delete("task = 'pick'") == version
    assert ds.delete(ids=[]) == version
    with pytest.raises(QueryError):
        ds.delete("tusk = 'pick'")
    with pytest.raises(SequenceNotFoundError, match="nothing was deleted"):
        ds.delete(ids=["nobody"])
    with pytest.raises(ValueError, match="Say which rows"):
        ds.delete()
    ds.delete("true")
    assert len(ds) == 0
    ds.append(list(samples.arm_episodes(2)))
    check_signals(ds)


@pytest.mark.parametrize("options", [{"layout": "archive"}, {"fixed_size_inner": True}, {"raw": True}])
def test_every_layout_is_changed_alike(tmp_path: Path, options: dict[str, object]) -> None:
    ds = samples.arm_dataset(tmp_path / "arm", count=9, rows_per_shard=5, **options)
    flat = [shard.open().flat("action") is not None for shard in ds.shards()]
    ds.update([{"sequence_id": "ep_0001", "reward": 0.0}])
    ds.delete(ids=["ep_0006"])
    ds.upsert([{"sequence_id": "ep_0002", "task": "x"}])
    assert [shard.open().flat("action") is not None for shard in ds.shards()] == flat
    check_signals(ds)


# ---- rivals


def test_two_who_label_the_same_shard_do_not_overwrite_each_other(ds: Dataset) -> None:
    ds.add_column("label", pa.string())
    rival = opening.open(ds.location)
    mine = opening.open(ds.location)
    mine.table = Meanwhile(mine.table, lambda: rival.update([{"sequence_id": "ep_0000", "label": "theirs"}]))
    with pytest.raises(CommitConflictError, match="version 3 .* changed label of the same shard"):
        mine.update([{"sequence_id": "ep_0001", "label": "mine"}])
    mine.update([{"sequence_id": "ep_0001", "label": "mine"}])
    assert column(mine, "label") == dict.fromkeys(EPISODES) | {"ep_0000": "theirs", "ep_0001": "mine"}


def test_a_label_put_beside_a_shard_is_not_lost_when_the_shard_is_rewritten(ds: Dataset) -> None:
    ds.add_column("label", pa.string())
    rival = opening.open(ds.location)
    mine = opening.open(ds.location)
    mine.table = Meanwhile(mine.table, lambda: rival.update([{"sequence_id": "ep_0000", "label": "theirs"}]))
    with pytest.raises(CommitConflictError, match="changed label"):
        mine.delete(ids=["ep_0001"])
    mine.delete(ids=["ep_0001"])
    assert column(mine, "label")["ep_0000"] == "theirs"


def test_a_shard_that_a_rival_rewrote(ds: Dataset) -> None:
    rival = opening.open(ds.location)
    mine = opening.open(ds.location)
    mine.table = Meanwhile(mine.table, lambda: rival.delete(ids=["ep_0000"]))
    with pytest.raises(CommitConflictError, match="replaced or removed 1 of the shards"):
        mine.update([{"sequence_id": "ep_0001", "reward": 0.0}])
    assert mine.update([{"sequence_id": "ep_0001", "reward": 0.0}]).rows == 8


def test_a_rival_elsewhere_is_no_conflict(ds: Dataset) -> None:
    rival = opening.open(ds.location)
    mine = opening.open(ds.location)
    mine.table = Meanwhile(mine.table, lambda: rival.delete(ids=["ep_0008"]))
    assert mine.update([{"sequence_id": "ep_0001", "reward": 0.0}]).rows == 8


# ---- the object, its versions


def test_the_object_moves_on_and_pinned_ones_stay(ds: Dataset) -> None:
    pinned = opening.open(ds.location, version=ds.version)
    chosen, sequence = ds.where("reward > 0"), ds["ep_0001"]
    count, table = len(chosen), chosen.to_arrow()
    ds.delete("true")
    assert (len(ds), len(pinned), len(chosen)) == (0, 9, count)
    assert chosen.to_arrow().equals(table)
    assert np.array_equal(sequence["action"], EPISODES["ep_0001"]["action"])
    other = opening.open(ds.location)
    other.append(list(samples.arm_episodes(1)))
    assert len(ds) == 0
    assert ds.refresh().rows == len(ds) == 1


def test_versions_rollback_collect(ds: Dataset) -> None:
    first = ds.version
    ds.delete("reward < 1000")
    assert [v.operation for v in ds.versions()] == ["create", "append", "delete"]
    assert ds.rollback(first).operation == "rollback"
    check_signals(ds)
    assert len(ds) == 9
    assert any(name.startswith("_seqlake/retired/") for name in ds.vacuum(older_than=timedelta(0), dry_run=True))
    ds.vacuum(older_than=timedelta(0))
    with pytest.raises(VersionNotFoundError):
        opening.open(ds.location, version=first)
    check_signals(ds)


def test_a_plain_folder_is_adopted_by_its_first_change(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"sequence_id": ["a", "b"], "x": [[[1.0, 2.0]], [[3.0, 4.0]]], "n": [1, 2]}),
                   tmp_path / "data" / "one.parquet")  # fmt: skip
    (tmp_path / "mixtrain.json").write_text(
        '{"mixtrain": "1.0", "column_types": {"x": {"type": "trajectory", "dim": 2}}}'
    )
    ds = opening.open(tmp_path)
    assert ds.version.id == -1
    ds.update([{"sequence_id": "b", "n": 5}])
    ds.append([{"sequence_id": "c", "x": [[5.0, 6.0]]}])
    assert column(ds, "n") == {"a": 1, "b": 5, "c": None}
    assert ds["b"]["x"].tolist() == [[3.0, 4.0]]
    assert [v.operation for v in ds.versions()] == ["adopt", "upsert", "append"]


def test_a_stranger_is_taken_in(ds: Dataset) -> None:
    import pyarrow.parquet as pq

    more = pa.Table.from_pylist([{"sequence_id": "late", "task": "x", "action": [[0.0] * 12]}])
    pq.write_table(more, Path(ds.location, "data", "late.parquet"))
    assert [f.code for f in ds.validate(depth="metadata")] == ["T503"]
    assert ds.adopt().rows == 10
    assert ds["late"]["action"].shape == (1, 12)


def test_a_dataset_pickles_and_names_no_secret(ds: Dataset) -> None:
    import pickle

    secret = Dataset(ds.table, ds.source, location=ds.location, storage={"secret_access_key": "hush"})
    assert "hush" not in repr(secret)
    again = pickle.loads(pickle.dumps(ds))
    assert again.to_arrow().equals(ds.to_arrow())
    again.delete(ids=["ep_0000"])
    assert (len(again), len(ds)) == (8, 9)


def test_values_are_checked_before_anything_is_written(ds: Dataset) -> None:
    with pytest.raises(ValidationError, match="int64 does not fit"):
        ds.upsert(pa.table({"sequence_id": ["a", "b"], "reward": [2**40 + 1, 2]}))
    assert len(opening.open(ds.location)) == 9


def test_the_old_name_of_vacuum_warns(ds: Dataset) -> None:
    with pytest.warns(DeprecationWarning, match="vacuum"):
        assert ds.collect(dry_run=True) == ds.vacuum(dry_run=True)

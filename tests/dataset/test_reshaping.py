"""New datasets from old ones: the same values, files that come along, nothing left behind on a mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset import opening, reshaping
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.reshaping.merging import merge, repack, split, subset
from seqlake.dataset.validation import validate
from seqlake.dataset.writing.ingest import File
from seqlake.errors import (
    ColumnNotFoundError,
    DatasetExistsError,
    DuplicateSequenceError,
    SchemaMismatchError,
    UnsafeReferenceError,
    ValidationError,
)
from seqlake.spec.column_types import Image, Trajectory, Video
from seqlake.spec.schema import Column, Schema
from seqlake.testing import samples

SHARED = pa.struct([("url", pa.string()), ("first_frame", pa.int64())])
FILMED = Schema(
    {
        "n": pa.int64(),
        "cam": Video(fps=30),
        "stills": Image(frames="files"),
        "clip": Column("clip", SHARED, Video()),
    }
)


@pytest.fixture
def arm(tmp_path: Path) -> Dataset:
    return samples.arm_dataset(tmp_path / "arm", count=10, rows_per_shard=4)


@pytest.fixture
def filmed(tmp_path: Path) -> Dataset:
    ds = opening.create(tmp_path / "filmed", FILMED)
    shared = tmp_path / "filmed" / "shared.mp4"
    shared.write_bytes(b"shared")
    with ds.writer() as writer:
        for number in range(4):
            clip = tmp_path / f"{number}.mp4"
            clip.write_bytes(b"clip %d" % number)
            writer.add(str(number), n=number, cam=File(clip), stills=[File(clip), "https://host/x.png"],
                       clip={"url": "shared.mp4", "first_frame": number})  # fmt: skip
    return ds


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "options",
    [{}, {"layout": "archive"}, {"fixed_size_inner": True}, {"rows_per_shard": 3}, {"rows_per_shard": 1},
     {"bytes_per_shard": 1}],
    ids=str,
)  # fmt: skip
def test_repack_keeps_every_value(arm: Dataset, tmp_path: Path, options: dict[str, object]) -> None:
    arm.add_column("label", pa.string(), values={"ep_0003": "x"})
    arm.rename_column("reward", "score")
    arm.delete(ids=["ep_0005"])
    made = repack(arm, tmp_path / "out", **options)
    assert made.to_arrow().equals(arm.to_arrow())
    assert made.schema == arm.schema
    assert [v.operation for v in made.versions()] == ["create", "append"]
    assert (made.shards()[0].open().flat("action") is None) == (options.get("layout") == "archive")
    stored = pq.read_schema(next((tmp_path / "out" / "data").glob("*.parquet")))
    assert pa.types.is_fixed_size_list(stored.field("action").type.value_type) == bool(options.get("fixed_size_inner"))
    assert {"label", "score"} <= set(stored.names)
    assert made.validate(depth="files").findings == ()
    if "rows_per_shard" in options:
        assert {shard.rows for shard in made.shards()[:-1]} == {options["rows_per_shard"]}


def test_repack_takes_foreign_parquet(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    table = pa.table({"sequence_id": ["a", "b"], "x": [[[1.0, 2.0]], None], "n": [1, 2]})
    pq.write_table(table, tmp_path / "theirs" / "t.parquet", compression="snappy")
    made = repack(opening.scan(tmp_path / "theirs"), tmp_path / "ours")
    assert made.shards()[0].open().flat("x") is not None
    assert made.to_arrow().to_pylist() == table.to_pylist()


def test_subset_of_rows_and_columns(arm: Dataset, tmp_path: Path) -> None:
    chosen = arm.where("task = 'pick'").select("sequence_id", "action")
    made = subset(chosen, tmp_path / "out")
    assert made.to_arrow().equals(chosen.to_arrow())
    assert made.schema.names == ["sequence_id", "action"]
    assert made.schema["action"].dim == 12
    empty = subset(arm.where("reward > 1000"), tmp_path / "empty")
    assert len(empty) == 0
    assert empty.schema == arm.schema
    with pytest.raises(SchemaMismatchError, match="Select the id column too"):
        subset(arm.select("action"), tmp_path / "no-id")
    assert not (tmp_path / "no-id").exists()


@pytest.mark.parametrize("files", ["copy", "hardlink", "reference"])
def test_files_come_along(filmed: Dataset, tmp_path: Path, files: str) -> None:
    made = subset(filmed.where("n >= 2"), tmp_path / "out", files=files)
    for row in made.to_arrow().to_pylist():
        clip = b"clip " + row["sequence_id"].encode()
        found = [row["cam"], row["stills"][0], row["clip"]["url"]]
        paths = [Path(one) if files == "reference" else tmp_path / "out" / one for one in found]
        assert [path.read_bytes() for path in paths] == [clip, clip, b"shared"]
        assert row["stills"][1] == "https://host/x.png"
        assert row["clip"]["first_frame"] == row["n"]
        assert (paths[0].stat().st_nlink > 1) == (files == "hardlink")
    urls = {row["url"] for row in made.select("clip").to_arrow().column(0).to_pylist()}
    assert len(urls) == 1, "a shared file is copied once"
    named = validate(made.select("sequence_id", "cam", "clip"), depth="files")
    assert {f.code for f in named.errors} <= {"F409"}  # there, and no videos
    copied = [path for path in (tmp_path / "out").rglob("files/**/*") if path.is_file()]
    assert len(copied) == (0 if files == "reference" else 5)


def test_a_missing_or_outside_file_leaves_no_half_dataset(filmed: Dataset, tmp_path: Path) -> None:
    filmed.update([{"sequence_id": "3", "cam": "gone.mp4"}])
    with pytest.raises(ValidationError, match="'3', column 'cam': the file 'gone.mp4' is not there"):
        repack(filmed, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    filmed.update([{"sequence_id": "3", "cam": "../0.mp4"}])
    with pytest.raises(UnsafeReferenceError, match="leaves the dataset's root"):
        repack(filmed, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="'copy', 'hardlink' or 'reference'"):
        repack(filmed, tmp_path / "out", files="move")
    assert not (tmp_path / "out").exists()


def test_merge(arm: Dataset, tmp_path: Path) -> None:
    first, second = arm.where("reward > 35"), arm.where("reward <= 35")
    made = merge([first, second], tmp_path / "out")
    assert made.to_arrow().equals(pa.concat_tables([first.to_arrow(), second.to_arrow()]))
    with pytest.raises(DuplicateSequenceError, match="ep_0"):
        merge([arm, arm], tmp_path / "twice")
    assert not (tmp_path / "twice").exists()
    with pytest.raises(ValueError, match="at least one"):
        merge([], tmp_path / "none")


def test_merge_names_the_columns_that_differ(arm: Dataset, tmp_path: Path) -> None:
    changed = {"reward": pa.float64(), "extra": pa.int8(), "action": Trajectory(dim=7)}
    other = opening.create(tmp_path / "other", arm.schema.with_columns(changed).without("task"))
    with pytest.raises(SchemaMismatchError) as caught:
        merge([arm, other], tmp_path / "out")
    for line in ("task: is missing", "extra: was not expected", "reward: expected float, found double",
                 "action: expected list<item: fixed_size_list<item: float>[12]>, found"):  # fmt: skip
        assert line in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_merge_refuses_new_names_for_columns_that_are_not_there(arm: Dataset, tmp_path: Path) -> None:
    parts = [arm.where("reward > 35"), arm.where("reward <= 35").select("sequence_id", "task")]
    for columns in ({"rewrad": "r"}, [{}, {"reward": "r"}]):
        with pytest.raises(ColumnNotFoundError, match="No column 'rew"):
            merge(parts, tmp_path / "out", union=True, columns=columns)
    assert not (tmp_path / "out").exists()
    assert "r" in merge(parts, tmp_path / "out", union=True, columns={"reward": "r"}).schema  # one of them has it


def test_merge_of_different_columns(arm: Dataset, tmp_path: Path) -> None:
    """The union, null where a part lacks a column, numbers in the wider type, files and times along."""
    schema = Schema(
        {
            "task": pa.string(),
            "trial": pa.int32(),
            "reward": pa.float64(),
            "force": Trajectory(dim=2, fps=10, timestamps="when"),
            "when": Trajectory(dim=1, dtype=pa.float64()),
            "notes": pa.string(),
        }
    )
    other = opening.create(tmp_path / "other", schema)
    with other.writer() as writer:
        for number in range(3):
            times = np.arange(4)[:, None] / 10
            writer.add(f"ep_000{number}", task="push", trial=number, reward=0.1, force=np.ones((4, 2)), when=times)
    first = arm.where("reward > 35")
    out = merge(
        [first, other], tmp_path / "out", union=True, columns={"when": "force_times"}, prefixes=["arm/", "push/"]
    )
    assert out.schema["reward"].arrow == pa.float64()
    assert out.schema["force"].type.get("timestamps") == "force_times"
    assert out.schema["action"] == arm.schema["action"]
    rows = out.to_arrow()
    assert rows["sequence_id"].to_pylist() == [
        *(f"arm/{one.id}" for one in first),
        *(f"push/{one.id}" for one in other),
    ]
    mine = rows.slice(0, len(first))
    for name in arm.schema.names:
        if name != "sequence_id" and arm.schema[name].category != "file":
            assert mine[name].cast(first.to_arrow()[name].type).equals(first.to_arrow()[name]), name
    theirs = rows.slice(len(first))
    assert theirs["force_times"].to_pylist() == other.to_arrow()["when"].to_pylist()
    assert theirs["action"].null_count == 3
    assert mine["trial"].null_count == len(first)
    assert out.validate(depth="files").ok


def test_a_union_that_would_lose_values_is_refused(arm: Dataset, tmp_path: Path) -> None:
    other = opening.create(
        tmp_path / "other", Schema({"task": pa.int64(), "reward": pa.int64(), "action": pa.string()})
    )
    with pytest.raises(SchemaMismatchError) as caught:
        merge([arm, other], tmp_path / "out", union=True)
    assert all(f"  {name}: " in str(caught.value) for name in ("task", "reward", "action"))
    with pytest.raises(SchemaMismatchError, match="have a sequence_id, these have none"):
        merge([arm, other.select("task")], tmp_path / "out", union=True, columns=[{}, {"task": "other"}])
    for wrong in ({"prefixes": ["a"]}, {"prefixes": "ab"}, {"columns": [{}]}, {"columns": ["a", "b"]}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            merge([arm, other], tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_split(arm: Dataset, tmp_path: Path) -> None:
    parts = split(arm, tmp_path / "parts", by="task")
    assert list(parts) == sorted(set(samples.TASKS))
    for name, part in parts.items():
        assert part.location == str(tmp_path / "parts" / name)
        assert part.to_arrow().equals(arm.where(f"task = '{name}'").to_arrow())
    with pytest.raises(SchemaMismatchError, match="assign_splits"):
        split(arm, tmp_path / "other")
    arm.update([{"sequence_id": "ep_0001", "task": None}, {"sequence_id": "ep_0002", "task": "a/b"}])
    with pytest.raises(ValidationError, match="1 null and 'a/b'"):
        split(arm, tmp_path / "other", by="task")
    assert not (tmp_path / "other").exists()


def test_an_occupied_place_is_refused(arm: Dataset, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    repack(arm, tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path / "out", tmp_path / "arm", tmp_path):
        with pytest.raises(DatasetExistsError, match="must be new or empty"):
            repack(arm, place)
    assert sorted(tmp_path.rglob("*")) == before
    np.testing.assert_array_equal(opening.open(tmp_path / "out")["ep_0001"]["action"], arm["ep_0001"]["action"])


@pytest.mark.parametrize("wrong", ["a path", 5, None])
def test_what_is_no_dataset_is_named(tmp_path: Path, wrong: object) -> None:
    out = tmp_path / "out"
    for verb in (
        lambda: sl.merge([wrong], out),
        lambda: sl.merge(wrong, out),
        lambda: reshaping.repack(wrong, out),
        lambda: reshaping.subset(wrong, out),
        lambda: reshaping.trim(wrong, out, start=1),
        lambda: reshaping.segment(wrong, out, length=1),
        lambda: sl.resample(wrong, out, fps=5),
        lambda: sl.statistics(wrong),
        lambda: sl.compact(wrong),
        lambda: sl.assign_splits(wrong, {"a": 1}),
    ):
        with pytest.raises(ValueError, match="expected (an open dataset|a list of open datasets)"):
            verb()
    assert not out.exists()


@pytest.mark.parametrize("wrong", [5, "act", [5], {"action": 5}, {5: "action"}])
def test_new_names_that_are_none_are_refused(arm: Dataset, tmp_path: Path, wrong: object) -> None:
    with pytest.raises(ValueError, match="columns: expected new names by old ones"):
        sl.merge([arm], tmp_path / "out", columns=wrong)

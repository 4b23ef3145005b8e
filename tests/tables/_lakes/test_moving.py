"""From one home to another and back: rows equal, shards taken over where they can be."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import DuplicateSequenceError, UnsafeReferenceError
from seqlake.tables import standalone

pytest.importorskip("deltalake")

SCHEMA = {"task": pa.string(), "reward": pa.float32(), "action": sl.Trajectory(dim=3), "notes": sl.Video()}


def fill(ds, *, film=None):
    for commit in range(2):
        with ds.writer() as writer:
            for number in range(3 * commit, 3 * commit + 3):
                writer.add(
                    f"ep_{number}",
                    task="pick" if number % 2 else "place",
                    reward=float(number),
                    action=np.full((number + 1, 3), number, np.float32),
                    **({} if film is None else {"notes": sl.File(str(film))}),
                )
    return ds


HOMES = {"standalone": "{}/from", "delta": "delta:{}/from"}


def inodes(root):
    return {path.stat().st_ino for path in Path(root).rglob("*part-*") if path.is_file()}


@pytest.mark.parametrize(("source", "target"), [("standalone", "delta"), ("delta", "standalone"), ("delta", "delta")])
def test_shards_are_taken_over_as_they_are(tmp_path, source, target, caplog):
    ds = fill(sl.create(HOMES[source].format(tmp_path), SCHEMA))
    caplog.set_level(logging.INFO)
    out = sl.convert(ds, HOMES[target].format(tmp_path / "to"), adopt=True)
    assert out.to_arrow().equals(ds.to_arrow())
    assert inodes(out.table.root) <= inodes(ds.table.root), "a shard was written anew"
    assert "2 shards taken over" in caplog.text
    assert out.schema == ds.schema
    assert out.validate(depth="files").findings == ds.validate(depth="files").findings
    # Each is a table of its own from here on.
    with pytest.raises(DuplicateSequenceError):
        out.append([{"sequence_id": "ep_1"}])
    out.delete(ids=["ep_1"])
    out.vacuum(older_than=timedelta(0))
    assert len(sl.open(ds.location)) == 6
    assert ds["ep_1"]["action"].shape == (2, 3)


@pytest.mark.parametrize(("source", "target"), [("standalone", "delta"), ("delta", "standalone"), ("delta", "delta")])
def test_without_adopt_shards_are_written_anew(tmp_path, source, target):
    ds = fill(sl.create(HOMES[source].format(tmp_path), SCHEMA))
    out = sl.convert(ds, HOMES[target].format(tmp_path / "to"), workers=1)
    assert out.to_arrow().equals(ds.to_arrow())
    assert not inodes(out.table.root) & inodes(ds.table.root)


def test_files_of_a_lake_go_along_with_adopted_shards(tmp_path):
    film = tmp_path / "film.mp4"
    film.write_bytes(b"moving pictures")
    ds = fill(sl.create(f"delta:{tmp_path}/from", SCHEMA), film=film)
    out = sl.convert(ds, f"delta:{tmp_path}/to", adopt=True)
    assert inodes(out.table.root) <= inodes(ds.table.root)
    out.vacuum(older_than=timedelta(0))
    for reference in out.to_arrow().column("notes").to_pylist():
        assert Path(out.table.root, reference).read_bytes() == b"moving pictures"
    ds.delete("true")
    ds.vacuum(older_than=timedelta(0))
    for reference in out.to_arrow().column("notes").to_pylist():
        assert Path(out.table.root, reference).read_bytes() == b"moving pictures"


def test_files_within_reach_of_a_vacuum_are_moved_out_of_it(tmp_path, caplog):
    film = tmp_path / "film.mp4"
    film.write_bytes(b"moving pictures")
    ds = fill(sl.create(tmp_path / "from", SCHEMA), film=film)
    caplog.set_level(logging.INFO)
    out = sl.convert(ds, f"delta:{tmp_path}/to", adopt=True)
    assert "cleanup could remove them" in caplog.text
    references = out.to_arrow().column("notes").to_pylist()
    assert all(reference.startswith("_seqlake/files/") for reference in references)
    assert all(Path(out.table.root, reference).read_bytes() == b"moving pictures" for reference in references)


def test_what_cannot_be_adopted_is_written_anew_with_its_rows(tmp_path, caplog):
    ds = fill(sl.create(tmp_path / "from", SCHEMA))
    ds.rename_column("reward", "score")
    with ds.writer(fixed_size_inner=True) as writer:
        writer.add("ep_9", action=np.ones((2, 3), np.float32))
    caplog.set_level(logging.INFO)
    out = sl.convert(ds, f"delta:{tmp_path}/to", adopt=True)
    assert out.to_arrow().equals(ds.to_arrow())
    assert "renamed" in caplog.text
    assert "fixed size" in caplog.text


def test_shards_of_several_partitions_are_divided(tmp_path, caplog):
    ds = fill(sl.create(tmp_path / "from", SCHEMA))
    lake = sl.create(f"delta:{tmp_path}/to", SCHEMA, partition_by=["task"])
    caplog.set_level(logging.INFO)
    out = sl.convert(ds, f"delta:{tmp_path}/to", adopt=True)
    assert "several partitions by task" in caplog.text
    assert {one.id: one["task"] for one in out} == {one.id: one["task"] for one in ds}
    assert lake.table.partition_by == ["task"]
    again = sl.create(f"delta:{tmp_path}/again", SCHEMA, partition_by=["task"])
    sl.convert(out, f"delta:{tmp_path}/again", adopt=True)
    assert inodes(again.table.root) == inodes(out.table.root)


def test_shards_move_between_buckets(tmp_path, s3_bucket):
    uri, storage = s3_bucket
    ds = fill(sl.create(f"{uri}/from", SCHEMA, storage=storage))
    lake = sl.convert(ds, f"delta:{uri}/to", adopt=True, storage=storage)
    assert lake.to_arrow().equals(ds.to_arrow())
    back = sl.convert(lake, tmp_path / "back", adopt=True)
    assert back.to_arrow().equals(ds.to_arrow())


def test_a_shard_of_one_partition_is_adopted_into_it(tmp_path):
    ds = fill(sl.create(f"delta:{tmp_path}/from", SCHEMA, partition_by=["task"]))
    out = sl.convert(ds, tmp_path / "to", adopt=True)
    assert inodes(out.table.root) <= inodes(ds.table.root)
    assert out.to_arrow().equals(ds.to_arrow())
    assert standalone.matches(str(tmp_path / "to"))


def test_a_conversion_that_fails_leaves_no_lake_behind(tmp_path):
    rows = pa.table({"sequence_id": ["a", "a"]})
    with pytest.raises(DuplicateSequenceError):
        sl.convert(sl.scan(rows), f"delta:{tmp_path}/to", workers=1)
    assert not [path for path in (tmp_path / "to").rglob("*") if path.is_file()]


def test_a_link_out_of_the_source_is_refused_and_nothing_is_left(tmp_path):
    film, secret = tmp_path / "film.mp4", tmp_path / "secret"
    film.write_bytes(b"moving pictures")
    secret.write_bytes(b"a key")
    ds = fill(sl.create(f"delta:{tmp_path}/from", SCHEMA), film=film)
    place = Path(ds.table.root, ds.to_arrow().column("notes").to_pylist()[0])
    place.unlink()
    place.symlink_to(secret)
    with pytest.raises(UnsafeReferenceError, match="leaves the dataset's root"):
        sl.convert(ds, f"delta:{tmp_path}/to", adopt=True)
    assert not [path for path in (tmp_path / "to").rglob("*") if path.is_file()]


def test_of_a_link_the_file_is_taken_over(tmp_path):
    ds = fill(sl.create(tmp_path / "from", SCHEMA))
    for number, path in enumerate(sorted(Path(ds.location, "data").iterdir())):
        kept = tmp_path / ("elsewhere" if number else "from") / f"kept{number}"
        kept.parent.mkdir(exist_ok=True)
        path.rename(kept)
        path.symlink_to(kept)
    out = sl.convert(sl.open(ds.location, allow_outside=True), f"delta:{tmp_path}/to", adopt=True)
    taken = list(Path(out.table.root).rglob("part-*.parquet"))
    assert not any(path.is_symlink() for path in taken)
    assert sorted(path.stat().st_nlink for path in taken) == [1, 2]
    assert out.to_arrow().equals(sl.open(ds.location, allow_outside=True).to_arrow())


def test_a_shard_without_rows_goes_into_no_partition(tmp_path):
    ds = fill(sl.create(tmp_path / "from", SCHEMA))
    shard = next(Path(ds.location, "data").iterdir())
    pq.write_table(pq.read_table(shard).slice(0, 0), shard.parent / "empty.parquet")
    ds.adopt()
    sl.create(f"delta:{tmp_path}/to", SCHEMA, partition_by=["task"])
    out = sl.convert(ds, f"delta:{tmp_path}/to", adopt=True)
    assert {one.id: one["task"] for one in out} == {one.id: one["task"] for one in ds}

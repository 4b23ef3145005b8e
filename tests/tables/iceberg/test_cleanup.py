"""Expiry and cleanups, ours and those of other engines: nothing that a readable snapshot names is ever removed."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import VersionNotFoundError

NOW = timedelta(0)


def lying(address):
    """Every file below the table's location."""
    root = Path(address.removeprefix("iceberg:").rpartition("/")[0], "robots", "episodes")
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def data_files(address):
    return {path for path in lying(address) if path.startswith("data/")}


def orphans_as_spark_sees_them(theirs):
    """What Spark's remove_orphan_files deletes at its most aggressive.

    Everything below the location that no snapshot's metadata name, but what lies in folders whose name begins with an
    underscore or a dot.
    """
    table = theirs()
    root = Path(table.location().removeprefix("file://"))
    named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    named |= {one.statistics_path for one in table.metadata.statistics}
    for snapshot in table.metadata.snapshots:
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            named.add(manifest.manifest_path)
            named |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    kept = {one.removeprefix("file://") for one in named}
    for path in root.rglob("*"):
        hidden = any(part[0] in "._" for part in path.relative_to(root).parts)
        if path.is_file() and not hidden and str(path) not in kept:
            yield path


@pytest.fixture
def filmed(address, tmp_path):
    """Two rows with files of their own."""
    ds = sl.create(address, {"video_cam": sl.Video(), "note": sl.Text() if hasattr(sl, "Text") else sl.Video()})
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_bytes(name.encode() * 100)
    with ds.writer() as writer:
        for name in ("a", "b"):
            writer.add(name, video_cam=sl.File(tmp_path / f"{name}.mp4"))
    return ds


def media(ds):
    return {row["sequence_id"]: row["video_cam"] for row in ds.to_arrow().to_pylist()}


def test_expired_snapshots_take_their_files_along(dataset, address, make_rows):
    first = dataset.version
    old = data_files(address)
    dataset.delete("reward is null")
    dataset.append(make_rows(10, 12))
    listed = dataset.vacuum(older_than=NOW, dry_run=True)
    assert old <= data_files(address)
    removed = dataset.vacuum(older_than=NOW)
    assert set(listed) <= set(removed)
    assert data_files(address) == {file.name for file in dataset.source.state.files}
    assert len(old & data_files(address)) == 1  # the shard that no delete touched
    with pytest.raises(VersionNotFoundError):
        sl.open(address, version=first)
    assert len(sl.open(address)) == 10
    metadata = {path for path in lying(address) if path.endswith((".avro", ".puffin"))}
    assert len(metadata) <= 6  # a list, its manifests, an index and its ground


def test_tags_and_branches_keep_what_they_name(dataset, address, theirs, cells):
    before = cells(dataset)
    theirs().manage_snapshots().create_tag(dataset.version.id, "paper").commit()
    dataset.delete("task = 'pick'")
    dataset.vacuum(older_than=NOW)
    assert cells(sl.open(address, version="paper")) == before
    assert len(sl.open(address)) == 5


def test_what_is_young_enough_stays(dataset, address, cells):
    first, before = dataset.version, cells(dataset)
    dataset.delete("task = 'pick'")
    assert dataset.vacuum(older_than=timedelta(days=1)) == []
    assert cells(sl.open(address, version=first)) == before


def test_orphans_of_ours_go_and_files_of_others_stay(dataset, address, theirs):
    root = Path(theirs().location().removeprefix("file://"))
    born = int((datetime.now(UTC) - timedelta(days=1)).timestamp() * 1000)
    dead = f"{born:012x}" + "7000" + "8" + "0" * 15
    orphan = root / "data" / f"part-{dead}-0.parquet"
    index = root / "metadata" / f"{dead}-1.seqlake.puffin"
    foreign = root / "data" / "00000-0-theirs.parquet"
    for path in (orphan, index, foreign):
        path.write_bytes(b"x")
    dataset.vacuum(older_than=NOW)
    assert (orphan.exists(), index.exists(), foreign.exists()) == (False, False, True)


def test_copied_in_files_lie_where_no_cleanup_of_another_engine_looks(filmed, address, theirs):
    files = media(filmed)
    filmed.delete(ids=["a"])
    theirs().maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    gone = list(orphans_as_spark_sees_them(theirs))
    for path in gone:
        path.unlink()
    assert gone  # the shard that was rewritten, old manifests
    assert {"_seqlake"} == {Path(path).parts[0] for path in files.values()}
    fresh = sl.open(address)
    assert fresh["b"]["video_cam"].read() == b"b" * 100
    assert (Path(theirs().location().removeprefix("file://")) / files["a"]).exists()
    fresh.vacuum(older_than=NOW)  # ours knows that nobody names it any more
    assert not (Path(theirs().location().removeprefix("file://")) / files["a"]).exists()
    assert fresh["b"]["video_cam"].read() == b"b" * 100


def test_files_named_by_rows_that_another_client_rewrote_stay(filmed, address, theirs):
    before = media(filmed)
    theirs().overwrite(theirs().scan().to_arrow())
    ds = sl.open(address)
    ds.vacuum(older_than=NOW)
    assert media(ds) == before
    assert ds["a"]["video_cam"].read() == b"a" * 100


def test_an_adopted_shard_is_the_tables_own(dataset, tmp_path, cells, theirs, make_rows):
    """It is linked or copied, so that a cleanup of one table takes nothing from the other."""
    out = sl.convert(dataset, f"iceberg:{tmp_path}/to/a.b", adopt=True)
    inodes = {path.stat().st_ino for path in Path(theirs().location().removeprefix("file://"), "data").iterdir()}
    assert {path.stat().st_ino for path in Path(out.table.root, "data").iterdir()} == inodes
    before = cells(dataset)
    assert cells(out) == before
    dataset.delete("true")
    dataset.vacuum(older_than=NOW)
    assert cells(sl.open(out.location)) == before
    out.append(make_rows(70, 71))


def test_a_shard_that_numbers_its_columns_otherwise_is_written_anew(dataset, tmp_path, cells, caplog):
    dataset.drop_column("task")
    dataset.add_column("task", pa.string())
    dataset.append([{"sequence_id": "new", "task": "wave", "reward": 1.0}])
    caplog.set_level(logging.INFO)
    out = sl.convert(dataset, f"iceberg:{tmp_path}/to/a.b", adopt=True)
    assert cells(out) == cells(dataset)
    assert "field ids" in caplog.text


def test_a_writer_that_is_alive_is_not_given_up(dataset, make_rows):
    with dataset.writer() as writer:
        for row in make_rows(60, 62):
            writer.add_row(row.pop("sequence_id"), row)
        sl.open(dataset.location).vacuum(older_than=NOW)
    assert len(sl.open(dataset.location)) == 12


def test_a_table_that_is_taken_back_leaves_the_files_of_one_before_it(dataset, address, theirs, make_rows):
    table = theirs()
    table.catalog.drop_table(table.name())  # without a purge
    before = lying(address)
    again = sl.create(address, dataset.schema)
    again.append(make_rows(0, 3))
    assert data_files(address) > {path for path in before if path.startswith("data/")}
    again.table.drop()
    left = {path for path in lying(address) if not path.startswith("_seqlake/")}
    assert left == {path for path in before if not path.startswith("_seqlake/")}

"""The sequence offset index in Puffin files: registered with each snapshot, right through changes, never the truth."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.tables._lakes import foreign
from seqlake.tables.iceberg import offsets
from seqlake.versions import indexes

LENGTHS = [-1, 1, 2, 3, 4, 5, 6, -1, 8, 9]


def registered(theirs):
    """The index file of the newest snapshot."""
    table = theirs()
    (found,) = [s for s in table.metadata.statistics if s.snapshot_id == table.metadata.current_snapshot_id]
    return found


def known(theirs):
    """What the newest snapshot's index says, read by pyiceberg's own Puffin reader: shard -> rows of it."""
    from pyiceberg.table.puffin import PuffinFile

    file = PuffinFile(Path(registered(theirs).statistics_path.removeprefix("file://")).read_bytes())
    (blob,) = file.footer.blobs
    assert blob.type == "seqlake-offsets-v1"
    found = indexes.IndexFile.decode(file.get_blob_payload(blob), path="x")
    return {name: found.row(name).rows for name in found}


def live(theirs):
    location = theirs().location() + "/"
    return {
        row["file_path"].removeprefix(location): row["record_count"] for row in theirs().inspect.files().to_pylist()
    }


@pytest.fixture
def counted(monkeypatch):
    """The data files whose bytes were asked for."""
    from seqlake.tables._lakes.paths import LakeBlob

    seen = []
    real = LakeBlob._look
    monkeypatch.setattr(LakeBlob, "_look", lambda self: seen.append(self.location) or real(self))
    return seen


def test_each_commit_registers_an_index_without_blob_types(dataset, theirs):
    file = registered(theirs)
    assert file.blob_metadata == []
    path = Path(file.statistics_path.removeprefix("file://"))
    assert path.stat().st_size == file.file_size_in_bytes
    data = path.read_bytes()
    assert data[-file.file_footer_size_in_bytes :][:4] == offsets.MAGIC
    assert known(theirs) == live(theirs)


def test_lengths_and_ids_come_from_one_read_and_no_shard(dataset, address, counted, monkeypatch):
    read, real = [], offsets.read
    monkeypatch.setattr(offsets, "read", lambda store, path: read.append(path) or real(store, path))
    fresh = sl.open(address)
    assert fresh.lengths("action").tolist() == LENGTHS
    assert fresh.source.find_ids(["ep_007"]).tolist() == [-1] or len(counted) <= 1  # an equal hash is compared
    assert len(read) == 1
    counted.clear()
    sl.open(address).lengths("action")
    assert counted == []


def test_right_after_append_compaction_rollback_and_delete(dataset, theirs, make_rows):
    before = dataset.version
    dataset.append(make_rows(10, 12))
    assert known(theirs) == live(theirs)
    dataset.delete(ids=["ep_002"])
    assert known(theirs) == live(theirs)
    dataset.rollback(before)
    assert known(theirs) == live(theirs)
    assert dataset.lengths("action").tolist() == LENGTHS


def test_other_clients_shards_are_indexed_by_the_next_commit(dataset, theirs, make_rows):
    schema = theirs().scan().to_arrow().schema
    theirs().append(pa.Table.from_pylist(make_rows(20, 23), schema))
    assert sl.open(dataset.location).lengths("action").tolist() == [*LENGTHS, 20, -1, 22]
    dataset.append(make_rows(30, 31))
    assert known(theirs) == live(theirs)


@pytest.mark.parametrize("damage", ["gone", "torn", "other"])
def test_a_missing_or_damaged_index_costs_speed_and_never_truth(damage, dataset, theirs, address, cells, counted):
    for file in theirs().metadata.statistics:
        path = Path(file.statistics_path.removeprefix("file://"))
        if damage == "gone":
            path.unlink()
        else:
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2] if damage == "torn" else b"PFA1" + bytes(20))
    fresh = sl.open(address)
    assert fresh.lengths("action").tolist() == LENGTHS
    assert counted
    assert cells(fresh) == cells(theirs().scan().to_arrow())
    fresh.append([{"sequence_id": "new"}])
    assert known(theirs) == live(theirs)


def test_the_index_grows_in_two_files_and_both_survive_expiry(address, theirs, monkeypatch):
    monkeypatch.setattr(offsets, "_FEW", 3)
    ds = sl.create(address, {"action": sl.Trajectory(dim=1)})
    for number in range(11):
        ds.append([{"sequence_id": f"s{number}", "action": [[0.0]] * number}])
    data = Path(registered(theirs).statistics_path.removeprefix("file://")).read_bytes()
    (blob,) = offsets.decode(data, path="x")
    ground = blob.properties[offsets.GROUND]
    assert 0 < len(known(theirs)) < 11
    ds.vacuum(older_than=timedelta(0))
    assert Path(ground.removeprefix("file://")).exists()
    assert sl.open(address).lengths("action").tolist() == list(range(11))
    left = list(Path(ground.removeprefix("file://")).parent.glob(f"*{offsets.SUFFIX}"))
    assert len(left) == 2


def test_a_statistics_file_of_another_engine_is_kept(dataset, theirs, make_rows):
    """Spark and Trino register theirs for a snapshot of ours; a later index of ours for it carries their blobs over."""
    from pyiceberg.table.statistics import StatisticsFile

    table = theirs()
    snapshot = table.metadata.current_snapshot_id
    blob = offsets.PuffinBlob(
        type="apache-datasketches-theta-v1", data=b"sketch", snapshot=snapshot, sequence=3, fields=(2,)
    )
    data, footer = offsets.encode([blob], properties={})
    path = f"{table.location()}/metadata/theirs.stats"
    with table.io.new_output(path).create() as out:
        out.write(data)
    told = {
        "snapshot-id": snapshot, "statistics-path": path, "file-size-in-bytes": len(data),
        "file-footer-size-in-bytes": footer,
        "blob-metadata": [
            {"type": blob.type, "snapshot-id": snapshot, "sequence-number": 3, "fields": [2], "properties": {}}
        ],
    }  # fmt: skip
    with table.update_statistics() as update:
        update.set_statistics(StatisticsFile(**told))
    fresh = sl.open(dataset.location)
    assert fresh.lengths("action").tolist() == LENGTHS
    fresh.append(make_rows(40, 41))
    assert known(theirs) == live(theirs)
    assert any(s.statistics_path == path for s in theirs().metadata.statistics)


def test_an_index_made_anew_carries_other_engines_blobs_over(dataset, theirs):
    from pyiceberg.table.puffin import PuffinFile
    from pyiceberg.table.statistics import BlobMetadata

    file = registered(theirs)
    blob = offsets.PuffinBlob(
        type="apache-datasketches-theta-v1", data=b"sketch", snapshot=file.snapshot_id, sequence=3
    )
    data, footer = offsets.encode([blob], properties={})
    Path(file.statistics_path.removeprefix("file://")).write_bytes(data)
    told = {"type": blob.type, "snapshot-id": file.snapshot_id, "sequence-number": 3, "fields": [2]}
    with theirs().update_statistics() as update:
        update.set_statistics(
            file.model_copy(
                update={
                    "blob_metadata": [BlobMetadata(**told)],
                    "file_size_in_bytes": len(data),
                    "file_footer_size_in_bytes": footer,
                }
            )
        )
    fresh = sl.open(dataset.location)
    foreign.merge(fresh.table.context, fresh.table.state(), "0" * 32)
    after = registered(theirs)
    assert [one.type for one in after.blob_metadata] == [blob.type]
    read = PuffinFile(Path(after.statistics_path.removeprefix("file://")).read_bytes())
    assert [one.type for one in read.footer.blobs] == [blob.type, offsets.BLOB]
    assert read.get_blob_payload(read.footer.blobs[0]) == b"sketch"
    counts = indexes.IndexFile.decode(read.get_blob_payload(read.footer.blobs[1]), path="x")
    assert {name: counts.row(name).rows for name in counts} == live(theirs)


def test_what_a_look_at_one_sequence_costs_on_an_object_store(tmp_path, s3_bucket, asked):
    """One request for the index, once, then one for each signal; a renamed one too."""
    storage = {**s3_bucket.storage, "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"{s3_bucket.uri}/w"}
    kinds = {"task": pa.string(), "action": sl.Trajectory(dim=3), "state": sl.Trajectory(dim=2)}
    made = sl.create("iceberg://lab/rl.ep", kinds, storage=storage)
    rows = [
        {"sequence_id": f"ep_{n}", "task": "pick", "action": [[float(n)] * 3] * 5, "state": [[-float(n)] * 2] * 5}
        for n in range(50)
    ]
    made.append(rows[:30])
    made.append(rows[30:])
    made.rename_column("state", "obs")
    ds = sl.open("iceberg://lab/rl.ep", storage=storage)
    asked.clear()
    sequence = ds.sequence("ep_7")
    assert [path.endswith(offsets.SUFFIX) for _, path in asked] == [True]
    asked.clear()
    assert sequence["action"].tolist() == [[7.0] * 3] * 5
    assert sequence["obs"].tolist() == [[-7.0] * 2] * 5
    assert len(asked) == 2
    asked.clear()
    assert ds.sequence("ep_40")["action"][0, 0] == 40
    assert len(asked) == 1
    assert sequence["task"] == "pick"
    assert len(asked) <= 4

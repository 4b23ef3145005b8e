"""Rows that other clients deleted are gone: position deletes, deletion vectors, copies on write."""

from __future__ import annotations

import json
import struct
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import ReadOnlyError, SeqlakeError
from seqlake.tables.iceberg import offsets


def commit_deletes(table, made):
    """Commit delete files, which pyiceberg reads and cannot write: [(path, format, content, rows, bounds)]."""
    from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestWriterV2
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    class DeleteManifest(ManifestWriterV2):
        def content(self):
            return ManifestContent.DELETES

        @property
        def _meta(self):
            return {**super()._meta, "content": "deletes"}

    class Deletes(_FastAppendFiles):
        def _existing_manifests(self):
            metadata = self._transaction.table_metadata
            with DeleteManifest(
                metadata.spec(), metadata.schema(), self.new_manifest_output(), self._snapshot_id, "deflate"
            ) as writer:
                for path, kind, content, rows, bounds in made:
                    file = DataFile.from_args(
                        content=content, file_path=path, file_format=kind, partition=Record(), record_count=rows,
                        file_size_in_bytes=1, spec_id=0, column_sizes={}, value_counts={}, null_value_counts={},
                        nan_value_counts={}, lower_bounds=bounds, upper_bounds=bounds, equality_ids=[1],
                    )  # fmt: skip
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
                        )
                    )
            return [*super()._existing_manifests(), writer.to_manifest_file()]

        def _summary(self, snapshot_properties=None):
            told = super()._summary(snapshot_properties or {})
            told["total-position-deletes"] = str(int(told["total-position-deletes"] or 0) + sum(one[3] for one in made))
            return told

    with table.transaction() as tx:
        Deletes(Operation.OVERWRITE, tx, table.io).commit()


def position_deletes(table, rows, folder):
    """One Parquet file of positions for all data files, as Spark and Flink write it."""
    from pyiceberg.manifest import DataFileContent, FileFormat

    listed = sorted((path, row) for path, found in rows.items() for row in found)
    path = f"{folder}/deletes-{len(listed)}.parquet"
    pq.write_table(pa.table({"file_path": [p for p, _ in listed], "pos": [r for _, r in listed]}), path)
    commit_deletes(table, [(path, FileFormat.PARQUET, DataFileContent.POSITION_DELETES, len(listed), {})])


def deletion_vector(table, file, rows, folder):
    """A bitmap in a Puffin file, as tables of version 3 have it."""
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyroaring import BitMap

    bitmap = struct.pack("<QI", 1, 0) + BitMap(rows).serialize()
    framed = b"\xd1\xd3\x39\x64" + bitmap
    payload = struct.pack(">I", len(framed)) + framed + struct.pack(">I", zlib.crc32(framed))
    blob = offsets.PuffinBlob(
        type="deletion-vector-v1", data=payload, snapshot=-1, sequence=-1,
        properties={"referenced-data-file": file, "cardinality": str(len(rows))},
    )  # fmt: skip
    path = f"{folder}/{abs(hash(tuple(rows)))}.puffin"
    with open(path, "wb") as out:  # noqa: PTH123 - a test's own file
        out.write(offsets.encode([blob], properties={})[0])
    bounds = {2147483546: file.encode()}
    commit_deletes(table, [(path, FileFormat.PUFFIN, DataFileContent.POSITION_DELETES, len(rows), bounds)])


def files(table):
    """Paths of the data files by their number of rows."""
    found = table.inspect.files().to_pylist()
    return {row["record_count"]: row["file_path"] for row in found}


@pytest.mark.parametrize("kind", ["positions", "vector"])
def test_deleted_rows_are_gone_and_the_rest_stays_flat(kind, dataset, theirs, cells):
    before, pinned = cells(dataset), sl.open(dataset.location)
    first, second = files(theirs())[6], files(theirs())[4]
    if kind == "positions":
        position_deletes(theirs(), {first: [1, 4], second: [0]}, Path(dataset.root))
    else:
        deletion_vector(theirs(), first, [1, 4], Path(dataset.root))
        deletion_vector(theirs(), second, [0], Path(dataset.root))
    dataset.refresh()
    left = {name: row for name, row in before.items() if name not in {"ep_001", "ep_004", "ep_006"}}
    assert cells(dataset) == left == cells(theirs().scan().to_arrow())
    assert dataset.lengths("action").tolist() == [-1, 2, 3, 5, -1, 8, 9]
    assert [shard.rows for shard in dataset.source.shards()] == [4, 3]
    assert dataset["ep_008"]["action"].tolist() == before["ep_008"]["action"]
    assert all(shard.open().flat("action") is not None for shard in dataset.source.shards())
    assert dataset.version.rows == dataset.versions()[-1].rows == 7
    assert cells(pinned) == before
    assert pinned.fingerprint != dataset.fingerprint
    assert "ep_001" not in dataset


def test_a_deleted_id_may_come_back_and_a_shard_with_deletes_is_rewritten(dataset, theirs, cells, make_rows):
    position_deletes(theirs(), {files(theirs())[6]: [1, 4]}, Path(dataset.root))
    dataset.append(make_rows(1, 2))
    dataset.update([{"sequence_id": "ep_000", "task": "new"}])
    expected = {row["sequence_id"]: row for row in make_rows(0, 10) if row["sequence_id"] != "ep_004"}
    expected["ep_000"]["task"] = "new"
    assert cells(dataset) == expected == cells(theirs().scan().to_arrow())


def test_a_rollback_brings_deletes_back(dataset, theirs, cells):
    position_deletes(theirs(), {files(theirs())[6]: [0]}, Path(dataset.root))
    dataset.refresh()
    there = cells(dataset)
    deleted = dataset.version
    dataset.delete("reward is not null")
    assert len(dataset) == 1
    dataset.rollback(deleted)
    assert cells(dataset) == there == cells(theirs().scan().to_arrow())
    assert dataset.version.rows == 9


def test_equality_deletes_are_refused_with_the_reason(dataset, theirs, address):
    from pyiceberg.manifest import DataFileContent, FileFormat

    commit_deletes(theirs(), [("nowhere.parquet", FileFormat.PARQUET, DataFileContent.EQUALITY_DELETES, 1, {})])
    with pytest.raises(SeqlakeError, match="equality deletes"):
        sl.open(address)


def test_a_table_of_version_3_is_read_and_not_written(dataset, theirs, cells, tmp_path):
    """pyiceberg cannot write it, so neither can we; it says so before anything is staged."""
    deletion_vector(theirs(), files(theirs())[6], [0, 5], Path(dataset.root))
    table = theirs()
    document = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    document |= {"format-version": 3, "next-row-id": 10}
    for snapshot in document["snapshots"]:
        snapshot |= {"first-row-id": 0, "added-rows": 0}
    path = tmp_path / "v3.metadata.json"
    path.write_text(json.dumps(document))
    ds = sl.open(table.catalog.register_table("robots.three", f"file://{path}"))
    assert cells(ds).keys() == cells(dataset).keys() - {"ep_000", "ep_005"}
    with pytest.raises(ReadOnlyError, match="version 3"):
        ds.append([{"sequence_id": "more"}])
    assert not list(Path(table.location().removeprefix("file://"), "_seqlake", "staged").glob("part-*"))


def test_what_pyiceberg_deletes_overwrites_and_upserts_is_read(dataset, theirs, cells, make_rows):
    theirs().delete("sequence_id == 'ep_002'")
    schema = theirs().scan().to_arrow().schema
    changed = [{**make_rows(3, 4)[0], "task": "theirs"}, {**make_rows(20, 21)[0]}]
    theirs().upsert(pa.Table.from_pylist(changed, schema), join_cols=["sequence_id"])
    dataset.refresh()
    expected = {row["sequence_id"]: row for row in make_rows(0, 10) if row["sequence_id"] != "ep_002"}
    expected |= {row["sequence_id"]: row for row in changed}
    assert cells(dataset) == expected == cells(theirs().scan().to_arrow())
    assert sorted(dataset.lengths("action").tolist()) == sorted(
        -1 if row["action"] is None else len(row["action"]) for row in expected.values()
    )
    theirs().overwrite(theirs().scan().to_arrow())  # its compaction
    dataset.refresh()
    assert cells(dataset) == expected
    assert np.array_equal(dataset["ep_008"]["action"], expected["ep_008"]["action"])


def test_files_of_deletes_are_no_shards_to_a_collection(dataset, theirs):
    table = theirs()
    (path,) = [task.file.file_path for task in table.scan().plan_files() if task.file.record_count == 4]
    position_deletes(table, {path: [0, 2]}, Path(dataset.root))
    engine = sl.open(dataset.location).table.engine
    kept = engine.expire(datetime.now(UTC) - timedelta(days=1), dry_run=True).retained
    assert sorted(file.rows for file in kept) == [4, 6]


def test_deletes_are_folded_into_the_files(dataset, theirs, cells):
    first = files(theirs())[6]
    position_deletes(theirs(), {first: [1, 4]}, Path(dataset.root))
    dataset.refresh()
    left = cells(dataset)
    (lagging,) = dataset.lagging()
    kept = {shard.key for shard in dataset.shards()} - {lagging.key}
    assert dataset.fold().operation == "rewrite"
    assert kept < {shard.key for shard in dataset.shards()}
    assert cells(dataset) == left == cells(theirs().scan().to_arrow())
    data = [row["file_path"] for row in theirs().inspect.files().to_pylist() if row["content"] == 0]
    held = [one for path in data for one in pq.read_table(path)["sequence_id"].to_pylist()]
    assert sorted(held) == sorted(left)  # the bare files, of which no delete is said
    assert not dataset.lagging()

"""Tables that other clients read, made or changed: equal values both ways."""

from __future__ import annotations

import base64
import json
import struct
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import (
    DamagedTableError,
    DuplicateSequenceError,
    ReadOnlyError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from seqlake.testing import tables

deltalake = pytest.importorskip("deltalake")
pl = pytest.importorskip("polars")


def sequences(*numbers):
    return [
        {
            "sequence_id": f"ep_{n}",
            "split": "train" if n % 2 else "val",
            "reward": float(n),
            "action": np.full((n + 1, 3), n, np.float32),
        }
        for n in numbers
    ]


SCHEMA = {"split": pa.string(), "reward": pa.float32(), "action": sl.Trajectory(dim=3)}


@pytest.fixture(params=[(), ("split",)], ids=["whole", "partitioned"])
def ds(request, tmp_path):
    made = sl.create(f"delta:{tmp_path}/t", SCHEMA, partition_by=request.param)
    made.append(sequences(0, 1, 2, 3))
    return made


def plain(rows):
    """Rows by id, as plain lists."""
    found = {}
    for row in rows:
        cells = {name: (np.asarray(cell).tolist() if name == "action" else cell) for name, cell in row.items()}
        found[row["sequence_id"]] = {name: cells.get(name) for name in ("split", "reward", "action")}
    return found


def mine(dataset):
    return plain(dataset.to_arrow().to_pylist())


def foreign(numbers):
    """The rows as another writer would have them: plain lists, its own Parquet settings."""
    rows = [{**row, "action": row["action"].tolist()} for row in sequences(*numbers)]
    kinds = pa.schema(
        [("sequence_id", pa.string()), ("split", pa.string()), ("reward", pa.float32()),
         ("action", pa.list_(pa.list_(pa.float32())))]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, kinds)


# ---- ours, read by others
def test_deltalake_duckdb_and_polars_read_what_we_wrote(ds):
    root = ds.table.root
    table = deltalake.DeltaTable(root)
    assert plain(table.to_pyarrow_table().to_pylist()) == mine(ds)
    scanned = duckdb.connect().register("scanned", table.to_pyarrow_dataset())
    assert plain(scanned.sql("SELECT * FROM scanned").to_arrow_table().to_pylist()) == mine(ds)
    assert plain(pl.scan_delta(root).collect().to_dicts()) == mine(ds)
    assert json.loads(table.metadata().configuration["mixtrain"]) == json.loads(ds.schema.metadata.to_json())


def test_no_file_says_that_lists_have_a_fixed_size(ds):
    with ds.writer(fixed_size_inner=True) as writer:
        writer.add("ep_9", action=np.ones((2, 3), np.float32))
    for path in Path(ds.table.root, "data").rglob("*.parquet"):
        kind = pq.read_schema(path).field("action").type
        assert not pa.types.is_fixed_size_list(kind.value_type)


def test_others_find_a_version_of_ours_by_its_number(ds):
    before = mine(ds)
    ds.delete(ids=["ep_1"])
    assert plain(deltalake.DeltaTable(ds.table.root, version=1).to_pyarrow_table().to_pylist()) == before
    assert plain(deltalake.DeltaTable(ds.table.root).to_pyarrow_table().to_pylist()) == mine(ds)


# ---- theirs, read by us
def test_rows_that_deltalake_appends_are_there_and_unique(ds):
    root = ds.table.root
    deltalake.write_deltalake(root, foreign([4, 5]), mode="append")
    ds.refresh()
    assert mine(ds) == plain(sequences(0, 1, 2, 3, 4, 5))
    assert ds["ep_5"]["action"].shape == (6, 3)
    assert sorted(ds.lengths("action").tolist()) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DuplicateSequenceError, match="ep_5"):
        ds.append(sequences(5))


def test_ids_that_others_wrote_twice_are_found_by_validate(ds):
    deltalake.write_deltalake(ds.table.root, foreign([1]), mode="append")
    ds.refresh()
    report = ds.validate(depth="rows")
    assert any(finding.sequence_id == "ep_1" or "ep_1" in finding.message for finding in report.findings)


def test_deletes_updates_and_compaction_by_deltalake(ds):
    root = ds.table.root
    table = deltalake.DeltaTable(root)
    table.delete("sequence_id = 'ep_0'")
    table.update(predicate="sequence_id = 'ep_1'", new_values={"reward": 77.0})
    table.optimize.compact()
    ds.refresh()
    expected = plain(sequences(1, 2, 3))
    expected["ep_1"]["reward"] = 77.0
    assert mine(ds) == expected
    ds.update([{"sequence_id": "ep_2", "reward": 5.0}])
    expected["ep_2"]["reward"] = 5.0
    assert mine(ds) == expected
    assert plain(pl.scan_delta(root).collect().to_dicts()) == expected


def test_a_column_that_polars_adds(ds):
    more = pl.from_arrow(foreign([4])).with_columns(label=pl.lit("new"))
    more.write_delta(ds.table.root, mode="append", delta_write_options={"schema_mode": "merge"})
    ds.refresh()
    assert ds["ep_4"]["label"] == "new"
    assert ds["ep_0"]["label"] is None
    assert ds.schema["action"].dim == 3


def test_a_table_that_polars_made_becomes_a_dataset_by_its_property(tmp_path):
    root = str(tmp_path / "t")
    pl.from_arrow(foreign([0, 1])).write_delta(root)
    mixtrain = json.dumps({"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 3}}})
    deltalake.DeltaTable(root).alter.set_table_properties({"mixtrain": mixtrain}, raise_if_not_exists=False)
    ds = sl.open(root)
    assert ds.schema["action"].shape == (3,)
    assert mine(ds) == plain(sequences(0, 1))
    ds.append(sequences(2))
    assert plain(deltalake.DeltaTable(root).to_pyarrow_table().to_pylist()) == plain(sequences(0, 1, 2))


def test_a_native_table_opens(ds):
    assert mine(sl.open(deltalake.DeltaTable(ds.table.root))) == mine(ds)


def test_restore_by_deltalake_is_a_version(ds):
    ds.append(sequences(7))
    deltalake.DeltaTable(ds.table.root).restore(1)
    ds.refresh()
    assert ds.versions()[-1].operation == "rollback"
    assert mine(ds) == plain(sequences(0, 1, 2, 3))


def test_a_log_behind_a_checkpoint_is_read(ds):
    table = deltalake.DeltaTable(ds.table.root)
    table.create_checkpoint()
    Path(ds.table.root, "_delta_log", f"{0:020d}.json").unlink()
    again = sl.open(ds.table.root)
    assert mine(again) == plain(sequences(0, 1, 2, 3))
    assert [version.id for version in again.versions()] == [1]
    again.append(sequences(4))
    assert len(again) == 5


def test_checkpoints_come_as_often_as_the_table_says(tmp_path):
    root = str(tmp_path / "t")
    deltalake.DeltaTable.create(root, schema=foreign([0]).schema, configuration={"delta.checkpointInterval": "3"})
    ds = sl.open(root)
    for number in range(4):
        ds.append(sequences(number))
    assert json.loads(Path(root, "_delta_log", "_last_checkpoint").read_text())["version"] == 3
    for number in range(3):
        Path(root, "_delta_log", f"{number:020d}.json").unlink()
    assert mine(sl.open(root)) == plain(sequences(0, 1, 2, 3))


def test_a_version_whose_files_were_vacuumed_cannot_come_back(ds):
    ds.delete("reward < 2")
    table = deltalake.DeltaTable(ds.table.root)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    before = mine(ds)
    with pytest.raises(VersionNotFoundError, match="gone"):
        ds.rollback(1)
    with pytest.raises(DamagedTableError, match="gone"):
        sl.open(ds.location, version=1).to_arrow()
    assert mine(sl.open(ds.location)) == before


# ---- deletion vectors and column mapping
def z85(data):
    """Base 85 with the alphabet of ZeroMQ, as Delta's log has it."""
    theirs = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    ours = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    return base64.b85encode(data).decode().translate(str.maketrans(ours, theirs))


def vector(rows):
    """An inline deletion vector: one 64-bit roaring bitmap with one array container."""
    container = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<IQI", 1681511377, 1, 0) + container
    padded = data + bytes(-len(data) % 4)
    return {"storageType": "i", "pathOrInlineDv": z85(padded), "sizeInBytes": len(data), "cardinality": len(rows)}


def commit(root, number, actions):
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    Path(root, "_delta_log", f"{number:020d}.json").write_text(lines)


def with_vectors(root, rows):
    """Give the table's one file a deletion vector, as Spark does."""
    log = Path(root, "_delta_log")
    actions = [json.loads(line) for line in (log / f"{1:020d}.json").read_text().splitlines()]
    (add,) = [action["add"] for action in actions if "add" in action]
    metadata = next(
        json.loads(line)["metaData"]
        for line in (log / f"{0:020d}.json").read_text().splitlines()
        if "metaData" in json.loads(line)
    )
    metadata["configuration"]["delta.enableDeletionVectors"] = "true"
    features = ["deletionVectors"]
    commit(root, 2, [
        {"commitInfo": {"timestamp": 1900000000000, "operation": "DELETE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features,
                      "writerFeatures": features}},
        {"metaData": metadata},
        {"remove": {"path": add["path"], "deletionTimestamp": 1900000000000, "dataChange": True,
                    "extendedFileMetadata": True, "partitionValues": {}, "size": add["size"]}},
        {"add": {**add, "deletionVector": vector(rows)}},
    ])  # fmt: skip


def test_rows_behind_a_deletion_vector_are_gone(tmp_path):
    root = str(tmp_path / "t")
    ds = sl.create(f"delta:{root}", SCHEMA)
    ds.append(sequences(*range(6)))
    with_vectors(root, [1, 4])
    ds.refresh()
    assert mine(ds) == plain(sequences(0, 2, 3, 5))
    assert ds["ep_3"]["reward"] == 3.0
    assert ds.lengths("action").tolist() == [1, 3, 4, 6]
    assert [version.rows for version in ds.versions()] == [0, 6, 4]
    stream = pa.RecordBatchReader.from_stream(deltalake.DeltaTable(root).scan())
    assert sorted(row["sequence_id"] for row in stream.read_all().to_pylist()) == sorted(mine(ds))
    # Flat columns stay flat behind the vector, and a change writes what is left.
    (shard,) = ds.shards()
    assert shard.open().flat("action").steps.tolist() == [1, 3, 4, 6]
    ds.append(sequences(1))
    ds.update([{"sequence_id": "ep_3", "reward": 30.0}])
    expected = plain(sequences(0, 1, 2, 3, 5))
    expected["ep_3"]["reward"] = 30.0
    assert mine(ds) == expected
    read = pa.RecordBatchReader.from_stream(deltalake.DeltaTable(root).scan()).read_all()
    assert plain(read.to_pylist()) == expected


def mapped(root):
    """A table with column mapping, as deltalake writes it."""
    deltalake.DeltaTable.create(root, schema=foreign([0]).schema, configuration={"delta.columnMapping.mode": "name"})
    deltalake.write_deltalake(root, foreign([0, 1, 2]), mode="append")
    return sl.open(root)


def test_a_table_with_column_mapping_is_read(tmp_path):
    ds = mapped(str(tmp_path / "t"))
    assert mine(ds) == plain(sequences(0, 1, 2))
    assert ds["ep_2"]["reward"] == 2.0


def test_column_mapping_renames_and_drops_without_rewriting(tmp_path):
    root = str(tmp_path / "t")
    ds = mapped(root)
    files = sorted(deltalake.DeltaTable(root).file_uris())
    ds.rename_column("reward", "score")
    ds.drop_column("split")
    ds.add_column("label", pa.string())
    assert ds.to_arrow().column("score").to_pylist() == [0.0, 1.0, 2.0]
    assert ds.schema.names == ["sequence_id", "score", "action", "label"]
    assert sorted(deltalake.DeltaTable(root).file_uris()) == files
    read = pa.RecordBatchReader.from_stream(deltalake.DeltaTable(root).scan()).read_all()
    assert sorted(read.column("score").to_pylist()) == [0.0, 1.0, 2.0]


def test_without_column_mapping_a_rename_asks_for_a_rewrite(ds):
    for change in (
        lambda **options: ds.rename_column("reward", "score", **options),
        lambda **options: ds.widen_column("score" if options else "reward", pa.float64(), **options),
        lambda **options: ds.drop_column("score" if options else "reward", **options),
    ):
        before = ds.fingerprint
        with pytest.raises(SchemaMismatchError, match="rewrite=True") if "reward" in ds.schema else nullcontext():
            change() if "reward" in ds.schema else None
        assert ds.fingerprint == before
        change(rewrite=True)
    assert ds.schema.names == ["sequence_id", "split", "action"]
    read = deltalake.DeltaTable(ds.table.root).to_pyarrow_table()
    assert sorted(read.column_names) == ["action", "sequence_id", "split"]
    assert read.num_rows == 4


def test_what_a_table_is_partitioned_by_keeps_its_name(tmp_path):
    ds = sl.create(f"delta:{tmp_path}/t", SCHEMA, partition_by=["split"])
    ds.append(sequences(0, 1))
    for change in (lambda: ds.drop_column("split", rewrite=True), lambda: ds.rename_column("split", "x", rewrite=True)):
        with pytest.raises(SchemaMismatchError, match="partitioned by split"):
            change()
    assert mine(sl.open(ds.location)) == plain(sequences(0, 1))


# ---- other clients' cleanup
def test_the_most_aggressive_vacuum_leaves_files_and_index(tmp_path):
    root = str(tmp_path / "t")
    film = tmp_path / "film.mp4"
    film.write_bytes(b"moving pictures")
    ds = sl.create(f"delta:{root}", {**SCHEMA, "notes": pa.string()})
    with ds.writer() as writer:
        writer.add("ep_0", notes=sl.File(str(film)), action=np.ones((2, 3), np.float32))
    ds.append(sequences(1))
    ds.delete(ids=["ep_1"])
    Path(root, "stranger.parquet").write_bytes(b"not ours")
    table = deltalake.DeltaTable(root)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not Path(root, "stranger.parquet").exists()
    again = sl.open(root)
    reference = again.select("notes").to_arrow().column("notes").to_pylist()[0]
    assert Path(root, reference).read_bytes() == b"moving pictures"
    assert again["ep_0"]["action"].shape == (2, 3)
    assert {finding.severity for finding in again.validate(depth="files").findings} <= {"note"}
    assert list(Path(root, "_seqlake", "index").iterdir())


def test_files_that_a_compaction_by_others_still_names_are_not_collected(tmp_path):
    root = str(tmp_path / "t")
    film = tmp_path / "film.mp4"
    film.write_bytes(b"moving pictures")
    ds = sl.create(f"delta:{root}", {**SCHEMA, "notes": pa.string()})
    for number in range(2):
        with ds.writer() as writer:
            writer.add(f"ep_{number}", notes=sl.File(str(film)))
    deltalake.DeltaTable(root).optimize.compact()
    ds.refresh()
    ds.vacuum(older_than=timedelta(0))
    for reference in ds.to_arrow().column("notes").to_pylist():
        assert Path(root, reference).read_bytes() == b"moving pictures"


# ---- refusals
@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.constraints.positive": "reward > 0"}, "constraints.positive"),
    ],
)
def test_a_property_that_forbids_a_change_is_kept(tmp_path, configuration, said):
    root = str(tmp_path / "t")
    deltalake.DeltaTable.create(
        root, schema=foreign([0]).schema, configuration=configuration, raise_if_key_not_exists=False
    )
    deltalake.write_deltalake(root, foreign([0]), mode="append") if "constraints" not in said else None
    ds = sl.open(root)
    before = ds.fingerprint
    with pytest.raises(ReadOnlyError, match=said):
        ds.delete(ids=["ep_0"]) if "appendOnly" in said else ds.append(sequences(1))
    assert sl.open(root).fingerprint == before


def test_rows_of_a_version_come_from_the_contract(tmp_path):
    """The few rows of the contract suite, through deltalake."""
    from seqlake.tables import delta

    table = delta.create(str(tmp_path / "t"), tables.SCHEMA)
    tables.append(table, ["a", "b"])
    read = deltalake.DeltaTable(table.root).to_pyarrow_table().to_pylist()
    assert {row["sequence_id"]: row for row in read} == tables.expected(["a", "b"])

"""Checkpoints that expand without end are refused before deltalake decodes them, wherever the table lies."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError
from seqlake.files.stores import open_store, read_all
from seqlake.tables.delta.log import checkpoint_adds, hold_checkpoints

deltalake = pytest.importorskip("deltalake")
LOG = "_delta_log"


def table_at(root, **options):
    ds = sl.create(f"delta:{root}", sl.Schema({"sequence_id": pa.string(), "action": sl.Trajectory(dim=2)}), **options)
    for number in range(3):
        ds.append([{"sequence_id": f"ep_{number}", "action": np.zeros((3, 2))}])
    return ds


def expanding(data: bytes) -> bytes:
    """The same checkpoint with five megabytes of blanks in the statistics of each file, sixteen times."""
    table = pq.read_table(pa.BufferReader(data))
    stats = json.dumps({"numRecords": 1, "note": " " * 5_000_000})
    rows = [{**row, "add": {**row["add"], "stats": stats}} if row["add"] else row for row in table.to_pylist()]
    rows += [row for row in rows if row["add"]] * 4
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), sink, compression="zstd")
    made = sink.getvalue().to_pybytes()
    assert len(made) < 100_000
    return made


def with_checkpoint(root, options=None):
    """A table whose log begins with a checkpoint; its path in the store."""
    deltalake.DeltaTable(str(root), storage_options=options).create_checkpoint()
    return f"{LOG}/{3:020d}.checkpoint.parquet"


def test_one_that_expands_is_refused(tmp_path, monkeypatch):
    table_at(tmp_path)
    place = tmp_path / with_checkpoint(tmp_path)
    place.write_bytes(expanding(place.read_bytes()))
    assert len(sl.open(f"delta:{tmp_path}")) > 3  # 75 MB are within the usual limit
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "30000000")
    with pytest.raises(CorruptFileError, match=r"The checkpoint .* would take \d\d,\d+,\d+ bytes") as error:
        sl.open(f"delta:{tmp_path}")
    assert "export SEQLAKE_MAX_DECODED=" in str(error.value)


def test_one_in_a_bucket_is_refused(s3_bucket, monkeypatch):
    root, storage = f"{s3_bucket.uri}/t", s3_bucket.storage
    table_at(root, storage=storage)
    store = open_store(root, storage=storage)
    options = {
        "AWS_ACCESS_KEY_ID": storage["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": storage["secret_access_key"],
        "AWS_REGION": storage["region"],
        "AWS_ENDPOINT_URL": storage["endpoint"],
        "AWS_ALLOW_HTTP": "true",
    }
    path = with_checkpoint(root, options)
    store.put(path, expanding(read_all(store.blob(path))))
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "30000000")
    with pytest.raises(CorruptFileError, match=r"The checkpoint s3://.* would take \d\d,\d+,\d+ bytes"):
        sl.open(f"delta:{root}", storage=storage)


def test_the_newest_whole_one_counts(tmp_path, monkeypatch):
    """An old one is not read again; a part of a newer one does not hide it."""
    ds = table_at(tmp_path)
    old = tmp_path / with_checkpoint(tmp_path)
    old.write_bytes(expanding(old.read_bytes()))
    ds.append([{"sequence_id": "late", "action": np.zeros((3, 2))}])
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "30000000")
    store = open_store(tmp_path)
    with pytest.raises(CorruptFileError, match="would take"):
        hold_checkpoints(store)
    monkeypatch.delenv("SEQLAKE_MAX_DECODED")
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    new = tmp_path / f"{LOG}/{4:020d}.checkpoint.parquet"
    fine = pq.read_table(new).slice(0, 2)
    pq.write_table(fine, new)
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "30000000")
    hold_checkpoints(store)
    parts = [new.with_name(f"{4:020d}.checkpoint.{number:010d}.{2:010d}.parquet") for number in (1, 2)]
    new.rename(parts[0])
    with pytest.raises(CorruptFileError, match="would take"):
        hold_checkpoints(store)
    pq.write_table(fine, parts[1])
    hold_checkpoints(store)
    sidecars = tmp_path / LOG / "_sidecars"
    sidecars.mkdir()
    old.rename(sidecars / "one.parquet")
    with pytest.raises(CorruptFileError, match="would take"):
        hold_checkpoints(store)


def test_files_of_a_checkpoint_are_those_that_deltalake_has(tmp_path):
    table_at(tmp_path)
    with_checkpoint(tmp_path)
    theirs = pa.table(deltalake.DeltaTable(str(tmp_path)).get_add_actions())["path"].to_pylist()
    assert sorted(one["path"] for one in checkpoint_adds(open_store(tmp_path))) == sorted(theirs)

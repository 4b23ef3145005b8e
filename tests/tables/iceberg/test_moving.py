"""Iceberg and the other homes: there and back with shards taken over as they are, on disk and in a bucket."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import seqlake as sl


def inodes(root):
    return {path.stat().st_ino for path in Path(root).rglob("*part-*") if path.is_file()}


@pytest.mark.parametrize("home", ["{}/plain", "delta:{}/delta", "iceberg:{}/other/a.b"])
def test_there_and_back(home, dataset, tmp_path, caplog, cells):
    if home.startswith("delta"):
        pytest.importorskip("deltalake")
    caplog.set_level(logging.INFO)
    out = sl.convert(dataset, home.format(tmp_path), adopt=True)
    assert "2 shards taken over" in caplog.text
    assert inodes(out.table.root) <= inodes(dataset.table.root)
    back = sl.convert(out, f"iceberg:{tmp_path}/back/a.b", adopt=True)
    assert inodes(back.table.root) <= inodes(dataset.table.root)
    assert cells(back) == cells(out) == cells(dataset)
    assert back.schema == out.schema == dataset.schema
    assert cells(back) == cells(back.table.engine.load().scan().to_arrow())
    back.rename_column("task", "label")
    back.append([{"sequence_id": "new", "label": "wave"}])
    assert cells(back) == cells(back.table.engine.load().scan().to_arrow())


def test_what_was_renamed_is_written_anew(dataset, tmp_path, cells):
    dataset.rename_column("task", "label")
    out = sl.convert(dataset, tmp_path / "plain", adopt=True)
    assert cells(out) == cells(dataset)
    assert not inodes(out.table.root) & inodes(dataset.table.root)


def test_a_table_in_a_bucket_that_pyiceberg_opened_brings_its_keys(tmp_path, s3_bucket, make_rows, cells, monkeypatch):
    from pyiceberg.catalog.sql import SqlCatalog

    storage = s3_bucket.storage
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    catalog = SqlCatalog(
        "lab",
        **{
            "uri": f"sqlite:///{tmp_path}/c.db",
            "warehouse": f"{s3_bucket.uri}/w",
            "s3.endpoint": storage["endpoint"],
            "s3.access-key-id": storage["access_key_id"],
            "s3.secret-access-key": storage["secret_access_key"],
            "s3.region": storage["region"],
        },
    )
    sl.create("iceberg://lab/rl.ep", {"action": sl.Trajectory(dim=2)}, storage={**storage, **dict(catalog.properties)})
    ds = sl.open(catalog.load_table("rl.ep"))
    rows = [{"sequence_id": row["sequence_id"], "action": row["action"]} for row in make_rows(0, 4)]
    ds.append(rows)
    assert cells(ds) == {row["sequence_id"]: row for row in rows}
    assert cells(ds) == cells(catalog.load_table("rl.ep").scan().to_arrow())
    assert ds["ep_003"]["action"].shape == (3, 2)

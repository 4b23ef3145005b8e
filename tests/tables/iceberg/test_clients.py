"""Other clients read what we write, with equal values: Polars; training and the command line work on it."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli import main


@pytest.fixture
def changed(dataset, make_rows):
    """After every kind of change: a rename, an added and a dropped column, an update, a delete."""
    dataset.rename_column("task", "label")
    dataset.add_column("steps", pa.int64(), sql="len(action)")
    dataset.drop_column("reward")
    dataset.update([{"sequence_id": "ep_003", "label": "wave"}])
    dataset.delete(ids=["ep_008"])
    dataset.append([{"sequence_id": "last", "action": [[1.5, -2.0]]}])
    return dataset


def by_id(rows):
    return {row["sequence_id"]: row for row in rows}


def test_polars_reads_equal(changed, cells, theirs, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is a package apart
    pl = pytest.importorskip("polars")
    assert by_id(pl.scan_iceberg(theirs()).collect().to_dicts()) == cells(changed)


def test_pyiceberg_reads_equal_with_its_own_filters(changed, cells, theirs):
    found = theirs().scan(row_filter="label == 'wave'", selected_fields=("sequence_id", "steps")).to_arrow()
    assert found.to_pylist() == [{"sequence_id": "ep_003", "steps": 3}]
    assert by_id(theirs().scan().to_arrow().to_pylist()) == cells(changed)


def test_a_table_made_and_changed_by_pyiceberg_trains_and_validates(tmp_path, make_rows):
    """Its own writer's settings: dictionary pages, zstd, one row group."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lab", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("rl")
    kind = pa.list_(pa.list_(pa.float32()))
    arrow = pa.schema([("sequence_id", pa.string()), ("task", pa.string()), ("reward", pa.float32()), ("action", kind)])
    text = '{"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 2}}}'
    table = catalog.create_table("rl.ep", arrow, properties={"mixtrain": text})
    table.append(pa.Table.from_pylist(make_rows(1, 6), arrow))
    table.delete("sequence_id == 'ep_002'")
    table.append(pa.Table.from_pylist(make_rows(8, 10), arrow))
    ds = sl.open(table)
    assert ds.validate(depth="rows").ok
    assert ds.lengths("action").tolist().count(-1) == 0
    loader = sl.Loader(ds, window=sl.Window({"action": range(2)}, edges="drop"), batch_size=1)
    seen = [w for batch in loader for w in batch["action"]]
    wanted = {
        cell[at : at + 2].tobytes()
        for row in make_rows(1, 10)
        if row["sequence_id"] not in {"ep_002", "ep_006", "ep_007"}
        for cell in [np.array(row["action"], np.float32)]
        for at in range(len(cell) - 1)
    }
    assert {np.asarray(w, np.float32).tobytes() for w in seen} == wanted


def test_training_reads_ours_flat_after_changes(changed, cells):
    assert all(shard.open().flat("action") is not None for shard in changed.source.shards())
    loader = sl.Loader(changed, window={"action": [0]}, batch_size=1, seed=3)
    seen = sorted(w.ravel().tolist() for batch in loader for w in np.asarray(batch["action"]))
    wanted = sorted(step for row in cells(changed).values() for step in row["action"] or [])
    assert seen == wanted


def test_sql_statistics_and_the_command_line(changed, capsys, theirs):
    address = changed.location
    assert changed.sql("SELECT count(*), sum(steps) FROM dataset").fetchall() == [(10, 30)]
    for words, expected in (
        (["info", address], "10"),
        (["versions", address], "append"),
        (["validate", address], "0 errors"),
        (["sql", address, "SELECT count(*) AS n FROM dataset"], "10"),
        (["stats", address], "action"),
        (["schema", address], "trajectory"),
        (["ls", address], "last"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code in {0, None}
        said = capsys.readouterr()
        assert expected in said.out + said.err, words


def test_ids_that_another_client_doubled_are_found_by_validate(dataset, theirs, make_rows):
    schema = theirs().scan().to_arrow().schema
    theirs().append(pa.Table.from_pylist(make_rows(3, 4), schema))
    dataset.refresh()
    report = dataset.validate(depth="rows")
    assert not report.ok
    assert "ep_003" in str(report.to_json() if hasattr(report, "to_json") else report.findings)


def test_compaction_gives_our_layout_and_the_same_rows(dataset, theirs, cells, make_rows):
    """Shards of another client, and small ones, become ours in one commit; windows are flat from then on."""
    schema = theirs().scan().to_arrow().schema
    theirs().append(pa.Table.from_pylist(make_rows(20, 23), schema))
    dataset.refresh()
    before = cells(dataset)
    old = dataset.version
    sl.compact(dataset)
    assert cells(dataset) == before == cells(theirs().scan().to_arrow())
    assert len(dataset.source.shards()) == 1
    assert all(shard.open().flat("action") is not None for shard in dataset.source.shards())
    assert cells(sl.open(dataset.location, version=old)) == before
    dataset.vacuum(older_than=timedelta(0))
    assert cells(sl.open(dataset.location)) == before


def test_training_from_a_bucket_through_a_cache_after_a_rename(tmp_path, s3_bucket, make_rows):
    storage = {**s3_bucket.storage, "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"{s3_bucket.uri}/w"}
    made = sl.create("iceberg://lab/rl.ep", {"action": sl.Trajectory(dim=2)}, storage=storage)
    rows = [{"sequence_id": row["sequence_id"], "action": row["action"]} for row in make_rows(0, 10)]
    made.append(rows[:5])
    made.append(rows[5:])
    made.rename_column("action", "command")
    ds = sl.open("iceberg://lab/rl.ep", storage=storage)
    cache = sl.Cache(tmp_path / "cache", limit="64MiB")
    wanted = sorted(step for row in rows for step in row["action"] or [])
    for _ in range(2):  # the second time from the cache
        loader = sl.Loader(ds, window={"command": [0]}, batch_size=1, cache=cache)
        assert sorted(w.ravel().tolist() for batch in loader for w in np.asarray(batch["command"])) == wanted

"""Cleanups at their most aggressive, DuckDB's and ours: no referenced file is lost, and nobody else's anything."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

import seqlake as sl
from seqlake.errors import DiskFullError, SeqlakeError
from seqlake.tables import ducklake
from seqlake.testing import tables
from seqlake.testing.tables import append, expected, keys, rows_of

NOW = timedelta(0)
CLEAN = (
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
    "CALL ducklake_expire_snapshots('lake', older_than => now())",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
)


@pytest.fixture
def location(tmp_path):
    return f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=episodes"


def with_files(location, folder, ids):
    """A dataset whose labels name files that were copied in, one of them Parquet."""
    dataset = sl.open(location)
    folder.mkdir(exist_ok=True)
    with dataset.writer() as writer:
        for number, one in enumerate(ids):
            file = folder / f"{one}.{('mp4', 'parquet', 'puffin', 'bin')[number % 4]}"
            file.write_bytes(one.encode() * 5)
            writer.add(one, label=sl.File(str(file)))
    return sl.open(location)


def all_there(dataset, ids):
    rows = rows_of(dataset.table.snapshot())
    assert set(rows) == set(ids)
    for one, row in rows.items():
        assert Path(dataset.root, row["label"]).read_bytes() == one.encode() * 5


@pytest.mark.engines
def test_duckdbs_cleanups_lose_no_file_that_rows_name(location, engine, tmp_path):
    ducklake.create(location, tables.SCHEMA)
    dataset = with_files(location, tmp_path / "in", ["a", "b", "c", "d"])
    dataset = with_files(location, tmp_path / "in", ["e", "f", "g", "h"])
    dataset.delete(ids=["b"])
    transaction = dataset.table.begin()
    under_way = tables.write(dataset.table, transaction, [tables.episode("late")])
    lake = engine(location)
    lake.run("DELETE FROM episodes WHERE sequence_id = 'g'")
    lake.each(*CLEAN)
    dataset = sl.open(location)
    all_there(dataset, ["a", "c", "d", "e", "f", "h"])
    dataset.table.commit(tables.Change(operation="append", add=[under_way]), transaction=transaction)
    assert "late" in rows_of(dataset.table.snapshot())
    assert len(sl.open(location).where("label LIKE '%.mp4'")) == 2
    lake.each(*CLEAN)
    sl.open(location).table.vacuum(older_than=NOW)
    rows = rows_of(sl.open(location).table.snapshot())
    rows.pop("late")
    assert len(rows) == 6
    for one, row in rows.items():
        assert Path(dataset.root, row["label"]).read_bytes() == one.encode() * 5


@pytest.mark.engines
def test_shards_that_duckdb_compacted_keep_their_files_through_our_collection(location, engine, tmp_path):
    ducklake.create(location, tables.SCHEMA)
    with_files(location, tmp_path / "in", ["a", "b"])
    dataset = with_files(location, tmp_path / "in", ["c", "d"])
    lake = engine(location)
    lake.run("CALL lake.set_option('data_inlining_row_limit', 50, table_name => 'episodes')")
    lake.run("UPDATE episodes SET reward = 1 WHERE sequence_id = 'd'")  # its row lies in the catalog now
    lake.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)")
    lake.run("CALL ducklake_merge_adjacent_files('lake')")
    lake.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    lake.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    sl.open(location).table.vacuum(older_than=NOW)
    all_there(sl.open(location), ["a", "b", "c", "d"])
    assert lake.rows().keys() == {"a", "b", "c", "d"}
    dataset = sl.open(location)
    dataset.delete(ids=["a"])
    dataset.table.vacuum(older_than=NOW)
    names = {name for _, _, found in os.walk(f"{dataset.root}/_seqlake/files") for name in found}
    assert {name.partition("-")[0] for name in names} == {"b", "c", "d"}


def test_tables_of_one_lake_leave_each_other_alone(location, tmp_path):
    other = location.replace("=episodes", "=robots.takes")
    ducklake.create(location, tables.SCHEMA)
    ducklake.create(other, tables.SCHEMA)
    one = with_files(location, tmp_path / "one", ["a", "b"])
    two = with_files(other, tmp_path / "two", ["x", "y"])
    for number in range(20):  # enough that sidecars are merged
        append(one.table, [f"n{number}"])
        append(two.table, [f"m{number}"])
    one = sl.open(location)
    one.delete(ids=["a"])
    before = rows_of(two.table.snapshot()), two.table.versions()
    for _ in range(2):
        removed = one.table.vacuum(older_than=NOW)
    assert (rows_of(two.table.snapshot()), two.table.versions()) == before
    for one_id in ("x", "y"):
        path = Path(two.root, rows_of(two.table.snapshot())[one_id]["label"])
        assert path.read_bytes() == one_id.encode() * 5
    two.table.vacuum(older_than=NOW)
    assert set(rows_of(ducklake.open(location).snapshot())) == {"b", *(f"n{number}" for number in range(20))}
    assert removed == []
    assert sl.open(location).validate(depth="files").ok


def test_a_version_that_another_tables_snapshot_shows_keeps_its_files(location):
    table = ducklake.create(location, tables.SCHEMA)
    append(table, ["a"])
    ducklake.create(location.replace("=episodes", "=others"), tables.SCHEMA)
    seen = table.state().version.id + 1
    append(table, ["b"], operation="rewrite", remove=keys(table.snapshot()))
    table.vacuum(older_than=NOW)
    assert rows_of(table.snapshot(seen)) == expected(["a"])
    assert rows_of(table.snapshot()) == expected(["b"])


@pytest.mark.engines
def test_what_came_back_by_a_rollback_outlives_the_expiry_of_what_it_came_from(location, engine):
    table = ducklake.create(location, tables.SCHEMA)
    first = append(table, ["a", "b"])
    append(table, ["c"], operation="rewrite", remove=keys(table.snapshot()))
    lake = engine(location)
    lake.run("DELETE FROM episodes WHERE sequence_id = 'c'")
    table.rollback(first)
    lake.each(*CLEAN)
    assert rows_of(table.snapshot()) == expected(["a", "b"]) == lake.rows()
    append(table, ["d"])
    table.rollback(table.versions()[-2])
    table.vacuum(older_than=NOW)
    lake.each(*CLEAN)
    assert rows_of(table.snapshot()) == expected(["a", "b"]) == lake.rows()


@pytest.mark.engines
def test_what_we_collected_duckdb_reads_and_cleans_on(location, engine):
    table = ducklake.create(location, tables.SCHEMA)
    for number in range(4):
        append(table, [f"a{number}"], operation="rewrite", remove=keys(table.snapshot()))
    lake = engine(location)
    lake.run("INSERT INTO episodes SELECT 'b' || i, i, 'x', [[i, i]] FROM range(20) t(i)")
    lake.run("DELETE FROM episodes WHERE sequence_id = 'b3'")
    lake.run("DELETE FROM episodes WHERE sequence_id LIKE 'b%'")
    table.vacuum(older_than=NOW)
    assert len(table.versions()) == 1
    lake.each(*CLEAN)
    assert rows_of(table.snapshot()) == lake.rows() == expected(["a3"])
    data = list(Path(table.root).rglob("*.parquet"))
    assert len(data) == 1


def test_a_table_that_is_taken_back_leaves_the_files_of_its_neighbours(location, tmp_path):
    ducklake.create(location, tables.SCHEMA)
    dataset = with_files(location, tmp_path / "in", ["a", "b"])
    ducklake.create(location.replace("=episodes", "=others"), tables.SCHEMA).drop()
    all_there(dataset, ["a", "b"])
    assert dataset.validate(depth="files").ok


REFUSED = """
import os, resource, signal, sys
import seqlake as sl
ds, catalog = sl.open(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(catalog), resource.RLIM_INFINITY))
try:
    ds.set_metadata({"license": "x" * 200_000})
except sl.errors.SeqlakeError as error:
    print(type(error).__name__, error)
"""


def test_a_catalog_that_the_system_refuses_to_write_ends_in_an_error_that_says_so(location, tmp_path):
    """SQLite says `disk I/O error` of a quota, of a limit and of a failing disk; it is none of Python's own."""
    pytest.importorskip("resource")
    sl.create(location, tables.SCHEMA)
    catalog = tmp_path / "lake.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, location, str(catalog)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("SeqlakeError The system refused to read or write"), done.stdout
    assert "quota" in done.stdout
    assert len(sl.open(location).versions()) == 1


def test_a_quota_that_is_used_up_beside_sqlite_is_a_full_disk(location, monkeypatch):
    """SQLite has no word for it, so the system is asked once more."""
    ds = sl.create(location, tables.SCHEMA)

    class Refused(sqlite3.Connection):
        writes = False

        def execute(self, sql, *given):
            self.writes = sql == "BEGIN IMMEDIATE" or self.writes
            if self.writes and sql == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
                raise error
            return super().execute(sql, *given)

    def used_up(**_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, factory=Refused, **named))
    with pytest.raises(SeqlakeError, match="refused"):
        ds.set_metadata({"license": "MIT"})
    monkeypatch.setattr(tempfile, "TemporaryFile", used_up)
    with pytest.raises(DiskFullError) as full:
        ds.set_metadata({"license": "MIT"})
    assert full.value.errno == errno.EDQUOT
    monkeypatch.undo()
    ds.set_metadata({"license": "MIT"})

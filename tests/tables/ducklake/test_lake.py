"""The laws of lakes hold for DuckLake on SQLite and PostgreSQL; a DuckDB file serves one writer and says so."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from contextlib import closing

import duckdb
import pyarrow as pa
import pytest

from seqlake.errors import CommitConflictError, DatasetNotFoundError, SeqlakeError
from seqlake.protocols import Change
from seqlake.tables import ducklake
from seqlake.tables._lakes.engine import RivalError
from seqlake.tables.ducklake import catalogs
from seqlake.testing import tables
from seqlake.testing.lakes import LakeTests
from seqlake.testing.oracle import crashes
from seqlake.testing.tables import append, expected, rows_of


class TestSqlite(LakeTests):
    @pytest.fixture
    def table(self, tmp_path):
        return ducklake.create(f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=episodes", tables.SCHEMA)


class TestPostgres(LakeTests):
    @pytest.fixture
    def table(self, tmp_path, postgres_lake):
        place = f"ducklake:postgres:{postgres_lake}?table=robots.episodes&data_path={tmp_path}/data"
        return ducklake.create(place, tables.SCHEMA)


@pytest.fixture(params=["duckdb", "sqlite", "postgres"])
def table(request, tmp_path):
    if request.param == "duckdb":
        return ducklake.create(f"ducklake:{tmp_path}/lake.ducklake?table=episodes", tables.SCHEMA)
    if request.param == "sqlite":
        return ducklake.create(f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=episodes", tables.SCHEMA)
    place = f"ducklake:postgres:{request.getfixturevalue('postgres_lake')}?table=episodes&data_path={tmp_path}/data"
    return ducklake.create(place, tables.SCHEMA)


@pytest.mark.sampled(every=3, start=1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")
def test_a_commit_killed_between_any_two_statements_never_was(table):
    append(table, ["a"])
    before = (rows_of(table.snapshot()), table.versions())
    # A DuckDB file takes long to open after a kill, so not every statement is tried on one.
    for last in range(0, 1000, 12 if table.engine.address.kind == "duckdb" else 1):
        child = crashes.fork()
        if child == 0:
            die_at_statement(last)
            try:
                append(table, ["b"], operation="rewrite", remove=tables.keys(table.snapshot()))
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert (rows_of(table.snapshot()), table.versions()) == before
    assert last > 8, "a commit has more statements than that"
    assert rows_of(table.snapshot()) == expected(["b"])


def die_at_statement(last):
    """This process is killed before the statement of that number that changes the catalog."""
    left = [last]
    for name in ("run", "insert"):
        call = getattr(catalogs.Session, name)

        def counted(*given, call=call):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given)

        setattr(catalogs.Session, name, counted)


def hold(path, ready, done):
    import duckdb

    connection = duckdb.connect(path)
    ready.set()
    done.wait(60)
    connection.close()


def test_a_duckdb_file_refuses_a_second_writer_and_says_what_serves_many(tmp_path, monkeypatch):
    monkeypatch.setattr("seqlake.tables.ducklake.catalogs._SHORT_PATIENCE", 0.3)
    location = f"ducklake:{tmp_path}/lake.ducklake?table=episodes"
    table = ducklake.create(location, tables.SCHEMA)
    append(table, ["a"])
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("b")])
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    other = spawn.Process(target=hold, args=(f"{tmp_path}/lake.ducklake", ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(SeqlakeError, match=r"another process.*SQLite or PostgreSQL"):
            ducklake.create(location.replace("episodes", "others"), tables.SCHEMA)
        with pytest.raises(SeqlakeError, match=r"another process.*SQLite or PostgreSQL"):
            table.commit(tables.Change(operation="append", add=[written]), transaction=transaction)
    finally:
        done.set()
        other.join(60)
    assert rows_of(table.snapshot()) == expected(["a"])
    append(table, ["c"])
    assert rows_of(ducklake.open(location).snapshot()) == expected(["a", "c"])


def test_a_duckdb_file_is_one_that_older_duckdbs_read(tmp_path):
    table = ducklake.create(f"ducklake:{tmp_path}/lake.ducklake?table=episodes", tables.SCHEMA)
    append(table, ["a"])
    header = (tmp_path / "lake.ducklake").read_bytes()[:20]
    assert header[8:12] == b"DUCK"
    assert int.from_bytes(header[12:20], "little") == 64  # storage version of DuckDB 1.0


def test_a_column_that_older_files_lack_has_no_bounds_of_the_newer_ones(tmp_path):
    table = ducklake.create(f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=episodes", tables.SCHEMA)
    append(table, ["a"])
    schema = table.snapshot().schema.with_columns({"split": pa.string()})
    table.commit(Change(operation="evolve", schema=schema), transaction=table.begin())
    transaction = table.begin()
    written = tables.write(table, transaction, [{**tables.episode("b"), "split": "train"}])
    table.commit(Change(operation="append", add=[written]), transaction=transaction)
    with closing(sqlite3.connect(tmp_path / "lake.sqlite")) as lake:
        kept = lake.execute(
            "SELECT c.column_name, s.contains_null, s.min_value FROM ducklake_table_column_stats s "
            "JOIN ducklake_column c ON c.column_id = s.column_id AND c.table_id = s.table_id"
        ).fetchall()
    assert ("split", None, None) in kept
    assert ("sequence_id", 0, "a") in kept


def test_an_sqlite_file_without_a_lake_is_said_to_be(tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(DatasetNotFoundError, match="without one"):
        ducklake.open(f"ducklake:sqlite:{tmp_path}/other.sqlite?table=episodes")


def test_what_a_duckdb_file_refuses_for_good_is_no_rival(tmp_path):
    table = ducklake.create(f"ducklake:{tmp_path}/lake.ducklake?table=episodes", tables.SCHEMA)
    catalog = catalogs.catalog(table.engine.address)
    with pytest.raises(duckdb.CatalogException), catalog.writing() as session:
        session.run("DELETE FROM no_such_table")
    with pytest.raises(RivalError), catalog.writing() as session:
        session.run("INSERT INTO ducklake_snapshot SELECT * FROM ducklake_snapshot")


def test_a_postgres_lock_that_somebody_keeps_is_waited_for_no_longer(tmp_path, postgres_lake, monkeypatch):
    import psycopg

    place = f"ducklake:postgres:{postgres_lake}?table=episodes&data_path={tmp_path}/data"
    table = ducklake.create(place, tables.SCHEMA)
    monkeypatch.setattr(catalogs, "_PATIENCE", 1.0)
    with psycopg.connect(postgres_lake) as other:
        other.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(CommitConflictError, match="for 1 s"):
            append(table, ["a"])
    append(table, ["a"])
    assert rows_of(table.snapshot()) == expected(["a"])

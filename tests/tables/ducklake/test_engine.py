"""What DuckDB's own ducklake sees of our tables, and what we see of what it did to them: the same, at every version."""

from __future__ import annotations

import math
import sqlite3
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import (
    CommitConflictError,
    DatasetNotFoundError,
    DuplicateSequenceError,
    SchemaMismatchError,
    SeqlakeError,
)
from seqlake.protocols import Change
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.tables import ducklake
from seqlake.testing import tables
from seqlake.testing.processes import fresh
from seqlake.testing.tables import append, expected, keys, rows_of

pytestmark = pytest.mark.engines

MAKE = """CREATE TABLE episodes (sequence_id VARCHAR NOT NULL, reward FLOAT, label VARCHAR, action FLOAT[][])"""
NAME = "episodes"


@pytest.fixture(params=["duckdb", "sqlite", "postgres"])
def location(request, tmp_path):
    if request.param == "postgres":
        connection = request.getfixturevalue("postgres_lake")
        return f"ducklake:postgres:{connection}?table={NAME}&data_path={tmp_path}/data"
    kind = "" if request.param == "duckdb" else "sqlite:"
    return f"ducklake:{kind}{tmp_path}/lake.db?table={NAME}"


@pytest.fixture
def sqlite(tmp_path):
    return f"ducklake:sqlite:{tmp_path}/lake.sqlite?table={NAME}"


def same_at_every_version(table, engine):
    """Every version holds what the engine reads at it, and as many rows as `versions` says."""
    versions = table.versions()
    for version, truth in zip(versions, engine.rows_at([version.id for version in versions]), strict=True):
        snapshot = table.snapshot(version.id)
        found = rows_of(snapshot)
        assert plain(found) == plain(truth), f"at {version}"
        assert version.rows == len(found) == sum(shard.rows for shard in snapshot.shards())
    return versions


def plain(rows):
    """Rows with NaN as text, so that equal means equal."""
    return {key: str({name: row[name] for name in sorted(row)}) for key, row in rows.items()}


def test_our_tables_are_read_by_duckdb(location, engine):
    table = ducklake.create(location, tables.SCHEMA)
    append(table, ["a", "b", "c"])
    append(table, ["d"], operation="rewrite", remove=keys(table.snapshot()))
    append(table, [f"e{number}" for number in range(20)])
    lake = engine(location)
    assert lake.rows() == expected(["d", *(f"e{number}" for number in range(20))])
    same_at_every_version(table, lake)
    (told,) = lake.run(f"SELECT tags FROM duckdb_tables() WHERE table_name = '{NAME}'")
    assert dict(told["tags"])["mixtrain"] == table.engine.state().mixtrain


def test_duckdb_prunes_by_our_bounds_and_loses_no_row(sqlite, engine):
    schema = Schema({"n": pa.int64(), "x": pa.float64(), "s": pa.string(), "day": pa.timestamp("us", "UTC"),
                     "ok": pa.bool_()})  # fmt: skip
    table = ducklake.create(sqlite, schema)
    rows = [
        {
            "sequence_id": f"r{n}",
            "n": n if n % 7 else None,
            "x": math.nan if n % 5 == 0 else n / 3,
            "s": f"é{n:03}"[: n % 5 + 1],
            "day": 1_600_000_000_000_000 + n * 86_400_000_000,
            "ok": n % 2 == 0,
        }
        for n in range(-20, 40)
    ]
    for start in range(0, 60, 6):
        transaction = table.begin()
        written = tables.write(table, transaction, rows[start : start + 6])
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    lake = engine(sqlite)
    everything = list(lake.rows().values())
    assert len(everything) == 60
    for where, holds in {
        "n > 30": lambda r: r["n"] is not None and r["n"] > 30,
        "n = -3": lambda r: r["n"] == -3,
        "n IS NULL": lambda r: r["n"] is None,
        "x > 12 AND NOT isnan(x)": lambda r: r["x"] > 12,  # where NaN sorts, Parquet's own bounds leave open
        "isnan(x)": lambda r: math.isnan(r["x"]),
        "x < 0": lambda r: r["x"] < 0,
        "s >= 'é03'": lambda r: r["s"].encode() >= "é03".encode(),
        "NOT ok AND n < 0": lambda r: not r["ok"] and r["n"] is not None and r["n"] < 0,
        "day >= TIMESTAMPTZ '2020-10-10 00:00:00+00'": lambda r: r["day"].isoformat() >= "2020-10-10",
    }.items():
        found = {row["sequence_id"] for row in lake.run(f"SELECT sequence_id FROM {NAME} WHERE {where}")}
        assert found == {row["sequence_id"] for row in everything if holds(row)}, where
    (bounds,) = lake.run(f"SELECT min(n) a, max(n) b, max(x) x, min(s) s, count(*) c, count(n) d FROM {NAME}")
    numbers = [row["n"] for row in everything if row["n"] is not None]
    assert (bounds["a"], bounds["b"], bounds["c"], bounds["d"]) == (min(numbers), max(numbers), 60, len(numbers))
    assert math.isnan(bounds["x"])


@pytest.mark.sampled(every=3)
def test_what_duckdb_did_to_our_table_is_read_right(location, engine):
    table = ducklake.create(location, tables.SCHEMA)
    append(table, [f"a{number}" for number in range(10)])
    lake = engine(location)
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id IN ('a3', 'a4')")
    lake.run(f"UPDATE {NAME} SET reward = 7 WHERE sequence_id = 'a5'")
    append(table, ["b0", "b1"])
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id = 'a6'")
    lake.run(f"INSERT INTO {NAME} VALUES ('c', 1.5, 'it''s', [[1, 2], [3, 4]]), ('d', NULL, NULL, NULL)")
    lake.run(f"INSERT INTO {NAME} SELECT 'e' || i, i, 'e', [[i, i]] FROM range(5) t(i)")
    same_at_every_version(table, lake)
    lake.run("CALL ducklake_merge_adjacent_files('lake')")
    same_at_every_version(table, lake)
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id = 'e1'")
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id = 'e2'")
    same_at_every_version(table, lake)
    lake.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)")
    versions = same_at_every_version(table, lake)
    assert len(versions) > 8
    (written,) = lake.run("SELECT count(*) AS n FROM duckdb_tables() WHERE table_name LIKE 'ducklake_inlined_data%'")
    assert written["n"] == 0  # small inserts went to files


@pytest.mark.sampled(every=3, start=1)
def test_rows_and_deletes_that_lie_in_the_catalog_are_read_right(location, engine):
    table = ducklake.create(location, tables.SCHEMA)
    append(table, [f"a{number}" for number in range(10)])
    lake = engine(location)
    lake.run("CALL lake.set_option('data_inlining_row_limit', 50, table_name => 'episodes')")
    lake.run(
        f"INSERT INTO {NAME} SELECT 'i' || i, i, 'it''s', [[i::FLOAT, 'nan'::FLOAT], [2, NULL]] FROM range(4) t(i)"
    )
    lake.run(f"INSERT INTO {NAME} VALUES ('n', NULL, NULL, NULL), ('m', 'nan', '', [])")
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id = 'i2'")
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id IN ('a1', 'a2')")
    lake.run(f"UPDATE {NAME} SET reward = 9 WHERE sequence_id IN ('a5', 'i0')")
    versions = same_at_every_version(table, lake)
    assert any(file.held is not None for file in table.state().files)
    assert versions[-1].rows == 13
    append(table, ["b"])
    lake.run(f"ALTER TABLE {NAME} ADD COLUMN n INTEGER DEFAULT 3", f"ALTER TABLE {NAME} RENAME COLUMN label TO text")
    lake.run(f"INSERT INTO {NAME} VALUES ('z', 1, 'z', [[1, 2]], 4)")
    same_at_every_version(table, lake)
    removed = [shard.key for shard in table.snapshot().shards() if "inlined" in shard.key]
    kept = [row for row in rows_of(table.snapshot()).values() if row["sequence_id"].startswith(("i", "m"))]
    transaction = table.begin()
    written = tables.write(table, transaction, kept)
    table.commit(Change(operation="rewrite", add=[written], remove=removed), transaction=transaction)
    versions = same_at_every_version(table, lake)
    lake.run("CALL ducklake_flush_inlined_data('lake')")
    same_at_every_version(table, lake)
    back = table.rollback(versions[3])
    same_at_every_version(table, lake)
    assert plain(lake.rows()) == plain(lake_before(lake.rows_at([versions[3].id])[0], lake.rows()))
    assert back.rows == versions[3].rows


def lake_before(old, now):
    """Rows of an old version under the newest columns."""
    columns = next(iter(now.values()))
    renamed = [
        {**{name: value for name, value in row.items() if name != "label"}, "text": row["label"], "n": 3}
        for row in old.values()
    ]
    assert all(row.keys() == columns.keys() for row in renamed)
    return {row["sequence_id"]: row for row in renamed}


def test_a_table_that_duckdb_made_is_one_of_ours_once_its_comment_says_so(location, engine, tmp_path):
    lake = engine(location)
    path = location.partition("data_path=")[2] or f"{tmp_path}/data"
    options = f"DATA_PATH '{path}'"
    lake.run(MAKE, f"INSERT INTO {NAME} SELECT 'a' || i, i, 'x', [[i, i]] FROM range(30) t(i)", options=options)
    comment = '{"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 2}}}'
    lake.run(f"COMMENT ON TABLE {NAME} IS '{comment}'")
    table = ducklake.open(location)
    assert table.snapshot().schema["action"].dim == 2
    assert table.root.rstrip("/") == path
    same_at_every_version(table, lake)
    append(table, ["b", "c"])
    assert {"b", "c", "a7"} <= set(same_at_every_version(table, lake) and lake.rows())


@pytest.mark.sampled(every=3, start=2)
def test_columns_added_renamed_dropped_and_widened_on_either_side(location, engine):
    table = ducklake.create(location, tables.SCHEMA.with_columns({"n": pa.int32(), "gone": pa.string()}))
    append(table, ["a", "b"])
    lake = engine(location)

    def evolve(schema, **renamed):
        transaction = table.begin()
        table.commit(Change(operation="evolve", schema=schema, renamed=renamed), transaction=transaction)

    schema = table.snapshot().schema.with_columns({"more": Trajectory(dim=3)})
    evolve(schema)
    evolve(table.snapshot().schema.renamed({"label": "text"}), label="text")
    append(table, ["c"])
    evolve(table.snapshot().schema.without(["gone"]))
    evolve(table.snapshot().schema.with_columns({"n": pa.int64(), "action": Trajectory(dim=2, dtype=pa.float64())}))
    append(table, ["d"])
    evolve(table.snapshot().schema.with_columns({"gone": pa.int64()}))  # another column of an old name
    same_at_every_version(table, lake)
    lake.run(f"ALTER TABLE {NAME} RENAME COLUMN text TO label", f"ALTER TABLE {NAME} DROP COLUMN more")
    lake.run(
        f"ALTER TABLE {NAME} ADD COLUMN fresh VARCHAR DEFAULT 'new'",
        f"INSERT INTO {NAME} BY NAME SELECT 'q' AS sequence_id",
    )
    append(table, ["e"])
    same_at_every_version(table, lake)
    assert table.snapshot().schema["action"].value_type == pa.float64()
    assert rows_of(table.snapshot())["a"]["fresh"] == "new"
    assert lake.rows()["e"]["fresh"] is None


def test_nested_columns_that_grew_are_read_and_those_that_moved_are_refused(sqlite, engine):
    schema = Schema({"seen": pa.struct([("url", pa.string()), ("n", pa.int32())])})
    table = ducklake.create(sqlite, schema)
    rows = [{"sequence_id": "a", "seen": {"url": "x.mp4", "n": 1}}, {"sequence_id": "b", "seen": None}]
    transaction = table.begin()
    written = tables.write(table, transaction, rows)
    table.commit(Change(operation="append", add=[written]), transaction=transaction)
    lake = engine(sqlite)
    lake.run(f"INSERT INTO {NAME} VALUES ('c', {{'url': 'y', 'n': 2}})")
    lake.run(f"ALTER TABLE {NAME} ADD COLUMN seen.more DOUBLE")
    lake.run(f"INSERT INTO {NAME} VALUES ('d', {{'url': 'z', 'n': 3, 'more': 0.5}})")
    same_at_every_version(table, lake)
    assert rows_of(table.snapshot())["a"]["seen"] == {"url": "x.mp4", "n": 1, "more": None}
    lake.run(f"ALTER TABLE {NAME} RENAME COLUMN seen.n TO count")
    with pytest.raises(SchemaMismatchError, match=r"'count'.*renamed"):
        table.snapshot()


def test_what_cannot_be_read_is_refused_and_says_why(sqlite, engine, tmp_path):
    table = ducklake.create(sqlite, tables.SCHEMA)
    append(table, [f"a{number}" for number in range(9)])
    lake = engine(sqlite)
    lake.run("CALL lake.set_option('write_deletion_vectors', true)")
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id = 'a1'")
    with pytest.raises(SeqlakeError, match="experimental"):
        table.snapshot()
    lake.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)")
    assert len(rows_of(table.snapshot())) == 8
    locked = f"ducklake:sqlite:{tmp_path}/locked.sqlite?table={NAME}"
    engine(locked).run(MAKE, options=f"DATA_PATH '{tmp_path}/locked', ENCRYPTED")
    with pytest.raises(SeqlakeError, match="encrypted"):
        ducklake.open(locked)
    with pytest.raises(DatasetNotFoundError, match=r"main\.nobody.*main\.episodes"):
        ducklake.open(sqlite.replace(f"={NAME}", "=nobody"))


def test_a_dropped_table_is_gone_for_both_and_its_name_is_free(sqlite, engine):
    table = ducklake.create(sqlite, tables.SCHEMA)
    append(table, ["a"])
    table.drop()
    lake = engine(sqlite)
    assert lake.run("SELECT count(*) AS n FROM duckdb_tables() WHERE NOT internal AND database_name = 'lake'") == [
        {"n": 0}
    ]
    with pytest.raises(DatasetNotFoundError):
        ducklake.open(sqlite)
    again = ducklake.create(sqlite, tables.SCHEMA)
    append(again, ["b"])
    assert rows_of(again.snapshot()) == lake.rows() == expected(["b"])


def test_a_bucket_serves_both(tmp_path, s3_bucket, engine):
    uri, storage = s3_bucket
    location = f"ducklake:sqlite:{tmp_path}/lake.sqlite?table={NAME}&data_path={uri}/lake"
    table = ducklake.create(location, tables.SCHEMA, storage=storage)
    append(table, ["a", "b", "c"])
    host = storage["endpoint"].removeprefix("http://")
    secret = (
        f"CREATE SECRET s (TYPE s3, KEY_ID '{storage['access_key_id']}', SECRET '{storage['secret_access_key']}', "
        f"REGION 'us-east-1', ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
    )
    lake = engine(location, secret=secret)
    assert lake.rows() == expected(["a", "b", "c"])
    lake.run(f"DELETE FROM {NAME} WHERE sequence_id = 'b'")
    lake.run(f"INSERT INTO {NAME} SELECT 'd' || i, i, 'x', [[i, i]] FROM range(12) t(i)")
    versions = same_at_every_version(table, lake)
    table.rollback(versions[1])
    same_at_every_version(table, lake)
    assert rows_of(table.snapshot()) == expected(["a", "b", "c"])


def test_transactions_of_duckdb_that_began_before_ours_keep_or_lose_as_ducklake_says(postgres_lake, tmp_path, engine):
    location = f"ducklake:postgres:{postgres_lake}?table={NAME}&data_path={tmp_path}/data"
    table = ducklake.create(location, tables.SCHEMA)
    append(table, ["a", "b"])
    lake = engine(location)
    with lake.opened() as session:
        session.execute(f"BEGIN; INSERT INTO {NAME} VALUES ('c', 1, 'c', [[1, 2]])")
        append(table, ["d"])
        session.execute("COMMIT")
        session.execute(f"BEGIN; DELETE FROM {NAME} WHERE sequence_id = 'a'")
        append(table, ["e"], operation="rewrite", remove=keys(table.snapshot())[:1])
        with pytest.raises(duckdb.Error, match="conflict"):
            session.execute("COMMIT")
    assert set(rows_of(table.snapshot())) == set(lake.rows()) == {"c", "d", "e"}
    same_at_every_version(table, lake)


def test_an_id_that_duckdb_wrote_twice_is_found(sqlite, engine):
    table = ducklake.create(sqlite, tables.SCHEMA)
    append(table, ["a", "b"])
    lake = engine(sqlite)
    lake.run(f"INSERT INTO {NAME} VALUES ('b', 1, 'again', [[1, 2]]), ('c', 1, 'c', [[1, 2]])")
    report = sl.open(sqlite).validate(depth="rows")
    assert not report.ok
    assert any("b" in str(finding) and finding.severity == "error" for finding in report.findings)
    with pytest.raises(DuplicateSequenceError, match="'c'"):
        append(table, ["c"])


def _they_append(lake, writer):
    for number in range(8):
        for _ in range(50):
            with suppress(duckdb.TransactionException):
                lake.run(f"INSERT INTO {NAME} VALUES ('w{writer}-{number}', 1, 'theirs', [[1, 2]])")
                break
    return writer


def _we_append(lake, writer):
    for number in range(8):
        append(ducklake.open(lake.location), [f"w{writer}-{number}"])
    return writer


def test_duckdb_and_seqlake_append_at_once_and_no_row_is_lost_or_doubled(postgres_lake, tmp_path, engine):
    location = f"ducklake:postgres:{postgres_lake}?table={NAME}&data_path={tmp_path}/data"
    table, lake = ducklake.create(location, tables.SCHEMA), engine(location)
    with fresh().Pool(4) as pool:
        running = [pool.apply_async((_they_append, _we_append)[n % 2], (lake, n)) for n in range(4)]
        assert sorted(one.get(timeout=300) for one in running) == [0, 1, 2, 3]
    wanted = {f"w{writer}-{number}" for writer in range(4) for number in range(8)}
    assert set(lake.rows()) == set(rows_of(table.snapshot())) == wanted
    same_at_every_version(table, lake)


def test_a_catalog_in_a_schema_of_its_own(postgres_lake, tmp_path, engine):
    location = f"ducklake:postgres:{postgres_lake}?metadata_schema=meta&data_path={tmp_path}/data&table={NAME}"
    append(ducklake.create(location, tables.SCHEMA), ["a"])
    lake = engine(location)
    found = lake.run(f"SELECT sequence_id FROM {NAME}", options="METADATA_SCHEMA 'meta'")
    assert found == [{"sequence_id": "a"}]
    with pytest.raises(DatasetNotFoundError):
        ducklake.open(location.replace("metadata_schema=meta&", ""))


def test_a_lake_that_moved_and_a_table_that_was_renamed(tmp_path, engine):
    first = tmp_path / "first"
    location = f"ducklake:sqlite:{first}/lake.sqlite?table={NAME}"
    table = ducklake.create(location, tables.SCHEMA)
    version = append(table, ["a", "b"])
    engine(location).run(f"ALTER TABLE {NAME} RENAME TO takes")
    renamed = location.replace(f"={NAME}", "=takes")
    append(ducklake.open(renamed), ["c"])
    assert set(rows_of(ducklake.open(renamed).snapshot())) == {"a", "b", "c"}
    assert rows_of(ducklake.open(renamed).snapshot(version.id)) == expected(["a", "b"])
    first.rename(tmp_path / "second")
    moved = renamed.replace("/first/", "/second/") + f"&data_path={tmp_path}/second/lake.sqlite.files"
    append(ducklake.open(moved), ["d"])
    assert set(rows_of(ducklake.open(moved).snapshot())) == {"a", "b", "c", "d"}
    override = f"DATA_PATH '{tmp_path}/second/lake.sqlite.files', OVERRIDE_DATA_PATH true"
    found = engine(moved).run("SELECT sequence_id FROM takes ORDER BY 1", options=override)
    assert [row["sequence_id"] for row in found] == ["a", "b", "c", "d"]


def test_partition_values_of_every_type_are_found_by_duckdb(tmp_path, engine):
    moment = datetime(2020, 1, 1, 1, 2, 3, 400_000)
    kinds = {
        "i": (pa.int64(), -2),
        "b": (pa.bool_(), True),
        "d": (pa.date32(), date(2021, 1, 1)),
        "f": (pa.float64(), 1e20),
        "g": (pa.float32(), 0.1),
        "t": (pa.timestamp("us"), moment),
        "z": (pa.timestamp("us", "UTC"), moment.replace(tzinfo=UTC)),
        "c": (pa.decimal128(10, 2), Decimal("1.50")),
        "s": (pa.string(), "a b/c=d%é'"),
    }
    location = f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=t_"
    for name, (kind, value) in kinds.items():
        rows = [{"sequence_id": "a", "v": value}, {"sequence_id": "n", "v": None}]
        sl.create(f"{location}{name}", {"v": kind}, partition_by=["v"]).append(rows)
    lake = engine(f"{location}i")
    lake.each(*(f"INSERT INTO t_{name} SELECT sequence_id || i, v FROM t_{name}, range(20) r(i)" for name in kinds))
    with sqlite3.connect(f"{tmp_path}/lake.sqlite") as catalog:
        found = catalog.execute("SELECT table_id, partition_value FROM ducklake_file_partition_value").fetchall()
    catalog.close()
    assert len(found) == 4 * len(kinds)
    assert len(set(found)) == 2 * len(kinds), "DuckDB writes a value otherwise than we do"
    truth = lake.each(*(f"SELECT v FROM t_{name} WHERE sequence_id = 'a'" for name in kinds))
    for name, told in zip(kinds, truth, strict=True):
        assert told == [{"v": rows_of(ducklake.open(f"{location}{name}").snapshot())["a"]["v"]}]


def test_rows_that_were_written_before_the_table_was_partitioned_are_refused(sqlite, engine):
    table = ducklake.create(sqlite, tables.SCHEMA)
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("a")])
    engine(sqlite).run(f"ALTER TABLE {NAME} SET PARTITIONED BY (label)")
    with pytest.raises(CommitConflictError, match="it is by label"):
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    sl.open(sqlite).append([tables.episode("a")])
    assert engine(sqlite).run(f"SELECT sequence_id FROM {NAME} WHERE label = 'label of a'") == [{"sequence_id": "a"}]

"""Spark reads what a dataset holds, by its own format, and writes datasets by one commit."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import (
    CommitUnknownError,
    DatasetNotFoundError,
    MissingDependencyError,
    SchemaMismatchError,
    SeqlakeError,
)
from seqlake.spark import _source
from seqlake.testing import samples

pytestmark = pytest.mark.filterwarnings("ignore")  # of Spark, about pandas and its own sockets

ACTION = '{"action": {"type": "trajectory", "dim": 12}}'


@pytest.fixture
def ds(tmp_path):
    ds = samples.arm_dataset(tmp_path / "arm", count=20)
    ds.append(samples.arm_episodes(15, first=20))
    return ds


@pytest.fixture
def read(spark):
    sl.spark.register(spark)

    def read(place, **options):
        return spark.read.format("seqlake").options(**options).load(str(place))

    return read


def save(frame, place, mode="append", **options):
    frame.write.format("seqlake").mode(mode).options(**options).save(str(place))


def same(frame, expected):
    table = frame.toArrow()
    assert table.column_names == expected.column_names
    return table.cast(expected.schema).equals(expected)


def test_rows_are_those_of_the_dataset_in_their_order(ds, read):
    frame = read(ds.location)
    assert same(frame, ds.to_arrow())
    assert frame.count() == 35
    parts = read(ds.location, bytes_per_partition="40000")
    assert parts.rdd.getNumPartitions() > 2
    assert same(parts, ds.to_arrow())


def test_columns_and_rows_are_chosen_by_options(ds, read):
    good = ds.where("task = 'pick' AND len(action) > 20").select("sequence_id", "reward")
    frame = read(ds.location, where="task = 'pick' AND len(action) > 20", columns="sequence_id, reward")
    assert 0 < len(good) < 35
    assert same(frame, good.to_arrow())
    assert same(read(ds.location, columns='["reward"]'), ds.select("reward").to_arrow())
    assert read(ds.location, where="reward < -1e9").count() == 0


def test_a_schema_of_the_user_says_which_columns_are_read_and_their_types(ds, spark, read):
    sl.spark.register(spark)
    frame = spark.read.format("seqlake").schema("reward double, sequence_id string").load(str(ds.location))
    table = frame.toArrow()
    assert table.schema.types == [pa.float64(), pa.string()]
    assert table["reward"].to_pylist() == ds.to_arrow()["reward"].to_pylist()
    with pytest.raises(Exception, match="rewards"):
        spark.read.format("seqlake").schema("rewards double").load(str(ds.location)).collect()


def test_filters_of_sparks_own_hold_and_do_not_leak(ds, read):
    frame = read(ds.location)
    good = sorted(row["sequence_id"] for row in frame.filter("task = 'pick'").collect())
    assert good == sorted(ds.where("task = 'pick'").to_arrow()["sequence_id"].to_pylist())
    assert 0 < len(good) < 35
    assert frame.count() == len(frame.collect()) == 35  # what was filtered once is not left out again
    assert frame.groupBy("task").count().count() == len(set(ds.to_arrow()["task"].to_pylist()))


def test_a_frame_stays_at_its_version(ds, read):
    frame, first = read(ds.location), read(ds.location, version="1")
    ds.append(samples.arm_episodes(5, first=35))
    assert (frame.count(), first.count(), read(ds.location).count()) == (35, 20, 40)


def test_values_of_every_type_arrive(tmp_path, read):
    columns = {
        "u8": pa.uint8(),
        "u64": pa.uint64(),
        "half": pa.float16(),
        "day": pa.date32(),
        "at": pa.timestamp("ms", "Europe/Berlin"),
        "local": pa.timestamp("s"),
        "took": pa.duration("ms"),
        "price": pa.decimal128(20, 3),
        "raw": pa.binary(),
        "tags": pa.list_(pa.uint16()),
        "place": pa.struct({"name": pa.string(), "n": pa.uint32()}),
        "pose": sl.Trajectory(dim=3, dtype="float64"),
    }
    row = {
        "u8": 255,
        "u64": 2**64 - 1,
        "half": 0.5,
        "day": date(2026, 2, 3),
        "at": datetime(2026, 2, 3, 4, 5, 6, 7000, tzinfo=UTC),
        "local": datetime(2026, 2, 3, 4, 5, 6),
        "took": timedelta(milliseconds=90_061_001),
        "price": Decimal("12345678901234567.891"),
        "raw": b"\x00\xff",
        "tags": [65535, 0],
        "place": {"name": "Köln", "n": 2**32 - 1},
        "pose": [[1.5, 2.5, float("inf")]] * 2,
    }
    ds = sl.create(tmp_path / "types", columns)
    ds.append([{"sequence_id": "full", **row}, {"sequence_id": "none", **dict.fromkeys(row)}])
    full, none = read(tmp_path / "types").collect()
    assert full["took"] == row["took"]
    assert full["at"].timestamp() == row["at"].timestamp()
    found = full.asDict(recursive=True)
    for name in row.keys() - {"at", "raw"}:
        assert found[name] == row[name], name
    assert bytes(found["raw"]) == row["raw"]
    assert all(none[name] is None for name in row)
    again = sl.create(tmp_path / "again", columns)
    save(read(tmp_path / "types"), again.location)  # the types that Spark lacks are those of the dataset again
    assert sl.open(again.location).to_arrow().equals(ds.to_arrow())


def test_data_of_other_formats_are_read_as_they_are(tmp_path, read):
    table = pa.table({"sequence_id": ["a", "b"], "pose": [[[0.0, 1.0]] * 3, [[2.0, 3.0]]]})
    (tmp_path / "theirs").mkdir()
    pq.write_table(table, tmp_path / "theirs" / "0.parquet")
    assert same(read(tmp_path / "theirs", where="len(pose) = 3"), table.slice(0, 1))


def test_what_is_written_is_one_commit(ds, tmp_path, read):
    from pyspark.sql import functions

    out = tmp_path / "out"
    frame = read(ds.location, bytes_per_partition="60000").withColumn("reward", functions.col("reward") * 2)
    assert frame.rdd.getNumPartitions() > 1
    save(frame, out, column_types=ACTION)
    written = sl.open(out)
    assert [version.operation for version in written.versions()] == ["create", "append"]
    assert not written.validate(depth="rows").errors
    assert written.schema["action"].type.get("dim") == 12
    assert np.allclose(written.to_arrow()["reward"], np.asarray(ds.to_arrow()["reward"]) * 2)
    assert written.to_arrow()["action"].equals(ds.to_arrow()["action"])
    save(read(ds.location, where="false"), out)
    assert len(sl.open(out)) == 35


def test_rows_are_appended_and_ids_stay_unique(ds, tmp_path, spark, read):
    sl.spark.register(spark)
    more = spark.createDataFrame([("new", 1.0)], "sequence_id string, reward float")
    save(more, ds.location)
    assert (len(sl.open(ds.location)), sl.open(ds.location)["new"]["reward"]) == (36, 1.0)
    before = {*(tmp_path / "arm").rglob("*")}
    with pytest.raises(Exception, match="already"):
        save(more, ds.location)
    assert len(sl.open(ds.location)) == 36
    left = {path.name for path in {*(tmp_path / "arm").rglob("*")} - before if path.is_file()}
    assert not left


def test_files_are_copied_in_from_the_root(tmp_path, read):
    schema = sl.Schema({"cam": sl.Video(fps=10), "action": sl.Trajectory(dim=1, fps=10)})
    ds = sl.create(tmp_path / "films", schema)
    frames = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    with ds.writer() as writer:
        writer.add("a", cam=frames, action=np.zeros((4, 1)))
    types = json.dumps({name: column.type.to_json() for name, column in schema.items() if column.type})
    save(read(ds.location), tmp_path / "out", root=str(ds.root), column_types=types)
    out = sl.open(tmp_path / "out")
    assert np.array_equal(out[0]["cam"][:], ds[0]["cam"][:])
    assert not out.validate(depth="files").errors
    rows = ds.to_arrow()
    with pytest.raises(SeqlakeError, match="not there"):
        begun(tmp_path / "lost", rows, column_types=types)


def test_a_failure_leaves_nothing(ds, tmp_path, spark, read):
    sl.spark.register(spark)
    rows = [(f"ep_{n}", [[0.0] * (11 if n == 39 else 12)]) for n in range(40)]
    frame = spark.createDataFrame(rows, "sequence_id string, action array<array<float>>").repartition(4)
    with pytest.raises(Exception, match="every step must have 12 values"):
        save(frame, tmp_path / "out", column_types=ACTION)
    with pytest.raises(DatasetNotFoundError):
        sl.open(tmp_path / "out")
    assert_settles(tmp_path / "out", set())
    files = files_in(tmp_path / "arm")
    with pytest.raises(Exception, match="every step must have 12 values"):
        save(frame, ds.location)
    assert len(sl.open(ds.location)) == 35
    if assert_settles(tmp_path / "arm", files):
        sl.open(ds.location).vacuum(older_than=timedelta(0))
        assert not files_in(tmp_path / "arm") - files


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def assert_settles(folder, files):
    """Tasks that are late remove what they wrote; one that Spark kills over it leaves staged files, and no others."""
    for _ in range(100):
        if not (left := files_in(folder) - files):
            break
        time.sleep(0.1)
    assert files_in(folder) >= files
    assert all(path.parent == folder / "_seqlake" / "staged" for path in left)
    return left


# ---- what Spark calls in other processes, called here


def source(place, **options):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    return _source()({"path": str(place), **options})


def begun(place, rows, **options):
    types = pytest.importorskip("pyspark.sql.pandas.types", reason="pyspark is not installed")
    writer = source(place, **options).writer(types.from_arrow_schema(rows.schema), False)
    return writer, writer.writing.write(0, rows.to_batches())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"colums": "reward"}, "takes no option 'colums'"),
        ({"columns": "rewrd"}, "rewrd"),
        ({"columns": "[1]"}, "JSON list"),
        ({"columns": "["}, "JSON list"),
        ({"version": "77"}, "77"),
        ({"where": "rewrd > 3"}, "rewrd"),
        ({"where": "reward >"}, "reward"),
        ({"bytes_per_partition": "many"}, "whole number"),
        ({"bytes_per_partition": "0"}, "at least 1"),
    ],
)
def test_wrong_options_of_reading_are_said(options, says, ds):
    with pytest.raises((TypeError, ValueError, SeqlakeError), match=says):
        reading = source(ds.location, **options)
        reading.reader(reading.schema()).partitions()


def test_one_place_is_read(tmp_path):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    with pytest.raises(TypeError, match="one place"):
        _source()({}).schema()
    with pytest.raises(SeqlakeError):
        source(tmp_path / "nothing").schema()


def test_what_cannot_be_written_is_said_before_anything_is_made(ds, tmp_path):
    out, rows = tmp_path / "out", ds.select("sequence_id", "reward").to_arrow()
    for given, options, says in [
        (rows, {"column_types": "{"}, "cannot be used"),
        (rows, {"column_types": '{"rewad": {"type": "x"}}'}, "the rows have"),
        (rows, {"types": ACTION}, "takes no option 'types'"),
        (rows.select(["reward"]), {}, "sequence_id"),
    ]:
        with pytest.raises((TypeError, ValueError, SeqlakeError), match=says):
            begun(out, given, **options)
        assert not out.exists()
    for given, options, says in [
        (rows.rename_columns(["sequence_id", "score"]), {}, "score"),
        (rows.set_column(1, "reward", pa.array(["much"] * 35)), {}, "reward: expected float, found string"),
        (rows, {"column_types": ACTION}, "leave column_types out"),
    ]:
        before = {*(tmp_path / "arm").rglob("*")}
        with pytest.raises(SeqlakeError, match=says):
            begun(ds.location, given, **options)
        assert {*(tmp_path / "arm").rglob("*")} == before
    with pytest.raises(TypeError, match="is not overwritten"):
        source(out).writer(None, True)


def test_a_commit_that_may_have_been_made_is_not_taken_back(tmp_path, monkeypatch):
    rows = pa.table({"sequence_id": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    writer, receipt = begun(tmp_path / "out", rows)

    class Message:
        def __init__(self, receipt):
            self.receipt = receipt

    sink = type(writer.writing.sink)
    commit = sink.commit

    def lost(self, receipts):
        commit(self, receipts)
        raise CommitUnknownError("the answer was lost")

    monkeypatch.setattr(sink, "commit", lost)
    with pytest.raises(CommitUnknownError):
        writer.commit([Message(receipt)])
    writer.abort([Message(receipt)])  # as Spark does after every commit that failed
    assert sl.open(tmp_path / "out").to_arrow()["n"].to_pylist() == [1, 2]
    assert not sl.open(tmp_path / "out").validate(depth="rows").errors


def test_tasks_that_failed_take_the_others_along(tmp_path):
    rows = pa.table({"sequence_id": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    writer, _ = begun(tmp_path / "out", rows)
    assert (tmp_path / "out" / "mixtrain.json").exists()
    writer.abort([None])
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_what_spark_cannot_hold_is_said(tmp_path):
    ds = sl.create(tmp_path / "wide", {"huge": pa.decimal256(60, 2), "n": pa.int64()})
    with pytest.raises(SchemaMismatchError, match="'huge': Spark has no type"):
        source(ds.location).schema()
    assert source(ds.location, columns="n").schema().names == ["n"]


def test_without_pyspark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspark.sql.datasource", None)
    with pytest.raises(MissingDependencyError, match=r"seqlake\[spark\]"):
        sl.spark.register(None)


def test_a_task_that_comes_too_late_leaves_nothing(tmp_path):
    """Spark aborts while other tasks are at work, and commits while the slower twin of a task is."""
    rows = pa.table({"sequence_id": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    ds = sl.create(tmp_path / "out", {"n": pa.int64()})
    writer, receipt = begun(ds.location, rows)
    twin = writer.writing
    writer.writing.commit([receipt])
    held = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(SeqlakeError, match="came too late"):
        twin.write(0, rows.to_batches())
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == held
    assert sl.open(ds.location).to_arrow()["n"].to_pylist() == [1, 2]
    writer, _ = begun(ds.location, rows)
    writer.abort([None])
    with pytest.raises(SeqlakeError, match="came too late"):
        writer.writing.write(1, rows.to_batches())
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == held
    assert not sl.open(ds.location).validate(depth="rows").errors

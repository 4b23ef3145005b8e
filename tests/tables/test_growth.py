"""What grows with shards and commits, and what does not: requests and opened shards, counted and never timed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import obstore
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import DuplicateSequenceError
from seqlake.protocols import Change
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.tables import standalone
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.records import VersionRecord
from seqlake.testing import tables
from seqlake.versions import names

ROWS = 4
FEW, MANY = 10, 40


def of_many_shards(place, shards, *, storage=None):
    """So many shards of four rows by one commit, `number` ascending from shard to shard."""
    schema = sl.Schema({"action": sl.Trajectory(dim=2), "number": pa.int64(), "reward": pa.float64()})
    ds = sl.create(str(place), schema, storage=storage)
    table = ds.table
    transaction = table.begin()
    written = []
    for shard in range(shards):
        rows = [row(shard * ROWS + one) for one in range(ROWS)]
        written.append(tables.write(table, transaction, rows, n=str(shard)))
    table.commit(Change(operation="append", add=written), transaction=transaction)


def row(number):
    action = [[float(number), float(step)] for step in range(number % 3 + 2)]
    return {"sequence_id": f"ep_{number:05d}", "action": action, "number": number, "reward": number / 2}


@pytest.fixture
def requests(monkeypatch):
    """Every request to an object store from now on: (verb, path)."""
    seen = []
    for verb in ("get", "head", "list", "put", "copy", "delete"):
        real = getattr(obstore, verb)

        def call(store, *args, _verb=verb, _real=real, **options):
            seen.append((_verb, str(args[0] if args else "")))
            return _real(store, *args, **options)

        monkeypatch.setattr(obstore, verb, call)
    return seen


@pytest.fixture
def opened(monkeypatch):
    """How often each file is read from, whichever columns."""
    seen = Counter()
    real = ParquetReader.batches

    def batches(self, *args, **options):
        seen[id(self)] += 1
        return real(self, *args, **options)

    monkeypatch.setattr(ParquetReader, "batches", batches)
    return seen


WINDOW = sl.Window({"action": range(2)}, edges="drop")
ACTS = {
    "open": len,
    "one sequence": lambda ds: ds["ep_00021"]["action"],
    "where, by bounds": lambda ds: len(ds.where("number BETWEEN 20 AND 22")),
    "where, by bounds of floats": lambda ds: len(ds.where("reward > 9.5 AND reward < 11")),
    "plan": lambda ds: str(sl.Loader(ds, window=WINDOW, batch_size=4).plan()),
    "append": lambda ds: ds.append([row(9_999)]),
    "versions": lambda ds: ds.versions(),
}


def test_requests_that_do_not_grow_with_shards(s3_bucket, requests):
    """Ten shards or forty: an act asks as often."""
    counts = {}
    for shards in (FEW, MANY):
        place = f"{s3_bucket.uri}/of-{shards}"
        of_many_shards(place, shards, storage=s3_bucket.storage)
        for name, act in ACTS.items():
            requests.clear()
            act(sl.open(place, storage=s3_bucket.storage))
            counts[name, shards] = len(requests)
    assert {name: counts[name, MANY] for name in ACTS} == {name: counts[name, FEW] for name in ACTS}
    assert counts["open", FEW] <= 8


def test_requests_that_grow_with_shards_have_small_constants(s3_bucket, requests):
    """Compacting asks a bounded number of times for each shard; what is removed goes many at a time."""
    counts = {}
    for shards in (FEW, MANY):
        place = f"{s3_bucket.uri}/of-{shards}"
        of_many_shards(place, shards, storage=s3_bucket.storage)
        ds = sl.open(place, storage=s3_bucket.storage)
        requests.clear()
        sl.compact(ds)
        counts["compact", shards] = Counter(verb for verb, _ in requests)
        requests.clear()
        ds.vacuum(older_than=timedelta(0))
        counts["vacuum", shards] = Counter(verb for verb, _ in requests)
        assert len(sl.open(place, storage=s3_bucket.storage)) == shards * ROWS
        assert not list(obstore.list(ds.source.context.store.handle(), prefix="_seqlake/retired/").collect())

    def each(act):  # requests for one more shard
        more = counts[act, MANY] - counts[act, FEW]
        return {verb: count / (MANY - FEW) for verb, count in more.items()}

    assert each("compact")["copy"] == each("compact")["delete"] == 1  # from data/ to retired/
    assert "head" not in each("compact")
    assert each("compact")["get"] <= 6
    assert each("vacuum") == {}


def test_a_commit_of_a_bucket_asks_thrice_for_each_new_shard(s3_bucket, requests):
    """It is put, and moved: a copy and a delete."""
    counts = {}
    for shards in (FEW, MANY):
        requests.clear()
        of_many_shards(f"{s3_bucket.uri}/of-{shards}", shards, storage=s3_bucket.storage)
        counts[shards] = Counter(verb for verb, _ in requests)
    more = {verb: count / (MANY - FEW) for verb, count in (counts[MANY] - counts[FEW]).items()}
    more.pop("list")  # the test looks at the newest version for each shard that it writes
    assert more == {"put": 1, "copy": 1, "delete": 1}


@pytest.mark.parametrize("shards", [20, 90])  # of which 64 are remembered
def test_ids_of_a_shard_are_read_once_a_commit(shards, tmp_path, opened):
    """What a rewrite takes away is not asked for its ids, and what is there already is asked once for each shard."""
    of_many_shards(tmp_path / "ds", shards)
    ds = sl.open(tmp_path / "ds")
    opened.clear()
    sl.compact(ds)
    assert sum(opened.values()) <= 2 * shards  # its rows, and their lengths
    ds.rollback(1)
    opened.clear()
    everything = sl.open(tmp_path / "ds").to_arrow().combine_chunks()
    opened.clear()
    with pytest.raises(DuplicateSequenceError, match="which the dataset has already"):
        ds.append(everything)
    assert sum(opened.values()) <= shards + 2
    opened.clear()
    assert len(ds.where(ids=everything["sequence_id"])) == shards * ROWS
    assert sum(opened.values()) <= shards


class Slow:
    """A log's store that counts rounds of reading."""

    def __init__(self, log, monkeypatch):
        self.rounds = 0
        real = log.records

        def records(first, last, /):
            self.rounds += 1
            return real(first, last)

        monkeypatch.setattr(log, "records", records)


def long_log(folder, commits):
    """A table with so many versions that change nothing, a minute apart; the last was made now."""
    standalone.create(str(folder), tables.SCHEMA)
    log = Log(sl.open(str(folder)).source.context.store)
    state, now = log.newest(), datetime.now(UTC)
    for number in range(1, commits + 1):
        transaction = names.new_transaction()
        time = now - timedelta(minutes=commits - number)
        record = VersionRecord(
            version=number,
            transaction=transaction,
            time=time,
            operation="append",
            writer="test",
            rows=0,
            previous=state.digest,
        )
        data = record.encode()
        (Path(folder) / names.version(number)).write_bytes(data)
        state = log.newest()
    return log


def test_a_time_long_ago_is_found_in_few_rounds(tmp_path, monkeypatch):
    log = long_log(tmp_path / "ds", 200)
    newest = log.newest()
    for minutes in (0, 1, 7, 80, 198):
        slow = Slow(log, monkeypatch)
        assert log.at_time(newest.time - timedelta(minutes=minutes, seconds=1)).version == 199 - minutes
        assert slow.rounds <= 8
    monkeypatch.undo()


def test_vacuum_reads_no_record_that_no_version_needs(tmp_path, monkeypatch):
    """The beginning of the log is read only where shards lie about whose names somebody else gave."""
    log = long_log(tmp_path / "ds", 150)
    ds = sl.open(tmp_path / "ds")
    ds.append([tables.episode("a")])
    ds.vacuum(older_than=timedelta(0))
    read = []
    real = Log.records
    monkeypatch.setattr(Log, "records", lambda self, first, last, /: read.append(first) or real(self, first, last))
    sl.open(tmp_path / "ds").vacuum(older_than=timedelta(0))
    assert min(read) > log.newest().version - 5


def test_bounds_of_the_log_leave_out_no_row(tmp_path):
    """Columns that were renamed, dropped, added anew, widened or labelled later, and NaN: always what DuckDB says."""
    of_many_shards(tmp_path / "ds", 6)
    ds = sl.open(tmp_path / "ds")
    ds.add_column("grade", pa.int32(), values={f"ep_{n:05d}": n % 5 for n in range(0, 24, 2)})
    ds.update([{"sequence_id": "ep_00001", "reward": float("nan")}, {"sequence_id": "ep_00002", "number": 1_000}])
    ds.rename_column("number", "count")
    ds.add_column("number", pa.int64(), values={"ep_00020": -1})
    ds.add_column("grade2", pa.int64(), sql="grade + 1")
    ds.drop_column("grade")
    ds.add_column("grade", pa.string(), values={"ep_00003": "good"})
    ds.append([{"sequence_id": "x", "count": 5, "number": 77, "reward": -1.0, "grade": "bad"}])
    ds.rename_column("grade2", "mark")
    whole = ds.select("sequence_id", "count", "number", "reward", "grade", "mark").to_arrow()  # noqa: F841 - DuckDB's
    import duckdb

    bounds = [ds.source.bounds(name) for name in ("count", "number", "reward", "grade", "mark")]
    assert any(one is not None for column in bounds for one in column)
    for condition in (
        *("count = 1000", "count < 3", "count >= 20", "number = -1", "number > 50", "number IN (20, 21)"),
        *("reward > 5", "reward >= 'nan'::DOUBLE", "reward = 'nan'::DOUBLE", "reward < 0", "grade = 'good'"),
        *("grade < 'c'", "mark = 3", "mark > 4", "mark IS NULL", "count BETWEEN 8 AND 9 AND reward < 100"),
    ):
        expected = duckdb.sql(f"SELECT sequence_id FROM whole WHERE {condition}").fetchall()
        assert sorted(ds.where(condition).to_arrow()["sequence_id"].to_pylist()) == sorted(
            one for (one,) in expected
        ), condition
    assert np.isnan(ds["ep_00001"]["reward"])

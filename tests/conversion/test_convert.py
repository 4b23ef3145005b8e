"""Conversions end to end: what arrives, what is refused, what is left after a failure, going on after a kill."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake import plugins
from seqlake.dataset import opening
from seqlake.errors import (
    CorruptFileError,
    DatasetExistsError,
    DatasetNotFoundError,
    DuplicateSequenceError,
    SchemaMismatchError,
    SeqlakeError,
    UnknownPluginError,
)
from seqlake.files.stores import open_store


def episodes(count, *, seed=0, prefix="ep"):
    """A table of sequences with a signal, a scalar, nulls and empty cells."""
    rng = np.random.default_rng(seed)
    cells = [None if n % 7 == 3 else rng.normal(size=(n % 5, 3)).astype(np.float32).tolist() for n in range(count)]
    return pa.table(
        {
            "sequence_id": pa.array([f"{prefix}{n:04d}" for n in range(count)], pa.string()),
            "reward": pa.array([None if n % 6 == 5 else n / 3 for n in range(count)], pa.float64()),
            "action": pa.array(cells, pa.list_(pa.list_(pa.float32(), 3))),
        }
    )


def same(dataset, table):
    found = dataset.to_arrow()
    return found.select(table.column_names).cast(table.schema).combine_chunks() == table.combine_chunks()


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ---- what arrives


@pytest.mark.parametrize("bytes_per_part", [1, 700, 1 << 30])
def test_rows_arrive_in_order_whatever_the_parts(tmp_path, bytes_per_part):
    table = episodes(23)
    dataset = sl.convert(sl.scan(table), tmp_path / "out", workers=1, bytes_per_part=bytes_per_part)
    assert same(dataset, table)
    assert dataset.schema["action"].category == "temporal"
    assert [version.operation for version in dataset.versions()][-1] == "append"


def test_the_result_does_not_depend_on_the_workers(tmp_path):
    table = episodes(40)
    one = sl.convert(sl.scan(table), tmp_path / "one", workers=1, bytes_per_part=300)
    two = sl.convert(sl.scan(table), tmp_path / "two", workers=2, bytes_per_part=300)
    assert same(one, table)
    assert same(two, table)
    assert len(one.shards()) == len(two.shards()) > 3


def test_a_selection_and_its_metadata(tmp_path):
    schema = sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=2, units="rad"), "x": pa.int64()})
    source = sl.create(tmp_path / "source", schema)
    with source.writer() as writer:
        for n in range(6):
            writer.add(f"ep{n}", task="ab"[n % 2], action=np.full((n, 2), n, np.float32), x=n)
    chosen = source.where("task = 'b'").select("sequence_id", "action", "x")
    dataset = sl.convert(chosen, tmp_path / "out", workers=1)
    assert dataset.to_arrow()["sequence_id"].to_pylist() == ["ep1", "ep3", "ep5"]
    assert dataset.schema == chosen.schema
    assert dataset.schema["action"].type.get("units") == "rad"
    np.testing.assert_array_equal(dataset["ep3"]["action"], np.full((3, 2), 3, np.float32))


def test_an_empty_source_makes_an_empty_dataset(tmp_path):
    dataset = sl.convert(sl.scan(episodes(0)), tmp_path / "out")
    assert len(dataset) == 0
    assert "action" in dataset.schema


def test_options_of_the_shards(tmp_path):
    dataset = sl.convert(sl.scan(episodes(10)), tmp_path / "out", layout="archive", rows_per_shard=4)
    assert [shard.rows for shard in dataset.shards()] == [4, 4, 2]
    [file, *_] = sorted((tmp_path / "out" / "data").glob("*.parquet"))
    assert pq.ParquetFile(file).metadata.row_group(0).column(2).compression == "ZSTD"


def test_from_a_folder_to_an_object_store_and_back(arm, tmp_path, s3_bucket):
    place = f"{s3_bucket.uri}/arm"
    there = sl.convert(arm, place, workers=2, bytes_per_part=400, storage=s3_bucket.storage)
    here = sl.convert(arm, tmp_path / "here")
    back = sl.convert(place, tmp_path / "back", storage=s3_bucket.storage)
    assert there.to_arrow().combine_chunks() == here.to_arrow().combine_chunks() == back.to_arrow().combine_chunks()
    assert back.schema == here.schema
    assert len(here) == 6


def test_files_come_from_the_source_s_own_store(tmp_path, s3_bucket):
    (tmp_path / "clip.mp4").write_bytes(b"clip" * 100)
    source = sl.create(f"{s3_bucket.uri}/filmed", {"cam": sl.Video(fps=30)}, storage=s3_bucket.storage)
    with source.writer() as writer:
        writer.add("a", cam=sl.File(tmp_path / "clip.mp4"))
    by_location = sl.convert(source.location, tmp_path / "one", storage=s3_bucket.storage)
    opened = sl.convert(source.where("sequence_id = 'a'"), tmp_path / "two", workers=1)
    for made in (by_location, opened):
        assert made["a"]["cam"].read() == b"clip" * 100
        assert made["a"]["cam"].location.startswith(str(tmp_path))


# ---- dry runs and refusals


def test_a_dry_run_writes_nothing(tmp_path):
    plan = sl.convert(sl.scan(episodes(10)), tmp_path / "out", dry_run=True, bytes_per_part=100)
    assert plan.rows == 10
    assert json.loads(json.dumps(plan.to_json()))["rows"] == 10
    assert everything(tmp_path) == []


def test_a_place_that_is_taken(tmp_path):
    sl.convert(sl.scan(episodes(3)), tmp_path / "out")
    before = everything(tmp_path)
    with pytest.raises(DatasetExistsError, match="3 sequences"):
        sl.convert(sl.scan(episodes(5)), tmp_path / "out")
    assert everything(tmp_path) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("do not touch")
    with pytest.raises(DatasetExistsError, match=r"thesis\.tex"):
        sl.convert(sl.scan(episodes(5)), tmp_path / "other")
    assert everything(tmp_path / "other") == ["thesis.tex"]


def test_an_empty_dataset_of_the_same_columns_may_be_filled(tmp_path):
    table = episodes(4)
    sl.convert(sl.scan(table.slice(0, 0)), tmp_path / "out")
    assert same(sl.convert(sl.scan(table), tmp_path / "out"), table)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"to": "no-such-format"}, UnknownPluginError, "no-such-format"),
        ({"on": "slurm"}, UnknownPluginError, "known are processes, ray"),
        ({"splitt": "train"}, TypeError, "splitt"),
        ({"to": "csv"}, SeqlakeError, "can be read but not written"),
        ({"layout": "fancy"}, ValueError, "fancy"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, arguments, error, words):
    with pytest.raises(error, match=words):
        sl.convert(sl.scan(episodes(3)), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_sources_that_cannot_be_converted(tmp_path):
    with pytest.raises(DatasetNotFoundError):
        sl.convert(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(SchemaMismatchError, match="sequence_id"):
        sl.convert(sl.scan(episodes(3)).select("reward"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- failures leave nothing


def test_duplicate_ids_leave_nothing(tmp_path):
    table = pa.concat_tables([episodes(4), episodes(2)])
    with pytest.raises(DuplicateSequenceError, match="ep0000"):
        sl.convert(sl.scan(table), tmp_path / "out", bytes_per_part=100, workers=1)
    assert not (tmp_path / "out").exists()


def test_a_ragged_cell_is_named(tmp_path):
    ragged = pa.table(
        {
            "sequence_id": ["good", "bad"],
            "action": pa.array([[[1.0, 2.0]], [[1.0], [1.0, 2.0]]], pa.list_(pa.list_(pa.float32()))),
        }
    )
    source = sl.scan(ragged, column_types={"action": sl.Trajectory(dim=2)})
    with pytest.raises(ValueError, match=r"(?s)memory#.*sequence 'bad'.*'action'"):
        sl.convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_record_names_its_shard_and_leaves_nothing(tmp_path, damaged_arm, workers):
    with pytest.raises(
        CorruptFileError,
        match=r"arm-train\.tfrecord-00001-of-00002.*sequence 'arm-train-00001-00001': Record 1 .*checksum",
    ):
        sl.convert(damaged_arm, tmp_path / "out", workers=workers, bytes_per_part=100)
    assert not (tmp_path / "out").exists()


def test_a_failure_leaves_nothing_on_an_object_store_either(damaged_arm, s3_bucket):
    place = f"{s3_bucket.uri}/arm"
    with pytest.raises(CorruptFileError):
        sl.convert(damaged_arm, place, workers=1, bytes_per_part=100, storage=s3_bucket.storage)
    assert list(open_store(place, storage=s3_bucket.storage).list()) == []


def test_with_a_work_folder_the_good_parts_are_kept_and_the_mended_source_is_another(tmp_path, damaged_arm):
    with pytest.raises(CorruptFileError, match="the same call goes on from there"):
        sl.convert(damaged_arm, tmp_path / "out", workers=1, bytes_per_part=100, work=tmp_path / "work")
    assert len(sl.open(tmp_path / "out")) == 0
    assert list((tmp_path / "work").glob("part-*.json"))


def test_missing_splits_are_told(tmp_path, arm, caplog):
    (arm / "arm-val.tfrecord-00000-of-00001").unlink()
    with caplog.at_level(logging.WARNING, logger="seqlake"):
        dataset = sl.convert(arm, tmp_path / "out")
    assert len(dataset) == 5
    assert "rlds-missing-split" in caplog.text


def test_an_error_of_others_becomes_one_of_ours(tmp_path, monkeypatch):
    sink = _rows_sink(monkeypatch)
    sink.fail = OSError("the disk is on fire")
    with pytest.raises(SeqlakeError, match=r"source shard 'memory#.*OSError: the disk is on fire"):
        sl.convert(sl.scan(episodes(3)), tmp_path / "out", to="rows")


# ---- other formats


class RowsSink:
    """One Parquet file a part; the commit writes their names."""

    fail: Exception | None = None

    def __init__(self, folder, options):
        self.folder, self.options, self.discarded = Path(folder), options, False

    def write(self, part, rows, /, *, root):
        table = pa.Table.from_batches(list(rows))
        if self.fail is not None:
            raise self.fail
        self.folder.mkdir(exist_ok=True)
        pq.write_table(table, self.folder / f"{part}.parquet")
        return {"file": f"{part}.parquet", "rows": table.num_rows, "root": root}

    def commit(self, receipts, /):
        (self.folder / "index.json").write_text(json.dumps({"parts": list(receipts), **self.options}))

    def discard(self):
        self.discarded = True


def _rows_sink(monkeypatch):
    class Kind(RowsSink):
        pass

    class Rows:
        @staticmethod
        def create(location, schema, **options):
            return Kind(location, options)

        @staticmethod
        def dropped(schema):
            return {name: "too precise" for name in schema.names if schema.arrow.field(name).type == pa.float64()}

    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda group, name: Rows if name == "rows" else load(group, name))
    return Kind


class Tag:
    """Shows its address, as functions and plain objects do."""


def test_options_that_show_an_address_go_on_all_the_same(tmp_path, monkeypatch):
    kind = _rows_sink(monkeypatch)
    options = {"to": "rows", "workers": 1, "work": tmp_path / "work"}
    monkeypatch.setattr(kind, "fail", OSError("stop"))
    first, second = Tag(), Tag()
    assert repr(first) != repr(second)
    with pytest.raises(SeqlakeError, match="stop"):
        sl.convert(sl.scan(episodes(3)), tmp_path / "out", **options, by=first, names=[{"b", "a"}])
    monkeypatch.setattr(kind, "fail", None)
    monkeypatch.setattr(kind, "commit", lambda self, receipts, /: (self.folder / "done").touch())
    sl.convert(sl.scan(episodes(3)), tmp_path / "out", **options, by=second, names=[{"a", "b"}])
    assert (tmp_path / "out" / "done").exists()


def test_another_format_gets_parts_and_receipts_in_order(tmp_path, monkeypatch, caplog):
    _rows_sink(monkeypatch)
    table = episodes(12)
    done = sl.convert(sl.scan(table), tmp_path / "out", to="rows", workers=1, bytes_per_part=100, compression="none")
    assert done is None
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["compression"] == "none"
    parts = [pq.read_table(tmp_path / "out" / part["file"]) for part in index["parts"]]
    assert len(parts) > 2
    kept = table.drop_columns("reward")
    assert pa.concat_tables(parts).cast(kept.schema).combine_chunks() == kept.combine_chunks()
    assert "reward is dropped: too precise" in caplog.text
    plan = sl.convert(sl.scan(table), tmp_path / "new", to="rows", dry_run=True)
    assert plan.dropped == {"reward": "too precise"}
    with pytest.raises(DatasetExistsError):
        sl.convert(sl.scan(table), tmp_path / "out", to="rows")


# ---- killed and started again

# Slow enough to be killed between parts, and it says when a part is kept.
SCRIPT = """
import sys, time
from pathlib import Path
import pyarrow.parquet as pq
import seqlake as sl
from seqlake import receipts

source, out, work, mode, workers = sys.argv[1:]
keep, clear = receipts.WorkFolder.keep, receipts.WorkFolder.clear

def slow(self, part, receipt):
    keep(self, part, receipt)
    print("kept", part, flush=True)
    if mode == "parts":
        time.sleep(0.2)

def stop(self):
    if mode == "commit":
        print("committed", flush=True)
        time.sleep(60)
    clear(self)

if __name__ == "__main__":
    receipts.WorkFolder.keep, receipts.WorkFolder.clear = slow, stop
    dataset = sl.convert(sl.scan(pq.read_table(source)), out, work=work, workers=int(workers), bytes_per_part=100)
    print("rows", len(dataset), flush=True)
"""


def start(tmp_path, mode, workers):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = [tmp_path / "source.parquet", tmp_path / "out", tmp_path / "work", mode, workers]
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_after(process, line_start, count):
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if sum(line.startswith(line_start) for line in lines) == count:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
    return lines


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_between_parts_it_goes_on_and_redoes_nothing(tmp_path, workers):
    table = episodes(24)
    pq.write_table(table, tmp_path / "source.parquet")
    told = kill_after(start(tmp_path, "parts", workers), "kept", 3)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("part-*.json")}
    assert len(kept) >= 3, told
    assert len(sl.open(tmp_path / "out")) == 0
    assert not list((tmp_path / "out").glob("data/*.parquet"))
    process = start(tmp_path, "none", workers)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    redone = {f"part-{int(line.split()[1]):05d}.json" for line in out.splitlines() if line.startswith("kept")}
    assert redone
    assert redone.isdisjoint(kept)
    assert out.splitlines()[-1] == "rows 24"
    assert same(sl.open(tmp_path / "out"), table)
    assert not (tmp_path / "work").exists()
    assert sl.open(tmp_path / "out").validate(depth="rows").ok


def test_killed_after_the_commit_it_commits_nothing_twice(tmp_path):
    table = episodes(12)
    pq.write_table(table, tmp_path / "source.parquet")
    kill_after(start(tmp_path, "commit", 1), "committed", 1)
    before = sl.open(tmp_path / "out").versions()
    process = start(tmp_path, "none", 1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines() == ["rows 12"]
    assert sl.open(tmp_path / "out").versions() == before
    assert same(sl.open(tmp_path / "out"), table)


def test_a_work_folder_of_another_source(tmp_path):
    work = tmp_path / "work"
    pq.write_table(episodes(12), tmp_path / "source.parquet")
    kill_after(start(tmp_path, "parts", 1), "kept", 1)
    with pytest.raises(SeqlakeError, match="another run"):
        sl.convert(sl.scan(episodes(12, seed=1)), tmp_path / "out", work=work, bytes_per_part=100)


KILLED_WORKER = """
import os, signal, sys
import pyarrow.parquet as pq
import seqlake as sl
from seqlake.dataset.writing.sink import TableSink
from seqlake.errors import SeqlakeError

write = TableSink.write

def deadly(self, part, rows, /, *, root):
    if part == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, part, rows, root=root)

TableSink.write = deadly

if __name__ == "__main__":
    try:
        sl.convert(sl.scan(pq.read_table(sys.argv[1])), sys.argv[2], workers=2, bytes_per_part=100)
    except SeqlakeError as error:
        print(error)
"""


def test_a_worker_killed_from_outside_is_told_and_nothing_is_left(tmp_path):
    pq.write_table(episodes(24), tmp_path / "source.parquet")
    (tmp_path / "script.py").write_text(KILLED_WORKER)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "source.parquet"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "A worker process was killed from outside" in done.stdout, done.stderr
    assert not (tmp_path / "out").exists()
    assert time.monotonic() - began < 100


# ---- workers


class Watched:
    """An executor that works in this process, and notes when its workers would start."""

    def __init__(self):
        self.seen = []

    @contextmanager
    def kept(self):
        yield self
        self.seen.append("closed")

    def expect(self, count, /):
        self.seen.append("started")

    def run(self, function, tasks, /, *, done, tick):
        self.seen.append(f"ran {len(tasks)}")
        for task in tasks:
            done(task, function(task))


@pytest.mark.parametrize("nbytes", [1 << 20, 64 << 20])
def test_workers_start_before_a_large_source_is_looked_at(tmp_path, nbytes, monkeypatch):
    source = sl.create(tmp_path / "in", {"action": sl.Trajectory(dim=3)})
    source.append(episodes(9).drop(["reward"]))
    with (tmp_path / "in" / "film.mp4").open("wb") as film:
        film.truncate(nbytes)
    watched, scan = Watched(), opening.scan
    monkeypatch.setattr(opening, "scan", lambda *a, **k: (watched.seen.append("looked"), scan(*a, **k))[1])
    out = sl.convert(tmp_path / "in", tmp_path / "out", on=watched)
    assert len(out) == 9
    early = ["started"] if nbytes >= 64 << 20 else []
    assert watched.seen == [*early, "looked", "ran 1", "closed"]
    watched.seen.clear()
    sl.convert(tmp_path / "in", tmp_path / "again", on=watched, dry_run=True)
    assert watched.seen == ["looked", "closed"]

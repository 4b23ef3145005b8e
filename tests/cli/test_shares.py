"""`--work`, `--task` and `--finish`: a run divided among commands, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.shares import Finish, Share
from seqlake.testing import samples


@pytest.fixture(autouse=True)
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr("seqlake.dataset.writing.parts.LEAST", 1500)
    monkeypatch.setattr("seqlake.tables.standalone.adopting._FILES_PER_TASK", 1)


def test_what_is_taken_over_as_it_is_has_nothing_to_divide(arm, tmp_path) -> None:
    for number in range(2):
        with Share(folder=tmp_path / "work", number=number, of=2) as share:
            sl.convert(arm, tmp_path / "out", adopt=True, on=share)
        assert not (tmp_path / "out").exists()
    sl.convert(arm, tmp_path / "out", adopt=True, on=Finish(folder=tmp_path / "work"))
    assert sl.open(tmp_path / "out").to_arrow().equals(sl.open(arm).to_arrow())
    assert [version.operation for version in sl.open(tmp_path / "out").versions()] == ["create", "adopt"]


@pytest.fixture
def arm(tmp_path) -> Path:
    samples.arm_dataset(tmp_path / "arm", count=6, rows_per_shard=2)
    return tmp_path / "arm"


def shares(run, *command: object, work: Path, of: int = 2):
    """All shares, then the end."""
    for number in range(of):
        ran = run(*command, "--work", work, "--task", f"{number}/{of}", "--jobs", 1)
        assert ran.code == 0, ran.err
        assert ran.out == ""
        assert f"Share {number} of {of} has done its tasks" in ran.err
    return run(*command, "--work", work, "--finish")


def test_a_command_in_shares(run, arm, tmp_path) -> None:
    ran = shares(run, "trim", arm, tmp_path / "out", "--start", 5, "--json", work=tmp_path / "work")
    assert ran.code == 0, ran.err
    assert len(sl.open(tmp_path / "out")) == 6
    run("trim", arm, tmp_path / "one", "--start", 5)
    assert sl.open(tmp_path / "out").to_arrow().equals(sl.open(tmp_path / "one").to_arrow())
    for again in (["--finish"], ["--task", "1/2"]):
        ran = run("trim", arm, tmp_path / "out", "--start", 5, "--work", tmp_path / "work", *again)
        assert (ran.code, ran.out) == (0, "")
        assert "is over: nothing is left to do" in ran.err


def test_statistics_then_outliers(run, arm, tmp_path) -> None:
    """Two verbs of one command, each with passes of its own: the shares are run again until it is done."""
    command = ["stats", arm, "--columns", "action,reward", "--outliers", 2, "-q"]
    shutil.copytree(arm, tmp_path / "alone")
    for _ in range(9):
        run(*command, "--work", tmp_path / "work", "--task", "0/1", "--jobs", 1)
        ran = run(*command, "--work", tmp_path / "work", "--finish")
        if ran.code == 0:
            break
        assert "Not finished" in ran.err or "No share has left anything" in ran.err
    assert ran.out == run("stats", tmp_path / "alone", *command[2:]).out
    assert len(ran.out.splitlines()) == 2


def test_an_index_in_shares(run, tmp_path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "data").mkdir(parents=True)
    for number in range(3):
        cells = pa.array([[[1.0, 2.0]] * (row + 1) for row in range(2)], pa.list_(pa.list_(pa.float32())))
        table = pa.table({"sequence_id": [f"{number}-{row}" for row in range(2)], "pose": cells})
        pq.write_table(table, theirs / "data" / f"{number}.parquet", compression="none", use_dictionary=False)
    sl.init(theirs)
    dry = run("index", theirs, "--dry-run", "--json", "--on", "processes").json
    assert dry["columns"] == [{"column": "pose", "indexed": 3, "shards": 3}]
    assert sl.open(theirs).version.id == -1
    ran = shares(run, "index", theirs, "--json", work=tmp_path / "work")
    assert ran.json["columns"] == [{"column": "pose", "indexed": 3, "shards": 3}]
    assert sl.open(theirs).version.operation == "adopt"
    assert run("index", theirs, "--on", "processes").code == 0  # nothing to be done


WRONG = ["4/4", "5/4", "x", "0/0", "-1/4", "1", "1/", "/4", "1/4/8", "0.5/4", "", "1/x", "1 / 4"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--task", "0/4"], "need --work"),
        (["--finish"], "need --work"),
        (["--work", "w", "--task", "0/2", "--finish"], "--task K/N, and --finish once all are done"),
        *((["--work", "w", "--task", text], "expected a share from 0") for text in WRONG),
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(options, what, run, arm, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("repack", arm, "out", *options)
    assert ran.code == 2
    assert what in " ".join(ran.err.split())
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "w").exists()


def test_options_that_do_not_go_together(run, arm, tmp_path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    for options, what in (
        (["--work", work, "--wait", 3], "--wait is for --task"),
        (["--work", work, "--task", "0/2", "--dry-run"], "--dry-run is for the whole"),
        (["--work", work, "--overwrite"], "--overwrite replaces"),
    ):
        ran = run("repack", arm, out, *options)
        assert ran.code == 2
        assert what in " ".join(ran.err.split())
    ran = run("validate", arm, "--depth", "rows", "--work", work, "--task", "0/2")
    assert ran.code != 0
    assert "'files' or 'decode'" in ran.err
    assert not work.exists()


def test_shares_of_another_number_or_verb_are_refused(run, arm, tmp_path) -> None:
    work = tmp_path / "work"
    assert run("repack", arm, tmp_path / "out", "--work", work, "--task", "0/2", "--jobs", 1).code == 0
    for command, what in (
        (["repack", arm, tmp_path / "out", "--task", "1/3"], "shares differ"),
        (["repack", arm, tmp_path / "out"], "shares differ"),
        (["repack", arm, tmp_path / "other", "--task", "1/2"], "out differ"),
        (["repack", arm, tmp_path / "out", "--rows-per-shard", 1, "--task", "1/2"], "shape differ"),
        (["compact", arm, "--rows-per-shard", 9, "--finish"], "verb, version differ"),
        (["convert", arm, tmp_path / "other", "--where", "reward > -1e9", "--finish"], "verb"),
    ):
        ran = run(*command, "--work", work)
        assert ran.code == 1, (command, ran.out)
        assert "belongs to another run: " in ran.err
        assert what in ran.err, ran.err
    assert not (tmp_path / "other").exists()
    ran = run("repack", arm, tmp_path / "out", "--work", work, "--finish")
    assert ran.code == 1
    assert "of the shares 1 of 2" in ran.err
    assert "(--task 1/2)" in ran.err


def test_a_dataset_that_cannot_be_written(run, arm, tmp_path) -> None:
    """Its files lie where none is written: it is read in shares, and not changed."""
    shutil.rmtree(arm / "_seqlake")
    (arm / "deep").mkdir()
    for path in list((arm / "data").glob("*.parquet")):
        path.rename(arm / "deep" / path.name)
    ran = run("compact", arm, "--work", tmp_path / "work", "--task", "0/2")
    assert ran.code == 1
    assert not (tmp_path / "work").exists()
    ran = shares(run, "validate", arm, "--depth", "decode", "--json", work=tmp_path / "work2")
    assert "errors" in ran.json or ran.json
    assert not (arm / "_seqlake").exists()


def test_a_bucket_in_shares(run, arm, tmp_path, s3_environment) -> None:
    """The dataset lies there, the receipts here."""
    ran = shares(run, "repack", arm, f"{s3_environment}/out", work=tmp_path / "work")
    assert ran.code == 0, ran.err
    new = sl.open(f"{s3_environment}/out")
    assert new.to_arrow().equals(sl.open(arm).to_arrow())
    ran = shares(run, "compact", f"{s3_environment}/out", "--allow-remote-scan", work=tmp_path / "work3")
    assert ran.code == 0, ran.err
    assert (
        sl.open(f"{s3_environment}/out")
        .to_arrow()
        .sort_by("sequence_id")
        .equals(sl.open(arm).to_arrow().sort_by("sequence_id"))
    )
    ran = run("trim", arm, tmp_path / "x", "--start", 1, "--work", f"{s3_environment}/work", "--task", "0/2")
    assert ran.code == 1
    assert "a folder that all machines reach" in ran.err

"""Conversions that are killed, interrupted or refused, and run again without a word about a work folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import seqlake as sl
from seqlake.conversion import convert as conversion
from seqlake.errors import DatasetExistsError, SeqlakeError, ValidationError

SCRIPT = """
import os, signal, sys, threading
from seqlake.conversion import convert
from seqlake.receipts import WorkFolder

convert.LEAST_PER_PART = 250  # a source this small is one part otherwise
run, save, counted = convert._run, WorkFolder._save, [0]
moment, seconds = int(os.environ["MOMENT"]), float(os.environ["SECONDS"])

def timed(*given, **options):
    if seconds:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return run(*given, **options)

def saved(self, name, value):
    counted[0] += 1
    if counted[0] == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, name, value)
    print("saved", name, flush=True)

convert._run, WorkFolder._save = timed, saved
from seqlake.cli import main
if __name__ == "__main__":
    main(sys.argv[1:])
"""


def steps(count: int = 40) -> pd.DataFrame:
    rows = [(f"e{n:03d}", t, n + t / 8, f"task {n % 3}") for n in range(count) for t in range(6)]
    random.Random(7).shuffle(rows)
    return pd.DataFrame(rows, columns=["episode", "t", "x", "task"])


def once(
    tmp_path: Path, given: list[str], *, moment: int = 0, seconds: float = 0.0
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MOMENT": str(moment),
        "SECONDS": str(seconds),
    }
    return subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), *given],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


def parts(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("saved part-")}


def is_there(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether it refused since the whole output lies there."""
    return "new or empty" in done.stderr or "40 sequences is at" in done.stderr


@pytest.mark.sampled(every=2, start=1)
@pytest.mark.parametrize("to", [None, "mds"])
def test_the_same_command_goes_on_after_kills_at_any_moment(tmp_path: Path, to: str | None) -> None:
    steps().to_csv(tmp_path / "steps.csv", index=False)
    out = tmp_path / "out"
    given = ["import", str(tmp_path / "steps.csv"), str(out), "--from", "csv", "--sequence-id", "episode"]
    given += ["--steps", "t", "-j", "1", *(["--to", to] if to else [])]
    rng, finished = random.Random(11 if to else 13), set[str]()
    for moment, seconds in ((rng.randint(4, 7), 0.0), (0, rng.uniform(0.01, 0.12)), (rng.randint(3, 5), 0.0)):
        done = once(tmp_path, given, moment=moment, seconds=seconds)
        if done.returncode == 1 and is_there(done):
            break  # the kill before came when everything was done
        if done.returncode == 0 and finished:
            break  # so little was left after the kills before that this one came too late
        assert done.returncode == -9, done.stderr
        assert parts(done).isdisjoint(finished), "a part that was finished is not done again"
        finished |= parts(done)
    else:
        done = once(tmp_path, given)
        assert done.returncode == 0 or is_there(done), done.stderr
        assert parts(done).isdisjoint(finished)
        if done.returncode == 0:
            assert not any((tmp_path / "cache" / "seqlake" / "conversions").iterdir())
    assert finished
    whole = sl.scan(tmp_path / "steps.csv", sequence_id="episode", steps="t").to_arrow()
    made = sl.scan(out).to_arrow()
    assert made.select(whole.column_names).sort_by("sequence_id").equals(whole.sort_by("sequence_id").cast(made.schema))
    again = once(tmp_path, given)
    assert (again.returncode, is_there(again)) == (1, True)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(conversion, "LEAST_PER_PART", 500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stopping(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, after: int = 2) -> list[int]:
    """The parts that were done until the error."""
    real, done = conversion.convert_part, list[int]()

    def part_run(task, /, **options):
        if len(done) == after:
            raise error
        done.append(task.part)
        return real(task, **options)

    monkeypatch.setattr(conversion, "convert_part", part_run)
    return done


HOW = {"sequence_id": "episode", "steps": "t", "workers": 1, "work": True}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left"), SeqlakeError("no answer")])
def test_what_may_succeed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        before = stopping(patch, error)
        with pytest.raises(type(error)):
            sl.convert(steps(), out, **HOW)
    after = stopping(monkeypatch, error, after=100)
    ds = sl.convert(steps(), out, **HOW)
    assert len(ds) == 40
    assert set(before).isdisjoint(after)


@pytest.mark.usefixtures("small_parts")
def test_of_data_at_fault_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, ValidationError("broken"))
    with pytest.raises(ValidationError, match="broken"):
        sl.convert(steps(), tmp_path / "out", **HOW)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("removed", [False, True])
def test_another_source_or_a_removed_target_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, removed: bool
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopping(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            sl.convert(steps(), out, **HOW)
    if removed:
        shutil.rmtree(out)
    source = steps() if removed else steps(30).drop(columns="x")
    ds = sl.convert(source, out, **HOW)
    assert len(ds) == source["episode"].nunique()
    assert ("x" in ds.schema) == removed
    assert ds.validate(depth="rows").ok
    assert not list((out / "_seqlake" / "staged").glob("*"))


@pytest.mark.usefixtures("small_parts")
def test_a_dataset_that_is_whole_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after its commit, then asked for something else: what is there stays."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(conversion.WorkFolder, "clear", lambda _: os._exit)
        sl.convert(steps(), out, **HOW)
    with pytest.raises(DatasetExistsError):
        sl.convert(steps(20), out, **HOW)
    assert len(sl.open(out)) == 40


@pytest.mark.usefixtures("small_parts")
def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    folder = conversion.WorkFolder(conversion.folder_of(str(tmp_path / "out")))
    with folder.locked(), pytest.raises(SeqlakeError, match="Another process works with"):
        sl.convert(steps(), tmp_path / "out", **HOW)
    assert len(sl.convert(steps(), tmp_path / "out", **HOW)) == 40


def test_the_report_says_what_became_of_what(tmp_path: Path) -> None:
    steps(4).to_csv(tmp_path / "steps.csv", index=False)
    given = ["export", str(tmp_path / "steps.csv"), str(tmp_path / "out"), "--sequence-id", "episode", "--steps", "t"]
    done = once(tmp_path, [*given, "--map", "state=x", "--json"])
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["rows"] == 4
    assert {"source": "x", "column": "state", "how": "a signal, one number a row"} in report["mapped"]
    assert (report["dropped"], report["findings"]) == ({}, [])
    shutil.rmtree(tmp_path / "out")
    done = once(tmp_path, given)
    assert done.stdout.splitlines()[-1] == f"4 sequences at {tmp_path / 'out'}."
    assert "  sequence_id: string <- episode" in done.stderr.splitlines()


@pytest.mark.usefixtures("small_parts")
def test_receipts_that_a_killed_run_was_removing_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes in the middle of the removal, then the user removes what was written, and runs the same again."""
    frame, out, unlink = steps(), tmp_path / "out", Path.unlink

    def dying(path: Path, **options: bool) -> None:
        if path.name == "part-00001.json":
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            sl.convert(frame, out, to="mds", **HOW)
    assert list((tmp_path / "cache").rglob("part-*.json"))
    shutil.rmtree(out)
    sl.convert(frame, out, to="mds", **HOW)
    assert len(sl.scan(out)) == 40
    assert not list((tmp_path / "cache").rglob("*.json"))

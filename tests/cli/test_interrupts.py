"""Ctrl-C ends long work in a real process whenever it comes: nothing goes on, and nothing is half done."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import DatasetNotFoundError

from ..counting import many, seeded  # noqa: TID252 - tests are no package that could be named
from ..homes import PLACES, Home, rows  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from pathlib import Path

INTERRUPTS = """
import importlib.abc, os, signal, sys
class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas.core.api":
            sys.meta_path.remove(self)
            self.interrupt()
    def interrupt(self):
        os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
"""
COMMAND = """
from seqlake.cli import main
main()
"""
# As numpy's random numbers do while they are imported, and others that are written in C.
SWALLOWS = """
class Swallows(Interrupts):
    def interrupt(self):
        try:
            super().interrupt()
        except BaseException:
            pass
sys.meta_path[0] = Swallows()
"""
CALL = """
import sys
import seqlake as sl
sl.convert(sys.argv[1], sys.argv[2])
"""
SOMETIME = """
import signal, sys
taken = []
chosen = signal.signal
def watched(number, handler):
    def watch(*given):
        taken.append(given)
        handler(*given)
    return chosen(number, watch)
signal.signal = watched
from seqlake.cli import main
try:
    main()
except SystemExit as end:
    if taken and end.code != 130:
        sys.exit(99)
    raise
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of many small shards."""
    root = tmp_path_factory.mktemp("interrupts") / "source"
    ds = sl.create(root, sl.Schema({"action": sl.Trajectory(dim=4, fps=10)}))
    for shard in range(12):
        with ds.writer() as writer:
            for row in range(3):
                writer.add(f"{shard}_{row}", action=np.ones((200, 4)))
    return root


def work(verb: str, source: Path, tmp_path: Path) -> list[str]:
    """A command over a place of its own, which is as if it had never run."""
    place = tmp_path / "work"
    shutil.rmtree(place, ignore_errors=True)
    if verb == "compact":
        shutil.copytree(source, place)
        return ["compact", str(place)]
    if verb == "validate":
        return ["validate", str(source)]
    return [verb, str(source), str(place)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("verb", "swallowed"), [("compact", True), ("convert", False), ("repack", True), ("validate", False)]
)
def test_it_is_not_lost_where_arrow_imports_pandas(source: Path, tmp_path: Path, verb: str, *, swallowed: bool) -> None:
    script = INTERRUPTS + (SWALLOWS if swallowed else "") + COMMAND
    ended = subprocess.run(
        [sys.executable, "-c", script, *work(verb, source, tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr.splitlines()[-1:]) == (130, ["seqlake: interrupted"])
    if verb == "compact":
        assert len(sl.open(tmp_path / "work").versions()) == len(sl.open(source).versions())
    else:
        assert not (tmp_path / "work").exists()


def test_the_library_does_not_lose_it_either(source: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTS + CALL, str(source), str(tmp_path / "new")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stderr.splitlines()[-1:] == ["KeyboardInterrupt"]
    assert not (tmp_path / "new").exists()


def test_it_is_not_lost_in_what_python_calls_while_it_destroys() -> None:
    """SQLAlchemy's events have such a function: it was met in `convert` into an Iceberg table."""
    script = """
import os, signal, time, weakref
from seqlake.cli._interrupts import never_lose_interrupts
never_lose_interrupts()
class Thing:
    pass
def collected(reference):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
try:
    thing = Thing()
    reference = weakref.ref(thing, collected)
    del thing
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=100)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_a_process_of_the_tests_is_interrupted() -> None:
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "True\n"


def test_so_it_is_where_the_tests_run_in_the_background() -> None:
    """`nohup pytest &` begins with Ctrl-C ignored, and every process would inherit that."""
    test = f"{__file__}::{test_a_process_of_the_tests_is_interrupted.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", test]
    subprocess.run(["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command], check=True, timeout=120)


def moments(source: Path, tmp_path: Path, verb: str, *, times: int, seed: int) -> None:
    chance = random.Random(seed)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", SOMETIME, *work(verb, source, tmp_path)], check=True, capture_output=True)
    lasted = time.monotonic() - began
    for _ in range(times):
        share = chance.uniform(0.2, 1.0)
        command = [sys.executable, "-c", SOMETIME, *work(verb, source, tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(lasted * share)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
        # Before there was a command to end Python itself says so; 0 is one that had ended before.
        assert process.returncode in {130, 0, -signal.SIGINT}, (share, process.returncode, told)
        if process.returncode == 130 and verb != "compact":
            assert not (tmp_path / "work").exists(), share


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("verb", ["compact", "convert"])
def test_it_is_taken_at_any_moment(source: Path, tmp_path: Path, verb: str) -> None:
    moments(source, tmp_path, verb, times=2, seed=7)


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["compact", "convert", "repack", "validate"])
def test_it_is_taken_at_any_moment_of_many(source: Path, tmp_path: Path, verb: str) -> None:
    moments(source, tmp_path, verb, times=many(50), seed=seeded(11))


# ---- every long verb in every home

COMMANDS = {
    "compact": "compact {ds}",
    "vacuum": "vacuum {ds} --older-than 0",
    "convert": "convert {ds} {new}",
    "repack": "repack {ds} {new}",
    "merge": "merge {ds} {new}",
    "subset": "subset {ds} {new} --where length(split)=3",
    "trim": "trim {ds} {new} --start 3",
    "segment": "segment {ds} {new} --length 50",
    "resample": "resample {ds} {new} --fps 20",
    "split": "split {ds}",
    "label": "label {ds} split test",
    "set": "set {ds} ep_1 split=test",
    "fold": "fold {ds}",
    "tag": "tag {ds} v1",
    "stats": "stats {ds}",
    "validate": "validate {ds} --depth rows",
}
CALLS = {
    "append": "ds.append([{'sequence_id': f'n{i}', 'action': [[1.0, 2.0]] * 500} for i in range(8)])",
    "upsert": "ds.upsert([{'sequence_id': f'ep_{i}', 'action': [[1.0, 2.0]] * 30} for i in range(4)])",
    "update": "ds.update([{'sequence_id': f'ep_{i}', 'split': 'test'} for i in range(4)])",
    "delete": "ds.delete(ids=['ep_1', 'ep_4'])",
    "convert_units": "ds.convert_units('action', 'deg')",
    "rollback": "ds.rollback(ds.versions()[2])",
    "add_column": "ds.add_column('steps', pa.int64(), sql='len(action)')",
    "statistics": "sl.statistics(ds)",
    "loader": "sum(1 for _ in sl.Loader(ds, window={'action': range(2)}, batch_size=8))",
}
MOST = {"append", "compact", "convert"}
"""What most people do most of the time; tried at more moments."""
CALL = """
import sys
import pyarrow as pa
import seqlake as sl
ds = sl.open(sys.argv[2])
exec(sys.argv[1])
"""


def child(verb: str, home: Home) -> list[str]:
    """What runs the verb in a process of its own."""
    if verb in CALLS:
        return [sys.executable, "-c", CALL, CALLS[verb], home.place()]
    given = [one.format(ds=home.place(), new=home.place("new")) for one in COMMANDS[verb].split()]
    return [sys.executable, "-c", SOMETIME, *given]


def held(home: Home) -> tuple[list[str], list[str] | None]:
    """What the dataset holds, and the new one, if there is one."""
    try:
        made = rows(home.place("new"))
    except DatasetNotFoundError:
        made = None
    return rows(home.place()), made


def each_moment(kind: str, verb: str, tmp_path: Path, *, times: int, seed: int) -> None:
    """It is committed or it is not; it says that it was interrupted, and no half of a new dataset lies about."""
    home, dice = Home(kind, tmp_path, steps=500), random.Random(seed)
    before, began = held(home), time.monotonic()
    subprocess.run(child(verb, home), check=True, capture_output=True, timeout=120)
    lasted, after = time.monotonic() - began, held(home)
    for _ in range(times):
        home.fresh()
        share = dice.uniform(0.1, 1.0)
        with subprocess.Popen(child(verb, home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(lasted * share)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
        assert process.returncode in {130, 0, -signal.SIGINT}, (share, process.returncode, told)
        # By the signal itself it ends where all is done and said, and Python is on its way out.
        if process.returncode not in {0, -signal.SIGINT}:
            assert told.splitlines()[-1:] in (["seqlake: interrupted"], ["KeyboardInterrupt"], []), (share, told)
        found = held(home)
        assert found in (before, after), share
        if found[1] is None:
            assert not home.files("new"), share
        if process.returncode == 0:
            assert found == after
        if found == before:
            subprocess.run(child(verb, home), check=True, capture_output=True, timeout=120)
            assert held(home) == after, share
        assert sl.open(home.place()).validate(depth="rows").ok


def test_nothing_is_half_done_at_a_moment(tmp_path: Path) -> None:
    each_moment("standalone", "convert", tmp_path, times=1, seed=17)


@pytest.mark.soak
@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("verb", [*COMMANDS, *CALLS])
def test_nothing_is_half_done(kind: str, verb: str, tmp_path: Path) -> None:
    each_moment(kind, verb, tmp_path, times=many(50 if verb in MOST else 10), seed=seeded(13))

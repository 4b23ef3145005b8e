"""Ctrl-C ends long work, whenever it comes: nothing takes the signal and goes on."""

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

if TYPE_CHECKING:
    from pathlib import Path

SOON = """
import importlib.abc, os, signal, sys
class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas.core.api":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from seqlake.cli import main
main()
"""
SOMETIME = """
import signal, sys
taken = []
def handler(*given):
    taken.append(given)
    signal.default_int_handler(*given)
signal.signal(signal.SIGINT, handler)
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


@pytest.mark.parametrize("verb", ["compact", "convert", "repack", "validate"])
def test_it_is_not_lost_where_arrow_imports_pandas(source: Path, tmp_path: Path, verb: str) -> None:
    command = work(verb, source, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", SOON, *command], check=False, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr.splitlines()[-1:]) == (130, ["seqlake: interrupted"])
    if verb == "compact":
        assert len(sl.open(tmp_path / "work").versions()) == len(sl.open(source).versions())
    else:
        assert not (tmp_path / "work").exists()


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


@pytest.mark.parametrize("verb", ["compact", "convert"])
def test_it_is_taken_at_any_moment(source: Path, tmp_path: Path, verb: str) -> None:
    moments(source, tmp_path, verb, times=4, seed=7)


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["compact", "convert", "repack", "validate"])
def test_it_is_taken_at_any_moment_of_many(source: Path, tmp_path: Path, verb: str) -> None:
    moments(source, tmp_path, verb, times=50, seed=11)

"""Executors: the contract, and what is each one's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError, UnknownPluginError
from seqlake.executors import executor_of
from seqlake.executors.processes import Processes
from seqlake.executors.ray import Ray
from seqlake.testing.executors import ExecutorTests


def killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


class TestProcesses(ExecutorTests):
    @pytest.fixture(params=[1, 2, None])
    def executor(self, request):
        return Processes(workers=request.param)


def test_a_worker_that_is_killed_is_an_error_of_ours() -> None:
    with pytest.raises(SeqlakeError, match="killed from outside"):
        Processes(workers=2).run(killed, [1, 2, 3], done=lambda *_: None, tick=lambda: None)


class Backwards:
    """An executor of somebody else: the last task first, each twice, as after a machine went away."""

    def run(self, function, tasks, /, *, done, tick):
        for task in reversed(tasks):
            function(task)
            done(task, function(task))
            tick()


def test_a_conversion_runs_on_any_executor(tmp_path: Path) -> None:
    rows = pa.table({"sequence_id": [f"ep_{n:02d}" for n in range(40)], "reward": [float(n) for n in range(40)]})
    ds = sl.convert(sl.scan(rows), tmp_path / "out", on=Backwards(), bytes_per_part=100)
    assert ds.to_arrow()["reward"].to_pylist() == rows["reward"].to_pylist()
    assert not ds.validate(depth="rows").findings


def test_a_name_or_an_object_says_which() -> None:
    assert executor_of("processes", workers=3) == Processes(workers=3)
    assert executor_of("ray", workers=3, address="auto") == Ray(workers=3, address="auto")
    mine = Backwards()
    assert executor_of(mine) is mine
    with pytest.raises(UnknownPluginError, match="known are processes, ray"):
        executor_of("rya")
    with pytest.raises(TypeError, match="workers: for an executor named by a text"):
        executor_of(mine, workers=2)
    with pytest.raises(TypeError, match="takes no option 'address'"):
        executor_of("processes", address="auto")


def test_nothing_of_ray_is_imported_before_it_runs() -> None:
    code = "import sys, seqlake.executors as e; e.executor_of('ray'); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

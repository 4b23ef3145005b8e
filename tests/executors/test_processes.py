"""Executors: every result once, what ended before a failure too."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.executors.processes import Processes


def squared(number: int) -> int:
    return number * number


def reciprocal(number: int) -> float:
    if number == 0:
        time.sleep(1)
    return 1 / number


def killed(number: int) -> int:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2, None])
def test_every_result_comes_once_with_its_task_and_time_is_told(workers: int | None) -> None:
    results: dict[int, int] = {}
    ticks: list[int] = []

    def done(task: int, result: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert task not in results
        results[task] = result

    Processes(workers=workers).run(squared, range(9), done=done, tick=lambda: ticks.append(1))
    assert results == {number: number * number for number in range(9)}
    assert ticks


def test_what_ended_before_a_failure_is_handed_over() -> None:
    results: dict[int, float] = {}
    with pytest.raises(ZeroDivisionError):
        Processes(workers=2).run(reciprocal, [0, 1, 2, 4], done=results.__setitem__, tick=lambda: None)
    assert results == {1: 1.0, 2: 0.5, 4: 0.25}


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
    with pytest.raises(ValueError, match="'processes' or an executor"):
        sl.convert(sl.scan(rows), tmp_path / "new", on="ray")

"""Executors: the contract, and what is each one's own."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError, UnknownPluginError
from seqlake.executors import executor_of, expect, in_order, kept, processes
from seqlake.executors.processes import Processes
from seqlake.executors.ray import Ray
from seqlake.shares import Resumable, in_turn
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


def who(number: int) -> tuple[int, int]:
    time.sleep(0.05)  # so that each worker has some
    return number, os.getpid()


def times(number: int, *, by: int) -> tuple[int, int]:
    return by * number, os.getpid()


def test_workers_stay_for_the_next_run() -> None:
    """Whose function they get; after a failure there are others, and more where more are of use."""
    with kept(Processes(workers=3)) as executor:
        expect(executor, 2)
        first = in_order(executor, who, [1, 2])
        second = in_order(executor, partial(times, by=10), [1, 2])
        assert [number for number, _ in first] == [1, 2]
        assert [number for number, _ in second] == [10, 20]
        pids = {pid for _, pid in first}
        assert len(pids | {pid for _, pid in second}) <= 2  # one may do all where the other is slow to start
        assert os.getpid() not in pids
        with pytest.raises(SeqlakeError, match="killed from outside"):
            in_order(executor, killed, [1, 2])
        third = in_order(executor, who, range(12))
        assert [number for number, _ in third] == [*range(12)]
        assert len({pid for _, pid in third}) <= 3
        assert not pids & {pid for _, pid in third}
        assert in_order(executor, who, [1]) == [(1, os.getpid())]


def test_workers_that_are_expected_are_not_waited_for() -> None:
    """The first process would be, until what they are forked from has imported everything."""
    before = set(multiprocessing.active_children())
    with kept(Processes(workers=2)) as executor:
        expect(executor, 2)
        assert set(multiprocessing.active_children()) <= before
        assert [number for number, _ in in_order(executor, who, [1, 2])] == [1, 2]
        assert set(multiprocessing.active_children()) - before


def ends_after(path: Path) -> int:
    """Its worker, once it is to end, waits for a file."""
    multiprocessing.util.Finalize(None, waits, args=(path,), exitpriority=1)
    return os.getpid()


def waits(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def test_results_do_not_wait_until_workers_have_ended(tmp_path: Path) -> None:
    """To take apart what they mapped needs a tenth of a second for each gigabyte."""
    with kept(Processes(workers=2)) as executor:
        pids = in_order(executor, ends_after, [tmp_path / "end", tmp_path / "end"])
    left = {child.pid: child for child in multiprocessing.active_children()}
    assert set(pids) <= set(left)
    (tmp_path / "end").touch()
    for pid in set(pids):
        left[pid].join(60)
        assert not left[pid].is_alive()


def test_all_passes_of_a_verb_have_the_same_workers(tmp_path: Path, monkeypatch) -> None:
    """Of statistics: moments and about where quantiles lie, then quantiles; with receipts, too."""
    pools: list[int] = []

    class Counted(processes.ProcessPoolExecutor):
        def __init__(self, count: int, **options: object) -> None:
            pools.append(count)
            super().__init__(count, **options)

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Counted)
    ds = sl.create(tmp_path / "ds", sl.Schema({"action": sl.Trajectory(dim=1)}))
    for shard in range(2):
        with ds.writer() as writer:
            writer.add(f"ep_{shard}", action=np.arange(9, dtype=np.float32)[:, None])
    here = sl.statistics(ds).to_json()
    for on in (Processes(workers=2), Resumable(folder=tmp_path / "work", on=Processes(workers=2))):
        shutil.rmtree(tmp_path / "ds" / "_seqlake" / "derived")  # where they are kept
        assert sl.statistics(sl.open(tmp_path / "ds"), on=on).to_json() == here
        assert pools == [2]
        pools.clear()


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


def test_results_in_turn_are_handed_over_while_others_are_worked_at() -> None:
    """In the order of the tasks, none before those before it."""
    happened: list[str] = []

    def work(task: int) -> int:
        happened.append(f"work {task}")
        return -task

    def done(task: int, result: int) -> None:
        assert result == -task
        happened.append(f"done {task}")

    in_turn(Processes(workers=1), work, [1, 2, 3], at_once=2, done=done)
    assert happened == ["work 1", "done 1", "work 2", "done 2", "work 3", "done 3"]
    happened.clear()
    in_turn(Backwards(), work, [1, 2, 3], at_once=2, done=done)
    assert [one for one in happened if one.startswith("done")] == ["done 1", "done 2", "done 3"]
    assert happened.index("done 2") < happened.index("work 3")  # so many wait


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


def faults_of_blocks(rounds: int) -> int:
    """Page faults of filling 24 blocks of 1 MB and freeing them, again and again; the first time is not counted."""
    for number in range(rounds + 1):
        held = [np.ones(1 << 20, np.uint8) for _ in range(24)]
        del held
        if not number:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives freed memory back like this")
def test_workers_keep_what_tasks_free() -> None:
    pages = (24 << 20) // resource.getpagesize()
    for faults in in_order(Processes(workers=2), faults_of_blocks, [20, 20]):
        assert faults < 10 * pages  # of 20 times as many

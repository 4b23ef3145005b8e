"""Ray as the engine: the contract of executors on a cluster of this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from seqlake.errors import SeqlakeError
from seqlake.executors.ray import Ray
from seqlake.testing.executors import ExecutorTests

pytestmark = [pytest.mark.usefixtures("cluster")]


class TestRay(ExecutorTests):
    @pytest.fixture(params=[None, 1])
    def executor(self, request):
        return Ray(workers=request.param)


def lost(number: int) -> int:
    if number == 2:
        os._exit(9)
    return number


def lost_once(marker: str) -> str:
    """Its worker dies the first time."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return marker
    os._exit(9)


def test_a_task_is_run_again_where_its_worker_was_lost(tmp_path) -> None:
    results = {}
    Ray().run(lost_once, [str(tmp_path / "a"), str(tmp_path / "b")], done=results.__setitem__, tick=lambda: None)
    assert sorted(results) == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_but_not_for_ever() -> None:
    results = {}
    with pytest.raises(SeqlakeError, match="more often than it may be run again"):
        Ray(retries=0).run(lost, [1, 2], done=results.__setitem__, tick=lambda: None)
    assert results == {1: 1}


def noted(task: tuple[str, int]) -> int:
    """Writes down which process did it; fails for -1."""
    folder, number = task
    if number == -1:
        raise ValueError("not this one")
    with open(f"{folder}/{os.getpid()}", "a", encoding="utf-8") as file:  # noqa: PTH123 - a line of one process
        file.write(f"{number}\n")
    return number


def test_tasks_of_nothing_go_together_and_one_that_fails_is_alone(tmp_path) -> None:
    """Hundreds of tasks are tens of calls; of a call with a failure the rest is done, and handed over."""
    folder, results = str(tmp_path), []
    tasks = [(folder, number) for number in range(400)]
    ticks: list[int] = []
    Ray(workers=2).run(noted, tasks, done=lambda _, number: results.append(number), tick=lambda: ticks.append(1))
    assert sorted(results) == [*range(400)]
    assert len(ticks) < 200
    tasks[390] = (folder, -1)
    results.clear()
    with pytest.raises(ValueError, match="not this one"):
        Ray(workers=2).run(noted, tasks, done=lambda _, number: results.append(number), tick=lambda: None)
    assert len(results) == len(set(results))
    assert set(range(300)) <= set(results)


def test_of_tasks_that_went_together_with_one_that_lost_its_worker_none_is_lost(tmp_path) -> None:
    """Each is run by itself then, so that also without retries only the one to blame could fail."""
    results = {}
    tasks = [str(tmp_path / str(number)) for number in range(200)]
    Path(tasks[99]).with_suffix(".once").touch()
    Ray(retries=0).run(lost_where_asked, tasks, done=results.__setitem__, tick=lambda: None)
    assert sorted(results) == sorted(tasks)


def lost_where_asked(path: str) -> str:
    """Its worker dies once for each file that asks for it."""
    asked = Path(path).with_suffix(".once")
    if asked.exists():
        asked.unlink()
        os._exit(9)
    return path


def kept_for_the_next(given: tuple[float, str]) -> tuple[int, list[bool]]:
    """Whether what a worker kept by earlier tasks is there still; keeps some, to be let go of after such a rest."""
    from seqlake.computing import working
    from seqlake.executors import ray
    from seqlake.files.blobs import HELD, LocalBlob

    seconds, path = given
    ray._REST_SECONDS = seconds
    there = ["model" in working._set_up, bool(len(HELD))]
    working._set_up["model"] = abs
    LocalBlob(path, mapped=True).view()
    return os.getpid(), there


@pytest.mark.parametrize("seconds", [0.2, 60.0])
def test_workers_at_rest_let_go_of_models_and_maps(tmp_path, seconds) -> None:
    """They stay while their cluster stays; the next run may be a day later, and somebody else's GPU is needed."""
    path, results = tmp_path / "a", []
    path.write_bytes(bytes(1 << 16))
    for pause in (0.0, 1.5):
        time.sleep(pause)
        tasks = [(seconds, str(path))] * 2
        Ray(workers=1).run(kept_for_the_next, tasks, done=lambda _, found: results.append(found), tick=lambda: None)
    (first, _), (second, now), (third, later), _ = results
    assert first == second == third, "another worker says nothing"
    assert now == [True, True]
    assert later == [seconds > 1.5] * 2


def test_the_cluster_is_not_asked_for_its_room_at_each_call(monkeypatch) -> None:
    """Each time that would take longer than to give out the call. Tasks are long enough for calls of their own."""
    import ray

    asked, results, resources = [], {}, ray.cluster_resources
    monkeypatch.setattr(ray, "cluster_resources", lambda: asked.append(1) or resources())
    Ray(workers=2).run(slept, [*range(16)], done=results.__setitem__, tick=lambda: None)
    assert len(results) == 16
    assert len(asked) < 9


def slept(number: int) -> int:
    time.sleep(0.3)
    return number

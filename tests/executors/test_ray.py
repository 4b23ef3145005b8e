"""Ray as the engine: the contract of executors on a cluster of this machine."""

from __future__ import annotations

import os

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

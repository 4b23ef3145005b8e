"""The contract of an executor as tests: inherit `ExecutorTests` and give it an `executor`."""

from __future__ import annotations

import pickle
import threading
import time
from typing import TYPE_CHECKING

import pytest

from seqlake.errors import ValidationError

if TYPE_CHECKING:
    from seqlake.executors import Executor


def squared(number: int) -> int:
    """A task that takes no time."""
    return number * number


def reciprocal(number: int) -> float:
    """A task that fails for 0, after the others have ended."""
    if number == 0:
        time.sleep(1)
    return 1 / number


def refused(number: int) -> int:
    """A task that fails with an error of ours."""
    raise ValidationError(f"Task {number} is refused.", hint="Give another.")


class ExecutorTests:
    """Inherit it, and define the fixture `executor`.

    Example:
        ```python
        class TestMine(ExecutorTests):
            @pytest.fixture
            def executor(self):
                return Mine()
        ```
    """

    @pytest.fixture
    def executor(self) -> Executor:
        """What runs tasks, two at a time."""
        raise NotImplementedError("Define the fixture `executor` in the test class.")

    @pytest.mark.parametrize("count", [0, 1, 2, 9, 60])
    def test_every_result_comes_once_with_its_task(self, executor: Executor, count: int) -> None:
        """However many tasks there are; on the thread that asked."""
        results: dict[int, int] = {}
        asked = threading.get_ident()

        def done(task: int, result: int) -> None:
            assert threading.get_ident() == asked
            assert task not in results
            results[task] = result

        executor.run(squared, range(count), done=done, tick=lambda: None)
        assert results == {number: number * number for number in range(count)}

    def test_time_is_told(self, executor: Executor) -> None:
        """What would lapse can be renewed."""
        ticks: list[int] = []
        executor.run(squared, range(3), done=lambda *_: None, tick=lambda: ticks.append(1))
        assert ticks

    def test_what_ended_before_a_failure_is_handed_over(self, executor: Executor) -> None:
        """Finished work is kept, whatever else fails."""
        results: dict[int, float] = {}
        with pytest.raises(ZeroDivisionError):
            executor.run(reciprocal, [1, 0], done=results.__setitem__, tick=lambda: None)
        assert results == {1: 1.0}

    def test_errors_are_those_of_the_task(self, executor: Executor) -> None:
        """Class, message and hint are the same as without an executor."""
        with pytest.raises(ValidationError, match="Task 1 is refused") as caught:
            executor.run(refused, [1, 1], done=lambda *_: None, tick=lambda: None)
        assert caught.value.hint == "Give another."

    def test_an_error_of_whoever_asked_ends_it(self, executor: Executor) -> None:
        """As where a receipt cannot be written."""

        def done(task: int, _: int) -> None:
            raise OSError(f"no room for {task}")

        with pytest.raises(OSError, match="no room for"):
            executor.run(squared, range(4), done=done, tick=lambda: None)

    def test_it_is_a_value(self, executor: Executor) -> None:
        """It can be kept and sent: nothing of it is open."""
        pickle.loads(pickle.dumps(executor))

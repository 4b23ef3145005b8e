"""Runs one function over many tasks: in this process, in others of this machine, on a cluster.

`processes.Processes` is the one that comes along. Whatever has the method of `Executor` serves as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Task = TypeVar("Task")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs tasks somewhere and hands over their results here."""

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        /,
        *,
        done: Callable[[Task, Result], None],
        tick: Callable[[], None],
    ) -> None:
        """Run the function over every task.

        Results come as tasks end, each exactly once; who needs an order keeps them by task. A task may be run again,
        as where a machine went away, so that one that writes replaces what it wrote before.

        Args:
            function: Picklable, as every task and result is.
            tasks: Independent of each other.
            done: Called in this process with each task and its result, by one thread at a time.
            tick: Called in this process at least every minute, however long a task takes: renews what would lapse.

        Raises:
            BaseException: The first failure, of a task, of `done` or by Ctrl-C. What was not begun by then is not
                begun, and what ends meanwhile is handed to `done` before the error is raised.
        """

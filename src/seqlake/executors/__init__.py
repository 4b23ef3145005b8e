"""Runs one function over many tasks: in this process, in others of this machine, on a cluster.

`processes.Processes` and `ray.Ray` come along. Whatever has the method of `Executor` serves as well.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from seqlake import plugins
from seqlake.abilities import KeepsWorkers, StartsWorkers, ability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


class ExecutorPlug(Protocol):
    """What a module in executors/ offers, or one in the group `seqlake.executors`; its name is what users say."""

    def create(self, *, workers: int | None = None) -> Executor:
        """At most so many tasks at a time; None: as many as there is room for. It may take options of its own."""


def executor_of(
    on: str | Executor,
    /,
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus: float | None = None,
) -> Executor:
    """The executor that an argument `on=` means.

    Args:
        on: The name of one, as `"processes"` or `"ray"`, or one that was made already.
        workers: Tasks at a time.
        address: Of the cluster, for those that have one.
        gpus: GPUs that one task needs, for those that count them.

    Raises:
        UnknownPluginError: None is called so.
        TypeError: Options that it does not take, or options beside one that was made already.
        MissingDependencyError: It needs a package that is not installed.

    Example:
        >>> executor_of("processes", workers=2)
        Processes(workers=2)
    """
    given = {"workers": workers, "address": address, "gpus": gpus}
    options = {name: one for name, one in given.items() if one is not None}
    if not isinstance(on, str):
        if options:
            raise TypeError(f"{', '.join(options)}: for an executor named by a text; {on!r} was made with its own.")
        return on
    plug: ExecutorPlug = plugins.load("executors", on)
    plugins.check_options(plug.create, options, what=f"The executor {on!r}")
    return plug.create(**options)  # type: ignore[arg-type]


def executor_if_asked(on: str | Executor | None, /, *, workers: int | None) -> Executor | None:
    """As `executor_of`; None where neither is given, and the verb works in this process, by one pass over the rows.

    Example:
        >>> executor_if_asked(None, workers=None), executor_if_asked(None, workers=2)
        (None, Processes(workers=2))
    """
    return None if on is None and workers is None else executor_of(on or "processes", workers=workers)


@contextmanager
def kept(executor: Executor, /) -> Iterator[Executor]:
    """Within the block an executor whose workers stay for the next run, where it has such.

    Args:
        executor: Any; those without workers of their own, or with a cluster that stays anyway, are given as they are.

    Example:
        >>> with kept(executor_of("processes", workers=1)) as executor:
        ...     in_order(executor, abs, [-1]), in_order(executor, abs, [-2])
        ([1], [2])
    """
    keeps = ability(executor, KeepsWorkers)
    if keeps is None:
        yield executor
        return
    with keeps.kept() as stays:
        yield stays


def expect(executor: Executor, count: int, /) -> None:
    """Have workers start meanwhile, where an executor can: called before a plan that takes its time.

    Args:
        executor: As `kept` gives it.
        count: So many tasks will come, about.
    """
    starts = ability(executor, StartsWorkers)
    if starts is not None:
        starts.expect(count)


@cache
def keep_freed_memory() -> None:
    """Have this process keep what tasks free for the next that they ask for; executors call it where tasks run.

    glibc gives large blocks back to the system, and takes them anew page by page: a third of the time of a search for
    quantiles. How much it keeps follows from the largest block that was freed. This one is the largest that it
    considers, and nobody touches a page of it; other systems do nothing.

    Example:
        >>> keep_freed_memory()
    """
    np.empty((32 << 20) - (1 << 16), np.uint8)


def in_order(
    executor: Executor,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    /,
    *,
    done: Callable[[Task], object] = lambda _: None,
) -> list[Result]:
    """The results of some tasks in the order of the tasks, for work whose results are small.

    Args:
        executor: What runs them.
        function: Picklable.
        tasks: Independent of each other.
        done: Called with each task that has ended.

    Raises:
        BaseException: As `Executor.run`.

    Example:
        >>> in_order(executor_of("processes", workers=1), abs, [-2, 1])
        [2, 1]
    """
    results: dict[int, Result] = {}

    def keep(numbered: tuple[int, Task], result: Result) -> None:
        results[numbered[0]] = result
        done(numbered[1])

    executor.run(numbered(function), list(enumerate(tasks)), done=keep, tick=lambda: None)
    return [results[number] for number in range(len(tasks))]


def numbered(function: Callable[[Task], Result], /) -> Callable[[tuple[int, Task]], Result]:
    """The function over tasks that have their numbers beside them.

    Example:
        >>> numbered(abs)((7, -1))
        1
    """
    return _OfNumbered(function)


@dataclass(frozen=True, slots=True)
class _OfNumbered(Generic[Task, Result]):
    function: Callable[[Task], Result]

    def __call__(self, numbered: tuple[int, Task], /) -> Result:
        return self.function(numbered[1])

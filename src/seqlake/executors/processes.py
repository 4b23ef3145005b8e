"""Runs tasks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.executors import Result, Task

_TICK_SECONDS = 60.0

SHARED = ("pandas", "av", "duckdb", "torch")
"""Packages that take long to import and start no threads by that, as far as workers are like the process that asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """An `Executor` of this machine.

    One worker, or one task, runs in this process. More are started fresh (forkserver, else spawn), so that a script
    which calls this has `if __name__ == "__main__":` around its work.

    Attributes:
        workers: Processes; None: one per core.
        preload: Modules that workers need, imported once for all of them (where there is a forkserver, if this is the
            first to start one), besides what this process has imported of seqlake and of `SHARED`.
    """

    workers: int | None = None
    preload: Sequence[str] = field(default=(), repr=False)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        /,
        *,
        done: Callable[[Task, Result], None],
        tick: Callable[[], None],
    ) -> None:
        """See `Executor`.

        Raises:
            SeqlakeError: A worker was killed from outside.
        """
        count = min(self.workers or _cores(), len(tasks))
        if count <= 1:
            for task in tasks:
                done(task, function(task))
                tick()
            return
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        if method == "forkserver":
            # A run may start workers several times, and each would import the same for a second; and it imports the
            # script that asks anew, whatever is preloaded (Python before 3.14), with all that this has at its top.
            multiprocessing.set_forkserver_preload(["__main__", *self.preload, *_imported()])
        context = multiprocessing.get_context(method)
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_hold, initargs=(pickle.dumps(function),))
        running: dict[Future[Result], Task] = {pool.submit(_held, task): task for task in tasks}
        try:
            while running:
                ended, _ = wait(running, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                # Results that are there are handed over before a failure among them is raised.
                for future in sorted(ended, key=_failed):
                    done(running.pop(future), future.result())
                tick()
        except BrokenProcessPool as error:
            raise SeqlakeError(
                "A worker process was killed from outside, most often because memory ran out.",
                hint="Run it again with fewer workers; with a work folder the finished parts are kept.",
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
            # After a failure: what was under way meanwhile has ended all the same.
            for future, task in running.items():
                if future.done() and not future.cancelled() and not _failed(future):
                    done(task, future.result())


def _imported() -> list[str]:
    names = [name for name in list(sys.modules) if name.partition(".")[0] == "seqlake"]
    return [*names, *(name for name in SHARED if name in sys.modules)]


_function: Callable[[Any], Any] | None = None  # what this process is a worker for, sent to it once


def _hold(pickled: bytes) -> None:
    global _function  # noqa: PLW0603 - a worker has one function, and its pool no other place to keep it
    _function = pickle.loads(pickled)  # noqa: S301 - of the process that started this one


def _held(task: Any) -> Any:
    assert _function is not None
    return _function(task)


def create(*, workers: int | None = None) -> Processes:
    """The executor that `on="processes"` means."""
    return Processes(workers=workers)


def _cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _failed(future: Future[Any]) -> bool:
    return future.exception() is not None

"""Runs tasks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError
from seqlake.executors import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        with self.kept() as once:
            once.run(function, tasks, done=done, tick=tick)

    @contextmanager
    def kept(self) -> Iterator[KeptProcesses]:
        """Within the block the same with workers that stay from one run to the next; none start before a run."""
        workers = KeptProcesses(self)
        try:
            yield workers
        finally:
            workers.close()


class KeptProcesses:
    """Processes that serve one run after the other, and get the function of each by a file, once.

    Args:
        how: How many there are at most, and what they import.
    """

    def __init__(self, how: Processes, /) -> None:
        self._how = how
        self._count = 0
        self._pool: ProcessPoolExecutor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._functions = 0

    def expect(self, count: int, /) -> None:
        """Have what processes are forked from import what they need, meanwhile, if there will be several."""
        if min(self._how.workers or _cores(), count) > 1:
            start_method(self._how.preload)

    def _start(self, count: int) -> None:
        """Start as many processes as so many tasks want, or more in place of fewer."""
        count = min(self._how.workers or _cores(), count)
        if count <= max(1, self._count):
            return
        self.close()
        context = multiprocessing.get_context(start_method(self._how.preload))
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=keep_freed_memory)
        self._count = count
        self._folder = tempfile.TemporaryDirectory(prefix="seqlake-workers-", ignore_cleanup_errors=True)
        for _ in range(count):  # each starts one
            self._pool.submit(os.getpid)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        /,
        *,
        done: Callable[[Task, Result], None],
        tick: Callable[[], None],
    ) -> None:
        """See `Executor`; after a failure the next run has new workers.

        Raises:
            SeqlakeError: A worker was killed from outside.
        """
        if min(self._how.workers or _cores(), len(tasks)) <= 1:
            keep_freed_memory()
            for task in tasks:
                done(task, function(task))
                tick()
            return
        self._start(len(tasks))
        assert self._pool is not None
        held = partial(_held, self._sent(function))
        running: dict[Future[Result], Task] = {}
        try:
            for task in tasks:
                running[self._pool.submit(held, task)] = task
            while running:
                ended, _ = wait(running, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                # Results that are there are handed over before a failure among them is raised.
                for future in sorted(ended, key=_failed):
                    done(running.pop(future), future.result())
                tick()
        except BrokenProcessPool as error:
            self.close()
            raise SeqlakeError(
                "A worker process was killed from outside, most often because memory ran out.",
                hint="Run it again with fewer workers; with a work folder the finished parts are kept.",
            ) from error
        finally:
            if running:
                self.close(wait=True)
            # After a failure: what was under way meanwhile has ended all the same.
            for future, task in running.items():
                if future.done() and not future.cancelled() and not _failed(future):
                    done(task, future.result())

    def close(self, *, wait: bool = False) -> None:
        """End all processes; with `wait`, after what they are at.

        Those that are at nothing end meanwhile: what they have mapped takes the system a tenth of a second for each
        gigabyte.
        """
        pool, folder = self._pool, self._folder
        self._pool, self._folder, self._count = None, None, 0
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=True)
        if folder is not None:
            folder.cleanup()

    def _sent(self, function: Callable[[Any], Any]) -> str:
        """The file that workers read a function from."""
        assert self._folder is not None
        self._functions += 1
        path = Path(self._folder.name, str(self._functions))
        path.write_bytes(pickle.dumps(function))
        return str(path)


def start_method(preload: Sequence[str] = (), /) -> str:
    """The way processes start that share nothing with this one, for `multiprocessing.get_context`.

    Where that is a server of forks it is running afterwards, and imports what they need.

    Example:
        >>> multiprocessing.get_context(start_method())
        <multiprocessing.context.ForkServerContext object at ...>
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    # Each process would import the same for a second; and it imports the script that asks anew, whatever is preloaded
    # (Python before 3.14), with all that this has at its top.
    multiprocessing.set_forkserver_preload(["__main__", *preload, *_imported()])
    forkserver.ensure_running()  # and waits for nothing, as the first process would
    return "forkserver"


def _imported() -> list[str]:
    names = [name for name in list(sys.modules) if name.partition(".")[0] == "seqlake"]
    return [*names, *(name for name in SHARED if name in sys.modules)]


_function: tuple[str, Callable[[Any], Any]] | None = None  # what this process works at, and where it was read


def _held(path: str, task: Any) -> Any:
    global _function  # noqa: PLW0603 - a worker has one function, and its pool no other place to keep it
    if _function is None or _function[0] != path:
        _function = None  # before the next: both may be large
        _function = path, pickle.loads(Path(path).read_bytes())  # noqa: S301 - of the process that started this one
    return _function[1](task)


def create(*, workers: int | None = None) -> Processes:
    """The executor that `on="processes"` means."""
    return Processes(workers=workers)


def _cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _failed(future: Future[Any]) -> bool:
    return future.exception() is not None

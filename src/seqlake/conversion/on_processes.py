"""Runs the parts of a conversion in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any

from seqlake.abilities import Renews, ability
from seqlake.conversion import task as one
from seqlake.errors import SeqlakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.conversion.plan import Task
    from seqlake.protocols import Sink
    from seqlake.spec.schema import Schema

_RENEW_SECONDS = 600.0


def run(
    tasks: Sequence[Task],
    sink: Sink,
    schema: Schema,
    /,
    *,
    workers: int | None,
    done: Callable[[Task, Any], None],
) -> None:
    """Run every task; `done` gets each with its receipt, as they end.

    One worker, or one task, runs in this process. More are started fresh (forkserver, else spawn), so a script that
    calls this has `if __name__ == "__main__":` around its own work.

    Args:
        tasks: In any order.
        sink: Where the rows go; `sink.renew()`, where it has one, is called every ten minutes.
        schema: The columns that are read.
        workers: Processes; None: one per core.
        done: Called in this process.

    Raises:
        SeqlakeError: The first failure; what was not begun by then is not begun.
    """
    count = min(workers or _cores(), len(tasks))
    renew = _Renewal(sink)
    if count <= 1:
        for task in tasks:
            done(task, one.run(task, sink, schema))
            renew.if_due()
        return
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context(method))
    running = {pool.submit(partial(one.run, task, sink, schema)): task for task in tasks}
    try:
        while running:
            ended, _ = wait(running, timeout=_RENEW_SECONDS, return_when=FIRST_COMPLETED)
            # Whole parts are kept before a failure among them is raised.
            for future in sorted(ended, key=_failed):
                done(running.pop(future), future.result())
            renew.if_due()
    except BrokenProcessPool as error:
        raise SeqlakeError(
            "A worker process was killed from outside, most often because memory ran out.",
            hint="Run it again with fewer workers; with a work folder the finished parts are kept.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        # After a failure: parts that were being written meanwhile are done all the same.
        for future, task in running.items():
            if future.done() and not future.cancelled() and not _failed(future):
                done(task, future.result())


def _cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Renewal:
    """Tells the sink at intervals that this conversion is alive, however long a part takes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = ability(sink, Renews)
        self._last = time.monotonic()

    def if_due(self) -> None:
        if self._sink is not None and time.monotonic() - self._last >= _RENEW_SECONDS:
            self._sink.renew()
            self._last = time.monotonic()


def _failed(future: Future[Any]) -> bool:
    return future.exception() is not None

"""Runs tasks on a Ray cluster, or on the cores of this machine by way of Ray."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.executors import Result, Task

_TICK_SECONDS = 30.0
_MOST_WAITING = 4096  # tasks given to Ray at a time, whatever the cluster says it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """An `Executor` on Ray; nothing of Ray is imported before it runs.

    Where this process has joined no cluster it joins the one at `address` (or `RAY_ADDRESS`), and without either starts
    one on this machine, which ends with the process. Its machines need seqlake and what the function needs, and must
    reach the same files. Twice as many tasks as there is room for are given to Ray at a time, so that a cluster that
    can grow sees why it should.

    Attributes:
        address: As `ray.init` takes it, `"auto"` or `"ray://host:10001"`.
        workers: Tasks at a time; None: as many as the cluster has room for.
        cpus: Cores that one task needs.
        gpus: GPUs that one task needs; parts of one are shared.
        memory: Bytes that one task needs; Ray puts no more of them on a machine than it has. None: not counted.
        retries: How often a task is run again whose worker or machine was lost.

    Example:
        ```python
        sl.convert("bridge_rlds/1.0.0", "s3://bucket/bridge", on=Ray(address="auto", memory=2 << 30))
        ```
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1
    gpus: float = 0
    memory: int | None = None
    retries: int = 3

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
            SeqlakeError: No cluster answers at the address; or a task lost its worker or machine more than `retries`
                times.
        """
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, log_to_driver=False, include_dashboard=False, configure_logging=False)
            except ConnectionError as error:
                raise SeqlakeError(
                    f"No Ray cluster could be joined at {self.address or os.environ.get('RAY_ADDRESS')!r}: {error}",
                    hint="`ray status --address ...` says whether it runs; without an address one is started here.",
                ) from error
        remote = ray.remote(_call).options(
            num_cpus=self.cpus, num_gpus=self.gpus, memory=self.memory, max_retries=self.retries
        )
        shared = ray.put(function)  # once for the cluster, however many tasks there are
        running: dict[Any, Task] = {}
        waiting = iter(tasks)
        try:
            while True:
                for task in islice(waiting, max(0, self._room(ray) - len(running))):
                    running[remote.remote(shared, task)] = task
                if not running:
                    return
                if (failure := _collect(ray, running, done)) is not None:
                    raise failure
                tick()
        finally:  # after a failure: what was under way ends all the same, and its result is kept
            while running:
                _collect(ray, running, done)
                tick()

    def _room(self, ray: Any) -> int:
        """How many tasks may be with Ray now: machines come and go."""
        if self.workers is not None:
            return self.workers
        there = ray.cluster_resources()
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0}
        room = [there.get(name, 0) / each for name, each in needs.items() if each]
        return min(_MOST_WAITING, 2 * max(1, int(min(room, default=1))))


def create(*, workers: int | None = None, address: str | None = None, gpus: float = 0) -> Ray:
    """The executor that `on="ray"` means."""
    return Ray(workers=workers, address=address, gpus=gpus)


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    return function(task)


def _collect(ray: Any, running: dict[Any, Any], done: Callable[[Any, Any], None]) -> Exception | None:
    """Wait until some tasks have ended, at most for a while, and hand over their results; the first failure of them."""
    ready, left = ray.wait(list(running), num_returns=1, timeout=_TICK_SECONDS)
    more, _ = ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
    failure: Exception | None = None
    for reference in [*ready, *more]:
        task = running.pop(reference)
        try:
            result = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            failure = failure or error.cause
        except ray.exceptions.RayError as error:
            failure = failure or _lost(error)
        else:
            done(task, result)
    return failure


def _lost(error: Exception) -> SeqlakeError:
    lost = SeqlakeError(
        f"A task lost its worker, or its machine, more often than it may be run again: {type(error).__name__}.",
        hint="Most often memory ran out: say what one task needs (Ray(memory=...)), or run fewer at a time (workers). "
        "With a work folder the finished parts are kept.",
    )
    lost.__cause__ = error
    return lost

"""Runs tasks on a Ray cluster, or on the cores of this machine by way of Ray."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from functools import cache
from threading import Timer
from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError
from seqlake.executors import keep_freed_memory
from seqlake.plugins import require
from seqlake.resting import let_go

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.executors import Result, Task

_TICK_SECONDS = 30.0
_MOST_WAITING = 4096  # calls given to Ray at a time, whatever the cluster says it has
_CALL_SECONDS = 0.5  # that a call takes, where tasks are of less: between two calls a worker waits for some 5 ms
_REST_SECONDS = 10.0  # without a call, after which a worker lets go of what it keeps for the next
_ROOM_SECONDS = 1.0  # for which what the cluster said of its room holds: asking takes longer than to give out a call


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
        retries: How often a task is run again whose worker or machine was lost; where several went together, each is
            then run by itself as often.

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
        remote = _remote().options(num_cpus=self.cpus, num_gpus=self.gpus, memory=self.memory, max_retries=self.retries)
        shared = ray.put(function)  # once for the cluster, however many tasks there are
        running: dict[Any, list[Task]] = {}
        waiting = deque(tasks)
        alone: deque[Task] = deque()  # of calls in which one failed: each by itself, so that it fails as it is
        pace, room, asked = _Pace(), 0, -_ROOM_SECONDS
        try:
            while True:
                if (now := time.monotonic()) >= asked + _ROOM_SECONDS:
                    room, asked = self._room(ray), now
                while len(running) < room and (alone or waiting):
                    some = [alone.popleft()] if alone else _taken(waiting, pace.batch(len(waiting), room))
                    running[remote.remote([shared], some)] = some
                if not running:
                    return
                if (failure := _collect(ray, running, done, pace, alone)) is not None:
                    raise failure
                tick()
        finally:  # after a failure: what was under way ends all the same, and its result is kept
            while running:
                _collect(ray, running, done, pace, alone)
                tick()

    def _room(self, ray: Any) -> int:
        """How many calls may be with Ray now: machines come and go.

        Two for each that runs, so that the next begins without asking; no more than `workers` where Ray would run them.
        """
        there = ray.cluster_resources()
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0}
        slots = max(1, int(min([there.get(name, 0) / each for name, each in needs.items() if each], default=1)))
        most = 2 * slots if self.workers is None or self.workers >= slots else self.workers
        return min(_MOST_WAITING, most)


@dataclass(slots=True)
class _Pace:
    """How long tasks take: those of nothing go together, since Ray needs a millisecond or more for each call."""

    tasks: int = 0
    seconds: float = 0.0

    def add(self, tasks: int, seconds: float) -> None:
        """Enter some that have ended."""
        self.tasks, self.seconds = self.tasks + tasks, self.seconds + seconds

    def batch(self, left: int, room: int) -> int:
        """How many of those that are left make one call: none gets more than its part of them, so that all end at once.

        Example:
            >>> _Pace(tasks=10, seconds=0.1).batch(1000, 4), _Pace(tasks=1, seconds=3.0).batch(1000, 4)
            (50, 1)
        """
        if not self.tasks:
            return 1
        wanted = int(_CALL_SECONDS * self.tasks / max(self.seconds, 1e-6))
        return max(1, min(wanted, left // room))


def _taken(waiting: deque[Task], count: int) -> list[Task]:
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]


def create(*, workers: int | None = None, address: str | None = None, gpus: float = 0) -> Ray:
    """The executor that `on="ray"` means."""
    return Ray(workers=workers, address=address, gpus=gpus)


_function: tuple[Any, Callable[[Any], Any]] | None = None  # what this worker works at, and the object that it is
_resting: Timer | None = None


@cache
def _remote() -> Any:
    """The function of Ray that runs tasks: made once, since workers fetch each that is made."""
    return require("ray", extra="ray").remote(_call)


def _call(shared: list[Any], tasks: list[Any]) -> tuple[list[Any], float]:
    """The results of some tasks, and the seconds that they took; where one fails behind others, those before it."""
    global _function, _resting  # noqa: PLW0603 - a worker has one function, and Ray no other place to keep it
    if _resting is not None:
        _resting.cancel()
    held = _function
    if held is None or held[0] != shared[0]:
        _function = held = None  # before the next: both may be large
        _function = held = shared[0], require("ray", extra="ray").get(shared[0])
    keep_freed_memory()
    began, results = time.perf_counter(), []
    try:
        for task in tasks:
            try:
                results.append(held[1](task))
            except Exception:
                if not results:
                    raise
                break
    finally:
        _resting = Timer(_REST_SECONDS, _rest)
        _resting.daemon = True
        _resting.start()
    return results, time.perf_counter() - began


def _rest() -> None:
    """Workers outlive a run: a model would stay on its GPU, a removed file on its disk."""
    global _function  # noqa: PLW0603 - as above
    _function = None
    let_go()


def _collect(
    ray: Any, running: dict[Any, list[Any]], done: Callable[[Any, Any], None], pace: _Pace, alone: deque[Any]
) -> Exception | None:
    """Wait until some tasks have ended, at most for a while, and hand over their results; the first failure of them."""
    ready, left = ray.wait(list(running), num_returns=1, timeout=_TICK_SECONDS)
    more, _ = ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
    failure: Exception | None = None
    for reference in [*ready, *more]:
        tasks = running.pop(reference)
        try:
            results, seconds = ray.get(reference)
        except ray.exceptions.RayError as error:
            if len(tasks) > 1:
                alone.extend(tasks)
            elif isinstance(error, ray.exceptions.RayTaskError):
                failure = failure or error.cause
            else:
                failure = failure or _lost(error)
        else:
            pace.add(len(results), seconds)
            alone.extend(tasks[len(results) :])
            for task, result in zip(tasks, results, strict=False):
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

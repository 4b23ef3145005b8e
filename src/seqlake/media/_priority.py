"""Encoders that give a process of root's the highest priority of all: what they did is undone."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_THREADS = Path("/proc/self/task")


@contextmanager
def kept_priority() -> Iterator[None]:
    """Open an encoder; this thread, and those that begin meanwhile, are scheduled as this one was before.

    Where it runs as root, as in most containers, SVT-AV1 makes its threads and the one that opens it real-time threads
    of priority 99 (`SCHED_FIFO`), and leaves that so. Whatever the process begins later inherits it; it comes before
    everything else on the machine, and two such processes have been seen to stop a kernel.
    """
    if sys.platform != "linux" or not _THREADS.exists():
        yield
        return
    policy, param, there = os.sched_getscheduler(0), os.sched_getparam(0), _threads()
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            for thread in (0, *(_threads() - there)):
                try:
                    os.sched_setscheduler(thread, policy, param)
                except (ProcessLookupError, PermissionError):  # it ended, or root is root no more
                    continue


def _threads() -> set[int]:
    return {int(one.name) for one in _THREADS.iterdir()}

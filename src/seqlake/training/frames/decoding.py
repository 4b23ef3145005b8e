"""Threads that decode, and the decoders they share: work done in order of need, nothing left behind.

A decoder serves one thread at a time, but not always the same one: whoever needs it takes it out of the pool and puts
it back. Threads come with work and go when there is none, so a loop that is left in the middle leaves no thread.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from seqlake.protocols import Decoder

THREADS = "seqlake-frames"
"""What the names of the threads begin with."""

_PATIENCE = 60.0  # seconds for a thread to finish the one thing it is at


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Up to `size` threads; belongs to the process that made it.

    Args:
        size: Threads at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._threads: list[Thread] = []
        self._busy = 0
        self._closed = False
        # Also when the interpreter ends: a thread that came back from FFmpeg after that would take it down.
        self._pid = os.getpid()
        weakref.finalize(self, _end, self._pid, self._lock, self._waiting, self._threads)

    def put(self, need: int, work: Callable[[], None]) -> None:
        """Have something done; what has the smaller `need` comes first. `work` itself sees to its errors."""
        with self._lock:
            if self._closed:
                return
            heappush(self._waiting, (need, next(self._numbers), work))
            if self._busy < self.size:
                thread = Thread(target=self._run, name=f"{THREADS}-{self._busy}", daemon=True)
                self._threads[:] = [*(one for one in self._threads if one.is_alive()), thread]
                self._busy += 1
                thread.start()

    def close(self) -> None:
        """Forget what waits, and see the threads end after what they are at."""
        self._closed = True
        _end(self._pid, self._lock, self._waiting, self._threads)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy -= 1
                    return
                work = heappop(self._waiting)[2]
            work()
            del work  # what it holds may be large


def _end(pid: int, lock: Lock, waiting: list[Any], threads: list[Thread]) -> None:
    if pid != os.getpid():
        return  # a parent's, whose lock may be taken here for ever
    with lock:
        waiting.clear()
        # One that Ctrl-C kept from starting cannot be waited for.
        others = [thread for thread in threads if thread is not current_thread() and thread.is_alive()]
    for thread in others:
        thread.join(_PATIENCE)


class DecoderPool:
    """Open decoders that nobody uses at the moment; the one that lay there longest is closed first.

    Args:
        most: How many.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._idle: OrderedDict[int, tuple[Hashable, Decoder]] = OrderedDict()
        self._numbers = count()

    @contextmanager
    def use(self, key: Hashable, opened: Callable[[], Decoder], /) -> Iterator[Decoder]:
        """A decoder of `key` for this thread alone; after an error it is not used again."""
        decoder = self._take(key)
        if decoder is None:
            decoder = opened()
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        with self._lock:
            self._idle[next(self._numbers)] = (key, decoder)
            worn = [self._idle.popitem(last=False)[1][1] for _ in range(len(self._idle) - self._most)]
        for one in worn:
            one.close()

    def _take(self, key: Hashable) -> Decoder | None:
        with self._lock:
            number = next((number for number in reversed(self._idle) if self._idle[number][0] == key), None)
            return None if number is None else self._idle.pop(number)[1]

"""Byte ranges fetched side by side: within a budget of bytes under way, and again after errors that pass."""

from __future__ import annotations

import errno
import os
import random
import threading
import weakref
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqlake.errors import ForkedProcessError, SeqlakeError
from seqlake.files.ranges import LARGEST, assemble, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.protocols import Blob, Ints

_FIRST_PAUSE = 0.1  # seconds; what a random part of is waited before the second attempt
_LONGEST_PAUSE = 10.0
_LOOK = 0.25  # seconds between two looks at whether waiting still makes sense
_GRACE = 5.0  # seconds that requests under way are given to end when nobody wants their answer
_FOR_GOOD = (SeqlakeError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)


def passes(error: BaseException, /) -> bool:
    """Whether an error of reading may be gone at the next attempt: a broken connection, a busy server."""
    if isinstance(error, _FOR_GOOD):
        return False
    return isinstance(error, (ConnectionError, TimeoutError)) or (
        isinstance(error, OSError) and error.errno == errno.EIO
    )


class RequestPiece(NamedTuple):
    """One request: the bytes of a blob from `start` to before `stop`."""

    blob: Blob
    start: int
    stop: int

    def __str__(self) -> str:
        return f"bytes {self.start} to {self.stop} of {self.blob.location}"


def pieces_of(blob: Blob, ranges: Sequence[Sequence[int]], /) -> list[RequestPiece]:
    """Ranges of a blob, [first byte, end], cut into requests."""
    return [
        RequestPiece(blob, first, min(first + LARGEST, stop))
        for start, stop in ranges
        for first in range(start, stop, LARGEST)
    ]


@dataclass(slots=True)
class Traffic:
    """What was asked of stores so far.

    Attributes:
        requests: Attempts, failed ones among them.
        nbytes: Bytes that arrived.
        retries: Attempts after the first.
    """

    requests: int = 0
    nbytes: int = 0
    retries: int = 0


class Transfers:
    """Fetches pieces on threads of its own; shared by everything of a process that reads remote shards.

    Args:
        threads: Requests at a time.
        budget: Bytes at a time that were asked for and not yet taken, over all requests; a larger piece goes alone.
        attempts: How often a piece is asked for, on top of what the store's own client repeats.
        patience: Seconds without any piece arriving after which waiting ends in TimeoutError.
    """

    def __init__(
        self, *, threads: int = 12, budget: int = 16 * LARGEST, attempts: int = 4, patience: float = 180.0
    ) -> None:
        self.threads = threads
        self.patience = patience
        self.traffic: Traffic = Traffic()
        self._budget = budget
        self._attempts = attempts
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._state = threading.Condition()
        self._under_way = 0
        self._tasks = 0
        self._closed = threading.Event()
        self._random = random.Random()  # noqa: S311 - it spreads pauses

    def each(self, pieces: Sequence[RequestPiece], sink: Callable[[int, memoryview], None], /) -> None:
        """Fetch pieces in this order, and hand each over as it arrives.

        Args:
            pieces: What to ask for.
            sink: Takes the number of a piece and its bytes, on this thread.

        Raises:
            OSError: A piece failed at every attempt; the first failure ends the others.
            TimeoutError: Nothing arrived for too long; says what was waited for.
            ForkedProcessError: This process was forked from the one whose threads these are.
        """
        self.check()
        over = threading.Event()  # nobody waits for these pieces any more
        waiting = deque(enumerate(pieces))
        running: dict[Future[memoryview | None], tuple[int, RequestPiece]] = {}
        since = monotonic()
        try:
            while waiting or running:
                while waiting and len(running) < self.threads:
                    number, piece = waiting.popleft()
                    running[self._submit(piece, over)] = number, piece
                done, _ = wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED)
                self.check()
                if done:
                    since = monotonic()
                elif monotonic() - since > self.patience:
                    _, oldest = next(iter(running.values()))
                    raise TimeoutError(
                        f"{oldest}: expected an answer within {self.patience:g} s, found none ({len(running)} requests "
                        "under way). The server hangs or the line is too slow; see the store's `timeout` option."
                    )
                while done:
                    future = done.pop()
                    number, piece = running.pop(future)
                    data = future.result()
                    if data is not None:
                        try:
                            sink(number, data)
                        finally:
                            self._leave(piece)
        finally:
            over.set()
            for future, (_, piece) in running.items():
                if not future.cancel():
                    future.add_done_callback(partial(self._forget, piece))

    def check(self) -> None:
        """Raise where this cannot be used: after `close`, and in a forked child, which has no threads of it."""
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                "This process was forked from one that fetches remote shards, whose threads do not survive a fork. "
                'Start workers with multiprocessing_context="forkserver" (or "spawn").'
            )
        if self._closed.is_set():
            raise RuntimeError("This loader's fetching was closed; make a new iterator.")

    def is_busy(self) -> bool:
        """Whether something is being fetched just now."""
        return self._tasks > 0

    def close(self) -> None:
        """End all threads; requests under way are waited for, for a few seconds at most."""
        self.end()
        if self._pool is None or os.getpid() != self._pid:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._state:
            quiet = self._state.wait_for(lambda: not self._tasks, timeout=_GRACE)
        # A request that hangs ends with its client's own timeout; by then it holds nothing but its thread.
        self._pool.shutdown(wait=quiet)

    def end(self) -> None:
        """Let nothing new begin; what is under way ends by itself. Nothing happens in a forked child."""
        if os.getpid() != self._pid:
            return  # whose copy of the lock may be taken for ever
        self._closed.set()
        with self._state:
            self._state.notify_all()

    def parts(self, blob: Blob, ranges: Sequence[Sequence[int]], /, *, came: Callable[[], object] = bool) -> memoryview:
        """As many bytes as a blob has, of which some ranges are fetched; the others are never touched.

        Args:
            blob: What to read.
            ranges: Pairs of (first byte, end).
            came: Called whenever some of them have arrived.
        """
        pieces = pieces_of(blob, ranges)
        whole: list[memoryview] = []
        data = np.empty(0, np.uint8)

        def put(number: int, part: memoryview) -> None:
            if len(part) == blob.size:
                whole.append(part)  # as it came
            else:
                data[pieces[number].start : pieces[number].stop] = np.frombuffer(part, np.uint8)
            came()

        if not any(piece.stop - piece.start == blob.size for piece in pieces):
            data = np.empty(blob.size, np.uint8)
        self.each(pieces, put)
        return whole[0] if whole else data.data

    def pause(self, attempt: int, /) -> None:
        """Wait before another attempt: any time up to a bound that doubles, so that many clients do not come at once.

        Args:
            attempt: How many have failed, from 1 on.
        """
        bound = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
        self._closed.wait(self._random.uniform(0, bound))

    def _submit(self, piece: RequestPiece, over: threading.Event) -> Future[memoryview | None]:
        with self._state:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="seqlake-fetch")
                end_with_program(self)
        return self._pool.submit(self._run, piece, over)

    def _run(self, piece: RequestPiece, over: threading.Event) -> memoryview | None:
        """A piece, for which there is room until whoever asked for it leaves it; None where nobody waits for it."""
        with self._state:
            self._tasks += 1
        try:
            attempt = 1
            while not over.is_set():
                self.check()
                self._enter(piece)
                try:
                    return self._ask(piece, again=attempt > 1)
                except BaseException as error:
                    self._leave(piece)
                    if not passes(error):
                        raise
                    if attempt == self._attempts:
                        raise OSError(errno.EIO, f"{piece}: failed {attempt} times, at last with: {error}") from error
                self.pause(attempt)
                attempt += 1
            return None
        finally:
            with self._state:
                self._tasks -= 1
                self._state.notify_all()

    def _ask(self, piece: RequestPiece, *, again: bool) -> memoryview:
        with self._state:
            self.traffic.requests += 1
            self.traffic.retries += again
        (data,) = piece.blob.ranges(np.array([piece.start], np.int64), np.array([piece.stop], np.int64))
        with self._state:
            self.traffic.nbytes += len(data)
        return data

    def _enter(self, piece: RequestPiece) -> None:
        """Wait until the piece fits into the budget."""
        size, since = self._counted(piece), monotonic()
        with self._state:
            fits = self._state.wait_for(
                lambda: self._under_way + size <= self._budget or self._closed.is_set(), timeout=self.patience
            )
            if not fits:
                raise RuntimeError(  # not TimeoutError, which is tried again
                    f"{piece}: waited {monotonic() - since:.0f} s for {self._under_way} bytes under way to arrive, of "
                    f"{self._budget} allowed at a time. The server hangs, or the line is too slow."
                )
            self._under_way += size

    def _leave(self, piece: RequestPiece) -> None:
        with self._state:
            self._under_way -= self._counted(piece)
            self._state.notify_all()

    def _forget(self, piece: RequestPiece, future: Future[memoryview | None]) -> None:
        """Of a piece that came when nobody waited for it any more."""
        if future.exception() is None and future.result() is not None:
            self._leave(piece)

    def _counted(self, piece: RequestPiece) -> int:
        return min(piece.stop - piece.start, self._budget)


_live: weakref.WeakSet[Transfers] = weakref.WeakSet()
_told = threading.Event()


def end_with_program(transfers: Transfers, /) -> None:
    """At the program's end, give up what was only fetched ahead, instead of waiting for all of it."""
    _live.add(transfers)
    # `atexit` runs after threads were waited for; concurrent.futures uses this one for the same reason.
    register = getattr(threading, "_register_atexit", None)
    if register is not None and not _told.is_set():
        _told.set()
        register(_end_all)


def _end_all() -> None:
    for transfers in list(_live):
        transfers.end()


class MeteredBlob:
    """A blob that is read through `Transfers`: counted, within its budget, and again after errors that pass.

    Args:
        blob: A blob that can only be read by range.
        transfers: What reads it.
    """

    def __init__(self, blob: Blob, transfers: Transfers, /) -> None:
        self.inner = blob
        self._transfers = transfers

    @property
    def location(self) -> str:
        """Where the blob lies."""
        return self.inner.location

    @property
    def size(self) -> int:
        """Bytes of the blob."""
        return self.inner.size

    @property
    def token(self) -> str:
        """What changes when the blob does."""
        return self.inner.token

    def view(self) -> memoryview | None:
        """None: only ranges can be had."""
        return None

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it; neighbours are fetched together."""
        return read_ranges([(self.inner, starts, stops)], self._transfers)[0]


def read_ranges(wanted: Sequence[tuple[Blob, Ints, Ints]], transfers: Transfers, /) -> list[list[memoryview]]:
    """Byte ranges of many blobs, all fetched side by side; neighbours in a blob are one request.

    Args:
        wanted: Blobs, each with the first bytes and the ends of what is wanted of it.
        transfers: What fetches them.

    Returns:
        For each blob, its ranges in the order asked for.
    """
    plans = [plan(starts, stops, blob.size, blob.location) for blob, starts, stops in wanted]
    pieces = [
        RequestPiece(blob, *piece)
        for (blob, _, _), requests in zip(wanted, plans, strict=True)
        for piece in requests.pieces
    ]
    answers = [memoryview(b"")] * len(pieces)
    transfers.each(pieces, answers.__setitem__)
    assembled, at = [], 0
    for requests in plans:
        assembled.append(assemble(requests, answers[at : at + len(requests.pieces)]))
        at += len(requests.pieces)
    return assembled

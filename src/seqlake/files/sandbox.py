"""DuckDB for SQL that others wrote: no file but its own, no network, no extension, and nothing that turns these on."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from contextlib import contextmanager
from threading import Event, Lock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any

from seqlake.errors import QueryLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    import duckdb

CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Without these a view or a default value in a stranger's file reads yours, and a name that is not known is looked for
on DuckDB's server."""


_AGAIN = 0.1  # seconds between interruptions
_shared: dict[tuple[object, ...], duckdb.DuckDBPyConnection] = {}
"""Settings -> this process's database for questions."""


def shared(**settings: Any) -> duckdb.DuckDBPyConnection:
    """A connection of one's own to an empty database in memory that all questions of this process share.

    To make a database costs more than most questions. What is registered, and temporary views, go with the connection.

    Args:
        **settings: As for `connect`.

    Example:
        >>> shared().execute("SELECT 40 + 2").fetchone()
        (42,)
    """
    key = tuple(sorted(settings.items()))
    database = _shared.get(key)
    if database is None:
        database = _shared.setdefault(key, connect(**settings))
    return database.cursor()


def on_end(close: Callable[[], None], /) -> Callable[[], None]:
    """Have this called before the process ends or forks, to close what it keeps open.

    DuckDB's own end is too late, and a forked process that ends dies of a database that it inherited.
    """
    atexit.register(close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=close)
    return close


@on_end
def _end() -> None:
    _shared.clear()  # not `close`: that would close connections that somebody still reads from


@contextmanager
def ctrl_c(connection: duckdb.DuckDBPyConnection, /) -> Iterator[None]:
    """While this connection answers, Ctrl-C stops it, and is `KeyboardInterrupt`.

    DuckDB makes a bare `RuntimeError` of it. Where it comes while a query is planned, DuckDB 2.0 loses it, and every
    further one, and answers to the end.

    Example:
        >>> connection = connect()
        >>> with ctrl_c(connection):
        ...     connection.execute("SELECT 40 + 2").fetchone()
        (42,)
    """
    insistence = _Insistence(connection)
    try:
        with insistence:
            yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


class _Insistence:
    """Once Ctrl-C came, interrupts a connection again and again until it has ended what it did."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._ended = Event()
        self._lock = Lock()
        self._before: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        if current_thread() is main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:  # what comes next on the connection is not interrupted
            self._ended.set()
            if kind is not None:  # DuckDB 1.5 may still be at it: whoever closes the connection would wait to its end
                self._connection.interrupt()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert self._before is not None
        try:
            self._before(number, frame)  # whoever chose to go on goes on
        except BaseException:
            Thread(target=self._insist, daemon=True).start()
            raise

    def _insist(self) -> None:
        while not self._ended.wait(_AGAIN):
            with self._lock:
                if not self._ended.is_set():
                    self._connection.interrupt()


class _Limit(threading.local):
    """What this thread's questions may take; nothing is said where there is no bound."""

    deadline: _Deadline | None = None


_limit = _Limit()


class _Deadline:
    """Interrupts connections again and again from some moment on, until their questions have ended."""

    def __init__(self, seconds: float, memory: str | None) -> None:
        # What does not fit is refused: nothing is put aside in whichever folder the process was started in.
        self.settings = {} if memory is None else {"memory_limit": memory, "temp_directory": ""}
        self.seconds, self.memory = seconds, memory
        self.passed = False
        self._at = time.monotonic() + seconds
        self._watched: list[duckdb.DuckDBPyConnection] = []
        self._ended = Event()
        self._lock = Lock()
        self._thread: Thread | None = None

    @contextmanager
    def watch(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        with self._lock:
            self._watched.append(connection)
        if self._thread is None:
            self._thread = Thread(target=self._insist, daemon=True, name="seqlake-limit")
            self._thread.start()
        try:
            yield
        finally:
            with self._lock:  # what somebody else asks of the connection is not interrupted
                self._watched.remove(connection)

    def end(self) -> None:
        self._ended.set()

    def _insist(self) -> None:
        wait = self._at - time.monotonic()
        while not self._ended.wait(max(0, wait)):
            self.passed, wait = True, _AGAIN
            with self._lock:
                for connection in self._watched:
                    connection.interrupt()


@contextmanager
def limited(*, seconds: float, memory: str | None = None) -> Iterator[None]:
    """Bound what questions of this thread may take: for SQL of somebody who may not know what it costs.

    Args:
        seconds: After these DuckDB is interrupted.
        memory: What a database has, as DuckDB writes it: `"2GB"`. All that is asked with the same bound shares it.

    Raises:
        QueryLimitError: The time was over.

    Example:
        >>> with limited(seconds=20):
        ...     connect().execute("SELECT 40 + 2").fetchone()
        (42,)
    """
    before, deadline = _limit.deadline, _Deadline(seconds, memory)
    _limit.deadline = deadline
    try:
        yield
    except BaseException as error:
        if deadline.passed:
            raise QueryLimitError(
                f"It took longer than {seconds:g} seconds and was stopped.",
                hint="Ask for less: a condition on small columns first, a LIMIT, fewer signals.",
            ) from error
        raise
    finally:
        _limit.deadline = before
        deadline.end()


def bounds() -> tuple[float, str | None] | None:
    """Seconds and memory that `limited` gives this thread's questions; None where nothing bounds them."""
    return None if _limit.deadline is None else (_limit.deadline.seconds, _limit.deadline.memory)


def settings_of_limit() -> dict[str, Any]:
    """What `limited` wants of the database that a question is put to."""
    return {} if _limit.deadline is None else _limit.deadline.settings


@contextmanager
def watched(connection: duckdb.DuckDBPyConnection, /) -> Iterator[None]:
    """While this connection answers, `limited` ends it in time."""
    if _limit.deadline is None:
        yield
        return
    with _limit.deadline.watch(connection):
        yield


def connect(
    path: str | Path = ":memory:", /, *, read_only: bool = False, utc: bool = False, **settings: Any
) -> duckdb.DuckDBPyConnection:
    """A connection that is closed to everything outside, for good.

    Args:
        path: A database file; in memory by default.
        read_only: The file is not changed.
        utc: Times with a zone are shown in UTC, wherever this machine is.
        **settings: DuckDB's own, from the beginning: none can be changed later.

    Example:
        >>> connect().execute("SELECT 40 + 2").fetchone()
        (42,)
    """
    import duckdb

    connection = duckdb.connect(path, read_only=read_only, config={**CLOSED, **settings})
    try:
        if utc:
            connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of cursors too
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection

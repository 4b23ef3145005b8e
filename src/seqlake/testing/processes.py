"""Processes that share nothing with this one, and functions called in one."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

from seqlake.executors.processes import start_method

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

_STARTS = 3  # a loaded machine may fail to bring one up in time
_UP, _DONE = 60, 240  # seconds


def fresh() -> BaseContext:
    """How such processes are started, by `multiprocessing`; they find what takes long to import imported.

    Where a server forks them, their environment is that of this process when it first started one.

    Example:
        ```python
        with fresh().Pool(4) as pool:
            pool.map(append, range(4))
        ```
    """
    return multiprocessing.get_context(start_method(("deltalake", "pyiceberg.catalog.sql")))


def elsewhere(function: Callable[..., Any], /, *given: Any) -> Any:
    """What a function returns in a fresh process.

    Args:
        function: One that pickles.
        given: Its arguments, which pickle too.

    Raises:
        AssertionError: It gave no answer in time.
        EOFError: Its process died.

    Example:
        ```python
        assert elsewhere(len, [1, 2, 3]) == 3
        ```
    """
    context: Any = fresh()  # whose `Process` typeshed does not know
    for _ in range(_STARTS):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(theirs, function, given), daemon=True)
        process.start()
        theirs.close()
        try:
            if mine.poll(_UP):
                mine.recv()
                assert mine.poll(_DONE), f"{function} gave no answer in {_DONE} s in a process of its own"
                return mine.recv()
        finally:
            process.kill()
            process.join()
            mine.close()
    raise AssertionError(f"no process came up in {_STARTS} times {_UP} s")


def _answer(connection: Connection, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    connection.send("up")
    connection.send(function(*given))
    connection.close()

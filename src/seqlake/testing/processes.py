"""A function called in a process that shares nothing with this one."""

from __future__ import annotations

from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_STARTS = 3  # a loaded machine may fail to bring one up in time
_UP, _DONE = 60, 240  # seconds


def elsewhere(function: Callable[..., Any], /, *given: Any) -> Any:
    """What a function returns in a spawned process.

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
    context = get_context("spawn")
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

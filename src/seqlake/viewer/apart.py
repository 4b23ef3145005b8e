"""SQL that may make one value of any size is asked in a process of its own, which may be ended.

DuckDB bounds what it groups, sorts and joins, and looks for an interruption between rows. What one function makes as
one value, as `repeat('x', 3000000000)`, it neither counts nor interrupts.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import answers
from seqlake.errors import QueryLimitError, SeqlakeError
from seqlake.files import sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from seqlake.dataset.selection import Selection
    from seqlake.protocols import Ints

# Against accidents: whoever may ask the viewer has its token. What is not named here has DuckDB's own bounds alone.
_GROWING = re.compile(
    r"\b(repeat|range|generate_series|\w*pad|\w*resize|printf|format|bar|concat\w*|\w*_concat|list\w*|array\w*|replace"
    r"|regexp_replace|\w*agg|\w*histogram|recursive|flatten|product|factorial|bit\w*|hex|to_base\w*)\b|\|\||\bfor\b|\*\*",
    re.IGNORECASE,
)
_TEXT = re.compile("'(?:[^']|'')*'")
_CHILD = "from seqlake.viewer.apart import answer; answer()"
_START = 120.0  # seconds that a process may take to begin, on a machine that is busy
_ALARM = 14  # the signal that ends a process when its time is over
_PLACE = 1 << 30  # bytes that are no memory of DuckDB's


def grows(query: str, /) -> bool:
    """Whether a query or condition names what may make a large value of small ones.

    Example:
        >>> grows("task = 'a list' AND reward > 3"), grows("len(repeat('x', 5)) > 3")
        (False, True)
    """
    return _GROWING.search(_TEXT.sub("''", query)) is not None


def asked(call: Callable[..., Any], query: str, /, *values: Any) -> Any:
    """What a function of a module gives for these values; of a query that may grow, found out in another process.

    Args:
        call: A function that pickles by its name.
        query: The SQL that it runs.
        *values: What it is called with. They go to the other process; where they cannot, the question stays here.

    Raises:
        QueryLimitError: It took longer, or more memory, than `sandbox.limited` allows.
    """
    limit = sandbox.bounds()
    if limit is None or not grows(query):
        return call(*values)
    seconds, memory = limit
    try:
        message = pickle.dumps((call, values, seconds, memory))
    except (pickle.PicklingError, TypeError, AttributeError):  # rows that live in this process alone
        return call(*values)
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
    )
    try:
        said, _ = process.communicate(message, timeout=seconds + _START)
    except BaseException as error:
        process.kill()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise _too_long(seconds) from None
        raise
    if process.returncode == -_ALARM:
        raise _too_long(seconds)
    if process.returncode or not said:
        raise QueryLimitError(
            f"It needs more memory than {memory} and was stopped.",
            hint="One value became too large: repeat, range, lists and joined texts have no bound of their own.",
        )
    value, failure = pickle.loads(said)  # noqa: S301 - of a process of ours
    if failure is not None:
        raise failure
    return value


def _too_long(seconds: float) -> QueryLimitError:
    return QueryLimitError(
        f"It took longer than {seconds:g} seconds and was stopped.",
        hint="Ask for less: a condition on small columns first, a LIMIT, fewer signals.",
    )


def answer() -> None:
    """Answer the one question of the standard input; the whole of this process."""
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no part of the answer
    call, values, seconds, memory = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the viewer that started this
    _bound(memory)
    _end_after(seconds)
    try:
        with sandbox.limited(seconds=seconds, memory=memory):
            said = pickle.dumps((call(*values), None))
    except MemoryError:
        said = b""
    except SeqlakeError as error:
        said = pickle.dumps((None, error))
    except Exception as error:  # noqa: BLE001 - whatever it was, it is said
        said = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    with open(out, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(said)
    os._exit(0 if said else 1)


def _bound(memory: str | None) -> None:
    """From here on this process gets so much more memory; where the system knows such bounds."""
    if memory is None:
        return
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:  # noqa: PTH123 - no path of a dataset
            has = int(file.read().split()[0]) * resource.getpagesize()
        most = has + _bytes(memory) + _PLACE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _end_after(seconds: float) -> None:
    """End this process soon after its question should have ended, by the system: one value is not interrupted."""
    with suppress(ImportError, AttributeError):
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)


def _bytes(memory: str) -> int:
    number, unit = re.fullmatch(r"([\d.]+)\s*([KMGT]?)i?B", memory.upper().replace("IB", "B")).groups()  # type: ignore[union-attr]  # ours
    return int(float(number) * 1000 ** " KMGT".index(unit or " "))


def kept(selection: Selection, conditions: Sequence[str], /) -> Ints:
    """[matches] the source's numbers of the rows for which conditions hold, each by itself."""
    for one in conditions:
        selection = selection.where(one)
    chosen = Excerpt.of(selection)
    return np.arange(len(chosen), dtype=np.int64) if chosen.rows is None else chosen.rows


def table(
    selection: Selection, query: str, narrowed: Callable[[Any, int], Any], limit: int, /
) -> tuple[pa.Table, list[tuple[str, str]]]:
    """What a query answers, narrowed; and the names and types of its columns before that."""
    columns: list[tuple[str, str]] = []

    def narrow(relation: Any) -> Any:
        columns.extend((str(name), str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True))
        return narrowed(relation, limit)

    return answers(Excerpt.of(selection), query, narrowed_to=narrow), columns

"""Full disks: the system, SQLite, DuckDB and Parquet's writer report them in their own ways; here it is one error."""

from __future__ import annotations

import errno
import re
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from seqlake.errors import CommitUnknownError, DiskFullError, SeqlakeError, causes

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL = 13
_POSTGRES_FULL = "53100"
# Packages in Rust end what they say with the system's number, and raise errors of their own, or an OSError without one.
_RUST = re.compile(r"\(os error (\d+)\)\s*\Z")
# DuckDB has the system's words at the end of the first line, or of a message that it quotes as JSON.
_DUCKDB = {"IOException", "TransactionException"}
_WORDS = {"No space left on device": errno.ENOSPC, "Disk quota exceeded": errno.EDQUOT}
_LAST = re.compile(rf'^.*: ({"|".join(_WORDS)})(?:$|\n|",)')


def without_room(error: BaseException, /) -> int | None:
    """The system's number for a full disk, by what an error is or was raised from; None where it is another thing.

    Texts that only quote such words, as a file's name or a value, say nothing.
    """
    return next((number for cause in causes(error) if (number := _number(cause)) is not None), None)


def _number(error: BaseException) -> int | None:
    """The same of one error alone."""
    if isinstance(error, sqlite3.Error):
        return errno.ENOSPC if getattr(error, "sqlite_errorcode", None) == _SQLITE_FULL else None
    if getattr(error, "sqlstate", None) == _POSTGRES_FULL:
        return errno.ENOSPC
    kinds = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    number: int | None = None
    if isinstance(error, OSError) and error.errno is not None:
        number = error.errno
    elif type(error) is OSError or ("_internal", "DeltaError") in kinds:
        last = _RUST.search(str(error))
        number = None if last is None else int(last[1])
    elif any(("_duckdb", name) in kinds for name in _DUCKDB):
        words = _LAST.match(str(error))
        number = None if words is None else _WORDS[words[1]]
    return number if number in _NUMBERS else None


@contextmanager
def room_in(where: object, /) -> Iterator[None]:
    """Around what writes: a full disk is told in one way.

    Args:
        where: What is written, for the message.

    Raises:
        DiskFullError: No space is left, or a quota is used up.

    Example:
        >>> with room_in("data/arm"):
        ...     pass
    """
    try:
        yield
    except (CommitUnknownError, DiskFullError):
        raise  # the first says more, and that is what must be known
    except Exception as error:
        number = without_room(error)
        if number is None:
            raise
        full = DiskFullError(
            f"No space is left in {where}. What was not committed before is lost: free some, write it again.",
            path=str(where),
            hint=error.hint if isinstance(error, SeqlakeError) else None,
        )
        full.errno = number
        raise full from error

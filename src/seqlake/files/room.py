"""A disk without room: the system, SQLite, DuckDB and Parquet's writer say it their way, here it is one error."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from seqlake.errors import CommitUnknownError, DiskFullError, SeqlakeError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
_WORDS = (
    ("disk is full", errno.ENOSPC),  # SQLite, and whoever wraps its errors
    ("No space left on device", errno.ENOSPC),  # DuckDB, obstore
    ("Disk quota exceeded", errno.EDQUOT),
)


def without_room(error: BaseException, /) -> int | None:
    """The system's number for what an error says of a full disk; None where it says another thing."""
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return error.errno
    text = str(error)
    return next((number for words, number in _WORDS if words in text), None)


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

"""What a lake's own client makes of damaged metadata, as an error of ours.

Logs, manifests and catalogs are read by other packages, and these end in whatever their parsers end in: decoding
errors, missing keys, exceptions of several kinds, a panic. All of it means one thing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, DatasetNotFoundError, SeqlakeError
from seqlake.files.room import without_room

if TYPE_CHECKING:
    from collections.abc import Iterator

_PANIC = "PanicException"  # of packages in Rust; a BaseException, and it has no name to import


@contextmanager
def as_damage(place: str, /) -> Iterator[None]:
    """Around the reading of a lake's metadata, and of nothing that a caller could have given wrongly.

    Args:
        place: Of the table.

    Raises:
        DamagedTableError: The metadata cannot be read.
    """
    try:
        yield
    except (SeqlakeError, ImportError, NotImplementedError):
        raise
    except BaseException as error:
        elsewhere = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        if (
            elsewhere
            or without_room(error) is not None
            or not (isinstance(error, Exception) or type(error).__name__ == _PANIC)
        ):
            raise
        reason = (str(error).splitlines() or [""])[0][:300]
        raise DamagedTableError(
            f"{place}: the table's metadata cannot be read ({type(error).__name__}: {reason}).",
            path=place,
            hint="If another client reads it, it has something that is not supported here; else restore its metadata.",
        ) from error


def replaced(place: str, /) -> DatasetNotFoundError:
    """The error that the table of an open dataset was dropped, and another one has its name now."""
    return DatasetNotFoundError(
        f"{place}: the table that was opened is gone, and another one was made under its name.",
        path=place,
        hint="Open that one with sl.open.",
    )

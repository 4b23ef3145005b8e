"""What every small file of a table says first: its format, its time, who wrote it, what it requires of its readers."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, SchemaMismatchError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FORMAT = 2
UNSEALED = 1
"""The format of records that hold no digest of themselves: read, no longer written."""


TAGS = "tags"
"""Versions have names, and are kept for that: who does not know it would remove them."""

UNDERSTOOD: frozenset[str] = frozenset({TAGS})
"""What a record may require of its readers beyond the format; features that come later are named here."""


OPERATIONS = (
    *("create", "adopt", "append", "rewrite", "fold", "delete", "upsert"),
    *("evolve", "metadata", "rollback", "collect"),
)


def stamp(time: datetime) -> str:
    """A time as records and markers have it: UTC with microseconds and a Z."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: object) -> datetime:
    """The time back.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(text, str):
        raise ValueError(f"a time was expected, found {text!r}")  # noqa: TRY004 - one error for all bad fields
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@cache
def writer_name() -> str:
    """Who writes, as records say it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"seqlake {version('seqlake')}"
    except PackageNotFoundError:
        return "seqlake"


def refuse_unknown_format(number: object, *, path: str) -> int:
    """The format of these bytes, if this package reads it.

    Raises:
        UnsupportedVersionError: A format newer than ours.
        DamagedTableError: No format at all.
    """
    if type(number) is int and number > FORMAT:
        raise UnsupportedVersionError(
            f"{path} has format {number}; this seqlake reads formats up to {FORMAT}.",
            path=path,
            hint="Update seqlake.",
        )
    if type(number) is not int or number < UNSEALED:
        raise damaged(path, f"expected a format up to {FORMAT}, found {number!r}")
    return number


def refuse_unknown_operation(operation: str, /) -> None:
    """Refuse a change whose operation no table knows.

    Raises:
        ValueError: It is none.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"An operation is one of {', '.join(OPERATIONS)}; found {operation!r}.")


def refuse_strange_renames(renamed: Mapping[str, str], before: Collection[str], after: Collection[str], /) -> None:
    """Refuse renames that a new schema cannot mean.

    Args:
        renamed: Old name -> new name.
        before: The columns of the table.
        after: Those of the new schema.

    Raises:
        SchemaMismatchError: A column that was not there, or is not now.
    """
    for old, new in renamed.items():
        if old not in before or new not in after:
            raise SchemaMismatchError(
                f"Expected to rename a column of the table to one of the new schema, found {old!r} to {new!r}."
            )


def refuse_requirements(required: object, *, path: str) -> None:
    """Refuse what needs more of its reader than the format says.

    Raises:
        UnsupportedVersionError: It names what this package does not know.
        DamagedTableError: It is no list of names.
    """
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise damaged(path, f"expected names of what it requires, found {required!r}")
    unknown = sorted(set(required) - UNDERSTOOD)
    if unknown:
        raise UnsupportedVersionError(
            f"{path} requires {', '.join(map(repr, unknown))}, which this seqlake does not know.",
            path=path,
            hint="Update seqlake.",
        )


def damaged(path: str, why: str) -> DamagedTableError:
    """The error for bytes of ours that cannot be used."""
    return DamagedTableError(
        f"{path} cannot be used: {why}.",
        path=path,
        hint="Something other than seqlake changed the table's log; restore the file from a backup or a copy.",
    )

"""How versions are named, in all kinds of tables: by number, by time, and by which names of their own."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seqlake.errors import TagExistsError, VersionNotFoundError
from seqlake.protocols import Version

if TYPE_CHECKING:
    from collections.abc import Mapping

# They become names of files in some homes and words of a command line in all, so they are plain in both.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def version_id(version: Version | int | str | datetime | None, /) -> int | str | datetime | None:
    """What names a version, in one form: of a `Version` its id, of digits a number, a time with its zone.

    Raises:
        TypeError: It is nothing that could name one.
    """
    named = version.id if isinstance(version, Version) else version
    if isinstance(named, str) and named.strip().isascii() and named.strip().isdecimal():
        return int(named)
    if isinstance(named, datetime):
        try:
            return named if named.tzinfo else named.astimezone(UTC)
        except (OverflowError, ValueError):  # the calendar's first and last day have no other zone
            return named.replace(tzinfo=UTC)
    if named is None or isinstance(named, int | str):
        return named
    raise TypeError(f"A version is a Version, its id, a tag or a datetime, found {named!r}.")


def is_name(name: object, /) -> bool:
    """Whether this may name a version."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not name.isdecimal()


def check_name(name: object, /) -> str:
    """The name, if it may name a version.

    Raises:
        TypeError: It is no text.
        ValueError: It could be taken for a number or a path, or cannot be typed.
    """
    if not isinstance(name, str):
        raise TypeError(f"A tag is a text, found {type(name).__name__}.")
    if not is_name(name):
        raise ValueError(
            "A tag has 1 to 64 letters, digits, dots, dashes and underscores of ASCII, begins with a letter or a "
            f"digit, and is no number; found {name!r}."
        )
    return name


def check_free(tags: Mapping[str, int | str], name: str, version: int | str, /, *, move: bool, path: str) -> None:
    """Refuse to take a name from another version unasked: that would lose what protects it.

    Raises:
        TagExistsError: It names another version.
    """
    if not move and tags.get(name, version) != version:
        raise TagExistsError(
            f"{path}: {name!r} is version {tags[name]} already, so it was not given to version {version}.",
            path=path,
            hint="Move it with move=True (`seqlake tag --move`), or take another name.",
        )


def unknown(tags: Mapping[str, int | str], name: str, /, *, path: str) -> VersionNotFoundError:
    """The error for a name that no version has."""
    near = difflib.get_close_matches(name, tags, n=1)
    return VersionNotFoundError(
        f"{path} has no tag {name!r}; " + (f"it has {', '.join(sorted(tags)[:10])}." if tags else "it has none."),
        path=path,
        hint=f"Did you mean {near[0]!r}?" if near else "`seqlake versions` shows the tags.",
    )

"""The fence around a folder: names below a root, and links, which may lead out of it.

What is read may pass links that stay below the root; what is written, moved or deleted passes none. Links *to* the
root are the user's own and always followed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from seqlake.errors import UnsafeReferenceError

if TYPE_CHECKING:
    from collections.abc import Iterator


def refuse_links(top: str, *folders: str) -> None:
    """Refuse folders that are links, or are reached by one from the top; those that are not there are fine.

    Args:
        top: The root; itself it may be a link.
        *folders: Below it, with `/` between their parts.

    Raises:
        UnsafeReferenceError: Says which.
    """
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError):
            refuse_link_among(top, folder.split("/") if folder else [])


def refuse_link_among(top: str, parts: list[str], /) -> None:
    """As `refuse_links` for one folder, by the parts of its name; FileNotFoundError where one is not there."""
    place = top
    for part in parts:
        place = os.path.join(place, part)  # noqa: PTH118 - a string
        if stat.S_ISLNK(os.lstat(place).st_mode):
            raise UnsafeReferenceError(
                f"{place} is a link: expected a folder of the dataset's own. Nothing is written, moved or deleted "
                "through links, since one in a dataset that somebody sent may lead to your own files.",
                path=place,
                hint="Put the folder itself in its place; the dataset's whole folder may be a link.",
            )


def refuse_outside(top: str, name: str, /) -> None:
    """Refuse to read what links lead out of the top; links that stay below it are fine.

    Args:
        top: The root; itself it may be a link.
        name: Below it, with `/` between its parts.

    Raises:
        UnsafeReferenceError: It says where the name leads.
        FileNotFoundError: Nothing is there.
    """
    place = top
    for part in name.split("/"):
        place = f"{place}{os.sep}{part}"
        if stat.S_ISLNK(os.lstat(place).st_mode):
            break
    else:
        return
    leads = os.path.realpath(f"{top}{os.sep}{name}")
    if not is_below(os.path.realpath(top), leads):
        raise outside(place, leads)


def outside(place: str, leads: str, /) -> UnsafeReferenceError:
    """The error for a link that leads out of a dataset."""
    return UnsafeReferenceError(
        f"{place} is a link that leads out of the dataset, to {leads}.",
        path=place,
        hint="If you trust the dataset, open it with allow_outside=True.",
    )


def is_below(top: str, path: str, /) -> bool:
    """Whether a real path is another or lies below it."""
    return path == top or path.startswith(top.rstrip(os.sep) + os.sep)


def walk(top: str, folder: str, /, *, after: str = "", allow_outside: bool = False) -> Iterator[tuple[str, int]]:
    """(name, size) of the files below a folder to read, in the order of their whole names.

    Links to folders are followed: to those below the top, or all.

    Args:
        top: The root.
        folder: Below it, with a final slash; empty for the top itself.
        after: Begin behind this name.
        allow_outside: Links may lead out of the top.

    Raises:
        UnsafeReferenceError: One does.
    """
    if folder and not allow_outside:
        try:
            refuse_outside(top, folder.rstrip("/"))
        except (FileNotFoundError, NotADirectoryError):
            return
    real = "" if allow_outside else os.path.realpath(top)
    for entry in _walk(os.path.join(top, folder), folder, (), real):  # noqa: PTH118 - strings throughout
        if entry[0] > after:
            yield entry


def walk_without_links(top: str, folder: str, /) -> Iterator[tuple[str, int]]:
    """(name, size) of the files below a folder to move or remove, in the order of their whole names.

    A link counts as the file that it is.

    Raises:
        UnsafeReferenceError: The folder is a link, or is reached by one.
    """
    refuse_links(top, folder.rstrip("/"))
    yield from _walk(os.path.join(top, folder), folder, (), None)  # noqa: PTH118 - strings throughout


def _walk(place: str, prefix: str, above: tuple[tuple[int, int], ...], real: str | None) -> Iterator[tuple[str, int]]:
    """Files below a folder: `a.txt` before `a/b`, since `.` comes before `/`.

    Args:
        place: The folder.
        prefix: What names in it begin with.
        above: The folders that we are in, by device and inode.
        real: Where links to folders may lead; "" is anywhere, None follows none.
    """
    try:
        status = os.stat(place)  # noqa: PTH116 - strings throughout
        here = (status.st_dev, status.st_ino)
        if here in above:
            return  # a link to a folder that we are in already
        with os.scandir(place) as entries:
            kinds = [(entry, entry.is_dir(follow_symlinks=real is not None)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, entry in sorted(((f"{e.name}/" if is_folder else e.name, e) for e, is_folder in kinds), key=_first):
        if name.endswith("/"):
            if real and entry.is_symlink() and not is_below(real, leads := os.path.realpath(entry.path)):
                raise outside(entry.path, leads)
            yield from _walk(entry.path, prefix + name, (*above, here), real)
        else:
            with suppress(FileNotFoundError):  # moved on between the listing and the look
                yield prefix + name, entry.stat(follow_symlinks=real is not None).st_size


def _first(pair: tuple[str, os.DirEntry[str]]) -> str:
    return pair[0]

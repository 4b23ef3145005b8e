"""The fence around a folder: names below a root, and links, which may lead out of it.

What is read may pass links that stay below the root; what is written, moved or deleted passes none. Links *to* the
root are the user's own and always followed.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.errors import UnsafeReferenceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_HERE: type[Path] = type(Path())


class Below(_HERE):  # type: ignore[misc, valid-type]  # Python 3.11 has no other way to extend a path
    """A path that knows below which folder no link is followed on the way to it.

    Attributes:
        top: That folder; empty for a path like any other.
    """

    top = ""

    @classmethod
    def of(cls, top: str, name: str, /) -> Below:
        """The path of a name below a folder."""
        path = cls(top, name)
        path.top = top
        return path


@contextmanager
def parent_of(path: Path, /) -> Iterator[tuple[str, int | None]]:
    """What a system call takes for a path: a name, and the open folder that it lies in.

    The folders between the top and the name are opened one in the other, so that none of them is a link, and none can
    become one before the call is made. A path without a top, and Windows, which opens no folders, have no open folder.

    Raises:
        UnsafeReferenceError: One of them is a link.
        FileNotFoundError: One is not there.
    """
    top = path.top if isinstance(path, Below) else ""
    if not top:
        yield os.fspath(path), None
        return
    *folders, name = path.relative_to(top).parts
    if os.open not in os.supports_dir_fd:
        _refuse_links(top, folders)
        yield os.fspath(path), None
        return
    fd = os.open(top, _FOLDER)
    try:
        for number, folder in enumerate(folders):
            try:
                inner = os.open(folder, _FOLDER | _NO_LINK, dir_fd=fd)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                    _refuse_links(top, folders[: number + 1])
                error.filename = os.path.join(top, *folders[: number + 1])  # noqa: PTH118 - a string
                raise
            fd, above = inner, fd  # before it is closed: a number that is closed twice may be another file's by then
            os.close(above)
        yield name, fd
    except OSError as error:
        if error.filename == name:  # the system was told no more than that
            error.filename = os.fspath(path)
        if error.filename2 == name:
            error.filename2 = os.fspath(path)
        raise
    finally:
        os.close(fd)


def refuse_links(top: str, folder: str, /) -> None:
    """Refuse a folder that is a link, or is reached by one from the top; one that is not there is fine.

    Args:
        top: The root; itself it may be a link.
        folder: Below it, with `/` between its parts.

    Raises:
        UnsafeReferenceError: Says which.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        _refuse_links(top, folder.split("/") if folder else [])


def _refuse_links(top: str, parts: list[str]) -> None:
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


def walk(top: str, folder: str, /, *, allow_outside: bool = False) -> Iterator[tuple[str, int]]:
    """(name, size) of the files below a folder to read, in the order of their whole names.

    Links to folders are followed: to those below the top, or all.

    Args:
        top: The root.
        folder: Below it, with a final slash; empty for the top itself.
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
    yield from _walk(os.path.join(top, folder), folder, (), real)  # noqa: PTH118 - strings throughout


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

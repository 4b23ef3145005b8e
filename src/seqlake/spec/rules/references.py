"""Rules of file references (F401 to F403, F405), as far as the references themselves say."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.spec.rules._rule import rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.spec.findings import Finding
    from seqlake.spec.rules.facts import Batch

SECTION = "File Reference Columns"


@dataclass(slots=True)
class References:
    """Which row first named each file, over all batches."""

    first: dict[str, str] = field(default_factory=dict)


def check_references(batch: Batch, seen: References, /) -> Iterator[Finding]:
    """All rules over the references of some rows."""
    for name in [*batch.columns("file", "frames"), *batch.inline]:
        for number, cell in enumerate(batch.rows.column(name).to_pylist()):
            for path, whole in paths_in(cell):
                place = batch.place(number, name)
                yield from f401_empty(path, place)
                yield from f402_leaves_root(path, place)
                yield from f403_absolute(path, place)
                if whole:
                    yield from f405_named_twice(path, place, seen)


def paths_in(cell: Any, /) -> Iterator[tuple[str, bool]]:
    """The references of a cell, and whether each stands for the whole file."""
    if isinstance(cell, str):
        yield cell, True
    elif isinstance(cell, dict):
        url = cell.get("url")
        if names_its_file(cell):
            yield cell["path"], True
        elif isinstance(url, str):
            # A cell that says which frames are its own declares a shared file.
            yield url, cell.get("first_frame") is None
    elif isinstance(cell, list):
        for one in cell:
            if isinstance(one, str):
                yield one, True


def names_its_file(cell: Any, /) -> bool:
    """Whether a cell `{bytes, path}` holds no bytes, so that its path is a reference."""
    inline = isinstance(cell, dict) and "bytes" in cell and "url" not in cell
    return inline and cell["bytes"] is None and isinstance(cell.get("path"), str)


# As `files.locations` reads them: only `//` makes a scheme, and `file:` may do without.
_URI = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+://|file:)", re.IGNORECASE)
_ABSOLUTE = re.compile(r"^(/|\\\\|[A-Za-z]:[\\/]|file:)", re.IGNORECASE)


def is_relative(path: str, /) -> bool:
    """Whether a reference means something only together with a dataset's root."""
    return not (_URI.match(path) or _ABSOLUTE.match(path))


def leaves_root(path: str, /) -> bool:
    """Whether a relative reference leads out of the dataset by its own words, links aside."""
    return is_relative(path) and posixpath.normpath(path.replace("\\", "/")).split("/")[0] == ".."


@rule("F401", "error", "A reference is not empty.", section=SECTION)
def f401_empty(path: str, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Null says that there is no file."""
    if not path.strip():
        yield {**place, "message": "an empty reference; use null where there is no file"}


@rule("F402", "error", "A relative reference stays below the dataset's root.", section=SECTION)
def f402_leaves_root(path: str, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """`..` may not lead out."""
    if leaves_root(path):
        yield {**place, "message": f"{path!r} leaves the dataset's root; it is opened only with allow_outside=True"}


@rule("F403", "warning", "A reference to this machine is relative.", section=SECTION)
def f403_absolute(path: str, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Absolute paths break when the dataset moves."""
    if _ABSOLUTE.match(path):
        yield {**place, "message": f"{path!r} is absolute: it breaks when the dataset moves, and needs allow_outside"}


@rule("F405", "warning", "A file belongs to one sequence.", section=SECTION)
def f405_named_twice(path: str, place: dict[str, Any], seen: References, /) -> Iterator[dict[str, Any]]:
    """A struct cell with `first_frame` declares a shared file and is exempt."""
    if not path.strip():
        return
    here = str(place["sequence_id"])
    first = seen.first.setdefault(path if _URI.match(path) else posixpath.normpath(path), here)
    if first != here:
        yield {**place, "message": f"{path!r} is named by {first!r} as well"}

"""One place in the stead of another at the head of references."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from seqlake.errors import UnsafeReferenceError
from seqlake.files.locations import absolute, inside, is_local, join, local_path, scheme
from seqlake.spec.rules.references import is_relative

if TYPE_CHECKING:
    from collections.abc import Iterable

Mode: TypeAlias = Literal["leave", "copy", "move"]

_OURS = frozenset({"data", "files", "_seqlake"})  # folders of a table, whose names have meanings


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """From one prefix to another, as locations.

    Attributes:
        root: The dataset's.
        old: The location that references lie at or below.
        new: What takes its place in a reference; None: files are taken in.
    """

    root: str
    old: str
    new: str | None

    @classmethod
    def between(cls, root: str, old: str, new: str | None, *, files: Mode) -> Way:
        """The way between two prefixes as people write them."""
        if files not in {"leave", "copy", "move"}:
            raise ValueError(f"files is 'leave', 'copy' or 'move', found {files!r}.")
        place = join(root, old).rstrip("/")
        if files == "move" and scheme(place) in {"http", "https"}:
            raise ValueError(f"{old} is on a web server, from which nothing can be removed; use 'copy'.")
        if new is None:
            if files == "leave":
                raise ValueError("Say where the references lead from now on, or take the files in (files='copy').")
            return cls(root=root, old=place, new=None)
        target = join(root, new).rstrip("/")
        if is_relative(new) and not inside(root, target):
            raise UnsafeReferenceError(
                f"{new!r} leaves the dataset's root {root}.", path=target, hint="Give an absolute path or a URI."
            )
        prefix = relative_to(root, target) if inside(root, target) else target
        if (prefix or "").split("/")[0] in _OURS:
            raise ValueError(
                f"{new} is a folder of the table's own. Choose another, or leave the new place out: then the files are "
                "taken into the dataset."
            )
        return cls(root=root, old=place, new=prefix)

    def rest(self, reference: str) -> str | None:
        """What follows the old prefix; None where the reference lies elsewhere."""
        try:
            location = join(self.root, reference)
        except (UnsafeReferenceError, ValueError):
            return None  # it names no file
        if location == self.old:
            return ""
        return location[len(self.old) + 1 :] if location.startswith(f"{self.old}/") else None

    def moved(self, reference: str) -> str | None:
        """The reference that takes its place."""
        if self.new is None:
            return None
        reference_there = "/".join(part for part in (self.new, self.rest(reference)) if part)
        if not reference_there:
            raise ValueError(f"{reference!r} is one file, and the new place a folder; give its new name.")
        return reference_there

    def refuse_links(self, references: Iterable[str]) -> None:
        """A link in a dataset that somebody sent may point at your own files, which must not be copied along."""
        for reference in references:
            location = join(self.root, reference)
            top = self.root if location.startswith(f"{self.root.rstrip('/')}/") else self.old
            if not inside(top, location):
                raise UnsafeReferenceError(
                    f"{reference!r} is a link that leads out of {top}.",
                    path=location,
                    hint="If you trust the dataset, open it with allow_outside=True.",
                )


def relative_to(root: str, location: str) -> str:
    """A location inside a root as a relative reference."""
    if is_local(root):
        path = os.path.relpath(absolute(location), local_path(root))
        if Path(path).parts[:1] == (os.pardir,):  # inside by way of a link
            path = os.path.relpath(os.path.realpath(absolute(location)), os.path.realpath(local_path(root)))
        path = path.replace(os.sep, "/")
    else:
        path = posixpath.relpath(location.partition("://")[2], root.partition("://")[2])
    return "" if path == "." else path


def is_ours(root: str, location: str, /) -> bool:
    """Whether a location lies in a folder of the table's own, so that only `vacuum` removes it."""
    return inside(root, location) and relative_to(root, location).split("/")[0] in _OURS

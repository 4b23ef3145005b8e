"""References moved from one place to another, with their files or without, in one commit."""

from __future__ import annotations

import os
import posixpath
import warnings
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from seqlake.dataset import progress
from seqlake.dataset.changing import changes
from seqlake.dataset.reading.inventory import sizes
from seqlake.dataset.writing.copying import digest, on_this_machine
from seqlake.dataset.writing.ingest import Given
from seqlake.dataset.writing.references import mapped, refers
from seqlake.dataset.writing.staging import ShardShape, Staging, open_for_changes
from seqlake.errors import CommitConflictError, CommitUnknownError, UnsafeReferenceError, ValidationError
from seqlake.files.locations import absolute, checked, inside, is_local, join, local_path, scheme
from seqlake.files.stores import open_store
from seqlake.spec.rules.references import is_relative, paths_in
from seqlake.versions.messages import saying

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Store, Version

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


_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What a relocation changes; nothing has been done yet.

    Attributes:
        files: `leave`, `copy` or `move`.
        references: Old reference -> new one; None where the file is taken into the dataset and named then.
        cells: How many cells hold one of them.
        missing: What is not there: the new references if files are left, the old ones if they are copied or moved.
        nbytes: Bytes to copy.
    """

    files: Mode
    references: Mapping[str, str | None]
    cells: int
    missing: tuple[str, ...]
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "files": self.files,
            "references": dict(self.references),
            "cells": self.cells,
            "missing": list(self.missing),
            "bytes": self.nbytes,
        }


def plan_relocation(dataset: Dataset, old: str, new: str | None = None, /, *, files: Mode = "leave") -> Relocation:
    """What `relocate` would do; takes the same arguments, looks at every file concerned, and changes nothing.

    Raises:
        ValueError: A mode that makes no sense with these places.
        UnsafeReferenceError: The new references would leave the dataset's root by `..`, or a file to copy is a link
            that leads out of the place.
        ValidationError: No reference lies at or below `old`.

    Example:
        ```python
        planned = sl.plan_relocation(ds, "/mnt/recordings", files="copy")  # planned.nbytes are copied
        ```
    """
    root = dataset.root
    way = Way.between(root, old, new, files=files)
    moved: dict[str, str | None] = {}
    cells = 0
    columns = [name for name in dataset.schema if refers(dataset.schema[name])]
    for batch in dataset.batches(columns) if columns else ():
        for cell in chain.from_iterable(column.to_pylist() for column in batch.columns):
            inside_it = [path for path, _ in paths_in(cell) if path.strip() and way.rest(path) is not None]
            moved.update((one, way.moved(one)) for one in inside_it if one not in moved)
            cells += bool(inside_it)
    if not moved:
        raise ValidationError(
            f"No reference of {root} lies at or below {old!r}.",
            hint=f"`seqlake files {root}` lists them; a prefix ends at a '/', and a relative one begins at the root.",
        )
    if files != "leave" and not dataset.allow_outside:
        way.refuse_links(moved)
    needed = {one: join(root, one) for one in (moved if files != "leave" else filter(None, moved.values()))}
    known = dict(sizes(list(dict.fromkeys(needed.values())), storage=dataset.storage))
    return Relocation(
        files=files,
        references=moved,
        cells=cells,
        missing=tuple(one for one, place in needed.items() if known[place] is None),
        nbytes=0 if files == "leave" else sum(size or 0 for size in known.values()),
    )


def relocate(
    dataset: Dataset,
    old: str,
    new: str | None = None,
    /,
    *,
    files: Mode = "leave",
    allow_missing: bool = False,
    message: str | None = None,
) -> Version:
    """Make every reference at or below one place name the same file below another, in one commit.

    Places are compared as locations: `videos`, `./videos` and the absolute path of that folder are the same. New
    references inside the dataset's root are relative.

    Files are there before the references that name them: copies are made first, and with `move` the old files are
    removed after the commit. Older versions still name them, so that those lose what is moved. Files that were copied
    into the dataset are never removed here; `vacuum` does it when no version needs them.

    Args:
        dataset: Changed in its newest version, which it then shows.
        old: A folder, a URI or one whole reference: what references begin with now.
        new: What they begin with from now on. Left out, the files are taken into the dataset (`copy` or `move`), as
            `File` cells are.
        files: `leave` them (they are at the new place already), `copy` or `move` them.
        allow_missing: Also write references to files that are not there.
        message: What the commit is for; `versions()` shows it.

    Returns:
        The new version.

    Raises:
        ValidationError: No reference begins so, a file is not there, or another file has its new name.
        UnsafeReferenceError: The new references would leave the dataset's root by `..`.
        CommitConflictError: A rival rewrote one of the shards meanwhile; copies are removed again.

    Example:
        ```python
        relocate(ds, "/mnt/old/videos", "s3://bucket/videos")                  # they were moved by other means
        relocate(ds, "s3://bucket/videos", files="copy")                       # from now on the dataset's own
        ```
    """
    open_for_changes(dataset)
    planned = plan_relocation(dataset, old, new, files=files)
    with saying(message):
        return carry_out(dataset, planned, allow_missing=allow_missing)


def carry_out(dataset: Dataset, planned: Relocation, /, *, allow_missing: bool = False) -> Version:
    """Do what was planned on the version that the dataset shows; for the rest see `relocate`."""
    if planned.missing and not allow_missing:
        listed = ", ".join(map(repr, planned.missing[:_NAMED]))
        raise ValidationError(
            f"{len(planned.missing)} of {len(planned.references)} files are not there ({listed}); nothing changed.",
            hint="Copy them first, or say that references to nothing are meant (allow_missing, --allow-missing).",
        )
    staging = Staging(dataset.table, dataset.schema, shape=ShardShape())
    copies = _Copies(dataset)
    try:
        staging.begin(dataset.version)
        if planned.files != "leave":
            copies.make({one: to for one, to in planned.references.items() if to and one not in planned.missing})
        gone = _rewritten(dataset, staging, planned)
    except BaseException:
        staging.discard()
        copies.take_back()
        raise
    if not (gone or staging.written or staging.sides):
        staging.discard()
        return dataset.version
    try:
        version = staging.commit("rewrite", remove=gone)
    except CommitUnknownError:
        raise
    except CommitConflictError:
        copies.take_back()  # after any other error the commit may stand, and then they are needed
        raise
    dataset.refresh()
    if planned.files == "move":
        _remove(dataset, planned)
    return version


def _rewritten(dataset: Dataset, staging: Staging, plan: Relocation) -> list[str]:
    """Stage the cells with their new references; the keys of the shards that leave."""
    schema = dataset.schema
    taken: dict[tuple[str, str], str] = {}

    def moved(reference: str, *, column: str, key: str) -> str:
        if reference not in plan.references:
            return reference
        to = plan.references[reference]
        if to is not None:
            return to
        if reference in plan.missing:
            return reference
        if (column, reference) not in taken:
            location = join(dataset.root, reference)
            taken[column, reference] = staging.copy_in(column, key, location, storage=dataset.storage)
        return taken[column, reference]

    given = _Cells([name for name in schema if refers(schema[name])])
    start = 0
    for batch in dataset.batches([str(schema.id), *given.cells]):
        ids = batch.column(0).to_pylist()
        for row, cells in enumerate(zip(*(column.to_pylist() for column in batch.columns[1:]), strict=True)):
            new = [
                mapped(cell, partial(moved, column=name, key=ids[row]))
                for name, cell in zip(given.cells, cells, strict=True)
            ]
            if new != list(cells):
                given.add(start + row, ids[row], new, list(cells))
        start += batch.num_rows
    files = {file.path: file for file in staging.take_files()}
    return changes.change_cells(
        staging, dataset.source, schema, given.given(dataset), np.array(given.rows, np.int64), files=files
    )


class _Cells:
    """Changed cells as they come."""

    def __init__(self, columns: list[str]) -> None:
        self.rows: list[int] = []
        self.ids: list[str] = []
        self.cells: dict[str, list[Any]] = {name: [] for name in columns}
        self.changed: dict[str, list[bool]] = {name: [] for name in columns}

    def add(self, row: int, key: str, new: list[Any], old: list[Any]) -> None:
        """One row's cells, of which some changed."""
        self.rows.append(row)
        self.ids.append(key)
        for name, after, before in zip(self.cells, new, old, strict=True):
            self.cells[name].append(after)
            self.changed[name].append(after != before)

    def given(self, dataset: Dataset) -> Given:
        """As a change takes them."""
        logical = dataset.schema.arrow
        key = str(dataset.schema.id)
        columns = {name: pa.array(cells, logical.field(name).type) for name, cells in self.cells.items()}
        return Given(
            cells=pa.table({key: pa.array(self.ids, logical.field(key).type), **columns}),
            present={name: np.array(mask, np.bool_) for name, mask in self.changed.items()},
        )


@dataclass(slots=True)
class _Copies:
    """Files on their way to a new place, and those that were made on it.

    Attributes:
        dataset: Whose.
        copies: (store, name) of each.
    """

    dataset: Dataset
    copies: list[tuple[Store, str]] = field(default_factory=list)

    def make(self, moved: Mapping[str, str]) -> None:
        """Copy each file, durably.

        Raises:
            ValidationError: Another file lies at the new place.
        """
        root, storage = self.dataset.root, self.dataset.storage
        for old, new in progress.over(list(moved.items()), "copy", unit="files"):
            source, target = join(root, old), join(root, new)
            if source == target:
                continue
            store, name = _placed(self.dataset, target)
            with on_this_machine(source, storage) as path:
                try:
                    store.put(checked(name), path, if_absent=True, temporary=f"{name}.seqlake-copy")
                except FileExistsError as error:
                    with on_this_machine(target, storage) as there:
                        if digest(there) != digest(path):
                            raise ValidationError(
                                f"Another file lies at {target}; nothing was changed.",
                                path=target,
                                hint="Choose another place, or take that file away.",
                            ) from error
                else:
                    self.copies.append((store, name))
            store.sync(name.rpartition("/")[0])

    def take_back(self) -> None:
        """Remove the copies again."""
        for store, name in self.copies:
            store.delete([name])
        self.copies = []


def _placed(dataset: Dataset, location: str) -> tuple[Store, str]:
    """The store and the name of a file to write or remove: below the dataset's root no link on the way is followed."""
    top = f"{dataset.root.rstrip('/')}/"
    if location.startswith(top):
        return dataset.table.store, location.removeprefix(top)
    place, _, name = location.rpartition("/")
    return open_store(place, storage=dataset.storage), name


def _remove(dataset: Dataset, plan: Relocation) -> None:
    """Remove what was moved; a file that stays is a warning, because the commit stands."""
    left = []
    for old, new in plan.references.items():
        location = join(dataset.root, old)
        stays = new is not None and join(dataset.root, new) == location
        if stays or old in plan.missing or is_ours(dataset.root, location):
            continue
        store, name = _placed(dataset, location)
        try:
            store.delete([checked(name)])
        except OSError as error:
            left.append(f"{location} ({error})")
    if left:
        warnings.warn(
            f"The references are moved, but {len(left)} old files could not be removed: {', '.join(left[:_NAMED])}.",
            stacklevel=3,
        )

"""Flags, notes, labels and spans: drafts in the user's cache until one commit makes columns of them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.dataset.changing import evolving
from seqlake.dataset.opening import open as open_dataset
from seqlake.errors import QueryError, ReadOnlyError, SchemaMismatchError, SeqlakeError
from seqlake.files.cache import user_folder
from seqlake.versions.messages import saying

if TYPE_CHECKING:
    from seqlake.viewer.tables import Shelf

_SPANS = pa.list_(pa.struct([("start", pa.int64()), ("stop", pa.int64()), ("label", pa.string())]))
_TYPES = {"flag": pa.bool_(), "note": pa.string(), "spans": _SPANS}


class StaleError(SeqlakeError):
    """Drafts, or cells, changed meanwhile."""


class Drafts:
    """What was marked and not committed, in one file for a dataset.

    Args:
        location: Of the dataset.
        folder: Where the file lies; the user's cache by default.
    """

    def __init__(self, location: str, *, folder: Path | None = None) -> None:
        top = folder or (user_folder() or Path.cwd()) / "labels"
        self.path: Path = top / f"{hashlib.sha256(location.encode()).hexdigest()[:32]}.json"
        self._lock = Lock()

    def read(self) -> dict[str, Any]:
        """Revision and drafts by sequence; none where the file is not there or not ours."""
        try:
            held = json.loads(self.path.read_text())
            if isinstance(held["sequences"], dict) and isinstance(held["revision"], int):
                commits = held.get("commits")
                known = commits if isinstance(commits, list) else []
                return {"revision": held["revision"], "sequences": held["sequences"], "commits": known}
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return {"revision": 0, "sequences": {}, "commits": []}

    def _write(self, held: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.tmp")
        beside.write_text(json.dumps(held))
        os.replace(beside, self.path)  # noqa: PTH105 - whole or not at all

    def note(self, commit: dict[str, Any] | None, /, *, but: Any = None) -> None:
        """Remember a commit, so that it can be undone; forget that of the version `but`."""
        with self._lock:
            held = self.read()
            kept = [one for one in held["commits"] if one["version"] != but]
            self._write({**held, "commits": [*kept, *([] if commit is None else [commit])][-100:]})

    def merge(self, changes: Any, revision: Any = None, /) -> dict[str, Any]:
        """Change drafts key by key; null removes one.

        Raises:
            StaleError: `revision` is an older one.
            QueryError: They are no drafts.
        """
        if not isinstance(changes, dict):
            raise QueryError("set: expected an object of drafts by sequence.")
        checked = {str(name): None if draft is None else _checked(draft) for name, draft in changes.items()}
        with self._lock:
            held = self.read()
            if revision is not None and revision != held["revision"]:
                raise StaleError("The drafts changed in another window; load the page anew.")
            for name, draft in checked.items():
                before = held["sequences"].pop(name, {})
                after = {} if draft is None else {**before, **draft}
                if draft and draft.get("labels"):
                    after["labels"] = {**before.get("labels", {}), **draft["labels"]}
                    after["labels"] = {key: one for key, one in after["labels"].items() if one is not None}
                after = {key: one for key, one in after.items() if one not in (None, {}, [], "")}
                if after:
                    held["sequences"][name] = after
            held["revision"] += 1
            self._write(held)
            return held


def _checked(draft: Any) -> dict[str, Any]:
    """A draft that can be kept, or `QueryError`."""
    tests: dict[str, Any] = {
        "flag": lambda one: isinstance(one, bool),
        "note": lambda one: isinstance(one, str) and len(one) <= 10_000,
        "labels": lambda one: isinstance(one, dict) and all(v is None or isinstance(v, str) for v in one.values()),
        "spans": lambda one: isinstance(one, list) and all(map(_is_span, one)),
    }
    if not isinstance(draft, dict):
        raise QueryError("A draft is an object with flag, note, labels and spans.")
    for key, value in draft.items():
        if key not in tests or (value is not None and not tests[key](value)):
            raise QueryError(f"{key!r:.60}: not what a draft holds: flag, note, labels, spans [start, stop, label].")
    return dict(draft)


def _is_span(span: Any) -> bool:
    if not isinstance(span, dict) or not set(span) <= {"start", "stop", "label"}:
        return False
    start, stop = span.get("start"), span.get("stop")
    numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in (start, stop))
    return numbers and 0 <= start < stop < 1 << 53 and isinstance(span.get("label", ""), str)  # type: ignore[operator]


def labels(shelf: Shelf, drafts: Drafts, /) -> dict[str, Any]:
    """Drafts with what can be done with them elsewhere."""
    held = drafts.read()
    names: dict[str, list[str]] = {}
    for draft in held["sequences"].values():
        for name, value in draft.get("labels", {}).items():
            names[name] = sorted({*names.get(name, []), value})
    table = shelf.table
    place = shelf.selection.root if table is None else table.location
    flagged = [name for name, draft in held["sequences"].items() if draft.get("flag")]
    ids = f"--ids flagged.txt  # {len(flagged)} ids, one a line"
    place = shlex.quote(place)
    commands = {"delete": f"seqlake delete {place} {ids}", "subset": f"seqlake subset {place} OUT --drop {ids}"}
    held.pop("commits")
    return {**held, "place": str(drafts.path), "names": names, "commands": commands, "flagged": flagged}


def commit(shelf: Shelf, drafts: Drafts, body: dict[str, Any], /) -> dict[str, Any]:
    """Make columns of the drafts, as one commit.

    Raises:
        ReadOnlyError: The source cannot be written.
        SchemaMismatchError: A column that is there holds something else.
    """
    table = shelf.table
    if table is None or table.version.id == -1:
        raise ReadOnlyError("This source is only read.", hint="Download the labels, or use the command beside them.")
    table.refresh()
    columns = body.get("columns") or {}
    if not isinstance(columns, dict) or not all(one is None or isinstance(one, str) for one in columns.values()):
        raise QueryError("columns: expected an object of drafts and the names of their columns, or null.")
    message = str(body.get("message") or "labels of the viewer")[:1000]
    held = drafts.read()["sequences"]
    cells, unknown = _cells(table, held, columns)
    kinds = {columns.get(key) or key: kind for key, kind in _TYPES.items()}
    new = list(dict.fromkeys(name for row in cells.values() for name in row if name not in table.schema))
    facts = {
        "cells": sum(map(len, cells.values())),
        "sequences": len(cells),
        "columns_added": new,
        "unknown": unknown,
        "version": table.version.id,
    }
    if body.get("dry_run") or not cells:
        return facts
    before = table.version.id
    changed = {one: list(row) for one, row in cells.items()}
    _put(table, cells, {name: kinds.get(name, pa.string()) for name in new}, message)
    drafts.note({"version": table.version.id, "before": before, "cells": changed})
    drafts.merge(dict.fromkeys(one for one in held if one not in unknown))
    return {**facts, "version": table.version.id}


def _cells(table: Any, held: dict[str, Any], columns: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Cells by sequence and column; and the sequences that are not there."""
    cells: dict[str, dict[str, Any]] = {}
    unknown: list[str] = []
    for name, draft in held.items():
        try:
            table.sequence(name)
        except SeqlakeError:
            unknown.append(name)
            continue
        flat = {key: one for key, one in draft.items() if key != "labels"} | draft.get("labels", {})
        named = {columns.get(key, key): one for key, one in flat.items() if columns.get(key, key) is not None}
        if named:
            cells[name] = {str(key): one for key, one in named.items()}
    if any(table.schema.id in row for row in cells.values()):
        raise QueryError(f"{table.schema.id!r} names the sequences, and takes no labels.")
    return cells, unknown


def undo(shelf: Shelf, drafts: Drafts, body: dict[str, Any], /) -> dict[str, Any]:
    """Give back the cells that one commit of the viewer changed, as a new commit.

    Raises:
        QueryError: No commit of the viewer made this version.
        StaleError: Some of the cells changed since.
    """
    number = body.get("version")
    noted = next((one for one in drafts.read()["commits"] if one["version"] == number), None)
    table = shelf.table
    if noted is None or table is None:
        raise QueryError(f"No commit of this viewer that could be undone made version {number!r:.40}.")
    table.refresh()
    before, after = (open_dataset(table.location, version=noted[name]) for name in ("before", "version"))
    back: dict[str, dict[str, Any]] = {}
    for name, columns in noted["cells"].items():
        changed = [one for one in columns if _cell(table, name, one) != _cell(after, name, one)]
        if changed:
            raise StaleError(f"{changed[0]!r} of {name!r} changed since; nothing was undone.")
        back[name] = {one: _cell(before, name, one) if one in before.schema else None for one in columns}
    _put(table, back, {}, f"undo of version {number}")
    drafts.note(None, but=number)
    return {"version": table.version.id, "cells": sum(map(len, noted["cells"].values()))}


def _cell(dataset: Any, name: str, column: str) -> Any:
    value = dataset.sequence(name)[column]
    return value.tolist() if hasattr(value, "tolist") else value


def _put(table: Any, cells: dict[str, dict[str, Any]], new: dict[str, pa.DataType], message: str) -> None:
    """Put cells into columns, `new` ones among them, as one commit; whatever is not named stays as it is."""
    schema = table.schema.with_columns(new)
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    arrays = [pa.array(list(cells), schema[schema.id].logical)]
    for name in names:
        values = [
            row[name] if name in row else None if name in new else _cell(table, one, name) for one, row in cells.items()
        ]
        try:
            arrays.append(pa.array(values, schema[name].logical))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise SchemaMismatchError(
                f"Column {name!r} holds {schema[name].logical}, and a draft does not fit: {error}.",
                hint="Give the draft another column.",
            ) from None
    filled = pa.table(arrays, names=[str(schema.id), *names])
    with saying(message):
        evolving.fill(table, {name: schema[name] for name in names}, filled)

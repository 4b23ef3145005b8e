"""The versions of a table: the snapshots of its lake that changed it, with what they did and how many rows they had."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqlake.protocols import Version
from seqlake.tables.ducklake import reading
from seqlake.tables.ducklake.catalogs import moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from seqlake.tables.ducklake.catalogs import Session
    from seqlake.tables.ducklake.files import DataFiles
    from seqlake.tables.ducklake.reading import CatalogTable

_OURS = "seqlake"


def operation_of(changes: str, extra: str | None, table: int, /, *, first: bool) -> str:
    """What a snapshot did to a table: as seqlake wrote it down, else from what changed."""
    try:
        noted = json.loads(extra or "{}")
        return str(noted[_OURS]["operation"])
    except (ValueError, LookupError, TypeError):
        pass
    verbs = reading.changed(changes).get(table, set())
    added = bool(verbs & {"inserted_into_table", "inlined_insert"})
    removed = bool(verbs & {"deleted_from_table", "inlined_delete"})
    if first:
        return "create"
    if added and removed:
        return "upsert"
    if added or removed:
        return "append" if added else "delete"
    return "evolve" if "altered_table" in verbs else "rewrite"


def extra_of(operation: str, transaction: str, /) -> str:
    """What seqlake writes down with a snapshot, so that it is known again."""
    return json.dumps({_OURS: {"operation": operation, "transaction": transaction}})


def versions(session: Session, place: CatalogTable, files: DataFiles, /) -> list[Version]:
    """Those that can be read, oldest first."""
    numbers = sorted(reading.touching(session, place))
    rows = dict(zip(numbers, _counted(session, place, files, numbers), strict=True))
    snapshots = session.rows(
        "SELECT s.snapshot_id, CAST(s.snapshot_time AS VARCHAR), c.changes_made, c.commit_extra_info, c.commit_message "
        "FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id "
        "WHERE s.snapshot_id >= ? ORDER BY s.snapshot_id",
        place.since,
    )
    return [
        replace(_version(number, when, changes, extra, text, place), rows=rows[number])
        for number, when, changes, extra, text in snapshots
        if number in rows
    ]


def _version(number: int, when: Any, changes: Any, extra: Any, text: Any, place: CatalogTable) -> Version:
    operation = operation_of(changes or "", extra, place.id, first=number == place.since)
    return Version(id=number, time=moment(when), operation=operation, rows=0, message=_said(text, operation))


def times(session: Session, place: CatalogTable, /) -> list[tuple[int, datetime]]:
    """(snapshot, time) of those that changed the table, oldest first."""
    mine = set(reading.touching(session, place))
    snapshots = session.rows(
        "SELECT snapshot_id, CAST(snapshot_time AS VARCHAR) FROM ducklake_snapshot ORDER BY snapshot_id"
    )
    return [(number, moment(when)) for number, when in snapshots if number in mine]


def version_at(session: Session, place: CatalogTable, number: int, /) -> Version:
    """One version without its rows, which the files tell."""
    ((when, changes, extra, text),) = session.rows(
        "SELECT CAST(s.snapshot_time AS VARCHAR), c.changes_made, c.commit_extra_info, c.commit_message "
        "FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id "
        "WHERE s.snapshot_id = ?",
        number,
    )
    return _version(number, when, changes, extra, text, place)


def _said(text: str | None, operation: str) -> str | None:
    """A snapshot's message, but for what stands there where nobody said anything."""
    return None if text is None or text == unsaid(operation) else text


def unsaid(operation: str, /) -> str:
    """What stands for a message in a catalog where nobody said one."""
    return f"seqlake {operation}"


def _counted(session: Session, place: CatalogTable, files: DataFiles, numbers: Sequence[int]) -> list[int]:
    """[numbers] rows at each snapshot, from when each file, delete and inlined row came and went."""
    steps: Counter[int] = Counter()
    ends, merged = _count_files(session, place, files, steps)
    _count_deletes(session, place, files, steps, ends, merged)
    for name, _ in reading.inlined_tables(session, place):
        for begin, end in session.rows(f"SELECT begin_snapshot, end_snapshot FROM {name}"):
            _stay(steps, 1, begin, _never(end))
    return _running(steps, numbers)


def _inlined_deletes(session: Session, place: CatalogTable) -> dict[int, list[int]]:
    """Data file -> the snapshots at which rows of it were deleted in the catalog itself."""
    table = f"ducklake_inlined_delete_{place.id}"
    gone: dict[int, list[int]] = {}
    if table in session.tables("ducklake_inlined_delete_"):
        for file, begin in session.rows(f"SELECT file_id, begin_snapshot FROM {table}"):
            gone.setdefault(file, []).append(begin)
    return gone


def _count_files(
    session: Session, place: CatalogTable, files: DataFiles, steps: Counter[int]
) -> tuple[dict[int, int], set[int]]:
    """Enter the rows of data files; gives the snapshot at which each file ends, and those put together of several."""
    gone = _inlined_deletes(session, place)
    ends: dict[int, int] = {}
    merged: set[int] = set()
    for file, path, relative, count, begin, end, partial in session.rows(
        "SELECT data_file_id, path, path_is_relative, record_count, begin_snapshot, end_snapshot, partial_max "
        "FROM ducklake_data_file WHERE table_id = ?",
        place.id,
    ):
        ends[file] = _never(end)
        merged |= {file} if partial is not None else set()
        begun: Mapping[int, int] = {begin: count}
        if partial is not None:
            where = place.resolved(path, relative=bool(relative))
            row = reading.FileRow(id=file, path=where, rows=count, nbytes=0, begin=begin, partial_max=partial)
            begun = Counter(files.begun(row).tolist())
        for snapshot, rows in begun.items():
            _stay(steps, rows, snapshot, ends[file])
        for snapshot in gone.get(file, ()):
            _stay(steps, -1, snapshot, ends[file])
    return ends, merged


def _count_deletes(
    session: Session,
    place: CatalogTable,
    files: DataFiles,
    steps: Counter[int],
    ends: Mapping[int, int],
    merged: AbstractSet[int],
) -> None:
    """Enter the rows that files of deletes take away."""
    for file, path, relative, form, count, begin, end, partial in session.rows(
        "SELECT data_file_id, path, path_is_relative, format, delete_count, begin_snapshot, end_snapshot, partial_max "
        "FROM ducklake_delete_file WHERE table_id = ?",
        place.id,
    ):
        until = min(_never(end), ends.get(file, 0))
        since: Mapping[int, int] = {begin: count}
        if partial is not None or file in merged:  # DuckDB does not always say that it put deletes together
            since = files.deleted_since(place.resolved(path, relative=bool(relative)), form)
        for snapshot, rows in since.items():
            _stay(steps, -rows, snapshot or begin, until)


def _running(steps: Mapping[int, int], numbers: Sequence[int]) -> list[int]:
    counts, total, waiting = [], 0, sorted(steps.items(), reverse=True)
    for number in numbers:
        while waiting and waiting[-1][0] <= number:
            total += waiting.pop()[1]
        counts.append(total)
    return counts


def _stay(steps: Counter[int], rows: int, begin: int, end: int) -> None:
    if begin < end:
        steps[begin] += rows
        steps[end] -= rows


def _never(end: int | None) -> int:
    return 1 << 62 if end is None else end

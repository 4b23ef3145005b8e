"""Forgetting versions: snapshots that changed this table alone go, and the files that no snapshot names any more.

A snapshot belongs to the whole lake. One that changed another table as well stays, so that nobody's history is lost;
what it shows of this table stays with it.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.tables._lakes.paths import is_outside
from seqlake.tables.ducklake import reading
from seqlake.tables.ducklake.catalogs import moment, text_of
from seqlake.versions.names import OURS
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from seqlake.tables.ducklake.catalogs import Session
    from seqlake.tables.ducklake.reading import CatalogTable

_BATCH = 500
_OURS = re.compile(r"part-[0-9a-f]{32}-[0-9a-z]{1,16}(?:-delete)?\.parquet")
_PATH = re.compile(rf"{OURS}/files/[^'\",\]}}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """What an expiry removes.

    Attributes:
        snapshots: Their numbers.
        files: (number, path) of data files.
        deletes: (number, path) of files of deletes.
        left: The numbers of the lake's snapshots that stay, ascending.
    """

    snapshots: Sequence[int]
    files: Sequence[tuple[int, str]]
    deletes: Sequence[tuple[int, str]]
    left: Sequence[int]


def doomed(session: Session, place: CatalogTable, limit: datetime, keep: Collection[int | str] = (), /) -> Doomed:
    """What versions replaced before `limit` leave behind, but for those to keep."""
    snapshots = session.rows(
        "SELECT s.snapshot_id, CAST(s.snapshot_time AS VARCHAR), c.changes_made FROM ducklake_snapshot s "
        "LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id ORDER BY s.snapshot_id"
    )
    mine = [
        (number, moment(when), _alone(place, changes or "", number))
        for number, when, changes in snapshots
        if number == place.since or place.id in reading.changed(changes or "")
    ]
    gone = [
        number
        for (number, _, alone), (_, replaced, _) in itertools.pairwise(mine)
        if alone and replaced < limit and number not in keep
    ]
    left = sorted({number for number, _, _ in snapshots} - set(gone))
    files = _unseen(session, place, "ducklake_data_file", "data_file_id", left)
    deletes = _unseen(session, place, "ducklake_delete_file", "delete_file_id", left)
    return Doomed(snapshots=gone, files=files, deletes=deletes, left=left)


def _alone(place: CatalogTable, changes: str, number: int) -> bool:
    """Whether a snapshot changed this table and nothing else."""
    others = set(reading.changed(changes)) - {place.id}
    if number == place.since:
        return not others and changes.startswith("created_table:") and changes.count("created_") == 1
    return not others and "created_" not in changes and "dropped_" not in changes


def _unseen(session: Session, place: CatalogTable, table: str, key: str, left: Sequence[int]) -> list[tuple[int, str]]:
    """Ended files that no snapshot left, ascending, sees."""
    unseen = []
    for number, path, relative, begin, end in session.rows(
        f"SELECT {key}, path, path_is_relative, begin_snapshot, end_snapshot FROM {table} "
        "WHERE table_id = ? AND end_snapshot IS NOT NULL",
        place.id,
    ):
        if not _sees(left, begin, end):
            unseen.append((number, place.resolved(path, relative=bool(relative))))
    return unseen


def _sees(left: Sequence[int], begin: int, end: int) -> bool:
    """Whether any of these snapshots, ascending, lies in begin <= snapshot < end."""
    at = bisect_left(left, begin)
    return at < len(left) and left[at] < end


def removable(session: Session, place: CatalogTable, gone: Doomed, limit: datetime, /) -> list[str]:
    """The files below the data path that nothing names any more once all of it is forgotten, and that we remove.

    They have names of our own: a catalog can name any file, and whoever wrote it may have had yours in mind. What
    DuckDB wrote stays scheduled, for DuckDB to remove.
    """
    named = {file.name for file in retained(session, place, but=gone)} | _delete_paths(session, place, gone)
    paths = {path for _, path in (*gone.files, *gone.deletes)} | set(scheduled(session, place, limit))
    return sorted(path for path in paths - named if _OURS.fullmatch(path.rpartition("/")[2]) and not is_outside(path))


def forget(session: Session, place: CatalogTable, gone: Doomed, now: datetime, /) -> None:
    """Take all of it out of the catalog.

    Files below the data path that nothing names any more are scheduled for removal, as DuckLake's own expiry does it,
    so that a crash loses none of them.
    """
    named = {file.name for file in retained(session, place, but=gone)} | _delete_paths(session, place, gone)
    paths = {path for _, path in (*gone.files, *gone.deletes)} - named
    _delete(session, "ducklake_snapshot", "snapshot_id", gone.snapshots)
    _delete(session, "ducklake_snapshot_changes", "snapshot_id", gone.snapshots)
    numbers = [number for number, _ in gone.files]
    for table in (
        "ducklake_data_file",
        "ducklake_file_column_stats",
        "ducklake_file_variant_stats",
        "ducklake_file_partition_value",
        "ducklake_delete_file",
    ):
        _delete(session, table, "data_file_id", numbers)
    deletes = [number for number, _ in gone.deletes]
    _delete(session, "ducklake_delete_file", "delete_file_id", deletes)
    if f"ducklake_inlined_delete_{place.id}" in session.tables("ducklake_inlined_delete_"):
        _delete(session, f"ducklake_inlined_delete_{place.id}", "file_id", numbers)
    for name, _ in reading.inlined_tables(session, place):
        _forget_rows(session, name, gone.left)
    session.insert(
        "ducklake_files_scheduled_for_deletion",
        [(n, path, True, text_of(now)) for n, path in enumerate(sorted(paths)) if not is_outside(path)],
    )


def unschedule(session: Session, paths: Sequence[str], /) -> None:
    """The files are removed."""
    _delete(session, "ducklake_files_scheduled_for_deletion", "path", paths)


def scheduled(session: Session, place: CatalogTable, limit: datetime, /) -> list[str]:
    """Files of this table that somebody scheduled for removal before a moment."""
    folder = place.path.removeprefix(place.data_path)
    listed = session.rows(
        "SELECT path, path_is_relative, CAST(schedule_start AS VARCHAR) FROM ducklake_files_scheduled_for_deletion"
    )
    return [path for path, relative, when in listed if relative and path.startswith(folder) and moment(when) < limit]


def retained(session: Session, place: CatalogTable, /, *, but: Doomed) -> list[TableFile]:
    """Every data file of every table of the lake that a snapshot names: what is ours beside them serves all tables.

    Rows that lie in the catalog are among them, as the texts that they hold.

    Args:
        session: A transaction.
        place: The table.
        but: What is about to be forgotten, or was.
    """
    numbers = {number for number, _ in but.files}
    files = [
        TableFile(name=path, rows=rows, nbytes=nbytes)
        for number, path, rows, nbytes in _all_files(session, place)
        if number not in numbers
    ]
    texts = sorted(_inlined_texts(session, place, but))
    if texts:
        held = pa.table({"text": pa.array(texts, pa.string())})
        files.append(TableFile(name="ducklake_inlined_data", rows=len(texts), nbytes=held.nbytes, held=held))
    return files


def _inlined_texts(session: Session, place: CatalogTable, but: Doomed) -> set[str]:
    """Paths of ours in rows of any table that lie in the catalog, at any depth."""
    texts: set[str] = set()
    mine = {name for name, _ in reading.inlined_tables(session, place)}
    for name in session.tables("ducklake_inlined_data_"):
        if name != "ducklake_inlined_data_tables":
            # All tables of this kind begin with a row's number and the snapshots that begin and end it.
            for begin, end, *cells in session.rows(f"SELECT begin_snapshot, end_snapshot, * FROM {name}"):
                if name in mine and end is not None and not _sees(but.left, begin, end):
                    continue
                for cell in cells:
                    text = bytes(cell).decode("utf-8", "replace") if isinstance(cell, bytes | memoryview) else str(cell)
                    texts.update(_PATH.findall(text))
    return texts


def _all_files(session: Session, place: CatalogTable) -> list[tuple[int, str, int, int]]:
    listed = []
    for number, path, relative, rows, nbytes, table, table_relative, schema, schema_relative in session.rows(
        "SELECT d.data_file_id, d.path, d.path_is_relative, d.record_count, d.file_size_bytes, t.path, "
        "t.path_is_relative, s.path, s.path_is_relative FROM ducklake_data_file d "
        "JOIN (SELECT DISTINCT table_id, schema_id, path, path_is_relative FROM ducklake_table) t "
        "ON t.table_id = d.table_id JOIN ducklake_schema s ON s.schema_id = t.schema_id"
    ):
        above = (place.data_path if schema_relative else "") + schema
        folder = (above if table_relative else "") + table
        whole = (folder if relative else "") + path
        listed.append((number, whole.removeprefix(place.data_path), rows, nbytes))
    return listed


def _delete_paths(session: Session, place: CatalogTable, but: Doomed) -> set[str]:
    numbers, files = {number for number, _ in but.deletes}, {number for number, _ in but.files}
    return {
        place.resolved(path, relative=bool(relative))
        for number, file, path, relative in session.rows(
            "SELECT delete_file_id, data_file_id, path, path_is_relative FROM ducklake_delete_file WHERE table_id = ?",
            place.id,
        )
        if number not in numbers and file not in files
    }


def _forget_rows(session: Session, table: str, left: Sequence[int]) -> None:
    spans = session.rows(f"SELECT DISTINCT begin_snapshot, end_snapshot FROM {table} WHERE end_snapshot IS NOT NULL")
    for begin, end in spans:
        if not _sees(left, begin, end):
            session.run(f"DELETE FROM {table} WHERE begin_snapshot = ? AND end_snapshot = ?", begin, end)


def _delete(session: Session, table: str, key: str, values: Sequence[object]) -> None:
    for start in range(0, len(values), _BATCH):
        part = values[start : start + _BATCH]
        session.run(f"DELETE FROM {table} WHERE {key} IN ({', '.join('?' * len(part))})", *part)

"""Going back: the rows of an old version in a new one, and no file under two numbers.

DuckLake removes a file once the row that names it ended and expired. A file that came back under a second row would
be removed with the first, so what comes back comes under a second name: a hard link, or a copy on object stores.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.files.stores import read_all
from seqlake.tables._lakes.paths import blob_at, is_outside
from seqlake.tables.ducklake import reading, types, writing
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.protocols import Ints, Store
    from seqlake.tables.ducklake.catalogs import Session
    from seqlake.tables.ducklake.reading import CatalogTable, Facts, FileRow
    from seqlake.tables.ducklake.writing import Counters
    from seqlake.versions.state import TableFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A file of an old version under a new name.

    Attributes:
        row: Its row of old.
        path: Where it lies now.
        deleted: Its deleted rows, in a file of their own; None for none.
        nbytes: Of that file.
        count: How many rows it has.
    """

    row: FileRow
    path: str
    deleted: str | None = None
    nbytes: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a rollback does.

    Attributes:
        back: (row, file) of the files that come back.
        gone: Numbers of the files that leave.
        inlined: Tables of rows in the catalog that differ.
    """

    back: Sequence[tuple[FileRow, TableFile]]
    gone: Sequence[int]
    inlined: Sequence[str]


def plan(old: Facts, now: Facts, files: Mapping[str, tuple[TableFile, TableFile]] | Any, /) -> RestorePlan:
    """Compare two versions.

    Args:
        old: The version to go back to.
        now: The newest.
        files: The files of both, in the order of their rows.
    """
    before, after = files
    kept = {row.id: _deleted(file) for row, file in zip(now.files, after, strict=True)}
    same = {row.id for row, file in zip(old.files, before, strict=True) if kept.get(row.id) == _deleted(file)}
    held = {one.table: one.rows for one in old.inlined}
    holds = {one.table: one.rows for one in now.inlined}
    return RestorePlan(
        back=[(row, file) for row, file in zip(old.files, before, strict=True) if row.id not in same],
        gone=[row.id for row in now.files if row.id not in same],
        inlined=sorted(name for name in held.keys() | holds.keys() if held.get(name) != holds.get(name)),
    )


def _deleted(file: TableFile) -> bytes:
    return b"" if file.deleted is None else np.asarray(file.deleted, "<i8").tobytes()


def copy_files(store: Store, folder: str, plan_: RestorePlan, transaction: str, /, *, storage: Any) -> list[Copy]:
    """Give the files that come back their new names.

    Args:
        store: Of the data path.
        folder: The table's, below it.
        plan_: What comes back.
        transaction: Whose names they get.
        storage: obstore's options, for files outside the data path.
    """
    copies = []
    for number, (row, file) in enumerate(plan_.back):
        path = f"{folder}{names.part(transaction, str(number))}"
        if is_outside(row.path):
            store.put(path, read_all(blob_at(store, row.path, storage=storage)))
        else:
            store.copy(row.path, path)
        if file.deleted is None:
            copies.append(Copy(row=row, path=path))
            continue
        beside = f"{path.removesuffix(names.SUFFIX)}-delete{names.SUFFIX}"
        data = _delete_file(f"{path}", file.deleted)
        store.put(beside, data)
        copies.append(Copy(row=row, path=path, deleted=beside, nbytes=len(data), count=len(file.deleted)))
    store.sync(folder.rstrip("/"))
    return copies


def _delete_file(path: str, rows: Ints) -> bytes:
    """A file of deleted rows, as DuckLake has them."""
    import pyarrow.parquet as pq

    fields = [pa.field("file_path", pa.string(), nullable=False), pa.field("pos", pa.int64(), nullable=False)]
    sink = io.BytesIO()
    pq.write_table(pa.table([pa.array([path] * len(rows)), pa.array(rows)], schema=pa.schema(fields)), sink)
    return sink.getvalue()


def apply(
    session: Session, place: CatalogTable, counters: Counters, plan_: RestorePlan, copies: Sequence[Copy], /, *, to: int
) -> list[str]:
    """Write a rollback down.

    Args:
        session: A writing transaction.
        place: The table.
        counters: Of the snapshot under way.
        plan_: What differs.
        copies: The files that come back.
        to: The snapshot to go back to.

    Returns:
        What to write down as changed.
    """
    for copy in copies:
        _again(session, place, counters, copy)
    writing.end_files(session, place, counters, plan_.gone)
    held = dict(reading.inlined_tables(session, place))
    for table in plan_.inlined:
        columns = _columns(session, place, table, held[table])
        writing.end_inlined(session, counters, table)
        session.run(
            f"INSERT INTO {table} (row_id, begin_snapshot, end_snapshot, {columns}) SELECT row_id, ?, NULL, {columns} "
            f"FROM {table} WHERE begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)",
            counters.snapshot, to, to,
        )  # fmt: skip
    rows, nbytes = sum(copy.row.rows for copy in copies), sum(copy.row.nbytes for copy in copies)
    writing.count(session, place, rows, nbytes)
    return [f"inserted_into_table:{place.id}", f"deleted_from_table:{place.id}"]


def _columns(session: Session, place: CatalogTable, table: str, version: int) -> str:
    del table
    held = reading.columns_of_version(session, place, version)
    return ", ".join(f'"{types.quoted(column.name)}"' for column in held)


def _again(session: Session, place: CatalogTable, counters: Counters, copy: Copy) -> None:
    """A second row of a file, under its new name: same rows, partition, mapping and bounds."""
    number, old = counters.take_file(), copy.row.id
    path, relative = writing.relative_path(place, copy.path)
    session.run(
        "INSERT INTO ducklake_data_file SELECT ?, table_id, ?, NULL, file_order, ?, ?, file_format, record_count, "
        "file_size_bytes, footer_size, row_id_start, partition_id, encryption_key, mapping_id, NULL "
        "FROM ducklake_data_file WHERE data_file_id = ?",
        number, counters.snapshot, path, relative, old,
    )  # fmt: skip
    session.run(
        "INSERT INTO ducklake_file_column_stats SELECT ?, table_id, column_id, column_size_bytes, value_count, "
        "null_count, min_value, max_value, contains_nan, extra_stats FROM ducklake_file_column_stats "
        "WHERE data_file_id = ?",
        number, old,
    )  # fmt: skip
    session.run(
        "INSERT INTO ducklake_file_partition_value SELECT ?, table_id, partition_key_index, partition_value "
        "FROM ducklake_file_partition_value WHERE data_file_id = ?",
        number, old,
    )  # fmt: skip
    if copy.deleted is not None:
        path, relative = writing.relative_path(place, copy.deleted)
        row = (
            counters.take_file(), place.id, counters.snapshot, None, number, path, relative, "parquet", copy.count,
            copy.nbytes, None, None, None,
        )  # fmt: skip
        session.insert("ducklake_delete_file", [row])

"""One commit to a catalog, within a writing transaction: a snapshot, files that begin and files that end."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError
from seqlake.tables.ducklake import evolving, reading, statistics
from seqlake.tables.ducklake.catalogs import moment, text_of
from seqlake.tables.ducklake.history import extra_of, unsaid
from seqlake.versions.messages import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from seqlake.tables._lakes.engine import Added
    from seqlake.tables.ducklake.catalogs import Session
    from seqlake.tables.ducklake.reading import CatalogTable
    from seqlake.tables.ducklake.types import Field


@dataclass(kw_only=True)
class Counters:
    """The newest snapshot's numbers, counted on.

    Attributes:
        snapshot: The snapshot under way.
        time: When it is made, never before the one before it.
        schema_version: Of the whole lake.
        catalog: The next number for tables, schemas and partitionings.
        file: The next number for files and name mappings.
    """

    snapshot: int
    time: datetime
    schema_version: int
    catalog: int
    file: int

    @classmethod
    def next(cls, session: Session, /) -> Counters:
        """Those of the snapshot that comes next."""
        ((number, when, version, catalog, file),) = session.rows(
            "SELECT snapshot_id, CAST(snapshot_time AS VARCHAR), schema_version, next_catalog_id, next_file_id "
            "FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
        )
        now = max(datetime.now(UTC), moment(when) + timedelta(microseconds=1))
        return cls(snapshot=number + 1, time=now, schema_version=version, catalog=catalog, file=file)

    def take_file(self) -> int:
        """A new number for a file or a mapping."""
        self.file += 1
        return self.file - 1

    def take_catalog(self) -> int:
        """A new number for a table, a schema or a partitioning."""
        self.catalog += 1
        return self.catalog - 1


def finish(session: Session, counters: Counters, changes: Sequence[str], operation: str, transaction: str, /) -> None:
    """Make the snapshot, last of all."""
    session.insert(
        "ducklake_snapshot",
        [
            (
                counters.snapshot,
                text_of(counters.time),
                counters.schema_version,
                counters.catalog,
                counters.file,
            )
        ],
    )
    said, extra = message() or unsaid(operation), extra_of(operation, transaction)
    session.insert("ducklake_snapshot_changes", [(counters.snapshot, ",".join(changes), "seqlake", said, extra)])


def make_table(
    session: Session,
    counters: Counters,
    name: tuple[str, str],
    columns: Sequence[Field],
    mixtrain: str,
    partition_by: Sequence[str],
    /,
) -> list[str]:
    """Make a table, its schema too where it is new.

    Args:
        session: A writing transaction.
        counters: Of the snapshot under way.
        name: Of its schema, and its own.
        columns: Its columns.
        mixtrain: The property.
        partition_by: Columns that files are partitioned by.

    Returns:
        What to write down as changed.
    """
    schema, table = name
    changes = []
    sql = "SELECT schema_id FROM ducklake_schema WHERE schema_name = ? AND end_snapshot IS NULL"
    schemas = session.rows(sql, schema)
    now = counters.snapshot
    if schemas:
        schema_id = schemas[0][0]
    else:
        schema_id = counters.take_catalog()
        row = (schema_id, str(uuid.uuid4()), now, None, schema, _folder(schema), True)
        session.insert("ducklake_schema", [row])
        changes.append(f"created_schema:{_quoted(schema)}")
    table_id = counters.take_catalog()
    table_row = (table_id, str(uuid.uuid4()), now, None, schema_id, table, _folder(table), True)
    session.insert("ducklake_table", [table_row])
    counters.schema_version += 1
    session.insert("ducklake_schema_versions", [(now, counters.schema_version, table_id)])
    begin_columns(session, table_id, now, [(one, parent) for column in columns for one, parent in _pairs(column, None)])
    session.insert("ducklake_tag", [(table_id, now, None, reading.PROPERTY, mixtrain)])
    # Kept for every client: rows in the catalog cannot be read at the speed of shards.
    session.insert("ducklake_metadata", [("data_inlining_row_limit", "0", "table", table_id)])
    if partition_by:
        partition = counters.take_catalog()
        ids = {column.name: column.id for column in columns}
        session.insert("ducklake_partition_info", [(partition, table_id, now, None)])
        session.insert(
            "ducklake_partition_column",
            [(partition, table_id, at, ids[column], "identity") for at, column in enumerate(partition_by)],
        )
    return [*changes, f"created_table:{_quoted(schema)}.{_quoted(table)}"]


def drop_table(session: Session, place: CatalogTable, counters: Counters, /) -> list[str]:
    """End everything of a table; what older snapshots show of it stays until they expire. What was changed."""
    for table, key in (
        ("ducklake_table", "table_id"),
        ("ducklake_column", "table_id"),
        ("ducklake_data_file", "table_id"),
        ("ducklake_delete_file", "table_id"),
        ("ducklake_partition_info", "table_id"),
        ("ducklake_tag", "object_id"),
    ):
        session.run(
            f"UPDATE {table} SET end_snapshot = ? WHERE {key} = ? AND end_snapshot IS NULL", counters.snapshot, place.id
        )
    counters.schema_version += 1
    return [f"dropped_table:{place.id}"]


def begin_columns(session: Session, table: int, snapshot: int, begun: Iterable[tuple[Field, int | None]], /) -> None:
    """Rows of columns that are there from this snapshot on."""
    session.insert(
        "ducklake_column",
        [evolving.column_rows(one, parent, table=table, snapshot=snapshot) for one, parent in begun],
    )


def change_columns(
    session: Session,
    place: CatalogTable,
    counters: Counters,
    schema: pa.Schema,
    renamed: Mapping[str, str],
    /,
    *,
    anew: bool = False,
) -> Sequence[Field]:
    """End and begin the rows that turn the table's columns into those of a schema; the columns as they are then."""
    old = reading.columns(session, place, counters.snapshot - 1)
    ((last,),) = session.rows("SELECT max(column_id) FROM ducklake_column WHERE table_id = ?", place.id)
    evolution = evolving.evolve(old, schema, renamed=renamed, first=(last or 0) + 1, anew=anew)
    for number in sorted(evolution.ended):
        session.run(
            "UPDATE ducklake_column SET end_snapshot = ? WHERE table_id = ? AND column_id = ? "
            "AND end_snapshot IS NULL",
            counters.snapshot, place.id, number,
        )  # fmt: skip
    begin_columns(session, place.id, counters.snapshot, evolution.begun)
    counters.schema_version += 1
    row = (counters.snapshot, counters.schema_version, place.id)
    session.insert("ducklake_schema_versions", [row])
    return evolution.columns


def set_property(session: Session, place: CatalogTable, counters: Counters, mixtrain: str, /) -> None:
    """Set the property `mixtrain`; the human's comment stays."""
    session.run(
        "UPDATE ducklake_tag SET end_snapshot = ? WHERE object_id = ? AND key = 'mixtrain' AND end_snapshot IS NULL",
        counters.snapshot,
        place.id,
    )
    session.insert("ducklake_tag", [(place.id, counters.snapshot, None, reading.PROPERTY, mixtrain)])


def add_files(
    session: Session,
    place: CatalogTable,
    counters: Counters,
    added: Sequence[Added],
    names: Mapping[int, str],
    columns: Sequence[Field],
    /,
) -> list[int]:
    """Register files that lie in the table's folder.

    Args:
        session: A writing transaction.
        place: The table.
        counters: Of the snapshot under way.
        added: The files.
        names: Field id -> what the column is called in the files.
        columns: The table's columns.

    Returns:
        The number of each file.
    """
    mapping = _mapping(session, place, counters, names, columns)
    partition, keys = _partitioning(session, place, columns)
    if any(not set(keys) <= set(one.partition) for one in added):
        raise CommitConflictError(  # DuckDB would look for the rows in the partition of nulls
            f"Not committed: the table is partitioned by {', '.join(keys)}, and these rows are not divided by that.",
            hint="Open the newest version and write the rows again.",
        )
    next_row = first_row = _next_row(session, place)
    numbers, stats, values, files = [], [], [], []
    by_id = {column.id: column for column in columns}
    fields = {column.name: column for column in columns}
    held = [by_id[number] for number in names if number in by_id]
    for one in added:
        number = counters.take_file()
        path, relative = relative_path(place, one.path)
        files.append(
            (
                number, place.id, counters.snapshot, None, None, path, relative, "parquet", one.rows, one.nbytes,
                None, next_row, partition, None, mapping, None,
            )
        )  # fmt: skip
        next_row += one.rows
        known = dict(_by_field(one, names, by_id).items())
        stats += statistics.file_rows(number, place.id, one.rows, held, known)
        values += [
            (number, place.id, at, statistics.text_of_value(one.partition[key], fields[key]))
            for at, key in enumerate(keys)
        ]
        numbers.append(number)
    session.insert("ducklake_data_file", files)
    session.insert("ducklake_file_column_stats", stats)
    session.insert("ducklake_file_partition_value", values)
    count(session, place, sum(one.rows for one in added), sum(one.nbytes for one in added), next_row=next_row)
    by_field = [(one.rows, _by_field(one, names, by_id)) for one in added]
    # All columns: what a file lacks reads as null or as a default.
    statistics.widen(session, place, columns, by_field, fresh=first_row == 0)
    return numbers


def end_files(session: Session, place: CatalogTable, counters: Counters, numbers: Sequence[int], /) -> None:
    """Files, and their files of deletes, that are not there any more from this snapshot on."""
    for number in numbers:
        for table in ("ducklake_data_file", "ducklake_delete_file"):
            session.run(
                f"UPDATE {table} SET end_snapshot = ? WHERE table_id = ? AND data_file_id = ? "
                "AND end_snapshot IS NULL",
                counters.snapshot, place.id, number,
            )  # fmt: skip


def end_inlined(session: Session, counters: Counters, table: str, /) -> None:
    """Rows in the catalog that are not there any more from this snapshot on."""
    session.run(f"UPDATE {table} SET end_snapshot = ? WHERE end_snapshot IS NULL", counters.snapshot)


def _by_field(
    one: Added, names: Mapping[int, str], columns: Mapping[int, Field]
) -> dict[str, tuple[object, object, int]]:
    """Statistics under the names that the columns have now."""
    return {
        columns[number].name: one.statistics[name]
        for number, name in names.items()
        if number in columns and name in one.statistics
    }


def _mapping(
    session: Session, place: CatalogTable, counters: Counters, names: Mapping[int, str], columns: Sequence[Field]
) -> int:
    """The number of the name mapping for files with these columns; made where there is none."""
    for number, known in reading.mappings(session, place).items():
        if known == dict(names):
            return number
    number = counters.take_file()
    session.insert("ducklake_column_mapping", [(number, place.id, "map_by_name")])
    rows: list[tuple[object, ...]] = []

    def add(column: Field, source: str, parent: int | None) -> None:
        at = len(rows)
        rows.append((number, at, source, column.id, parent, False))
        for child in column.children:
            # What DuckDB calls the elements of a list in a mapping.
            add(child, "list" if column.type == "list" else child.name, at)

    for column in columns:
        if column.id in names:
            add(column, names[column.id], None)
    session.insert("ducklake_name_mapping", rows)
    return number


def _partitioning(session: Session, place: CatalogTable, columns: Sequence[Field]) -> tuple[int | None, list[str]]:
    names = {column.id: column.name for column in columns}
    partitions = session.rows(
        "SELECT c.partition_id, c.column_id FROM ducklake_partition_column c JOIN ducklake_partition_info i "
        "ON i.partition_id = c.partition_id AND i.table_id = c.table_id "
        "WHERE c.table_id = ? AND i.end_snapshot IS NULL ORDER BY c.partition_key_index",
        place.id,
    )
    return (partitions[0][0] if partitions else None), [names[column] for _, column in partitions]


def _next_row(session: Session, place: CatalogTable) -> int:
    kept = session.rows("SELECT next_row_id FROM ducklake_table_stats WHERE table_id = ?", place.id)
    return int(kept[0][0]) if kept else 0


def count(session: Session, place: CatalogTable, rows: int, nbytes: int, /, *, next_row: int | None = None) -> None:
    """Take rows and bytes into DuckLake's count of all that was ever added."""
    row = _next_row(session, place) if next_row is None else next_row
    kept = session.rows("SELECT record_count, file_size_bytes FROM ducklake_table_stats WHERE table_id = ?", place.id)
    if kept:
        session.run(
            "UPDATE ducklake_table_stats SET record_count = ?, next_row_id = ?, file_size_bytes = ? WHERE table_id = ?",
            kept[0][0] + rows, row, kept[0][1] + nbytes, place.id,
        )  # fmt: skip
    else:
        session.insert("ducklake_table_stats", [(place.id, rows, row, nbytes)])


def relative_path(place: CatalogTable, path: str) -> tuple[str, bool]:
    """A path as the catalog keeps it: relative to the table's folder where it lies there."""
    whole = path if "://" in path or path.startswith("/") else f"{place.data_path}{path}"
    return (whole.removeprefix(place.path), True) if whole.startswith(place.path) else (whole, False)


def _pairs(column: Field, parent: int | None) -> list[tuple[Field, int | None]]:
    return [(column, parent), *(pair for child in column.children for pair in _pairs(child, column.id))]


def _folder(name: str) -> str:
    plain = name.isascii() and all(letter.isalnum() or letter in "_-" for letter in name)
    return f"{name}/" if plain and name else f"{uuid.uuid4()}/"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""What a catalog says of one table at one snapshot: columns, files, deletes, rows that lie in the catalog itself."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.errors import DatasetNotFoundError, SeqlakeError, VersionNotFoundError
from seqlake.tables.ducklake import types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.tables.ducklake.address import DuckLakeAddress
    from seqlake.tables.ducklake.catalogs import Session

PROPERTY = "mixtrain"
_LIVE = "begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)"
_NAMES = re.compile(r'"(?:[^"]|"")*"')
_CHANGE = re.compile(r"([a-z_]+):(\d+)")
_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table in its lake.

    Attributes:
        id: DuckLake's number of it.
        uuid: What tells it from all others.
        data_path: Where the lake's data files lie, with a final slash.
        path: Of the table below `data_path`, with a final slash; absolute where the lake says so.
        since: The snapshot that made it.
    """

    id: int
    uuid: str
    data_path: str
    path: str
    since: int

    def resolved(self, path: str, *, relative: bool) -> str:
        """A file's path below `data_path`, or as it is where it is absolute."""
        whole = f"{self.path}{path}" if relative else path
        return whole.removeprefix(self.data_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRow:
    """A file of deleted rows."""

    id: int
    path: str
    format: str
    count: int
    partial_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A data file, as the catalog has it.

    Attributes:
        id: DuckLake's number of it.
        path: Below the data path, or absolute.
        rows: All rows, deleted ones too.
        nbytes: Its size.
        begin: The snapshot that added it.
        mapping: Which name mapping its columns have; None: they carry field ids.
        partial_max: The last snapshot that any of its rows belongs to, where they belong to several.
        partition: Partition key index -> value, as text.
        partition_id: By which partitioning.
        delete: Its file of deleted rows.
        gone: Numbers of rows that are deleted in the catalog itself.
    """

    id: int
    path: str
    rows: int
    nbytes: int
    begin: int
    mapping: int | None = None
    partial_max: int | None = None
    partition_id: int | None = None
    partition: Mapping[int, str | None] = field(default_factory=dict)
    delete: DeleteRow | None = None
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlined:
    """Rows that lie in the catalog: a table there, and the columns it had."""

    table: str
    columns: tuple[types.Field, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One table at one snapshot."""

    place: CatalogTable
    snapshot: int
    version: int
    columns: tuple[types.Field, ...]
    mixtrain: str
    files: Sequence[FileRow]
    mappings: Mapping[int, Mapping[int, str]]
    parts: Mapping[int, Mapping[int, Mapping[str, int]]]
    inlined: Sequence[Inlined]
    partitions: Mapping[int, Sequence[tuple[int, str]]]
    partition_id: int | None
    reshaped: int


def find(session: Session, address: DuckLakeAddress, /) -> CatalogTable:
    """The table that an address names now.

    Raises:
        DatasetNotFoundError: There is none.
        SeqlakeError: A catalog of another format, or an encrypted one.
    """
    options = dict(session.rows("SELECT key, value FROM ducklake_metadata WHERE scope IS NULL"))
    if options.get("version") != "1.0":
        raise SeqlakeError(
            f"{address}: expected a DuckLake catalog of format 1.0, found {options.get('version')!r}.",
            hint="An older one is moved to 1.0 by a DuckDB that attaches it; a newer one needs a newer seqlake.",
        )
    if options.get("encrypted") == "true":
        raise SeqlakeError(f"{address} is encrypted; seqlake reads lakes that are not.")
    tables = session.rows(
        "SELECT t.table_id, t.table_uuid, s.path, s.path_is_relative, t.path, t.path_is_relative "
        "FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id "
        "WHERE t.table_name = ? AND s.schema_name = ? AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL",
        address.table,
        address.schema,
    )
    if not tables:
        known = session.rows(
            "SELECT s.schema_name, t.table_name FROM ducklake_table t JOIN ducklake_schema s "
            "ON s.schema_id = t.schema_id WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL"
        )
        listed = ", ".join(sorted(f"{schema}.{table}" for schema, table in known)) or "none"
        raise DatasetNotFoundError(
            f"Expected a table {address.schema}.{address.table} in {address}, found {listed}.", path=str(address)
        )
    number, uuid, schema_path, schema_relative, path, relative = tables[0]
    base = options["data_path"]
    above = (base if schema_relative else "") + schema_path
    ((since,),) = session.rows("SELECT min(begin_snapshot) FROM ducklake_table WHERE table_id = ?", number)
    whole = (above if relative else "") + path
    return CatalogTable(id=number, uuid=str(uuid), data_path=base, path=whole, since=since)


def touching(session: Session, place: CatalogTable, /, *, upto: int | None = None) -> Iterator[int]:
    """The snapshots that changed the table, newest first, its making last."""
    limit = upto
    while True:
        listed = session.rows(
            "SELECT s.snapshot_id, c.changes_made FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c "
            "ON c.snapshot_id = s.snapshot_id WHERE s.snapshot_id <= ? AND s.snapshot_id >= ? "
            f"ORDER BY s.snapshot_id DESC LIMIT {_AT_ONCE}",
            (1 << 62) if limit is None else limit,
            place.since,
        )
        for number, changes in listed:
            if number == place.since or place.id in changed(changes or ""):
                yield number
        if len(listed) < _AT_ONCE:
            return
        limit = listed[-1][0] - 1


def changed(changes: str, /) -> dict[int, set[str]]:
    """Table -> what a snapshot did to it, from `changes_made`."""
    done: dict[int, set[str]] = {}
    for verb, number in _CHANGE.findall(_NAMES.sub('""', changes)):
        done.setdefault(int(number), set()).add(verb)
    return done


def read(session: Session, place: CatalogTable, snapshot: int, /) -> Facts:
    """The table at a snapshot that is there.

    Raises:
        VersionNotFoundError: It was not there yet.
    """
    if not session.rows(f"SELECT 1 FROM ducklake_table WHERE table_id = ? AND {_LIVE}", place.id, snapshot, snapshot):
        raise VersionNotFoundError(
            f"The table is not there at snapshot {snapshot}: it was made by {place.since}, or dropped."
        )
    ((version,),) = session.rows("SELECT schema_version FROM ducklake_snapshot WHERE snapshot_id = ?", snapshot)
    files = tuple(_files(session, place, snapshot))
    used = {file.mapping for file in files if file.mapping is not None}
    partitions: dict[int, list[tuple[int, str]]] = {}
    for number, column, transform in session.rows(
        "SELECT partition_id, column_id, transform FROM ducklake_partition_column WHERE table_id = ? "
        "ORDER BY partition_id, partition_key_index",
        place.id,
    ):
        partitions.setdefault(number, []).append((column, transform))
    current = session.rows(
        f"SELECT partition_id FROM ducklake_partition_info WHERE table_id = ? AND {_LIVE}",
        place.id, snapshot, snapshot,
    )  # fmt: skip
    ((reshaped,),) = session.rows(
        "SELECT count(*) FROM ducklake_column WHERE table_id = ? AND end_snapshot IS NOT NULL", place.id
    )
    return Facts(
        place=place,
        snapshot=snapshot,
        version=version,
        columns=columns(session, place, snapshot),
        mixtrain=_property(session, place, snapshot),
        files=files,
        mappings=mappings(session, place) if used else {},
        parts=mapped_parts(session, place) if used else {},
        inlined=tuple(_inlined(session, place, snapshot)),
        partitions=partitions,
        partition_id=current[0][0] if current and partitions.get(current[0][0]) else None,
        reshaped=reshaped,
    )


def columns(session: Session, place: CatalogTable, snapshot: int, /) -> tuple[types.Field, ...]:
    """The columns at a snapshot."""
    return types.tree(
        session.rows(
            "SELECT column_id, column_order, column_name, column_type, initial_default, nulls_allowed, parent_column "
            f"FROM ducklake_column WHERE table_id = ? AND {_LIVE}",
            place.id, snapshot, snapshot,
        )
    )  # fmt: skip


def mappings(session: Session, place: CatalogTable, /) -> dict[int, dict[int, str]]:
    """Name mapping -> field id -> what the column is called in the file; columns of tables, not their parts."""
    by_mapping: dict[int, dict[int, str]] = {}
    for number, source, target in session.rows(
        "SELECT n.mapping_id, n.source_name, n.target_field_id FROM ducklake_name_mapping n "
        "JOIN ducklake_column_mapping m ON m.mapping_id = n.mapping_id "
        "WHERE m.table_id = ? AND n.parent_column IS NULL ORDER BY n.column_id",
        place.id,
    ):
        by_mapping.setdefault(number, {})[target] = source
    return by_mapping


def mapped_parts(session: Session, place: CatalogTable, /) -> dict[int, dict[int, dict[str, int]]]:
    """Name mapping -> field id of a column -> path -> field id of its parts."""
    by_mapping: dict[int, dict[int, dict[str, int]]] = {}
    paths: dict[tuple[int, int], tuple[int, str]] = {}
    for number, at, source, target, parent in session.rows(
        "SELECT n.mapping_id, n.column_id, n.source_name, n.target_field_id, n.parent_column "
        "FROM ducklake_name_mapping n JOIN ducklake_column_mapping m ON m.mapping_id = n.mapping_id "
        "WHERE m.table_id = ? ORDER BY n.mapping_id, n.column_id",
        place.id,
    ):
        top, above = (target, "") if parent is None else paths[number, parent]
        path = above if parent is None else f"{above}.{'element' if source == 'list' else source}"
        paths[number, at] = top, path
        if parent is not None:
            by_mapping.setdefault(number, {}).setdefault(top, {})[path] = target
    return by_mapping


def _property(session: Session, place: CatalogTable, snapshot: int) -> str:
    """The tag `mixtrain`, or a comment that is the same JSON; what came first, for versions before either."""
    tags = session.rows(
        "SELECT key, value, begin_snapshot, end_snapshot FROM ducklake_tag WHERE object_id = ? "
        "AND key IN ('mixtrain', 'comment') ORDER BY begin_snapshot",
        place.id,
    )
    ours = [row for row in tags if row[0] == PROPERTY or _is_metadata(row[1])]
    live = [row for row in ours if row[2] <= snapshot and (row[3] is None or row[3] > snapshot)]
    either = sorted(live or ours[:1], key=lambda row: row[0] != PROPERTY)
    return str(either[0][1] or "") if either else ""


def _is_metadata(comment: object) -> bool:
    try:
        read_ = json.loads(str(comment)) if str(comment).lstrip().startswith("{") else None
    except ValueError:
        return False
    return isinstance(read_, dict) and PROPERTY in read_


def _files(session: Session, place: CatalogTable, snapshot: int) -> Iterator[FileRow]:
    values: dict[int, dict[int, str | None]] = {}
    for number, key, value in session.rows(
        "SELECT data_file_id, partition_key_index, partition_value FROM ducklake_file_partition_value "
        "WHERE table_id = ?",
        place.id,
    ):
        values.setdefault(number, {})[key] = value
    gone = _gone(session, place, snapshot)
    for row in session.rows(
        "SELECT d.data_file_id, d.path, d.path_is_relative, d.record_count, d.file_size_bytes, d.begin_snapshot, "
        "d.mapping_id, d.partial_max, d.partition_id, d.encryption_key, d.file_format, x.delete_file_id, x.path, "
        "x.path_is_relative, x.format, x.delete_count, x.partial_max FROM ducklake_data_file d "
        "LEFT JOIN ducklake_delete_file x ON x.data_file_id = d.data_file_id AND x.begin_snapshot <= ? "
        "AND (x.end_snapshot IS NULL OR x.end_snapshot > ?) WHERE d.table_id = ? AND d.begin_snapshot <= ? "
        "AND (d.end_snapshot IS NULL OR d.end_snapshot > ?) ORDER BY d.data_file_id",
        snapshot, snapshot, place.id, snapshot, snapshot,
    ):  # fmt: skip
        number, path, relative, count, nbytes, begin, mapping, partial, partition, key, form = row[:11]
        if key is not None or form != "parquet":
            raise SeqlakeError(f"{path} is {'encrypted' if key is not None else form}; seqlake reads plain Parquet.")
        delete = None
        if row[11] is not None:
            where = place.resolved(row[12], relative=bool(row[13]))
            delete = DeleteRow(id=row[11], path=where, format=row[14], count=row[15], partial_max=row[16])
        yield FileRow(
            id=number,
            path=place.resolved(path, relative=bool(relative)),
            rows=count,
            nbytes=nbytes,
            begin=begin,
            mapping=mapping,
            partial_max=partial,
            partition_id=partition,
            partition=values.get(number, {}),
            delete=delete,
            gone=tuple(sorted(gone.get(number, ()))),
        )


def _gone(session: Session, place: CatalogTable, snapshot: int) -> dict[int, list[int]]:
    """Data file -> its rows that the catalog itself lists as deleted."""
    name = f"ducklake_inlined_delete_{place.id}"
    if name not in session.tables("ducklake_inlined_delete_"):
        return {}
    deleted: dict[int, list[int]] = {}
    for file, row in session.rows(f"SELECT file_id, row_id FROM {name} WHERE begin_snapshot <= ?", snapshot):
        deleted.setdefault(file, []).append(row)
    return deleted


def inlined_tables(session: Session, place: CatalogTable, /) -> list[tuple[str, int]]:
    """(table of the catalog, its schema version) of rows that lie in the catalog."""
    there = session.tables("ducklake_inlined_data_")
    tables = session.rows(
        "SELECT table_name, schema_version FROM ducklake_inlined_data_tables WHERE table_id = ? "
        "ORDER BY schema_version",
        place.id,
    )
    return [(name, version) for name, version in tables if name in there]


def columns_of_version(session: Session, place: CatalogTable, version: int, /) -> tuple[types.Field, ...]:
    """The columns that a schema version of the lake gave the table."""
    begun = session.rows(
        "SELECT begin_snapshot FROM ducklake_schema_versions WHERE table_id = ? AND schema_version <= ? "
        "ORDER BY schema_version DESC LIMIT 1",
        place.id,
        version,
    )
    return columns(session, place, begun[0][0] if begun else place.since)


def _inlined(session: Session, place: CatalogTable, snapshot: int) -> Iterator[Inlined]:
    for name, version in inlined_tables(session, place):
        held = columns_of_version(session, place, version)
        cells = [_cell(session.kind, one) for one in held]
        rows = session.rows(
            f"SELECT {', '.join(cells)} FROM {name} WHERE {_LIVE} ORDER BY row_id, begin_snapshot", snapshot, snapshot
        )
        if rows:
            yield Inlined(table=name, columns=held, rows=tuple(rows))


def _cell(kind: str, column: types.Field) -> str:
    """A column of inlined rows as DuckDB's text, or as bytes: what all three databases have in common."""
    name = f'"{types.quoted(column.name)}"'
    if kind != "duckdb":
        return name
    return f"hex({name})" if column.type == "blob" else f"CAST({name} AS VARCHAR)"

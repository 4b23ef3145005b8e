"""A new table, and the lake around it where there is none yet: the tables of a catalog, format 1.0, and their rows."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seqlake.errors import DatasetExistsError, SchemaMismatchError
from seqlake.files.locations import absolute, is_local
from seqlake.spec.schema import ID
from seqlake.tables._lakes import types as lake_types
from seqlake.tables.ducklake import types, writing
from seqlake.tables.ducklake.catalogs import catalog, retried, text_of
from seqlake.versions.format import writer_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.spec.schema import Schema
    from seqlake.tables.ducklake.address import DuckLakeAddress
    from seqlake.tables.ducklake.catalogs import Session


def create(address: DuckLakeAddress, schema: Schema, /, *, partition_by: Sequence[str]) -> str:
    """Make an empty table.

    Args:
        address: Where; the catalog is made where there is none.
        schema: Columns, column types and metadata.
        partition_by: Scalar columns.

    Returns:
        Where the lake's data files lie, absolute.

    Raises:
        DatasetExistsError: It is there already.
        SchemaMismatchError: Columns that DuckLake cannot have, or cannot partition by.
        ValueError: A new lake in PostgreSQL, and nobody says where its data files go.
    """
    fields = _fields(schema)
    _check_partitions(schema, partition_by)
    root = retried(lambda: _create(address, fields, lake_types.encode_metadata(schema), partition_by))
    place = address.data_path or here(root, address)
    if is_local(place):
        os.makedirs(place, exist_ok=True)  # noqa: PTH103 - a location, not a Path
    return place


def _create(address: DuckLakeAddress, fields: list[types.Field], mixtrain: str, partition_by: Sequence[str]) -> str:
    lake = catalog(address)
    with lake.writing(make=not lake.exists()) as session:
        if "ducklake_snapshot" not in session.tables("ducklake_"):
            root = address.data_path or address.default_data_path
            if root is None:
                raise ValueError(f"{address}: a new lake needs a place for its data files; add &data_path=FOLDER.")
            make_catalog(session, data_path=absolute(root).rstrip("/") + "/", made_by=writer_name())
        there = session.rows(
            "SELECT 1 FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id WHERE "
            "t.table_name = ? AND s.schema_name = ? AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL",
            address.table,
            address.schema,
        )
        if there:
            raise DatasetExistsError(f"{address} is there already.", path=str(address), hint="Open it with sl.open.")
        counters = writing.Counters.next(session)
        changes = writing.make_table(session, counters, (address.schema, address.table), fields, mixtrain, partition_by)
        writing.finish(session, counters, changes, "create", "")
        ((data_path,),) = session.rows("SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL")
    return str(data_path)


def _fields(schema: Schema) -> list[types.Field]:
    fields: list[types.Field] = []
    first = 1
    for column in schema.values():
        field = types.field_of(column.name, column.stored(), first=first, nullable=column.nullable)
        fields.append(field)
        first = 1 + max(one.id for one in field.walk())
    return fields


def _check_partitions(schema: Schema, partition_by: Sequence[str]) -> None:
    bad = [name for name in partition_by if name not in schema or schema[name].category != "scalar" or name == ID]
    if bad:
        raise SchemaMismatchError(
            f"A table is partitioned by scalar columns other than {ID!r}; found {', '.join(bad)}.",
            hint=f"The columns are {', '.join(schema.names)}.",
        )


def here(data_path: str, address: DuckLakeAddress) -> str:
    """The data path as an absolute location; a relative one counts from the working folder, as in DuckDB."""
    if not is_local(data_path) or os.path.isabs(data_path) or address.kind == "postgres":  # noqa: PTH117 - a location
        return absolute(data_path)
    beside = os.path.join(os.path.dirname(address.target), data_path)  # noqa: PTH118, PTH120 - a location
    return absolute(data_path if os.path.isdir(data_path) or not os.path.isdir(beside) else beside)  # noqa: PTH112 - a location


FORMAT = "1.0"
_SQLITE = {"BOOLEAN": "BIGINT", "UUID": "VARCHAR", "TIMESTAMPTZ": "VARCHAR"}  # as DuckDB makes them there

# The order of columns is part of the format: DuckDB inserts without naming them.
_TABLES = {
    "metadata": "key VARCHAR NOT NULL, value VARCHAR NOT NULL, scope VARCHAR, scope_id BIGINT",
    "snapshot": "snapshot_id BIGINT PRIMARY KEY, snapshot_time TIMESTAMPTZ, schema_version BIGINT,"
    " next_catalog_id BIGINT, next_file_id BIGINT",
    "snapshot_changes": "snapshot_id BIGINT PRIMARY KEY, changes_made VARCHAR, author VARCHAR, commit_message VARCHAR,"
    " commit_extra_info VARCHAR",
    "schema": "schema_id BIGINT PRIMARY KEY, schema_uuid UUID, begin_snapshot BIGINT, end_snapshot BIGINT,"
    " schema_name VARCHAR, path VARCHAR, path_is_relative BOOLEAN",
    "table": "table_id BIGINT, table_uuid UUID, begin_snapshot BIGINT, end_snapshot BIGINT, schema_id BIGINT,"
    " table_name VARCHAR, path VARCHAR, path_is_relative BOOLEAN",
    "view": "view_id BIGINT, view_uuid UUID, begin_snapshot BIGINT, end_snapshot BIGINT, schema_id BIGINT,"
    " view_name VARCHAR, dialect VARCHAR, sql VARCHAR, column_aliases VARCHAR",
    "tag": "object_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, key VARCHAR, value VARCHAR",
    "column_tag": "table_id BIGINT, column_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, key VARCHAR,"
    " value VARCHAR",
    "data_file": "data_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT,"
    " file_order BIGINT, path VARCHAR, path_is_relative BOOLEAN, file_format VARCHAR, record_count BIGINT,"
    " file_size_bytes BIGINT, footer_size BIGINT, row_id_start BIGINT, partition_id BIGINT, encryption_key VARCHAR,"
    " mapping_id BIGINT, partial_max BIGINT",
    "file_column_stats": "data_file_id BIGINT, table_id BIGINT, column_id BIGINT, column_size_bytes BIGINT,"
    " value_count BIGINT, null_count BIGINT, min_value VARCHAR, max_value VARCHAR, contains_nan BOOLEAN,"
    " extra_stats VARCHAR",
    "file_variant_stats": "data_file_id BIGINT, table_id BIGINT, column_id BIGINT, variant_path VARCHAR,"
    " shredded_type VARCHAR, column_size_bytes BIGINT, value_count BIGINT, null_count BIGINT, min_value VARCHAR,"
    " max_value VARCHAR, contains_nan BOOLEAN, extra_stats VARCHAR",
    "delete_file": "delete_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT,"
    " data_file_id BIGINT, path VARCHAR, path_is_relative BOOLEAN, format VARCHAR, delete_count BIGINT,"
    " file_size_bytes BIGINT, footer_size BIGINT, encryption_key VARCHAR, partial_max BIGINT",
    "column": "column_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, table_id BIGINT, column_order BIGINT,"
    " column_name VARCHAR, column_type VARCHAR, initial_default VARCHAR, default_value VARCHAR, nulls_allowed BOOLEAN,"
    " parent_column BIGINT, default_value_type VARCHAR, default_value_dialect VARCHAR",
    "table_stats": "table_id BIGINT, record_count BIGINT, next_row_id BIGINT, file_size_bytes BIGINT",
    "table_column_stats": "table_id BIGINT, column_id BIGINT, contains_null BOOLEAN, contains_nan BOOLEAN,"
    " min_value VARCHAR, max_value VARCHAR, extra_stats VARCHAR",
    "partition_info": "partition_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT",
    "partition_column": "partition_id BIGINT, table_id BIGINT, partition_key_index BIGINT, column_id BIGINT,"
    " transform VARCHAR",
    "file_partition_value": "data_file_id BIGINT, table_id BIGINT, partition_key_index BIGINT, partition_value VARCHAR",
    "files_scheduled_for_deletion": "data_file_id BIGINT, path VARCHAR, path_is_relative BOOLEAN,"
    " schedule_start TIMESTAMPTZ",
    "inlined_data_tables": "table_id BIGINT, table_name VARCHAR, schema_version BIGINT",
    "column_mapping": "mapping_id BIGINT, table_id BIGINT, type VARCHAR",
    "name_mapping": "mapping_id BIGINT, column_id BIGINT, source_name VARCHAR, target_field_id BIGINT,"
    " parent_column BIGINT, is_partition BOOLEAN",
    "schema_versions": "begin_snapshot BIGINT, schema_version BIGINT, table_id BIGINT",
    "macro": "schema_id BIGINT, macro_id BIGINT, macro_name VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT",
    "macro_impl": "macro_id BIGINT, impl_id BIGINT, dialect VARCHAR, sql VARCHAR, type VARCHAR",
    "macro_parameters": "macro_id BIGINT, impl_id BIGINT, column_id BIGINT, parameter_name VARCHAR,"
    " parameter_type VARCHAR, default_value VARCHAR, default_value_type VARCHAR",
    "sort_info": "sort_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT",
    "sort_expression": "sort_id BIGINT, table_id BIGINT, sort_key_index BIGINT, expression VARCHAR, dialect VARCHAR,"
    " sort_direction VARCHAR, null_order VARCHAR",
}


def make_catalog(session: Session, /, *, data_path: str, made_by: str) -> None:
    """Make the tables of an empty catalog, with snapshot 0 and the schema `main`.

    Args:
        session: A writing transaction on a database that has none of them.
        data_path: Where data files lie, absolute, with a final slash.
        made_by: Who makes it.
    """
    for name, columns in _TABLES.items():
        text = columns
        if session.kind == "sqlite":
            for kind, plain in _SQLITE.items():
                text = text.replace(kind, plain)
        session.run(f"CREATE TABLE ducklake_{name}({text})")
    session.insert("ducklake_snapshot", [(0, text_of(datetime.now(UTC)), 0, 1, 0)])
    session.insert("ducklake_snapshot_changes", [(0, 'created_schema:"main"', None, None, None)])
    session.insert("ducklake_schema", [(0, str(uuid.uuid4()), 0, None, "main", "main/", True)])
    session.insert(
        "ducklake_metadata",
        [
            ("version", FORMAT, None, None),
            ("created_by", made_by, None, None),
            ("data_path", data_path, None, None),
            ("encrypted", "false", None, None),
            # Rows in the catalog cannot be read at the speed of shards.
            ("data_inlining_row_limit", "0", None, None),
        ],
    )

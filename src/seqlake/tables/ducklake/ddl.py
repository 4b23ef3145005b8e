"""The tables of a DuckLake catalog, format 1.0, and the rows of an empty one."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seqlake.tables.ducklake.catalogs import text_of

if TYPE_CHECKING:
    from seqlake.tables.ducklake.catalogs import Session

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

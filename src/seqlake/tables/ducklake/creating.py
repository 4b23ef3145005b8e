"""A new table, and the lake around it where there is none yet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from seqlake.errors import DatasetExistsError, SchemaMismatchError
from seqlake.files.locations import absolute, is_local
from seqlake.spec.schema import ID
from seqlake.tables._lakes import types as lake_types
from seqlake.tables.ducklake import ddl, types, writing
from seqlake.tables.ducklake.catalogs import catalog, retried
from seqlake.versions.format import writer_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.spec.schema import Schema
    from seqlake.tables.ducklake.address import DuckLakeAddress


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
            ddl.make_catalog(session, data_path=absolute(root).rstrip("/") + "/", made_by=writer_name())
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

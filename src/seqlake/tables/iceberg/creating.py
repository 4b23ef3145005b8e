"""A new Iceberg table: columns, partitions, the property, and settings that concurrent writers need."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from seqlake.errors import SchemaMismatchError
from seqlake.tables._lakes import types
from seqlake.tables._lakes.types import PROPERTY
from seqlake.tables.iceberg import history, schemas
from seqlake.tables.iceberg.undoing import undone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table import Table

    from seqlake.spec.schema import Schema
    from seqlake.tables.iceberg.opening import OpenTable

SETTINGS = {
    # For other writers: pyiceberg's own four tries are too few for rivals.
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "2000",
    # A thousand commits must not make a thousand manifests to open, nor keep a thousand metadata files.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.target-file-size-bytes": str(128 << 20),
}
_PART = re.compile(r"(?:(\w+)\((?:(\d+),\s*)?(.+?)\)|(.+))")
_TIMES = {"year": "YearTransform", "month": "MonthTransform", "day": "DayTransform", "hour": "HourTransform"}
_SIZED = {"bucket": "BucketTransform", "truncate": "TruncateTransform"}


def create(engine: OpenTable, schema: Schema, partition_by: Sequence[str], /) -> None:
    """Make the table in its catalog, with a first snapshot without rows.

    Raises:
        FileExistsError: It is there already.
        SchemaMismatchError: A type that Iceberg lacks.
    """
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

    columns = schemas.to_iceberg(types.lake_schema(schema, engine.lake_type))
    spec = partition_spec(columns, partition_by)
    text = types.encode_metadata(schema)
    address = engine.address
    catalog = address.open_catalog()
    if not catalog.namespace_exists(address.identifier[:-1]):
        with suppress(NamespaceAlreadyExistsError):  # a rival was faster
            catalog.create_namespace(address.identifier[:-1])
    with undone(engine, asked=True):
        try:
            table = catalog.create_table(
                address.identifier, columns, partition_spec=spec, properties={**SETTINGS, PROPERTY: text}
            )
        except TableAlreadyExistsError as error:
            raise FileExistsError(str(error)) from None
        try:
            _fill(engine, table, text)
        except BaseException:
            with suppress(Exception):  # the error under way says more
                catalog.drop_table(address.identifier)
            raise


def _fill(engine: OpenTable, table: Table, text: str) -> None:
    """Its mapping of names, and a first snapshot without rows."""
    mapping = table.schema().name_mapping.model_dump_json()
    with undone(engine, asked=True) as written:
        table.io = written.noted_by(table.io)
        with table.transaction() as pending:
            # Files without field ids, as other writers register them, are read by the names of the columns of today.
            pending.set_properties({"schema.name-mapping.default": mapping})
            said: Any = {history.OPERATION: "create", PROPERTY: text}
            with pending.update_snapshot(snapshot_properties=said).fast_append():
                pass


def partition_spec(schema: IcebergSchema, partition_by: Sequence[str], /) -> PartitionSpec:
    """What `partition_by` says, as Iceberg has it.

    Raises:
        SchemaMismatchError: No such column, or one that cannot be partitioned by.
        ValueError: No such transform.
    """
    from pyiceberg import transforms
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec

    fields = []
    for number, text in enumerate(partition_by):
        kind, size, inner, plain = _parsed(text, schema)
        column = schema.find_field(plain or inner)
        transform: Any = transforms.IdentityTransform()
        name = column.name
        if kind in _TIMES:
            transform, name = getattr(transforms, _TIMES[kind])(), f"{column.name}_{kind}"
        elif kind in _SIZED:
            transform, name = getattr(transforms, _SIZED[kind])(int(size)), f"{column.name}_{kind}"
        if not transform.can_transform(column.field_type):
            raise SchemaMismatchError(
                f"A table cannot be partitioned by {text!r}: {column.name} is {column.field_type}."
            )
        fields.append(
            PartitionField(
                source_id=column.field_id, field_id=PARTITION_FIELD_ID_START + number, transform=transform, name=name
            )
        )
    return PartitionSpec(*fields)


def _parsed(text: str, schema: IcebergSchema) -> tuple[str, str, str, str]:
    """(transform, its number, its column, a column without transform)."""
    columns = schemas.names_of(schema)
    if text in columns:
        return "", "", "", text
    match = _PART.fullmatch(text)
    kind, size, inner, plain = (part or "" for part in (match.groups() if match else ("", "", "", text)))
    if plain or inner not in columns:
        raise SchemaMismatchError(f"partition_by names {plain or inner!r}; the columns are {', '.join(columns)}.")
    if kind not in _TIMES and not (kind in _SIZED and size):
        raise ValueError(
            f"{text!r}: expected a column, or year, month, day or hour of one, bucket(N, column) or "
            "truncate(N, column)."
        )
    return kind, size, inner, plain

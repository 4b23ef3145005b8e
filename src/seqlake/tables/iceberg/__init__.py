"""Iceberg tables: shards of our own writer in snapshots that every Iceberg client reads.

Specification: "Apache Iceberg". Addresses: `iceberg://catalog/namespace.table`, with catalogs as pyiceberg is
configured, and `iceberg:FOLDER/namespace.table`, a local warehouse. Reasons: `docs/design/iceberg.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.errors import DatasetExistsError, DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.iceberg.engine import IcebergEngine

__all__ = ["create", "matches", "open", "open_untyped"]

# Every table plug is asked whether a folder is its own: what opens one is imported once it is.


def matches(location: object, /) -> bool:
    """Whether this is an Iceberg table: an address that begins with `iceberg:`, or pyiceberg's own object."""
    if isinstance(location, str):
        return location.startswith("iceberg:")
    return type(location).__module__.startswith("pyiceberg.table") and hasattr(location, "catalog")


def open(location: Any, /, *, storage: Mapping[str, str] | None = None) -> LakeTable:  # noqa: A001 - the name that every table offers
    """Open a table.

    Args:
        location: `iceberg://catalog/namespace.table`, `iceberg:FOLDER/namespace.table`, or a `pyiceberg.table.Table`.
        storage: obstore's options, and properties of the catalog by pyiceberg's names (`uri`, `warehouse`, `type`
            and those with a dot); never stored, never printed.

    Raises:
        DatasetNotFoundError: No such catalog or table, or one without the property `mixtrain`.

    Example:
        ```python
        table = iceberg.open("iceberg:warehouse/robots.episodes")
        ```
    """
    from seqlake.tables._lakes.types import PROPERTY

    table, engine = _opened(location, storage)
    if PROPERTY not in engine.table.properties:
        call = repr(location) if isinstance(location, str) else "table"
        raise DatasetNotFoundError(
            f"{engine.address.name} is no Mixtrain dataset: the table has no property {PROPERTY!r}.",
            path=engine.address.name,
            hint=f"sl.init({call}) makes it one: it sets that property, and rewrites nothing. sl.scan({call}) "
            "reads the table as it is.",
        )
    return table


def open_untyped(location: Any, /, *, storage: Mapping[str, str] | None = None) -> LakeTable:
    """As `open`, whether or not the table has the property `mixtrain`."""
    return _opened(location, storage)[0]


def _opened(location: Any, storage: Mapping[str, str] | None) -> tuple[LakeTable, IcebergEngine]:
    """The table behind a location, loaded; `open` says what it raises."""
    plugins.require("pyiceberg", extra="iceberg")
    from seqlake.tables._lakes.damage import as_damage
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.iceberg import addresses
    from seqlake.tables.iceberg.engine import IcebergEngine

    if isinstance(location, str):
        address = addresses.parse(location, storage)
        if addresses.is_missing(address):
            raise DatasetNotFoundError(
                f"No Iceberg warehouse is at {location.rpartition('/')[0]}: it has no {addresses.CATALOG_FILE}.",
                path=location,
                hint="Check the path, or create a table there with sl.create(address, schema).",
            )
        engine = IcebergEngine(address)
    else:
        engine = IcebergEngine(addresses.of_table(location, storage), table=location)
    with as_damage(engine.address.name):
        engine.load()
    return LakeTable(engine), engine


def create(
    location: str,
    schema: Schema,
    /,
    *,
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> LakeTable:
    """Make an empty table; its namespace, and a local warehouse, are made where they are missing.

    Args:
        location: `iceberg://catalog/namespace.table` or `iceberg:FOLDER/namespace.table`.
        schema: Columns, column types and metadata.
        partition_by: Columns, or hidden transforms of them: `day(created_at)`, `bucket(16, sequence_id)`,
            `truncate(4, task)`, `year(...)`, `month(...)`, `hour(...)`.
        storage: As for `open`.

    Raises:
        DatasetExistsError: A table of that name is there.
        SchemaMismatchError: A type that Iceberg lacks, or a partition of a column that is not there.
        ValueError: A transform that is not known.
    """
    plugins.require("pyiceberg", extra="iceberg")
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.iceberg import addresses, creating
    from seqlake.tables.iceberg.engine import IcebergEngine

    address = addresses.parse(location, storage)
    addresses.make_warehouse(address)
    engine = IcebergEngine(address)
    try:
        creating.create(engine, schema, partition_by)
    except FileExistsError as error:
        raise DatasetExistsError(
            f"The catalog {address.catalog!r} has a table {'.'.join(address.identifier)} already.",
            path=address.name,
            hint="Open it with sl.open, or choose another name.",
        ) from error
    return LakeTable(engine)

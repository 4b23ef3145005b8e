"""The DuckLake table: our shards in a DuckLake, read and changed by DuckDB as any other of its tables.

Specification: "DuckLake". The catalog is a database with a public layout, and it is spoken to in plain SQL: neither
DuckDB's extension nor its version matters. The `mixtrain` object is a tag of the table; relative references resolve
against the lake's data path.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from seqlake.tables.ducklake.address import matches, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.table import LakeTable

__all__ = ["create", "matches", "open"]

# Every table plug is asked whether a folder is its own: what opens one is imported once it is.


def open(  # noqa: A001 - the name that every table offers
    location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None
) -> LakeTable:
    """Open a table for reading; nothing is written before `begin`.

    Args:
        location: `ducklake:CATALOG?table=NAME`; the catalog is a DuckDB file, `sqlite:FILE` or `postgres:CONNECTION`.
        storage: obstore's options for the data files; never stored, never printed.

    Raises:
        DatasetNotFoundError: No such catalog or table.

    Example:
        >>> made = create("ducklake:sqlite:lake.sqlite?table=arm", schema)
        >>> len(open("ducklake:sqlite:lake.sqlite?table=arm").snapshot().shards())
        0
    """
    from seqlake.tables._lakes.damage import as_damage
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.ducklake.engine import DuckLakeEngine

    address = parse(os.fspath(location))
    with as_damage(address.default_data_path or "the DuckLake"):
        return LakeTable(DuckLakeEngine.opened(address, storage=storage))


def create(
    location: str | os.PathLike[str],
    schema: Schema,
    /,
    *,
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> LakeTable:
    """Make an empty table, and the catalog where there is none yet.

    Args:
        location: As for `open`, with `&data_path=FOLDER` where data files of a new lake shall not lie beside the
            catalog's file.
        schema: Columns, column types and metadata.
        partition_by: Scalar columns; each of their values has files of its own.
        storage: obstore's options for the data files; never stored, never printed.

    Raises:
        DatasetExistsError: The table is there already.
        SchemaMismatchError: A type that DuckLake lacks, or a partition column that cannot be one.
        ReadOnlyError: The catalog cannot be written.
    """
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.ducklake import creating
    from seqlake.tables.ducklake.engine import DuckLakeEngine

    address = parse(os.fspath(location))
    data_path = creating.create(address, schema, partition_by=partition_by)
    return LakeTable(DuckLakeEngine(address, data_path, storage=storage))

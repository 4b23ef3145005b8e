"""The Delta Lake table: our shards in a Delta log, read and changed by every client of Delta.

Specification: "Delta Lake". The `mixtrain` object is a property of the table, relative references resolve against
its folder, and what is ours beside the data lies in `_seqlake/`, which no vacuum enters.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqlake.files.allowed import ANYWHERE
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.stores import open_store
from seqlake.tables.delta.log import LOG, is_there

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.table import LakeTable

__all__ = ["create", "matches", "open"]

# Every table plug is asked whether a folder is its own: what opens one is imported once it is.


def matches(location: object, /) -> bool:
    """Whether this is a Delta table: a folder with a Delta log, `delta:` and a place, `uc://`, or a `DeltaTable`.

    A URI of a bucket is looked at with the usual environment's credentials; `delta:s3://...` needs no look.
    """
    if _is_native(location):
        return True
    if not isinstance(location, str | os.PathLike):
        return False
    text = os.fspath(location)
    if not isinstance(text, str):
        return False
    if text.startswith(("delta:", "uc://")):
        return True
    if not is_local(text) or not local_path(absolute(text)).joinpath(LOG).is_dir():
        return False
    return is_there(open_store(text, storage=ANYWHERE))


def open(location: object, /, *, storage: Mapping[str, str] | None = None) -> LakeTable:  # noqa: A001 - the name that every table offers
    """Open a table for reading; nothing is written before `begin`.

    Args:
        location: A folder or URI, with or without `delta:`; `uc://catalog.schema.table`; or a `DeltaTable`.
        storage: obstore's options; never stored, never printed.

    Raises:
        DatasetNotFoundError: No Delta table is there.
        MissingDependencyError: `deltalake` is not installed.

    Example:
        ```python
        table = open("delta:lake/arm")
        sum(shard.rows for shard in table.snapshot().shards())
        ```
    """
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.delta.engine import DeltaEngine

    if _is_native(location):
        return LakeTable(DeltaEngine.of(location, storage=storage))
    place = os.fspath(location)  # type: ignore[call-overload]  # a path, or it is none
    if place.startswith("uc://"):
        return LakeTable(DeltaEngine.of_unity(place, storage=storage))
    engine = DeltaEngine(_root(place), storage=storage)
    engine.refuse_absent()
    return LakeTable(engine)


def create(
    location: str | os.PathLike[str],
    schema: Schema,
    /,
    *,
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> LakeTable:
    """Make an empty table.

    Args:
        location: A folder or URI, with or without `delta:`, where nothing is yet.
        schema: Columns, column types and metadata; types that Delta lacks become wider ones.
        partition_by: Scalar columns; each of their values has files of its own.
        storage: obstore's options; never stored, never printed.

    Raises:
        DatasetExistsError: Something is there already.
        SchemaMismatchError: A type that Delta has no wider one for, or a partition column that cannot be one.
        ReadOnlyError: The place cannot be written.
    """
    from seqlake.tables._lakes.table import LakeTable
    from seqlake.tables.delta.engine import DeltaEngine

    engine = DeltaEngine(_root(os.fspath(location)), storage=storage)
    engine.create(schema, partition_by=partition_by)
    return LakeTable(engine)


def _root(place: str) -> str:
    return absolute(place.removeprefix("delta:"))


def _is_native(location: object) -> Any:
    return type(location).__name__ == "DeltaTable" and hasattr(location, "table_uri")

"""Lance datasets as tables: versions, tags and deletions are Lance's, and every client of Lance reads what we write.

A shard of ours is a Lance file with our index and checksums behind it, registered as a fragment. The `mixtrain` object
is metadata of the schema, relative references resolve against the dataset's folder, and what is ours beside the data
lies in `_seqlake/`, which no cleanup of Lance enters.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqlake.files.locations import absolute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.table import LakeTable

__all__ = ["create", "matches", "open"]

_PREFIX = "lance:"


def matches(location: object, /) -> bool:
    """Whether this is `lance:` and a place, or a `lance.LanceDataset`; a bare folder is not looked at."""
    if _is_native(location):
        return True
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    return isinstance(text, str) and text.startswith(_PREFIX)


def open(location: object, /, *, storage: Mapping[str, str] | None = None) -> LakeTable:  # noqa: A001 - the name that every table offers
    """Open a Lance dataset for reading; nothing is written before `begin`.

    Args:
        location: `lance:` and a folder or URI, or a `lance.LanceDataset`.
        storage: obstore's options; never stored, never printed.

    Raises:
        DatasetNotFoundError: No Lance dataset is there.
        MissingDependencyError: `pylance` is not installed.

    Example:
        ```python
        table = open("lance:lake/arm")
        sum(shard.rows for shard in table.snapshot().shards())
        ```
    """
    engines = _engines()
    native = _is_native(location)
    engine = engines.LanceEngine.of(location) if native else engines.LanceEngine(_root(location), storage=storage)
    engine.refuse_absent()
    table: LakeTable = engines.LakeTable(engine)
    return table


def create(
    location: str | os.PathLike[str],
    schema: Schema,
    /,
    *,
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> LakeTable:
    """Make an empty Lance dataset.

    Args:
        location: A folder or URI, with or without `lance:`, where nothing is yet.
        schema: Columns, column types and metadata.
        partition_by: Nothing: Lance has no partitions.
        storage: obstore's options; never stored, never printed.

    Raises:
        DatasetExistsError: Something is there already.
        SchemaMismatchError: A column with a dot in its name, or partitions.
    """
    engine = _engines().LanceEngine(_root(location), storage=storage)
    engine.create(schema, partition_by=partition_by)
    table: LakeTable = _engines().LakeTable(engine)
    return table


def _engines() -> Any:
    """Every table plug is asked whether a place is its own: what opens one is imported once it is."""
    from seqlake.tables.lance import engine

    return engine


def _root(location: Any) -> str:
    return absolute(os.fspath(location).removeprefix(_PREFIX))


def _is_native(location: object) -> bool:
    kind = type(location)
    return kind.__name__ == "LanceDataset" and kind.__module__.partition(".")[0] == "lance"

"""The standalone table: Parquet files in a folder or bucket, with versions and atomic commits, without a server.

Specification: "Standalone Parquet". The protocol and every file of it: `docs/reference/commits.md`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from seqlake.files.allowed import ANYWHERE
from seqlake.files.locations import is_local
from seqlake.files.stores import open_store
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.snapshot import StandaloneSnapshot
from seqlake.tables.standalone.table import StandaloneTable, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.spec.schema import Schema

__all__ = ["StandaloneSnapshot", "StandaloneTable", "create", "matches", "open"]


def matches(location: object, /) -> bool:
    """Whether this is a location of a standalone table: a path or URI where `mixtrain.json` or a log lies.

    A URI is taken at its word, since looking would need its credentials; `open` looks.
    """
    if not isinstance(location, str | os.PathLike):
        return False
    text = os.fspath(location)
    if not isinstance(text, str):
        return False
    return Log(open_store(text, storage=ANYWHERE)).is_there() if is_local(text) else True


def open(  # noqa: A001 - the name that every table offers
    location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None
) -> StandaloneTable:
    """Open a table for reading; nothing is written before `begin`.

    Args:
        location: A folder, or the URI of a prefix in a bucket.
        storage: obstore's options; never stored, never printed.

    Raises:
        DatasetNotFoundError: No dataset is there.

    Example:
        >>> table = open("data/arm")
        >>> sum(shard.rows for shard in table.snapshot().shards())
        64
    """
    return opened(open_store(location, storage=storage))


def create(
    location: str | os.PathLike[str],
    schema: Schema,
    /,
    *,
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> StandaloneTable:
    """Make an empty table.

    Args:
        location: A folder or URI where nothing is yet.
        schema: Columns, column types and metadata.
        partition_by: Must be empty.
        storage: obstore's options; never stored, never printed.

    Raises:
        ValueError: `partition_by` is not empty.
        DatasetExistsError: Something is there already.
        ReadOnlyError: The place cannot be written.
    """
    if partition_by:
        raise ValueError(
            f"A standalone table has no partitions, found partition_by={list(partition_by)}; use `split` to make "
            "one dataset for each value, or a lake table."
        )
    return StandaloneTable.created(open_store(location, storage=storage), schema)

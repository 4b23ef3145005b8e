"""Makes a Parquet folder, or a table of a lake, a Mixtrain dataset: says what its columns mean, and leaves its data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.abilities import MayBeUntyped, TypesColumns, ability
from seqlake.dataset import opening
from seqlake.dataset.reading import inference, plain
from seqlake.dataset.writing import conforming
from seqlake.errors import DatasetExistsError
from seqlake.files import stores
from seqlake.protocols import Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.metadata import Metadata


def init(
    location: object,
    /,
    *,
    column_types: Mapping[str, ColumnType | Mapping[str, Any]] | None = None,
    dry_run: bool = False,
    storage: Mapping[str, str] | None = None,
) -> Metadata:
    """Make Parquet files, or a table of a lake, a Mixtrain dataset: say what columns mean; data stay as they are.

    Of a folder `mixtrain.json` is written; of a lake's table the property `mixtrain` is set, in one commit.

    What the columns mean is read off their types and first values: nested lists are trajectories, paths that end in
    `.mp4` videos, bytes that begin like a JPEG images, and so on. Look at the result with
    `dry_run=True` before you write it.

    Args:
        location: A folder; a lake's address, as in `delta:FOLDER`; or a lake's own table object.
        column_types: What you know better, by column; JSON or `ColumnType`.
        dry_run: Write nothing.
        storage: Options of the object store.

    Returns:
        The metadata that were, or would be, written.

    Raises:
        DatasetNotFoundError: No Parquet file is there, or no table.
        DatasetExistsError: It has a `mixtrain.json`, or the property, already.
        SchemaMismatchError: The files disagree, or `sequence_id` is missing or no text.
        ValidationError: An id is null or empty; `DuplicateSequenceError` for one that occurs twice.

    Example:
        ```python
        print(sl.init("exports/episodes", dry_run=True).to_json())
        sl.init("exports/episodes", column_types={"action": sl.Trajectory(dim=7, units="rad", fps=20)})
        sl.init("delta:lake/episodes")
        ```
    """
    return init_there(location, column_types=column_types, dry_run=dry_run, storage=storage)[0]


def init_there(
    location: object,
    /,
    *,
    column_types: Mapping[str, ColumnType | Mapping[str, Any]] | None,
    dry_run: bool,
    storage: Mapping[str, str] | None = None,
) -> tuple[Metadata, str]:
    """`init`, and in words where the metadata stand."""
    opening.import_pandas_first()
    place = opening.place_of(location) if isinstance(location, (str, os.PathLike)) else location
    known = dict(plain.declared(column_types).column_types)
    table = opening.lake_table(place, storage)
    if table is not None:
        return _init_table(table, known, dry_run=dry_run), "the table's property mixtrain"
    if not isinstance(place, str):
        raise opening.not_a_dataset(place, storage)
    store = stores.open_store(place, storage=storage)
    if stores.exists(store, opening.METADATA):
        raise DatasetExistsError(
            f"{place} has a {opening.METADATA} already.", path=place, hint="Open it with sl.open, or edit that file."
        )
    if (other := opening.format_of(place, storage)) is not None:
        typed = ability(plugins.load("formats", other), TypesColumns)
        if typed is None:
            raise opening.not_a_dataset(place, storage)
        known = {**typed.column_types(place, storage=storage), **known}
    metadata = inference.infer(opening.plain_files(place, storage), known)
    if not dry_run:
        store.put(opening.METADATA, metadata.to_json().encode(), if_absent=True)
    return metadata, opening.METADATA


def _init_table(table: Any, types: dict[str, ColumnType], *, dry_run: bool) -> Metadata:
    """Set the property of a lake's table, in one commit."""
    snapshot = table.snapshot()
    known = ability(snapshot, MayBeUntyped)
    if known is None or known.is_typed:
        raise DatasetExistsError(
            f"{table.root} is a Mixtrain dataset already: the table has the property `mixtrain`.",
            path=table.root,
            hint="Open it with sl.open.",
        )
    metadata = inference.infer(snapshot, types)
    schema = type(snapshot.schema).from_arrow(snapshot.state.schema, metadata=metadata, id=snapshot.schema.id)
    conforming.refuse_broken(schema)
    if not dry_run:
        transaction = table.begin(snapshot.version)
        table.commit(Change(operation="metadata", schema=schema), transaction=transaction)
    return metadata

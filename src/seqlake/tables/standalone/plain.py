"""A plain folder: `mixtrain.json` and Parquet files, as any tool leaves them; read as it is, adopted to be written."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SchemaMismatchError
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.tables.standalone.records import ShardEntry
from seqlake.tables.standalone.state import State, encode_columns, fingerprint
from seqlake.versions import names, shard_formats
from seqlake.versions.small_files import PARALLEL, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFile:
    """A data file of a plain folder.

    Attributes:
        path: Below the root.
        rows: From its footer.
        nbytes: Its size.
        schema: Its Arrow schema.
    """

    path: str
    rows: int
    nbytes: int
    schema: pa.Schema


def find_files(store: Store, /) -> tuple[list[str], bool]:
    """The data files of a plain folder, and whether they lie where `adopt` can take them.

    `data/*.parquet` by name; where there are none, every `*.parquet` below the root by path, outside `files/` and
    names that begin with `_` or `.`.
    """
    direct = [path for path in _listed(store, names.DATA) if names.is_shard_name(path.removeprefix(f"{names.DATA}/"))]
    if direct:
        return direct, True
    anywhere = [
        path
        for path in _listed(store, "")
        if not path.startswith(f"{names.FILES}/") and not any(part[0] in "_." for part in path.split("/"))
    ]
    return anywhere, not anywhere


def _listed(store: Store, folder: str) -> list[str]:
    return sorted(path for path, _ in store.list(folder) if shard_formats.has_format(path))


def describe(store: Store, paths: Sequence[str], /) -> list[PlainFile]:
    """The footers of these files, read in parallel.

    Raises:
        CorruptFileError: One is no Parquet file.
    """

    def described(path: str) -> PlainFile:
        blob = store.blob(path)
        rows, schema = shard_formats.rows_and_schema(path, blob)
        return PlainFile(path=path, rows=rows, nbytes=blob.size, schema=schema)

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(described, paths))


def read_metadata(store: Store, /) -> dict[str, Any]:
    """`mixtrain.json`, checked.

    Raises:
        DatasetNotFoundError: There is none.
        InvalidMetadataError: It cannot be used.
    """
    data = read(store, names.METADATA)
    if data is None:
        root = store.root
        raise DatasetNotFoundError(
            f"{root} has no {names.METADATA}, so it is not a Mixtrain dataset.",
            path=root,
            hint=f"`seqlake init {root}` makes it one; sl.scan reads the Parquet files as they are.",
        )
    Metadata.parse(data)
    mixtrain = json.loads(data)
    if not isinstance(mixtrain, dict):
        raise InvalidMetadataError(f"Expected a JSON object in {names.METADATA}, found {type(mixtrain).__name__}.")
    return mixtrain


def unified(files: Sequence[PlainFile], /) -> pa.Schema:
    """One schema that all files fit: columns of all, wider types where they differ.

    Raises:
        SchemaMismatchError: Types that cannot become one.
    """
    if not files:
        return pa.schema([pa.field(ID, pa.string())])
    try:
        return pa.unify_schemas([file.schema for file in files], promote_options="permissive").remove_metadata()
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            f"Expected files whose columns fit one schema, found others: {error}", hint="Rewrite those that differ."
        ) from error


def encode(arrow: pa.Schema, mixtrain: dict[str, Any], /) -> bytes:
    """The logical schema of these files under this metadata, as records carry it."""
    metadata = Metadata.parse(json.dumps(mixtrain))
    schema = Schema.from_arrow(arrow, metadata=metadata, id=ID if ID in arrow.names else None)
    return encode_columns(schema)


def plain_state(store: Store, /) -> State:
    """What a plain folder holds, as the state of a version -1.

    Raises:
        DatasetNotFoundError: No `mixtrain.json`.
    """
    mixtrain = read_metadata(store)
    files = describe(store, find_files(store)[0])
    shards = {
        file.path: ShardEntry(name=file.path, transaction=names.NOBODY, rows=file.rows, nbytes=file.nbytes)
        for file in files
    }
    return replace(
        State(),
        shards=shards,
        schema=encode(unified(files), mixtrain),
        mixtrain=mixtrain,
        known=frozenset({fingerprint(mixtrain)}),
        rows=sum(file.rows for file in files),
        operation="plain",
    )

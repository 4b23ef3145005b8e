"""A plain folder: `mixtrain.json` and Parquet files, as any tool leaves them; read as it is, adopted to be written."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SchemaMismatchError
from seqlake.protocols import Version
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.spec.unfolded import meant
from seqlake.tables.standalone.state import LoggedFile, encode_columns
from seqlake.versions import folders, names, shard_formats
from seqlake.versions.small_files import PARALLEL, read
from seqlake.versions.state import FileList, TableState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Store

_BEGINNING = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFile:
    """A data file of a plain folder.

    Attributes:
        path: Below the root.
        rows: From its footer.
        nbytes: Its size.
        schema: Its Arrow schema.
        token: Of its bytes.
    """

    path: str
    rows: int
    nbytes: int
    schema: pa.Schema
    token: str = ""


def describe(store: Store, paths: Sequence[str], /) -> list[PlainFile]:
    """The footers of these files, read in parallel.

    Raises:
        CorruptFileError: One is no Parquet file.
    """

    def described(path: str) -> PlainFile:
        blob = store.blob(path)
        rows, schema = shard_formats.rows_and_schema(path, blob)
        return PlainFile(path=path, rows=rows, nbytes=blob.size, schema=schema, token=blob.token)

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


def plain_state(store: Store, /) -> TableState:
    """What a plain folder holds, as a version -1: its data files, and the columns that their folders are named for.

    Raises:
        DatasetNotFoundError: No `mixtrain.json`.
    """
    mixtrain = read_metadata(store)
    files = describe(store, folders.data_files(store))
    types = Metadata.parse(json.dumps(mixtrain)).column_types
    arrow, values = folders.with_folders(unified(files), [file.path for file in files], types)
    schema = pa.ipc.read_schema(pa.py_buffer(encode(arrow, mixtrain)))
    rows = sum(file.rows for file in files)
    return TableState(
        version=Version(id=-1, time=_BEGINNING, operation="plain", rows=rows),
        schema=schema,
        mixtrain=json.dumps(meant(mixtrain, schema.names)),
        files=FileList.of(
            LoggedFile(
                name=file.path,
                rows=file.rows,
                nbytes=file.nbytes,
                constants={name: column[at].as_py() for name, column in values.items()},
                transaction=names.NOBODY,
            )
            for at, file in enumerate(files)
        ),
        partition_by=list(values),
    )

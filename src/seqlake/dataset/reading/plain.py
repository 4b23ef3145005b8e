"""Parquet files that are no Mixtrain dataset, of any engine, read as they are."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.dataset.reading.in_memory import table_of
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError
from seqlake.files import locations, stores
from seqlake.files.appearing import refuse_unfinished
from seqlake.shards.columns import Columns, Constant
from seqlake.shards.files import ParquetShard, innermost, parquet_shard
from seqlake.shards.memory import ArrowShard
from seqlake.shards.parquet.expansion import NARROW, checked_format, scannable
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.scanned import ScannedDataset
from seqlake.spec.column_types import ColumnType
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema, is_list, is_text, plain_type
from seqlake.versions import folders, shard_formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyarrow.dataset import Dataset as ArrowDataset

    from seqlake.protocols import Depth, Shard
    from seqlake.spec.findings import Finding

_THREADS = 4


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlainFiles(ScannedDataset):
    """A `Readable` over Parquet files, or over a table in memory.

    Attributes:
        schema: Types normalized (large and dictionary types become plain ones), with the declared column types.
        paths: Local files that pyarrow may scan in the same order; empty where it may not.
    """

    paths: tuple[str, ...] = ()

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the one value of a column that folders are named for, twice; None where nothing is known."""
        sources = [part.mapping.get(column) if isinstance(part, Columns) else None for part in self.parts]
        return [(source.value, source.value) if isinstance(source, Constant) else None for source in sources]

    def arrow_dataset(self) -> ArrowDataset | None:
        """For pyarrow's scanner; None where files are not local, or take far more memory than they have bytes."""
        narrow = [name for name in self.schema.names if self.schema[name].category in NARROW]
        files = [file.blob for part in self.parts if isinstance(file := innermost(part), ParquetShard)]
        if not self.paths or not scannable(files, narrow):
            return None
        from pyarrow import dataset as arrow

        schema = pa.schema([field for field in self.schema.arrow if not pa.types.is_nested(field.type)])
        return arrow.dataset(list(self.paths), schema=schema, format=checked_format())

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """P601 to P604: what the files' own bytes say, page checksums among them; T516: folders that say otherwise."""
        from seqlake.shards.parquet.checking import check

        for part in self.parts if depth != "metadata" else ():
            file = innermost(part)
            if isinstance(file, ParquetShard):
                yield from (replace(finding, location=self.name_of(part)) for finding in check(file.blob))
        if depth != "metadata":
            yield from folders.contradictions((self.name_of(part), part) for part in self.parts)

    def name_of(self, shard: Shard, /) -> str:
        """What findings call a shard: its path below the root; the name in its key where it is no file there."""
        file = innermost(shard)
        path = file.blob.location.replace("\\", "/") if isinstance(file, ParquetShard) else ""
        inner = path.removeprefix(self.root.replace("\\", "/").rstrip("/") + "/")
        return inner if inner != path else shard.key.rpartition("#")[0] or shard.key


def scan_files(
    location: str,
    *,
    storage: Mapping[str, str] | None = None,
    column_types: Mapping[str, ColumnType | Mapping[str, Any]] | None = None,
) -> PlainFiles:
    """One Parquet file, or all of a folder, as one readable.

    Reads every footer. Folders named `key=value` give columns, as other engines write them.

    Args:
        location: A file or folder, local or URI.
        storage: Options of its store.
        column_types: What columns mean, as `mixtrain.json` would say it.

    Raises:
        DatasetNotFoundError: No Parquet file is there.
        SchemaMismatchError: Two files disagree; names the file and the column.
    """
    root, paths = parquet_paths(location, storage=storage)
    if not paths:
        raise DatasetNotFoundError(f"No Parquet file was found at {location}.", path=location)
    store = stores.open_store(root, storage=storage)
    with ThreadPoolExecutor(_THREADS) as pool:
        footers = list(pool.map(lambda path: read_footer(store.blob(path)), paths))
    shards = [parquet_shard(footer.blob, rows=footer.rows) for footer in footers]
    types = [normalized(footer.schema) for footer in footers]
    for path, held in zip(paths[1:], types[1:], strict=True):
        _agree(types[0], held, first=paths[0], path=path)
    arrow = types[0]
    metadata = declared(column_types)
    arrow, values = folders.with_folders(arrow, paths, metadata.column_types)
    schema = Schema.from_arrow(arrow, metadata=metadata, id=_id_of(arrow))
    parts = tuple(
        Columns(shard, schema, {name: Constant(column[at].as_py()) for name, column in values.items()})
        for at, shard in enumerate(shards)
    )
    local = locations.is_local(root) and not values
    return PlainFiles(
        schema=schema,
        root=root,
        parts=parts,
        paths=tuple(str(locations.local_path(locations.join(root, path))) for path in paths) if local else (),
    )


def scan_table(
    table: object, *, column_types: Mapping[str, ColumnType | Mapping[str, Any]] | None = None
) -> PlainFiles:
    """Rows in memory as a readable: anything with `__arrow_c_stream__`, or a dict of columns."""
    arrow = table_of(table)
    types = normalized(arrow.schema)
    schema = Schema.from_arrow(types, metadata=declared(column_types), id=_id_of(types))
    shard = ArrowShard(arrow.cast(types))
    return PlainFiles(schema=schema, root=locations.absolute(os.curdir), parts=(Columns(shard, schema, {}),))


def parquet_paths(location: str, *, storage: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
    """(root, paths below it): a single file's folder and name, or a folder's Parquet files in reading order.

    Those below `data/`; where there are none, all outside `files/`; none in folders that engines pass over.

    Raises:
        DatasetNotFoundError: They are a lake's.
        InvalidMetadataError: They are of an export that is not finished.
    """
    location = locations.absolute(location)
    local = locations.is_local(location)
    if location.endswith(".parquet") and not (local and locations.local_path(location).is_dir()):
        location = os.path.realpath(location) if local else location  # a link that the user names is the user's own
        root, _, name = location.rpartition("/")
        try:
            stores.open_store(root, storage=storage).blob(name)
        except FileNotFoundError:
            return root, []
        return root, [name]
    store = stores.open_store(location, storage=storage)
    try:
        refuse_unfinished(store, location)
        listed = [path for path, _ in store.list()]
    except FileNotFoundError:
        return location, []
    return location, folders.chosen(listed, root=location, parquet_only=True)


def other_shards(location: str, *, storage: Mapping[str, str] | None = None) -> list[str]:
    """The formats of a folder's shards that are no Parquet, sorted."""
    store = stores.open_store(locations.absolute(location), storage=storage)
    chosen = folders.chosen((path for path, _ in store.list()), root=location)
    return sorted({shard_formats.name_of(path) for path in chosen} - {shard_formats.PARQUET})


def declared(column_types: Mapping[str, ColumnType | Mapping[str, Any]] | None) -> Metadata:
    """Metadata of column types given as objects or as JSON."""
    return Metadata(
        column_types={
            name: kind if isinstance(kind, ColumnType) else ColumnType.from_json(dict(kind))
            for name, kind in (column_types or {}).items()
        }
    )


def normalized(schema: pa.Schema) -> pa.Schema:
    """The same columns in the plain types that all engines share."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def _agree(expected: pa.Schema, actual: pa.Schema, *, first: str, path: str) -> None:
    """Raise unless two files have the same columns, in any order, and the same types."""
    for name in dict.fromkeys([*expected.names, *actual.names]):
        want = expected.field(name).type if name in expected.names else None
        have = actual.field(name).type if name in actual.names else None
        if want is not None and have is not None and _without_sizes(want) == _without_sizes(have):
            continue
        raise SchemaMismatchError(
            f"Column {name!r} is {want or 'missing'} in {first} and {have or 'missing'} in {path}.",
            path=path,
            hint="Files scanned together have the same columns; scan them one by one, or write them anew alike.",
        )


def _without_sizes(kind: pa.DataType) -> pa.DataType:
    """Fixed-size and plain lists hold the same steps."""
    if is_list(kind):
        return pa.list_(pa.field("item", _without_sizes(kind.value_type)))
    return kind


def _id_of(schema: pa.Schema) -> str | None:
    """Rows are sequences where a text column `sequence_id` names them, else samples."""
    index = schema.get_field_index(ID)
    return ID if index >= 0 and is_text(schema.field(index).type) else None

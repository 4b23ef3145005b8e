"""The shards of a version as descriptions: the file as it lies, and the file as the version shows it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.shards.columns import Beside, Columns, Constant, Stored
from seqlake.shards.files import ParquetShard
from seqlake.spec.schema import is_list, is_text
from seqlake.tables.standalone import names
from seqlake.tables.standalone.blobs import PlacedBlob, SealedBlob
from seqlake.tables.standalone.state import physical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from seqlake.protocols import Blob, Shard, Store
    from seqlake.spec.schema import Schema
    from seqlake.tables.standalone.records import Entry, SideEntry


def placed_blob(store: Store, entry: Entry, /, *, version: int) -> PlacedBlob:
    """The bytes of a shard, wherever they are by then."""
    places = (entry.name,) if entry.transaction == names.NOBODY else names.places(entry.name)
    return PlacedBlob(store, entry.name, places=places, nbytes=entry.nbytes, version=version)


def bare_shard(store: Store, entry: Entry, /, *, version: int, index: bytes | None = None) -> ParquetShard:
    """A shard with the columns that its file has; `index` is kept outside the file."""
    blob = placed_blob(store, entry, version=version)
    # An adopted name may occur in many datasets; the transaction that adopted it occurs in one.
    told = f"{entry.transaction} {entry.name} {entry.nbytes}"
    if entry.transaction == names.NOBODY:
        told = f"{blob.location} {blob.token}"
    told = hashlib.sha256(told.encode()).hexdigest()[:16]
    return ParquetShard(blob=blob, rows=entry.rows, nbytes=entry.nbytes, key=f"{entry.name}#{told}", index=index)


def logical_shard(
    store: Store,
    entry: Entry,
    sides: Sequence[SideEntry],
    schema: Schema,
    /,
    *,
    version: int,
    index: bytes | None = None,
) -> Shard:
    """A shard with the columns and types of the version's schema."""
    shard = bare_shard(store, entry, version=version, index=index)
    mapping: dict[str, Stored | Constant | Beside] = {}
    for column in schema.names:
        stored = physical(entry, column)
        if stored is None:
            mapping[column] = Constant(None)
        elif stored != column:
            mapping[column] = Stored(stored)
    for side in sides:
        beside = side_shard(store, side, rows=entry.rows, version=version)
        mapping |= {column: Beside(beside, stored) for column, stored in side.columns.items() if column in schema}
    return Columns(shard, schema, mapping)


def side_shard(store: Store, side: SideEntry, /, *, rows: int, version: int) -> ParquetShard:
    """A side shard by itself."""
    placed = placed_side(store, side, version=version)
    blob: Blob = SealedBlob(placed, side.sha256) if side.sha256 else placed
    return ParquetShard(blob=blob, rows=rows, nbytes=placed.size, key=f"{side.name}#{placed.size}")


def placed_side(store: Store, side: SideEntry, /, *, version: int) -> PlacedBlob:
    """The bytes of a side shard."""
    path = f"{names.SIDE}/{side.name}"
    nbytes = side.nbytes or store.blob(path).size
    return PlacedBlob(store, side.name, places=(path,), nbytes=nbytes, version=version)


def described(entry: Entry, sides: Iterable[SideEntry], /) -> str:
    """One line that changes when the shard's bytes or what it is taken for may have."""
    beside = [[side.name, sorted(side.columns.items())] for side in sides]
    return json.dumps([entry.name, entry.nbytes, entry.rows, entry.mapping, beside], sort_keys=True)


def file_columns(shard: Shard, schema: bytes, /) -> set[str]:
    """Every text in the columns of a shard that may name files: strings, lists of them, structs with them."""
    told = pa.ipc.read_schema(pa.py_buffer(schema))
    reader = shard.open()
    found: set[str] = set()
    try:
        for field in told:
            if field.name != "sequence_id" and _holds_text(field.type):
                for batch in reader.batches([field.name]):
                    found.update(_texts(batch.column(0)))
    finally:
        reader.close()
    return found


def own_texts(shard: Shard, /) -> set[str]:
    """Every text in the columns that the file itself has, whatever a version calls them."""
    reader = shard.open()
    try:
        held: pa.Schema = reader.schema  # type: ignore[attr-defined]  # whatever lies in a table has one
        return file_columns(shard, bytes(held.serialize()))
    finally:
        reader.close()


def _holds_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _holds_text(kind.key_type) or _holds_text(kind.item_type)
    return is_text(kind)


def _texts(array: Any) -> Iterator[str]:
    if pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _texts(array.field(at))
    elif is_list(array.type):
        yield from _texts(array.flatten())
    elif pa.types.is_map(array.type):
        yield from _texts(array.keys)
        yield from _texts(array.items)
    elif pa.types.is_dictionary(array.type):
        yield from _texts(array.dictionary)
    elif _holds_text(array.type):
        yield from (text for text in array.to_pylist() if text is not None)

"""The shards of a version as descriptions: the file as it lies, and the file as the version shows it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from seqlake.shards.columns import Beside, Columns, Constant, Stored
from seqlake.shards.files import ParquetShard
from seqlake.tables.standalone.blobs import PlacedBlob, SealedBlob
from seqlake.tables.standalone.state import physical
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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

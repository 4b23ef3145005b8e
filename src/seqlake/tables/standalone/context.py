"""The shards of a standalone table: where their bytes are, what index files know of them, how a version shows them."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from seqlake.shards.columns import Beside, Columns
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.tables.standalone.blobs import PlacedBlob, SealedBlob
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.state import fingerprint
from seqlake.versions import names, shard_formats
from seqlake.versions.ids import Identity
from seqlake.versions.indexes import KeptPackets, ShardIndex

if TYPE_CHECKING:
    from seqlake.protocols import Blob, Shard, Store
    from seqlake.shards.columns import From
    from seqlake.versions.state import SideEntry, TableFile, TableState


def placed_blob(store: Store, file: TableFile, /, *, version: int) -> PlacedBlob:
    """The bytes of a shard, wherever they are by then."""
    places = (file.name,) if file.transaction == names.NOBODY else names.places(file.name)
    return PlacedBlob(store, file.name, places=places, nbytes=file.nbytes, version=version)


def bare_shard(store: Store, file: TableFile, /, *, version: int, index: bytes | None = None) -> Shard:
    """A shard with the columns that its file has; `index` is kept outside the file."""
    blob = placed_blob(store, file, version=version)
    # An adopted name may occur in many datasets; the transaction that adopted it occurs in one.
    origin = f"{file.transaction} {file.name} {file.nbytes}"
    if file.transaction == names.NOBODY:
        origin = f"{blob.location} {blob.token}"
    key = f"{file.name}#{hashlib.sha256(origin.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    return shard_formats.describe(file.name, blob, rows=file.rows, nbytes=file.nbytes, key=key, index=index)


def side_shard(store: Store, side: SideEntry, /, *, rows: int, version: int) -> Shard:
    """A side shard by itself."""
    placed = placed_side(store, side, version=version)
    blob: Blob = SealedBlob(placed, side.sha256) if side.sha256 else placed
    key = f"{side.name}#{placed.size}"
    return shard_formats.describe(side.name, blob, rows=rows, nbytes=placed.size, key=key)


def placed_side(store: Store, side: SideEntry, /, *, version: int) -> PlacedBlob:
    """The bytes of a side shard."""
    path = f"{names.SIDE}/{side.name}"
    nbytes = side.nbytes or store.blob(path).size
    return PlacedBlob(store, side.name, places=(path,), nbytes=nbytes, version=version)


class LogContext:
    """What is known of a standalone table in this process, as `TableContext` says.

    Args:
        log: The table's log.
    """

    def __init__(self, log: Log, /) -> None:
        self.log = log
        self.store: Store = log.store

    @cached_property
    def index(self) -> ShardIndex:
        """What is known of shards without opening them."""
        return ShardIndex(self.store)

    @cached_property
    def packets(self) -> KeptPackets:
        """Packet indexes of its videos."""
        return KeptPackets(self.store)

    @cached_property
    def ids(self) -> Identity:
        """The ids of all its shards."""
        return Identity(self.index, self.bare, root=self.root)

    def __getstate__(self) -> dict[str, Any]:
        # Indexes are maps of this process, and are found again.
        return {"store": self.store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Log(state["store"]))  # type: ignore[misc]  # the rest is derived

    @property
    def root(self) -> str:
        """Where it lies: an absolute path or a URI."""
        return self.store.root

    def schema(self, state: TableState, /) -> Schema:
        """The columns of a version as they were declared."""
        metadata = Metadata.parse(state.mixtrain)
        return Schema.from_arrow(state.schema, metadata=metadata, id=ID if ID in state.schema.names else None)

    def fingerprint(self, state: TableState, schema: Schema, /) -> str:
        """32 hex digits from shard names, sizes and mappings, schema and metadata."""
        digest = hashlib.sha256(schema.arrow.serialize())
        digest.update(fingerprint(json.loads(state.mixtrain)).encode())
        for file in state.files:
            digest.update(file.identity.encode())
        return digest.hexdigest()[:32]

    def bare(self, file: TableFile, /) -> Shard:
        """A shard with the columns that its file has."""
        return bare_shard(self.store, file, version=self.log.newest().version)

    def logical(
        self,
        file: TableFile,
        schema: Schema,
        /,
        *,
        version: int | str | None = None,
        index: bytes | None = None,
        trusted: bool = False,
    ) -> Shard:
        """A shard with the columns and types of the version's schema; its file is always asked."""
        del trusted
        number = self.log.newest().version if version is None else int(version)
        mapping: dict[str, From] = file.mapped(schema)
        for side in file.beside:
            beside = side_shard(self.store, side, rows=file.rows, version=number)
            mapping |= {column: Beside(beside, stored) for column, stored in side.columns.items() if column in schema}
        return Columns(bare_shard(self.store, file, version=number, index=index), schema, mapping)

"""The shards of a standalone table: where their bytes are, what index files know of them, how a version shows them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from seqlake.errors import DamagedTableError
from seqlake.files.locations import local_path
from seqlake.shards.columns import Beside, Columns
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.tables.standalone.blobs import PlacedBlob, SealedBlob
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.state import fingerprint
from seqlake.versions import derived, names, shard_formats
from seqlake.versions.ids import Identity
from seqlake.versions.indexes import IndexFile, KeptPackets
from seqlake.versions.small_files import on_disk, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.protocols import Blob, Shard, Store
    from seqlake.shards.columns import From
    from seqlake.versions.indexes import IndexRow
    from seqlake.versions.state import FileList, SideEntry, TableFile, TableState


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
    key = f"{file.name}#{hashlib.sha256(origin.encode()).hexdigest()[:16]}"
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
        self.store = log.store
        self.index = ShardIndex(log.store)
        self.packets = KeptPackets(log.store)
        self.ids = Identity(self.index, self.bare, root=log.root)

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

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Keep bytes that can be computed again; a plain folder is left as it is."""
        derived.write_derived(self.store, name, data, inside=self.log.newest().version >= 0)


class ShardIndex:
    """The index files of one table: the newest checkpoint's and those of later transactions, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, IndexFile | None] = {}
        self._of: dict[str, list[IndexFile]] = {}
        self._believed: dict[tuple[str, int, int], IndexFile] = {}

    def find(self, files: Iterable[TableFile], /, *, unsealed: bool = False) -> dict[str, IndexFile]:
        """The index file that knows each shard; shards that none knows, or whose row changed, are left out.

        An index file may be removed at any time. One that a checkpoint merged has gone into it; what is gone
        altogether can be computed again from the shard.

        Args:
            files: The shards.
            unsealed: Whether rows without a checksum will do, as older releases wrote them: for whoever only
                compares, or asks which files to keep.
        """
        wanted = list(files)
        known = self._known(wanted, unsealed=unsealed)
        for turn in range(max((len(file.indexed_in) for file in wanted), default=0)):
            missing = [file for file in wanted if file.name not in known]
            if not missing:
                break
            self._load(sorted({file.indexed_in[turn] for file in missing if turn < len(file.indexed_in)}))
            known |= self._known(missing, unsealed=unsealed)
        return {file.name: known[file.name] for file in wanted if file.name in known}

    def rows(self, files: FileList, /) -> list[IndexRow]:
        """The rows of all shards that an index file knows, in the order of the shards."""
        return [rows.row(name) for name, rows in self.find(files).items()]

    def _known(self, files: Iterable[TableFile], *, unsealed: bool) -> dict[str, IndexFile]:
        by_name = {}
        for file in files:
            size = file.name, file.rows, file.nbytes
            known = self._believed.get(size)
            for rows in () if known is not None else self._of.get(file.name, ()):
                if rows.knows(file.name, rows=file.rows, nbytes=file.nbytes):
                    known = self._believed[size] = rows
                    break
                if unsealed and rows.knows(file.name, rows=file.rows, nbytes=file.nbytes, unsealed=True):
                    known = known or rows
            if known is not None:
                by_name[file.name] = known
        return by_name

    def _load(self, paths: list[str]) -> None:
        unread = [path for path in paths if path not in self._files]
        for path, data in zip(unread, _contents(self._store, unread), strict=True):
            if data is None:
                continue  # Not remembered: it may be written later.
            try:
                file = IndexFile.decode(data, path=path)
            except DamagedTableError:
                self._files[path] = None  # derived: `check` reports it
                continue
            self._files[path] = file
            for name in file:
                self._of.setdefault(name, []).append(file)


def _contents(store: Store, paths: list[str]) -> list[bytes | memoryview | None]:
    """Index files, mapped where they lie on this machine."""
    if not on_disk(store):
        return list(read_many(store, paths))
    import pyarrow as pa

    root = local_path(store.root)
    contents: list[bytes | memoryview | None] = []
    for path in paths:
        try:
            with pa.memory_map(str(root / path)) as source:
                contents.append(memoryview(source.read_buffer()))
        except OSError:
            contents.append(None)
    return contents

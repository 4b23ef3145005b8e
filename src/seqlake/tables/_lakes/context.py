"""The shards of a lake table: where their bytes are, what is known of them, how a version shows them.

The sidecar of a remote shard of our own is believed: a cell of a signal costs one request, and no footer is read. The
name of such a file occurs once, its bytes never change, and the first answer tells its size; what the sidecar knows of
it is what its own index says. On local disks, where nothing is saved by it, the file itself is asked.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.files.credentials import Storage
from seqlake.files.stores import open_store
from seqlake.protocols import Flat
from seqlake.shards.cells import numpy_type
from seqlake.shards.files import ParquetShard
from seqlake.shards.parquet import index as offsets
from seqlake.shards.parquet.flatness import physical
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.rows import Rows
from seqlake.tables._lakes import types
from seqlake.tables._lakes.damage import as_damage
from seqlake.tables._lakes.paths import blob_at
from seqlake.versions import shard_formats
from seqlake.versions.ids import Identity
from seqlake.versions.indexes import KeptPackets
from seqlake.versions.small_files import PARALLEL, on_disk
from seqlake.versions.state import FileList
from seqlake.versions.tags import version_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from seqlake.protocols import Blob, Ints, Shard, Store, Version
    from seqlake.spec.schema import Column, Schema
    from seqlake.tables._lakes.engine import LakeEngine
    from seqlake.tables._lakes.sidecar import Sidecar
    from seqlake.versions.state import TableFile, TableState

_REMEMBERED = 8


class LakeContext:
    """What is known of a lake table in this process, as `TableContext` says: versions, sidecar, ids, packet indexes.

    Args:
        engine: What differs from lake to lake.
    """

    def __init__(self, engine: LakeEngine, /) -> None:
        self.engine = engine
        self.root: str = engine.root
        self.storage: Storage | None = None if engine.storage is None else Storage(engine.storage)
        self.store: Store = open_store(self.root, storage=self.storage, named_by=engine.named_by)
        self.sidecar: Sidecar = engine.sidecar(self.store)
        self.ids: Identity = Identity(self.sidecar, self.bare, root=self.root)
        self.packets: KeptPackets = KeptPackets(self.store)
        self.partition_by: Sequence[str] | None = None  # when the newest version was last read
        self._states: dict[int | str, TableState] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"engine": self.engine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["engine"])  # type: ignore[misc]  # the rest is derived

    def __repr__(self) -> str:
        return f"LakeContext({self.root!r})"

    def state(self, version: Version | int | str | datetime | None = None, /) -> TableState:
        """What a version consists of; every file with its rows and bytes. The newest is always read anew."""
        wanted = version_id(version)
        if isinstance(wanted, int) and wanted in self._states:
            return self._states[wanted]
        with as_damage(self.root):
            state = self._resolved(self.engine.state(wanted))
        while len(self._states) >= _REMEMBERED:
            self._states.pop(next(iter(self._states)))
        self._states[state.version.id] = state
        if wanted is None:
            self.partition_by = state.partition_by
        return state

    def forget(self) -> None:
        """Read every version anew: a vacuum is about to remove some."""
        self._states.clear()

    def _resolved(self, state: TableState) -> TableState:
        """The state with rows and bytes of every file, and the rows of the version: what the lake lacks is read."""
        unknown = [file for file in state.files if file.rows < 0 or file.nbytes < 0]
        if unknown:
            with ThreadPoolExecutor(PARALLEL) as pool:
                asked = dict(zip((file.name for file in unknown), pool.map(self._asked, unknown), strict=True))
            state = replace(state, files=FileList.of(asked.get(file.name, file) for file in state.files))
        rows = sum(file.live for file in state.files)
        return state if state.version.rows == rows else replace(state, version=replace(state.version, rows=rows))

    def _asked(self, file: TableFile) -> TableFile:
        blob = blob_at(self.store, file.name, storage=self.storage)
        return replace(file, rows=shard_formats.rows_and_schema(file.name, blob)[0], nbytes=blob.size)

    @property
    def index(self) -> Sidecar:
        """What is known of shards without opening them."""
        return self.sidecar

    def schema(self, state: TableState, /) -> Schema:
        """What a dataset shows of a version's columns under the property `mixtrain`."""
        return types.as_schema(state.schema, state.mixtrain, path=self.root)

    def fingerprint(self, state: TableState, schema: Schema, /) -> str:
        """32 hex digits from the files, their deletes and mappings, schema and property."""
        digest = hashlib.sha256(schema.arrow.serialize())
        digest.update(types.encode_metadata(schema).encode())
        for file in state.files:
            digest.update(b"\1" + file.identity.encode())
        return digest.hexdigest()[:32]

    def bare(self, file: TableFile, /) -> Shard:
        """A file with its own columns and all its rows."""
        return self.engine.shard(self.store, file, index=None)

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
        """A file without its deleted rows, with the version's columns and types.

        A request is worth more than a look into a file: far away, what the sidecar says of our own files is believed.
        """
        del version
        shard = self.engine.shard(self.store, file, index=index)
        if trusted and isinstance(shard, ParquetShard) and not on_disk(self.store):
            stored = {name: schema[column] for column in schema for name in file.stored_names(column)}
            shard = believed(shard, file, self.sidecar, stored)
        keep = file.kept_rows
        return file.view(shard if keep is None else Rows(shard, keep), schema)


@dataclass(frozen=True, kw_only=True)
class Believed(ParquetShard):
    """A Parquet file that a sidecar knows; in another process it is asked like any other.

    Attributes:
        file: As the lake lists it.
        sidecar: What may know it.
        columns: The version's columns by their names in the file.
    """

    file: TableFile
    sidecar: Sidecar
    columns: Mapping[str, Column]

    def open(self) -> ParquetReader:
        """A reader; the sidecar is asked when a column is first."""
        return BelievedReader(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _bare, (self.blob, self.rows, self.nbytes, self.key, self.index)


def believed(shard: ParquetShard, file: TableFile, sidecar: Sidecar, columns: Mapping[str, Column], /) -> ParquetShard:
    """The shard with a sidecar that is believed."""
    return Believed(
        blob=shard.blob,
        rows=shard.rows,
        nbytes=shard.nbytes,
        key=shard.key,
        index=shard.index,
        file=file,
        sidecar=sidecar,
        columns=columns,
    )


def _bare(blob: Blob, rows: int, nbytes: int, key: str, index: bytes | None) -> ParquetShard:
    return ParquetShard(blob=blob, rows=rows, nbytes=nbytes, key=key, index=index)


class BelievedReader(ParquetReader):
    """One open `Believed`; what the sidecar does not tell is read from the file."""

    def __init__(self, shard: Believed, /) -> None:
        super().__init__(shard.blob, index=shard.index)
        self._shard = shard
        self._told: offsets.OffsetIndex | None = None

    def holds(self, column: str, /) -> bool:
        """Whether the file has a column, as far as the sidecar knows; else its footer says so."""
        return column in self._known_offsets().columns

    def flat(self, column: str, /) -> Flat | None:
        """Where the steps of each row lie."""
        if column not in self._flats:
            flat = self._from_sidecar(column)
            if flat is None:
                return super().flat(column)
            self._flats[column] = flat
        return self._flats[column]

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column, -1 null; None where it is not indexed."""
        lengths = self._known_offsets().lengths(column)
        return super().lengths(column) if lengths is None else lengths

    def _known_offsets(self) -> offsets.OffsetIndex:
        if self._told is None:
            file = self._shard.file
            known = self._shard.sidecar.find([file]).get(file.name)
            data = b"" if known is None else known.offsets(file.name)
            try:
                self._told = offsets.decode(data, nbytes=file.nbytes) if len(data) else offsets.OffsetIndex(columns={})
            except CorruptFileError:
                self._told = offsets.OffsetIndex(columns={})  # derived: the file is asked
        return self._told

    def _from_sidecar(self, name: str) -> Flat | None:
        entry, column = self._known_offsets().columns.get(name), self._shard.columns.get(name)
        if entry is None or column is None or column.value_type is None or entry.steps.size != self._shard.rows:
            return None
        dtype = numpy_type(column.value_type)
        if not entry.flat or dtype is None or physical(dtype)[1] != np.dtype(entry.stored):
            return None
        if (column.nested and column.dim not in {None, entry.dim}) or (not column.nested and entry.dim != 1):
            return None
        start, steps = entry.starts(raw=column.raw), entry.steps.astype(np.int64)
        stride = entry.dim * np.dtype(entry.stored).itemsize
        held = steps > 0
        if held.any() and (start[held].min() < 0 or (start[held] + steps[held] * stride).max() > self._shard.nbytes):
            return None
        return Flat(
            blob=self.blob,
            start=start,
            steps=steps,
            stride=stride,
            stored=np.dtype(entry.stored),
            dtype=dtype.newbyteorder("="),
            shape=(entry.dim,) if column.nested else (),
        )

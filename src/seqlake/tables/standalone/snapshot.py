"""A version of a table, pinned: rows in a fixed order that later commits do not change."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.protocols import Version
from seqlake.shards.parquet import index as offsets
from seqlake.shards.reading import lengths_of
from seqlake.tables.standalone import checking
from seqlake.tables.standalone.identity import Identity
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.lookup import ShardIndex
from seqlake.tables.standalone.scanning import arrow_dataset
from seqlake.tables.standalone.shards import described, logical_shard
from seqlake.tables.standalone.state import decode_schema, fingerprint, physical
from seqlake.versions import derived, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyarrow.dataset import Dataset

    from seqlake.protocols import Copied, Depth, Ints, Shard, Store
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Schema
    from seqlake.tables.standalone.records import Entry
    from seqlake.tables.standalone.state import State
    from seqlake.versions.indexes import IndexFile


class StandaloneSnapshot:
    """One version of a standalone table, or a plain folder as it is: `Readable`, `Pushdown` and `Checked`.

    Args:
        store: The table's root.
        state: What the version consists of.
        plain: Whether it is a plain folder's, which has no log.
        identity: What the open table knows of its shards, so that it is not read twice.

    Example:
        >>> snapshot = table.snapshot()
        >>> sum(shard.rows for shard in snapshot.shards()) == snapshot.version.rows
        True
    """

    def __init__(self, store: Store, state: State, /, *, plain: bool = False, identity: Identity | None = None) -> None:
        self.store = store
        self.state = state
        self.plain = plain
        self._known = identity

    def __repr__(self) -> str:
        named = "plain folder" if self.plain else f"version {self.state.version}"
        return f"<Snapshot of {self.root}: {named}, {len(self.state.shards)} shards, {self.state.rows} rows>"

    def __getstate__(self) -> dict[str, Any]:
        # Indexes are maps of this process, and are found again.
        return {"store": self.store, "state": self.state, "plain": self.plain, "_known": None}

    @property
    def root(self) -> str:
        """What relative file references resolve against."""
        return self.store.root

    @property
    def version(self) -> Version:
        """Which version this is; a plain folder has version -1."""
        state = self.state
        return Version(id=state.version, time=state.time, operation=state.operation, rows=state.rows)

    @cached_property
    def schema(self) -> Schema:
        """Arrow and column types of the version."""
        return decode_schema(self.state.schema, self.state.mixtrain)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits from shard names, sizes and mappings, schema and metadata; not from where the table lies."""
        digest = hashlib.sha256(self.schema.arrow.serialize())
        digest.update(fingerprint(self.state.mixtrain).encode())
        for entry in self.state.shards.values():
            digest.update(described(entry, self.state.sides.get(entry.name, ())).encode())
        return digest.hexdigest()[:32]

    def shards(self) -> Sequence[Shard]:
        """The shards in order of addition; opens none."""
        return self._shards

    def lengths(self, column: str, /) -> Ints:
        """[all rows] T of a temporal column in shard order, -1 where null.

        From the index files; a shard that none knows is asked itself.
        """
        if column not in self.schema:
            raise KeyError(f"No column is called {column!r}; known are {', '.join(self.schema.names)}.")
        known = self._identity.index.find(self.state)
        parts = [
            self._lengths(shard, entry, column, known.get(entry.name))
            for shard, entry in zip(self._shards, self.state.shards.values(), strict=True)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def find_ids(self, ids: Sequence[str], /) -> Ints:
        """[ids] row number of each sequence id, -1 where there is none.

        A binary search among the id hashes, then an exact comparison.
        """
        found = self._identity.find(self.state, list(ids))
        number, row = found >> 32, found & 0xFFFFFFFF
        return np.where(found < 0, -1, self._starts[np.maximum(number, 0)] + row)

    def kept_packets(self, reference: str, /) -> Mapping[int, bytes]:
        """Video stream -> packet index, made when a copied-in file was committed; empty for other references."""
        return {} if self.plain else self._identity.packets.find(reference)

    def copied(self, key: str, /) -> Mapping[str, Copied]:
        """The copied-in files that the rows of a shard name, by path, as they were when they were committed."""
        name = key.rpartition("#")[0]
        entry = self.state.shards.get(name)
        if self.plain or entry is None:
            return {}
        known = self._identity.index.find(self.state, [entry], unsealed=True)  # only compared with
        return {file.path: file for one in known.values() for file in one.files(name)}

    def arrow_dataset(self) -> Dataset | None:
        """The shards as a pyarrow dataset, for an engine to scan and prune itself.

        None where the files alone do not say what the version says: mapped or side columns, raw cells.
        """
        return arrow_dataset(self.store, self.state, self.schema)

    def read_derived(self, name: str, /) -> bytes | None:
        """What the table keeps under this name, for selections, which know only the version they select from."""
        return derived.read_derived(self.store, name)

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Keep bytes that can be computed again, as the table does."""
        derived.write_derived(self.store, name, data, inside=Log(self.store).newest().version >= 0)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the table can know is wrong: strangers, edited metadata, missing, changed or torn shards."""
        return checking.check(self, depth)

    @cached_property
    def _shards(self) -> list[Shard]:
        state, schema, beside = self.state, self.schema, self._foreign_indexes()
        return [
            logical_shard(
                self.store, entry, state.sides.get(entry.name, ()), schema, version=state.version,
                index=beside.get(entry.name),
            )
            for entry in state.shards.values()
        ]  # fmt: skip

    def _foreign_indexes(self) -> dict[str, bytes]:
        """Offset indexes of adopted shards, whose files carry none of their own."""
        adopted = [] if self.plain else [e for e in self.state.shards.values() if names.owner(e.name) is None]
        if not adopted:
            return {}
        known = self._identity.index.find(self.state, adopted)
        return {name: bytes(data) for name, file in known.items() if (data := file.offsets(name))}

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *(entry.rows for entry in self.state.shards.values())], dtype=np.int64)

    @cached_property
    def _identity(self) -> Identity:
        return self._known or Identity(Log(self.store), ShardIndex(self.store))

    def _lengths(self, shard: Shard, entry: Entry, column: str, file: IndexFile | None) -> Ints:
        stored = physical(entry, column)
        if stored is None:
            return np.full(entry.rows, -1, np.int64)
        if file is not None and (data := file.offsets(entry.name)):
            found = offsets.lengths(data, stored, nbytes=entry.nbytes)
            if found is not None and len(found) == entry.rows:
                return found
        reader = shard.open()
        try:
            return lengths_of(reader, column)
        finally:
            reader.close()

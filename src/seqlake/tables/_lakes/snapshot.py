"""A version of a lake table, pinned: rows in a fixed order that later commits do not change."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.shards.parquet import index as offsets
from seqlake.shards.reading import lengths_of
from seqlake.tables._lakes import checking, paths, sidecar, types
from seqlake.tables._lakes.shards import kept_rows, logical_shard
from seqlake.versions import derived
from seqlake.versions.small_files import on_disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Copied, Depth, Ints, Shard, Version
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.engine import LakeFile, LakeState
    from seqlake.tables._lakes.shelf import Shelf
    from seqlake.versions.indexes import IndexFile


class LakeSnapshot:
    """One version of a lake table: `Readable` and `Checked`; picklable.

    Args:
        shelf: Where the table lies, and what is known of its shards.
        state: What the version consists of; every file with its rows and bytes.

    Example:
        >>> snapshot = table.snapshot()
        >>> sum(shard.rows for shard in snapshot.shards()) == snapshot.version.rows
        True
    """

    def __init__(self, shelf: Shelf, state: LakeState, /) -> None:
        self.shelf = shelf
        self.state = state

    def __repr__(self) -> str:
        state = self.state
        return f"<Snapshot of {self.root}: version {state.version.id}, {len(state.files)} shards>"

    def __getstate__(self) -> dict[str, Any]:
        return {"shelf": self.shelf, "state": self.state}

    @property
    def root(self) -> str:
        """What relative file references resolve against."""
        return self.shelf.root

    @property
    def version(self) -> Version:
        """Which version this is."""
        return self.state.version

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns that the lake partitions by."""
        return self.state.partition_by

    @cached_property
    def schema(self) -> Schema:
        """Arrow and column types of the version."""
        return types.as_schema(self.state.schema, self.state.mixtrain, path=self.root)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits from the files, their deletes and mappings, schema and property; not from where they lie."""
        digest = hashlib.sha256(self.schema.arrow.serialize())
        digest.update(types.encode_metadata(self.schema).encode())
        for file in self.state.files:
            digest.update(b"\1" + file.told.encode())
        return digest.hexdigest()[:32]

    def shards(self) -> Sequence[Shard]:
        """The shards in the lake's order; opens none."""
        return self._shards

    def lengths(self, column: str, /) -> Ints:
        """[all rows] T of a temporal column in shard order, -1 where null; a shard that no sidecar knows is asked."""
        if column not in self.schema:
            raise KeyError(f"No column is called {column!r}; known are {', '.join(self.schema.names)}.")
        parts = [self._lengths(shard, file, column) for shard, file in zip(self._shards, self.state.files, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def find_ids(self, ids: Sequence[str], /) -> Ints:
        """[ids] row number of each sequence id, -1 where there is none."""
        files = self.state.files
        found = self.shelf.ids.find(files, list(ids))
        number, row = found >> 32, found & 0xFFFFFFFF
        for one in np.unique(number[found >= 0]).tolist():
            keep = kept_rows(files[one])
            if keep is not None:
                mine = (number == one) & (found >= 0)
                row[mine] = np.searchsorted(keep, row[mine])
        return np.where(found < 0, -1, self._starts[np.maximum(number, 0)] + row)

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the least and the most that a column has in each, as partition or by the lake's statistics.

        (None, None) where every cell is null; None where nothing is known.
        """
        return [_bounds(file, column) for file in self.state.files]

    def kept_packets(self, reference: str, /) -> Mapping[int, bytes]:
        """Video stream -> packet index, made when a copied-in file was committed; empty for other references."""
        return self.shelf.packets.find(reference)

    def copied(self, key: str, /) -> Mapping[str, Copied]:
        """The copied-in files that the rows of a shard name, by path, as they were when they were committed."""
        path = key.rpartition("#")[0]
        file = next((one for one in self.state.files if one.path == path), None)
        return {} if file is None else sidecar.copied_files(self.shelf.sidecar.find([file]).get(path), path)

    def read_derived(self, name: str, /) -> bytes | None:
        """What the table keeps under this name, for selections, which know only the version they select from."""
        return derived.read_derived(self.shelf.store, name)

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Keep bytes that can be computed again, as the table does."""
        derived.write_derived(self.shelf.store, name, data)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the table can know is wrong: missing, changed or torn shards, files that are gone."""
        return checking.check(self, depth)

    @cached_property
    def _shards(self) -> list[Shard]:
        shelf, schema = self.shelf, self.schema
        own = [paths.owner(file.path) is not None for file in self.state.files]
        others = [file for file, mine in zip(self.state.files, own, strict=True) if not mine]
        foreign = shelf.sidecar.find(others) if others else {}
        beside = {path: bytes(data) for path, known in foreign.items() if (data := known.offsets(path))}
        # A request is worth more than a look into a file: what the sidecar says of our own is believed there.
        believed = None if on_disk(shelf.store) else shelf.sidecar
        return [
            logical_shard(
                shelf.store,
                file,
                schema,
                storage=shelf.storage,
                index=beside.get(file.path),
                sidecar=believed if mine else None,
            )
            for file, mine in zip(self.state.files, own, strict=True)
        ]

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *(file.live for file in self.state.files)], dtype=np.int64)

    @cached_property
    def _known(self) -> dict[str, IndexFile]:
        return self.shelf.sidecar.find(self.state.files)  # which asks again, each time, for what is not there

    def _lengths(self, shard: Shard, file: LakeFile, column: str) -> Ints:
        known = self._known.get(file.path)
        data = b"" if known is None else known.offsets(file.path)
        for stored in file.stored_names(column) if data else ():
            found = offsets.lengths(data, stored, nbytes=file.nbytes)
            if found is not None and len(found) == file.rows:
                keep = kept_rows(file)
                return found if keep is None else found[keep]
        reader = shard.open()
        try:
            return lengths_of(reader, column)
        finally:
            reader.close()


def _bounds(file: LakeFile, column: str) -> tuple[object, object] | None:
    if column in file.constants:
        return file.constants[column], file.constants[column]
    low, high, _ = file.statistics.get(column, (None, None, 0))
    return None if low is None or high is None else (low, high)

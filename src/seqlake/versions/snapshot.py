"""A version of a table, pinned: rows in a fixed order that later commits do not change."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.protocols import Copied
from seqlake.shards.parquet import index as offsets
from seqlake.shards.reading import lengths_of
from seqlake.versions import names
from seqlake.versions.small_files import read_derived, write_derived

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints, Shard, Version
    from seqlake.spec.schema import Schema
    from seqlake.versions.context import TableContext
    from seqlake.versions.indexes import IndexFile
    from seqlake.versions.state import TableFile, TableState

_COPY = np.dtype([("name", np.int64), ("size", np.int64), ("sha256", "V32")])


class TableSnapshot:
    """One version of a table, whoever keeps its log: `Readable`; picklable.

    What only one kind of table can do stands in a class of its own.

    Args:
        context: Where the table lies, and what is known of its shards.
        state: What the version consists of; every shard with its rows and bytes.

    Example:
        >>> snapshot = table.snapshot()
        >>> sum(shard.rows for shard in snapshot.shards()) == snapshot.version.rows
        True
    """

    def __init__(self, context: TableContext, state: TableState, /) -> None:
        self.context = context
        self.state = state

    def __repr__(self) -> str:
        version = self.state.version
        return f"<Snapshot of {self.root}: version {version.id}, {len(self.state.files)} shards, {version.rows} rows>"

    def __getstate__(self) -> dict[str, Any]:
        return {"context": self.context, "state": self.state}

    @property
    def root(self) -> str:
        """What relative file references resolve against."""
        return self.context.root

    @property
    def version(self) -> Version:
        """Which version this is; a plain folder has version -1."""
        return self.state.version

    @cached_property
    def schema(self) -> Schema:
        """Arrow and column types of the version."""
        return self.context.schema(self.state)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits from the shards, what they are taken for, schema and metadata; not from where they lie."""
        return self.context.fingerprint(self.state, self.schema)

    def shards(self) -> Sequence[Shard]:
        """The shards in the version's order; opens none."""
        return self._shards

    def lengths(self, column: str, /) -> Ints:
        """[all rows] T of a temporal column in shard order, -1 where null.

        From the index files; a shard that none knows is asked itself.
        """
        return self.lengths_of(range(len(self._shards)), column)

    def lengths_of(self, shards: Sequence[int], column: str, /) -> Ints:
        """[rows of these shards] T of a temporal column, -1 where null; no other shard is looked at."""
        self.schema[column]
        parts = [self._lengths(self._shards[number], self.state.files[number], column) for number in shards]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def find_ids(self, ids: Sequence[str], /) -> Ints:
        """[ids] row number of each sequence id, -1 where there is none.

        A binary search among the id hashes, then an exact comparison.
        """
        files = self.state.files
        places = self.context.ids.find(files, list(ids))
        number, row = places >> 32, places & 0xFFFFFFFF
        for one in np.unique(number[places >= 0]).tolist():
            keep = files[one].kept_rows
            if keep is not None:
                inside = (number == one) & (places >= 0)
                row[inside] = np.searchsorted(keep, row[inside])
        return np.where(places < 0, -1, self._starts[np.maximum(number, 0)] + row)

    def kept_packets(self, reference: str, /) -> Mapping[int, bytes]:
        """Video stream -> packet index, made when a copied-in file was committed; empty for other references."""
        return self.context.packets.find(reference)

    def copied_file(self, reference: str, /) -> Blob | None:
        """A file that was copied in, out of the store that the table has; None for any other reference.

        Raises:
            FileNotFoundError: It is not there.
        """
        return None if names.copied_owner(reference) is None else self.context.store.blob(reference)

    def copied(self, key: str, /) -> Mapping[str, Copied]:
        """The copied-in files that the rows of a shard name, by path, as they were when they were committed."""
        name = key.rpartition("#")[0]
        file = self.state.files.get(name)
        known = {} if file is None else self.context.index.find([file], unsealed=True)  # only compared with
        return {copied.path: copied for rows in known.values() for copied in rows.files(name)}

    def copied_as(self, reference: str, /) -> Copied | None:
        """What was committed of a copied-in file that the version names; None where no digest of it is known."""
        if names.copied_owner(reference) is None:
            return None
        copies, name = self._copies, hash(reference)
        at = int(np.searchsorted(copies["name"], name))
        if at == copies.size or copies["name"][at] != name:
            return None
        return Copied(path=reference, size=int(copies["size"][at]), sha256=copies["sha256"][at].tobytes().hex())

    @cached_property
    def _copies(self) -> NDArray[Any]:
        """What is known of all copied-in files by the hashes of their names, ascending: 48 bytes a file."""
        sealed = self.context.index.find(self.state.files)  # a row that rotted would call a whole file damaged
        parts = [np.empty(0, _COPY)]
        for file in self.state.files:
            copies = sealed[file.name].files(file.name) if file.name in sealed else ()
            known = [(hash(one.path), one.size, bytes.fromhex(one.sha256)) for one in copies if one.sha256]
            parts.append(np.array(known, _COPY))
        return np.sort(np.concatenate(parts), order="name")

    def read_derived(self, name: str, /) -> bytes | None:
        """What the table keeps under this name, for selections, which know only the version they select from."""
        return read_derived(self.context.store, name)

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Keep bytes that can be computed again, as the table does; a plain folder stays as it is."""
        write_derived(self.context.store, name, data, inside=self.version.id != -1)

    @cached_property
    def _shards(self) -> list[Shard]:
        context, schema, version = self.context, self.schema, self.state.version.id
        others = [file for file in self.state.files if file.owner is None]  # their files carry no offsets of ours
        known = context.index.find(others) if others else {}
        beside = {name: bytes(data) for name, rows in known.items() if (data := rows.offsets(name))}
        return [
            context.logical(
                file, schema, version=version, index=beside.get(file.name), trusted=file.owner is not None
            )
            for file in self.state.files
        ]  # fmt: skip

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *(file.live for file in self.state.files)], dtype=np.int64)

    @cached_property
    def _known(self) -> dict[str, IndexFile]:
        return self.context.index.find(self.state.files)  # which asks again, each time, for what is not there

    def _lengths(self, shard: Shard, file: TableFile, column: str) -> Ints:
        if column in file.absent:
            return np.full(file.live, -1, np.int64)
        rows = self._known.get(file.name)
        data = b"" if rows is None else rows.offsets(file.name)
        for stored in file.stored_names(column) if data else ():
            lengths = offsets.lengths(data, stored, nbytes=file.nbytes)
            if lengths is not None and len(lengths) == file.rows:
                keep = file.kept_rows
                return lengths if keep is None else lengths[keep]
        reader = shard.open()
        try:
            return lengths_of(reader, column)
        finally:
            reader.close()

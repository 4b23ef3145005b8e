"""No id twice: new ids are searched among the sorted hashes of all shards, equal hashes compared exactly."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.protocols import Copied
from seqlake.shards.ids import pack, unpack
from seqlake.tables.standalone.lookup import load_ids
from seqlake.tables.standalone.shards import bare_shard
from seqlake.tables.standalone.state import columns_of, physical
from seqlake.versions import names
from seqlake.versions.ids import IdRuns, refuse_known, refuse_repeated
from seqlake.versions.indexes import KeptPackets
from seqlake.versions.references import file_columns, own_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.tables.standalone.log import Log
    from seqlake.tables.standalone.lookup import ShardIndex
    from seqlake.tables.standalone.records import Entry
    from seqlake.tables.standalone.state import State

ID = "sequence_id"
_REMEMBERED = 64


class Identity:
    """The ids of one table, taken in once and kept while it is open."""

    def __init__(self, log: Log, index: ShardIndex) -> None:
        self._log = log
        self.index = index
        self.packets = KeptPackets(log.store)
        self._runs = IdRuns()
        self._lock = RLock()  # threads may share a table
        self._texts: dict[str, list[str | None]] = {}

    def check(
        self, state: State, parent: State, /, *, added: Sequence[tuple[Entry, bytes]], removed: Sequence[str]
    ) -> None:
        """Refuse ids that the newest state, without the shards that leave, has already.

        Args:
            state: The newest version.
            parent: The version the change was made on.
            added: The new shards and their packed id hashes.
            removed: Shards that leave with this commit.

        Raises:
            DuplicateSequenceError: An id stands twice among the new ones, or was there at the parent.
            CommitConflictError: An id that a rival added since.
        """
        if ID in columns_of(state.schema):
            with self._lock:
                self._check(state, parent, added, removed)

    def _check(self, state: State, parent: State, added: Sequence[tuple[Entry, bytes]], removed: Sequence[str]) -> None:
        owners, rows, hashes = _joined(added)
        self._once(owners, rows, hashes)
        self.load(parent)
        self.load(state)
        live = state.shards.keys() - set(removed)
        there: set[str] = set()
        at_parent: set[str] = set()
        for at, name, row in self._runs.search(hashes):
            shard = state.shards.get(name) or parent.shards.get(name)
            if shard is None:
                continue
            text = self._text(owners[at], rows[at])
            if text == self._text(shard, row):
                there |= {text} if name in live else set()
                at_parent |= {text} if name in parent.shards else set()
        refuse_known(there, at_parent, root=self._log.root)

    def load(self, state: State, /) -> None:
        """Take in the ids of all shards of a version."""
        with self._lock:
            load_ids(self._runs, self.index, state, rebuild=lambda entry: pack(self._column(entry)))

    def find(self, state: State, ids: Sequence[str], /) -> Ints:
        """[ids] (shard number * 2**32 + row) of each id in a version, -1 where it has none."""
        self.load(state)
        numbers = {name: number for number, name in enumerate(state.shards)}
        found = np.full(len(ids), -1, np.int64)
        hashes, where = unpack(pack(pa.array(ids, pa.string())))
        with self._lock:
            hits = list(self._runs.search(np.asarray(hashes, np.uint64)))
        for at, shard, row in hits:
            position = int(where[at])
            if shard in numbers and self._text(state.shards[shard], row) == ids[position]:
                found[position] = numbers[shard] << 32 | row
        return found

    def carried_files(
        self, parent: State, removed: Sequence[str], added: Iterable[Entry], /, *, schema: bytes
    ) -> dict[str, list[Copied]]:
        """New shard -> the copied-in files of the shards that leave which its rows still name.

        Without this a vacuum would take the files of rows that were only rewritten.
        """
        leaving = [parent.shards[name] for name in removed if name in parent.shards]
        files = self._files_of(parent, leaving)
        if not files:
            return {}
        carried: dict[str, list[Copied]] = {}
        for entry in added:
            texts = file_columns(bare_shard(self._log.store, entry, version=parent.version), schema)
            carried[entry.name] = [files[text] for text in sorted(texts & files.keys())]
        return carried

    def _files_of(self, parent: State, leaving: Sequence[Entry]) -> dict[str, Copied]:
        """The copied-in files that these shards name: from the index, or read from the shards where it is no help."""
        known = self.index.find(parent, leaving, unsealed=True)
        files = {file.path: file for name, index in known.items() for file in index.files(name)}
        sound = self.index.find(parent, leaving)
        for entry in leaving:
            if entry.name not in sound:
                for text in own_texts(bare_shard(self._log.store, entry, version=parent.version)):
                    if names.copied_owner(text) is not None:
                        files |= self._seen(text, files.get(text))
        return files

    def _seen(self, path: str, told: Copied | None) -> dict[str, Copied]:
        """A copied-in file as it lies there; nothing where it is gone. What was told of it holds if its size is so."""
        try:
            size = self._log.store.blob(path).size
        except OSError:
            return {}
        return {path: told if told is not None and told.size == size else Copied(path=path, size=size, sha256="")}

    def check_new(self, added: Sequence[tuple[Entry, bytes]], /) -> None:
        """Refuse ids that stand twice among new shards.

        Raises:
            DuplicateSequenceError: Names them.
        """
        self._once(*_joined(added))

    def _once(self, owners: list[Entry], rows: list[int], hashes: NDArray[np.uint64]) -> None:
        refuse_repeated(hashes, lambda at: self._text(owners[at], rows[at]), root=self._log.root)

    def _text(self, shard: Entry, row: int) -> str:
        """One id, exactly; the ids of a shard are read once."""
        if shard.name not in self._texts:
            if len(self._texts) >= _REMEMBERED:
                self._texts.clear()
            self._texts[shard.name] = self._column(shard).to_pylist()
        return str(self._texts[shard.name][row])

    def _column(self, entry: Entry) -> pa.Array:
        shard = bare_shard(self._log.store, entry, version=self._log.newest().version)
        reader = shard.open()
        try:
            batches = [batch.column(0).cast(pa.string()) for batch in reader.batches([physical(entry, ID) or ID])]
        finally:
            reader.close()
        return pa.chunked_array(batches, pa.string()).combine_chunks() if batches else pa.array([], pa.string())


def _joined(added: Sequence[tuple[Entry, bytes]]) -> tuple[list[Entry], list[int], NDArray[np.uint64]]:
    owners: list[Entry] = []
    rows: list[int] = []
    hashes = [np.zeros(0, np.uint64)]
    for entry, packed in added:
        found, where = unpack(packed)
        owners += [entry] * len(found)
        rows += np.asarray(where, np.int64).tolist()
        hashes.append(np.asarray(found, np.uint64))
    return owners, rows, np.concatenate(hashes)

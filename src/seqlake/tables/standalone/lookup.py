"""What a table knows of its shards without opening them: index files found, read once, and searched by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import DamagedTableError
from seqlake.files.locations import local_path
from seqlake.shards.ids import unpack
from seqlake.tables.standalone import names
from seqlake.tables.standalone.indexes import IndexFile, IndexRow
from seqlake.tables.standalone.log import on_disk, read_many, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Store
    from seqlake.tables.standalone.records import Entry
    from seqlake.tables.standalone.state import State

_MANY_RUNS = 64


class ShardIndex:
    """The index files of one table: the newest checkpoint's and those of later transactions, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, IndexFile | None] = {}
        self._of: dict[str, IndexFile] = {}

    def find(self, state: State, /, entries: Iterable[Entry] | None = None) -> dict[str, IndexFile]:
        """The index file that knows each shard; shards that no file knows are left out.

        An index file may be removed at any time. One that a checkpoint merged has gone into it; what is gone
        altogether can be computed again from the shard.
        """
        wanted = list(state.shards.values() if entries is None else entries)
        missing = [entry for entry in wanted if entry.name not in self._of]
        if missing and state.index:
            self._load([f"{names.INDEX}/{state.index}"])
            missing = [entry for entry in missing if entry.name not in self._of]
        if missing:
            self._load(sorted({names.index(entry.transaction) for entry in missing}))
        return {entry.name: self._of[entry.name] for entry in wanted if entry.name in self._of}

    def rows(self, state: State, /) -> list[IndexRow]:
        """The rows of all shards of a version that an index file knows, in the order of the shards."""
        return [file.row(name) for name, file in self.find(state).items()]

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
                self._of.setdefault(name, file)


def _contents(store: Store, paths: list[str]) -> list[bytes | memoryview | None]:
    """Index files, mapped where they lie on this machine."""
    if not on_disk(store):
        return list(read_many(store, paths))
    import pyarrow as pa

    root = local_path(root_of(store))
    found: list[bytes | memoryview | None] = []
    for path in paths:
        try:
            with pa.memory_map(str(root / path)) as source:
                found.append(memoryview(source.read_buffer()))
        except OSError:
            found.append(None)
    return found


class IdRuns:
    """Sorted id hashes of many shards: a search costs one binary search a run, and runs are merged when many."""

    def __init__(self) -> None:
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.int64], Ints]] = []
        self._shards: list[str] = []
        self._known: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, packed: Iterable[tuple[str, bytes | memoryview]], /) -> None:
        """Take in the packed ids of shards, as (name, bytes); many at once become one run."""
        hashes, owners, rows = [], [], []
        for name, data in packed:
            if name in self._known:
                continue
            found, where = unpack(data)
            hashes.append(np.asarray(found, np.uint64))
            owners.append(np.full(len(found), len(self._shards), np.int64))
            rows.append(np.asarray(where, np.int64))
            self._shards.append(name)
            self._known.add(name)
        if hashes:
            self._runs.append(_sorted(hashes, owners, rows))
        if len(self._runs) > _MANY_RUNS:
            first, second, third = zip(*self._runs, strict=True)
            self._runs = [_sorted(list(first), list(second), list(third))]

    def search(self, hashes: NDArray[np.uint64], /) -> Iterator[tuple[int, str, int]]:
        """(position in `hashes`, shard, row) of every equal hash; whether the ids are equal is the caller's part."""
        for run, owners, rows in self._runs:
            start = np.searchsorted(run, hashes, side="left")
            stop = np.searchsorted(run, hashes, side="right")
            for position in np.flatnonzero(stop > start):
                for at in range(int(start[position]), int(stop[position])):
                    yield int(position), self._shards[int(owners[at])], int(rows[at])


def _sorted(
    hashes: list[NDArray[np.uint64]], owners: list[NDArray[np.int64]], rows: list[Ints]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], Ints]:
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable")
    return joined[order], np.concatenate(owners)[order], np.concatenate(rows)[order]


def load_ids(runs: IdRuns, index: ShardIndex, state: State, /, *, rebuild: Callable[[Entry], bytes]) -> None:
    """Take in the ids of all shards of a version; `rebuild` reads those that no index file knows."""
    absent = [entry for entry in state.shards.values() if entry.name not in runs]
    found = index.find(state, absent)
    runs.add(
        (entry.name, found[entry.name].ids(entry.name) if entry.name in found else rebuild(entry)) for entry in absent
    )

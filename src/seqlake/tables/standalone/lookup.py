"""What a table knows of its shards without opening them: index files found, read once, and searched by id."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.files.locations import local_path
from seqlake.shards.ids import unpack
from seqlake.tables.standalone import names
from seqlake.tables.standalone.indexes import IndexFile, IndexRow, MediaFile
from seqlake.tables.standalone.log import on_disk, read, read_many, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints, Store
    from seqlake.tables.standalone.records import Entry
    from seqlake.tables.standalone.state import State

_MANY_RUNS = 64
_MEDIA_FILES, _MEDIA_BYTES = 1024, 256 << 20  # kept at hand; bytes count where files cannot be mapped


class ShardIndex:
    """The index files of one table: the newest checkpoint's and those of later transactions, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, IndexFile | None] = {}
        self._of: dict[str, list[IndexFile]] = {}
        self._believed: dict[tuple[str, int, int], IndexFile] = {}

    def find(
        self, state: State, /, entries: Iterable[Entry] | None = None, *, unsealed: bool = False
    ) -> dict[str, IndexFile]:
        """The index file that knows each shard; shards that none knows, or whose row changed, are left out.

        An index file may be removed at any time. One that a checkpoint merged has gone into it; what is gone
        altogether can be computed again from the shard.

        Args:
            state: The version.
            entries: The shards; all of the version by default.
            unsealed: Whether rows without a checksum will do, as older releases wrote them: for whoever only
                compares, or asks which files to keep.
        """
        wanted = list(state.shards.values() if entries is None else entries)
        found = self._known(wanted, unsealed=unsealed)
        missing = [entry for entry in wanted if entry.name not in found]
        if missing and state.index:
            self._load([f"{names.INDEX}/{state.index}"])
            found |= self._known(missing, unsealed=unsealed)
            missing = [entry for entry in missing if entry.name not in found]
        if missing:
            self._load(sorted({names.index(entry.transaction) for entry in missing}))
            found |= self._known(missing, unsealed=unsealed)
        return {entry.name: found[entry.name] for entry in wanted if entry.name in found}

    def rows(self, state: State, /) -> list[IndexRow]:
        """The rows of all shards of a version that an index file knows, in the order of the shards."""
        return [file.row(name) for name, file in self.find(state).items()]

    def _known(self, entries: Iterable[Entry], *, unsealed: bool) -> dict[str, IndexFile]:
        found = {}
        for entry in entries:
            told = entry.name, entry.rows, entry.nbytes
            known = self._believed.get(told)
            for file in () if known is not None else self._of.get(entry.name, ()):
                if file.knows(entry.name, rows=entry.rows, nbytes=entry.nbytes):
                    known = self._believed[told] = file
                    break
                if unsealed and file.knows(entry.name, rows=entry.rows, nbytes=entry.nbytes, unsealed=True):
                    known = known or file
            if known is not None:
                found[entry.name] = known
        return found

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

    root = local_path(root_of(store))
    found: list[bytes | memoryview | None] = []
    for path in paths:
        try:
            with pa.memory_map(str(root / path)) as source:
                found.append(memoryview(source.read_buffer()))
        except OSError:
            found.append(None)
    return found


class KeptPackets:
    """The packet indexes that a table keeps of its videos, found by the transaction in the name of each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def find(self, reference: str, /) -> dict[int, bytes]:
        """Video stream -> packet index of a copied-in file; empty where none is kept."""
        owner = names.copied_owner(reference) if names.is_reference(reference) else None
        if owner is None:
            return {}
        if self._pid != os.getpid():
            self._begin_anew()  # a parent's thread may have held the lock
        with self._lock:  # many threads that need a large file read it once
            held = self._held.get(owner)
            if held is None or not held.is_valid():
                held = self._read(owner)
                self._make_room(held.copied)
                self._held[owner] = held
            self._held.move_to_end(owner)
        return held.file.packets(reference)

    def _make_room(self, copied: int) -> None:
        """Let go of what was used longest ago."""
        held = list(self._held.items())
        copied += sum(one.copied for _, one in held)
        for place, (owner, one) in enumerate(held):
            if len(held) - place < _MEDIA_FILES and copied <= _MEDIA_BYTES:
                break
            self._held.pop(owner, None)
            copied -= one.copied

    def _read(self, owner: str) -> _Held:
        path = names.media(owner)
        blob: Blob | None = None
        data: bytes | memoryview | None = None
        with suppress(FileNotFoundError):
            if on_disk(self._store):
                blob = self._store.blob(path)
                data = blob.view()
            else:
                data = read(self._store, path)
        if data is None:
            return _Held()  # for good: it is written before the commit that shows its files
        try:
            file = MediaFile.decode(data, path=path)
        except DamagedTableError:
            file = MediaFile.empty()  # derived: the video itself is indexed then, and `check` reports it
        return _Held(file=file, blob=blob, copied=0 if blob is not None else len(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A file of packet indexes: as memory, and if that is a map, what it maps."""

    file: MediaFile = field(default_factory=MediaFile.empty)
    blob: Blob | None = None
    copied: int = 0

    def is_valid(self) -> bool:
        """Whether the file is what was mapped: one that others cut off would kill this process."""
        try:
            if self.blob is not None:
                self.blob.view()
        except FileNotFoundError:
            return True  # a map outlives the name
        except ShardChangedError:
            return False
        return True


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

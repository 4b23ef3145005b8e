"""What a table knows of its shards without opening them: index files found, read once, and searched by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError
from seqlake.files.locations import local_path
from seqlake.versions import names
from seqlake.versions.indexes import IndexFile, IndexRow
from seqlake.versions.small_files import on_disk, read_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from seqlake.protocols import Store
    from seqlake.tables.standalone.records import Entry
    from seqlake.tables.standalone.state import State
    from seqlake.versions.ids import IdRuns


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

    root = local_path(store.root)
    found: list[bytes | memoryview | None] = []
    for path in paths:
        try:
            with pa.memory_map(str(root / path)) as source:
                found.append(memoryview(source.read_buffer()))
        except OSError:
            found.append(None)
    return found


def load_ids(runs: IdRuns, index: ShardIndex, state: State, /, *, rebuild: Callable[[Entry], bytes]) -> None:
    """Take in the ids of all shards of a version; `rebuild` reads those that no index file knows."""
    absent = [entry for entry in state.shards.values() if entry.name not in runs]
    found = index.find(state, absent)
    runs.add(
        (entry.name, found[entry.name].ids(entry.name) if entry.name in found else rebuild(entry)) for entry in absent
    )

"""The sidecar of a lake table: per shard its ids, offsets, copied-in files; one small file per commit, and merged ones.

All of it can be computed again from the shards, so a missing or stale sidecar costs speed and never truth: a row
counts only if it has the size and the rows that the lake says. The payload is that of standalone tables.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError
from seqlake.tables._lakes import paths
from seqlake.tables.standalone import indexes, names
from seqlake.tables.standalone.log import read, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.protocols import Copied, Store
    from seqlake.tables._lakes.engine import LakeFile
    from seqlake.tables.standalone.indexes import IndexFile, IndexRow

MANY = 16
"""Index files that are read one by one; with more of them, or with shards of other clients, they are merged."""


class Sidecar:
    """The index files of one lake table, each read once; a shard is named by its path.

    Args:
        store: The table's root.
        label: What tells this table from others of the same root; empty where a root has one table.
    """

    def __init__(self, store: Store, /, *, label: str = "") -> None:
        self._store = store
        self._pointer = f"{paths.MERGED}-{label}" if label else paths.MERGED
        self._of: dict[str, IndexFile] = {}
        self._read: set[str] = set()
        self._merged: tuple[str, frozenset[str]] = ("", frozenset())
        self._lock = RLock()

    def find(self, files: Iterable[LakeFile], /) -> dict[str, IndexFile]:
        """The index file that knows each shard, by its path; shards that none knows as they are now are left out."""
        wanted = list(files)
        with self._lock:
            missing = [file for file in wanted if file.path not in self._of]
            owners = {owner for file in missing if (owner := paths.owner(file.path)) is not None}
            if missing and (len(owners) > 1 or any(paths.owner(file.path) is None for file in missing)):
                self._load_merged()
                missing = [file for file in missing if file.path not in self._of]
            self._load({names.index(owner) for f in missing if (owner := paths.owner(f.path)) is not None})
            return {file.path: self._of[file.path] for file in wanted if self._knows(file)}

    def rows(self, files: Sequence[LakeFile], /) -> list[IndexRow]:
        """The rows of these shards, where they are known."""
        return [index.row(path) for path, index in self.find(files).items()]

    def write(self, transaction: str, rows: Sequence[IndexRow], /) -> None:
        """Keep the rows of a transaction's shards and the packet indexes of its videos, durably."""
        if not rows:
            return
        self._put(names.index(transaction), indexes.encode(rows), transaction)
        own = [file for row in rows for file in row.files if names.copied_owner(file.path) == transaction]
        media = indexes.encode_media(own)
        if media is not None:
            self._put(names.media(transaction), media, transaction)

    def merge(self, transaction: str, rows: Sequence[IndexRow], /) -> None:
        """Put the rows of all shards of a version into one file, and point to it."""
        path = f"{names.INDEX}/{names.merged_index(0, transaction)}"
        self._put(path, indexes.encode(rows), transaction)
        self._put(self._pointer, path.encode(), transaction)

    def is_due(self, files: Sequence[LakeFile], /) -> bool:
        """Whether a merged file would save reading many."""
        merged = self.merged()
        if merged is not None and merged != self._merged[0]:  # at every commit, and it may be large
            data = read(self._store, merged)
            self._merged = (
                merged,
                frozenset() if data is None else frozenset(indexes.IndexFile.decode(data, path=merged)),
            )
        known = self._merged[1] if merged is not None else frozenset()
        apart = {paths.owner(file.path) or file.path for file in files if file.path not in known}
        return len(apart) > max(MANY, len(files) // 8)

    def merged(self) -> str | None:
        """The path of the merged index file that counts now."""
        data = read(self._store, self._pointer)
        found = None if data is None else data.decode("utf-8", "replace").strip()
        return found if found and names.is_merged_index(found.rpartition("/")[2]) else None

    def _knows(self, file: LakeFile) -> bool:
        index = self._of.get(file.path)
        if index is None:
            return False
        rows, nbytes = index.counts(file.path)
        return rows == file.rows and nbytes == file.nbytes

    def _load_merged(self) -> None:
        merged = self.merged()
        if merged is not None:
            self._load({merged})

    def _load(self, wanted: set[str]) -> None:
        unread = sorted(wanted - self._read)
        for path, data in zip(unread, read_many(self._store, unread), strict=True):
            if data is None:
                continue  # Not remembered: it may be written later.
            self._read.add(path)
            try:
                found = indexes.IndexFile.decode(data, path=path)
            except DamagedTableError:
                continue  # derived: it is computed again
            for name in found:
                self._of.setdefault(name, found)

    def _put(self, path: str, data: bytes, transaction: str) -> None:
        self._store.put(path, data, temporary=names.temporary(transaction, "idx"))
        self._store.sync(path.rpartition("/")[0], names.OURS)


def copied_files(index: IndexFile | None, path: str, /) -> dict[str, Copied]:
    """The copied-in files that the rows of a shard name, by path."""
    return {} if index is None else {file.path: file for file in index.files(path)}

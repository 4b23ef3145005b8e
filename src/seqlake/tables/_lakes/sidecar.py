"""The sidecar of a lake table: per shard its ids, offsets, copied-in files; one small file per commit, and merged ones.

A file of a fixed name tells of many shards at once, and names the *ground*, which tells of all others: so one request
finds a sequence in a small table, and two in a large one, however many commits made it.

All of it can be computed again from the shards, so a missing or stale sidecar costs speed and never truth: a row
counts only if it has the size and the rows that the lake says. The payload is that of standalone tables.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError
from seqlake.tables._lakes import paths
from seqlake.versions import indexes, names
from seqlake.versions.small_files import on_disk, read, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.protocols import Store
    from seqlake.versions.indexes import IndexFile, IndexRow
    from seqlake.versions.state import TableFile

MANY = 16
"""Index files that are read one by one on disk; with more of them, or with shards of other clients, they are merged."""

SMALL = 1 << 20
"""Bytes of index that are written anew at a commit; more of them become the ground."""


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
        self._ground: tuple[str, frozenset[str]] = ("", frozenset())
        self._above: frozenset[str] = frozenset()
        self._lock = RLock()

    def find(self, files: Iterable[TableFile], /, *, unsealed: bool = False) -> dict[str, IndexFile]:
        """The index file that knows each shard, by its path; shards that none knows as they are now are left out."""
        wanted = list(files)
        with self._lock:
            missing = [file for file in wanted if file.name not in self._of]
            owners = {paths.owner(file.name) for file in missing}
            if len(owners) > 1 or None in owners:
                ground = self._load_above()
                missing = [file for file in missing if file.name not in self._of]
                if missing and ground:
                    self._load({ground})
                    missing = [file for file in missing if file.name not in self._of]
                owners = {paths.owner(file.name) for file in missing} if self._of else owners
            self._load({names.index(owner) for owner in owners if owner is not None})
            return {file.name: self._of[file.name] for file in wanted if self._knows(file, unsealed=unsealed)}

    def rows(self, files: Sequence[TableFile], /) -> list[IndexRow]:
        """The rows of these shards, where they are known."""
        return [index.row(path) for path, index in self.find(files).items()]

    def write(self, transaction: str, rows: Sequence[IndexRow], /) -> None:
        """Keep the rows of a transaction's shards and the packet indexes of its videos, durably."""
        if not rows:
            return
        data = indexes.encode(rows)
        self._put(names.index(transaction), data, transaction)
        with self._lock:
            self._take(names.index(transaction), data)  # the next commit asks for it
        copied = [file for row in rows for file in row.files if names.copied_owner(file.path) == transaction]
        media = indexes.encode_media(copied)
        if media is not None:
            self._put(names.media(transaction), media, transaction)

    def merge(self, transaction: str, rows: Sequence[IndexRow], /) -> None:
        """Put the rows of all shards of a version into one place."""
        data = indexes.encode(rows)
        ground = ""
        if len(data) > SMALL:
            ground = f"{names.INDEX}/{names.merged_index(0, transaction)}"
            self._put(ground, data, transaction)
            data = b""
        self._put(self._pointer, ground.encode() + b"\n" + data, transaction)
        shards = frozenset(row.shard for row in rows)
        self._ground, self._above = (ground, shards if ground else frozenset()), frozenset() if ground else shards

    def merge_above(self, transaction: str, rows: Sequence[IndexRow], /) -> bool:
        """Put these rows, which with the ground are all, into one place; False where they are too many."""
        data = indexes.encode(rows)
        if len(data) > SMALL:
            return False
        self._put(self._pointer, self._ground[0].encode() + b"\n" + data, transaction)
        self._above = frozenset(row.shard for row in rows)
        return True

    def is_due(self, files: Sequence[TableFile], /) -> bool:
        """Whether merging would save reading many files; on object stores, where each costs a request, any."""
        if not self._is_far(files):
            return False
        self._look_again()  # another writer may have merged them
        return self._is_far(files)

    def grounded(self, files: Sequence[TableFile], /) -> frozenset[str]:
        """The shards that the ground knows, as was last seen; none where it is about others, for the most part."""
        known = self._ground[1]
        return known if sum(file.name in known for file in files) * 2 > len(known) else frozenset()

    def _is_far(self, files: Sequence[TableFile]) -> bool:
        apart = {paths.owner(f.name) or f.name for f in files if f.name not in self._ground[1] | self._above}
        if on_disk(self._store):
            return len(apart) > max(MANY, len(files) // 8)
        return bool(apart) and len({paths.owner(file.name) for file in files}) > 1

    def _look_again(self) -> None:
        """What is merged now."""
        ground, above = split(read(self._store, self._pointer))
        if ground != self._ground[0]:  # it may be large, and never changes
            data = read(self._store, ground) if ground else None
            self._ground = (ground, frozenset(_decoded(data, ground) or ()))
        self._above = frozenset(_decoded(above, self._pointer) or ())

    def _knows(self, file: TableFile, *, unsealed: bool = False) -> bool:
        index = self._of.get(file.name)
        return index is not None and index.knows(file.name, rows=file.rows, nbytes=file.nbytes, unsealed=unsealed)

    def _load_above(self) -> str:
        """Take in what is merged last, and return the path of the ground."""
        ground, above = split(read(self._store, self._pointer))
        merged = _decoded(above, self._pointer)
        if merged is not None:
            self._keep(merged)
        return ground

    def _load(self, wanted: set[str]) -> None:
        unread = sorted(wanted - self._read)
        for path, data in zip(unread, read_many(self._store, unread), strict=True):
            if data is not None:  # else not remembered: it may be written later.
                self._take(path, data)

    def _take(self, path: str, data: bytes) -> None:
        self._read.add(path)
        index = _decoded(data, path)
        if index is not None:
            self._keep(index)

    def _keep(self, index: IndexFile) -> None:
        for name in index:
            self._of.setdefault(name, index)

    def _put(self, path: str, data: bytes, transaction: str) -> None:
        self._store.put(path, data, temporary=names.temporary(transaction, "idx"))
        self._store.sync(path.rpartition("/")[0], names.OURS)


def split(data: bytes | None, /) -> tuple[str, bytes]:
    """The path of the ground and the rows above it, from the file of the fixed name; empty where there is none."""
    first, _, above = (data or b"").partition(b"\n")
    ground = first.decode("utf-8", "replace").strip()
    return (ground if names.is_merged_index(ground.rpartition("/")[2]) else "", above)


def _decoded(data: bytes | None, path: str) -> IndexFile | None:
    """An index file; None where it is none: derived, it is computed again."""
    try:
        return indexes.IndexFile.decode(data, path=path) if data else None
    except DamagedTableError:
        return None

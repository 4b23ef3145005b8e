"""No id twice in a lake table: new ids are searched among sorted hashes, equal hashes compared exactly."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.shards.ids import pack, unpack
from seqlake.spec.schema import ID
from seqlake.tables._lakes.shards import bare_shard
from seqlake.versions.ids import IdRuns, refuse_known, refuse_repeated
from seqlake.versions.indexes import unpack_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Store
    from seqlake.tables._lakes.engine import LakeFile, LakeState
    from seqlake.tables._lakes.sidecar import Sidecar

    _Hashed: TypeAlias = tuple[LakeFile, NDArray[np.uint64], NDArray[np.uint32]]

_REMEMBERED = 64


class LakeIds:
    """The ids of one lake table, taken in once and kept while it is open.

    Args:
        store: The table's root.
        sidecar: What is known of the shards.
        storage: Options of obstore, for files outside the root.
    """

    def __init__(self, store: Store, sidecar: Sidecar, /, *, storage: Mapping[str, str] | None) -> None:
        self._store = store
        self._sidecar = sidecar
        self._storage = storage
        self._runs = IdRuns()
        self._lock = RLock()
        self._texts: dict[str, Sequence[str | None]] = {}

    def check(
        self,
        newest: LakeState,
        parent: LakeState,
        /,
        *,
        added: Sequence[tuple[LakeFile, bytes]],
        removed: Iterable[str],
        root: str,
    ) -> None:
        """Refuse ids that the newest version, without the files that leave, has already.

        Args:
            newest: What the commit goes on top of.
            parent: The version the change was made on.
            added: The new files and their packed id hashes.
            removed: Paths of the files that leave.
            root: The table's location, for messages.

        Raises:
            DuplicateSequenceError: An id stands twice among the new ones, or was there at the parent.
            CommitConflictError: An id that a rival added since.
        """
        if ID not in newest.schema.names or not added:
            return
        with self._lock:
            new: list[_Hashed] = [(file, *unpack(packed)) for file, packed in added]
            self._once(new, root)
            self._load([*parent.files, *newest.files])
            gone = set(removed)
            live = {file.path: file for file in newest.files if file.path not in gone}
            before = {file.path: file for file in parent.files}
            there, at_parent = self._there(new, live, before)
        refuse_known(there, at_parent, root=root)

    def find(self, files: Sequence[LakeFile], ids: Sequence[str], /) -> Ints:
        """[ids] (number of the file * 2**32 + its row) of each id in a version, -1 where it has none."""
        self._load(files)
        numbers = {file.path: number for number, file in enumerate(files)}
        found = np.full(len(ids), -1, np.int64)
        hashes, where = unpack(pack(pa.array(ids, pa.string())))
        with self._lock:
            hits = list(self._runs.search(np.asarray(hashes, np.uint64)))
        for at, path, row in hits:
            position = int(where[at])
            file = files[numbers[path]] if path in numbers else None
            if file is not None and _is_live(file, row) and self._text(file, row) == ids[position]:
                found[position] = numbers[path] << 32 | row
        return found

    def packed(self, file: LakeFile, /) -> bytes:
        """The packed id hashes of a file, read from the file itself."""
        return pack(self._column(file))

    def _there(
        self, new: Sequence[_Hashed], live: Mapping[str, LakeFile], before: Mapping[str, LakeFile]
    ) -> tuple[set[str], set[str]]:
        """Which of the new ids are live in the newest version, and which were in the parent."""
        there: set[str] = set()
        at_parent: set[str] = set()
        for file, hashes, rows in new:
            for at, path, row in self._runs.search(np.asarray(hashes, np.uint64)):
                old = live.get(path) or before.get(path)
                if old is None:
                    continue
                text = self._text(file, int(rows[at]))
                if text == self._text(old, row):
                    there |= {text} if path in live and _is_live(live[path], row) else set()
                    at_parent |= {text} if path in before and _is_live(before[path], row) else set()
        return there, at_parent

    def _load(self, files: Iterable[LakeFile]) -> None:
        with self._lock:
            absent = list({file.path: file for file in files if file.path not in self._runs}.values())
            if absent:
                found = self._sidecar.find(absent)
                known = [(f.path, found[f.path].ids(f.path)) for f in absent if f.path in found]
                self._runs.add([*known, *((f.path, self.packed(f)) for f in absent if f.path not in found)])

    def _once(self, new: Sequence[_Hashed], root: str) -> None:
        hashes = np.concatenate([np.asarray(found, np.uint64) for _, found, _ in new])
        owners = [file for file, found, _ in new for _ in range(len(found))]
        rows = np.concatenate([np.asarray(where, np.int64) for _, _, where in new])
        refuse_repeated(hashes, lambda at: self._text(owners[at], int(rows[at])), root=root)

    def _text(self, file: LakeFile, row: int) -> str:
        """One id, exactly; the ids of a file are read once."""
        if file.path not in self._texts:
            if len(self._texts) >= _REMEMBERED:
                self._texts.clear()
            self._texts[file.path] = self._kept(file) or self._column(file).to_pylist()
        return str(self._texts[file.path][row])

    def _kept(self, file: LakeFile) -> list[str] | None:
        """The ids of a file as the sidecar keeps them."""
        known = self._sidecar.find([file]).get(file.path)
        texts = None if known is None else unpack_texts(known.texts(file.path))
        return texts if texts is not None and len(texts) == file.rows else None

    def _column(self, file: LakeFile) -> pa.Array:
        if ID in file.constants:
            return pa.array([file.constants[ID]] * file.rows, pa.string())
        reader = bare_shard(self._store, file, storage=self._storage, index=None).open()
        try:
            batches = [b.column(0).cast(pa.string()) for b in reader.batches([file.columns.get(ID, ID)])]
        finally:
            reader.close()
        found = pa.chunked_array(batches, pa.string()).combine_chunks() if batches else pa.array([], pa.string())
        return found.fill_null("")


def _is_live(file: LakeFile, row: int) -> bool:
    if file.deleted is None or not len(file.deleted):
        return True
    at = int(np.searchsorted(file.deleted, row))
    return at == len(file.deleted) or int(file.deleted[at]) != row

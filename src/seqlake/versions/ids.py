"""No id twice: new ids are searched among the sorted hashes of all shards, and equal hashes compared exactly."""

from __future__ import annotations

from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import CommitConflictError, DuplicateSequenceError
from seqlake.shards.ids import pack, unpack
from seqlake.spec.schema import ID
from seqlake.versions.indexes import unpack_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Shard
    from seqlake.versions.indexes import IndexFiles
    from seqlake.versions.state import FileList, TableFile

_NAMED = 5
_MANY_RUNS = 64
_REMEMBERED = 64


def refuse_repeated(hashes: NDArray[np.uint64], texts: Callable[[Ints], Sequence[str]], /, *, root: str) -> None:
    """Refuse ids that stand twice among new rows.

    Args:
        hashes: Of the ids, in any order.
        texts: Numbers of some hashes, ascending -> the ids themselves; asked for only where hashes are equal.
        root: The table's location, for messages.

    Raises:
        DuplicateSequenceError: Names them.
    """
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    pairs = np.stack([order[again], order[again + 1]], axis=1)
    some, which = np.unique(pairs, return_inverse=True)
    ids = texts(some) if len(some) else []
    twice = {ids[one] for one, other in which.reshape(-1, 2).tolist() if ids[one] == ids[other]}
    if twice:
        raise DuplicateSequenceError(
            f"Expected each id once, found {_listed(twice)} more than once among the new rows.",
            path=root,
            hint="Give every sequence an id of its own.",
        )


def refuse_known(there: set[str], at_parent: set[str], /, *, root: str) -> None:
    """Refuse new ids that the newest version has already.

    Args:
        there: Those it has.
        at_parent: Those that the version has which the change was made on; a row that a rival rewrote is among both.
        root: The table's location, for messages.

    Raises:
        DuplicateSequenceError: One was there at the parent.
        CommitConflictError: A rival added one since.
    """
    if there & at_parent:
        raise DuplicateSequenceError(
            f"Expected new ids, found {_listed(there & at_parent)}, which the dataset has already.",
            path=root,
            hint="Change rows that are there with `upsert` or `update`.",
        )
    if there:
        raise CommitConflictError(
            f"Not committed: other writers added {_listed(there)} meanwhile.",
            path=root,
            hint="Leave these rows out, or change them with `upsert`.",
        )


def _listed(ids: Iterable[str]) -> str:
    listed = sorted(ids)
    some = ", ".join(repr(one) for one in listed[:_NAMED])
    return some if len(listed) <= _NAMED else f"{some} and {len(listed) - _NAMED} more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Hashes that one shard has, too.

    Attributes:
        shard: Its name.
        positions: [n] which of the hashes that were searched for, ascending.
        rows: [n] rows of the shard.
    """

    shard: str
    positions: Ints
    rows: Ints


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
            hashed, where = unpack(data)
            hashes.append(np.asarray(hashed, np.uint64))
            owners.append(np.full(len(hashed), len(self._shards), np.int64))
            rows.append(np.asarray(where, np.int64))
            self._shards.append(name)
            self._known.add(name)
        if hashes:
            self._runs.append(_sorted(hashes, owners, rows))
        if len(self._runs) > _MANY_RUNS:
            first, second, third = zip(*self._runs, strict=True)
            self._runs = [_sorted(list(first), list(second), list(third))]

    def search(self, hashes: NDArray[np.uint64], /) -> list[Hits]:
        """Every equal hash, shard by shard; whether the ids are equal is the caller's part."""
        positions, owners, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for run, of_run, rows_of_run in self._runs:
            start = np.searchsorted(run, hashes, side="left")
            count = np.searchsorted(run, hashes, side="right") - start
            at = np.arange(int(count.sum())) + np.repeat(start - (np.cumsum(count) - count), count)
            positions.append(np.repeat(np.arange(len(hashes)), count))
            owners.append(of_run[at])
            rows.append(rows_of_run[at])
        position, owner, row = (np.concatenate(parts) for parts in (positions, owners, rows))
        if not len(position):
            return []
        order = np.lexsort((position, owner))
        shards, first = np.unique(owner[order], return_index=True)
        return [
            Hits(shard=self._shards[shard], positions=position[mine], rows=row[mine])
            for shard, mine in zip(shards.tolist(), np.split(order, first[1:]), strict=True)
        ]


def _sorted(
    hashes: list[NDArray[np.uint64]], owners: list[NDArray[np.int64]], rows: list[Ints]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], Ints]:
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable")
    return joined[order], np.concatenate(owners)[order], np.concatenate(rows)[order]


class Identity:
    """The ids of one table, taken in once and kept while it is open.

    Args:
        index: What knows hashes of ids without opening shards.
        bare: Opens a shard with its own columns and all its rows.
        root: The table's location, for messages.
    """

    def __init__(self, index: IndexFiles, bare: Callable[[TableFile], Shard], /, *, root: str) -> None:
        self._index = index
        self._bare = bare
        self._root = root
        self._runs = IdRuns()
        self._lock = RLock()  # threads may share a table
        self._texts: dict[str, Sequence[str | None]] = {}

    def check(
        self,
        newest: FileList,
        parent: FileList,
        /,
        *,
        added: Sequence[tuple[TableFile, bytes]],
        removed: Iterable[str],
    ) -> None:
        """Refuse ids that the newest version, without the shards that leave, has already.

        Args:
            newest: What the commit goes on top of.
            parent: The version that the change was made on.
            added: The new shards and their packed id hashes.
            removed: Names of the shards that leave.

        Raises:
            DuplicateSequenceError: An id stands twice among the new ones, or was there at the parent.
            CommitConflictError: An id that a rival added since.
        """
        with self._lock:
            owners, rows, hashes = _joined(added)
            self._refuse_repeated(owners, rows, hashes)
            self.load(parent)
            self.load(newest)
            leaving = set(removed)
            hits = self._runs.search(hashes)
            # What a rewrite takes away has the ids of what it brings: only shards that stay are asked for theirs.
            staying = [one for one in hits if one.shard not in leaving and newest.get(one.shard) is not None]
            wanted = np.unique(np.concatenate([np.zeros(0, np.int64), *(one.positions for one in staying)]))
            ids = dict(zip(wanted.tolist(), self._texts_of(owners, rows, wanted), strict=True))
            there, before = self._equal(staying, newest, parent, ids)
            ids = {at: one for at, one in ids.items() if one in there}
            left = [one for one in hits if one.shard in leaving or newest.get(one.shard) is None]
            before |= self._equal(left, newest, parent, ids)[1]
        refuse_known(there, before, root=self._root)

    def check_new(self, added: Sequence[tuple[TableFile, bytes]], /) -> None:
        """Refuse ids that stand twice among new shards.

        Raises:
            DuplicateSequenceError: Names them.
        """
        self._refuse_repeated(*_joined(added))

    def load(self, files: FileList, /) -> None:
        """Take in the ids of all shards of a version."""
        with self._lock:
            absent = [files.named(name) for name in files.names if name not in self._runs]
            known = self._index.find(absent) if absent else {}
            self._runs.add(
                (file.name, known[file.name].ids(file.name) if file.name in known else self.packed(file))
                for file in absent
            )

    def find(self, files: FileList, ids: Sequence[str], /) -> Ints:
        """[ids] (number of the shard * 2**32 + its row) of each id in a version, -1 where it has none."""
        self.load(files)
        places = np.full(len(ids), -1, np.int64)
        hashes, where = unpack(pack(pa.array(ids, pa.string())))
        with self._lock:
            hits = self._runs.search(np.asarray(hashes, np.uint64))
        for one in hits:
            file = files.get(one.shard)
            if file is None:
                continue
            for at, row in zip(one.positions.tolist(), one.rows.tolist(), strict=True):
                position = int(where[at])
                if file.is_live(row) and self._text(file, row) == ids[position]:
                    places[position] = files.numbers[one.shard] << 32 | row
        return places

    def packed(self, file: TableFile, /) -> bytes:
        """The packed id hashes of a shard, read from the shard itself."""
        return pack(self._column(file))

    def _refuse_repeated(self, owners: list[TableFile], rows: list[int], hashes: NDArray[np.uint64]) -> None:
        refuse_repeated(hashes, lambda some: self._texts_of(owners, rows, some), root=self._root)

    def _texts_of(self, owners: list[TableFile], rows: list[int], some: Ints) -> list[str]:
        """The ids of some of the new rows; those of one shard lie together, and are read together."""
        return [self._text(owners[at], rows[at]) for at in some.tolist()]

    def _equal(
        self, hits: Iterable[Hits], newest: FileList, parent: FileList, ids: Mapping[int, str]
    ) -> tuple[set[str], set[str]]:
        """Those of the ids, by position, that each of two versions has; a shard is read once for both."""
        equal: tuple[set[str], set[str]] = (set(), set())
        for one in hits if ids else ():
            files = newest.get(one.shard), parent.get(one.shard)
            known = files[0] or files[1]
            for at, row in zip(one.positions.tolist(), one.rows.tolist(), strict=True):
                if known is not None and at in ids and self._text(known, row) == ids[at]:
                    for file, of_version in zip(files, equal, strict=True):
                        if file is not None and file.is_live(row):
                            of_version.add(ids[at])
        return equal

    def _text(self, file: TableFile, row: int) -> str:
        """One id, exactly; the ids of a shard are read once."""
        if file.name not in self._texts:
            if len(self._texts) >= _REMEMBERED:
                self._texts.clear()
            self._texts[file.name] = self._kept(file) or self._column(file).to_pylist()
        return str(self._texts[file.name][row])

    def _kept(self, file: TableFile) -> list[str] | None:
        """The ids of a shard as its index file keeps them."""
        known = self._index.find([file]).get(file.name)
        texts = None if known is None else unpack_texts(known.texts(file.name))
        return texts if texts is not None and len(texts) == file.rows else None

    def _column(self, file: TableFile) -> pa.Array:
        if ID in file.constants:
            return pa.array([file.constants[ID]] * file.rows, pa.string())
        reader = self._bare(file).open()
        try:
            batches = [batch.column(0).cast(pa.string()) for batch in reader.batches([file.columns.get(ID, ID)])]
        finally:
            reader.close()
        if not batches:
            return pa.array([], pa.string())
        return pa.chunked_array(batches, pa.string()).combine_chunks().fill_null("")


def _joined(added: Sequence[tuple[TableFile, bytes]]) -> tuple[list[TableFile], list[int], NDArray[np.uint64]]:
    owners: list[TableFile] = []
    rows: list[int] = []
    hashes = [np.zeros(0, np.uint64)]
    for file, packed in added:
        of_file, where = unpack(packed)
        owners += [file] * len(of_file)
        rows += np.asarray(where, np.int64).tolist()
        hashes.append(np.asarray(of_file, np.uint64))
    return owners, rows, np.concatenate(hashes)

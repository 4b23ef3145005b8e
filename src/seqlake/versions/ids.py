"""Ids that would stand twice: found among new rows by hash and exactly, and refused in the same words everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CommitConflictError, DuplicateSequenceError
from seqlake.shards.ids import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

_NAMED = 5
_MANY_RUNS = 64


def refuse_repeated(hashes: NDArray[np.uint64], text: Callable[[int], str], /, *, root: str) -> None:
    """Refuse ids that stand twice among new rows.

    Args:
        hashes: Of the ids, in any order.
        text: Number of a hash -> the id itself; asked for only where hashes are equal.
        root: The table's location, for messages.

    Raises:
        DuplicateSequenceError: Names them.
    """
    order = np.argsort(hashes, kind="stable")
    twice: set[str] = set()
    for at in np.flatnonzero(hashes[order][1:] == hashes[order][:-1]):
        first = text(int(order[at]))
        if first == text(int(order[at + 1])):
            twice.add(first)
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

"""Ids that would stand twice: found among new rows by hash and exactly, and refused in the same words everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CommitConflictError, DuplicateSequenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

_NAMED = 5


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

"""The commit: one name created if absent; whoever creates it has made the next version."""

from __future__ import annotations

import errno
import random
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError, CommitUnknownError, ReadOnlyError, SeqlakeError
from seqlake.protocols import Transaction, Version
from seqlake.tables.standalone.conflicts import check_fence
from seqlake.tables.standalone.publishing import discard, recover
from seqlake.tables.standalone.state import declared, version_of
from seqlake.versions import names
from seqlake.versions.markers import announce
from seqlake.versions.messages import message
from seqlake.versions.small_files import on_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seqlake.protocols import Store
    from seqlake.tables.standalone.log import Log
    from seqlake.tables.standalone.records import VersionRecord
    from seqlake.tables.standalone.state import State

ROUNDS = 100
SECONDS = 60.0
_LONGEST_WAIT = 1.0
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def begin(log: Log, /, *, parent: Version | None = None, newest: State | None = None) -> Transaction:
    """Announce a transaction and put right what earlier ones left.

    Args:
        log: The table's log.
        parent: The version that the change will be made on; None for the newest.
        newest: What `Log.refuse_holes` gave, where it was asked just now.
    """
    newest = log.refuse_holes() if newest is None else newest
    transaction = announce(log.store, newest.version)
    recover(log, transaction, newest)
    return Transaction(id=transaction, parent=version_of(newest) if parent is None else parent)


class NotCommittedError(Exception):
    """Internal: the create of a version failed and certainly made nothing.

    Attributes:
        error: What happened.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def commit_version(
    log: Log, transaction: str, /, *, parent: int, propose: Callable[[State, Sequence[VersionRecord]], VersionRecord]
) -> VersionRecord:
    """Make the next version, however many rivals are faster.

    Args:
        log: The table's log.
        transaction: Which one commits.
        parent: The version that its change was made on; -1 for none.
        propose: From the newest state and the records since the parent, the record to write; raises on conflict.

    Returns:
        The record that stands in the log, durably.

    Raises:
        CommitConflictError: A rival's commit is in the way, or the limit of rounds or seconds was reached.
        CommitUnknownError: The store gave no answer, so only the log will tell.
        NotCommittedError: The store refused; nothing was made.
    """
    base = 0.002 if on_disk(log.store) else 0.05
    deadline = time.monotonic() + SECONDS
    for turn in range(ROUNDS):
        state = log.newest()
        since = log.records(parent + 1, state.version)
        for record in since:
            if record.transaction == transaction:
                return _durable(log, record)
        check_fence(transaction, since, path=log.root)
        record = replace(propose(state, since), version=state.version + 1, previous=state.digest, message=message())
        record = declared(state, record)
        if _create(log, record):
            return _durable(log, record)
        if time.monotonic() > deadline:
            break
        time.sleep(random.random() * min(_LONGEST_WAIT, base * 2 ** min(turn, 20)))  # noqa: S311 - spreads rivals
    raise CommitConflictError(
        f"Not committed: other writers were faster {ROUNDS} times, or for {SECONDS:.0f} s.",
        path=log.root,
        hint="Try again when fewer writers commit at once, or commit more rows at a time.",
    )


def _create(log: Log, record: VersionRecord) -> bool:
    """Create the version; False when a rival was first."""
    store, path = log.store, names.version(record.version)
    log.in_doubt.add(record.transaction)
    created = _try(log, store, path, record)
    if not created:
        log.in_doubt.discard(record.transaction)
    return created


def _try(log: Log, store: Store, path: str, record: VersionRecord) -> bool:
    try:
        store.sync(names.VERSIONS)  # or this one could survive a power loss that the ones before it do not
        store.put(path, record.encode(), if_absent=True, temporary=names.temporary(record.transaction))
    except FileExistsError:
        rival = log.probe(record.version)
        return rival is not None and rival.transaction == record.transaction
    except OSError as error:
        return _after_failure(log, record, error)
    return True


def _after_failure(log: Log, record: VersionRecord, error: OSError) -> bool:
    """The create raised: did it make the version all the same?"""
    try:
        present = log.probe(record.version)
    except (OSError, SeqlakeError):
        raise _unknown(log, record.transaction) from error
    if present is not None:
        return present.transaction == record.transaction
    if on_disk(log.store) or isinstance(error, PermissionError):
        log.in_doubt.discard(record.transaction)
        raise NotCommittedError(error) from error
    raise _unknown(log, record.transaction) from error


def _durable(log: Log, record: VersionRecord) -> VersionRecord:
    try:
        log.store.sync(names.VERSIONS)
    except OSError as error:
        raise _unknown(log, record.transaction) from error
    return record


def _unknown(log: Log, transaction: str) -> CommitUnknownError:
    return CommitUnknownError(
        f"{log.root}: no answer to the commit of transaction {transaction}. It may have been made.",
        path=log.root,
        hint=f"Look for {transaction} in the versions of {names.VERSIONS}/ before you commit the same rows again.",
    )


@contextmanager
def all_or_nothing(log: Log, transaction: str, /) -> Iterator[None]:
    """Around the work of a transaction: what raises discards what it staged, unless it may have been committed.

    Raises:
        ReadOnlyError: The place cannot be written; nothing was committed.
        OSError: The same for every other failure of a disk or a store.
    """
    try:
        yield
    except NotCommittedError as failure:
        raise _abandon(log, transaction, failure.error) from failure.error
    except ReadOnlyError as error:
        raise _abandon(log, transaction, error) from error
    except SeqlakeError as error:
        if not isinstance(error, CommitUnknownError):
            _discard_quietly(log, transaction)
        raise
    except OSError as error:
        raise _abandon(log, transaction, error) from error
    except BaseException:
        _discard_quietly(log, transaction)
        raise


def discard_undecided(log: Log, transaction: str, /) -> None:
    """Remove all that a transaction staged, unless it was, or may yet be, committed."""
    if transaction in log.in_doubt:
        if not on_disk(log.store) or log.transaction_in(transaction, after=-1) is not None:
            return
        log.in_doubt.discard(transaction)
    discard(log.store, transaction)


def _discard_quietly(log: Log, transaction: str) -> None:
    with suppress(OSError, SeqlakeError):  # the error under way says more
        discard_undecided(log, transaction)


def _abandon(log: Log, transaction: str, error: OSError) -> OSError:
    """After an error before the commit: remove what the transaction owns, and say what could not be removed."""
    _discard_quietly(log, transaction)
    remaining = _remaining(log.store, transaction)
    hint = f"`seqlake vacuum {log.root}` removes them." if remaining else "Nothing of it remains."
    message = f"{log.root}: transaction {transaction} was not committed ({error}).{remaining}"
    if isinstance(error, PermissionError) or error.errno in _FORBIDDEN:
        return ReadOnlyError(message, path=log.root, hint=hint)
    return OSError(error.errno, f"{message} {hint}")


def _remaining(store: Store, transaction: str) -> str:
    try:
        left = [
            f"{path} ({size} bytes)"
            for folder in (names.STAGED, names.INDEX, names.SIDE, names.MEDIA, names.FILES)
            for path, size in store.list(folder)
            if transaction in path
        ]
    except OSError:
        return " What it staged could not be listed."
    return f" These remain: {', '.join(left[:10])}{', ...' if len(left) > 10 else ''}." if left else ""

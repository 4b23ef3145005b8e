"""Markers: which transactions are under way, or died."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError
from seqlake.files.checksums import digest_of, seal
from seqlake.files.stores import refuse_links
from seqlake.spec.findings import Finding
from seqlake.versions import names
from seqlake.versions.format import FORMAT, UNSEALED, parse_time, stamp
from seqlake.versions.small_files import names_in, read, read_many, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a transaction says of itself while it is under way.

    Attributes:
        transaction: Its id.
        begin: Its fate stands in a version after this one; -1 where the marker is torn.
        time: When it was last known to live.
    """

    transaction: str
    begin: int
    time: datetime

    def encode(self) -> bytes:
        """The bytes of the file, sealed."""
        document = {
            "format": FORMAT,
            "transaction": self.transaction,
            "begin": self.begin,
            "time": stamp(self.time),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        return seal(document)


def now() -> datetime:
    """The time of this machine, UTC."""
    return datetime.now(UTC)


def parse(data: bytes, /, *, transaction: str) -> Marker:
    """Read a marker; a torn one counts from the start of the log and from the time in its transaction's id.

    So does one whose digest is wrong. One of a release that wrote none counts from the start of the log.
    """
    torn = Marker(transaction=transaction, begin=-1, time=_born(transaction))
    try:
        document = json.loads(data)
        if document["format"] == UNSEALED:
            return replace(torn, time=parse_time(document["time"]))
        if digest_of(data) is None:
            return torn
        begin = document["begin"]
        return replace(torn, begin=begin if type(begin) is int else -1, time=parse_time(document["time"]))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return torn


def read_all(store: Store, /) -> list[Marker]:
    """The markers of all transactions, oldest id first."""
    transactions = [t for name in names_in(store, names.STAGED) if (t := names.marker_owner(name)) is not None]
    contents = read_many(store, [names.marker(t) for t in transactions])
    # One that vanished since the listing has been finished by its owner.
    return [parse(data, transaction=t) for t, data in zip(transactions, contents, strict=True) if data is not None]


def findings(store: Store, /) -> Iterator[Finding]:
    """T506: transactions under way, or dead."""
    for marker in read_all(store):
        yield Finding(
            code="T506",
            severity="note",
            message=f"a transaction is under way or died; last heard of at {marker.time:%Y-%m-%d %H:%M:%S} UTC. "
            "`seqlake vacuum` clears what died",
            location=names.marker(marker.transaction),
        )


def announce(store: Store, newest: int, /) -> str:
    """Write the marker of a new transaction before anything else of it.

    Its fate will stand in a version after the newest seen minus one: the newest itself may not survive a power loss.

    Returns:
        The transaction's id.

    Raises:
        UnsafeReferenceError: A folder of the table is a link: what it leads to is not the table's to change.
    """
    refuse_links(store, names.FOLDERS)
    transaction = names.new_transaction()
    data = Marker(transaction=transaction, begin=newest - 1, time=now()).encode()
    try:
        store.put(names.marker(transaction), data, if_absent=True)
    except FileExistsError:
        if read(store, names.marker(transaction)) != data:  # else this put did it, and its first answer was lost
            raise
    return transaction


def renew(store: Store, transaction: str, /) -> None:
    """Write the marker's time anew; a transaction whose marker is gone is over, and stays so."""
    data = read(store, names.marker(transaction))
    if data is None:
        return
    old = parse(data, transaction=transaction)
    marker = Marker(transaction=transaction, begin=old.begin, time=now())
    # Several workers may renew at once, so each has a temporary name of its own.
    store.put(names.marker(transaction), marker.encode(), temporary=names.temporary(transaction, secrets.token_hex(4)))


def is_announced(store: Store, transaction: str, /) -> bool:
    """Whether a transaction is under way: neither committed nor discarded."""
    return read(store, names.marker(transaction)) is not None


def given_up(transaction: str, by: str, /, *, path: str) -> CommitConflictError:
    """The error of a transaction that a vacuum gave up for dead, and what it staged with it.

    Args:
        transaction: Which.
        by: Who gave it up, as messages say it: a version, or any vacuum.
        path: The table's location.
    """
    return CommitConflictError(
        f"Not committed: {by} gave transaction {transaction} up, because it had not been heard of for longer than the "
        "limit of the vacuum.",
        path=path,
        hint="Write the rows again; a writer that lives longer must call `renew` at least hourly.",
    )


def end(store: Store, transaction: str, /) -> None:
    """The transaction has nothing left to do: remove its marker."""
    remove(store, [names.marker(transaction)])


def _born(transaction: str) -> datetime:
    milliseconds = int(transaction[:12], 16)
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)

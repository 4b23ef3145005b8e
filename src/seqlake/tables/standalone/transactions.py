"""A transaction under way: announced by its marker, renewed hourly, discarded or committed."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from seqlake.files.stores import refuse_links
from seqlake.protocols import Transaction, Version
from seqlake.tables.standalone import markers, names
from seqlake.tables.standalone.log import Log, read
from seqlake.tables.standalone.publishing import recover, remove

if TYPE_CHECKING:
    from seqlake.protocols import Store
    from seqlake.tables.standalone.state import State


def version_of(state: State, /) -> Version:
    """A state's version, as callers see it."""
    return Version(id=state.version, time=state.time, operation=state.operation, rows=state.rows)


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
    data = markers.Marker(transaction=transaction, begin=newest - 1, time=markers.now()).encode()
    try:
        store.put(names.marker(transaction), data, if_absent=True)
    except FileExistsError:
        if read(store, names.marker(transaction)) != data:  # else this put did it, and its first answer was lost
            raise
    return transaction


def begin(log: Log, /, *, parent: Version | None = None) -> Transaction:
    """Announce a transaction and put right what earlier ones left."""
    log.refuse_holes()
    newest = log.newest()
    transaction = announce(log.store, newest.version)
    recover(log, transaction)
    return Transaction(id=transaction, parent=version_of(newest) if parent is None else parent)


def renew(store: Store, transaction: str, /) -> None:
    """Write the marker's time anew; a transaction whose marker is gone is over, and stays so."""
    data = read(store, names.marker(transaction))
    if data is None:
        return
    old = markers.parse(data, transaction=transaction)
    marker = markers.Marker(transaction=transaction, begin=old.begin, time=markers.now())
    # Several workers may renew at once, so each has a temporary name of its own.
    store.put(names.marker(transaction), marker.encode(), temporary=names.temporary(transaction, secrets.token_hex(4)))


def end(store: Store, transaction: str, /) -> None:
    """The transaction has nothing left to do: remove its marker."""
    remove(store, [names.marker(transaction)])

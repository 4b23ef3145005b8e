"""Shards and files on their way into a table: durable before the commit, and gone where there is none."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.files.stores import list_without_links
from seqlake.versions import markers, names
from seqlake.versions.shard_formats import PARQUET
from seqlake.versions.small_files import on_disk, own_names, read_derived, remove, write_derived

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from seqlake.protocols import Store, Transaction, Written


class StagingTable:
    """What a table does for a transaction before its commit, the same in all kinds of tables, which inherit it.

    A shard waits in `_seqlake/staged`, where no glob meets it and its name says whose it is.

    Attributes:
        store: The store of its root.
        copies: The folder of copied-in files, out of reach of the table's own cleanup.
    """

    store: Store
    copies: str = names.FILES

    @property
    def root(self) -> str:
        """Where it lies: an absolute path or a URI."""
        return self.store.root

    @cached_property
    def scratch(self) -> Scratch:
        """Local folders for the shards of a bucket, of this process."""
        return Scratch()

    def place(
        self,
        transaction: Transaction,
        partition: Mapping[str, object] | None = None,
        /,
        *,
        n: str,
        format: str = PARQUET,  # noqa: A002 - as users call it
    ) -> str:
        """Where the shard `n` of a transaction is written: hidden in the table, or in a local folder for a bucket.

        Args:
            transaction: From `begin`.
            partition: Not needed before `stage`, which takes it from `Written.partition`.
            n: 1 to 16 of `[0-9a-z]`, unique in the transaction.
            format: Of the shard.
        """
        del partition
        return self.scratch.place(self.store, transaction.id, names.staged(names.part(transaction.id, n, format)))

    def stage(self, transaction: Transaction, written: Written, /) -> Written:
        """Make a finished shard durable where nobody reads it yet, from any process; `location` becomes its path there.

        Raises:
            ValueError: It does not lie where `place` said.
        """
        return stage(self.store, transaction.id, written)

    def files(self, transaction: Transaction, /) -> str:
        """The folder, below the root, that copied-in files go into under names with the transaction's id."""
        del transaction
        return self.copies

    def temporary(self, transaction: Transaction, n: str, /) -> str:
        """The name, below the root, that a file of this transaction has before it is whole (local disks)."""
        return names.temporary(transaction.id, names.counter(n))

    def renew(self, transaction: Transaction, /) -> None:
        """Say that the transaction is alive; called at least hourly."""
        markers.renew(self.store, transaction.id)

    def read_derived(self, name: str, /) -> bytes | None:
        """What `write_derived` kept under this name; None where there is nothing."""
        return read_derived(self.store, name)

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Keep bytes that can be computed again, in the table or in the user's cache where it is read-only."""
        write_derived(self.store, name, data)


class Scratch:
    """Local folders in which shards of a bucket are written before they are put there: one a transaction."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def place(self, store: Store, transaction: str, path: str, /) -> str:
        """Where a file is written that will lie at a path below the root: there, or in a local folder for a bucket."""
        local = store.local(path)
        if local is not None:
            return str(local)
        if transaction not in self._folders:
            self._folders[transaction] = tempfile.mkdtemp(prefix="seqlake-")
        return str(Path(self._folders[transaction], path.rpartition("/")[2]))

    def clear(self, transaction: str, /) -> None:
        """Remove the folder of a transaction that is over."""
        folder = self._folders.pop(transaction, None)
        if folder is not None:
            for path in Path(folder).iterdir():
                path.unlink(missing_ok=True)
            with suppress(OSError):
                Path(folder).rmdir()


def stage(store: Store, transaction: str, written: Written, /) -> Written:
    """Bring a finished shard durably to where all tables have it wait; `location` becomes its path there."""
    return replace(written, location=bring(store, written.location, transaction, target=names.staged))


def bring(
    store: Store,
    location: str,
    transaction: str,
    /,
    *,
    target: Callable[[str], str],
    owner: Callable[[str], str | None] = names.owner,
) -> str:
    """Bring a finished shard durably to its place before the commit; returns its path below the root.

    Args:
        store: The table's root.
        location: Where `place` had it written.
        transaction: Whose it is.
        target: From its name there, where it goes.
        owner: From its name there, whose it is.

    A shard that lies there already is left as it is.

    Raises:
        ValueError: It does not lie where `place` said.
    """
    here = Path(location)
    if owner(here.name) == transaction and location == target(here.name):
        return location
    if owner(here.name) != transaction or here.name.endswith(names.SUFFIX):
        raise ValueError(f"{location!r} is not where `place` puts a shard of transaction {transaction}.")
    path = target(here.name)
    store.put(path, here)
    if not on_disk(store):
        here.unlink(missing_ok=True)
    return path


def sync_folders(store: Store, paths: Iterable[str], /) -> None:
    """Make the names of files durable, and of the folders that were made for them."""
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    store.sync(*sorted("" if folder == "." else folder for folder in folders))


def discard(store: Store, transaction: str, /, *, files: str = names.FILES, others: Iterable[str] = ()) -> None:
    """Remove all that a transaction owns, its marker last.

    Args:
        store: The table's root.
        transaction: Whose.
        files: The folder of copied-in files.
        others: Paths of its data files and of what else only this kind of table has.
    """
    staged = [
        f"{names.STAGED}/{name}"
        for name in own_names(store, names.STAGED)
        if names.staged_owner(name) == transaction and names.marker_owner(name) is None
    ]
    copied = [path for path, _ in list_without_links(store, files) if names.copied_owner(path) == transaction]
    kept = [names.index(transaction), names.media(transaction), names.marker(transaction)]
    remove(store, [*others, *staged, *copied, *kept])

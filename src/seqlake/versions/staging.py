"""Shards and files on their way into a table: durable before the commit, and gone where there is none."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.files.stores import list_without_links
from seqlake.versions import names
from seqlake.versions.small_files import on_disk, own_names, remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from seqlake.protocols import Store


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

    Raises:
        ValueError: It does not lie where `place` said.
    """
    here = Path(location)
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


def discard(store: Store, transaction: str, /, *, files: str, others: Iterable[str]) -> None:
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

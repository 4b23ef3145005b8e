"""Vacuum of a lake: the lake's own expiry, then what is ours and no readable version names."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError
from seqlake.files.stores import list_without_links
from seqlake.tables._lakes import paths, sidecar
from seqlake.tables._lakes.naming import pinned
from seqlake.versions import markers, names
from seqlake.versions.references import named_files
from seqlake.versions.small_files import Removed, own_sizes, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from seqlake.tables._lakes.context import LakeContext
    from seqlake.versions.state import TableFile

UNHEARD = timedelta(hours=2)
"""A transaction that was heard of within this time is never given up: no lake could refuse its commit afterwards."""


def vacuum(context: LakeContext, /, *, limit: datetime, dry_run: bool) -> Removed:
    """Remove what no version that was the newest since `limit` names.

    Args:
        context: The table.
        limit: The moment from which versions stay readable.
        dry_run: Only say what would be removed.

    Returns:
        Paths below the root.
    """
    store = context.store
    # Lists first, then markers, then the lake: whatever a list shows has a marker or a version by then.
    listed = _listed(context)
    staged = own_sizes(store, names.STAGED)
    alive, dead = _transactions(context, limit)
    if not dry_run:
        for transaction in dead:  # the fence: a commit looks for its marker
            with suppress(FileNotFoundError):
                store.delete([names.marker(transaction)])
    expired = context.engine.expire(limit, dry_run=dry_run, keep=partial(pinned, store))
    superfluous = sorted({*_unneeded(context, expired.retained, alive, listed), *_left(staged, alive)})
    superfluous = [path for path in superfluous if path not in expired.removed]
    if not dry_run:
        for path in superfluous:
            with suppress(FileNotFoundError):
                store.delete([path])
    return Removed(sorted({*expired.removed, *superfluous}), {**listed, **staged, **expired.removed})


def _listed(context: LakeContext) -> dict[str, int]:
    """What may be ours, with its size: in `_seqlake/` and the folder of data files, but for datasets in there."""
    listed = dict(list_without_links(context.store, names.OURS))
    folder = context.engine.data_path("", {}).rstrip("/")
    if not paths.is_outside(folder):
        data = dict(list_without_links(context.store, folder))
        others = paths.apart(data)
        listed.update((path, size) for path, size in data.items() if not path.startswith(others))
    return {path: size for path, size in listed.items() if _ours(path)}


def _ours(path: str) -> bool:
    return paths.owner(path) is not None or path.startswith((paths.FILES, names.MEDIA, names.INDEX))


def _transactions(context: LakeContext, limit: datetime) -> tuple[set[str], set[str]]:
    oldest = min(limit, markers.now() - UNHEARD)
    marked = markers.read_all(context.store)
    dead = {marker.transaction for marker in marked if marker.time < oldest}
    return {marker.transaction for marker in marked} - dead, dead


def _left(staged: Iterable[str], alive: set[str]) -> Iterator[str]:
    """What dead transactions left in `staged/`."""
    for path in staged:
        owner = names.staged_owner(path.rpartition("/")[2])
        if owner is not None and owner not in alive:
            yield path


def _named(context: LakeContext, file: TableFile) -> set[str]:
    """Our copied-in files that a shard of another client names; none where a vacuum was faster: nobody reads it."""
    try:
        return {copied.path for copied in named_files(context, file)}
    except DamagedTableError as error:
        # What lies outside the table may be away for a while only.
        if paths.is_outside(file.name) or not isinstance(error.__cause__, FileNotFoundError):
            raise
        return set()


def _unneeded(
    context: LakeContext, retained: Sequence[TableFile], alive: set[str], listed: Iterable[str]
) -> Iterator[str]:
    """Our data files, copied-in files, packet indexes and index files that nothing needs."""
    kept = {file.name for file in retained}
    adders = {owner for path in kept if (owner := paths.owner(path)) is not None}
    known = context.sidecar.find(retained)
    needed = {file.path for path, index in known.items() for file in index.files(path)}
    for file in retained:
        if file.name not in known:  # another client wrote it: its rows may name our files all the same
            needed |= _named(context, file)
    owners = {names.copied_owner(path) for path in needed}
    merged = {sidecar.split(read(context.store, path))[0] for path in listed if path.startswith(paths.MERGED)}
    for path in listed:
        if path.startswith(f"{paths.FILES}/"):
            gone = names.is_dead_copy(path, needed=needed, alive=alive)
        elif path.startswith(f"{names.MEDIA}/"):
            gone = names.is_dead_media(path, owners=owners, alive=alive)
        elif path.startswith(f"{names.INDEX}/"):
            gone = path not in merged and names.is_dead_index(path, adders=adders, alive=alive)
        else:
            ours = path.startswith(f"{names.OURS}/")
            gone = not ours and path not in kept and paths.owner(path) not in alive
        if gone:
            yield path

"""Shards and files on their way into a lake: durable before the commit, and gone where there is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.files.stores import own
from seqlake.spec.schema import ID
from seqlake.tables._lakes import paths
from seqlake.tables.standalone import indexes, names
from seqlake.tables.standalone.log import on_disk
from seqlake.tables.standalone.publishing import own_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.protocols import Store, Written
    from seqlake.tables._lakes.engine import Engine


def stage(engine: Engine, store: Store, transaction: str, written: Written, /) -> Written:
    """Bring a finished shard durably to its place before the commit; `location` becomes its path below the root.

    On disk that is a hidden folder which no vacuum enters; on object stores, where a move is a copy, its final place.

    Raises:
        ValueError: It does not lie where `place` said.
    """
    if is_staged(written.location, transaction):
        return written
    here = Path(written.location)
    if names.owner(here.name) != transaction or here.name.endswith(names.SUFFIX):
        raise ValueError(f"{written.location!r} is not where `place` puts a shard of transaction {transaction}.")
    if on_disk(store):
        path = f"{names.STAGED}/{here.name}"
        store.put(path, here)
    else:
        path = engine.data_path(here.name + names.SUFFIX, written.partition)
        store.put(path, here)
        here.unlink(missing_ok=True)
    return replace(written, location=path)


def texts_of(written: Written, /) -> bytes:
    """The ids of a shard that is still on this machine, packed; empty where it has none."""
    import pyarrow.parquet as pq

    if not written.ids:
        return b""
    column = pq.read_table(written.location, columns=[ID], use_threads=False).column(ID)
    return indexes.pack_texts(column.cast(pa.string()).to_pylist())


def is_staged(location: str, transaction: str, /) -> bool:
    """Whether this is a path below the root where `stage` puts a shard of the transaction."""
    name = location.rpartition("/")[2]
    return not paths.is_outside(location) and names.owner(name) == transaction


def put_in_place(engine: Engine, store: Store, written: Sequence[Written], /) -> list[Written]:
    """Move staged shards to where the lake will name them; nobody reads them before the commit."""
    placed = []
    for one in written:
        path = one.location
        if path.startswith(f"{names.STAGED}/"):
            path = engine.data_path(path.rpartition("/")[2] + names.SUFFIX, one.partition)
            store.move(one.location, path)
        placed.append(replace(one, location=path))
    sync(store, [one.location for one in placed])
    return placed


def sync(store: Store, written: Iterable[str], /) -> None:
    """Make the names of files durable, and of the folders that were made for them."""
    folders = {str(parent) for path in written if not paths.is_outside(path) for parent in Path(path).parents}
    store.sync(*sorted("" if folder == "." else folder for folder in folders))


def discard(store: Store, transaction: str, /, placed: Iterable[str] = ()) -> None:
    """Remove all that a transaction owns, its marker last.

    Args:
        store: The table's root.
        transaction: Whose.
        placed: Its data files, where they are known; others are found by their names.
    """
    known = list(placed) or [path for path, _ in own(store) if paths.owner(path) == transaction]
    staged = [
        f"{names.STAGED}/{name}"
        for name in own_names(store, names.STAGED)
        if names.staged_owner(name) == transaction and names.marker_owner(name) is None
    ]
    copied = [path for path, _ in own(store, paths.FILES) if names.copied_owner(path) == transaction]
    for path in [
        *known,
        *staged,
        *copied,
        names.index(transaction),
        names.media(transaction),
        names.marker(transaction),
    ]:
        with suppress(FileNotFoundError):
            store.delete([path])

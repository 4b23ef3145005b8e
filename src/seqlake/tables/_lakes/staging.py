"""Shards and files on their way into a lake: durable before the commit, and gone where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.files.stores import list_without_links
from seqlake.spec.schema import ID
from seqlake.tables._lakes import paths
from seqlake.versions import indexes, names, staging
from seqlake.versions.small_files import on_disk

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

    def target(name: str) -> str:
        return names.staged(name) if on_disk(store) else engine.data_path(name + names.SUFFIX, written.partition)

    return replace(written, location=staging.bring(store, written.location, transaction, target=target))


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
    staging.sync_folders(store, (path for path in written if not paths.is_outside(path)))


def discard(store: Store, transaction: str, /) -> None:
    """Remove all that a transaction owns, its marker last; its data files are known by their names."""
    placed = [path for path, _ in list_without_links(store) if paths.owner(path) == transaction]
    staging.discard(store, transaction, files=paths.FILES, others=placed)

"""Shards and files on their way into a lake: durable before the commit, and gone where there is none."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.files.stores import list_without_links, open_blob
from seqlake.spec.schema import ID
from seqlake.tables._lakes import paths
from seqlake.versions import indexes, names, shard_formats, staging
from seqlake.versions.small_files import on_disk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.protocols import Store, Transaction, Written
    from seqlake.tables._lakes.context import LakeContext
    from seqlake.tables._lakes.engine import LakeEngine


class LakeStaging:
    """What this process has on its way into one lake table.

    Args:
        context: The table.

    Attributes:
        in_doubt: Transactions whose commit got no answer: it may be made yet, and nothing of theirs is removed.
    """

    def __init__(self, context: LakeContext, /) -> None:
        self.context = context
        self.in_doubt: set[str] = set()
        self._texts: dict[str, bytes] = {}  # of shards staged here, for their sidecar

    def stage(self, transaction: Transaction, written: Written, /) -> Written:
        """Bring a finished shard durably to its place before the commit; `location` becomes its path below the root.

        On disk that is a hidden folder which no vacuum enters; on object stores, where a move is a copy, its final
        place.

        Raises:
            ValueError: It does not lie where `place` said.
        """
        if _is_staged(written.location, transaction.id):
            return written
        store, engine = self.context.store, self.context.engine

        def target(name: str) -> str:
            return names.staged(name) if on_disk(store) else engine.data_path(names.of_bare(name), written.partition)

        texts = _texts_of(written)
        path = staging.bring(store, written.location, transaction.id, target=target)
        if texts:
            self._texts[path.rpartition("/")[2].removesuffix(names.SUFFIX)] = texts
        return replace(written, location=path)

    def texts_of(self, location: str, /) -> bytes:
        """The packed ids of a shard that was staged in this process; empty for others."""
        return self._texts.pop(location.rpartition("/")[2].removesuffix(names.SUFFIX), b"")

    def discard(self, transaction: Transaction, /) -> None:
        """Remove all that a transaction staged, unless it was, or may yet be, committed."""
        # What is in doubt is left to `vacuum`, by when the lake has made up its mind.
        if transaction.id in self.in_doubt or self._holds(transaction):
            return
        store = self.context.store
        placed = [path for path, _ in list_without_links(store) if paths.owner(path) == transaction.id]
        staging.discard(store, transaction.id, files=paths.FILES, others=placed)

    def _holds(self, transaction: Transaction) -> bool:
        return any(file.owner == transaction.id for file in self.context.state().files)


def _texts_of(written: Written) -> bytes:
    """The ids of a shard that is still on this machine, packed; empty where it has none."""
    if not written.ids:
        return b""
    name = names.of_bare(written.location)
    shard = shard_formats.describe(name, open_blob(written.location), rows=written.rows, nbytes=written.nbytes, key="")
    with closing(shard.open()) as reader:
        texts = [batch.column(0).cast(pa.string()).to_pylist() for batch in reader.batches([ID])]
    return indexes.pack_texts([text for part in texts for text in part])


def _is_staged(location: str, transaction: str) -> bool:
    """Whether this is a path below the root where `stage` puts a shard of the transaction."""
    name = location.rpartition("/")[2]
    return not paths.is_outside(location) and names.owner(name) == transaction


def put_in_place(engine: LakeEngine, store: Store, written: Sequence[Written], /) -> list[Written]:
    """Move staged shards to where the lake will name them; nobody reads them before the commit."""
    placed = []
    for one in written:
        path = one.location
        if path.startswith(f"{names.STAGED}/"):
            path = engine.data_path(names.of_bare(path.rpartition("/")[2]), one.partition)
            store.move(one.location, path)
        placed.append(replace(one, location=path))
    sync(store, [one.location for one in placed])
    return placed


def sync(store: Store, written: Iterable[str], /) -> None:
    """Make the names of files durable, and of the folders that were made for them."""
    staging.sync_folders(store, (path for path in written if not paths.is_outside(path)))

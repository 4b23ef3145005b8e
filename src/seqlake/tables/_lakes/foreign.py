"""Shards of other clients: what our own writer would have told of them is read from them, once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from seqlake.protocols import Copied
from seqlake.shards.parquet.building import index_bytes
from seqlake.spec.schema import ID
from seqlake.tables._lakes import types
from seqlake.tables._lakes.shards import LakeBlob, bare_shard
from seqlake.versions import indexes, names
from seqlake.versions.references import own_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.tables._lakes.engine import LakeFile, LakeState
    from seqlake.tables._lakes.shelf import Shelf


def merge(shelf: Shelf, state: LakeState, transaction: str, /) -> None:
    """Put what is known of all shards of a version into one place; shards of other clients are indexed now."""
    files = [file for file in state.files if file.held is None]
    below = shelf.sidecar.below(files)
    if below and shelf.sidecar.merge_above(transaction, _rows(shelf, state, [f for f in files if f.path not in below])):
        return
    shelf.sidecar.merge(transaction, _rows(shelf, state, files))


def _rows(shelf: Shelf, state: LakeState, files: Sequence[LakeFile]) -> list[indexes.IndexRow]:
    known = shelf.sidecar.find(files)
    return [known[file.path].row(file.path) if file.path in known else indexed(shelf, state, file) for file in files]


def indexed(shelf: Shelf, state: LakeState, file: LakeFile, /) -> indexes.IndexRow:
    """What is to know of a shard, read from the shard itself."""
    schema = types.as_schema(state.schema, state.mixtrain, path=shelf.root)
    offsets = b""
    if not file.columns:
        blob = LakeBlob(shelf.store, file.path, file.nbytes, storage=shelf.storage)
        offsets = index_bytes(blob, schema=schema)
    return indexes.IndexRow(
        shard=file.path,
        rows=file.rows,
        nbytes=file.nbytes,
        ids=shelf.ids.packed(file) if ID in state.schema.names else b"",
        index=offsets,
        files=tuple(named_files(shelf, file)),
    )


def named_files(shelf: Shelf, file: LakeFile, /) -> Iterator[Copied]:
    """Our copied-in files that the rows of a shard name: other clients rewrite shards, and the paths stay."""
    # By the columns that it holds, not those of a version: others, or none, may name the files.
    shard = bare_shard(shelf.store, file, storage=shelf.storage, index=None)
    for text in sorted(own_texts(shard)):
        if names.copied_owner(text) is not None:
            with suppress(OSError):
                yield Copied(path=text, size=shelf.store.blob(text).size, sha256="")

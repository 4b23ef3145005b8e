"""Shards of other clients: what our own writer would have told of them is read from them, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.shards.parquet.building import index_bytes
from seqlake.spec.schema import ID
from seqlake.tables._lakes import types
from seqlake.tables._lakes.paths import LakeBlob
from seqlake.versions import indexes, shard_formats
from seqlake.versions.references import named_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.tables._lakes.context import LakeContext
    from seqlake.versions.state import TableFile, TableState


def merge(context: LakeContext, state: TableState, transaction: str, /) -> None:
    """Put what is known of all shards of a version into one place; shards of other clients are indexed now."""
    files = [file for file in state.files if file.held is None]
    grounded = context.sidecar.grounded(files)
    if grounded and context.sidecar.merge_above(
        transaction, _rows(context, state, [f for f in files if f.name not in grounded])
    ):
        return
    context.sidecar.merge(transaction, _rows(context, state, files))


def _rows(context: LakeContext, state: TableState, files: Sequence[TableFile]) -> list[indexes.IndexRow]:
    known = context.sidecar.find(files)
    return [known[file.name].row(file.name) if file.name in known else indexed(context, state, file) for file in files]


def indexed(context: LakeContext, state: TableState, file: TableFile, /) -> indexes.IndexRow:
    """What is to know of a shard, read from the shard itself."""
    schema = types.as_schema(state.schema, state.mixtrain, path=context.root)
    offsets = b""
    if not file.columns and shard_formats.name_of(file.name) == shard_formats.PARQUET:
        blob = LakeBlob(context.store, file.name, file.nbytes, storage=context.storage)
        offsets = index_bytes(blob, schema=schema)
    return indexes.IndexRow(
        shard=file.name,
        rows=file.rows,
        nbytes=file.nbytes,
        ids=context.ids.packed(file) if ID in state.schema.names else b"",
        index=offsets,
        files=tuple(named_files(context, file)),
    )

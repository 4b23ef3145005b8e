"""What only a lake table can know is wrong: findings T501, T502, T506, T509, T510 and those of the shards' bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.spec.findings import Finding
from seqlake.spec.rules import check_places
from seqlake.tables._lakes import paths, types
from seqlake.tables._lakes.context import LakeBlob
from seqlake.tables._lakes.paths import blob_at
from seqlake.versions import markers, names, references
from seqlake.versions.indexes import unknown_shards
from seqlake.versions.small_files import can_list, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Depth
    from seqlake.tables._lakes.context import LakeContext
    from seqlake.versions.state import TableFile, TableState


def check(context: LakeContext, state: TableState, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and what lies beside the table."""
    beside = read(context.store, names.METADATA)
    texts = [(f"table property {types.PROPERTY}", state.mixtrain)]
    yield from check_places([*texts, (names.METADATA, beside.decode(errors="replace"))] if beside else texts)
    yield from _shards(context, state)
    if can_list(context.store):
        yield from markers.findings(context.store)
    yield from _indexes(context, state)
    if depth != "metadata":
        yield from _pages(context, state)
    if depth in {"files", "decode"}:
        yield from references.findings(context.store, context.sidecar.find(state.files))


def _shards(context: LakeContext, state: TableState) -> Iterator[Finding]:
    """T501, T502: shards that are gone or have another size."""
    for file in _in_files(state):
        try:
            size = blob_at(context.store, file.name, storage=context.storage).size
        except FileNotFoundError:
            message = f"version {state.version.id} needs this shard, and it is gone"
            yield Finding(code="T501", severity="error", message=message, location=file.name)
            continue
        if size != file.nbytes:
            message = f"expected {file.nbytes} bytes, as the table says, found {size}"
            yield Finding(code="T502", severity="error", message=message, location=file.name)


def _in_files(state: TableState) -> list[TableFile]:
    return [file for file in state.files if file.held is None]


def _indexes(context: LakeContext, state: TableState) -> Iterator[Finding]:
    """T509: shards of our own whose ids and lengths have to be read from the shard itself."""
    known = context.sidecar.find(state.files)
    yield from unknown_shards(
        file.name for file in state.files if file.name not in known and paths.owner(file.name) is not None
    )


def _pages(context: LakeContext, state: TableState) -> Iterator[Finding]:
    """P601 to P604: what the shards' own bytes say, page checksums among them, and the offset indexes of them."""
    from seqlake.shards.parquet import checking as parquet

    known = context.sidecar.find(state.files)
    for file in _in_files(state):
        kept = known[file.name].offsets(file.name) if file.name in known else None
        try:
            blob = LakeBlob(context.store, file.name, file.nbytes, storage=context.storage)
            for finding in parquet.check(blob, outside=kept):
                yield replace(finding, location=file.name)
        except (DamagedTableError, ShardChangedError, OSError):
            continue  # T501 and T502 say so

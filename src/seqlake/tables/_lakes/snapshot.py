"""A version of a lake table, with what only lakes know of it: partitions, bounds, and what is wrong.

Findings T501, T502, T506, T509, T510 and those of the shards' bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.spec.findings import Finding
from seqlake.spec.rules import check_places
from seqlake.tables._lakes import paths, types
from seqlake.tables._lakes.context import LakeBlob, bare_shard
from seqlake.tables._lakes.paths import blob_at
from seqlake.versions import markers, names, references, shard_formats
from seqlake.versions.indexes import unknown_shards
from seqlake.versions.small_files import can_list, read
from seqlake.versions.snapshot import TableSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Depth
    from seqlake.tables._lakes.context import LakeContext
    from seqlake.versions.state import TableFile, TableState


class LakeSnapshot(TableSnapshot):
    """One version of a lake table: `HasBounds` and `Checked` besides."""

    context: LakeContext

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns that the lake partitions by."""
        return self.state.partition_by

    @property
    def is_typed(self) -> bool:
        """Whether the table has the property that makes it a Mixtrain dataset."""
        return bool(self.state.mixtrain)

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the least and the most that a column has in each, as partition or by the lake's statistics.

        (None, None) where every cell is null; None where nothing is known.
        """
        return [_bounds(file, column) for file in self.state.files]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the table can know is wrong: missing, changed or torn shards, files that are gone."""
        return findings(self.context, self.state, depth)


def _bounds(file: TableFile, column: str) -> tuple[object, object] | None:
    if column in file.constants:
        return file.constants[column], file.constants[column]
    low, high, _ = file.statistics.get(column, (None, None, 0))
    return None if low is None or high is None else (low, high)


def findings(context: LakeContext, state: TableState, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and what lies beside the table."""
    beside = read(context.store, names.METADATA)
    texts = [(f"table property {types.PROPERTY}", state.mixtrain)]
    yield from check_places([*texts, (names.METADATA, beside.decode(errors="replace"))] if beside else texts)
    yield from _missing(context, state)
    if can_list(context.store):
        yield from markers.findings(context.store)
    yield from _indexes(context, state)
    if depth != "metadata":
        yield from _pages(context, state)
    if depth in {"files", "decode"}:
        yield from references.findings(context.store, context.sidecar.find(state.files))


def _missing(context: LakeContext, state: TableState) -> Iterator[Finding]:
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
            if shard_formats.name_of(file.name) != shard_formats.PARQUET:
                bare = bare_shard(context.store, file, storage=context.storage, index=None)
                yield from shard_formats.findings(bare, file.name)
                continue
            blob = LakeBlob(context.store, file.name, file.nbytes, storage=context.storage)
            for finding in parquet.check(blob, outside=kept):
                yield replace(finding, location=file.name)
        except (DamagedTableError, ShardChangedError, OSError):
            continue  # T501 and T502 say so

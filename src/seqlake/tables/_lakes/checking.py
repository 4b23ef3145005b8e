"""What only a lake table can know is wrong: findings T501, T502, T506, T509, T510 and those of the shards' bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.spec.findings import Finding
from seqlake.tables._lakes import paths
from seqlake.tables._lakes.paths import blob_at
from seqlake.tables._lakes.shards import LakeBlob
from seqlake.versions import markers
from seqlake.versions.small_files import can_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Depth
    from seqlake.tables._lakes.engine import LakeFile
    from seqlake.tables._lakes.snapshot import LakeSnapshot


def check(snapshot: LakeSnapshot, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and what lies beside the table."""
    yield from _shards(snapshot)
    if can_list(snapshot.shelf.store):
        yield from markers.findings(snapshot.shelf.store)
    yield from _indexes(snapshot)
    if depth != "metadata":
        yield from _pages(snapshot)
    if depth in {"files", "decode"}:
        yield from _files(snapshot)


def _shards(snapshot: LakeSnapshot) -> Iterator[Finding]:
    """T501, T502: shards that are gone or have another size."""
    shelf = snapshot.shelf
    for file in _in_files(snapshot):
        try:
            size = blob_at(shelf.store, file.path, storage=shelf.storage).size
        except FileNotFoundError:
            message = f"version {snapshot.version.id} needs this shard, and it is gone"
            yield Finding(code="T501", severity="error", message=message, location=file.path)
            continue
        if size != file.nbytes:
            message = f"expected {file.nbytes} bytes, as the table says, found {size}"
            yield Finding(code="T502", severity="error", message=message, location=file.path)


def _in_files(snapshot: LakeSnapshot) -> list[LakeFile]:
    return [file for file in snapshot.state.files if file.held is None]


def _indexes(snapshot: LakeSnapshot) -> Iterator[Finding]:
    """T509: shards whose ids and lengths have to be read from the shard itself."""
    known = snapshot.shelf.sidecar.find(snapshot.state.files)
    for file in snapshot.state.files:
        if file.path not in known and paths.owner(file.path) is not None:
            yield Finding(
                code="T509",
                severity="note",
                message="no index file knows this shard, so that opening it for writing reads its ids",
                location=file.path,
            )


def _pages(snapshot: LakeSnapshot) -> Iterator[Finding]:
    """P601 to P604: what the shards' own bytes say, page checksums among them, and the offset indexes of them."""
    from seqlake.shards.parquet import checking as parquet

    shelf = snapshot.shelf
    known = shelf.sidecar.find(snapshot.state.files)
    for file in _in_files(snapshot):
        kept = known[file.path].offsets(file.path) if file.path in known else None
        try:
            blob = LakeBlob(shelf.store, file.path, file.nbytes, storage=shelf.storage)
            for finding in parquet.check(blob, outside=kept):
                yield replace(finding, location=file.path)
        except (DamagedTableError, ShardChangedError, OSError):
            continue  # T501 and T502 say so


def _files(snapshot: LakeSnapshot) -> Iterator[Finding]:
    """T510: copied-in files that are gone or have another size."""
    store = snapshot.shelf.store
    for path, known in snapshot.shelf.sidecar.find(snapshot.state.files).items():
        for file in known.files(path):
            try:
                size = store.blob(file.path).size
                why = "" if size == file.size else f"expected {file.size} bytes, found {size}"
            except FileNotFoundError:
                why = "copied in, and gone"
            if why:
                yield Finding(code="T510", severity="error", message=why, location=file.path)

"""Files of a version with all that a shard must say of itself: rows and bytes that the lake does not know are read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.shards.parquet.footer import read_footer
from seqlake.tables._lakes.paths import blob_at
from seqlake.versions.small_files import PARALLEL

if TYPE_CHECKING:
    from seqlake.tables._lakes.engine import LakeFile, LakeState
    from seqlake.tables._lakes.shelf import Shelf


def resolved(shelf: Shelf, state: LakeState, /) -> LakeState:
    """The state with rows and bytes of every file, and the rows of the version."""
    unknown = [file for file in state.files if file.rows < 0 or file.nbytes < 0]
    if unknown:
        with ThreadPoolExecutor(PARALLEL) as pool:
            found = dict(zip((f.path for f in unknown), pool.map(lambda f: _read(shelf, f), unknown), strict=True))
        state = replace(state, files=[found.get(file.path, file) for file in state.files])
    rows = sum(file.live for file in state.files)
    return state if state.version.rows == rows else replace(state, version=replace(state.version, rows=rows))


def _read(shelf: Shelf, file: LakeFile) -> LakeFile:
    blob = blob_at(shelf.store, file.path, storage=shelf.storage)
    return replace(file, rows=read_footer(blob).rows, nbytes=blob.size)

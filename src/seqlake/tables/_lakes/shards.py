"""Files of a version as shards: the bytes, the rows that are left, the columns that the version shows."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from seqlake.abilities import WholeFiles, ability
from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.shards.files import ParquetShard
from seqlake.shards.memory import ArrowShard
from seqlake.shards.rows import Rows
from seqlake.tables._lakes.believed import believed
from seqlake.tables._lakes.paths import blob_at, is_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.protocols import Blob, Ints, Shard, Store
    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.engine import LakeFile
    from seqlake.tables._lakes.sidecar import Sidecar

_Found = TypeVar("_Found")


class LakeBlob:
    """A data file by its path: looked for when its bytes are first asked for; picklable.

    Args:
        store: The table's root.
        path: As in `LakeFile.path`.
        nbytes: Its size, which the bytes found must have.
        storage: Options of obstore, for a file outside the root.
    """

    def __init__(self, store: Store, path: str, nbytes: int, /, *, storage: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._path = path
        self._nbytes = nbytes
        self._storage = storage
        self._found: Blob | None = None

    def __repr__(self) -> str:
        return f"LakeBlob({self.location!r}, nbytes={self._nbytes})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}  # a handle belongs to one process

    @property
    def location(self) -> str:
        """Its path or URI."""
        return self._path if "://" in self._path or self._path[:1] == "/" else f"{self._store.root}/{self._path}"

    @property
    def size(self) -> int:
        """Its size, as the lake says."""
        return self._nbytes

    @property
    def token(self) -> str:
        """The token of the bytes that were found."""
        found = self._on_bytes(lambda blob: blob.token)
        if not found:  # not looked at yet
            self._found = blob_at(self._store, self._path, storage=self._storage)
            found = self._found.token
        return found

    def view(self) -> memoryview | None:
        """All of it as memory, as the store's own blob gives it."""
        return self._on_bytes(lambda blob: blob.view())

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Many ranges in few requests."""
        return self._on_bytes(lambda blob: blob.ranges(starts, stops))

    def _on_bytes(self, read: Callable[[Blob], _Found]) -> _Found:
        try:
            if self._found is None:
                self._found = self._look()
            return read(self._found)
        except FileNotFoundError as error:
            raise DamagedTableError(
                f"{self.location} is gone: this version of the table names it, but its bytes were removed by a "
                "vacuum, an expiry or something else.",
                path=self.location,
                hint="Open a newer version; `ds.versions()` lists them.",
            ) from error
        except ShardChangedError:
            raise
        except OSError:
            self._refuse_another_size(blob_at(self._store, self._path, storage=self._storage).size)
            raise

    def _look(self) -> Blob:
        whole = None if is_outside(self._path) else ability(self._store, WholeFiles)
        if whole is not None:  # the first bytes tell whether it has this size
            return whole.known(self._path, self._nbytes)
        blob = blob_at(self._store, self._path, storage=self._storage)
        self._refuse_another_size(blob.size)
        return blob

    def _refuse_another_size(self, size: int) -> None:
        if size != self._nbytes:
            raise ShardChangedError(
                f"Expected {self._nbytes} bytes at {self.location}, as the table says, found {size}.",
                path=self.location,
            )


def bare_shard(
    store: Store, file: LakeFile, /, *, storage: Mapping[str, str] | None, index: bytes | None
) -> ParquetShard | ArrowShard:
    """A file with its own columns and all its rows; `index` is kept outside the file."""
    if file.held is not None:
        held = ArrowShard(file.held)
        return ArrowShard(file.held, key=f"{file.path}#{held.key.rpartition('#')[2]}")
    blob = LakeBlob(store, file.path, file.nbytes, storage=storage)
    # A path may occur in many tables; where a table lies tells them apart.
    told = f"{store.root}\0{file.path}\0{file.nbytes}\0{file.rows}"
    key = f"{file.path}#{blake2b(told.encode(), digest_size=8).hexdigest()}"
    return ParquetShard(blob=blob, rows=file.rows, nbytes=file.nbytes, key=key, index=index)


def kept_rows(file: LakeFile, /) -> Ints | None:
    """[live rows] row number in the file of each; None where none is deleted."""
    if file.deleted is None or not len(file.deleted):
        return None
    return np.setdiff1d(np.arange(file.rows, dtype=np.int64), file.deleted)


def logical_shard(
    store: Store,
    file: LakeFile,
    schema: Schema,
    /,
    *,
    storage: Mapping[str, str] | None = None,
    index: bytes | None = None,
    sidecar: Sidecar | None = None,
) -> Shard:
    """A file as the version shows it: without its deleted rows, with the version's columns and types.

    Args:
        store: The table's root.
        file: The file.
        schema: The version's columns.
        storage: obstore's options, for files outside the root.
        index: An offset index kept outside the file.
        sidecar: What is believed of the file without asking it.
    """
    shard = bare_shard(store, file, storage=storage, index=index)
    if sidecar is not None and isinstance(shard, ParquetShard):
        stored = {name: schema[column] for column in schema for name in file.stored_names(column)}
        shard = believed(shard, file, sidecar, stored)
    keep = kept_rows(file)
    return file.shown(shard if keep is None else Rows(shard, keep), schema)

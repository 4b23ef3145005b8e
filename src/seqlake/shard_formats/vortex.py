"""Vortex files as shards: small, quickly decoded, and never raw, so every read goes through Vortex.

A Vortex file has no place for what a dataset says of itself; `mixtrain.json` beside it has. Durations lie as integers
and bytes of a fixed size as plain bytes, which Vortex has not: the table's schema shows them as they were.
"""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.plugins import require
from seqlake.shards.engines import EngineReader, EngineWriter, damage_of
from seqlake.shards.parquet.layout import refuse_unknown
from seqlake.spec.schema import is_list, without_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.protocols import Blob, Ints
    from seqlake.spec.schema import Schema

_END = 8  # version, length of the postscript, magic


def open(blob: Blob, /) -> VortexReader:  # noqa: A001 - the verb of the ShardFormat protocol
    """Open a Vortex file as a shard; nothing is read yet.

    Example:
        ```python
        reader = open(open_blob("part-0.vortex"))
        reader.lengths("action")[:3]  # array([54, 40, 59])
        ```
    """
    return VortexReader(blob)


def create(
    path: Path,
    schema: Schema,
    /,
    *,
    layout: str = "training",
    fixed_size_inner: bool = False,
    ids: Mapping[str, int] | None = None,
) -> VortexWriter:
    """Begin a Vortex file.

    Args:
        path: Where the file will lie.
        schema: Its columns.
        layout: `training` (quicker to decode) or `archive` (compact).
        fixed_size_inner: Steps of known size are stored as such.
        ids: Vortex files have no numbers of fields.

    Raises:
        MissingDependencyError: The package `vortex-data` is not installed.
        ValueError: An unknown layout.
    """
    del fixed_size_inner, ids
    refuse_unknown(layout)
    return VortexWriter(Path(path), schema, layout=layout)


class VortexWriter(EngineWriter):
    """One Vortex file being written; row groups wait on the disk, since Vortex takes a whole file at once."""

    def __init__(self, path: Path, schema: Schema, /, *, layout: str) -> None:
        super().__init__(path, schema, schema.stored(fixed_size_inner=True))
        self._layout = layout
        self._held = pa.schema([field.with_type(_kept(field.type)) for field in self._stored])
        self._spool: Any = None
        self._stream: Any = None
        self._engine = require("vortex.io", extra="vortex")

    def _written(self) -> int:
        return int(self._spool.tell()) if self._spool is not None else 0

    def _shown(self) -> pa.Schema:
        return pa.schema([field.with_type(without_views(field.type)) for field in self._held])

    def _append(self, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            self._spool = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115 - closed when the shard is
            self._stream = pa.ipc.new_stream(pa.PythonFile(self._spool, "w"), self._held)
        self._stream.write_batch(batch.cast(self._held))

    def _end(self) -> None:
        options = self._engine.VortexWriteOptions
        writing = options.compact() if self._layout == "archive" else options.default()
        if self._stream is None:
            writing.write(self._held.empty_table(), str(self._path))
            return
        self._stream.close()
        self._spool.seek(0)
        writing.write(pa.ipc.open_stream(pa.PythonFile(self._spool, "r")), str(self._path))
        self._spool.close()

    def _tail_bytes(self) -> int:
        with self._path.open("rb") as file:
            file.seek(-_END, 2)
            return _tail(file.read(_END))

    def _give_up(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._path.unlink(missing_ok=True)


def _tail(end: bytes) -> int:
    """Bytes at the end of a file that a reader looks for there: the postscript, and what says its length."""
    return _END + int.from_bytes(end[2:4], "little")


def _kept(kind: pa.DataType) -> pa.DataType:
    """The type that Vortex has for an Arrow type."""
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_kept(kind.value_type), kind.list_size)
    if is_list(kind):
        return pa.list_(_kept(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_kept(field.type)) for field in kind])
    if pa.types.is_map(kind):
        fields = (field.with_type(_kept(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    return kind


class _Ranges:
    """A file as Vortex reads it: what was changed ends here, since its decoder may abort the process over it."""

    def __init__(self, reader: VortexReader, /) -> None:
        self._reader = reader

    def size(self) -> int:
        return self._reader.blob.size

    def read_at(self, offset: int, length: int) -> bytes:
        return self._reader.compared(offset, offset + length)


class VortexReader(EngineReader):
    """One open Vortex file."""

    def tail_of(self, end: memoryview) -> int:
        """What the last bytes say of the postscript."""
        return _tail(bytes(end[-_END:])) if len(end) >= _END else 0

    @cached_property
    def _file(self) -> Any:
        engine = require("vortex", extra="vortex")
        with damage_of(self.blob):
            return engine.open_readable(_Ranges(self))

    def looked_at(self) -> tuple[int, pa.Schema]:
        """Rows and Arrow schema of a file of somebody else."""
        stored = self._file.dtype.to_arrow_schema()
        return len(self._file), pa.schema([field.with_type(without_views(field.type)) for field in stored])

    def decoded(self, columns: list[str], start: int, count: int, size: int) -> Iterator[pa.RecordBatch]:
        """Rows that follow each other."""
        del size
        if (start, count) == (0, self.rows):
            yield from self.sound(_batches(self._file.scan(columns)))
            return
        yield self.taken(columns, np.arange(start, start + count))

    def taken(self, columns: list[str], rows: Ints) -> pa.RecordBatch:
        """Rows in ascending order."""
        engine = require("vortex", extra="vortex")
        batches = _batches(self._file.scan(columns, indices=engine.array(pa.array(rows, pa.uint64()))))
        return pa.Table.from_batches(list(self.sound(batches))).combine_chunks().to_batches()[0]


def _batches(scanned: Any) -> Iterator[pa.RecordBatch]:
    """What is scanned, array by array: over an error in a stream of Arrow's C interface, Vortex may end the process."""
    for array in scanned:
        yield from array.to_arrow_table().to_batches()

"""Lance files as shards: signals lie raw in them, so windows are read in place and without Lance, all else through it.

One shard is one Lance file (format 2), not a Lance dataset, which is a folder of them with versions of its own. In the
layout `training` it has format 2.0, which keeps the steps of a row in one piece as they are; `archive`, and tables with
columns that 2.0 lacks (structs, maps), have format 2.2, which compresses.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, ForkedProcessError, SchemaMismatchError
from seqlake.files.locations import is_local, local_path
from seqlake.plugins import require
from seqlake.shard_formats._lance_map import FOOTER, LanceMap, columns_of, footer_of
from seqlake.shards.engines import EngineReader, EngineWriter, changed, damage_of, end_of, refuse_dotted
from seqlake.shards.parquet.layout import refuse_unknown
from seqlake.spec.schema import is_binary, is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.protocols import Blob, Ints
    from seqlake.spec.schema import Schema

_TAIL = FOOTER.size
_PIECE = 64 << 20
_PAGE = 1 << 30  # no page ends within a row group


_OF_PARENT: list[bool] = []  # in a process that was forked off one in which Lance was: its threads are not here


def _remember_fork() -> None:
    if "lance" in sys.modules:
        _OF_PARENT.append(True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_fork)


def package(module: str = "lance.file", /) -> Any:
    """A module of Lance's package.

    Raises:
        MissingDependencyError: It is not installed.
        ForkedProcessError: This process would hang or crash in it.
    """
    if _OF_PARENT:
        raise ForkedProcessError(
            "Lance does not survive a fork: the process that this one was forked from had used it.",
            hint='Start workers with multiprocessing_context="forkserver" or "spawn"; windows of Lance shards in the '
            "layout `training` need no Lance in the workers.",
        )
    return require(module, extra="lance")


def open(blob: Blob, /) -> LanceReader:  # noqa: A001 - the verb of the ShardFormat protocol
    """Open a Lance file as a shard; nothing is read yet.

    Example:
        ```python
        reader = open(open_blob("part-0.lance"))
        reader.flat("action").shape  # (12,)
        ```
    """
    return LanceReader(blob)


def create(
    path: Path,
    schema: Schema,
    /,
    *,
    layout: str = "training",
    fixed_size_inner: bool = False,
    ids: Mapping[str, int] | None = None,
) -> LanceWriter:
    """Begin a Lance file.

    Args:
        path: Where the file will lie.
        schema: Its columns.
        layout: `training` (windows without decoding) or `archive` (smaller).
        fixed_size_inner: Lance needs no other form: steps of known size are stored as such.
        ids: Lance files have no numbers of fields.

    Raises:
        MissingDependencyError: The package `pylance` is not installed.
        SchemaMismatchError: A column with a dot in its name, or with lists of text or bytes that have a fixed size.
        ValueError: An unknown layout.
    """
    del fixed_size_inner, ids
    refuse_unknown(layout)
    refuse_dotted(schema, "Lance")
    for name, column in schema.items():
        if _sizes_text(column.stored(fixed_size_inner=True)):
            raise SchemaMismatchError(
                f"Column {name!r}: Lance does not write lists of a fixed size that hold text or bytes, found "
                f"{column.arrow}.",
                hint="Declare lists without a size, or take shards of another kind.",
            )
    return LanceWriter(Path(path), schema, layout=layout)


def _sizes_text(kind: pa.DataType) -> bool:
    """Whether its encoder panics over it."""
    if pa.types.is_fixed_size_list(kind) and (is_text(kind.value_type) or is_binary(kind.value_type)):
        return True
    return any(_sizes_text(kind.field(number).type) for number in range(kind.num_fields))


class LanceWriter(EngineWriter):
    """One Lance file being written."""

    def __init__(self, path: Path, schema: Schema, /, *, layout: str) -> None:
        stored = schema.stored(fixed_size_inner=True)
        super().__init__(path, schema, stored)
        self._version = "2.2" if layout == "archive" or any(needs_newer(field.type) for field in stored) else "2.0"
        self._file: Any = None
        self._engine = package()

    def _written(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _open(self) -> Any:
        if self._file is None:
            self._path.unlink(missing_ok=True)
            self._file = self._engine.LanceFileWriter(
                str(self._path), self._stored, version=self._version, max_page_bytes=_PAGE
            )
        return self._file

    def _append(self, batch: pa.RecordBatch) -> None:
        self._open().write_batch(batch)

    def _end(self) -> None:
        self._open().close()

    def _placed(self) -> dict[str, list[int]]:
        """Where pages of values lie that are raw, as the file says; a portion lies in one page."""
        if self._version != "2.0":
            return {}
        columns = iter(self._engine.LanceFileReader(str(self._path)).metadata().columns)
        placed = {}
        for field in self._stored:
            parts = [next(columns) for _ in range(columns_of(field.type))]
            if field.name in self._steps and self._steps[field.name].regular:
                starts = _starts(
                    [(b.position, b.size) for page in parts[-1].pages for b in page.buffers], self._portions[field.name]
                )
                if starts is not None:
                    placed[field.name] = starts
        return placed

    def _tail_bytes(self) -> int:
        return _TAIL

    def _give_up(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                file.close()
        self._path.unlink(missing_ok=True)


def _starts(pages: list[tuple[int, int]], portions: Any) -> list[int] | None:
    """Where each portion begins, if they fill the pages one after the other and none lies in two; else None."""
    starts: list[int] = []
    left, at, rest = iter(pages), 0, 0
    for portion in portions:
        if rest == 0 and portion.nbytes:
            at, rest = next(left, (0, 0))
        if portion.nbytes > rest:
            return None
        starts.append(at)
        at, rest = at + portion.nbytes, rest - portion.nbytes
    return starts if rest == 0 and next(left, None) is None else None


def needs_newer(kind: pa.DataType, /) -> bool:
    """Whether format 2.0 has no such columns, or none with nulls."""
    if is_list(kind):
        return needs_newer(kind.value_type)
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind))


class LanceReader(EngineReader):
    """One open Lance file."""

    def _path(self) -> str:
        """The file on this machine, which Lance reads itself: where it lies, else a copy that goes with this reader."""
        if is_local(self.blob.location):
            with contextlib.suppress(OSError):
                path = local_path(self.blob.location)
                if path.stat().st_size == self.blob.size:
                    return str(path)
        return self._copy

    @cached_property
    def _copy(self) -> str:
        folder = tempfile.mkdtemp(prefix="seqlake-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder, "shard.lance")
        with path.open("wb") as file:
            for start in range(0, self.blob.size, _PIECE):
                stop = min(start + _PIECE, self.blob.size)
                file.write(self.blob.ranges(np.array([start]), np.array([stop]))[0])
        return str(path)

    @cached_property
    def _map(self) -> LanceMap | None:
        """Where everything lies in a file of ours, all that says it compared; of one of somebody else, only that the
        numbers at its end can be so, since Lance takes memory for them.
        """
        end = end_of(self.blob)[-_TAIL:]
        if self.trailer is None:
            footer_of(end, nbytes=self.blob.size, location=self.blob.location)
            return None
        nbytes = self.trailer.nbytes
        if self.compared(nbytes - _TAIL, nbytes) != bytes(end):
            raise changed(self.blob, "its last bytes")
        footer = footer_of(end, nbytes=nbytes, location=self.blob.location)
        parts = self.compared(footer.columns_at, nbytes)
        known = LanceMap(parts, footer, self.trailer.schema, rows=self.trailer.rows, location=self.blob.location)
        self.compare_parts(*known.buffers())
        return known

    def _file(self, columns: list[str] | None = None, rows: Ints | None = None) -> Any:
        """Lance's reader, of which these rows of these columns are to be decoded."""
        if self._map is not None and columns is not None and rows is not None:
            self.compare_parts(*self._map.parts(columns, rows))
        engine, path = package(), Path(self._path())
        try:
            with damage_of(self.blob):
                return engine.LanceFileReader(str(path), columns=columns)
        except CorruptFileError:
            if path.exists():
                raise
        with damage_of(self.blob):  # It retired before Lance had opened it.
            return engine.LanceFileReader(self._path(), columns=columns)

    def tail_of(self, end: memoryview) -> int:
        """The same for every file of Lance."""
        del end
        return _TAIL

    def looked_at(self) -> tuple[int, pa.Schema]:
        """Rows and Arrow schema of a file of somebody else."""
        metadata = self._file().metadata()
        return int(metadata.num_rows), metadata.schema.remove_metadata()

    def decoded(self, columns: list[str], start: int, count: int, size: int) -> Iterator[pa.RecordBatch]:
        """Rows that follow each other."""
        file = self._file(columns, np.arange(start, start + count))
        yield from self.sound(file.read_range(start, count, batch_size=size).to_batches())

    def taken(self, columns: list[str], rows: Ints) -> pa.RecordBatch:
        """Rows in ascending order."""
        parts = self._file(columns, rows).take_rows(rows.tolist(), batch_size=rows.size).to_batches()
        return pa.Table.from_batches(list(self.sound(parts))).combine_chunks().to_batches()[0]

"""Writes a Parquet shard as a stream: bounded memory, and the offset index inside the file."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.protocols import Written
from seqlake.shards import cells, ids
from seqlake.shards.parquet import footer, index, layout
from seqlake.shards.parquet.pages import walk
from seqlake.shards.parquet.statistics import Statistics
from seqlake.shards.parquet.steps import ColumnSteps, leaf_entries, stored_name
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from seqlake.spec.schema import Column, Schema


_MOST_BATCHES = 512  # that wait without being joined
_SMALL = 8 << 20  # bytes of batches that are worth copying into one
# Bytes written by one call: what is written in large pieces lies in large pages of the system's cache, which a loader
# reads faster.
_BLOCK = 16 << 20


class ParquetWriter:
    """One Parquet file being written; made by `create`, which opens nothing before the first row group is full."""

    def __init__(
        self, path: Path, schema: Schema, /, *, layout: str, fixed_size_inner: bool, ids: Mapping[str, int]
    ) -> None:
        self._path = path
        self._schema = schema
        self._layout = layout
        self._ids = ids
        self._stored = schema.stored(fixed_size_inner=fixed_size_inner)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._tail: list[pa.RecordBatch] = []  # the newest of what waits
        self._rows = 0
        self._sink: pa.NativeFile | None = None
        self._file: Any = None
        self._optional: list[bool] = []
        self._steps = {name: _steps_of(schema[name], self._stored.field(name)) for name in schema}
        self._statistics = Statistics([n for n in schema if schema[n].category == "scalar"])
        self._hashes: list[NDArray[np.uint64]] = []
        self._headers: list[bytes] = []

    @property
    def nbytes(self) -> int:
        """Bytes written so far, rows that wait for their row group not counted."""
        return int(self._sink.tell()) if self._sink is not None else 0

    @property
    def pending(self) -> int:
        """Decoded bytes that wait for their row group."""
        return self._pending_bytes

    def write(self, batch: pa.RecordBatch, /) -> None:
        """Add rows; a row group is written whenever 64 MiB of decoded data are there.

        Args:
            batch: Columns by name, of the schema's logical types or castable to them; absent columns are null.

        Raises:
            SchemaMismatchError: Unknown columns, types or steps that do not fit, null where it is not allowed.
            ValidationError: A cell above 1 GiB.
        """
        rest = self._conform(batch)
        _refuse_long_cells(rest)
        while rest.num_rows:
            count = _fitting(rest, layout.ROW_GROUP - self._pending_bytes, layout.MOST_ROWS - self._pending_rows)
            if count == 0 and not self._pending_rows:
                count = 1  # a cell larger than a row group has one of its own
            if count:
                part, rest = rest.slice(0, count), rest.slice(count)
                self._tail.append(part)
                self._pending_bytes += part.nbytes
                self._pending_rows += count
                if len(self._tail) >= _MOST_BATCHES:
                    self._join()
            if rest.num_rows or self._pending_bytes >= layout.ROW_GROUP:
                self._flush()

    def close(self) -> Written:
        """Write the rest, the index and the footer.

        Returns:
            What the shard holds; `partition`, `files` and `references` are the caller's.
        """
        try:
            self._flush()
            self._open(rows=0)
            assert self._sink is not None
            encoded = index.encode(self._index())
            # The bytes lie before the page index; pyarrow's own offsets follow, since the sink is shared.
            pointer = index.pointer(encoded, offset=self._sink.tell())
            self._sink.write(encoded)
            self._file.add_key_value_metadata({index.KEY: pointer, footer.SEAL: footer.BLANK})
            self._file.close()
            self._sink.close()
            _seal(self._path)
        except BaseException:
            self.abort()
            raise
        return Written(
            location=str(self._path),
            rows=self._rows,
            nbytes=self._path.stat().st_size,
            partition={},
            statistics=self._statistics.result(),
            ids=ids.pack(np.concatenate(self._hashes)) if self._hashes else b"",
            index=encoded,
        )

    def abort(self) -> None:
        """Give up: the file is removed."""
        if self._file is not None:
            self._file.is_open = False  # else pyarrow writes a footer when it is collected
        if self._sink is not None:
            self._raw.close()
            with contextlib.suppress(OSError, pa.ArrowInvalid):  # what it still holds goes nowhere
                self._sink.close()
            self._path.unlink(missing_ok=True)
        self._wait_for_none()

    def _wait_for_none(self) -> None:
        self._pending, self._tail, self._pending_bytes, self._pending_rows = [], [], 0, 0

    def _join(self) -> None:
        """Make one batch of many small ones: a batch of one row takes more memory than the row."""
        if sum(batch.nbytes for batch in self._tail) < _SMALL:
            self._tail = pa.Table.from_batches(self._tail, self._stored).combine_chunks().to_batches()
        self._pending += self._tail
        self._tail = []

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        unknown = [name for name in batch.schema.names if name not in self._schema]
        if unknown or len(set(batch.schema.names)) < len(batch.schema.names):
            raise SchemaMismatchError(
                f"Expected columns among {self._schema.names}, each once, found {batch.schema.names}.",
                hint="Add new columns to the dataset first (`add_column`), or leave them out.",
            )
        arrays = []
        for field in self._stored:
            if field.name in batch.schema.names:
                array = _conformed(batch.column(field.name), self._schema[field.name], field.type)
            else:
                array = pa.nulls(batch.num_rows, field.type)
            if array.null_count and not field.nullable:
                raise SchemaMismatchError(
                    f"Column {field.name!r}: expected a value in every row, found null or nothing."
                )
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._stored)

    def _open(self, *, rows: int) -> None:
        """Create the file, once."""
        if self._file is not None:
            return
        steps = {name: "steps" for name, steps in self._steps.items() if steps is not None}
        media = {f.name: "media" for f in self._stored if f.name not in steps and _holds_bytes(f.type)}
        bloom = [self._schema.id] if self._schema.id is not None and rows else []
        options = layout.settings(self._stored, layout=self._layout, roles={**steps, **media}, bloom=bloom, rows=rows)
        self._raw = new_file(self._path)
        self._sink = pa.BufferedOutputStream(self._raw, _BLOCK)
        self._file = pq.ParquetWriter(self._sink, layout.numbered(self._stored, self._ids), **options)
        parquet = layout.parquet_schema(self._stored)
        self._optional = [parquet.column(i).max_definition_level > 0 for i in range(len(parquet))]

    def _flush(self) -> None:
        """Write what waits as one row group, and walk its pages."""
        self._join()
        table = pa.Table.from_batches(self._pending, self._stored)
        self._wait_for_none()
        if table.num_rows == 0:
            return
        self._open(rows=table.num_rows)
        assert self._sink is not None
        start = self._sink.tell()
        self._file.write_table(table, row_group_size=table.num_rows)
        self._sink.flush()
        self._learn(table, start=start, stop=self._sink.tell())
        self._rows += table.num_rows

    def _learn(self, table: pa.Table, *, start: int, stop: int) -> None:
        """Lengths, ids and statistics from the rows; page positions from the bytes just written."""
        if self._schema.id is not None:
            self._hashes.append(ids.hash_ids(table[self._schema.id]))
        self._statistics.add(table)
        with self._path.open("rb") as file, mmap.mmap(file.fileno(), stop, access=mmap.ACCESS_READ) as mapped:
            data = memoryview(mapped)
            try:
                end = self._walk(table, data, start)
            finally:
                data.release()
        if end != stop:
            raise ValidationError(f"Expected pages up to byte {stop} of {self._path}, found them up to {end}.")

    def _walk(self, table: pa.Table, data: memoryview, at: int) -> int:
        leaf = 0
        for name in table.schema.names:
            column = table[name]
            counts = np.sum([leaf_entries(chunk) for chunk in column.chunks], axis=0).tolist()
            steps = self._steps[name]
            for count in counts:
                pages = list(walk(data, start=at, values=count))
                self._headers.append(index.digest(b"".join(bytes(data[p.offset : p.body]) for p in pages)))
                if steps is not None:
                    for chunk in column.chunks:
                        steps.add(chunk)
                    steps.place(
                        data,
                        pages,
                        first_row=self._rows,
                        optional=self._optional[leaf],
                        flat=self._layout == "training",
                    )
                at = pages[-1].stop
                leaf += 1
        return at

    def _index(self) -> index.OffsetIndex:
        columns = {name: steps.entry() for name, steps in self._steps.items() if steps is not None}
        return index.OffsetIndex(columns=columns, headers=self._headers)


def _steps_of(column: Column, field: pa.Field) -> ColumnSteps | None:
    """What the index must learn of a column; None for columns without steps."""
    if column.raw:
        if column.value_type is None or not column.dim:
            raise SchemaMismatchError(f"Column {column.name!r} holds raw cells: expected dim and dtype, found none.")
        stored = np.dtype(column.value_type.to_pandas_dtype()).newbyteorder("<")
        return ColumnSteps(levels=2, stored=stored.str, raw_width=stored.itemsize * column.dim, dim=column.dim)
    held = cells.step_type(field.type)
    if held is not None and held[1] > 0:
        return ColumnSteps(levels=held[1], stored=stored_name(field.type), dim=column.dim)
    if column.category == "temporal":  # flags: never flat, but their lengths are worth knowing
        return ColumnSteps(levels=2 if column.nested else 1, stored="", dim=column.dim)
    return None


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether cells are lists of encoded media, which compress no further."""
    if not is_list(kind):
        return False
    return bool(pa.types.is_binary(kind.value_type) or pa.types.is_large_binary(kind.value_type))


def _conformed(array: pa.Array, column: Column, stored: pa.DataType) -> pa.Array:
    """Cells as they are stored, after a check against what the column declares."""
    logical = cells.cast(array, column.logical, column=column.name)
    return array if array.type == stored else cells.cast(logical, stored, column=column.name)


def _fitting(batch: pa.RecordBatch, nbytes: int, rows: int) -> int:
    """How many rows from the first on have at most `nbytes` bytes."""
    least, most = 0, min(int(batch.num_rows), rows)
    if batch.slice(0, most).nbytes <= nbytes:
        return most
    while least < most:
        middle = (least + most + 1) // 2
        if batch.slice(0, middle).nbytes <= nbytes:
            least = middle
        else:
            most = middle - 1
    return least


def _refuse_long_cells(batch: pa.RecordBatch) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if _page_bytes(column) <= layout.LARGEST_CELL:
            continue
        for row in range(len(column)):
            nbytes = _page_bytes(column.slice(row, 1))
            if nbytes > layout.LARGEST_CELL:
                raise ValidationError(
                    f"Column {field.name!r}, row {row} of this batch: expected a cell of at most "
                    f"{layout.LARGEST_CELL} bytes, found {nbytes}.",
                    hint="Cut the sequence into shorter ones with `segment`; a Parquet page cannot hold it.",
                )


def _page_bytes(column: pa.Array) -> int:
    """Bytes that cells take in a page: small integers are stored in four bytes."""
    stored = stored_name(column.type)
    if not stored:
        return int(column.nbytes)
    while is_list(column.type):
        column = column.flatten()
    return len(column) * np.dtype(stored).itemsize


def new_file(path: Path, /) -> pa.NativeFile:
    """A file for a shard's bytes; what was there is replaced. A kill test puts files here that die half way."""
    return pa.OSFile(str(path), "wb")


def _seal(path: Path) -> None:
    """Fill in the digest of the footer, in place of the zeros that stand for it."""
    with path.open("r+b") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        start = file.seek(-8 - length, 2)
        data = file.read(length)
        _, expected = footer.seal(data) or (b"", b"")
        file.seek(start + footer.seal_position(data))
        file.write(expected)


def create(
    path: Path,
    schema: Schema,
    /,
    *,
    layout: str = "training",
    fixed_size_inner: bool = False,
    ids: Mapping[str, int] | None = None,
) -> ParquetWriter:
    """Begin a Parquet shard.

    Args:
        path: Where the file will lie; an existing one is replaced when the first row group is written.
        schema: Its columns.
        layout: `training` (windows without decoding) or `archive` (smaller).
        fixed_size_inner: Store fixed-size inner lists in the Arrow schema, as the specification shows them.
        ids: Field ids by dotted path (`action`, `action.element`), for lakes that find columns by them.

    Returns:
        A writer; `close()` gives what a table needs to know of the shard.

    Raises:
        ValueError: An unknown layout.

    Example:
        >>> writer = create(Path("part-0.parquet"), schema)
        >>> writer.write(batch)
        >>> writer.close().rows
        64
    """
    if layout not in {"training", "archive"}:
        raise ValueError(f"Expected layout 'training' or 'archive', found {layout!r}.")
    return ParquetWriter(Path(path), schema, layout=layout, fixed_size_inner=fixed_size_inner, ids=ids or {})

"""Writes a Parquet shard as a stream: bounded memory; bounds, lengths and offset index come from what passes by."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.shards import cells
from seqlake.shards.parquet import footer, index, layout
from seqlake.shards.parquet.flatness import entries_of, stored_name
from seqlake.shards.parquet.index import ColumnIndex
from seqlake.shards.parquet.layout import refuse_unknown
from seqlake.shards.parquet.pages import PLAIN, Page, values_start, walk
from seqlake.shards.writing import ColumnSteps, RowGroupWriter
from seqlake.spec.schema import dtype_of, is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.schema import Column, Schema

# Bytes written by one call: what is written in large pieces lies in large pages of the system's cache, which a loader
# reads faster.
_BLOCK = 16 << 20


def leaf_entries(array: pa.Array, /) -> list[int]:
    """Level entries that each Parquet column of an Arrow array takes: values, nulls and empty lists."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_entries(array.storage)
    if pa.types.is_struct(kind):
        return [count for child in array.flatten() for count in leaf_entries(child)]
    if pa.types.is_map(kind):
        inner = pa.struct([kind.key_field, kind.item_field])
        array, kind = array.cast(pa.list_(pa.field("entries", inner, nullable=False))), pa.list_(inner)
    if is_list(kind):
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        hidden = len(array) - int(pc.sum(pc.not_equal(sizes, 0)).as_py() or 0)
        return [count + hidden for count in leaf_entries(array.flatten())]
    return [len(array)]


class ParquetWriter(RowGroupWriter):
    """One Parquet file being written; made by `create`, which opens nothing before the first row group is full."""

    def __init__(
        self, path: Path, schema: Schema, /, *, layout: str, fixed_size_inner: bool, ids: Mapping[str, int]
    ) -> None:
        super().__init__(path, schema, schema.stored(fixed_size_inner=fixed_size_inner))
        self._layout = layout
        self._ids = ids
        self._sink: pa.NativeFile | None = None
        self._file: Any = None
        self._optional: list[bool] = []
        self._steps = {name: _steps_of(schema[name], self._stored.field(name)) for name in schema}
        self._headers: list[bytes] = []

    def _written(self) -> int:
        return int(self._sink.tell()) if self._sink is not None else 0

    def _finish(self) -> bytes:
        """Write the index and the footer."""
        self._open(rows=0)
        assert self._sink is not None
        columns = {name: steps.entry() for name, steps in self._steps.items() if steps is not None}
        encoded = index.encode(index.OffsetIndex(columns=columns, headers=self._headers))
        # The bytes lie before the page index; pyarrow's own offsets follow, since the sink is shared.
        pointer = index.pointer(encoded, offset=self._sink.tell())
        self._sink.write(encoded)
        self._file.add_key_value_metadata({index.KEY: pointer, footer.SEAL: footer.BLANK})
        self._file.close()
        self._sink.close()
        _seal(self._path)
        return encoded

    def _give_up(self) -> None:
        if self._file is not None:
            self._file.is_open = False  # else pyarrow writes a footer when it is collected
        if self._sink is not None:
            self._raw.close()
            with contextlib.suppress(OSError, pa.ArrowInvalid):  # what it still holds goes nowhere
                self._sink.close()
            self._path.unlink(missing_ok=True)

    def _open(self, *, rows: int) -> None:
        """Create the file, once."""
        if self._file is not None:
            return
        roles = {}
        for field in self._stored:
            if self._steps[field.name] is not None:
                roles[field.name] = "steps"
            elif self._schema[field.name].inline or _holds_bytes(field.type):
                roles[field.name] = "media"
        bloom = [self._schema.id] if self._schema.id is not None and rows else []
        options = layout.settings(self._stored, layout=self._layout, roles=roles, bloom=bloom, rows=rows)
        self._raw = new_file(self._path)
        self._sink = pa.BufferedOutputStream(self._raw, _BLOCK)
        self._file = pq.ParquetWriter(self._sink, layout.numbered(self._stored, self._ids), **options)
        parquet = layout.parquet_schema(self._stored)
        self._optional = [parquet.column(i).max_definition_level > 0 for i in range(len(parquet))]

    def _put(self, table: pa.Table) -> None:
        """Write one row group, and walk its pages: their places come from the bytes just written."""
        self._open(rows=table.num_rows)
        assert self._sink is not None
        start = self._sink.tell()
        self._file.write_table(table, row_group_size=table.num_rows)
        self._sink.flush()
        stop = self._sink.tell()
        with self._path.open("rb") as file:
            # Not closed by hand: an interrupt leaves pieces of it behind, and closing under these is another error.
            data = memoryview(mmap.mmap(file.fileno(), stop, access=mmap.ACCESS_READ))
            end = self._walk(table, data, start)
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
                    self._place(steps, data, pages, optional=self._optional[leaf])
                at = pages[-1].stop
                leaf += 1
        return at

    def _place(self, steps: ColumnSteps, data: memoryview, pages: list[Page], *, optional: bool) -> None:
        """Take over where the pages of one column chunk lie; the rows themselves were added before."""
        part, raw = steps.take(), bool(steps.raw_width)
        steps.regular = steps.regular and self._layout == "training"
        if not steps.regular:
            return
        none = np.zeros(0, np.int64)
        entry = ColumnIndex(stored=steps.stored, dim=steps.dim or 1, page_start=none, page_row=none, steps=part)
        entries = np.cumsum(entries_of(entry, 0 if raw else steps.levels))
        before = 0
        for page in pages:
            row = 0 if before == 0 else int(np.searchsorted(entries, before)) + 1
            begins = before == 0 or (row <= entries.size and entries[row - 1] == before)
            if not (page.is_data and page.encoding == PLAIN and begins):
                steps.regular = False  # a page that does not begin with a row, or is not PLAIN
                return
            steps.place(values_start(data, page, repeated=not raw, optional=optional), self._rows + row)
            before += page.values


def _steps_of(column: Column, field: pa.Field) -> ColumnSteps | None:
    """What the index must learn of a column; None for columns without steps."""
    if column.raw:
        if column.value_type is None or not column.dim:
            raise SchemaMismatchError(f"Column {column.name!r} holds raw cells: expected dim and dtype, found none.")
        stored = dtype_of(column.value_type).newbyteorder("<")
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
    refuse_unknown(layout)
    return ParquetWriter(Path(path), schema, layout=layout, fixed_size_inner=fixed_size_inner, ids=ids or {})

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
from seqlake.protocols import Written
from seqlake.shards import cells, ids
from seqlake.shards.cells import numpy_type_of
from seqlake.shards.parquet import footer, index, layout
from seqlake.shards.parquet.flatness import entries_of, physical
from seqlake.shards.parquet.index import ColumnIndex
from seqlake.shards.parquet.pages import PLAIN, Page, values_start, walk
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.spec.schema import Column, Schema

_MOST_BATCHES = 512  # that wait without being joined
_SMALL = 8 << 20  # bytes of batches that are worth copying into one
# Bytes written by one call: what is written in large pieces lies in large pages of the system's cache, which a loader
# reads faster.
_BLOCK = 16 << 20
_LONGEST = 64  # characters of a text bound; longer ones say nothing


class ColumnSteps:
    """The index entry of one column, grown row group by row group.

    Attributes:
        dim: Values of one step; None until a step was seen.
        regular: Whether every step so far has `dim` values and none is null.
    """

    def __init__(self, *, levels: int, stored: str, raw_width: int = 0, dim: int | None = None) -> None:
        self.levels = levels
        self.dim = 1 if levels == 1 else dim
        self.regular = bool(stored)
        self._stored = stored
        self._raw = raw_width
        self._steps: list[NDArray[np.int32]] = []
        self._page_start: list[int] = []
        self._page_row: list[int] = []
        self._new: list[NDArray[np.int32]] = []  # of the row group that is being written

    def add(self, cells: pa.Array) -> None:
        """Take over the lengths of these cells, as they are stored."""
        lengths = _filled(pc.binary_length(cells) if self._raw else pc.list_value_length(cells))
        self._new.append(lengths // np.int32(self._raw) if self._raw else lengths)  # -1 // n is -1
        if self._raw:
            return
        steps = cells.flatten()
        if self.levels == 2 and len(steps):
            sizes = pc.list_value_length(steps)
            bounds = pc.min_max(sizes).as_py()
            self.dim = self.dim if self.dim is not None else bounds["max"]
            same = bounds["min"] == bounds["max"] == self.dim and self.dim
            self.regular = bool(self.regular and same and not steps.null_count)
            steps = steps.flatten()
        self.regular = self.regular and not steps.null_count

    def place(self, data: memoryview, pages: list[Page], /, *, first_row: int, optional: bool, flat: bool) -> None:
        """Take over where the pages of one column chunk lie.

        Args:
            data: The file from its first byte on.
            pages: The chunk's pages.
            first_row: First row of the row group; the rows themselves were added before.
            optional: Whether the column has definition levels.
            flat: Whether the layout leaves values as they are.
        """
        part = np.concatenate(self._new)
        self._steps.append(part)
        self._new = []
        self.regular = self.regular and flat
        if not self.regular:
            return
        entry = ColumnIndex(
            stored=self._stored,
            dim=self.dim or 1,
            page_start=np.zeros(0, np.int64),
            page_row=np.zeros(0, np.int64),
            steps=part,
        )
        entries = np.cumsum(entries_of(entry, 0 if self._raw else self.levels))
        before = 0
        for page in pages:
            row = 0 if before == 0 else int(np.searchsorted(entries, before)) + 1
            begins = before == 0 or (row <= entries.size and entries[row - 1] == before)
            if not (page.is_data and page.encoding == PLAIN and begins):
                self.regular = False  # a page that does not begin with a row, or is not PLAIN
                return
            self._page_start.append(values_start(data, page, repeated=not self._raw, optional=optional))
            self._page_row.append(first_row + row)
            before += page.values

    def entry(self) -> ColumnIndex:
        """The column's entry in the index; without pages where it is not flat."""
        flat = self.regular
        return ColumnIndex(
            stored=self._stored,
            dim=self.dim or 0,
            page_start=np.array(self._page_start if flat else [], np.int64),
            page_row=np.array(self._page_row if flat else [], np.int64),
            steps=np.concatenate(self._steps) if self._steps else np.zeros(0, np.int32),
        )


def _filled(lengths: pa.Array) -> NDArray[np.int32]:
    return np.asarray(pc.fill_null(lengths, -1)).astype(np.int32)


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


def stored_name(kind: pa.DataType, /) -> str:
    """Type of one number of a column as its bytes lie (`<f4`); empty for columns of other types."""
    dtype = numpy_type_of(kind)
    return "" if dtype is None else physical(dtype)[1].str


class ScalarBounds:
    """Bounds of the scalar columns of a shard.

    A bound is None where it is not known: no value, NaN among the values (engines disagree where it sorts), long
    text, or a type without an order.
    """

    def __init__(self, columns: Sequence[str], /) -> None:
        self._nulls = dict.fromkeys(columns, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unknown: set[str] = set()

    def add(self, table: pa.Table, /) -> None:
        """Take over the rows of one row group."""
        for name in self._nulls:
            column = table[name]
            self._nulls[name] += column.null_count
            if name in self._unknown or column.null_count == len(column):
                continue
            low, high = _bounds(column)
            if low is None or high is None:
                self._unknown.add(name)
                self._bounds.pop(name, None)
            elif name in self._bounds:
                self._bounds[name] = (min(low, self._bounds[name][0]), max(high, self._bounds[name][1]))
            else:
                self._bounds[name] = (low, high)

    def result(self) -> Mapping[str, tuple[object, object, int]]:
        """Column -> (least, greatest, nulls)."""
        return {name: (*self._bounds.get(name, (None, None)), nulls) for name, nulls in self._nulls.items()}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    try:
        bounds = pc.min_max(column)
    except pa.ArrowNotImplementedError:
        return None, None
    if pa.types.is_temporal(kind) and not pa.types.is_date(kind) and kind.unit == "ns":
        return _of_microseconds(bounds["min"], up=False), _of_microseconds(bounds["max"], up=True)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if isinstance(low, (str, bytes)) and max(len(low), len(high)) > _LONGEST:
        return None, None
    return low, high


def _of_microseconds(bound: pa.Scalar, *, up: bool) -> Any:
    """A time of nanoseconds as Python's own, which has none: moved outwards, so that it bounds all the same."""
    kind = bound.type
    plain = (
        pa.timestamp("us", kind.tz)
        if pa.types.is_timestamp(kind)
        else pa.time64("us")
        if pa.types.is_time(kind)
        else pa.duration("us")
    )
    number = -(-bound.value // 1000) if up else bound.value // 1000
    with contextlib.suppress(
        ValueError, OverflowError, pa.ArrowInvalid
    ):  # a day's last nanosecond has no microsecond after it
        return pa.scalar(number, pa.int64()).cast(plain).as_py()
    return None


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
        self._statistics = ScalarBounds([n for n in schema if schema[n].category == "scalar"])
        self._hashes: list[NDArray[np.uint64]] = []
        self._headers: list[bytes] = []

    @property
    def nbytes(self) -> int:
        """Bytes written so far, and decoded ones that wait for their row group."""
        return self._pending_bytes + (int(self._sink.tell()) if self._sink is not None else 0)

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

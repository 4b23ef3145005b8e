"""What writers of all kinds of shards share: rows are held until they make a row group, and looked at as they pass."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.protocols import Written
from seqlake.shards import cells, ids
from seqlake.shards.parquet import layout
from seqlake.shards.parquet.flatness import stored_name
from seqlake.shards.parquet.index import ColumnIndex
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from seqlake.spec.schema import Column, Schema

_MOST_BATCHES = 512  # that wait without being joined
_SMALL = 8 << 20  # bytes of batches that are worth copying into one
_LONGEST = 64  # characters of a text bound; longer ones say nothing


class RowGroupWriter:
    """One shard being written; inherit it, and say in `_put` what becomes of a row group and in `_finish` how it ends.

    Args:
        path: Where the file will lie; nothing is opened before the first row group is full.
        schema: Its columns.
        stored: The Arrow schema of the file.
    """

    def __init__(self, path: Path, schema: Schema, stored: pa.Schema, /) -> None:
        self._path = path
        self._schema = schema
        self._stored = stored
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._tail: list[pa.RecordBatch] = []  # the newest of what waits
        self._rows = 0
        scalars = [n for n in schema if schema[n].category == "scalar"]
        self._statistics = ScalarBounds(scalars, unbounded=[n for n in scalars if schema[n].inline])
        self._hashes: list[NDArray[np.uint64]] = []

    def _put(self, table: pa.Table) -> None:
        """Write one row group, which is not empty."""
        raise NotImplementedError(f"{type(self).__name__} says in `_put` how a row group is written.")

    def _finish(self) -> bytes:
        """Write the end of the file, durably or not; gives its offset index."""
        raise NotImplementedError(f"{type(self).__name__} says in `_finish` how a file ends.")

    def _give_up(self) -> None:
        """Close the file, if it was opened, and remove it."""
        raise NotImplementedError(f"{type(self).__name__} says in `_give_up` how a file is left.")

    def _written(self) -> int:
        """Bytes of the file so far."""
        raise NotImplementedError(f"{type(self).__name__} says in `_written` how long its file is.")

    @property
    def nbytes(self) -> int:
        """Bytes written so far, and decoded ones that wait for their row group."""
        return self._pending_bytes + self._written()

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
        """Write the rest, the index and the end of the file.

        Returns:
            What the shard holds; `partition`, `files` and `references` are the caller's.
        """
        try:
            self._flush()
            encoded = self._finish()
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
        self._give_up()
        self._wait_for_none()

    def _flush(self) -> None:
        """Write what waits as one row group; its ids and bounds are kept."""
        self._join()
        table = pa.Table.from_batches(self._pending, self._stored)
        self._wait_for_none()
        if table.num_rows == 0:
            return
        self._put(table)
        if self._schema.id is not None:
            self._hashes.append(ids.hash_ids(table[self._schema.id]))
        self._statistics.add(table)
        self._rows += table.num_rows

    def _wait_for_none(self) -> None:
        self._pending, self._tail, self._pending_bytes, self._pending_rows = [], [], 0, 0

    def _join(self) -> None:
        """Make one batch of many small ones: a batch of one row takes more memory than the row."""
        if sum(batch.nbytes for batch in self._tail) < _SMALL:
            self._tail = pa.Table.from_batches(self._tail, self._stored).combine_chunks().to_batches()
        self._pending += self._tail
        self._tail = []

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        given = set(batch.schema.names)
        if not given.issubset(self._schema) or len(given) < len(batch.schema.names):
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


class ColumnSteps:
    """The index entry of one column, grown row group by row group.

    Attributes:
        dim: Values of one step; None until a step was seen.
        regular: Whether every step so far has `dim` values and none is null.
        stored: Type of one number as its bytes lie (`<f4`); empty where the column is never flat.
        raw_width: Bytes of a step of raw cells; 0 for lists.
    """

    def __init__(self, *, levels: int, stored: str, raw_width: int = 0, dim: int | None = None) -> None:
        self.levels = levels
        self.dim = 1 if levels == 1 else dim
        self.regular: bool = bool(stored)
        self.stored = stored
        self.raw_width = raw_width
        self._steps: list[NDArray[np.int32]] = []
        self._page_start: list[int] = []
        self._page_row: list[int] = []
        self._new: list[NDArray[np.int32]] = []  # of the row group that is being written

    def add(self, cells: pa.Array) -> None:
        """Take over the lengths of these cells, as they are stored."""
        lengths = _filled(pc.binary_length(cells) if self.raw_width else pc.list_value_length(cells))
        self._new.append(lengths // np.int32(self.raw_width) if self.raw_width else lengths)  # -1 // n is -1
        if self.raw_width:
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

    def take(self) -> NDArray[np.int32]:
        """[rows] T of what was added since the last call: one row group."""
        part = np.concatenate(self._new)
        self._steps.append(part)
        self._new = []
        return part

    def place(self, start: int, row: int) -> None:
        """From this row on, the steps lie from this byte on, one after the other."""
        self._page_start.append(start)
        self._page_row.append(row)

    def entry(self) -> ColumnIndex:
        """The column's entry in the index; without pages where it is not flat."""
        flat = self.regular
        return ColumnIndex(
            stored=self.stored,
            dim=self.dim or 0,
            page_start=np.array(self._page_start if flat else [], np.int64),
            page_row=np.array(self._page_row if flat else [], np.int64),
            steps=np.concatenate(self._steps) if self._steps else np.zeros(0, np.int32),
        )


def _filled(lengths: pa.Array) -> NDArray[np.int32]:
    return np.asarray(pc.fill_null(lengths, -1)).astype(np.int32)


class ScalarBounds:
    """Bounds of the scalar columns of a shard.

    A bound is None where it is not known: no value, NaN among the values (engines disagree where it sorts), long
    text, or a type without an order.
    """

    def __init__(self, columns: Sequence[str], /, *, unbounded: Sequence[str] = ()) -> None:
        self._nulls = dict.fromkeys(columns, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unknown: set[str] = set(unbounded)  # whole videos are not compared for what is too long to be kept

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

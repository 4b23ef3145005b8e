"""What a column of samples is in a batch: one array where all cells have one declared shape, else a list of values."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.spec.schema import dtype_of, is_binary, is_list, is_number, is_text
from seqlake.training.cells import single_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Ints
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Column


@dataclass(frozen=True, slots=True)
class Form:
    """The form that a column takes in batches.

    Attributes:
        name: The column.
        shape: Of a cell, where all have the same; () for one number; None where the batch has a list.
        dtype: Of its numbers, where there is a shape.
        nullable: A cell may be null: then the batch says which are.
        pictures: The type of a column whose cells are encoded images, or lists of them; batches have them decoded.
        bytes: Its cells are bytes.
        plain: Its cells are bytes or texts that batches have as they are.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    nullable: bool
    pictures: ColumnType | None = None
    bytes: bool = False
    plain: bool = False

    @classmethod
    def of(cls, column: Column, /) -> Form:
        """From the schema alone, so that all batches of a dataset look alike."""
        name, nullable = column.name, column.nullable
        if column.category in {"vector", "temporal"} and column.dtype is not None and column.dtype.kind in "biuf":
            steps = (column.dim,) if column.category == "vector" else (_steps(column), *(column.shape or (None,)))
            if column.category == "temporal" and column.shape == ():
                steps = (_steps(column),)
            known = [size for size in steps if size is not None]
            if len(known) == len(steps):
                return cls(name, tuple(known), column.dtype, nullable)
        kind = column.arrow
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return cls(name, (), dtype_of(kind), nullable)
        pictures = column.type if _has_pictures(column) else None
        plain = pictures is None and (is_binary(kind) or is_text(kind))
        return cls(name, None, None, nullable, pictures=pictures, bytes=is_binary(kind), plain=plain)

    @property
    def width(self) -> int:
        """Bytes of a cell; 0 where there is no shape."""
        return 0 if self.shape is None or self.dtype is None else prod(self.shape) * self.dtype.itemsize

    def empty(self, rows: int) -> NDArray[Any]:
        """Room for so many cells; of objects, where they have no shape."""
        if self.shape is None:
            return np.full(rows, None, np.object_)
        return np.zeros((rows, *self.shape), self.dtype)

    def put(self, values: NDArray[Any], places: Ints, cells: pa.Array, /) -> None:
        """Write decoded cells to their places in what `empty` gave.

        Raises:
            SchemaMismatchError: A cell of another shape than its column declares.
        """
        if self.shape is None:
            values[places] = np.fromiter(listed(cells), np.object_, len(cells))
            return
        if not self.shape:
            values[places] = single_values(cells)[0]
            return
        present = cells.is_valid().to_numpy(zero_copy_only=False)
        numbers = cells.flatten()
        while is_list(numbers.type):
            numbers = numbers.flatten()
        count = int(present.sum())
        if len(numbers) != count * prod(self.shape) or numbers.null_count:
            raise SchemaMismatchError(
                f"Column {self.name!r}: expected {count} cells of shape {list(self.shape)}, found {len(numbers)} "
                f"numbers and {numbers.null_count} nulls among them."
            )
        values[places[present]] = numbers.to_numpy(zero_copy_only=False).reshape(count, *self.shape)

    def fits(self, flat: Flat, /) -> bool:
        """Whether all cells of a shard lie as they are handed out: then they are copied as they lie."""
        if not self.shape or self.dtype is None or flat.stored.newbyteorder("=") != self.dtype:
            return False
        step = prod(flat.shape) * flat.stored.itemsize
        return bool((flat.steps == self.shape[0]).all()) and flat.stride == step and step * self.shape[0] == self.width


class Collected:
    """Bytes or texts of a portion, as they come from its shards; they become Python's only batch by batch.

    Args:
        rows: Cells of the portion.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._places: list[Ints] = []
        self._cells: list[pa.Array] = []

    def put(self, places: Ints, cells: pa.Array) -> None:
        """Take cells and their places in the portion."""
        self._places.append(places)
        self._cells.append(cells)

    def array(self) -> pa.Array:
        """[rows] all of them, in their places."""
        at = np.empty(self._rows, np.int64)
        at[np.concatenate(self._places)] = np.arange(self._rows)
        return pa.concat_arrays(self._cells).take(pa.array(at))


def _has_pictures(column: Column) -> bool:
    cell = column.arrow.value_type if is_list(column.arrow) else column.arrow
    return column.type is not None and column.type.type == "image" and is_binary(cell)


def _steps(column: Column) -> int | None:
    """How many steps every cell has, where that is declared."""
    declared = column.type.get("steps") if column.type is not None else None
    return declared if isinstance(declared, int) and declared > 0 else None


def listed(cells: pa.Array, /) -> list[Any]:
    """Cells as Python values; lists of numbers as arrays."""
    kind = cells.type
    if not is_list(kind):
        return cells.to_pylist()  # type: ignore[no-any-return] # pyarrow has no types
    inner = kind.value_type
    if is_number(inner) and not pa.types.is_boolean(inner):
        numbers = cells.flatten()
        if not numbers.null_count:
            return _cut(np.array(numbers.to_numpy(zero_copy_only=False)), cells)  # Arrow's memory is read-only
    number = inner
    while is_list(number):
        number = number.value_type
    if not is_number(number):
        return cells.to_pylist()  # type: ignore[no-any-return] # pyarrow has no types
    dtype = dtype_of(number)
    return [None if cell is None else _array(cell, dtype) for cell in cells.to_pylist()]


def _array(cell: Sequence[Any], dtype: Any) -> Any:
    try:
        return np.array(cell, dtype=dtype)
    except (TypeError, ValueError):  # ragged, or with nulls: as it is
        return cell


def _cut(numbers: NDArray[Any], cells: pa.Array) -> list[Any]:
    lengths = pa.compute.list_value_length(cells).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    arrays: list[Any] = [numbers[low:high] for low, high in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]
    for row in np.flatnonzero(~cells.is_valid().to_numpy(zero_copy_only=False)).tolist() if cells.null_count else ():
        arrays[row] = None
    return arrays

"""One cell as Python and numpy see it: steps as [T, D], vectors as [D], scalars as plain values.

`Flat` cells are views over the shard's own bytes; all others come from Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import ShardChangedError, ValidationError
from seqlake.shards.cells import fetched, step_shape
from seqlake.spec.schema import is_binary, is_list
from seqlake.windows.timestamps import times_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Flat
    from seqlake.spec.schema import Column, Schema

_NANOSECONDS = {"timestamp[ns": "M8[ns]", "time64[ns": "m8[ns]", "duration[ns": "m8[ns]"}
_DATES = {"date32[day]": "D", "date64[ms]": "ms"}


def flat_cell(flat: Flat, row: int, /) -> NDArray[Any] | None:
    """The steps of one row without decoding: a read-only view where the bytes are in memory and as handed out.

    Returns:
        [T, *shape] of `flat.dtype`; None where the cell is null.

    Raises:
        ShardChangedError: The shard is shorter than its index says, or its file changed.
    """
    steps = int(flat.steps[row])
    if steps < 0:
        return None
    shape = (steps, *flat.shape)
    if steps == 0:
        empty = np.empty(shape, flat.dtype)
        empty.flags.writeable = False
        return empty
    inner: list[int] = []
    step = flat.stored.itemsize
    for extent in reversed(flat.shape):
        inner.insert(0, step)
        step *= extent
    start = int(flat.start[row])
    view = flat.blob.view()
    if view is None:
        stop = start + (steps - 1) * flat.stride + step
        view = fetched(flat, np.array([start]), np.array([stop]))[0]
        start = 0
    elif flat.proof is not None:
        flat.proof.touch(flat.start[row : row + 1])
    try:
        array: NDArray[Any] = np.ndarray(shape, flat.stored, view, start, (flat.stride, *inner))
    except (TypeError, ValueError) as error:
        raise ShardChangedError(
            f"{flat.blob.location} ends before the steps that its index names.", path=flat.blob.location
        ) from error
    if flat.stored != flat.dtype:
        array = array.astype(flat.dtype)
    array.flags.writeable = False
    return array


def arrow_cell(cells: pa.Array, row: int, column: Column, /) -> Any:
    """One cell of an Arrow array, in the form that `SequenceView` gives.

    Args:
        cells: [rows] the column, in its logical type.
        row: Which cell.
        column: Says what the cells mean.

    Returns:
        temporal: numpy [T, D] (or [T]); vector: numpy [D]; everything else: Python values; None where null.

    Raises:
        ValidationError: Steps of different widths, or a missing element where numpy has none.
    """
    scalar = cells[row]
    if not scalar.is_valid:
        return None
    if column.category == "temporal":
        return _steps(scalar, column)
    if column.category == "vector":
        return _numbers(scalar.values, column)
    return python_value(scalar)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchRow:
    """One row of a batch, for verbs that write it anew: what they compute with is what they read, and nothing else.

    Attributes:
        batch: Rows in the logical types of the schema.
        row: Which of them.
        schema: Of the batch.
    """

    batch: pa.RecordBatch
    row: int
    schema: Schema

    def value(self, name: str, /) -> Any:
        """The cell, as `arrow_cell` gives it."""
        return arrow_cell(self.batch.column(name), self.row, self.schema[name])

    def length(self, name: str, /) -> int | None:
        """How many elements a cell of lists has; None where it is null."""
        cell = self.batch.column(name)[self.row]
        return len(cell) if cell.is_valid else None

    def times(self, name: str, /) -> Any:
        """[T] time stamps, one time, or None."""
        return times_in(self.batch.column(name)[self.row])

    def where(self, name: str | None = None, /) -> str:
        """The row, and the column, for messages."""
        sequence = f"Sequence {self.batch.column(str(self.schema.id))[self.row].as_py()!r}"
        return sequence if name is None else f"{sequence}, column {name!r}"


def python_value(scalar: pa.Scalar, /) -> Any:
    """A Python value; `numpy.datetime64` or `timedelta64` where Python's own would drop nanoseconds or end before."""
    kind = next((numpy for name, numpy in _NANOSECONDS.items() if str(scalar.type).startswith(name)), None)
    if kind is None or not scalar.is_valid:
        try:
            return scalar.as_py()
        except (OverflowError, ValueError):
            if not pa.types.is_temporal(scalar.type):
                raise
            unit = _DATES.get(str(scalar.type)) or scalar.type.unit
            letter = "m8" if pa.types.is_duration(scalar.type) else "M8"
            return np.array(scalar.value, "i8").view(f"{letter}[{unit}]")[()]
    if scalar.value % 1000:
        return np.array(scalar.value, "i8").view(kind)[()]
    return scalar.cast(_microseconds(scalar.type)).as_py()


def _microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time64(kind) else pa.duration("us")


def _steps(scalar: pa.Scalar, column: Column) -> Any:
    if is_binary(scalar.type):
        assert column.dtype is not None
        return _shaped(np.frombuffer(scalar.as_py(), column.dtype.newbyteorder("<")), None, column)
    values = scalar.values
    if not is_list(values.type):
        return _numbers(values, column)
    if column.deep:
        return _deep(values, column)
    width = one_width(values, column)
    return _shaped(_numbers(values.flatten(), column), len(values), column, width)


def _deep(steps: pa.Array, column: Column) -> Any:
    """[T, N, D] of steps that are lists in lists; a list of arrays where their shapes differ."""
    values, shape = step_shape(steps)
    if shape is None:
        return [
            _deep(one.values, column) if is_list(one.type.value_type) else _numbers(one.values, column) for one in steps
        ]
    return _numbers(values, column).reshape(len(steps), *shape)


def one_width(steps: pa.Array, column: Column, /) -> int | None:
    """The width of all steps; None where there is no step.

    Raises:
        ValidationError: They differ, or one of them is null.
    """
    if steps.null_count:
        raise ValidationError(
            f"Column {column.name!r} has a null step.",
            hint="Every step has a value for every dimension; ds.validate() lists all such cells.",
        )
    if pa.types.is_fixed_size_list(steps.type):
        return int(steps.type.list_size)
    widths = pc.min_max(pc.list_value_length(steps)).as_py()
    if widths["min"] != widths["max"]:
        raise ValidationError(
            f"Column {column.name!r} has steps of different widths ({widths['min']} and {widths['max']}).",
            hint="One step is one vector of a fixed size; ds.validate() lists all such cells.",
        )
    return None if widths["min"] is None else int(widths["min"])


def _shaped(flat: NDArray[Any], steps: int | None, column: Column, width: int | None = None) -> NDArray[Any]:
    shape = tuple(column.shape or ()) or ((width,) if width is not None else ())
    if not shape and column.dim:
        shape = (column.dim,)
    if not shape and steps == 0:
        shape = (0,)  # nothing says how wide a step would be
    array = flat.reshape(-1 if steps is None else steps, *shape)
    array.flags.writeable = False
    return array


def _numbers(values: pa.Array, column: Column) -> NDArray[Any]:
    array = numbers_of(values, column)
    array.flags.writeable = False
    return array


def numbers_of(values: pa.Array, column: Column, /) -> NDArray[Any]:
    """The numbers of a column as numpy has them; null floats are NaN.

    Raises:
        ValidationError: A null that numpy cannot hold.
    """
    if values.null_count and not pa.types.is_floating(values.type):
        raise ValidationError(
            f"Column {column.name!r} has a null among its {values.type} values, which numpy cannot hold.",
            hint="ds.validate() lists all such cells.",
        )
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array

"""Arrow arrays as the flat arrays that batches are gathered from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import SchemaMismatchError
from seqlake.shards.cells import step_shape
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints


def flatten(cells: pa.Array, /, *, name: str) -> tuple[NDArray[Any], Ints]:
    """List cells as one array of steps.

    Args:
        cells: [rows] lists of numbers, or lists of lists of numbers.
        name: The column, for messages.

    Returns:
        ([all steps, ...] values, [rows] steps of each cell with -1 for null).

    Raises:
        SchemaMismatchError: A step is null, has null elements, or another width than the steps before it.
    """
    steps = pc.list_value_length(cells).fill_null(-1).cast(pa.int64()).to_numpy(zero_copy_only=False)
    inner = cells.flatten()
    if not pa.types.is_nested(inner.type):
        return _numbers(inner, name), steps
    if inner.null_count:
        raise SchemaMismatchError(f"Column {name!r} has a null step; batches need every step to be there.")
    if is_list(inner.type.value_type):
        return _deep(inner, name), steps
    widths = pc.unique(pc.list_value_length(inner)).to_pylist()
    if len(widths) > 1:
        raise SchemaMismatchError(
            f"Column {name!r} has steps of {min(widths)} and of {max(widths)} numbers; batches need one width.",
            hint="`validate` names the rows.",
        )
    if not len(inner):
        width = inner.type.list_size if pa.types.is_fixed_size_list(inner.type) else 0
        return np.zeros((0, width), inner.type.value_type.to_pandas_dtype()), steps
    return _numbers(inner.flatten(), name).reshape(len(inner), -1), steps


def _deep(steps: pa.Array, name: str) -> NDArray[Any]:
    """[all steps, N, D] of steps that are lists in lists."""
    values, shape = step_shape(steps)
    if shape is None:
        raise SchemaMismatchError(
            f"Column {name!r} has steps of different shapes; batches need one.",
            hint="It is shown and queried as it is; for batches pad its steps to one shape, or leave it out.",
        )
    return _numbers(values, name).reshape(len(steps), *shape)


def _numbers(values: pa.Array, name: str) -> NDArray[Any]:
    if values.null_count:
        raise SchemaMismatchError(f"Column {name!r} has {values.null_count} null numbers inside its steps.")
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers)


def single_values(values: pa.Array, /) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """One value a row: numbers and times as numpy types, everything else as Python objects.

    Args:
        values: [rows], of a scalar or file column, or of clouds.

    Returns:
        ([rows] values, [rows] True where not null). A null number is 0, a null time NaT, any other null None.
    """
    present: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        filled = values.fill_null(pa.scalar(0).cast(kind)) if values.null_count else values
        return filled.to_numpy(zero_copy_only=False), present
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return values.to_numpy(zero_copy_only=False), present
    objects = np.empty(len(values), dtype=object)
    if is_list(kind):  # clouds, each of its own size: [N, D]
        for row in np.flatnonzero(present).tolist():
            objects[row] = flatten(values.slice(row, 1), name="")[0]
        return objects, present
    objects[:] = values.to_pylist()
    return objects, present

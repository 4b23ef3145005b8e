"""Frames and tables of other packages as Arrow, those too whose cells are arrays: a cell of [T, D] is nested lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)


def table_of(data: Any, /) -> pa.Table:
    """Rows in memory as an Arrow table.

    Args:
        data: Anything with `__arrow_c_stream__`, a frame of pandas or Polars, or a dict of columns. Cells may be arrays
            of any number of dimensions, or nested lists.

    Raises:
        SchemaMismatchError: It is nothing of that kind, or a column holds cells of several kinds.
    """
    data = _eager(data)
    if isinstance(data, pa.Table):
        return data
    problem: Exception | None = None
    if not _hides_objects(data):
        try:
            return data.read_all() if isinstance(data, pa.RecordBatchReader) else pa.table(data)
        except _REFUSED as error:
            problem = error
    columns = _columns(data)
    if columns is None:
        raise SchemaMismatchError(
            f"Expected a location, a table or a dict of columns of one length, found {type(data).__name__} ({problem})."
        ) from problem
    arrays = {name: _array(name, cells) for name, cells in columns}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatchError(f"Expected a dict of columns of one length, found lengths {lengths}.")
    return pa.table(arrays)


def has_arrays(data: Any, /) -> bool:
    """Whether Arrow does not take a frame as it is, or takes pointers for values: cells are Python's objects."""
    if _hides_objects(data):
        return True
    if not (hasattr(data, "dtypes") and hasattr(data, "columns") and hasattr(data, "iloc")):
        return False
    objects = [data[name] for name, kind in data.dtypes.items() if kind == np.dtype(object)]
    return any(_dimensions(cell) > 1 for column in objects for cell in column)


def _eager(data: Any) -> Any:
    """A lazy frame of Polars is computed now."""
    lazy = type(data).__module__.startswith("polars") and type(data).__name__ == "LazyFrame"
    return data.collect() if lazy else data


def _hides_objects(data: Any) -> bool:
    """Whether it is a frame of Polars with a column of objects, of which Arrow is given the addresses."""
    kinds = getattr(data, "dtypes", []) if type(data).__module__.startswith("polars") else []
    return any(str(kind) == "Object" for kind in kinds)


def _columns(data: Any) -> list[tuple[str, Iterable[Any]]] | None:
    if isinstance(data, Mapping):
        return [(str(name), cells) for name, cells in data.items()]
    if hasattr(data, "get_columns"):  # Polars
        return [(column.name, column) for column in data.get_columns()]
    if hasattr(data, "reset_index") and hasattr(data, "columns"):  # pandas
        named = any(name is not None for name in data.index.names)
        frame = data.reset_index() if named else data
        return [(str(name), frame.iloc[:, at]) for at, name in enumerate(frame.columns)]
    return None


def _dimensions(cell: Any) -> int:
    return len(getattr(cell, "shape", ()))


def _array(name: str, cells: Any) -> pa.Array:
    """A column; arrays in its cells become nested lists, in which all but the first dimension are of one size."""
    if isinstance(cells, str | bytes | Mapping) or not isinstance(cells, Iterable):
        raise _mixed(name, f"expected a list of cells, found {type(cells).__name__}")
    if not isinstance(cells, list) and hasattr(cells, "dtype") and str(cells.dtype) not in {"object", "Object"}:
        try:
            held = pa.array(cells)
        except _REFUSED as error:
            raise _mixed(name, error) from error
        return held.combine_chunks() if isinstance(held, pa.ChunkedArray) else held
    values = [None if _is_null(cell) else cell for cell in cells]
    given = [value for value in values if value is not None]
    if not any(_dimensions(value) > 1 for value in given):
        try:
            return pa.array(values)
        except _REFUSED as error:
            raise _mixed(name, error) from error
    try:
        arrays = [np.asarray(value) for value in given]
    except ValueError as error:
        raise _mixed(name, error) from error
    shapes = {array.shape[1:] for array in arrays}
    if len({len(shape) for shape in shapes}) > 1 or any(array.dtype.kind not in "iufb" for array in arrays):
        raise _mixed(name, f"cells of {', '.join(sorted({f'{a.dtype}{list(a.shape)}' for a in arrays})[:4])}")
    dtype = np.result_type(*(array.dtype for array in arrays))
    if len(shapes) > 1 or 0 in next(iter(shapes)):
        return pa.array([None if value is None else np.asarray(value, dtype).tolist() for value in values])
    return _nested(values, dtype, next(iter(shapes)))


def _nested(values: list[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.Array:
    parts: list[NDArray[Any]] = [np.asarray(value, dtype).reshape(-1) for value in values if value is not None]
    inner = pa.array(np.concatenate(parts))
    for size in reversed(shape):
        inner = pa.FixedSizeListArray.from_arrays(inner, size)
    counts = [0 if value is None else len(value) for value in values]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    mask = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(offsets, inner, mask=mask)


def _is_null(cell: Any) -> bool:
    """None, and what pandas writes for it."""
    return (
        cell is None or type(cell).__name__ in {"NAType", "NaTType"} or (isinstance(cell, float) and math.isnan(cell))
    )


def _mixed(name: str, why: object) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Column {name!r} holds cells that one Arrow type cannot hold: {str(why)[:300]}.",
        hint="Give every cell the same kind: an array of [T, D] numbers with the same D, a text, a number.",
    )

"""One Python value for one cell: checked against its column, then an Arrow array of one element.

Arrays of any library are taken through `__array__` or dlpack, tensors are brought to the CPU first; nothing is
imported for them. The values are copied, so that a buffer may be used again after `Writer.add`.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.dataset.writing.conforming import conform, fits, too_large
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.spec.rules.signals import LARGEST_CELL
from seqlake.spec.schema import dtype_of, is_binary, is_list, is_text, list_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.spec.schema import Column


def cell(value: Any, column: Column, logical: pa.DataType, *, where: str) -> pa.Array:
    """A checked cell.

    Args:
        value: None, a number, text, bytes, an array, nested lists, or an Arrow scalar or array.
        column: Its column.
        logical: The type to reach, `schema.arrow.field(column.name).type`.
        where: Sequence and column, for messages.

    Returns:
        One element of type `logical`.

    Raises:
        SchemaMismatchError: Another shape or kind of value than the column holds.
        ValidationError: A value does not fit the column's type, or the cell is above 1 GiB.
    """
    if value is None:
        if not column.nullable:
            raise ValidationError(f"{where}: null where the schema allows none.")
        return pa.nulls(1, logical)
    if type(value).__name__ in {"NAType", "NaTType"}:  # what pandas writes for None
        return cell(None, column, logical, where=where)
    if column.category == "temporal" and column.nested and hasattr(value, "columns") and hasattr(value, "shape"):
        value = _steps_of_frame(value)
    if isinstance(value, pa.Scalar | pa.Array | pa.ChunkedArray) or hasattr(value, "__arrow_c_stream__"):
        return _from_arrow(value, column, logical, where)
    if column.category == "temporal":
        return _temporal(value, column, logical, where)
    if column.category == "vector":
        return _vector(value, column, logical, where)
    if column.category == "frames":
        return _frames(value, logical, where)
    return _scalar(value, logical, where)


def _steps_of_frame(value: Any) -> Any:
    """A frame or table whose rows are steps and whose columns are numbers, as [T, D]; others as they are."""
    if isinstance(value, pa.Table | pa.RecordBatch):
        numbers = [column.to_numpy() for column in pa.table(value).columns]
        return np.stack(numbers, axis=1) if numbers else value
    return value.to_numpy() if hasattr(value, "to_numpy") else value


def lossless(values: NDArray[Any], dtype: np.dtype[Any], *, where: str) -> NDArray[Any]:
    """Numbers in another type, where no value changes; a float may become a narrower one.

    Raises:
        SchemaMismatchError: The values are of another kind: text, objects, booleans for numbers.
        ValidationError: A value does not fit.
    """
    if values.dtype.newbyteorder("=") == dtype:
        return values.astype(dtype, copy=False)
    if values.size == 0 and values.dtype == np.float64:
        return values.astype(dtype)  # an empty list has no type of its own
    kinds = (values.dtype.kind, dtype.kind)
    if not set(kinds) <= set("iuf"):
        raise SchemaMismatchError(f"{where}: expected {dtype} values, found {values.dtype}. Convert them first.")
    with np.errstate(over="ignore", invalid="ignore"):
        out = values.astype(dtype)
    if kinds == ("f", "f"):
        lost = dtype.itemsize < values.dtype.itemsize and bool((np.isinf(out) & np.isfinite(values)).any())
    elif dtype.kind == "f":
        lost = _inexact(values, dtype)
    else:
        limits = np.iinfo(dtype)
        whole = kinds[0] != "f" or bool(np.isfinite(values).all() and (values == np.rint(values)).all())
        low, high = (values.min(), values.max()) if values.size and whole else (0, 0)
        lost = not whole or int(low) < limits.min or int(high) > limits.max
    if lost:
        raise ValidationError(
            f"{where}: expected values that {dtype} can hold, found {values.dtype} that it cannot (out of range or "
            "fractional). Widen the column or convert them first."
        )
    return out


def _inexact(values: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether an integer has no equal float: beyond the mantissa only some have."""
    exact = 2 ** (np.finfo(dtype).nmant + 1)
    if exact > np.iinfo(values.dtype).max:
        return False
    far = values[values > exact] if values.dtype.kind == "u" else values[(values > exact) | (values < -exact)]
    with np.errstate(over="ignore"):
        return any(not np.isfinite(dtype.type(v)) or int(dtype.type(v)) != v for v in map(int, far.ravel()))


def as_array(value: Any, *, where: str) -> NDArray[Any]:
    """Arrays, tensors and nested lists as numpy; lists that are no array (nulls, ragged) as objects.

    Raises:
        SchemaMismatchError: Not an array.
    """
    if isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any()):
        raise SchemaMismatchError(
            f"{where}: expected numbers, found an array of which {int(np.ma.getmaskarray(value).sum())} are masked.",
            hint="Say what stands for them: value.filled(float('nan')).",
        )
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except ValueError:
        return np.empty(0, object)
    except (TypeError, RuntimeError, BufferError) as error:
        raise SchemaMismatchError(
            f"{where}: expected an array, found {type(value).__name__} that numpy cannot hold ({error}).",
            hint="Convert it first, a bfloat16 tensor by .float().",
        ) from error


def _temporal(value: Any, column: Column, logical: pa.DataType, where: str) -> pa.Array:
    dtype = column.dtype
    assert dtype is not None, "temporal columns have one"
    if column.raw and isinstance(value, bytes | bytearray | memoryview):
        width = (column.dim or 1) * dtype.itemsize
        if len(value) % width:
            raise ValidationError(f"{where}: expected whole steps of {width} bytes, found {len(value)} bytes.")
        value = np.frombuffer(value, dtype.newbyteorder("<")).reshape(-1, column.dim or 1)
    values = as_array(value, where=where)
    if values.dtype.kind == "O" or (column.deep and not values.size):
        return _by_elements(value, logical, where)
    nested = column.nested
    values = _steps(values, column, nested=nested, where=where)
    if values.size * dtype.itemsize > LARGEST_CELL:
        raise ValidationError(too_large(where, values.size * dtype.itemsize))
    values = lossless(values, dtype, where=where)
    flat = pa.array(np.array(values, copy=True, order="C").ravel())
    steps = len(values)
    if column.deep:
        for width in reversed(values.shape[1:]):
            ends = np.arange(len(flat) // width + 1 if width else 1, dtype=np.int32) * width
            flat = pa.ListArray.from_arrays(pa.array(ends), flat)
        whole = pa.ListArray.from_arrays(pa.array([0, steps], pa.int32()), flat)
        return whole.cast(logical)
    if nested:
        inner, width = logical.value_type, values.shape[1]
        if pa.types.is_fixed_size_list(inner):
            flat = pa.FixedSizeListArray.from_arrays(flat, type=inner)
        else:
            flat = pa.ListArray.from_arrays(pa.array(np.arange(steps + 1, dtype=np.int32) * width), flat, type=inner)
    return pa.ListArray.from_arrays(pa.array([0, steps], pa.int32()), flat, type=logical)


def _steps(values: NDArray[Any], column: Column, *, nested: bool, where: str) -> NDArray[Any]:
    """The array as [T, D], or as [T] where a step is one number."""
    if values.size == 0 and values.ndim <= 1:
        return np.empty((0, column.dim or 0), values.dtype) if nested else values.reshape(0)
    shape = tuple(column.shape or ())
    if column.deep:
        levels = list_levels(column.arrow)[0]
        if values.ndim == levels and shape in {(), values.shape[1:]} and values.size:
            return values
        wanted = ", ".join(map(str, shape)) or ", ".join("NMKLJ"[: levels - 2]) + ", D"
        raise SchemaMismatchError(f"{where}: expected shape [T, {wanted}], found {list(values.shape)}.")
    if nested and len(shape) > 1 and values.shape[1:] == shape:
        return values.reshape(len(values), math.prod(shape))
    if nested and values.ndim == 2 and column.dim in {None, values.shape[1]}:
        return values
    if not nested and values.ndim == 1:
        return values
    step = f", {', '.join(map(str, shape)) or column.dim or 'D'}" if nested else ""
    raise SchemaMismatchError(
        f"{where}: expected shape [T{step}], found {list(values.shape)}.",
        hint="For one number a step use values[:, None]." if nested and values.ndim == 1 else None,
    )


def _vector(value: Any, column: Column, logical: pa.DataType, where: str) -> pa.Array:
    values = as_array(value, where=where)
    if values.dtype.kind == "O":
        return _by_elements(value, logical, where)
    if values.ndim != 1 or column.dim not in {None, len(values)}:
        wanted = column.dim if column.dim is not None else "D"
        raise SchemaMismatchError(f"{where}: expected shape [{wanted}], found {list(values.shape)}.")
    assert column.dtype is not None, "vector columns have one"
    values = lossless(values, column.dtype, where=where)
    flat = pa.array(np.array(values, copy=True))
    if pa.types.is_fixed_size_list(logical):
        return pa.FixedSizeListArray.from_arrays(flat, type=logical)
    return pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat, type=logical)


def _frames(value: Any, logical: pa.DataType, where: str) -> pa.Array:
    binary = is_binary(logical.value_type)
    noun = "encoded images (bytes)" if binary else "file references (str or File)"
    kinds: tuple[type, ...] = (bytes, bytearray, memoryview) if binary else (str,)
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__") or getattr(value, "dtype", None) is not None:
        raise SchemaMismatchError(f"{where}: expected a list of {noun}, one a step, found {type(value).__name__}.")
    frames = list(value)
    for step, frame in enumerate(frames):
        if frame is not None and not isinstance(frame, kinds):
            raise SchemaMismatchError(f"{where}, step {step}: expected {noun}, found {type(frame).__name__}.")
    size = sum(len(frame) for frame in frames if frame is not None)
    if size > LARGEST_CELL:
        raise ValidationError(too_large(where, size))
    return pa.array([[bytes(f) if isinstance(f, bytearray | memoryview) else f for f in frames]], logical)


def _scalar(value: Any, logical: pa.DataType, where: str) -> pa.Array:
    is_ = pa.types
    if getattr(value, "ndim", None) == 0 and not isinstance(value, np.generic):
        value = as_array(value, where=where)[()]  # an array or tensor of no dimension is a number
    if is_.is_integer(logical) or is_.is_floating(logical):
        if isinstance(value, bool | np.bool_ | str | bytes) or getattr(value, "ndim", None):
            raise _unlike(value, logical, where)
        number = _number(value, where)
        if number.dtype.kind not in "iuf" or number.ndim:
            raise _unlike(value, logical, where)
        return pa.array(lossless(number.reshape(1), dtype_of(logical), where=where))
    strict: list[tuple[Any, Any]] = [
        (is_.is_boolean, (bool, np.bool_)),
        (is_text, (str,)),
        (is_binary, (bytes, bytearray, memoryview)),
    ]
    for is_kind, kinds in strict:
        if is_kind(logical):
            if not isinstance(value, kinds):
                raise _unlike(value, logical, where)
            size = 1 if isinstance(value, bool | np.bool_) else len(value)
            if size > LARGEST_CELL:
                raise ValidationError(too_large(where, size))
    try:
        return pa.array([_for_arrow(value, logical)], logical)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _unlike(value, logical, where, f" ({error})") from error


def _loses_a_fraction(value: Any, kind: pa.DataType) -> bool:
    """Whether a float stands where Arrow counts in whole numbers: it takes what is before the point, without a word."""
    if isinstance(value, float | np.floating):
        is_ = pa.types
        return (is_.is_integer(kind) or is_.is_temporal(kind)) and not float(value).is_integer()
    if isinstance(value, list | tuple | np.ndarray) and is_list(kind):
        return any(_loses_a_fraction(one, kind.value_type) for one in value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return any(_loses_a_fraction(value.get(field.name), field.type) for field in kind)
    pairs = value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return pa.types.is_map(kind) and any(
        _loses_a_fraction(one, part)
        for pair in pairs
        for one, part in zip(pair, (kind.key_type, kind.item_type), strict=False)
    )


def _for_arrow(value: Any, logical: pa.DataType) -> Any:
    """A numpy time as Arrow's own where the column has a zone: Arrow takes none of numpy's there.

    Raises:
        ValueError: Arrow would take it and keep less of it.
    """
    if _loses_a_fraction(value, logical):
        raise ValueError("its fraction would be lost")
    if not isinstance(value, np.datetime64) or not pa.types.is_timestamp(logical):
        return value
    return pa.scalar(value.astype(f"M8[{logical.unit}]").astype("i8").item(), pa.int64()).cast(logical)


def _number(value: Any, where: str) -> NDArray[Any]:
    if not isinstance(value, float | np.generic):
        with suppress(TypeError):
            value = operator.index(value)
    values = np.asarray(value)
    if values.dtype.kind == "O" and isinstance(value, int):
        raise ValidationError(f"{where}: {value} is beyond 64 bits.")
    return values


def _from_arrow(value: Any, column: Column, logical: pa.DataType, where: str) -> pa.Array:
    if isinstance(value, pa.Scalar):
        if not value.is_valid:
            return cell(None, column, logical, where=where)
        inner = getattr(value, "values", None)
        if not isinstance(inner, pa.Array):
            return _scalar(value.as_py(), logical, where)
        value = inner
    if not isinstance(value, pa.Array):
        value = pa.chunked_array(value).combine_chunks()
    if value.nbytes > LARGEST_CELL:
        raise ValidationError(too_large(where, value.nbytes))
    whole = pa.ListArray.from_arrays(pa.array([0, len(value)], pa.int32()), value)
    if not fits(whole.type, logical):
        raise SchemaMismatchError(f"{where}: expected {logical}, found {whole.type}.")
    return conform(whole, logical, where=where)


def _by_elements(value: Any, logical: pa.DataType, where: str) -> pa.Array:
    """Nested lists with nulls, or lists of arrays: numpy sees objects, Arrow may see lists."""
    if isinstance(value, np.ndarray):
        value = list(value)
    try:
        array = pa.array([value])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatchError(f"{where}: expected {logical}, found values Arrow cannot hold ({error}).") from error
    if not fits(array.type, logical):
        raise SchemaMismatchError(f"{where}: expected {logical}, found {array.type}.")
    if list_levels(logical)[0] == 2 and is_list(array.type.value_type):
        lengths = pc.unique(pc.list_value_length(array.flatten()).drop_null()).to_pylist()
        if len(lengths) > 1:
            raise ValidationError(f"{where}: ragged: the steps of a sequence are equally long, found {lengths}.")
    return conform(array, logical, where=where)


def _unlike(value: object, logical: pa.DataType, where: str, why: str = "") -> SchemaMismatchError:
    text = repr(value)
    said = f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__
    hint = None
    if isinstance(value, Path) and is_text(logical):
        hint = "Use File(path) to copy a file into the dataset, str(path) to refer to it."
    elif isinstance(value, np.ndarray) and is_text(logical):
        hint = "A file column takes File(path), which is copied in, or a str, which is a reference."
    return SchemaMismatchError(f"{where}: expected {logical}, found {said}{why}.", hint=hint)

"""Fields of structured arrays as Arrow cells and back, bit by bit.

Numbers keep their bits: they go through buffers, never through Python's floats. A string that UTF-8 cannot hold (half
of a surrogate pair, a number beyond Unicode) is written as U+FDD0 and the hex digits of its bytes; U+FDD0 names no
character, and a string that begins with it is written so as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.spec.column_types import ColumnType, Trajectory
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ESCAPE = "\ufdd0"
_KINDS = "iufbUSV"


def arrow_type(dtype: np.dtype[Any], /, *, name: str) -> pa.DataType:
    """The Arrow type of one element of a field.

    Raises:
        SchemaMismatchError: A kind of field that stores of l5kit never have.
    """
    base = dtype.base
    if base.kind not in _KINDS or base.names is not None or (base.kind in "iuf" and base.itemsize > 8):
        raise SchemaMismatchError(f"Field {name!r} of type {dtype} cannot be a column: numbers and strings can.")
    if base.kind == "U":
        return pa.string()
    if base.kind in "SV":
        return pa.binary()
    if base.kind == "b":
        return pa.uint8()
    return pa.from_numpy_dtype(base.newbyteorder("="))


def step_column(name: str, dtype: np.dtype[Any], /, **facts: Any) -> Column:
    """The column of a field that has one value (or one small array) a step."""
    inner = arrow_type(dtype, name=name)
    if pa.types.is_string(inner) or pa.types.is_binary(inner):
        if dtype.shape:
            raise SchemaMismatchError(f"Field {name!r} holds arrays of strings, which cannot be a column.")
        return Column(name, pa.list_(inner), None, nullable=False)
    if not dtype.shape:
        return Column(name, pa.list_(inner), ColumnType("trajectory", **facts), nullable=False)
    size = int(np.prod(dtype.shape))
    shape = list(dtype.shape) if len(dtype.shape) > 1 else None
    return Column(
        name, pa.list_(pa.list_(inner, size)), Trajectory(dim=size, dtype=inner, shape=shape, **facts), nullable=False
    )


def row_column(name: str, dtype: np.dtype[Any], /) -> Column:
    """The column of a field that has one value (or one small array) a row."""
    inner = arrow_type(dtype, name=name)
    return Column(name, pa.list_(inner) if dtype.shape else inner, None, nullable=False)


def values_of(field: NDArray[Any], /, *, name: str) -> pa.Array:
    """[n, ...] the elements of a field as one Arrow array of n * size values."""
    kind = arrow_type(field.dtype, name=name)
    flat = np.ascontiguousarray(field).reshape(-1)
    if pa.types.is_string(kind):
        return _texts(flat)
    if pa.types.is_binary(kind):
        raw = flat.view(f"V{flat.dtype.itemsize}") if flat.dtype.itemsize else flat
        return pa.array([one.tobytes() for one in raw], kind)
    flat = flat.view(np.uint8) if flat.dtype.kind == "b" else flat.astype(flat.dtype.newbyteorder("="), copy=False)
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)])


def step_cells(field: NDArray[Any], offsets: NDArray[np.int64], kind: pa.DataType, /, *, name: str) -> pa.Array:
    """[rows] list cells over the steps of some rows, laid end to end.

    Args:
        field: [steps, ...].
        offsets: [rows + 1] the first step of each row.
        kind: The column's logical Arrow type.
        name: The column, for messages.
    """
    values = values_of(field, name=name)
    if pa.types.is_fixed_size_list(kind.value_type):
        values = pa.FixedSizeListArray.from_arrays(values, type=kind.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=kind)


def row_cells(field: NDArray[Any], kind: pa.DataType, /, *, name: str) -> pa.Array:
    """[rows] cells of a field with one value, or one small array, a row."""
    values = values_of(field, name=name)
    if not pa.types.is_list(kind):
        return values
    size = int(np.prod(field.shape[1:]))
    offsets = np.arange(0, len(values) + size, size, dtype=np.int32)[: len(field) + 1]
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)


def field_of(cells: pa.Array, dtype: np.dtype[Any], /, *, name: str) -> NDArray[Any]:
    """[n, ...] the elements of a field from Arrow values that `values_of` made, lists around them taken off.

    Raises:
        SchemaMismatchError: Nulls, another number of values, or strings that are too long.
    """
    values = cells
    while not (
        pa.types.is_primitive(values.type) or pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    ):
        if values.null_count:
            raise SchemaMismatchError(f"Column {name!r} has a null cell or step; l5kit has no nulls.")
        values = values.flatten()
    if values.null_count:
        raise SchemaMismatchError(f"Column {name!r} has {values.null_count} nulls; l5kit has no nulls.")
    base, size = dtype.base, int(np.prod(dtype.shape))
    if len(values) % size:
        raise SchemaMismatchError(f"Column {name!r}: {len(values)} values are no whole number of {dtype.shape} steps.")
    flat = _from_texts(values, base, name) if base.kind == "U" else _from_numbers(values, base, name)
    return flat.reshape(len(flat) // size, *dtype.shape)


def _from_numbers(values: pa.Array, base: np.dtype[Any], name: str) -> NDArray[Any]:
    if base.kind in "SV":
        parts = values.to_pylist()
        if any(len(part) != base.itemsize for part in parts):
            raise SchemaMismatchError(f"Column {name!r}: expected cells of {base.itemsize} bytes.")
        return np.frombuffer(b"".join(parts), base)
    expected = arrow_type(base, name=name)
    if values.type != expected:
        if not (pa.types.is_integer(values.type) and pa.types.is_integer(expected)):
            raise SchemaMismatchError(f"Column {name!r}: expected {expected}, found {values.type}.")
        try:
            values = values.cast(expected)  # lakes widen whole numbers that they have no type for
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(f"Column {name!r}: expected {expected}, found {values.type}: {error}.") from error
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers.view(np.bool_) if base.kind == "b" else numbers.astype(base, copy=False)


def _texts(flat: NDArray[Any]) -> pa.Array:
    units = np.ascontiguousarray(flat).astype(flat.dtype.newbyteorder("="), copy=False).view(np.uint32)
    units = units.reshape(len(flat), flat.dtype.itemsize // 4)
    odd = ((units >= 0xD800) & (units < 0xE000)) | (units > 0x10FFFF)
    if units.shape[1]:
        odd[:, 0] |= units[:, 0] == ord(_ESCAPE)
    wrong = odd.any(axis=1)
    if not wrong.any():
        return pa.array(flat.astype(object), pa.string())
    sane = flat.copy()
    sane[wrong] = ""
    texts = sane.astype(object)
    for row in np.flatnonzero(wrong).tolist():
        texts[row] = _ESCAPE + units[row].astype("<u4").tobytes().hex()
    return pa.array(texts, pa.string())


def _from_texts(values: pa.Array, base: np.dtype[Any], name: str) -> NDArray[Any]:
    texts = values.to_pylist()
    longest = base.itemsize // 4
    out = np.zeros(len(texts), base)
    escaped = {row: text for row, text in enumerate(texts) if text.startswith(_ESCAPE)}
    if too_long := next((t for row, t in enumerate(texts) if row not in escaped and len(t) > longest), None):
        raise SchemaMismatchError(f"Column {name!r}: {too_long!r} is longer than {longest} letters.")
    if texts:
        out[:] = np.array([("" if row in escaped else text) for row, text in enumerate(texts)], base)
    for row, text in escaped.items():
        raw = np.frombuffer(bytes.fromhex(text[1:]), "<u4")
        out.view(np.dtype((base.str[0] + "u4", longest))).reshape(len(out), longest)[row] = raw
    return out

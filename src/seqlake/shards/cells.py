"""Cells in their three forms: Arrow as streams show it, Arrow as files hold it, and bytes that are flat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import SchemaMismatchError, ShardChangedError
from seqlake.spec.schema import dtype_of, has_list_views, is_list, without_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Ints

_BATCH = 16 << 20  # bytes of a batch of flat columns, about
_MOST_ROWS = 1 << 16
_MOST_VALUES = (1 << 31) - 1  # that lists with offsets of 32 bits can count


def numpy_type(kind: pa.DataType, /) -> np.dtype[Any] | None:
    """The numpy type of a numeric Arrow type (integers and floats); None for any other."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype: np.dtype[Any] = dtype_of(kind)
        return dtype
    return None


def step_type(kind: pa.DataType, /) -> tuple[pa.DataType, int, int | None] | None:
    """How a column type holds numbers.

    Returns:
        (numeric type, levels of lists from 0 to 2, fixed size of the innermost list or None); None where the type is
        no number, list of numbers or list of lists of numbers.
    """
    levels, size = 0, None
    while is_list(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        kind = kind.value_type
        levels += 1
    return None if levels > 2 or numpy_type(kind) is None else (kind, levels, size)


def cast(array: pa.Array, target: pa.DataType, /, *, column: str) -> pa.Array:
    """Cast the cells of one column; raw binary cells become lists of steps, and those become raw cells.

    Args:
        array: Any form of the column.
        target: The type wanted; a fixed-size inner list rejects ragged steps.
        column: Its name, for the message.

    Raises:
        SchemaMismatchError: The cells do not fit, or steps are ragged.

    Example:
        >>> cast(pa.array([[[1, 2]]]), pa.list_(pa.list_(pa.float32(), 2)), column="action").to_pylist()
        [[[1.0, 2.0]]]
    """
    if has_list_views(array.type):
        array = without_list_views(array)
    if array.type == target:
        return array
    try:
        if pa.types.is_binary(array.type) and is_list(target):
            return _from_raw(array, target)
        if is_list(array.type) and pa.types.is_binary(target) and numpy_type_of(array.type) is not None:
            return _to_raw(array)
        return recast(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"Column {column!r}: expected {target}, found {array.type} that does not fit ({error}).",
            hint="Give cells of that type, every step with the same number of values.",
        ) from None


def without_list_views(array: pa.Array, /) -> pa.Array:
    """Lists with offsets where there are views: what casts and other libraries take, whatever a file's reader gave."""
    if not is_list(array.type):
        return array
    values = without_list_views(array.flatten())
    lengths = list_lengths(array)
    large = int(lengths.clip(0).sum()) > _MOST_VALUES
    return listed(lengths, values, pa.large_list(values.type) if large else pa.list_(values.type))


def recast(array: pa.Array, kind: pa.DataType, /) -> pa.Array:
    """As `array.cast(kind)`, but of what has cells without a type, whose lists pyarrow's cast tears.

    Example:
        >>> recast(pa.array([[None, None]]), pa.list_(pa.field("element", pa.null()))).to_pylist()
        [[None, None]]
    """
    if array.type == kind:
        return array
    if not _has_nulls(kind):
        return array.cast(kind)
    if is_list(kind) and is_list(array.type) and not pa.types.is_struct(kind.value_type):
        return listed(list_lengths(array), recast(array.flatten(), kind.value_type), kind)
    return pa.array(array.to_pylist(), kind)


def _has_nulls(kind: pa.DataType) -> bool:
    """Whether cells, or parts of them, have no type."""
    if pa.types.is_null(kind):
        return True
    return any(_has_nulls(kind.field(number).type) for number in range(kind.num_fields))


def list_lengths(array: pa.Array, /) -> Ints:
    """[cells] how many elements each list has; -1 null. `array.flatten()` gives as many, whatever null cells hide."""
    lengths: Ints = np.asarray(pc.list_value_length(array).cast(pa.int64()).fill_null(-1))
    return lengths


def listed(lengths: Ints, values: pa.Array, kind: pa.DataType, /) -> pa.Array:
    """Lists of so many values each, in their order.

    Args:
        lengths: [cells] of each list; -1 null.
        values: Those of all lists that are not null.
        kind: Which lists: plain, large or of a fixed size; views become lists with offsets.

    Raises:
        ValueError: A list of another size than `kind` has, or more values than it counts.

    Example:
        >>> listed(np.array([2, -1, 1]), pa.array([1, 2, 3]), pa.list_(pa.int64())).to_pylist()
        [[1, 2], None, [3]]
    """
    null, field = lengths < 0, kind.value_field.with_type(values.type)
    mask = pa.array(null) if null.any() else None
    offsets = np.concatenate([[0], np.cumsum(lengths.clip(0))])
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        if (lengths[~null] != size).any():
            raise ValueError(f"Expected lists of {size}, found one of {lengths[~null][lengths[~null] != size][0]}.")
        if mask is not None:  # a null list still takes its place among the values
            places = offsets[:-1, None] + np.arange(size)
            values = values.take(pa.array(places.ravel(), mask=np.repeat(null, size)))
        return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(field, size), mask=mask)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        ends = pa.array(offsets, pa.int64())
        return pa.LargeListArray.from_arrays(ends, values, type=pa.large_list(field), mask=mask)
    if offsets[-1] > _MOST_VALUES:
        raise ValueError(f"Expected at most {_MOST_VALUES} values in lists of {kind}, found {offsets[-1]}.")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=pa.list_(field), mask=mask)


def revalued(cells: pa.Array, values: Any, /) -> pa.Array:
    """The same lists in lists of other values.

    Args:
        cells: Lists of any depth and form, sliced or not.
        values: As many as lie in them, null cells left out: an Arrow array of their type, or numpy.

    Example:
        >>> revalued(pa.array([[[1, 2]], None]), np.array([3, 4])).to_pylist()
        [[[3, 4]], None]
    """
    if not is_list(cells.type):
        return values if isinstance(values, pa.Array) else pa.array(values, cells.type)
    inner = revalued(cells.flatten(), values)
    return listed(list_lengths(cells), inner, cells.type)


def step_shape(steps: pa.Array, /) -> tuple[pa.Array, tuple[int, ...] | None]:
    """The numbers of nested steps in order, and the shape that every step has; None where they differ.

    Args:
        steps: [n] lists of numbers, or lists in lists; no list of them is null.

    Example:
        >>> step_shape(pa.array([[[1, 2], [3, 4], [5, 6]]]))[1]
        (3, 2)
    """
    shape: tuple[int, ...] | None = ()
    while is_list(steps.type):
        widths = pc.min_max(pc.list_value_length(steps)).as_py()
        same = shape is not None and widths["min"] == widths["max"]
        shape = (*(shape or ()), widths["min"] or 0) if same else None
        steps = steps.flatten()
    return steps, shape


def numpy_type_of(kind: pa.DataType, /) -> np.dtype[Any] | None:
    """The numpy type of the numbers inside a column type; None where it holds none."""
    held = step_type(kind)
    return None if held is None else numpy_type(held[0])


def _from_raw(array: pa.BinaryArray, target: pa.DataType) -> pa.Array:
    held = step_type(target)
    if held is None or held[1] != 2 or not held[2]:
        raise pa.ArrowInvalid("raw cells need a column type with dim and dtype")
    kind, dim = held[0], held[2]
    mask = array.is_null() if array.null_count else None
    if mask is not None:  # bytes below a null cell belong to nobody
        array = pc.fill_null(array, b"")
    offsets = _offsets(array)
    width = kind.bit_width // 8 * dim
    sizes = np.diff(offsets)
    if (sizes % width).any():
        odd = int(sizes[(sizes % width) != 0][0])
        raise pa.ArrowInvalid(f"a cell of {odd} bytes is no multiple of {dim} values of {kind}")
    data = array.buffers()[2] or pa.py_buffer(b"")
    data = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if data.address % 8:  # other Arrow libraries refuse values that are not aligned
        data = pa.py_buffer(data.to_pybytes())
    values = pa.Array.from_buffers(kind, data.size // (kind.bit_width // 8), [None, data])
    steps = pa.FixedSizeListArray.from_arrays(values, type=target.value_type)
    starts = pa.array((offsets - offsets[0]) // width, pa.int32())
    lists = pa.ListArray.from_arrays(starts, steps, type=pa.list_(target.value_field), mask=mask)
    return lists if lists.type == target else lists.cast(target)


def _to_raw(array: pa.Array) -> pa.BinaryArray:
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    steps = pc.list_flatten(array)
    values = pc.list_flatten(steps) if is_list(steps.type) else steps
    held = step_type(array.type)
    dim = (held[2] if held is not None and held[2] else len(values) // len(steps) if len(steps) else 1) or 1
    if steps.null_count or values.null_count or len(values) != len(steps) * dim:
        raise pa.ArrowInvalid("raw cells cannot hold null values or steps of several sizes")
    data = np.ascontiguousarray(np.asarray(values)).astype(dtype_of(values.type).newbyteorder("<"))
    ends = np.cumsum(np.asarray(lengths).astype(np.int64)) * (dim * data.itemsize)
    if len(ends) and ends[-1] >= 1 << 31:
        raise pa.ArrowInvalid("a batch of raw cells reaches 2 GiB; give smaller batches")
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    valid = _bitmap(np.asarray(array.is_valid())) if array.null_count else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data.view(np.uint8))]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(array: pa.Array) -> NDArray[np.int32]:
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)


def from_flat(flat: Flat, rows: Ints, target: pa.DataType, /) -> pa.Array:
    """Cells of a flat column as Arrow, without decoding.

    Args:
        flat: The column.
        rows: Row numbers, in the order wanted.
        target: Its Arrow type: a number, lists of any form, or binary for raw cells.
    """
    if pa.types.is_large_binary(target) or pa.types.is_fixed_size_list(target):
        plain = pa.binary() if pa.types.is_large_binary(target) else pa.list_(target.value_field)
        return from_flat(flat, rows, plain).cast(target)
    steps = flat.steps[rows]
    values = gather(flat, rows)
    mask = pa.array(steps < 0) if (steps < 0).any() else None
    width = int(np.prod(flat.shape, dtype=np.int64))
    if pa.types.is_binary(target):
        ends = np.cumsum(np.maximum(steps, 0)) * (width * values.itemsize)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        valid = None if mask is None else _bitmap(steps >= 0)
        return pa.Array.from_buffers(target, len(rows), [valid, pa.py_buffer(offsets), pa.py_buffer(values)])
    if not is_list(target):
        whole = np.zeros(len(rows), values.dtype)
        whole[steps > 0] = values
        return pa.array(whole, target, mask=None if mask is None else steps < 0)
    if not flat.shape:
        return _lists(values, steps, target, mask)
    inner = target.value_type
    if pa.types.is_fixed_size_list(inner):
        cells = pa.FixedSizeListArray.from_arrays(pa.array(values, inner.value_type), type=inner)
    else:
        cells = _lists(values, np.full(len(values) // max(width, 1), width), inner, None)
    return _lists(cells, steps, target, mask)


def _lists(values: Any, steps: Ints, target: pa.DataType, mask: pa.Array | None) -> pa.Array:
    """A list array of `target`; values are an Arrow array or numpy numbers."""
    if isinstance(values, np.ndarray):
        values = pa.array(values, target.value_type)
    ends = np.concatenate([[0], np.cumsum(np.maximum(steps, 0))])
    if pa.types.is_large_list(target):
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values, type=target, mask=mask)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=target, mask=mask)


def gather(flat: Flat, rows: Ints, /) -> NDArray[Any]:
    """[values] all numbers of these rows in order, copied out of the blob and converted to `flat.dtype`.

    Args:
        flat: The column.
        rows: Row numbers; null and empty rows give nothing.
    """
    rows = rows[flat.steps[rows] > 0]
    if rows.size == 0:
        return np.zeros(0, flat.dtype)
    width = int(np.prod(flat.shape, dtype=np.int64)) * flat.stored.itemsize
    starts = flat.start[rows]
    stops = starts + (flat.steps[rows] - 1) * flat.stride + width
    if flat.stride == width:  # rows that follow each other are one copy
        joints = np.flatnonzero(stops[:-1] != starts[1:])
        starts = starts[np.concatenate([[0], joints + 1])]
        stops = stops[np.concatenate([joints, [stops.size - 1]])]
    view = flat.blob.view()
    if view is None:
        parts = [np.frombuffer(part, np.uint8) for part in fetched(flat, starts, stops)]
    else:
        if flat.proof is not None:
            flat.proof.touch(starts)
        whole = np.frombuffer(view, np.uint8)
        parts = [whole[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    if flat.stride != width:
        parts = [_destride(part, flat.stride, width) for part in parts]
    expected, nbytes = int(flat.steps[rows].sum()) * width, sum(part.size for part in parts)
    if nbytes != expected:
        raise ShardChangedError(
            f"Expected {expected} bytes of values in {flat.blob.location}, found {nbytes}.",
            path=flat.blob.location,
            hint="The file was cut off while it was read: open it again.",
        )
    # Arrow's own memory: aligned for every consumer, and used again for the next batch instead of mapped anew.
    data = np.frombuffer(pa.allocate_buffer(expected), np.uint8)
    np.concatenate(parts, out=data)
    return data.view(flat.stored).astype(flat.dtype, copy=False)


def fetched(flat: Flat, starts: Ints, stops: Ints, /) -> list[memoryview]:
    """Bytes of a flat column whose blob is not memory: of whole pages that were compared, where it has a proof."""
    return flat.blob.ranges(starts, stops) if flat.proof is None else flat.proof.fetch(starts, stops)


def _destride(part: NDArray[np.uint8], stride: int, width: int) -> NDArray[np.uint8]:
    count = (part.size - width) // stride + 1
    return np.lib.stride_tricks.as_strided(part, (count, width), (stride, 1)).reshape(-1)


def is_shown(flat: Flat, target: pa.DataType, /) -> bool:
    """Whether `from_flat` gives the cells of a flat column in this Arrow type as they are, no step of another size."""
    held = step_type(target)
    if held is None or numpy_type(held[0]) != flat.dtype or pa.types.is_fixed_size_list(target):
        return False
    width = int(np.prod(flat.shape, dtype=np.int64))
    return held[1] == 1 + bool(flat.shape) and (held[1] == 1 or held[2] in {None, width})


def flat_batches(flats: Sequence[Flat], types: pa.Schema, rows: Ints, /) -> Iterator[pa.RecordBatch]:
    """These rows of flat columns as bounded batches, each column of a batch copied once, in as few pieces as it lies.

    Args:
        flats: One for each field.
        types: Fields whose types `is_shown`.
        rows: Row numbers, in the order wanted.
    """
    for start, stop in flat_portions(flats, rows):
        arrays = [from_flat(flat, rows[start:stop], kind) for flat, kind in zip(flats, types.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=types)


def flat_portions(flats: Sequence[Flat], rows: Ints, /) -> Iterator[tuple[int, int]]:
    """From where to where in `rows` each bounded batch goes; one row is one batch however large it is."""
    nbytes = sum(np.maximum(flat.steps[rows], 0) * flat.stride for flat in flats)
    before = np.concatenate([[0], np.cumsum(nbytes)])
    start = 0
    while start < rows.size:
        stop = int(np.searchsorted(before, before[start] + _BATCH, side="right")) - 1
        stop = min(max(stop, start + 1), start + _MOST_ROWS)
        yield start, stop
        start = stop


def takeable(batch: pa.RecordBatch, /) -> pa.RecordBatch:
    """The batch with plain text and bytes where it has views, of which pyarrow cannot take single rows."""
    lists = [without_list_views(one) if has_list_views(one.type) else one for one in batch.columns]
    kinds = [without_views(one.type) for one in lists]
    if all(kind == field.type for kind, field in zip(kinds, batch.schema, strict=True)):
        return batch
    arrays = [recast(array, kind) for array, kind in zip(lists, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

"""Arrays in MDS: `ndarray` (dtype and shape in the cell), `ndarray:float32` (shape), `ndarray:float32:16,6` (values).

A shape is one byte, the number of dimensions times four plus the power of two of the bytes of one, then the dimensions.
Values are little-endian, the last dimension the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.formats._streaming.cells import CellBytes, CellError, UnheldError, binary, fixed, numbers
from seqlake.spec.column_types import ColumnType, Embedding, Trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints

# The byte that names a dtype in a cell.
DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
DTYPES |= {64: "uint64", 65: "int64", 66: "float64"}
_CODES = {name: code for code, name in DTYPES.items()}
_MOST_DIMENSIONS = 63
_MOST_EMPTY = 1 << 16


@dataclass(frozen=True, slots=True)
class ArrayEncoding:
    """An array encoding, as far as its name says.

    Attributes:
        dtype: None where each cell says.
        shape: None where each cell says.
        ndim: How many dimensions; learned from a cell where the name does not say.
        coded: Each cell begins with its dtype.
    """

    dtype: str | None
    shape: tuple[int, ...] | None = None
    ndim: int | None = None
    coded: bool = True

    @staticmethod
    def of(name: str, /) -> ArrayEncoding | None:
        """From the name of an encoding; None if it is no array's."""
        parts = name.split(":")
        if parts[0] != "ndarray" or len(parts) > 3:
            return None
        if len(parts) == 1 or parts[1:] == [""]:
            return ArrayEncoding(None)
        if parts[1] not in _CODES:
            return None
        if len(parts) == 2:
            return ArrayEncoding(parts[1], coded=False)
        texts = parts[2].split(",")
        if not all(text.strip().isdecimal() and int(text) > 0 for text in texts) or len(texts) > _MOST_DIMENSIONS:
            return None
        shape = tuple(map(int, texts))
        return ArrayEncoding(parts[1], shape, len(shape), coded=False)

    def learned(self, dtype: str, ndim: int) -> ArrayEncoding:
        """The same, knowing what a cell said."""
        return ArrayEncoding(dtype, self.shape, ndim, coded=self.coded)

    @property
    def size(self) -> int | None:
        """Bytes of a cell, where all have the same."""
        return None if self.shape is None else prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def arrow(self) -> pa.DataType:
        """Nested lists; the innermost of fixed arrays above one dimension holds a whole step."""
        value = pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.shape is not None and len(self.shape) > 1:
            return pa.list_(pa.list_(value, prod(self.shape[1:])))
        for _ in range(self.ndim or 1):
            value = pa.list_(value)
        return value

    @property
    def type(self) -> ColumnType | None:
        """A vector, or a signal along the first dimension."""
        if self.shape is None:
            return None
        number = pa.from_numpy_dtype(np.dtype(self.dtype))
        if len(self.shape) == 1:
            return Embedding(dim=self.shape[0], dtype=number)
        step = self.shape[1:]
        shape = list(step) if len(step) > 1 else None
        return Trajectory(dim=prod(step), dtype=number, shape=shape, steps=self.shape[0])

    # ---- reading

    def array(self, cells: CellBytes) -> pa.Array:
        """Many cells as Arrow lists."""
        assert self.dtype is not None
        dtype = np.dtype(self.dtype)
        if self.shape is not None:
            values = numbers(cells, dtype, prod(self.shape))
            return _nested(pa.array(values.reshape(-1)), self._levels(len(cells)), self.arrow)
        dims, body = self._bodies(cells)
        counts = dims.prod(axis=1)
        raw = binary(body).buffers()[2]
        values = np.frombuffer(raw or b"", dtype.newbyteorder("<"), int(counts.sum())).astype(dtype, copy=False)
        levels = [np.repeat(dims[:, level], dims[:, :level].prod(axis=1)) for level in range(dims.shape[1])]
        return _nested(pa.array(values), levels, self.arrow)

    def steps(self, cells: CellBytes, size: int) -> tuple[Ints, Ints]:
        """([rows] first byte of the values, [rows] steps of `size` numbers), of arrays of free shape.

        Raises:
            CellError: A cell whose steps have another size.
        """
        dims, body = self._bodies(cells)
        other = np.flatnonzero(dims[:, 1:].prod(axis=1) != size)
        if len(other):
            raise CellError(f"its shape is {dims[int(other[0])].tolist()}, steps of {size} numbers are expected")
        return body.starts, dims[:, 0]

    def _bodies(self, cells: CellBytes) -> tuple[NDArray[np.int64], CellBytes]:
        """([rows, ndim] the shapes, the values) of arrays of free shape; each cell is exactly its values."""
        if self.coded:
            cells = self._past_dtype(cells)
        dims, body = _shapes(cells, self.ndim or 1)
        size = np.dtype(self.dtype).itemsize
        wrong = np.flatnonzero(dims.prod(axis=1) * size != body.stops - body.starts)
        if len(wrong):
            row = int(wrong[0])
            have = int(body.stops[row] - body.starts[row])
            raise CellError(f"{self.dtype} {dims[row].tolist()} does not make its {have} bytes of values")
        return dims, body

    def _levels(self, rows: int) -> list[Ints]:
        assert self.shape is not None
        if len(self.shape) == 1:
            return [np.full(rows, self.shape[0], np.int64)]
        return [np.full(rows, self.shape[0], np.int64), np.full(rows * self.shape[0], prod(self.shape[1:]), np.int64)]

    def _past_dtype(self, cells: CellBytes) -> CellBytes:
        if bool((cells.stops <= cells.starts).any()):
            raise CellError("it is empty, an array is not")
        for code in np.unique(fixed(cells.buffer, cells.starts, 1)):
            if int(code) not in DTYPES:
                raise CellError(f"it is of dtype {int(code)}, which does not exist")
            if DTYPES[int(code)] != self.dtype:
                raise UnheldError(f"it is {DTYPES[int(code)]}, others of its column are {self.dtype}; {_AS_BYTES}")
        return cells.from_byte(1)

    def value(self, cell: memoryview) -> NDArray[Any]:
        """One cell as a numpy array over the same memory."""
        if self.shape is not None:
            return np.frombuffer(cell, self.dtype).reshape(self.shape)
        dtype, shape, at = head(cell, self)
        if prod(shape) * np.dtype(dtype).itemsize != len(cell) - at:
            raise CellError(f"{dtype} {list(shape)} does not make its {len(cell) - at} bytes of values")
        return np.frombuffer(cell, np.dtype(dtype).newbyteorder("<"), offset=at).reshape(shape)

    # ---- writing

    def bytes(self, value: Any) -> bytes:
        """A cell.

        Raises:
            CellError: Another dtype or shape, or an array without elements or dimensions.
        """
        if not isinstance(value, np.ndarray):
            raise CellError(f"expected a numpy array, found {type(value).__name__}")
        if self.dtype is not None and value.dtype != np.dtype(self.dtype):
            raise CellError(f"expected {self.dtype}, found {value.dtype}")
        if self.shape is not None:
            if value.shape != self.shape:
                raise CellError(f"expected shape {list(self.shape)}, found {list(value.shape)}")
            return value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        code = _CODES.get(value.dtype.name)
        if code is None:
            raise CellError(f"arrays of {value.dtype} cannot be stored, only {', '.join(sorted(_CODES))}")
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return (bytes([code]) if self.coded else b"") + _shape_bytes(value.shape) + little.tobytes()


_AS_BYTES = 'encodings={column: "bytes"} gives the cells as they are'


def head(cell: memoryview, kind: ArrayEncoding, /) -> tuple[str, tuple[int, ...], int]:
    """(dtype, shape, first byte of the values) of one cell.

    Raises:
        CellError: It is cut off, or of a dtype that does not exist.
    """
    at, dtype = 0, kind.dtype
    if kind.coded:
        dtype = DTYPES.get(cell[0]) if len(cell) else None
        at = 1
    if dtype is None or len(cell) <= at:
        raise CellError("it does not begin with a dtype and a shape")
    ndim, width = cell[at] >> 2, 1 << (cell[at] & 3)
    stop = at + 1 + ndim * width
    if not ndim or stop > len(cell):
        raise CellError("its shape is cut off")
    shape = tuple(int.from_bytes(cell[i : i + width], "little") for i in range(at + 1, stop, width))
    return dtype, shape, stop


def _shapes(cells: CellBytes, ndim: int) -> tuple[NDArray[np.int64], CellBytes]:
    """([rows, ndim] the shapes, the values behind them)."""
    if not len(cells):
        return np.empty((0, ndim), np.int64), cells
    if bool((cells.stops <= cells.starts).any()):
        raise CellError("it is cut off before its shape")
    heads = fixed(cells.buffer, cells.starts, 1)[:, 0]
    dims = np.empty((len(cells), ndim), np.int64)
    skipped = np.empty(len(cells), np.int64)
    for code in np.unique(heads):
        dimensions, width = int(code) >> 2, 1 << (int(code) & 3)
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise CellError(f"it has {dimensions} dimensions")
        if dimensions != ndim:
            raise UnheldError(f"it has {dimensions} dimensions, others of its column {ndim}; {_AS_BYTES}")
        rows = np.flatnonzero(heads == code)
        length = 1 + ndim * width
        if bool((cells.stops[rows] - cells.starts[rows] < length).any()):
            raise CellError("its shape is cut off")
        raw = fixed(cells.buffer, cells.starts[rows] + 1, ndim * width).view(f"<u{width}").astype(np.uint64)
        if bool((raw >= 1 << 40).any()) or bool((raw.astype(np.float64).prod(axis=1) >= 1 << 40).any()):
            raise CellError("its shape is larger than any file")
        if int(raw[:, :-1].astype(np.float64).prod(axis=1).max()) > _MOST_EMPTY and not raw.all():
            raise CellError(f"its shape makes more than {_MOST_EMPTY} lists of nothing")
        dims[rows], skipped[rows] = raw.astype(np.int64), length
    return dims, CellBytes(cells.buffer, cells.starts + skipped, cells.stops)


def _nested(values: pa.Array, levels: list[Ints], kind: pa.DataType) -> pa.Array:
    """Lists of lists around the values: `levels[i]` are the lengths of all lists of depth i."""
    kinds, nested = [], values
    for _ in levels:
        kinds.append(kind)
        kind = kind.value_type
    for lengths, one in zip(reversed(levels), reversed(kinds), strict=True):
        if pa.types.is_fixed_size_list(one):
            nested = pa.FixedSizeListArray.from_arrays(nested, type=one)
            continue
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] >= 1 << 31:
            raise CellError("it makes a batch of more than 2**31 values, which Arrow lists cannot hold")
        nested = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), nested, type=one)
    return nested


def _shape_bytes(shape: tuple[int, ...]) -> bytes:
    if not shape or len(shape) > _MOST_DIMENSIONS or min(shape) < 1:
        raise CellError(f"arrays of shape {list(shape)} cannot be stored: 1 to 63 dimensions, none of them empty")
    power = next(power for power in range(4) if max(shape) < 1 << (8 << power))
    return bytes([len(shape) << 2 | power]) + np.array(shape, f"<u{1 << power}").tobytes()

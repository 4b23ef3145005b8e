"""Cells: where their bytes lie, how encodings make values of them one by one or many at once, which one a user chose.

A user's own encoding is a `CellEncoding`, too, given by name:
`sl.scan(uri, encodings={"int8_quantised": CellEncoding(...)})`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.column_types import ColumnType

_MOST = (1 << 31) - 1
_ALIGNED = 8


class CellError(ValueError):
    """A cell that is not what its encoding says; the reader adds where."""


class UnheldError(CellError):
    """A cell that is sound, and holds what its column cannot: not damage, and said as what it is."""


def absent(column: str, sample: Mapping[str, Any], /) -> str:
    """What is said of a sample that lacks a column."""
    return f"column {column!r} is missing; the sample has {', '.join(map(repr, sample)) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class CellBytes:
    """The cells of some rows.

    Attributes:
        buffer: [bytes] uint8; of a shard, or of the parts of it that were fetched.
        starts: [rows] first byte of each cell.
        stops: [rows] end of each cell.
    """

    buffer: NDArray[np.uint8]
    starts: Ints
    stops: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def one(self, row: int) -> memoryview:
        """The bytes of one cell."""
        return self.buffer.data[int(self.starts[row]) : int(self.stops[row])]

    def from_byte(self, skipped: int) -> CellBytes:
        """The same cells without their first bytes."""
        return CellBytes(self.buffer, self.starts + skipped, self.stops)


def fixed(buffer: NDArray[np.uint8], starts: Ints, size: int, /) -> NDArray[np.uint8]:
    """[rows, size] the bytes at these starts, in memory that numbers may lie in: aligned for the largest of them.

    Every range lies inside the buffer (the caller has looked).
    """
    if not len(starts) or not size:
        return np.empty((len(starts), size), np.uint8)
    step = int(starts[1] - starts[0]) if len(starts) > 1 else size
    if step > 0 and (len(starts) < 3 or bool((np.diff(starts) == step).all())):
        first = buffer[int(starts[0]) :]
        rows = np.ascontiguousarray(as_strided(first, (len(starts), size), (step, 1), writeable=False))
        # Ranges without a gap are not copied. numpy 2.1 crashes on some comparisons of numbers that lie askew.
        return rows.copy() if rows.__array_interface__["data"][0] % _ALIGNED else rows
    # One element of an opaque type for each range: indexing copies whole elements.
    kind = np.dtype(f"V{size}")  # by its name: see `_opaque` of training/gather.py
    ranges: NDArray[Any] = np.ndarray((len(buffer) - size + 1,), kind, buffer.data, strides=(1,))
    return ranges[starts].view(np.uint8).reshape(-1, size)


def numbers(cells: CellBytes, dtype: np.dtype[Any], count: int = 1, /) -> NDArray[Any]:
    """[rows, count] little-endian numbers.

    Raises:
        CellError: A cell of another size.
    """
    size = dtype.itemsize * count
    wrong = np.flatnonzero(cells.stops - cells.starts != size)
    if len(wrong):
        row = int(wrong[0])
        raise CellError(f"it has {int(cells.stops[row] - cells.starts[row])} bytes where {size} are expected")
    values = fixed(cells.buffer, cells.starts, size).view(dtype.newbyteorder("<"))
    return values.astype(dtype, copy=False)


def binary(cells: CellBytes, /) -> pa.Array:
    """The cells as Arrow `binary`, copied together.

    The bytes between two cells are taken for a cell too, so that the buffer as it is makes one Arrow array; every
    second of its elements is then taken, which Arrow does at the speed of memory.

    Raises:
        CellError: More than 2 GiB, which Arrow's offsets cannot hold.
    """
    count = len(cells)
    if not count:
        return pa.array([], pa.binary())
    if int((cells.stops - cells.starts).sum()) > _MOST:
        raise CellError("it makes a batch above 2 GiB, which Arrow cannot hold")
    starts, stops = cells.starts, cells.stops
    picked = np.arange(0, 2 * count, 2)
    if count > 1 and not bool((starts[1:] >= stops[:-1]).all()):
        _, first, inverse = np.unique(np.stack([starts, stops]), axis=1, return_index=True, return_inverse=True)
        starts, stops, picked = starts[first], stops[first], 2 * inverse.ravel()
        if not bool((starts[1:] >= stops[:-1]).all()):
            return pa.array([bytes(cells.one(row)) for row in range(count)], pa.binary())
    bounds = np.empty(2 * len(starts), np.int64)
    bounds[0::2], bounds[1::2] = starts, stops
    base = int(bounds[0])
    bounds -= base
    wide = int(bounds[-1]) > _MOST
    offsets = pa.py_buffer(bounds if wide else bounds.astype(np.int32))
    data = pa.py_buffer(cells.buffer[base:])
    kind = pa.large_binary() if wide else pa.binary()
    every = pa.Array.from_buffers(kind, len(bounds) - 1, [None, offsets, data])
    taken = every.take(pa.array(picked))
    return taken.cast(pa.binary()) if wide else taken


def text(cells: CellBytes, /) -> pa.Array:
    """The cells as Arrow `string`.

    Raises:
        CellError: One is not UTF-8.
    """
    try:
        return binary(cells).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CellError("it is not UTF-8") from error


def integers(cells: CellBytes, /) -> pa.Array:
    """The cells, decimal texts, as Arrow `int64`; whatever Python's `int` takes is taken.

    Raises:
        CellError: No integer, or one outside 64 bits.
    """
    texts = text(cells)
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        try:
            return pa.array([int(one) for one in texts.to_pylist()], pa.int64())
        except (ValueError, OverflowError, pa.ArrowInvalid) as error:
            raise _no_integer(texts.to_pylist()) from error


def _no_integer(texts: list[str]) -> CellError:
    """Why some texts are no 64-bit integers: the first that is none at all, else the first that is too large."""
    large = ""
    for one in texts:
        try:
            number = int(one)
        except ValueError:
            return CellError(f"{one[:80]!r} is no integer")
        large = large or (one if not -(1 << 63) <= number < 1 << 63 else "")
    return UnheldError(f'{large[:80]} does not fit into 64 bits; encodings={{column: "str"}} gives the text')


def floats(cells: CellBytes, /) -> pa.Array:
    """The cells, decimal texts, as Arrow `double`; whatever Python's `float` takes is taken.

    Raises:
        CellError: No number.
    """
    texts = text(cells)
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:
        try:
            return pa.array([float(one) for one in texts.to_pylist()], pa.float64())
        except ValueError as error:
            raise CellError("it is no number") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEncoding:
    """How the cells of a column are stored.

    Attributes:
        arrow: The Arrow type of its values.
        decode: The bytes of one cell (a memoryview) -> its value, which Arrow can hold as `arrow`.
        encode: A value -> the bytes; None: the column cannot be written.
        size: Bytes of a cell, where all have the same; None where each says its own.
        type: The column type, as `seqlake.Image(format="jpeg")`.
        array: Many cells at once -> an Arrow array of `arrow`; None calls `decode` for each.

    Example:
        >>> celsius = CellEncoding(arrow=pa.float32(), decode=lambda cell: cell[0] / 2 - 40, size=1)
    """

    arrow: pa.DataType
    decode: Callable[[memoryview], Any]
    encode: Callable[[Any], bytes] | None = None
    size: int | None = None
    type: ColumnType | None = None
    array: Callable[[CellBytes], pa.Array] | None = None

    def read(self, cells: CellBytes) -> pa.Array:
        """Many cells as an Arrow array.

        Raises:
            CellError: One is not what it should be.
        """
        if self.array is not None:
            return self.array(cells)
        try:
            return pa.array([self.decode(cells.one(row)) for row in range(len(cells))], self.arrow)
        except (pa.ArrowException, ValueError, TypeError, LookupError, OverflowError) as error:
            raise error if isinstance(error, CellError) else CellError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was given to `scan`, and what was learned from the first samples.

    Attributes:
        encodings: Column or encoding -> another encoding, or the name of one; columns count first.
        allow_pickle: Columns of pickles that may be read.
        arrays: Column -> (dtype, dimensions) of arrays whose encoding does not say.
        pickles: Column -> Arrow type of unpickled values.
    """

    encodings: Mapping[str, str | CellEncoding] = field(default_factory=dict)
    allow_pickle: tuple[str, ...] = ()
    arrays: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    pickles: Mapping[str, pa.DataType] = field(default_factory=dict)

    @staticmethod
    def of(encodings: object, allow_pickle: object, /) -> Options:
        """From what a user gave.

        Raises:
            ValueError: No dict of names or encodings; columns of pickles that are not named in a list.
        """
        by_column = {} if encodings is None else encodings
        kinds = (str, CellEncoding)
        if not isinstance(by_column, Mapping) or not all(isinstance(one, kinds) for one in by_column.values()):
            raise ValueError(f"encodings: expected a dict as {{'label': 'uint8'}}, found {encodings!r}.")
        listed = isinstance(allow_pickle, Collection) and not isinstance(allow_pickle, (str, bytes))
        columns: Collection[Any] = allow_pickle if listed else (None,)  # type: ignore[assignment]  # it was looked at
        if not all(isinstance(one, str) for one in columns):
            raise ValueError(f"allow_pickle: expected a list of columns as ['meta'], found {allow_pickle!r}.")
        return Options(encodings=dict(by_column), allow_pickle=tuple(columns))

    def given(self, column: str, encoding: str, /) -> str | CellEncoding:
        """What reads a column: the user's encoding, or the name of the one to use."""
        reading = self.encodings.get(column)
        return self.encodings.get(encoding, encoding) if reading is None else reading

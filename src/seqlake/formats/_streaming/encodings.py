"""Encodings: an Arrow type, and how cells become values, one by one or many at once; and which of them a user chose.

A user's own encoding is one of these, too, given by name:
`sl.scan(uri, encodings={"int8_quantised": CellEncoding(...)})`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.formats._streaming.cells import CellBytes, CellError

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqlake.spec.column_types import ColumnType


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

"""What an encoding is: its Arrow type, and how cells become values, one by one or many at once.

A user's own encoding is one of these, too, given by name: `sl.scan(uri, encodings={"int8_quantised": Encoding(...)})`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.formats._streaming.cells import CellError, Cells

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqlake.spec.column_types import ColumnType


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How the cells of a column are stored.

    Attributes:
        arrow: The Arrow type of its values.
        decode: The bytes of one cell (a memoryview) -> its value, which Arrow can hold as `arrow`.
        encode: A value -> the bytes; None: the column cannot be written.
        size: Bytes of a cell, where all have the same; None where each says its own.
        type: The column type, as `seqlake.Image(format="jpeg")`.
        array: Many cells at once -> an Arrow array of `arrow`; None calls `decode` for each.

    Example:
        >>> celsius = Encoding(arrow=pa.float32(), decode=lambda cell: cell[0] / 2 - 40, size=1)
    """

    arrow: pa.DataType
    decode: Callable[[memoryview], Any]
    encode: Callable[[Any], bytes] | None = None
    size: int | None = None
    type: ColumnType | None = None
    array: Callable[[Cells], pa.Array] | None = None

    def read(self, cells: Cells) -> pa.Array:
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

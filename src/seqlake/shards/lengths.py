"""How many steps each row of a column has: from an index where there is one, else counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import HasLengths, ability
from seqlake.errors import SchemaMismatchError
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints, ShardReader


def lengths_of(reader: ShardReader, column: str, /) -> Ints:
    """[rows] T of a temporal or frames column, -1 null.

    Args:
        reader: An open shard.
        column: A column of lists, or a flat one.

    Raises:
        SchemaMismatchError: The column has no steps.

    Example:
        >>> lengths_of(shard.open(), "action")[:3]
        array([54, 40, 59])
    """
    known = ability(reader, HasLengths)
    lengths = None if known is None else known.lengths(column)
    if lengths is not None:
        return lengths
    flat = reader.flat(column)
    if flat is not None:
        return flat.steps
    return count_lengths(reader, column)


def count_lengths(reader: ShardReader, column: str, /) -> Ints:
    """[rows] T counted from the cells themselves, whatever an index says.

    Raises:
        SchemaMismatchError: The column has no steps.
    """
    parts = [_counted(batch.column(0), column) for batch in reader.batches([column])]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _counted(cells: pa.Array, column: str) -> NDArray[np.int64]:
    if not is_list(cells.type):
        raise SchemaMismatchError(f"Expected a column of steps, found {column!r} of type {cells.type}.")
    return np.asarray(pc.fill_null(pc.list_value_length(cells), -1)).astype(np.int64)

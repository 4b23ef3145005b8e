"""What a reader is asked for: columns that are there, rows in some order, or no column at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Ints

_MOST_ROWS = 1 << 16


def refuse_unknown(columns: Sequence[str], known: Sequence[str], /, *, path: str = "") -> None:
    """Raise `SchemaMismatchError` unless every column is known; `path` is the shard's."""
    missing = [name for name in columns if name not in known]
    if missing:
        raise SchemaMismatchError(f"No column {missing[0]!r} here; there are {', '.join(known)}.", path=path or None)


def rows_asked(rows: Ints | None, count: int, /) -> Ints:
    """[n] the row numbers that are meant; None is all of them.

    Raises:
        IndexError: One that is not there; none counts from the end.
    """
    if rows is None:
        return np.arange(count, dtype=np.int64)
    wanted = np.asarray(rows, np.int64)
    if wanted.size and not (wanted.min() >= 0 and wanted.max() < count):
        raise IndexError(f"Expected rows of 0 to {count - 1}, found {wanted.min()} to {wanted.max()}.")
    return wanted


def count_only(rows: int, /) -> Iterator[pa.RecordBatch]:
    """Batches without columns that have `rows` rows together."""
    while rows > 0:
        count = min(rows, _MOST_ROWS)
        # The one way to make a record batch that has rows and no columns.
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        rows -= count

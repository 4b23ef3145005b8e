"""Record batches without columns, which only count rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_ROWS = 1 << 16


def count_only(rows: int, /) -> Iterator[pa.RecordBatch]:
    """Batches without columns that have `rows` rows together."""
    while rows > 0:
        count = min(rows, _MOST_ROWS)
        # The one way to make a record batch that has rows and no columns.
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        rows -= count

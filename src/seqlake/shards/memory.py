"""A shard over an Arrow table in memory: dicts of the user, inlined rows of a lake, tests."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.shards.reading import count_only, rows_asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Flat, Ints

_BATCH = 16 << 20  # bytes of a batch, about


class ArrowShard:
    """Rows of an Arrow table as a shard; picklable with its data.

    Args:
        table: The rows.
        key: A key of the caller's; by default one that follows from the rows.

    Example:
        >>> shard = ArrowShard(pa.table({"sequence_id": ["a", "b"]}))
        >>> shard.rows
        2
    """

    def __init__(self, table: pa.Table, /, *, key: str = "") -> None:
        self.table = table
        self._key = key

    @property
    def key(self) -> str:
        """`<name>#<hash>`; the hash is of schema and rows."""
        if not self._key:
            state = blake2b(digest_size=8)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.table.schema) as stream:
                stream.write_table(self.table.combine_chunks())
            state.update(sink.getvalue())
            self._key = f"memory#{state.hexdigest()}"
        return self._key

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the table in memory."""
        return int(self.table.nbytes)

    def open(self) -> ArrowReader:
        """A reader over the same memory."""
        return ArrowReader(self.table)

    def __repr__(self) -> str:
        return f"ArrowShard({self.rows} rows, {', '.join(self.table.schema.names)})"


class ArrowReader:
    """Reads one open `ArrowShard`."""

    def __init__(self, table: pa.Table, /) -> None:
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table."""
        return self._table.schema.remove_metadata()

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self._table.num_rows)

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, in this order.

        Raises:
            SchemaMismatchError: No such column.
            IndexError: A row that the table does not have.
        """
        unknown = [name for name in columns if name not in self._table.schema.names]
        if unknown:
            raise SchemaMismatchError(f"Expected columns among {self._table.schema.names}, found {unknown}.")
        total = self._table.num_rows if rows is None else len(rows_asked(rows, self._table.num_rows))
        if not columns:
            yield from count_only(total)
            return
        table = self._table.select(list(columns)).replace_schema_metadata(None)
        size = max(1, _BATCH * max(table.num_rows, 1) // max(table.nbytes, 1))
        for start in range(0, total, size):
            stop = min(start + size, total)
            part = (
                table.slice(start, stop - start) if rows is None else table.take(pa.array(np.asarray(rows[start:stop])))
            )
            yield from part.combine_chunks().to_batches()

    def flat(self, column: str, /) -> Flat | None:
        """None: rows in memory are read as Arrow."""
        if column not in self._table.schema.names:
            raise SchemaMismatchError(f"Expected a column among {self._table.schema.names}, found {column!r}.")
        return None

    def close(self) -> None:
        """Nothing to release: the memory is the table's."""

"""What readers of all shards share: rows and columns that are asked for, lengths of rows, batches held at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import HasLengths, ability
from seqlake.errors import DecodeError, SchemaMismatchError
from seqlake.files.limits import DECODED, free_memory
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, ShardReader

_MOST_ROWS = 1 << 16
_SMALL = 256 << 20  # nobody is asked about


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


def read_in_parts(
    columns: Sequence[str],
    rows: Ints | None,
    /,
    *,
    types: pa.Schema,
    count: int,
    parts: Callable[[Ints], Iterable[Ints]],
    arrays: Callable[[pa.Schema, Ints], list[pa.Array]],
    path: str = "",
) -> Iterator[pa.RecordBatch]:
    """Record batches of a reader that puts some rows together at a time: what its `batches` does.

    Args:
        columns: As `batches` was given them.
        rows: The same.
        types: The logical Arrow schema of all columns.
        count: Rows of the shard.
        parts: Cuts the rows asked for into runs that make one batch each, as `runs_of` does.
        arrays: The cells of the columns asked for, of one run.
        path: The shard's, for messages.

    Raises:
        SchemaMismatchError: A column that is not there.
        IndexError: A row that is not there.
    """
    refuse_unknown(columns, types.names, path=path)
    wanted = rows_asked(rows, count)
    if not columns:
        yield from count_only(len(wanted))
        return
    schema = pa.schema([types.field(name) for name in columns])
    for part in parts(wanted):
        yield pa.RecordBatch.from_arrays(arrays(schema, part), schema=schema)


def runs_of(
    rows: Ints, nbytes: NDArray[np.number], /, *, most_bytes: int, most_rows: int | None = None
) -> Iterator[Ints]:
    """Runs of rows that make one batch each, at least one row long.

    Args:
        rows: [n] the rows asked for.
        nbytes: [n] bytes of each.
        most_bytes: Of a run of more than one row.
        most_rows: Of a run.
    """
    held = np.cumsum(nbytes)
    first = 0
    while first < len(rows):
        before = held[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(held, before + most_bytes, side="right")))
        stop = stop if most_rows is None else min(stop, first + most_rows)
        yield rows[first:stop]
        first = stop


def count_only(rows: int, /) -> Iterator[pa.RecordBatch]:
    """Batches without columns that have `rows` rows together."""
    while rows > 0:
        count = min(rows, _MOST_ROWS)
        # The one way to make a record batch that has rows and no columns.
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        rows -= count


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


class Batched(Protocol):
    """Rows of some columns, batch by batch: a shard, or many."""

    def batches(self, columns: Sequence[str], /) -> Iterator[pa.RecordBatch]:
        """All rows, in order."""


def count_lengths(reader: Batched, column: str, /) -> Ints:
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


def gathered(batches: Iterable[pa.RecordBatch], what: str, /) -> Iterator[pa.RecordBatch]:
    """The same batches, refused where what came of them is more than the memory that was free.

    Cells may take a thousand times the bytes that are stored for them, so no size tells it beforehand.

    Args:
        batches: As a reader yields them.
        what: Whose they are, for the message.

    Raises:
        DecodeError: They are more than the free memory, and than the limit that the user may raise.
    """
    nbytes, most = 0, 0
    for batch in batches:
        nbytes += batch.nbytes
        if nbytes > _SMALL:
            free = max(0, free_memory() * 19 // 20 - _SMALL) if not most else 0  # what reading takes itself stays free
            most = most or max(DECODED.value if DECODED.is_set else 0, nbytes + free)
            if nbytes > most:
                raise DecodeError(
                    f"{what}: its cells take more than {most:,} bytes, which is all the memory that is free.",
                    hint="Read fewer rows or columns, or in batches. If more may be taken, say how much: "
                    f"export {DECODED.name}={2 * most}",
                )
        yield batch

"""Arrow streams over shards: lazy, reopenable, in bounded batches and in logical types."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.abilities import Pushdown, ability
from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.files.locations import is_local
from seqlake.shards.cells import cast
from seqlake.shards.files import verified
from seqlake.shards.parquet.expansion import NARROW
from seqlake.shards.parquet.footer import DAMAGE
from seqlake.shards.reading import gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.spec.schema import Schema

_LOOKAHEAD = 8  # shards whose narrow columns are read ahead of the one in hand
_THREADS = 4
_FARTHER = 4  # times as many of both where each of them waits for the answers of a store
_AHEAD_BYTES = 512 << 20  # of all that is read ahead
_LEAVES = 2**31 - 1  # list offsets are 32 bits wide


@dataclass(frozen=True, slots=True, eq=False)
class ArrowStream:
    """Batches that can be asked for again and again, as Arrow's stream interface wants them."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def reader(self) -> pa.RecordBatchReader:
        """A fresh pass over the batches; nothing is read before the first is asked for."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()


def is_narrow(schema: Schema, columns: Sequence[str], /) -> bool:
    """Whether all these columns have small cells."""
    return all(schema[name].category in NARROW for name in columns)


def picked(source: Readable, columns: Sequence[str], rows: Ints, /) -> Iterator[pa.RecordBatch]:
    """Many rows of narrow columns: whole columns are read at once, since asking each shard costs more."""
    types = pa.schema([source.schema.arrow.field(name) for name in columns])
    whole = pa.Table.from_batches(gathered(read(source, columns), source.root), schema=types)
    yield from whole.take(pa.array(rows)).to_batches()


def read(source: Readable, columns: Sequence[str], /) -> Iterator[pa.RecordBatch]:
    """The named columns of all rows, in order and in logical types.

    Columns of small cells come from pyarrow's own scanner where the source offers one, else from several shards
    at a time; columns of large cells from one shard after another, so that memory stays bounded.

    Args:
        source: Any readable.
        columns: At least one name of its schema.
    """
    schema = source.schema
    types = pa.schema([schema.arrow.field(name) for name in columns])
    narrow = is_narrow(schema, columns)
    scanned = _scanned(source, columns) if narrow else None
    times = 1 if is_local(source.root) else _FARTHER
    for batch in scanned or _shard_by_shard(source.shards(), columns, ahead=times if narrow else 0):
        yield from conformed(batch, types)


def _scanned(source: Readable, columns: Sequence[str]) -> Iterator[pa.RecordBatch] | None:
    """Through pyarrow's dataset scanner (`Pushdown`), which reads files in parallel and in order."""
    offer = ability(source, Pushdown)
    dataset = None if offer is None else offer.arrow_dataset()
    if dataset is None or not set(columns) <= set(dataset.schema.names):
        return None
    return _told(dataset.scanner(columns=list(columns)), source)


def _told(scanner: Any, source: Readable) -> Iterator[pa.RecordBatch]:
    """A scanner's batches; what it says of damaged files becomes an error of ours."""
    try:
        yield from scanner.to_batches()
    except SeqlakeError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the machine's or the store's, not the file's
        raise CorruptFileError(
            f"A file below {source.root} cannot be read: {str(error).partition(chr(10))[0]}.",
            path=source.root,
            hint="`seqlake validate --depth rows` says which.",
        ) from None


def _shard_by_shard(shards: Sequence[Shard], columns: Sequence[str], *, ahead: int) -> Iterator[pa.RecordBatch]:
    """All batches in order; so many times the usual number of shards are read before they are asked for."""
    if not ahead or len(shards) < 2:
        for shard in shards:
            yield from one_shard(shard, columns)
        return
    most = _LOOKAHEAD * ahead
    with ThreadPoolExecutor(_THREADS * ahead, thread_name_prefix="seqlake-read") as pool:
        waiting = deque(pool.submit(_ahead, shard, columns, _AHEAD_BYTES // most) for shard in shards[:most])
        rest = iter(shards[most:])
        try:
            while waiting:
                yield from waiting.popleft().result()
                waiting.extend(pool.submit(_ahead, shard, columns, _AHEAD_BYTES // most) for shard in islice(rest, 1))
        finally:
            for task in waiting:
                task.cancel()


def one_shard(shard: Shard, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
    """Columns of one shard, opened for this alone."""
    with closing(shard.open()) as reader:
        yield from reader.batches(columns, rows=rows)


def for_writing(shard: Shard, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
    """Columns of one shard whose cells are to be written anew: compared with their checksums, whatever is else done.

    What is written gets new checksums, so damage that is copied along would never be found again.
    """
    yield from one_shard(verified(shard), columns, rows=rows)


def several_for_writing(shards: Sequence[Shard], columns: Sequence[str], /, *, root: str) -> Iterator[pa.RecordBatch]:
    """As `for_writing`, of many shards in order; small ones of a store are read ahead, since each waits for answers.

    Args:
        shards: As many as there are.
        columns: Their names.
        root: Where they lie.
    """
    proven = [verified(shard) for shard in shards]
    near = is_local(root) or any(shard.nbytes > _AHEAD_BYTES // (_LOOKAHEAD * _FARTHER) for shard in shards)
    yield from _shard_by_shard(proven, columns, ahead=0 if near else _FARTHER)


def _ahead(shard: Shard, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """A shard's batches, all of them read where they are small, as columns of small cells ought to be."""
    batches, nbytes = one_shard(shard, columns), 0
    held = []
    for batch in batches:
        held.append(batch)
        nbytes += batch.nbytes
        if nbytes > most:
            break
    return chain(held, batches)


def conformed(batch: pa.RecordBatch, types: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batch in these columns and types; in pieces where it would not fit 32-bit list offsets."""
    if batch.num_rows > 1 and batch.nbytes > _LEAVES:
        half = batch.num_rows // 2
        yield from conformed(batch.slice(0, half), types)
        yield from conformed(batch.slice(half), types)
        return
    arrays = [batch.column(field.name) for field in types]
    yield pa.RecordBatch.from_arrays(
        [
            array if array.type == field.type else cast(array, field.type, column=field.name)
            for array, field in zip(arrays, types, strict=True)
        ],
        schema=types,
    )

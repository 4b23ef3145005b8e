"""Shards that another engine encodes, Lance or Vortex, with what these files lack: lengths, places, checksums.

The engine's file comes first and is left as it is. After it lie our own bytes, then a pointer to them, and then the end
of the engine's file once more, which says with absolute numbers where everything is: so the engine reads the file as if
nothing had been added. Layout: `docs/reference/engines.md`.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, SchemaMismatchError, SeqlakeError
from seqlake.files.arrow_ipc import decoded_bytes
from seqlake.files.checksums import crc32
from seqlake.protocols import Flat
from seqlake.shards.cells import from_flat, gather, list_lengths, numpy_type_of, recast, step_type, takeable
from seqlake.shards.kept import Kept
from seqlake.shards.parquet.index import ColumnIndex, OffsetIndex, decode, encode, most_decoded
from seqlake.shards.proofs import PieceProof, proven
from seqlake.shards.reading import count_only, refuse_unknown, rows_asked, runs_of
from seqlake.shards.writing import ColumnSteps, RowGroupWriter
from seqlake.spec.schema import is_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints
    from seqlake.spec.schema import Schema

PIECE = 1 << 20  # bytes of the engine's file under one checksum, and of the rows of a flat column, about
_SCHEMA = b"schema"  # of the file, in the metadata of the ids
_BATCH = 16 << 20  # bytes of a batch, about
_MOST_ROWS = 1 << 16
_END = 64 << 10  # bytes that are read at the end of a file before anything is known of it
_AT_ONCE = 64  # pieces that are asked for at a time
_POINTER = re.compile(rb"seqlake 1 (\d{20}) (\d{20}) (\d{20}) (\d{20}) ([0-9a-f]{16})\n", re.ASCII)
POINTER = 111
"""Bytes of a pointer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trailer:
    """What we say of a file that an engine wrote.

    Attributes:
        index: Lengths of all columns with steps, and where flat ones lie; `headers` has a checksum for each place.
        checksums: CRC-32 of each `PIECE` of the engine's file.
        nbytes: Of the engine's file.
        rows: Of the file.
        schema: As the file stores it.
        ids: The column of ids; with both, windows that are read in place need no engine.
    """

    index: OffsetIndex
    checksums: NDArray[np.uint32]
    nbytes: int
    rows: int
    schema: pa.Schema
    ids: pa.Table

    def places(self) -> Mapping[str, NDArray[np.uint32]]:
        """Column -> the checksums of its places."""
        sums, at = {}, 0
        for name, entry in self.index.columns.items():
            count = entry.page_start.size
            sums[name] = np.array([int(one, 16) for one in self.index.headers[at : at + count]], np.uint32)
            at += count
        return sums


def append_trailer(path: Path, index: OffsetIndex, /, *, ids: pa.Table, schema: pa.Schema, tail: int) -> bytes:
    """Add what we know to a finished file of an engine; gives the bytes of the index.

    Args:
        path: The file.
        index: Of its columns.
        ids: The column of ids, all rows.
        schema: As its reader gives it.
        tail: The last bytes of the file, which its reader looks for at the end.
    """
    encoded = encode(index)
    with path.open("r+b") as file:
        sums = []
        while piece := file.read(PIECE):
            sums.append(crc32(piece))
        nbytes = file.tell()
        file.seek(nbytes - tail)
        end = file.read()
        block = encoded + np.array(sums, "<u4").tobytes() + _packed(ids, schema)
        numbers = f"seqlake 1 {nbytes:020} {len(encoded):020} {len(sums):020} {ids.num_rows:020} ".encode()
        file.write(block + numbers + _digest(block, numbers) + b"\n" + end)
    return encoded


def end_of(blob: Blob, /) -> memoryview:
    """The last bytes of a file, enough for most trailers: one request for a file that is far away."""
    return _part(blob, max(blob.size - _END, 0), blob.size)


def read_trailer(blob: Blob, /, *, tail: int, end: memoryview | None = None) -> Trailer | None:
    """What we said of a file; None where somebody else wrote it.

    Args:
        blob: The file.
        tail: The last bytes of the file, which its reader looks for at the end.
        end: What `end_of` gave, where it was asked.

    Raises:
        CorruptFileError: It is not what was written.
    """
    at = blob.size - tail - POINTER
    if at < 0:
        return None
    end = end_of(blob) if end is None else end
    pointed = _POINTER.fullmatch(bytes(_part(blob, at, at + POINTER, end=end)))
    if pointed is None:
        return None
    nbytes, encoded, sums, rows = (int(pointed[n]) for n in (1, 2, 3, 4))
    block = _part(blob, nbytes, at, end=end) if nbytes + encoded + 4 * sums < at else memoryview(b"")
    if _digest(block, pointed[0][: pointed.start(5)]) != pointed[5] or sums != -(-nbytes // PIECE):
        raise changed(blob, "what is said of it at its end")
    index = decode(bytes(block[:encoded]), nbytes=blob.size)
    checksums = np.frombuffer(block[encoded : encoded + 4 * sums], "<u4")
    try:
        ids, schema = _unpacked(block[encoded + 4 * sums :], nbytes=blob.size)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise changed(blob, f"its ids: {error}") from None
    counts = {ids.num_rows, *(entry.steps.size for entry in index.columns.values())}
    if counts != {rows} or not set(index.columns) <= set(schema.names):
        raise changed(blob, f"{rows} rows by one number, {sorted(counts)} by others")
    return Trailer(index=index, checksums=checksums, nbytes=nbytes, rows=rows, schema=schema, ids=ids)


def _digest(block: bytes | memoryview, numbers: bytes) -> bytes:
    return hashlib.sha256(numbers + block).hexdigest()[:16].encode()


def _packed(ids: pa.Table, schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    noted = ids.replace_schema_metadata({_SCHEMA: schema.serialize().to_pybytes()})
    with pa.ipc.new_stream(sink, noted.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(noted)
    return bytes(sink.getvalue())


def _unpacked(data: memoryview, *, nbytes: int) -> tuple[pa.Table, pa.Schema]:
    if decoded_bytes(data) > most_decoded(nbytes):
        raise ValueError(f"more than {most_decoded(nbytes)} bytes, for a file of {nbytes}")
    ids = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    ids.validate(full=True)
    if ids.num_columns != 1 or not is_text(ids.schema.field(0).type):
        raise ValueError(f"expected one column of text, found {ids.schema.names}")
    schema = pa.ipc.read_schema(pa.py_buffer((ids.schema.metadata or {})[_SCHEMA]))
    return ids.replace_schema_metadata(None), schema


def _part(blob: Blob, start: int, stop: int, *, end: memoryview | None = None) -> memoryview:
    """A part of a file; of its `end`, as far as that reaches, nothing is read again."""
    first = blob.size if end is None else blob.size - len(end)
    if end is not None and start >= first:
        return end[start - first : stop - first]
    if end is None or stop <= first:
        return blob.ranges(np.array([start]), np.array([stop]))[0]
    return memoryview(bytes(blob.ranges(np.array([start]), np.array([first]))[0]) + bytes(end[: stop - first]))


class EngineWriter(RowGroupWriter):
    """One file of an engine being written; inherit it, and say how the engine does it."""

    def __init__(self, path: Path, schema: Schema, stored: pa.Schema, /) -> None:
        super().__init__(path, schema, stored)
        self._steps = {name: steps for name in schema if (steps := _steps_of(stored.field(name).type)) is not None}
        self._portions: dict[str, list[_Portion]] = {name: [] for name in self._steps}
        self._id_column = [str(schema.id)]
        self._ids: list[pa.Table] = []

    def _put(self, table: pa.Table) -> None:
        (batch,) = table.combine_chunks().to_batches()
        for name, steps in self._steps.items():
            cells = batch.column(name)
            steps.add(cells)
            counts = steps.take()
            if steps.regular:
                self._portions[name] += _portions(cells, counts, first=self._rows)
        self._ids.append(table.select(self._id_column))
        self._append(batch)

    def _finish(self) -> bytes:
        self._end()
        places = self._placed()
        headers: list[bytes] = []
        for name, steps in self._steps.items():
            starts = places.get(name)
            steps.regular = steps.regular and starts is not None
            for portion, start in zip(self._portions[name] if steps.regular else [], starts or [], strict=True):
                steps.place(start, portion.row)
                headers.append(f"{portion.checksum:016x}".encode())
        index = OffsetIndex(columns={name: steps.entry() for name, steps in self._steps.items()}, headers=headers)
        ids = pa.concat_tables(self._ids) if self._ids else self._stored.empty_table().select(self._id_column)
        return append_trailer(self._path, index, ids=ids, schema=self._shown(), tail=self._tail_bytes())

    def _shown(self) -> pa.Schema:
        """The schema of the file, as its reader gives it."""
        return self._stored

    def _placed(self) -> dict[str, list[int]]:
        """Column -> where the portions of its values lie; a column that is not there is decoded."""
        return {}

    def _append(self, batch: pa.RecordBatch) -> None:
        """Give a row group to the engine."""
        raise NotImplementedError

    def _end(self) -> None:
        """The engine's file is whole."""
        raise NotImplementedError

    def _tail_bytes(self) -> int:
        """How many bytes at the end of the file its reader looks for there."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Portion:
    """Rows of a flat column under one checksum."""

    row: int
    nbytes: int
    checksum: int


def values_of(cells: pa.Array, /) -> NDArray[Any]:
    """The numbers of a column of lists in order, without those that lie below null cells."""
    while hasattr(cells.type, "value_type"):
        cells = cells.flatten()
    return np.asarray(cells)


def _portions(cells: pa.Array, counts: NDArray[np.int32], *, first: int) -> Iterator[_Portion]:
    values = np.ascontiguousarray(values_of(cells))
    total = int(np.maximum(counts, 0).sum(dtype=np.int64))
    sizes = np.maximum(counts, 0).astype(np.int64) * (values.nbytes // total if total else 0)
    data, at = values.reshape(-1).view(np.uint8).data, 0
    for run in runs_of(np.arange(counts.size), sizes, most_bytes=PIECE):
        nbytes = int(sizes[run].sum())
        yield _Portion(row=first + int(run[0]), nbytes=nbytes, checksum=crc32(data[at : at + nbytes]))
        at += nbytes


def _steps_of(kind: pa.DataType) -> ColumnSteps | None:
    """What is to be learned of a column; None where it has no steps."""
    held = step_type(kind)
    if held is not None and held[1] > 0:
        dtype = numpy_type_of(kind)
        assert dtype is not None
        return ColumnSteps(levels=held[1], stored=dtype.newbyteorder("<").str, dim=held[2])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ColumnSteps(levels=1, stored="")
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class PortionProof(PieceProof):
    """Of one flat column; see `protocols.Proof`."""

    blob: Blob
    column: str
    starts: Ints
    stops: Ints
    checksums: NDArray[np.uint32]

    def _proven_pieces(self) -> NDArray[np.bool_]:
        facts = (self.starts.tobytes(), self.stops.tobytes(), self.checksums.tobytes())
        return proven(self.blob, self.column, self.starts.size, *facts)

    def _first_values(self) -> Ints:
        return self.starts

    def _extent(self, pieces: Ints) -> tuple[Ints, Ints]:
        return self.starts[pieces], self.stops[pieces]

    def _compare(self, piece: int, data: memoryview) -> None:
        if crc32(data) != self.checksums[piece]:
            raise changed(self.blob, f"column {self.column!r}, byte {self.starts[piece]} and on")


def changed(blob: Blob, where: str, /) -> CorruptFileError:
    """The error of bytes that are not those which were written, and where they lie."""
    return CorruptFileError(
        f"Expected the bytes that were written to {blob.location}, found others ({where}).",
        path=blob.location,
        hint="The file is damaged: restore it from a copy, or delete its rows.",
    )


class EngineReader:
    """One open file of an engine; inherit it, and say how the engine reads. It has the ability `Physical`.

    Attributes:
        blob: The file.
    """

    def __init__(self, blob: Blob, /, *, verify: bool = False) -> None:
        self.blob = blob
        self._verify = verify
        self._flats: dict[str, Flat | None] = {}

    # ---- what the engine says

    def looked_at(self) -> tuple[int, pa.Schema]:
        """Rows and Arrow schema of a file of somebody else, with plain text and bytes where the engine gives views."""
        raise NotImplementedError

    def tail_of(self, end: memoryview) -> int:
        """Bytes at the end that the engine looks for there, of a file that ends so."""
        raise NotImplementedError

    def decoded(self, columns: list[str], start: int, count: int, size: int) -> Iterator[pa.RecordBatch]:
        """Rows that follow each other, in batches of `size` rows."""
        raise NotImplementedError

    def taken(self, columns: list[str], rows: Ints) -> pa.RecordBatch:
        """Rows in ascending order, each once."""
        raise NotImplementedError

    # ---- what all of them do

    @Kept
    def _facts(self) -> tuple[int, pa.Schema]:
        if self.trailer is not None:
            return self.trailer.rows, self.trailer.schema
        with damage_of(self.blob):
            return self.looked_at()

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema as the file stores it."""
        return self._facts[1]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self._facts[0]

    @Kept
    def tail(self) -> int:
        """Bytes at the end that the engine looks for there."""
        return self.tail_of(end_of(self.blob))

    @Kept
    def trailer(self) -> Trailer | None:
        """What we said of the file when we wrote it."""
        end = end_of(self.blob)
        return read_trailer(self.blob, tail=self.tail_of(end), end=end)

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T, -1 null, as they were when the file was written; None where somebody else wrote it."""
        entry = self._entry(column)
        return None if entry is None else entry.steps.astype(np.int64)

    def flat(self, column: str, /) -> Flat | None:
        """Where the steps of each row lie; None where the column must be decoded.

        Raises:
            SchemaMismatchError: No such column.
            CorruptFileError: The file is damaged.
        """
        if column not in self._flats:
            entry = self._entry(column)
            if entry is None:
                refuse_unknown([column], self.schema.names, path=self.blob.location)
            self._flats[column] = None if entry is None or not entry.flat else self._flat(column, entry)
        return self._flats[column]

    def verified(self) -> EngineReader:
        """The same file, each portion of a flat column compared with its checksum before it is handed out, and all of
        the file before the engine decodes any of it.
        """
        return type(self)(self.blob, verify=True)

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, in this order, as the file stores them.

        Raises:
            SchemaMismatchError: No such column.
            CorruptFileError: The file is damaged.
            IndexError: A row that the file does not have.
        """
        names = list(columns)
        refuse_unknown(names, self.schema.names, path=self.blob.location)
        wanted = None if rows is None else rows_asked(rows, self.rows)
        if not names:
            yield from count_only(self.rows if wanted is None else wanted.size)
            return
        self.blob.view()  # a local file that changed says so
        flats = {name: flat for name in names if (flat := self.flat(name)) is not None}
        ids = None if self.trailer is None else self.trailer.ids
        known: list[str] = [] if ids is None else ids.column_names
        decode = [name for name in dict.fromkeys(names) if name not in flats and name not in known]
        if decode and self._verify:
            self._compare()
        size = self._batch_rows()
        for start in range(0, self.rows if wanted is None else wanted.size, size):
            part = np.arange(start, min(start + size, self.rows)) if wanted is None else wanted[start : start + size]
            arrays = {name: from_flat(flat, part, self.schema.field(name).type) for name, flat in flats.items()}
            if ids is not None:
                arrays[known[0]] = ids.column(0).take(part).combine_chunks()
            if decode:
                arrays |= zip(decode, self._decoded(decode, part).columns, strict=True)
            fields = [self.schema.field(name) for name in names]
            yield pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=pa.schema(fields))

    def close(self) -> None:
        """Forget what was read; the reader may be asked again."""
        self._flats.clear()

    def _entry(self, column: str) -> ColumnIndex | None:
        return None if self.trailer is None else self.trailer.index.columns.get(column)

    def _flat(self, column: str, entry: ColumnIndex) -> Flat | None:
        assert self.trailer is not None
        self.blob.view()  # maps a local file, so that its ranges are slices
        dtype = np.dtype(entry.stored)
        starts, steps = entry.starts(raw=False), entry.steps.astype(np.int64)
        held = step_type(self.schema.field(column).type)
        nbytes = np.maximum(steps, 0) * (entry.dim * dtype.itemsize)
        if (
            held is None
            or dtype != numpy_type_of(held[0])
            or (starts + nbytes > self.trailer.nbytes).any()
            or (starts < 0).any()
        ):
            return None
        flat = Flat(
            blob=self.blob,
            start=starts,
            steps=steps,
            stride=entry.dim * dtype.itemsize,
            stored=dtype,
            dtype=dtype.newbyteorder("="),
            shape=(entry.dim,) if held[1] == 2 else (),
        )
        if not self._verify or not entry.page_start.size:
            return flat
        proof = PortionProof(
            blob=self.blob,
            column=column,
            starts=entry.page_start,
            stops=entry.page_start + np.add.reduceat(nbytes, entry.page_row),
            checksums=self.trailer.places()[column],
        )
        return replace(flat, proof=proof)

    def compare(self) -> None:
        """All of the engine's file with its checksums, now; files of others have none.

        Raises:
            CorruptFileError: It is not what was written.
        """
        self._compare(anew=True)

    def check(self) -> None:
        """What is said of the file at its end, ids, lengths and places, with what the engine decodes.

        Raises:
            CorruptFileError: They differ: no damage, since it is sealed, but somebody wrote what is not so.
        """
        if self.trailer is None:
            return
        (ids,) = self.trailer.ids.column_names
        names, size = list(dict.fromkeys([ids, *self.trailer.index.columns])), self._batch_rows()
        for start in range(0, self.rows, size):
            rows = np.arange(start, min(start + size, self.rows))
            decoded = self._decoded(names, rows)
            if not self.trailer.ids.column(0).take(rows).combine_chunks().equals(decoded.column(ids)):
                raise self._lie("ids", ids, rows)
            for name in self.trailer.index.columns:
                self._check_steps(name, rows, decoded.column(name))

    def _check_steps(self, name: str, rows: Ints, cells: pa.Array) -> None:
        assert self.trailer is not None
        if not np.array_equal(self.trailer.index.columns[name].steps[rows], list_lengths(cells)):
            raise self._lie("lengths", name, rows)
        flat = self.flat(name)
        if flat is not None:
            values = np.ascontiguousarray(values_of(cells), flat.dtype)
            if gather(flat, rows).tobytes() != values.tobytes():
                raise self._lie("places", name, rows)

    def _lie(self, what: str, column: str, rows: Ints) -> CorruptFileError:
        return CorruptFileError(
            f"The end of {self.blob.location} says other {what} of column {column!r} than its rows {rows[0]} to "
            f"{rows[-1]} have.",
            path=self.blob.location,
            hint="It was not written so: repack the dataset from a copy that you trust, or delete its rows.",
        )

    def _compare(self, *, anew: bool = False) -> None:
        """Its pieces, those that were compared in this process only if they are to be `anew`."""
        if self.trailer is None:
            return
        if anew:
            self._proven[:] = False
        self.compare_parts(np.array([0]), np.array([self.trailer.nbytes]))

    @Kept
    def _proven(self) -> NDArray[np.bool_]:
        """[pieces] those of the engine's file that were compared in this process."""
        assert self.trailer is not None
        return proven(self.blob, "", len(self.trailer.checksums), self.trailer.checksums.tobytes())

    def _pieces(self, wanted: Ints) -> list[memoryview]:
        """Pieces of the engine's file, compared now."""
        assert self.trailer is not None
        parts = self.blob.ranges(wanted * PIECE, np.minimum((wanted + 1) * PIECE, self.trailer.nbytes))
        for piece, part in zip(wanted.tolist(), parts, strict=True):
            if crc32(part) != self.trailer.checksums[piece]:
                raise changed(self.blob, f"byte {piece * PIECE} and on")
            self._proven[piece] = True
        return parts

    def compare_parts(self, starts: Ints, stops: Ints, /) -> None:
        """Compare the pieces of the engine's file in which these parts lie, but those that were in this process.

        Raises:
            CorruptFileError: They are not what was written.
        """
        wanted = np.zeros(len(self._proven), np.bool_)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            wanted[start // PIECE : -(-stop // PIECE)] |= stop > start
        pieces = np.flatnonzero(wanted & ~self._proven)
        for first in range(0, len(pieces), _AT_ONCE):
            self._pieces(pieces[first : first + _AT_ONCE])

    def compared(self, start: int, stop: int, /) -> bytes:
        """A part of the file for an engine that reads it through us: nothing that changed gets to its decoder.

        The end of the engine's file, which stands behind our bytes once more, is given from its first place.
        """
        if self.trailer is None:
            return bytes(_part(self.blob, start, stop))
        nbytes, again = self.trailer.nbytes, self.blob.size - self.tail
        parts = [self._of_engine(start, min(stop, nbytes))]
        if max(start, nbytes) < min(stop, again):
            parts.append(bytes(_part(self.blob, max(start, nbytes), min(stop, again))))
        moved = nbytes - self.tail - again
        parts.append(self._of_engine(max(start, again) + moved, stop + moved))
        return b"".join(parts)

    def _of_engine(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        first, last = start // PIECE, -(-stop // PIECE)
        if self._proven[first:last].all():
            return bytes(_part(self.blob, start, stop))
        whole = b"".join(self._pieces(np.arange(first, last)))
        return whole[start - first * PIECE : stop - first * PIECE]

    def sound(self, batches: Iterable[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Batches of the engine. Of a file of others, which nothing was compared of, lists may point outside memory."""
        for batch in batches:
            if self.trailer is None:
                batch.validate(full=True)
            yield batch

    def _batch_rows(self) -> int:
        """Rows of one batch: of about 16 MiB, as the file has them."""
        return int(max(1, min(_MOST_ROWS, _BATCH * self.rows // max(self.blob.size, 1))))

    def _decoded(self, names: list[str], rows: Ints) -> pa.RecordBatch:
        """Rows in any order, through the engine."""
        if rows.size == 0:
            return pa.RecordBatch.from_pylist([], pa.schema([self.schema.field(name) for name in names]))
        with damage_of(self.blob):
            if rows.size == rows[-1] - rows[0] + 1 and (np.diff(rows) == 1).all():
                parts = list(self.decoded(names, int(rows[0]), rows.size, rows.size))
                return self._as_stored(pa.Table.from_batches(parts), names, rows.size)
            unique, places = np.unique(rows, return_inverse=True)
            taken = self._as_stored(pa.Table.from_batches([self.taken(names, unique)]), names, unique.size)
            return taken.take(pa.array(places))

    def _as_stored(self, table: pa.Table, names: list[str], rows: int) -> pa.RecordBatch:
        if table.num_rows != rows:
            raise changed(self.blob, f"{table.num_rows} rows instead of {rows}")
        batch = takeable(table.combine_chunks().to_batches()[0].select(names))
        arrays = [recast(array, self.schema.field(name).type) for name, array in zip(names, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in names]))


@contextmanager
def damage_of(blob: Blob, /) -> Iterator[None]:
    """What an engine says of bytes that it cannot read, as `CorruptFileError`; panics of Rust are no `Exception`."""
    try:
        yield
    except (SeqlakeError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = str(error).partition("\n")[0].partition(", /")[0]
        raise CorruptFileError(
            f"{blob.location} cannot be read: {said}",
            path=blob.location,
            hint="It is damaged, or no such file: restore it from a copy, or delete its rows.",
        ) from None


def refuse_dotted(schema: Schema, engine: str, /) -> None:
    """Raise `SchemaMismatchError` for a column whose name the engine takes for a path."""
    for name in schema.names:
        if "." in name:
            raise SchemaMismatchError(
                f"Column {name!r}: {engine} has no columns with a dot in their names.",
                hint="Rename it, or write Parquet shards.",
            )

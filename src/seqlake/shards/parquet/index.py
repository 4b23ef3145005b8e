"""The sequence offset index: where the steps of each row lie, in a few bytes inside the file.

The bytes lie between the last row group and the page index; the footer value `seqlake.offsets` points to them and
carries their hash, so that a key copied into another file is not believed. Layout: `docs/reference/parquet.md`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.files.arrow_ipc import decoded_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints

KEY = "seqlake.offsets"
# Schema metadata of the stream.
_HEADERS = b"seqlake.headers"  # a digest of each chunk's page headers
_LEVELS = b"seqlake.levels"  # a digest of each column's page headers and levels
# In a footer: the key, then a Thrift string whose length takes one byte.
POINTER = re.compile(rb"seqlake\.offsets\x18.1 (\d{1,18}) (\d{1,18}) ([0-9a-f]{16})", re.ASCII | re.DOTALL)
_STORED = re.compile(r"|[|<][fiu][1248]", re.ASCII)  # a numeric type as numpy writes it, or none
_COLUMNS = pa.schema(
    [
        ("column", pa.string()),
        ("stored", pa.string()),
        ("dim", pa.int32()),
        ("page_start", pa.list_(pa.int64())),
        ("page_row", pa.list_(pa.int64())),
        ("steps", pa.list_(pa.int32())),
    ]
)
_LENGTHS = ("column", "steps")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnIndex:
    """One column of the index.

    Attributes:
        stored: Type of one stored value as numpy writes it (`<f4`); empty where the column is not numeric.
        dim: Values of one step: D of [T, D], 1 of [T] and of scalars.
        page_start: [pages] file offset of the first value of each page; empty where the column is not flat.
        page_row: [pages] first row of each page.
        steps: [rows] T; 0 empty, -1 null.
    """

    stored: str
    dim: int
    page_start: Ints
    page_row: Ints
    steps: NDArray[np.int32]

    @property
    def flat(self) -> bool:
        """Whether the steps of every row lie at known bytes."""
        return bool(self.stored) and (self.page_start.size > 0 or not (self.steps > 0).any())

    def cell_bytes(self, *, raw: bool) -> Ints:
        """[rows] bytes of each cell among the values of its page; with `raw`, 4 bytes of length come first."""
        sizes = np.maximum(self.steps, 0).astype(np.int64) * (self.dim * np.dtype(self.stored).itemsize)
        return sizes + 4 * (self.steps >= 0) if raw else sizes

    def starts(self, *, raw: bool) -> Ints:
        """[rows] file offset of step 0 of each row (DESIGN: `page_start` plus the cells before it in its page)."""
        sizes = self.cell_bytes(raw=raw)
        before = np.cumsum(sizes) - sizes
        if self.page_start.size == 0:
            return np.zeros(sizes.size, np.int64)
        base = np.repeat(self.page_start - before[self.page_row], np.diff(self.page_row, append=sizes.size))
        starts: Ints = base + before
        return starts + 4 * (self.steps >= 0) if raw else starts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OffsetIndex:
    """What an index says of one file.

    Attributes:
        columns: Column name -> its offsets and lengths.
        headers: One digest per column chunk (row groups, then Parquet columns, in file order) of its page headers;
            empty in an index that was built for another writer's file.
        levels: Column name -> a digest of all its page headers and levels: what ties an index kept outside the file
            to these very rows. Not needed inside the file, whose footer is sealed.
    """

    columns: Mapping[str, ColumnIndex]
    headers: Sequence[bytes] = field(default=())
    levels: Mapping[str, bytes] = field(default_factory=dict)

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column, -1 null; None where the index does not know it."""
        entry = self.columns.get(column)
        return None if entry is None else entry.steps.astype(np.int64)


def digest(data: bytes, /) -> bytes:
    """16 hex digits that change when the bytes do."""
    return hashlib.sha256(data).hexdigest()[:16].encode()


def encode(index: OffsetIndex, /) -> bytes:
    """The bytes of an index: an Arrow IPC stream with zstd buffers, one row per column."""
    entries = index.columns.values()
    table = pa.table(
        [
            pa.array(list(index.columns), pa.string()),
            pa.array(list(map(attrgetter("stored"), entries)), pa.string()),
            pa.array(list(map(attrgetter("dim"), entries)), pa.int32()),
            _lists(list(map(attrgetter("page_start"), entries)), pa.int64()),
            _lists(list(map(attrgetter("page_row"), entries)), pa.int64()),
            _lists(list(map(attrgetter("steps"), entries)), pa.int32()),
        ],
        schema=_COLUMNS,
    )
    digests = {
        _HEADERS: b"".join(index.headers),
        _LEVELS: b"".join(index.levels.get(name, b"") for name in index.columns),
    }
    table = table.replace_schema_metadata({key: value for key, value in digests.items() if value})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _lists(values: Sequence[NDArray[np.int64] | NDArray[np.int32]], kind: pa.DataType) -> pa.Array:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = np.concatenate(values) if values else np.zeros(0, np.int64)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind))


def decode(data: bytes | memoryview, /, *, nbytes: int | None = None) -> OffsetIndex:
    """The index that `encode` wrote, as in `Written.index`.

    Args:
        data: Its bytes.
        nbytes: Of the file that it is about, where others made it: says how large it may become, see `most_decoded`.

    Raises:
        CorruptFileError: The bytes are not an index, or would take more memory.

    Example:
        >>> index = decode(written.index)
        >>> index.lengths("action")[:3]
        array([54, 40, 59])
    """
    try:
        _check_size(data, nbytes)
        # Small: waking the threads of a pool takes longer than the decompression.
        options = pa.ipc.IpcReadOptions(use_threads=False)
        table = pa.ipc.open_stream(pa.py_buffer(data), options=options).read_all()
        if not set(_COLUMNS.names) <= set(table.schema.names):
            raise CorruptFileError(
                f"Expected an offset index with columns {_COLUMNS.names}, found {table.schema.names}."
            )
        metadata = table.schema.metadata or {}
        table = table.select(_COLUMNS.names)
        if table.schema.types != _COLUMNS.types:  # a cast would take memory of its own
            raise CorruptFileError(
                f"Expected columns of types {_COLUMNS.types} in an offset index, found {table.schema.types}."
            )
        table.validate(full=True)
        table = table.combine_chunks()
        names = table["column"].to_pylist()
        if table.num_rows != len(set(names)) or None in names:
            raise CorruptFileError(f"Expected each column once in an offset index, found {names[:20]}.")
        columns = {name: _entry(table, row) for row, name in enumerate(names)}
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        if isinstance(error, CorruptFileError):
            raise
        raise CorruptFileError(f"Expected an offset index, found bytes that do not decode: {error}.") from None
    levels = _digests(metadata.get(_LEVELS, b""))
    return OffsetIndex(
        columns=columns,
        headers=_digests(metadata.get(_HEADERS, b"")),
        levels=dict(zip(columns, levels, strict=True)) if len(levels) == len(columns) else {},
    )


def most_decoded(nbytes: int, /) -> int:
    """Bytes of memory that the index of a file of `nbytes` may take: 64 MiB, and 16 for each byte of the file."""
    return (64 << 20) + 16 * nbytes


def _check_size(data: bytes | memoryview, nbytes: int | None) -> None:
    """Compare what buffers say of themselves with what the file may have, before they are decompressed."""
    if nbytes is not None and (size := decoded_bytes(data)) > most_decoded(nbytes):
        raise CorruptFileError(
            f"Expected an offset index of at most {most_decoded(nbytes)} bytes for a file of {nbytes}, found one that "
            f"says {size}."
        )


def lengths(data: bytes | memoryview, column: str, /, *, nbytes: int | None = None) -> Ints | None:
    """[rows] T of a column, -1 null; nothing else of the index is decoded.

    Args:
        data: An index that is kept outside its file, and so derived: the file knows better.
        column: A column of the file.
        nbytes: As for `decode`.

    Returns:
        None where the index does not know the column, or is none: ask the file.
    """
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(map(_COLUMNS.names.index, _LENGTHS)))
    try:
        _check_size(data, nbytes)
        (batch,) = pa.ipc.open_stream(pa.py_buffer(data), options=options)
        batch.validate(full=True)
        names, steps = map(batch.column, _LENGTHS)
        if [names.type, steps.type] != [_COLUMNS.field(name).type for name in _LENGTHS]:
            return None
        values = steps[names.to_pylist().index(column)].values
        counts = None if values is None or values.null_count else np.asarray(values, np.int64)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, CorruptFileError):
        return None
    return counts if counts is not None and counts.min(initial=0) >= -1 else None


def _digests(joined: bytes) -> list[bytes]:
    return [joined[i : i + 16] for i in range(0, len(joined), 16)]


def _entry(table: pa.Table, row: int) -> ColumnIndex:
    def values(name: str) -> NDArray[np.int64]:
        array = table[name].chunk(0)[row].values
        if array is None or array.null_count:
            raise CorruptFileError(f"Expected numbers in {name!r} of an offset index, found null.")
        return np.asarray(array)

    stored, dim = table["stored"][row].as_py(), table["dim"][row].as_py()
    entry = ColumnIndex(
        stored=stored,
        dim=dim,
        page_start=values("page_start"),
        page_row=values("page_row"),
        steps=values("steps").astype(np.int32),
    )
    pages, rows = entry.page_row, entry.steps.size
    if not isinstance(stored, str) or not _STORED.fullmatch(stored) or not isinstance(dim, int) or dim < 0:
        raise CorruptFileError(f"Expected a numeric type and dim >= 0 in an offset index, found {stored!r} and {dim}.")
    ordered = pages.size == 0 or (pages[0] == 0 and pages[-1] < rows and bool((np.diff(pages) > 0).all()))
    if pages.size != entry.page_start.size or not ordered or (rows and entry.steps.min() < -1):
        raise CorruptFileError("Expected pages in row order and steps >= -1 in an offset index, found others.")
    return entry


def pointer(data: bytes, /, *, offset: int) -> str:
    """The footer value that points to index bytes at `offset`."""
    return f"1 {offset} {len(data)} {digest(data).decode()}"


def fetch(blob: Blob, pointed: re.Match[bytes], /, *, tail: bytes = b"") -> bytes | None:
    """The index bytes that a pointer points to; None where their hash is another.

    Args:
        blob: The file.
        pointed: Its pointer, as `POINTER` finds it in the footer.
        tail: The last bytes of the file, where they are at hand.
    """
    start, length = int(pointed[1]), int(pointed[2])
    if length == 0 or start + length > blob.size:
        return None
    at = start - (blob.size - len(tail))
    if at >= 0:
        data = tail[at : at + length]
    else:
        data = b"".join(bytes(part) for part in blob.ranges(np.array([start]), np.array([start + length])))
    return data if digest(data) == pointed[3] else None  # else a key copied into a rewritten file

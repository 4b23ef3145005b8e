"""The end of a Parquet file: its schema, where its column chunks lie, and whether it is as it was written.

Our footers are sealed: `seqlake.footer` holds 16 hex digits of the SHA-256 of the footer with these digits set to
zero. A footer that changed after writing is noticed before a wrong number is read.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.errors import CorruptFileError
from seqlake.files.limits import DECODED
from seqlake.shards.kept import Kept
from seqlake.shards.parquet import index, layout
from seqlake.shards.parquet.pages import read_struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Blob

SEAL = "seqlake.footer"
BLANK = "0" * 16

_SEAL = re.compile(rb"seqlake\.footer\x18\x10([0-9a-f]{16})")  # the key, then a Thrift string of 16 bytes
_TAIL = 64 << 10  # one read brings almost every footer
_MAGIC = b"PAR1"
_ROW = 64  # bytes that a row takes where rows are found by their ids: its number, and its id as Python has it
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")

# What pyarrow and numpy raise on damaged bytes.
DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """The pages of one Parquet column in one row group.

    Attributes:
        row_group: Its number.
        leaf: Number of the Parquet column.
        start: File offset of its first page.
        stop: First byte after its last page.
        values: Level entries: values, nulls and empty lists together.
        rows: Rows of the row group.
        decoded: Bytes of its pages after decompression.
        codec: `UNCOMPRESSED`, `SNAPPY`, ...
        dictionary: Whether it begins with a dictionary page.
        page_index: First byte of the list of its pages (Parquet's offset index), and the byte after it; equal where
            there is none.
    """

    row_group: int
    leaf: int
    start: int
    stop: int
    values: int
    rows: int
    decoded: int
    codec: str
    dictionary: bool
    page_index: tuple[int, int] = (0, 0)


class Footer:
    """What the end of a file says; made by `read_footer`.

    Attributes:
        blob: The file.
        metadata: As pyarrow parses it.
        schema: Arrow schema as the file stores it, without schema metadata.
        leaves: Column name -> its Parquet columns.
    """

    def __init__(self, blob: Blob, data: bytes, metadata: pq.FileMetaData, /, *, own_index: bytes | None) -> None:
        self.blob = blob
        self._nbytes = blob.size
        self.metadata = metadata
        self.schema: pa.Schema = metadata.schema.to_arrow_schema().remove_metadata()
        self.leaves: Mapping[str, range] = {}
        self._data = data
        self._index = own_index
        at, leaves = 0, {}
        for field in self.schema:
            count = layout.leaves(field.type)
            leaves[field.name] = range(at, at + count)
            at += count
        if at != metadata.num_columns or len(leaves) != len(self.schema):
            raise _damaged(
                blob, f"{metadata.num_columns} Parquet columns for {len(self.schema)} columns, or names twice"
            )
        self.leaves = leaves

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return int(self.metadata.num_rows)

    @Kept
    def group_rows(self) -> list[int]:
        """[row groups] rows of each."""
        return [self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)]

    @Kept
    def chunks(self) -> list[list[ColumnChunk]]:
        """[row groups][Parquet columns], each chunk inside the file.

        Decoded here: asked for a chunk that does not fit its schema, pyarrow ends the process.

        Raises:
            CorruptFileError: A chunk that lies elsewhere, or does not fit the schema.
        """
        try:
            fields, _ = read_struct(self._data)
            types = [element.get(1) for element in fields[2] if not element.get(5)]
            groups = [list(group[1]) for group in fields[4]]
            if any([chunk[3][1] for chunk in chunks] != types for chunks in groups):
                raise _damaged(self.blob, "column chunks that do not fit the schema")
            return [
                [self._chunk(group, leaf, facts) for leaf, facts in enumerate(chunks)]
                for group, chunks in enumerate(groups)
            ]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, CorruptFileError):
                raise
            raise _damaged(self.blob, f"a footer whose column chunks cannot be read ({error!r})") from None

    def _chunk(self, group: int, leaf: int, fields: Mapping[int, Any]) -> ColumnChunk:
        """One chunk from the fields of its `ColumnChunk`, above all its `ColumnMetaData`."""
        facts: Mapping[int, int] = fields[3]
        pages = int(fields.get(4, 0)), int(fields.get(4, 0)) + int(fields.get(5, 0))
        if facts[4] < 0:
            raise ValueError("a codec below zero")
        start, first = facts[9], facts.get(11, 0)
        start = min(start, first) if first > 0 else start
        chunk = ColumnChunk(
            row_group=group,
            leaf=leaf,
            start=start,
            stop=start + facts[7],
            values=facts[5],
            rows=self.group_rows[group],
            decoded=facts[6],
            codec=_CODECS[facts[4]],
            dictionary=first > 0,
            page_index=pages if 0 < pages[0] <= pages[1] <= self._nbytes else (0, 0),
        )
        empty = chunk.rows == 0 and chunk.values == 0  # some writers give such a chunk no place
        inside = 4 <= chunk.start <= chunk.stop <= self._nbytes and chunk.values >= 0 and chunk.decoded >= 0
        if not empty and not inside:
            raise _damaged(self.blob, f"a column chunk of {chunk.values} values at bytes {chunk.start} to {chunk.stop}")
        return chunk

    @property
    def has_index(self) -> bool:
        """Whether the file has an offset index of its own."""
        return self._index is not None

    def at(self, blob: Blob, /) -> Footer:
        """The same footer of another copy of the file."""
        other = copy(self)
        other.blob = blob
        return other

    @Kept
    def _decoded(self) -> index.OffsetIndex | None:
        if self._index is None:
            return None
        offsets = index.decode(self._index, nbytes=self._nbytes)
        groups = self.metadata.num_row_groups * self.metadata.num_columns
        if len(offsets.headers) not in {0, groups} or any(e.steps.size != self.rows for e in offsets.columns.values()):
            raise _damaged(self.blob, "an offset index of another number of rows or columns")
        return offsets

    def index(self) -> index.OffsetIndex | None:
        """The file's offset index; None where it has none of its own.

        Raises:
            CorruptFileError: It does not decode, or is of another number of rows or columns.
        """
        try:
            return self._decoded
        except CorruptFileError as error:
            if error.path:
                raise
            raise _damaged(self.blob, error.message) from None


def _damaged(blob: Blob, actual: str) -> CorruptFileError:
    return CorruptFileError(
        f"Expected a Parquet file at {blob.location}, found {actual}. "
        "The file is damaged or was edited in place: restore it, or rewrite it with `seqlake repack`.",
        path=blob.location,
    )


def seal(data: bytes, /) -> tuple[bytes, bytes] | None:
    """(digits found, digits expected) of a footer's seal; None where it has none.

    Args:
        data: The footer: the bytes before its length and the final magic.
    """
    matches = list(_SEAL.finditer(data))
    if len(matches) != 1:
        return None
    start, stop = matches[0].span(1)
    return matches[0][1], index.digest(data[:start] + BLANK.encode() + data[stop:])


def seal_position(data: bytes, /) -> int:
    """Where in the footer the digits of the seal lie."""
    (match,) = _SEAL.finditer(data)
    return match.start(1)


def read_footer(blob: Blob, /) -> Footer:
    """Read and check the footer of a Parquet file.

    Raises:
        CorruptFileError: It is not Parquet, or its footer is damaged.
    """
    size = blob.size
    if size < 12:
        raise _damaged(blob, f"{size} bytes")
    (tail,) = _read(blob, max(0, size - _TAIL), size)
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != _MAGIC or length + 12 > size:
        raise _damaged(blob, f"a file that does not end with a footer of {length} bytes and PAR1")
    if length + 8 > len(tail):
        (tail,) = _read(blob, size - length - 8, size)
    data = bytes(tail[-8 - length : -8])
    own_index = _own_index(blob, data, tail)
    try:
        metadata = _metadata(data, tail)
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if metadata.num_rows != sum(groups) or any(rows < 0 for rows in groups):
            raise _damaged(blob, f"row groups of {groups[:9]} rows, together not {metadata.num_rows}")
        if metadata.num_rows > size:
            DECODED.hold(_ROW * (metadata.num_rows - size), f"The rows of {blob.location}", error=CorruptFileError)
        return Footer(blob, data, metadata, own_index=own_index)
    except CorruptFileError:
        raise
    except DAMAGE as error:
        raise _damaged(blob, f"a footer that cannot be read ({_first_line(error)})") from None


def _metadata(data: bytes, tail: bytes) -> pq.FileMetaData:
    """The footer as pyarrow parses it; no list or text in it is longer than the footer itself.

    Without these limits a list that says it has a million elements takes 700 MB before it is found to be cut off.
    """
    source = pa.BufferReader(pa.py_buffer(_MAGIC + data + tail[-8:]))
    limit = max(len(data), 1)
    return pq.ParquetFile(source, thrift_string_size_limit=limit, thrift_container_size_limit=limit).metadata


def _own_index(blob: Blob, data: bytes, tail: bytes) -> bytes | None:
    """The index bytes that belong to this very file, whose seal then must be right."""
    match = index.POINTER.search(data)
    if match is None:
        return None
    offsets = index.fetch(blob, match, tail=tail)
    if offsets is None:
        return None
    digits = seal(data)
    if digits is None or digits[0] != digits[1]:
        raise _damaged(blob, "a footer that changed after it was written")
    return offsets


def _read(blob: Blob, start: int, stop: int) -> list[bytes]:
    return [bytes(part) for part in blob.ranges(np.array([start]), np.array([stop]))]


def _first_line(error: BaseException) -> str:
    text: Any = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__

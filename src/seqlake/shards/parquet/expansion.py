"""How much memory column chunks may take when they are decoded, known from their pages before a value is.

A dictionary entry of megabytes that a million rows name, pages that unpack a thousandfold, runs that stand for many
values: all of it is valid Parquet. Columns are streamed whatever their size; what has to be in memory at once is a
page, a dictionary, a row and a few more, and only these are limited. pyarrow's own scanner decodes whole row groups, so
it is given only files that stay small that way.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.files.limits import DECODED
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.parquet.index import digest
from seqlake.shards.parquet.pages import DICTIONARY, PLAIN, ROWS, decode_levels, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob
    from seqlake.shards.parquet.footer import ColumnChunk, Footer
    from seqlake.shards.parquet.pages import Page

BATCH = 64 << 20
"""Bytes of a batch of more than one row, where averages do not bound it."""

_LENGTH = Struct("<I").unpack_from
_PART = 1 << 16  # entries that are looked at together
_FURTHEST = 64  # times the limit, in one row group: what is streamed has an end
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DECIMAL = 32  # bytes of the widest of Arrow
_LENGTHS = (PLAIN, 6)  # encodings of byte arrays that hold each of them: PLAIN, DELTA_LENGTH_BYTE_ARRAY
_CODES = (2, 8)  # that name entries of a dictionary: PLAIN_DICTIONARY, RLE_DICTIONARY
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4_RAW": "lz4_raw"}
NARROW = frozenset({"scalar", "file"})
"""The categories whose cells are a few bytes: what is scanned."""

_MOST_ELEMENTS = 1 << 17  # of a list in a footer: columns, row groups; memory is taken for as many as it says
_MUCH = 256 << 20  # bytes that a row group may take more than its file has
_MOST = 1 << 16  # files that a process remembers
_SCANNABLE: dict[tuple[str, str, tuple[str, ...]], bool] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Upper bounds for one column chunk.

    Attributes:
        chunk: Which.
        data: Its bytes.
        pages: Of it.
        decoded: Bytes of all its cells.
        value: Bytes of its longest value.
    """

    chunk: ColumnChunk
    data: memoryview
    pages: Sequence[Page]
    decoded: int
    value: int

    @property
    def more(self) -> int:
        """Bytes of its cells beyond those that are stored."""
        return self.decoded - len(self.data)

    def headers(self) -> bytes:
        """The digest of its page headers."""
        return digest(b"".join(bytes(self.data[page.offset : page.body]) for page in self.pages))


def expansion_of(footer: Footer, chunk: ColumnChunk, data: memoryview, /) -> Expansion:
    """How far a chunk expands.

    Args:
        footer: Of its file.
        chunk: One of the footer's.
        data: Its bytes.

    Raises:
        CorruptFileError: Its pages are damaged, or one of them expands beyond the limit.
    """
    pages = tuple(walk(data, values=chunk.values))
    parquet = footer.metadata.schema.column(chunk.leaf)
    what = f"A page of column {parquet.path!r}"
    width = _WIDTHS.get(parquet.physical_type, max(parquet.length, 0))
    if width and parquet.logical_type.type == "DECIMAL":
        width = max(width, _DECIMAL)
    unpacked = max((page.uncompressed for page in pages), default=0)
    _hold(max((page.uncompressed - (page.stop - page.body) for page in pages), default=0), what, footer)
    named = sum(page.values for page in pages if page.encoding in _CODES)
    held = sum(page.uncompressed for page in pages if page.kind not in ROWS or page.encoding in _LENGTHS)
    value = width or unpacked
    if not width and named:
        entry = max((page.uncompressed for page in pages if page.kind == DICTIONARY), default=0)
        entry = _longest(chunk, data, pages) if named * entry > min(BATCH, DECODED.value) else entry
        value = max(
            [entry, *(page.uncompressed for page in pages if page.kind in ROWS and page.encoding not in _CODES)]
        )
    longest = sum(page.values for page in pages if page.kind in ROWS and (width or page.encoding not in _LENGTHS))
    decoded = longest * value + (0 if width else held) + 4 * chunk.values
    return Expansion(chunk=chunk, data=data, pages=pages, decoded=decoded, value=value)


def fitting_rows(footer: Footer, parts: Sequence[Expansion], rows: int, /) -> int:
    """How many rows of a row group may be decoded at once, however unequal they are.

    Args:
        footer: Of the file.
        parts: The chunks that are decoded, all of one row group.
        rows: How many are wanted.

    Raises:
        CorruptFileError: A row, or the row group as a whole, expands beyond the limit.
    """
    more = sum(part.more for part in parts)
    if more <= DECODED.value:
        return rows
    most = DECODED.value * _FURTHEST
    DECODED.hold(
        more, f"A row group of {footer.blob.location}", most=most, path=footer.blob.location, error=CorruptFileError
    )
    nested = [part for part in parts if footer.metadata.schema.column(part.chunk.leaf).max_repetition_level]
    flat = sum(part.value for part in parts if part not in nested)
    rows = max(1, min(rows, BATCH // max(flat, 1)))
    if not nested:
        return rows
    each = np.full(nested[0].chunk.rows, flat, np.int64)
    for part in nested:
        each += _each_row(footer, part)
    stored = sum(len(part.data) for part in parts)
    _hold(int(each.max(initial=0)) - stored, "A row", footer)
    while rows > 1 and np.add.reduceat(each, np.arange(0, each.size, rows)).max() > BATCH + stored:
        rows //= 2
    return rows


def _hold(more: int, what: str, footer: Footer) -> None:
    if more > DECODED.value:  # only then is it of interest where the file lies
        place = footer.blob.location
        DECODED.hold(more, f"{what} of {place}", path=place, error=CorruptFileError)


def _longest(chunk: ColumnChunk, data: memoryview, pages: Sequence[Page]) -> int:
    """Bytes of the longest entry of the dictionary, or of all of it where it cannot be looked into."""
    longest = 0
    for page in pages:
        if page.kind != DICTIONARY:
            continue
        held = _unpacked(chunk, data[page.body : page.stop], page.uncompressed)
        if held is None:
            return page.uncompressed
        if (length := _common(held)) is not None:
            longest = max(longest, length)
            continue
        at, last = 0, len(held) - 4
        while at <= last:
            (length,) = _LENGTH(held, at)
            at += 4 + length
            if length > longest:  # noqa: PLR1730 - a call for each of a hundred thousand entries
                longest = length
    return longest


def _common(held: bytes | memoryview) -> int | None:
    """The length of all entries of a dictionary, where they have one: of a million ids it is not worth a loop."""
    if len(held) < 4:
        return None
    (length,) = _LENGTH(held, 0)
    if len(held) % (4 + length):
        return None
    heads = np.frombuffer(held, np.uint8).reshape(-1, 4 + length)[:, :4]
    parts = (heads[at : at + _PART] for at in range(0, len(heads), _PART))  # a dictionary may be large
    return int(length) if all((part == heads[0]).all() for part in parts) else None


def _unpacked(chunk: ColumnChunk, data: memoryview, size: int) -> bytes | memoryview | None:
    """The bytes of a page; None where its codec is not known here."""
    if chunk.codec == "UNCOMPRESSED":
        return data
    if chunk.codec not in _CODECS:
        return None
    try:
        return pa.Codec(_CODECS[chunk.codec]).decompress(data, size, asbytes=True)  # type: ignore[no-any-return]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(f"A page of {size} bytes cannot be unpacked ({error}).") from None


def _each_row(footer: Footer, part: Expansion) -> NDArray[np.int64]:
    """[rows] bytes that each row of a nested column may take."""
    chunk = part.chunk
    nbytes = np.zeros(chunk.rows + 1, np.int64)  # the first is no row: entries before the first row of a chunk
    at = 0
    for page in part.pages:
        if page.kind not in ROWS or not page.values:
            continue
        _hold(4 * page.values, f"A page of {footer.blob.location}", footer)
        levels = _repetition(footer, part, page)
        if levels is None:
            return np.full(chunk.rows, part.decoded, np.int64)
        heads = np.flatnonzero(levels == 0)
        if at + heads.size > chunk.rows:
            raise CorruptFileError(f"{footer.blob.location}: a column chunk has more than its {chunk.rows} rows.")
        entries = np.diff(heads, append=page.values)
        most = page.uncompressed if page.encoding in _LENGTHS else page.values * part.value
        begun = int(heads[0]) if heads.size else page.values
        nbytes[at] += min(begun * part.value, most)
        nbytes[at + 1 : at + 1 + heads.size] += np.minimum(entries * part.value, most)
        at += heads.size
    return nbytes[1:]


def _repetition(footer: Footer, part: Expansion, page: Page) -> NDArray[np.uint8] | None:
    """[entries] repetition levels of a page; None where they cannot be unpacked here."""
    deepest = footer.metadata.schema.column(part.chunk.leaf).max_repetition_level
    if page.levels is not None:
        runs = bytes(part.data[page.body : page.body + page.levels[0]])
    else:
        body = _unpacked(part.chunk, part.data[page.body : page.stop], page.uncompressed)
        if body is None:
            return None
        runs = bytes(body[4 : 4 + int.from_bytes(body[:4], "little")])
    return decode_levels(runs, deepest=deepest, count=page.values)


def checked_format() -> Any:
    """`pyarrow.dataset.ParquetFileFormat` that compares each page with its checksum, and bounds what footers claim."""
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True, thrift_container_size_limit=_MOST_ELEMENTS)
    return ds.ParquetFileFormat(default_fragment_scan_options=options)


def scannable(blobs: Iterable[Blob], columns: Sequence[str], /) -> bool:
    """Whether columns of local files may be left to pyarrow, which decodes whole row groups however far they expand.

    Args:
        blobs: Parquet files; each is looked at once a process.
        columns: Those that may be asked for.
    """
    try:
        for blob in blobs:
            key = (blob.location, blob.token, tuple(columns))
            if key not in _SCANNABLE:
                while len(_SCANNABLE) >= _MOST:
                    _SCANNABLE.pop(next(iter(list(_SCANNABLE)), key), None)
                _SCANNABLE[key] = _bounded(blob, columns)
            if not _SCANNABLE[key]:
                return False
    except (SeqlakeError, OSError):  # what is wrong, our own reader says
        return False
    return True


def _bounded(blob: Blob, columns: Sequence[str]) -> bool:
    view = blob.view()
    if view is None:
        return False
    footer = read_footer(blob)
    leaves = [leaf for name in columns for leaf in footer.leaves.get(name, ())]
    for group in footer.chunks:
        parts = [expansion_of(footer, group[leaf], view[group[leaf].start : group[leaf].stop]) for leaf in leaves]
        if sum(part.more for part in parts) > _MUCH:
            return False
    return True

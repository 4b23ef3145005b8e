"""Checks every byte of a Parquet shard that can be checked: footer, page headers, checksums, offset index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from seqlake.errors import CorruptFileError, SchemaMismatchError
from seqlake.files.checksums import crc32
from seqlake.shards.parquet import index
from seqlake.shards.parquet.building import column_steps
from seqlake.shards.parquet.flatness import bears_out
from seqlake.shards.parquet.footer import ColumnChunk, Footer, read_footer
from seqlake.shards.parquet.pages import walk
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.reading import count_lengths
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Blob
    from seqlake.shards.parquet.index import ColumnIndex, OffsetIndex


def check(blob: Blob, /, *, outside: bytes | memoryview | None = None) -> Iterator[Finding]:
    """Everything that is wrong with the bytes of a file; reads all of them.

    Codes: `P601` not readable as Parquet, or its footer changed; `P602` page headers that changed or do not fit;
    `P603` a page whose bytes do not match its checksum; `P604` an offset index that says other lengths than the
    pages, row by row. Files of other writers carry no seal and often no checksums: less can be found in them.

    Args:
        blob: A Parquet file.
        outside: An offset index of it that is kept elsewhere; held against the pages like its own.

    Example:
        >>> [finding.code for finding in check(open_blob("part-0.parquet"))]
        []
    """
    try:
        footer = read_footer(blob)
        offsets = footer.index()
        chunks = footer.chunks
    except CorruptFileError as error:
        yield _finding(blob, "P601", str(error))
        return
    damaged = False
    for group in chunks:
        for chunk in group:
            for finding in check_chunk(footer, offsets, chunk):
                damaged = True
                yield finding
    if not damaged:  # damaged pages say nothing of the index
        yield from _check_indexes(footer, offsets, outside)


def _check_indexes(
    footer: Footer, offsets: OffsetIndex | None, outside: bytes | memoryview | None
) -> Iterator[Finding]:
    """The offset index in the file, and one that is kept elsewhere, held against the pages."""
    entries = {} if offsets is None else dict(offsets.columns)
    for column, entry in entries.items():
        yield from _check_entry(footer, column, entry, "in the file")
    if outside:
        try:
            kept = index.decode(outside, nbytes=footer.blob.size)
        except CorruptFileError as error:
            yield _finding(footer.blob, "P604", f"the offset index kept outside the file cannot be used: {error}")
            return
        for column, entry in kept.columns.items():
            if column not in entries or not _alike(entry, entries[column]):
                yield from _check_entry(footer, column, entry, "kept outside the file")


def _finding(blob: Blob, code: str, message: str, *, column: str = "") -> Finding:
    return Finding(code=code, severity="error", message=message, location=blob.location, column=column)


def check_chunk(
    footer: Footer, offsets: OffsetIndex | None, chunk: ColumnChunk, /, *, data: memoryview | None = None
) -> Iterator[Finding]:
    """Page headers and checksums of one column chunk.

    Args:
        footer: Of the file.
        offsets: The file's own offset index.
        chunk: One of the footer's.
        data: Its bytes, where they are at hand; else they are read.
    """
    blob, column = footer.blob, _column(footer, chunk)
    place = f"row group {chunk.row_group}"
    if data is None:
        (data,) = blob.ranges(np.array([chunk.start]), np.array([chunk.stop]))
    try:
        pages = list(walk(data, values=chunk.values))
    except CorruptFileError as error:
        yield _finding(blob, "P602", f"{place}: {error}", column=column)
        return
    if offsets is not None and offsets.headers:
        headers = index.digest(b"".join(bytes(data[page.offset : page.body]) for page in pages))
        if headers != offsets.headers[chunk.row_group * footer.metadata.num_columns + chunk.leaf]:
            message = f"{place}: expected the page headers that were written, found others; restore the file"
            yield _finding(blob, "P602", message, column=column)
            return
    for page in pages:
        found_crc = crc32(data[page.body : page.stop])
        if page.crc is not None and page.crc != found_crc:
            message = (
                f"{place}: expected checksum {page.crc:08x} of the page at byte {chunk.start + page.offset}, "
                f"found {found_crc:08x}; its values changed after writing: restore the file"
            )
            yield _finding(blob, "P603", message, column=column)


def _column(footer: Footer, chunk: ColumnChunk) -> str:
    return next(name for name, leaves in footer.leaves.items() if chunk.leaf in leaves)


def _check_entry(footer: Footer, column: str, entry: ColumnIndex, where: str) -> Iterator[Finding]:
    """Whether an index entry says the lengths and places that the pages say."""
    try:
        if not bears_out(footer, column, entry):
            same = False
        elif entry.page_start.size:
            known = column_steps(footer, column, stored=entry.stored, dim=entry.dim)
            same = known is not None and _alike(known, entry)
        elif footer.metadata.schema.column(footer.leaves[column][0]).max_repetition_level:
            same = np.array_equal(count_lengths(ParquetReader(footer.blob), column), entry.steps)
        else:
            same = np.array_equal(_counted_raw(footer, column, entry), entry.steps)
    except (CorruptFileError, SchemaMismatchError):
        same = False
    if not same:
        message = (
            f"expected the offset index {where} to say what the pages say, found other lengths or places; "
            "`seqlake repack` writes both anew"
        )
        yield _finding(footer.blob, "P604", message, column=column)


def _alike(one: ColumnIndex, other: ColumnIndex) -> bool:
    parts = ("page_start", "page_row", "steps")
    wide = one.dim == other.dim or not (one.steps > 0).any()  # without a step, it may be declared or not
    return wide and all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def _counted_raw(footer: Footer, column: str, entry: ColumnIndex) -> NDArray[np.int64]:
    """[rows] T of raw cells that are compressed, by their bytes; -2 where these are no whole number of steps."""
    width = max(entry.dim, 1) * np.dtype(entry.stored).itemsize if entry.stored else 1
    parts = [np.zeros(0, np.int64)]
    for batch in ParquetReader(footer.blob).batches([column]):
        nbytes = np.asarray(pc.fill_null(pc.binary_length(batch.column(0)), -1)).astype(np.int64)
        parts.append(np.where(nbytes < 0, -1, np.where(nbytes % width, -2, nbytes // width)))
    return np.concatenate(parts)

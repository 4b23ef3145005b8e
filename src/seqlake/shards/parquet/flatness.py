"""From an offset index to `Flat`: believed only after the file agrees with it.

Checked for every page of the column before a single value is handed out: codec, encoding, physical type, that headers
lie exactly where the index implies, number of entries, lengths of the levels, and that the values fill the page to its
last byte. Any doubt gives None, and the column is read through pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.protocols import Flat
from seqlake.shards.cells import numpy_type, numpy_type_of, step_type
from seqlake.shards.parquet.index import digest
from seqlake.shards.parquet.pages import PLAIN, Page, read_header

if TYPE_CHECKING:
    from seqlake.protocols import Blob, Ints
    from seqlake.shards.parquet.footer import ColumnChunk, Footer
    from seqlake.shards.parquet.index import ColumnIndex

_MOST_VALUES = 1 << 31  # of one cell: a page holds no more
_HEADER = 4096  # more than any page header without statistics of long strings


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What the Parquet schema says of a column that may be flat.

    Attributes:
        stored: Type of one value as the bytes lie.
        dtype: Type of one value as Arrow shows it.
        levels: Levels of lists: 2 for [T, D], 1 for [T], 0 for scalars and raw cells.
        optional: Whether the column has definition levels.
        raw: Whether cells are binary.
        fixed: The fixed size of the innermost list, where the Arrow schema stores one.
    """

    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    levels: int
    optional: bool
    raw: bool
    fixed: int | None


def leaf_of(footer: Footer, column: str, /, *, stored: str = "") -> Leaf | None:
    """What the footer says of a column; None where its type is never flat.

    Args:
        footer: Of the file.
        column: Column name.
        stored: Type of the values inside raw cells, which the file does not say.
    """
    (leaf, *others) = footer.leaves[column]
    if others:
        return None
    parquet = footer.metadata.schema.column(leaf)
    kind = footer.schema.field(column).type
    optional = parquet.max_definition_level > 0
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        if not stored or parquet.physical_type != "BYTE_ARRAY" or parquet.max_repetition_level:
            return None
        inner = np.dtype(stored)
        return Leaf(stored=inner, dtype=inner, levels=0, optional=optional, raw=True, fixed=None)
    held = step_type(kind)
    if held is None or held[1] != parquet.max_repetition_level:
        return None
    dtype = numpy_type(held[0])
    assert dtype is not None
    name, lies = physical(dtype)
    if parquet.physical_type != name or (name == "FIXED_LEN_BYTE_ARRAY" and parquet.length != 2):
        return None
    return Leaf(stored=lies, dtype=dtype, levels=held[1], optional=optional, raw=False, fixed=held[2])


def physical(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """Parquet keeps integers below 32 bits in four bytes, and float16 as two fixed bytes."""
    if dtype.kind == "f":
        names = {2: "FIXED_LEN_BYTE_ARRAY", 4: "FLOAT", 8: "DOUBLE"}
        return names[dtype.itemsize], dtype.newbyteorder("<")
    if dtype.itemsize == 8:
        return "INT64", dtype.newbyteorder("<")
    return "INT32", np.dtype(f"<{dtype.kind}4")


def stored_name(kind: pa.DataType, /) -> str:
    """Type of one number of a column as its bytes lie (`<f4`); empty for columns of other types."""
    dtype = numpy_type_of(kind)
    return "" if dtype is None else physical(dtype)[1].str


def bears_out(footer: Footer, column: str, entry: ColumnIndex, /) -> bool:
    """Whether the footer's own counts bear out the lengths that an index gives, row group by row group.

    A flat column of lists has as many entries as its chunk; one whose steps may be ragged or null has at least one for
    each. Raw cells have no more bytes than their chunk. What shifts steps between two rows passes here: levels say it.

    Args:
        footer: Of the file.
        column: Column name.
        entry: What an index says of it.

    Raises:
        CorruptFileError: The footer's chunks cannot be read.
    """
    leaves = footer.leaves.get(column, range(0))
    if len(leaves) != 1 or entry.steps.size != footer.rows or entry.steps.min(initial=0) < -1:
        return False
    parquet = footer.metadata.schema.column(leaves[0])
    chunks = _filled(footer, leaves[0])
    first = np.cumsum([0, *(chunk.rows for chunk in chunks[:-1])])
    if not chunks:
        return True
    if entry.steps.max(initial=0) * max(entry.dim, 1) > _MOST_VALUES:
        return False  # keeps the sums below far from 2^63
    if parquet.max_repetition_level:
        held = np.array([chunk.values for chunk in chunks])
        ragged = parquet.max_repetition_level > 1 and not entry.page_start.size
        counted = np.add.reduceat(entries_of(entry, 1 if ragged else parquet.max_repetition_level), first)
        return bool((counted <= held).all() if ragged else (counted == held).all())
    if parquet.physical_type == "BYTE_ARRAY":
        if not entry.stored or any(chunk.dictionary for chunk in chunks):
            return False  # a dictionary holds a value once: nothing can be said
        nbytes = np.add.reduceat(entry.cell_bytes(raw=True), first)
        return bool((nbytes <= [chunk.decoded for chunk in chunks]).all())
    return bool(entry.steps.max(initial=1) == 1 and (entry.steps != 0).all())  # one number a row, or null


def flat_of(
    footer: Footer, column: str, entry: ColumnIndex, /, *, levels: bytes | None = None, headers: bool = True
) -> Flat | None:
    """The column as `Flat`, where the file bears out what the index says.

    Args:
        footer: Of the file.
        column: Column name.
        entry: What the index says of it.
        levels: The digest of headers and levels that must be found, where the index is not the file's own.
        headers: Whether to read and compare every page header. Without, only footer and index are compared: for a
            remote file of our own, whose store vouches that it is as it was written, a request for each page is much.

    Returns:
        None where the column is not flat, or where index and file do not agree.
    """
    leaf = leaf_of(footer, column, stored=entry.stored) if entry.flat else None
    if leaf is None or leaf.stored != np.dtype(entry.stored) or (leaf.levels < 2 and not leaf.raw and entry.dim != 1):
        return None
    if (leaf.fixed not in {None, entry.dim} and leaf.levels == 2) or entry.steps.size != footer.rows:
        return None
    if leaf.levels == 0 and not leaf.raw and not bears_out(footer, column, entry):
        return None
    outer = footer.schema.field(column).type
    if pa.types.is_fixed_size_list(outer) and (entry.steps[entry.steps >= 0] != outer.list_size).any():
        return None
    if int(entry.steps.max(initial=0)) * entry.dim * leaf.stored.itemsize > footer.blob.size:
        return None  # also keeps the sums below far from 2^63
    try:
        if not _agrees(footer, entry, leaf, footer.leaves[column][0], headers=headers):
            return None
        if levels is not None and level_digest(footer, column, entry, leaf) != levels:
            return None
    except CorruptFileError:
        return None
    shape = (entry.dim,) if leaf.levels == 2 or leaf.raw else ()
    return Flat(
        blob=footer.blob,
        start=entry.starts(raw=leaf.raw),
        steps=entry.steps.astype(np.int64),
        stride=entry.dim * leaf.stored.itemsize,
        stored=leaf.stored,
        dtype=leaf.dtype.newbyteorder("="),
        shape=shape,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageClaims:
    """[pages] what the index implies of each page: its header, first value, end and entries."""

    header: Ints
    values: Ints
    stop: Ints
    entries: Ints


def _agrees(footer: Footer, entry: ColumnIndex, leaf: Leaf, number: int, *, headers: bool) -> bool:
    chunks = _filled(footer, number)
    if not chunks or entry.page_start.size == 0:
        return not chunks or not (entry.steps > 0).any()
    if any(chunk.codec != "UNCOMPRESSED" or chunk.dictionary for chunk in chunks):
        return False
    claims = _claims(entry, leaf, chunks)
    return claims is not None and (not headers or _headers_agree(footer.blob, claims, leaf))


def _filled(footer: Footer, number: int) -> list[ColumnChunk]:
    """The chunks of one Parquet column that hold rows."""
    return [group[number] for group in footer.chunks if group[number].rows]


def claims_of(footer: Footer, column: str, entry: ColumnIndex, /) -> PageClaims | None:
    """Where the index says that pages begin and end, if that fits the chunks; None for a column without pages."""
    leaf, chunks = leaf_of(footer, column, stored=entry.stored), _filled(footer, footer.leaves[column][0])
    return _claims(entry, leaf, chunks) if leaf is not None and chunks and entry.page_start.size else None


def level_digest(footer: Footer, column: str, entry: ColumnIndex, leaf: Leaf, /) -> bytes:
    """A digest of every byte of a column that is not a value: page headers and levels."""
    chunks = _filled(footer, footer.leaves[column][0])
    claims = _claims(entry, leaf, chunks) if chunks and entry.page_start.size else None
    if claims is None:
        return digest(b"")
    return digest(b"".join(bytes(part) for part in footer.blob.ranges(claims.header, claims.values)))


def _claims(entry: ColumnIndex, leaf: Leaf, chunks: list[ColumnChunk]) -> PageClaims | None:
    """The claims, where they fit the column chunks without a gap; else None."""
    first = np.cumsum([0, *(chunk.rows for chunk in chunks[:-1])])
    heads = np.searchsorted(entry.page_row, first)  # the first page of each chunk
    if heads[-1] >= entry.page_row.size or not np.array_equal(entry.page_row[heads], first):
        return None
    sizes = np.add.reduceat(entry.cell_bytes(raw=leaf.raw), entry.page_row)
    entries = entries_of(entry, leaf.levels)
    stop = entry.page_start + sizes
    header = np.concatenate([[0], stop[:-1]])
    header[heads] = [chunk.start for chunk in chunks]
    tails = np.append(heads[1:], entry.page_row.size) - 1
    counted = np.add.reduceat(entries, first)
    inside = (header >= 4).all() and (header < entry.page_start).all()
    ends = np.array_equal(stop[tails], [chunk.stop for chunk in chunks])
    if not (inside and ends and np.array_equal(counted, [chunk.values for chunk in chunks])):
        return None
    return PageClaims(
        header=header, values=entry.page_start, stop=stop, entries=np.add.reduceat(entries, entry.page_row)
    )


def entries_of(entry: ColumnIndex, levels: int, /) -> Ints:
    """[rows] level entries of each row: its values, or one for a null or empty cell."""
    if levels == 0:
        return np.ones(entry.steps.size, np.int64)
    return np.maximum(entry.steps.astype(np.int64) * (max(entry.dim, 1) if levels == 2 else 1), 1)


def _headers_agree(blob: Blob, claims: PageClaims, leaf: Leaf) -> bool:
    """Whether each page begins, is encoded, counts and ends as claimed."""
    heads = blob.ranges(claims.header, np.minimum(claims.header + _HEADER, claims.values))
    pages = [read_header(head, 0) for head in heads]
    sizes, entries = (claims.stop - claims.header).tolist(), claims.entries.tolist()
    if not all(_page_agrees(*claim) for claim in zip(pages, sizes, entries, strict=True)):
        return False
    at = claims.header + np.array([page.body + sum(page.levels or ()) for page in pages])
    first = np.array([page.levels is None for page in pages])  # version 1 gives each length before its levels
    for turn in range(int(leaf.levels > 0) + int(leaf.optional)):
        if (at[first] + 4 > claims.values[first]).any():
            return False
        lengths = [] if turn else [head[page.body : page.body + 4] for head, page in zip(heads, pages, strict=True)]
        if turn or not first.all() or any(len(length) < 4 for length in lengths):  # else read with the headers
            lengths = blob.ranges(at[first], at[first] + 4)
        at[first] += 4 + np.array([int.from_bytes(length, "little") for length in lengths], np.int64)
    return np.array_equal(at, claims.values)


def _page_agrees(page: Page, size: int, entries: int) -> bool:
    plain = page.is_data and page.encoding == PLAIN and page.values == entries
    return plain and page.stop == size and page.uncompressed == page.stop - page.body

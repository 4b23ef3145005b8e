"""Finds out from pages and levels where the steps of each row lie; no value is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.shards.cells import numpy_type
from seqlake.shards.parquet.flatness import Leaf, flat_of, leaf_of, level_digest
from seqlake.shards.parquet.footer import ColumnChunk, Footer, read_footer
from seqlake.shards.parquet.index import ColumnIndex, OffsetIndex, encode
from seqlake.shards.parquet.pages import PLAIN, Page, read_levels, values_start, walk

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Blob
    from seqlake.spec.schema import Schema


class NotFlatError(Exception):
    """The column cannot be read without decoding; never leaves this module."""


def build(blob: Blob, /, *, schema: Schema | None = None) -> bytes | None:
    """Make the index of a file that another writer made: levels are decoded, values are not.

    Args:
        blob: A Parquet file.
        schema: What its columns mean; needed for raw binary cells only, whose dim and dtype no file says.

    Returns:
        Index bytes for `open(blob, index=...)` and for a table's sidecar; None where no column is flat (compressed,
        dictionary-encoded, ragged, or null inside a cell).

    Raises:
        CorruptFileError: The file is damaged.

    Example:
        >>> from seqlake.shards.parquet import open
        >>> offsets = build(open_blob("theirs.parquet"))
        >>> open(open_blob("theirs.parquet"), index=offsets).flat("action") is not None
        True
    """
    flats = flat_columns(blob, schema=schema)
    columns = {name: entry for name, (entry, _) in flats.items()}
    levels = {name: tied for name, (_, tied) in flats.items()}
    return encode(OffsetIndex(columns=columns, levels=levels)) if flats else None


def index_bytes(blob: Blob, /, *, schema: Schema | None = None) -> bytes:
    """The offset index of any Parquet file: its own, or one that is built now; empty where no column is flat.

    Args:
        blob: A Parquet file.
        schema: As for `build`.

    Raises:
        CorruptFileError: The file is damaged.
    """
    inside = read_footer(blob).index()
    return (build(blob, schema=schema) or b"") if inside is None else encode(inside)


def flat_columns(blob: Blob, /, *, schema: Schema | None = None) -> dict[str, tuple[ColumnIndex, bytes]]:
    """The index entry of every column of a file that is flat, and the digest of its page headers and levels.

    Args:
        blob: A Parquet file.
        schema: What its columns mean; for raw binary cells.

    Raises:
        CorruptFileError: The file is damaged.
    """
    footer = read_footer(blob)
    columns = {}
    for name in footer.leaves:
        stored, dim = _raw(schema, name)
        entry = column_steps(footer, name, stored=stored, dim=dim)
        if entry is not None and flat_of(footer, name, entry) is not None:
            leaf = leaf_of(footer, name, stored=entry.stored)
            assert leaf is not None
            columns[name] = (entry, level_digest(footer, name, entry, leaf))
    return columns


def _raw(schema: Schema | None, name: str) -> tuple[str, int]:
    """Stored type and dim of raw cells; empty for other columns."""
    if schema is None or name not in schema or not schema[name].raw:
        return "", 0
    dtype = None if schema[name].value_type is None else numpy_type(schema[name].value_type)
    return ("" if dtype is None else dtype.newbyteorder("<").str), schema[name].dim or 0


def column_steps(footer: Footer, name: str, /, *, stored: str = "", dim: int = 0) -> ColumnIndex | None:
    """One column's entry, from its pages; None where it is not flat.

    Args:
        footer: Of the file.
        name: Column name.
        stored: Type of the values inside raw binary cells.
        dim: Values of one step inside raw binary cells.

    Raises:
        CorruptFileError: Its pages are damaged.
    """
    leaf = leaf_of(footer, name, stored=stored)
    if leaf is None or (leaf.raw and dim < 1):
        return None
    grown = _Growing(footer, name, leaf, dim)
    try:
        for group in footer.chunks:
            grown.add(group[footer.leaves[name][0]])
    except NotFlatError:
        return None
    return grown.entry()


def page_steps(
    footer: Footer, name: str, entry: ColumnIndex, data: memoryview, page: Page, /
) -> NDArray[np.int64] | None:
    """[rows of the page] T of each row, from the levels of one page of a flat column; None where it is not flat.

    Args:
        footer: Of the file.
        name: Column name.
        entry: What an index says of the column.
        data: The page, from its header on.
        page: Its header, at the start of `data`.

    Raises:
        CorruptFileError: The page is damaged.
    """
    leaf = leaf_of(footer, name, stored=entry.stored)
    if leaf is None or not page.is_data or page.encoding != PLAIN or page.stop > len(data) or not page.values:
        return None
    grown = _Growing(footer, name, leaf, entry.dim)
    grown.dim = entry.dim
    try:
        grown.add_page(data, page, 0)
    except NotFlatError:
        return None
    return grown.steps[0]


class _Growing:
    """An index entry that grows page by page."""

    def __init__(self, footer: Footer, name: str, leaf: Leaf, raw_dim: int) -> None:
        self.footer = footer
        self.leaf = leaf
        self.dim: int | None = raw_dim if leaf.raw else (leaf.fixed if leaf.levels == 2 else 1)
        parquet = footer.metadata.schema.column(footer.leaves[name][0])
        self.deepest = (parquet.max_repetition_level, parquet.max_definition_level)
        self.present = int(footer.schema.field(name).nullable)  # definition level of a cell that is an empty list
        if self.deepest[1] != _definition(footer.schema.field(name)):
            raise CorruptFileError(
                f"Expected {_definition(footer.schema.field(name))} definition levels in {name!r} of "
                f"{footer.blob.location}, found {self.deepest[1]}."
            )
        self.steps: list[NDArray[np.int64]] = []
        self.page_start: list[int] = []
        self.page_row: list[int] = []
        self.rows = 0

    def add(self, chunk: ColumnChunk) -> None:
        """Take over the pages of one row group."""
        if chunk.rows and (chunk.codec != "UNCOMPRESSED" or chunk.dictionary):
            raise NotFlatError
        view = self.footer.blob.view()
        if view is not None:  # a map is no memory of this process, however much a row group holds
            data = view[chunk.start : chunk.stop]
        else:
            (data,) = self.footer.blob.ranges(np.array([chunk.start]), np.array([chunk.stop]))
        first = self.rows
        for page in walk(data, values=chunk.values):
            if not page.is_data or page.encoding != PLAIN or page.uncompressed != page.stop - page.body:
                raise NotFlatError
            if page.values:
                self.add_page(data, page, chunk.start)
        if self.rows - first != chunk.rows:
            raise NotFlatError

    def add_page(self, data: memoryview, page: Page, at: int) -> None:
        """Take over one page; `at` is where `data` begins in the file."""
        if page.values > (page.stop - page.body) // self.leaf.stored.itemsize + self.footer.rows:
            raise NotFlatError  # neither values nor empty rows; levels may say so in a few bytes
        repetition, definition = read_levels(
            data, page, deepest_repetition=self.deepest[0], deepest_definition=self.deepest[1]
        )
        begin = values_start(data, page, repeated=self.deepest[0] > 0, optional=self.deepest[1] > 0)
        full = definition == self.deepest[1]
        count = int(np.count_nonzero(full))
        heads = np.flatnonzero(repetition == 0)
        entries = np.diff(heads, append=page.values)
        if repetition[0] != 0:
            raise NotFlatError  # a row that began in the page before
        if count < page.values:  # else each of these arrays, as long as the page has values, would be made for nothing
            hollow = (repetition == 0) & ((definition <= self.present) if self.leaf.levels else ~full)
            empty = hollow[heads]
            if not (full | hollow).all() or (entries[empty] != 1).any():
                raise NotFlatError  # nulls inside a cell
            repetition = repetition[full]
        else:
            empty = np.zeros(heads.size, np.bool_)
        if self.leaf.raw:
            steps, nbytes = self._raw_steps(data, begin, page.stop, count)
            cells = np.full(heads.size, -1, np.int64)
            cells[full[heads]] = steps
        else:
            cells = self._steps(repetition, entries, empty, definition[heads])
            nbytes = count * self.leaf.stored.itemsize
        if begin + nbytes != page.stop:
            raise NotFlatError
        self.page_start.append(at + begin)
        self.page_row.append(self.rows)
        self.steps.append(cells)
        self.rows += heads.size

    def _steps(
        self,
        repetition: NDArray[np.uint8],
        entries: NDArray[np.int64],
        empty: NDArray[np.bool_],
        definition: NDArray[np.uint8],
    ) -> NDArray[np.int64]:
        """[rows] T of each row of a page: of the repetition levels of its values, and of each row what is there."""
        if self.leaf.levels == 2 and repetition.size:
            begins = np.flatnonzero(repetition <= 1)
            sizes = np.diff(begins, append=repetition.size)
            self.dim = int(sizes[0]) if self.dim is None else self.dim
            if (sizes != self.dim).any() or (entries[~empty] % self.dim).any():
                raise NotFlatError  # ragged steps
        steps = entries // (self.dim or 1)
        null = definition < self.present if self.leaf.levels else empty
        return np.where(empty, np.where(null, -1, 0), steps)

    def _raw_steps(self, data: memoryview, begin: int, stop: int, count: int) -> tuple[NDArray[np.int64], int]:
        """T of each cell that is not null, and the bytes they take with their lengths."""
        width = (self.dim or 1) * self.leaf.stored.itemsize
        sizes, at = [], begin
        for _ in range(count):
            size = int.from_bytes(data[at : at + 4], "little")
            at += 4 + size
            if at > stop or size % width:
                raise NotFlatError
            sizes.append(size // width)
        return np.array(sizes, np.int64), at - begin

    def entry(self) -> ColumnIndex:
        """The index entry of the pages so far."""
        steps = np.concatenate(self.steps) if self.steps else np.zeros(0, np.int64)
        return ColumnIndex(
            stored=self.leaf.stored.str,
            dim=self.dim or 0,
            page_start=np.array(self.page_start, np.int64),
            page_row=np.array(self.page_row, np.int64),
            steps=steps.astype(np.int32),
        )


def _definition(field: pa.Field) -> int:
    """Definition levels of a column of numbers in the three-level list form."""
    levels, kind = int(field.nullable), field.type
    while hasattr(kind, "value_field"):
        levels += 1 + int(kind.value_field.nullable)
        kind = kind.value_type
    return levels

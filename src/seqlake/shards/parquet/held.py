"""Where the files lie that cells hold: found from page to page and from length to length, and not decoded.

Only pages that are PLAIN and not compressed hold them in one piece; so our writers lay out columns of media. Whatever
else is met, damage too, is left to those who decode the page and say what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.files.blobs import MemoryBlob, PartBlob, inline_location
from seqlake.shards.parquet.pages import PLAIN, read_header, read_levels, read_struct, values_start, walk
from seqlake.spec.schema import is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints
    from seqlake.shards.parquet.footer import ColumnChunk, Footer

_AT_ONCE = 1 << 20  # bytes of a page that is fetched whole; of larger ones only what is needed
_HEAD = 4096  # bytes that hold a page's header; its levels take a bit a row and come with it
_MOST_PAGES = 1 << 20


class _NotInPlaceError(Exception):
    """The cell must be decoded."""


@dataclass(slots=True, kw_only=True)
class _Cells:
    """The cells of one page.

    Attributes:
        offset: Where its header begins in the file.
        rows: How many there are.
        stop: First byte after the page; 0 before its header was read.
        there: [rows] which are not null.
        starts: Where the length of each value stands that was come to; the first byte after the last of them.
        data: The page or the whole file as memory, where either is.
        base: Where in the file `data` begins.
    """

    offset: int
    rows: int
    stop: int = 0
    there: NDArray[np.bool_] | None = None
    starts: list[int] = field(default_factory=list)
    data: memoryview | None = None
    base: int = 0


class HeldLeaf:
    """The values of one Parquet column of bytes, by their places in the file.

    Args:
        footer: Of the file.
        leaf: The number of the Parquet column.
    """

    def __init__(self, footer: Footer, leaf: int, /) -> None:
        self._footer, self._leaf = footer, leaf
        self._ends = np.cumsum(footer.group_rows)
        self._groups: dict[int, tuple[list[int], list[_Cells]]] = {}

    def value(self, row: int, name: str = "", /) -> Blob | None:
        """The bytes of one cell, called by the name of the file; None where it is null.

        Raises:
            _NotInPlaceError: It must be decoded.
            CorruptFileError: Pages are not what they should be; who decodes them says more.
        """
        group = int(np.searchsorted(self._ends, row, side="right"))
        inside = row - (int(self._ends[group - 1]) if group else 0)
        firsts, pages = self._pages(group)
        number = int(np.searchsorted(firsts, inside, side="right")) - 1
        page, inside = pages[number], inside - firsts[number]
        self._read(page)
        assert page.there is not None
        if not page.there[inside]:
            return None
        which = int(np.count_nonzero(page.there[:inside]))
        while len(page.starts) < which + 2:
            self._hop(page)
        start, stop = page.starts[which] + 4, page.starts[which + 1]
        whole = PartBlob(self._footer.blob, start, stop, inline_location(name))
        if page.data is None:
            return whole
        part = page.data[start - page.base : stop - page.base]
        return MemoryBlob(part, location=whole.location, token=whole.token)

    def _pages(self, group: int) -> tuple[list[int], list[_Cells]]:
        """First rows of the pages of a row group, and the pages."""
        if group not in self._groups:
            chunk, column = self._footer.chunks[group][self._leaf], self._footer.metadata.schema.column(self._leaf)
            if column.physical_type != "BYTE_ARRAY" or column.max_repetition_level or chunk.codec != "UNCOMPRESSED":
                raise _NotInPlaceError
            view = self._footer.blob.view()
            pages = list(self._listed(chunk) if view is None else _walked(view, chunk))
            firsts = np.cumsum([0, *(page.rows for page in pages)]).tolist()
            if firsts.pop() != chunk.rows:
                raise _NotInPlaceError
            self._groups[group] = firsts, pages
        return self._groups[group]

    def _listed(self, chunk: ColumnChunk) -> Iterator[_Cells]:
        """The pages as the file's page index names them: one request."""
        start, stop = chunk.page_index
        if stop <= start:
            raise _NotInPlaceError
        try:
            places = read_struct(bytes(self._bytes(start, stop)))[0][1]
            table = np.array([(one[1], one[2], one[3]) for one in places], np.int64).reshape(-1, 3)
        except (LookupError, TypeError, ValueError, OverflowError):
            raise _NotInPlaceError from None
        offsets, sizes, firsts = table.T
        rows = np.diff(firsts, append=chunk.rows)
        inside = (offsets >= chunk.start) & (sizes > 0) & (offsets + sizes <= chunk.stop) & (rows > 0)
        if not inside.all() or len(table) > _MOST_PAGES:
            raise _NotInPlaceError
        for offset, size, count in zip(offsets.tolist(), sizes.tolist(), rows.tolist(), strict=True):
            yield _Cells(offset=offset, rows=count, stop=offset + size)

    def _read(self, page: _Cells) -> None:
        """Header and levels of a page, once."""
        if page.there is not None:
            return
        if page.data is None:
            size = page.stop - page.offset
            if _AT_ONCE < size < _AT_ONCE * page.rows:
                raise _NotInPlaceError  # many cells: better had together
            whole = size <= _AT_ONCE
            data = self._bytes(page.offset, page.stop if whole else min(page.stop, page.offset + _HEAD + page.rows))
            page.data, page.base = (data if whole else None), page.offset
        else:
            data = page.data
        head = read_header(data, page.offset - page.base)
        if not head.is_data or head.encoding != PLAIN or head.values != page.rows:
            raise _NotInPlaceError
        if page.stop not in {0, head.stop + page.base}:
            raise _NotInPlaceError
        deepest = self._footer.metadata.schema.column(self._leaf).max_definition_level
        _, levels = read_levels(data, head, deepest_repetition=0, deepest_definition=deepest)
        page.stop = head.stop + page.base
        page.starts = [values_start(data, head, repeated=False, optional=deepest > 0) + page.base]
        page.there = levels == deepest

    def _hop(self, page: _Cells) -> None:
        """Come to the next value."""
        at = page.starts[-1]
        head = self._bytes(at, at + 4) if page.data is None else page.data[at - page.base : at - page.base + 4]
        after = at + 4 + int.from_bytes(head, "little")
        if after > page.stop:
            raise CorruptFileError(f"{self._footer.blob.location}: a value longer than its page at byte {at}.")
        page.starts.append(after)

    def _bytes(self, start: int, stop: int) -> memoryview:
        return self._footer.blob.ranges(np.array([start]), np.array([stop]))[0]


def _walked(view: memoryview, chunk: ColumnChunk) -> Iterator[_Cells]:
    """The pages as their headers lie in memory."""
    for page in walk(view[: chunk.stop], start=chunk.start, values=chunk.values):
        if page.is_data:
            yield _Cells(offset=page.offset, rows=page.values, data=view)


class HeldFiles:
    """The files of one column: plain bytes, or structs of `bytes` and `path`.

    Args:
        footer: Of the shard.
        column: Its name.
    """

    def __init__(self, footer: Footer, column: str, /) -> None:
        kind, leaves = footer.schema.field(column).type, footer.leaves[column]
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        types = {name: kind.field(name).type for name in set(names)} if len(set(names)) == len(names) else {}
        self._data = self._name = None
        if is_binary(kind):
            self._data = HeldLeaf(footer, leaves[0])
        elif (
            set(types) == {"bytes", "path"}
            and is_binary(types["bytes"])
            and is_text(types["path"])
            and len(leaves) == 2
        ):
            self._data = HeldLeaf(footer, leaves[names.index("bytes")])
            self._name = HeldLeaf(footer, leaves[names.index("path")])

    def files(self, rows: Ints, /) -> list[tuple[str, Blob] | None] | None:
        """Name (empty where there is none) and bytes of the files of some rows, None where null; None: decode them."""
        try:
            return [self._file(row) for row in rows.tolist()]
        except (_NotInPlaceError, CorruptFileError):
            return None

    def _file(self, row: int) -> tuple[str, Blob] | None:
        if self._data is None:
            raise _NotInPlaceError
        name = "" if self._name is None else _text(self._name.value(row))
        data = self._data.value(row, name)
        if data is None and self._name is not None:
            raise _NotInPlaceError  # a name alone is a reference
        return None if data is None else (name, data)


def _text(held: Blob | None) -> str:
    if held is None:
        return ""
    try:
        return bytes(held.ranges(np.array([0]), np.array([held.size]))[0]).decode()
    except UnicodeDecodeError:
        raise _NotInPlaceError from None

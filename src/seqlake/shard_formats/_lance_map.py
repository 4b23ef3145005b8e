"""Where the parts of a Lance file lie, by its own numbers: what is compared before Lance decodes them.

Lance's decoder ends the process over some damage (a panic behind its C interface, gigabytes that a number asks for), so
that nothing may get to it unseen. Format 2: pages, global buffers, metadata of each column, two tables of places,
and 40 bytes that say where those are; metadata are messages of Protocol Buffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.protocols import Ints

FOOTER = struct.Struct("<QQQIIHH4s")
_MAGIC = b"LANC"
_FORMAT_2_0 = (0, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceFooter:
    """The last 40 bytes of a file.

    Attributes:
        columns_at: Where the metadata of columns begin.
        offsets_at: Where the table of their places begins.
        buffers_at: Where the table of the places of global buffers begins.
        buffers: How many global buffers there are.
        columns: How many columns of the file there are, which are not those of Arrow.
        version: Major and minor, as the file says them.
    """

    columns_at: int
    offsets_at: int
    buffers_at: int
    buffers: int
    columns: int
    version: tuple[int, int]


def footer_of(end: bytes | memoryview, /, *, nbytes: int, location: str) -> LanceFooter:
    """What the last bytes of a file say.

    Args:
        end: The last bytes, 40 or more.
        nbytes: Of the file as Lance wrote it.
        location: Of the file, for messages.

    Raises:
        CorruptFileError: They are not those of a Lance file, or name places that it does not have.
    """
    if len(end) < FOOTER.size or bytes(end[-4:]) != _MAGIC:
        raise _no_file(location, "its last bytes are not those of a Lance file")
    *places, buffers, columns, major, minor, _ = FOOTER.unpack(end[-FOOTER.size :])
    columns_at, offsets_at, buffers_at = places
    tables = (offsets_at + 16 * columns, buffers_at + 16 * buffers)
    if not columns_at <= offsets_at <= tables[0] <= buffers_at <= tables[1] <= nbytes - FOOTER.size:
        raise _no_file(location, f"its end names places {places} for {columns} columns, and it has {nbytes} bytes")
    return LanceFooter(
        columns_at=columns_at,
        offsets_at=offsets_at,
        buffers_at=buffers_at,
        buffers=buffers,
        columns=columns,
        version=(major, minor),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LancePage:
    """Some rows of one column of the file.

    Attributes:
        row: The first; in format 2.0 always 0.
        length: Rows, or items where its column lies within lists.
        starts: [buffers] where its bytes begin.
        stops: [buffers] where they end.
    """

    row: int
    length: int
    starts: Ints
    stops: Ints


class LanceMap:
    """Where everything lies.

    Args:
        end: The file's metadata, tables and footer: from `LanceFooter.columns_at` on.
        footer: What `footer_of` gave.
        schema: As Lance stores it, with the columns in the file's order.
        rows: Of the file.
        location: Of the file, for messages.

    Raises:
        CorruptFileError: It names places that the file does not have.
    """

    def __init__(self, end: bytes, footer: LanceFooter, schema: pa.Schema, /, *, rows: int, location: str) -> None:
        self._rows = rows
        self._location, self._limit = location, footer.columns_at
        self._end, self._footer = memoryview(end), footer
        self._columns = self._named(schema)

    def buffers(self) -> tuple[Ints, Ints]:
        """Where global buffers begin and end: the schema lies in the first."""
        return self._table(self._footer.buffers_at, self._footer.buffers, limit=self._limit)

    def parts(self, columns: list[str], rows: Ints, /) -> tuple[Ints, Ints]:
        """Where the bytes lie that are decoded for rows, in ascending order, of these columns."""
        within = [range(self._footer.columns)] if self._columns is None else [self._columns[name] for name in columns]
        firsts, lasts = self._table(self._footer.offsets_at, self._footer.columns, limit=self._footer.offsets_at)
        starts, stops = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number in (one for numbers in within for one in numbers):
            message = self._end[int(firsts[number]) - self._limit : int(lasts[number]) - self._limit]
            total = self._rows if range(number, number + 1) in within else -1  # else its pages may be of items
            for page in _asked(list(self._pages(message)), rows, total):
                starts.append(page.starts)
                stops.append(page.stops)
        return np.concatenate(starts), np.concatenate(stops)

    def _named(self, schema: pa.Schema) -> Mapping[str, range] | None:
        """Column -> its columns of the file; None where they do not add up, so that all belong to each."""
        count = columns_of if self._footer.version == _FORMAT_2_0 else _leaves_of
        columns, at = {}, 0
        for field in schema:
            columns[field.name] = range(at, at + count(field.type))
            at += count(field.type)
        return columns if at == self._footer.columns else None

    def _table(self, at: int, count: int, *, limit: int) -> tuple[Ints, Ints]:
        pairs = np.frombuffer(self._end, "<u8", 2 * count, at - self._limit).reshape(-1, 2)
        starts, sizes = pairs[:, 0], pairs[:, 1]
        least = 0 if limit == self._limit else self._limit
        if ((starts < least) | (starts > limit) | (sizes > limit - np.minimum(starts, limit))).any():
            raise _no_file(self._location, "a table of its end names places behind it")
        return starts.astype(np.int64), (starts + sizes).astype(np.int64)

    def _pages(self, message: memoryview) -> Iterator[LancePage]:
        """Those of a column's metadata."""
        try:
            for number, value in _fields(message):
                if number == 2 and not isinstance(value, int):
                    yield _page(value, self._limit)
        except (ValueError, OverflowError) as error:
            raise _no_file(self._location, f"what it says of its columns: {error}") from None


def _page(message: memoryview, limit: int) -> LancePage:
    """Fields 1 and 2 of a page are its places, 3 its length, 5 its first row."""
    numbers: dict[int, list[int]] = {1: [], 2: [], 3: [0], 5: [0]}
    for number, held in _fields(message):
        if number in numbers:
            numbers[number] += [held] if isinstance(held, int) else list(_varints(held))
    starts, sizes = np.array(numbers[1], np.uint64), np.array(numbers[2], np.uint64)
    if len(starts) != len(sizes) or (starts > limit).any() or (sizes > limit - starts).any():
        raise ValueError("a page behind its end")
    stops = (starts + sizes).astype(np.int64)
    return LancePage(row=numbers[5][-1], length=numbers[3][-1], starts=starts.astype(np.int64), stops=stops)


def _asked(pages: list[LancePage], rows: Ints, total: int) -> list[LancePage]:
    """Those that hold some of the rows, of `total`; all of them where it is not known which rows they hold."""
    first = np.array([page.row for page in pages], np.int64)
    ends = np.cumsum([page.length for page in pages])
    if ends.size and ends[-1] == total and not first.any():
        first = ends - [page.length for page in pages]
    if (np.diff(first) <= 0).any():
        return pages
    begins = np.searchsorted(rows, first)
    return [page for page, begin, end in zip(pages, begins, [*begins[1:], rows.size], strict=True) if begin != end]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a message of Protocol Buffers."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(message):
            raise ValueError("a field longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varints(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * number)
        if byte < 128:
            return value, at + number + 1
    raise ValueError("a number without an end")


def columns_of(kind: pa.DataType) -> int:
    """How many columns of a file of format 2.0 a column of Arrow becomes: one for the offsets of each list."""
    return 1 + columns_of(kind.value_type) if is_list(kind) and not pa.types.is_fixed_size_list(kind) else 1


def _leaves_of(kind: pa.DataType) -> int:
    """How many columns of a file of a later format it becomes: one for each leaf."""
    if is_list(kind):
        return _leaves_of(kind.value_type)
    if pa.types.is_map(kind):
        return _leaves_of(kind.key_type) + _leaves_of(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(_leaves_of(field.type) for field in kind)
    return 1


def _no_file(location: str, reason: str) -> CorruptFileError:
    return CorruptFileError(
        f"{location} cannot be read: {reason}.",
        path=location,
        hint="It is damaged, or no such file: restore it from a copy, or delete its rows.",
    )

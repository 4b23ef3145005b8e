"""Walks the pages of a column chunk: headers, levels, and where the values begin.

Only what is needed to *prove* where values lie is read here: page headers, and repetition and definition levels.
Values are never decoded. Layouts: `docs/reference/parquet.md`. Headers are structs in Thrift's compact protocol, of
which there is as much here as Parquet's own metadata needs; every read is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # PageType
ROWS = frozenset({DATA, DATA_V2})
"""The kinds of pages that hold rows."""
PLAIN = 0  # Encoding

_HEADER_GUESS = 256  # a header without statistics takes about 30 bytes
_LONGEST_HEADER = 1 << 24  # with statistics of long strings; beyond it is damage
_MOST_LEVELS = 1 << 28  # of one page; a legitimate page has a few million
_BAD = "Expected a Parquet page header at byte {at}, found {found}. The file is damaged: restore or rewrite it."
_HOPS = 128  # runs of levels before those after them are compared with these
_DEEPEST = 12  # structs and lists in each other: Parquet has six


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page; positions count from the start of the bytes that were walked.

    Attributes:
        offset: Where its header begins.
        body: First byte after the header.
        stop: First byte after the page.
        kind: `DATA`, `DICTIONARY`, `DATA_V2`, or another PageType.
        encoding: Of the values; `PLAIN` is 0.
        values: Level entries: values, nulls and empty lists together.
        uncompressed: Bytes of the body after decompression.
        crc: CRC-32 of the body, where the writer gave one.
        levels: Bytes of (repetition, definition) levels of a version 2 page.
    """

    offset: int
    body: int
    stop: int
    kind: int
    encoding: int
    values: int
    uncompressed: int
    crc: int | None
    levels: tuple[int, int] | None

    @property
    def is_data(self) -> bool:
        """Whether it holds rows."""
        return self.kind in ROWS


def read_header(data: memoryview, at: int, /) -> Page:
    """Decode the page header at byte `at`.

    Args:
        data: Bytes that hold the header; the page's body may lie beyond their end.
        at: Where the header begins.

    Raises:
        CorruptFileError: No page header is there.
    """
    size = _HEADER_GUESS
    while True:
        part = bytes(data[at : at + size])
        try:
            fields, length = read_struct(part)
            return _page(fields, at, at + length)
        except IndexError:
            if len(part) < size or size > _LONGEST_HEADER:
                raise CorruptFileError(_BAD.format(at=at, found="bytes that end within it")) from None
            size *= 16
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(_BAD.format(at=at, found=f"other bytes ({error})")) from None


def _page(fields: dict[int, Any], at: int, body: int) -> Page:
    kind, uncompressed, compressed = int(fields[1]), int(fields[2]), int(fields[3])
    details = fields[{DATA: 5, DICTIONARY: 7, DATA_V2: 8}[kind]]
    levels = None
    if kind == DATA_V2:
        levels = (int(details[6]), int(details[5]))
        if min(levels) < 0 or sum(levels) > compressed:
            raise ValueError("levels longer than the page")
    encoding, values = int(details[4 if kind == DATA_V2 else 2]), int(details[1])
    if compressed < 0 or uncompressed < 0 or values < 0:
        raise ValueError("a negative size")
    crc = fields.get(4)
    return Page(
        offset=at,
        body=body,
        stop=body + compressed,
        kind=kind,
        encoding=encoding,
        values=values,
        uncompressed=uncompressed,
        crc=None if crc is None else int(crc) & 0xFFFFFFFF,
        levels=levels,
    )


def walk(data: memoryview, /, *, start: int = 0, values: int) -> Iterator[Page]:
    """The pages of one column chunk, in order.

    Args:
        data: Bytes that hold the chunk whole.
        start: Where its first page begins.
        values: Level entries of the chunk, as the footer or the writer knows them; the walk ends with them.

    Raises:
        CorruptFileError: A page reaches beyond `data`, or the entries do not add up.
    """
    at, left = start, values
    while left > 0:
        page = read_header(data, at)
        if page.stop > len(data) or (page.is_data and page.values > left):
            overrun = f"a page of {page.stop - page.body} bytes and {page.values} values, more than the chunk holds"
            raise CorruptFileError(_BAD.format(at=at, found=overrun))
        yield page
        at = page.stop
        left -= page.values if page.is_data else 0


def values_start(data: memoryview, page: Page, /, *, repeated: bool, optional: bool) -> int:
    """First byte of the values of an uncompressed data page.

    Args:
        data: Bytes that hold the page's levels.
        page: A data page.
        repeated: Whether the column has repetition levels.
        optional: Whether it has definition levels.

    Raises:
        CorruptFileError: The levels are longer than the page.
    """
    if page.levels is not None:
        return page.body + sum(page.levels)
    at = page.body
    for _ in range(int(repeated) + int(optional)):
        length = bytes(data[at : at + 4])
        at += 4 + int.from_bytes(length, "little")
        if len(length) < 4 or at > page.stop:
            raise CorruptFileError(_BAD.format(at=page.offset, found="levels longer than their page"))
    return at


def read_levels(
    data: memoryview, page: Page, /, *, deepest_repetition: int, deepest_definition: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Repetition and definition levels of one data page whose levels are not compressed.

    Returns:
        Two arrays of `page.values` entries; zeros where the column has no such levels.

    Raises:
        CorruptFileError: The levels do not hold as many entries as the header says.
    """
    if page.values > _MOST_LEVELS:
        raise CorruptFileError(_BAD.format(at=page.offset, found=f"a page of {page.values} values"))
    at, decoded = page.body, []
    for which, deepest in enumerate((deepest_repetition, deepest_definition)):
        if page.levels is not None:
            length = page.levels[which]
        elif deepest:
            length = int.from_bytes(data[at : at + 4], "little")
            at += 4
        else:
            length = 0
        if at + length > page.stop:
            raise CorruptFileError(_BAD.format(at=page.offset, found="levels longer than their page"))
        decoded.append(decode_levels(bytes(data[at : at + length]), deepest=deepest, count=page.values))
        at += length
    return decoded[0], decoded[1]


def decode_levels(data: bytes, /, *, deepest: int, count: int) -> NDArray[np.uint8]:
    """Decode the RLE and bit-packing hybrid that holds levels.

    Args:
        data: The runs.
        deepest: The largest level, which gives the bit width; at most 255.
        count: How many levels are wanted.

    Raises:
        CorruptFileError: The runs end before, or hold a level above `deepest`.
    """
    if deepest == 0:
        return np.zeros(count, np.uint8)
    width = deepest.bit_length()
    starts, heads, bodies = _runs(data, width)
    packed = (heads & 1).astype(np.bool_)
    counts = np.minimum(heads >> 1, count) * np.where(packed, 8, 1)  # clipped, so that no sum overflows
    ends = np.cumsum(counts)
    used = int(np.searchsorted(ends, count)) + 1 if count else 0
    if used > starts.size or (bodies[:used] >= len(data)).any():
        held = int(ends[-1]) if ends.size else 0
        raise CorruptFileError(f"Expected {count} levels in a page, found {min(held, count)}. The file is damaged.")
    packed, counts, bodies, heads = packed[:used], counts[:used], bodies[:used], heads[:used]
    if used:
        counts[-1] -= int(ends[used - 1]) - count
    buffer = np.frombuffer(data, np.uint8)
    levels = np.repeat(np.where(packed, 0, buffer[bodies]).astype(np.uint8), counts)
    if packed.any():
        inside = np.zeros(len(data) + 1, np.int8)
        inside[bodies[packed]] = 1
        inside[np.minimum(bodies[packed] + (heads[packed] >> 1) * width, len(data))] -= 1
        unpacked = _unpacked(buffer[np.cumsum(inside[:-1], dtype=np.int8).astype(np.bool_)], width)
        wanted = int(counts[packed].sum())
        if unpacked.size < wanted:
            raise CorruptFileError(f"Expected {count} levels in a page, found fewer. The file is damaged.")
        levels[np.repeat(packed, counts)] = unpacked[:wanted]
    if levels.size and int(levels.max()) > deepest:
        raise CorruptFileError(f"Expected levels up to {deepest} in a page, found {levels.max()}. The file is damaged.")
    return levels


def _runs(data: bytes, width: int) -> tuple[Ints, Ints, Ints]:
    """[runs] where each begins, its header, and where its levels begin.

    A page may have some runs for every step: those of steps of one width repeat, and are taken all at once.
    """
    hops = [0 if head >= 0x80 else 1 + (head >> 1) * width if head & 1 else 2 for head in range(256)]
    parts = []
    at, more = 0, True
    while more:
        part, at, more = _hopped(data, at, hops, width)
        parts.append(part)
        if more and (repeated := _repeated(data, part, at)) is not None:
            part, at = repeated
            parts.append(part)
            more = at < len(data)
    starts, heads, bodies = (np.concatenate(each) for each in zip(*parts, strict=True))
    return starts, heads, bodies


def _hopped(data: bytes, at: int, hops: list[int], width: int) -> tuple[tuple[Ints, Ints, Ints], int, bool]:
    """Some runs from `at` on by hops from header to header, as `_runs` gives them; their end; whether more follow."""
    starts: list[int] = []
    long: list[tuple[int, int, int]] = []  # headers of more than one byte
    end, whole = len(data), True
    while at < end and len(starts) < _HOPS:
        starts.append(at)
        hop = hops[data[at]]
        if hop:
            at += hop
            continue
        try:
            head, body = read_varint(data, at)
        except (IndexError, ValueError):
            starts.pop()
            whole = False
            break
        long.append((len(starts) - 1, head, body))
        at = body + (min(head >> 1, end) * width if head & 1 else 1)
    places = np.array(starts, np.int64)
    heads, bodies = np.frombuffer(data, np.uint8)[places].astype(np.int64), places + 1
    for run, head, body in long:
        heads[run], bodies[run] = min(head, _MOST_LEVELS * 2 + (head & 1)), body
    return (places, heads, bodies), at, whole and at < end


def _repeated(data: bytes, runs: tuple[Ints, Ints, Ints], at: int) -> tuple[tuple[Ints, Ints, Ints], int] | None:
    """The runs from `at` on whose bytes repeat those of the last runs before it, and where they end; None of none.

    From where one run begins, the same bytes are the same runs.
    """
    starts = runs[0]
    half = int(starts[len(starts) // 2])
    before = data.rfind(data[half:at], int(starts[0]), at - 1)
    period = half - before
    if before < 0 or at - period not in starts:
        return None
    buffer = np.frombuffer(data, np.uint8)
    alike, size = 0, 4096
    while at + alike < len(data):
        later = buffer[at + alike : at + alike + size]
        differ = np.flatnonzero(later != buffer[at + alike - period :][: len(later)])
        alike += int(differ[0]) if len(differ) else len(later)
        if len(differ):
            break
        size *= 4
    count = alike // period
    if not count:
        return None
    last = slice(int(np.searchsorted(starts, at - period)), None)
    moved = np.arange(1, count + 1)[:, None] * period
    places, heads, bodies = (each[last] for each in runs)
    return ((places + moved).ravel(), np.tile(heads, count), (bodies + moved).ravel()), at + count * period


def _unpacked(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Levels of `width` bits each."""
    bits = np.unpackbits(packed, bitorder="little")
    rows = bits[: bits.size // width * width].reshape(-1, width)
    levels: NDArray[np.uint8] = rows[:, 0].copy()
    for place in range(1, width):
        levels |= rows[:, place] << place
    return levels


def read_struct(data: bytes, /) -> tuple[dict[int, Any], int]:
    """Decode the struct at the start of `data`.

    Returns:
        Field number -> value (strings and doubles as None: nobody here needs them), and the struct's bytes.
    """
    return _struct(data, 0, 0)


def read_varint(data: bytes, at: int, /) -> tuple[int, int]:
    """The variable-length integer at `at`, and where the next byte is."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an integer too long")


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEEPEST:
        raise ValueError("structs too deep")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            zigzag, at = read_varint(data, at)
            number = (zigzag >> 1) ^ -(zigzag & 1)
        kind = head & 0x0F
        if kind in {1, 2}:  # a boolean lies in the field's head
            fields[number] = kind == 1
        else:
            fields[number], at = _value(data, at, kind, depth)


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in {4, 5, 6}:  # i16, i32, i64
        zigzag, at = read_varint(data, at)
        return (zigzag >> 1) ^ -(zigzag & 1), at
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind in {1, 2, 3}:  # a byte, or a boolean inside a container
        return data[at], at + 1
    if kind in {7, 8}:  # double, binary: the bytes themselves are never needed
        length, at = (8, at) if kind == 7 else read_varint(data, at)
        if at + length > len(data):
            raise IndexError
        return None, at + length
    if kind in {9, 10}:
        return _elements(data, at, depth)
    raise ValueError(f"a field of type {kind}")


def _elements(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > _DEEPEST:
        raise ValueError("lists too deep")
    head = data[at]
    at += 1
    size = head >> 4
    if size == 15:
        size, at = read_varint(data, at)
    elements = []
    for _ in range(size):
        value, at = _value(data, at, head & 0x0F, depth + 1)
        elements.append(value)
    return elements, at

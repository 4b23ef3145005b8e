"""Parquet files put together by hand: small ones that say much, as no writer would make them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

INT32, BYTE_ARRAY, REQUIRED, OPTIONAL, REPEATED = 1, 6, 0, 1, 2
PLAIN, RLE, DELTA_LENGTH, DELTA_BYTE_ARRAY, CODES = 0, 3, 6, 7, 8
ZSTD = 6


class Long(int):
    """A Thrift i64; a plain int is an i32."""


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


def thrift(value: Any) -> tuple[int, bytes]:
    """(type, bytes) of a value in Thrift's compact protocol; a struct is a dict by field number."""
    if isinstance(value, dict):
        made, last = b"", 0
        for number, held in value.items():
            kind, data = thrift(held)
            made, last = made + bytes([(number - last) << 4 | kind]) + data, number
        return 12, made + b"\0"
    if isinstance(value, list):
        kinds, parts = zip(*map(thrift, value), strict=True)
        head = bytes([len(value) << 4 | kinds[0]]) if len(value) < 15 else bytes([0xF0 | kinds[0]]) + varint(len(value))
        return 9, head + b"".join(parts)
    if isinstance(value, int):
        return 6 if isinstance(value, Long) else 5, varint(value << 1)
    return 8, varint(len(value)) + value


def zeros(count: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """A zstd frame of so many zero bytes, 32 000 times as long as itself."""
    full, rest = divmod(count, 1 << 17)
    blocks = [(before, 0)] + [(b"\0", 1)] * full + [(b"\0", 1)] * bool(rest) + [(after, 0)]
    sizes = [len(before)] + [1 << 17] * full + [rest] * bool(rest) + [len(after)]
    made = b"\x28\xb5\x2f\xfd\x80\x38" + struct.pack("<I", count + len(before) + len(after))
    for number, ((data, kind), size) in enumerate(zip(blocks, sizes, strict=True)):
        last = number == len(blocks) - 1
        made += (size << 3 | kind << 1 | last).to_bytes(3, "little") + data
    return made


def run(value: int, count: int, *, width: int = 1) -> bytes:
    """One run of the RLE hybrid."""
    return varint(count << 1) + value.to_bytes((width + 7) // 8, "little")


def levels(value: int, count: int) -> bytes:
    """Levels of a version 1 page that are all the same."""
    made = run(value, count)
    return struct.pack("<I", len(made)) + made


def deltas(values: list[int]) -> bytes:
    """Whole numbers as DELTA_BINARY_PACKED: blocks of 128 in four parts, each with a width of its own."""
    made = varint(128) + varint(4) + varint(len(values)) + varint(values[0] << 1)
    steps = [after - before for before, after in pairwise(values)]
    for first in range(0, len(steps), 128):
        block = steps[first : first + 128]
        least = min(block)
        parts = [[one - least for one in block[at : at + 32]] for at in range(0, 128, 32)]
        widths = [max((one.bit_length() for one in part), default=0) for part in parts]
        made += varint(least << 1 if least >= 0 else (-least << 1) - 1) + bytes(widths)
        for part, width in zip(parts, widths, strict=True):
            packed = sum(one << (number * width) for number, one in enumerate(part))
            made += packed.to_bytes(4 * width, "little") if part else b""
    return made


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page: its bytes as stored, and what its header says."""

    data: bytes
    size: int
    values: int
    encoding: int = PLAIN
    dictionary: bool = False

    def whole(self) -> bytes:
        details = {1: self.values, 2: self.encoding, 3: RLE, 4: RLE}
        kind = {7: {1: self.values, 2: PLAIN}} if self.dictionary else {5: details}
        return thrift({1: 2 if self.dictionary else 0, 2: self.size, 3: len(self.data), **kind})[1] + self.data


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of one row group."""

    name: str
    pages: tuple[Page, ...]
    kind: int = BYTE_ARRAY
    text: bool = True
    listed: bool = False
    codec: int = ZSTD
    need: int = REQUIRED

    def schema(self, field: int | None) -> list[dict[int, Any]]:
        leaf = {1: self.kind, 3: self.need, 4: b"element" if self.listed else self.name.encode()}
        leaf |= {6: 0} if self.text else {}  # UTF8
        if not self.listed:
            return [leaf if field is None else {**leaf, 9: field}]
        outer = {3: REQUIRED, 4: self.name.encode(), 5: 1, 6: 3}  # LIST
        return [outer, {3: REPEATED, 4: b"list", 5: 1}, leaf]


def parquet(rows: int, *columns: Column, size: int = 0, fields: Sequence[int] = ()) -> bytes:
    """A file of one row group; with bytes that nobody reads before the footer, up to a size.

    Args:
        rows: How many.
        columns: As they are stored.
        size: Bytes of the file, at least.
        fields: Field ids of its first columns, by which lakes find them.
    """
    data, chunks = b"PAR1", []
    for column in columns:
        parts = [page.whole() for page in column.pages]
        path = [column.name.encode(), b"list", b"element"] if column.listed else [column.name.encode()]
        first = len(parts[0]) if column.pages[0].dictionary else 0
        facts = {1: column.kind, 2: [PLAIN, RLE, CODES], 3: path, 4: column.codec}
        facts |= {5: Long(sum(page.values for page in column.pages if not page.dictionary))}
        facts |= {6: Long(sum(map(len, parts))), 7: Long(sum(map(len, parts))), 9: Long(len(data) + first)}
        facts |= {11: Long(len(data))} if first else {}
        chunks.append({2: Long(0), 3: facts})
        data += b"".join(parts)
    numbered = zip_longest(columns, fields)
    schema = [{4: b"schema", 5: len(columns)}, *(one for column, field in numbered for one in column.schema(field))]
    group = {1: chunks, 2: Long(len(data)), 3: Long(rows)}
    footer = thrift({1: 1, 2: schema, 3: Long(rows), 4: [group]})[1]
    data += bytes(max(0, size - len(data) - len(footer) - 8))
    return data + footer + struct.pack("<I", len(footer)) + b"PAR1"


def ids(rows: int) -> Column:
    """Their names: `ep_0` and so on, up to a thousand of them in turn."""
    import pyarrow as pa

    texts = [f"ep_{number}".encode() for number in range(rows)]
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    packed = pa.Codec("zstd").compress(data, asbytes=True)
    return Column(name="sequence_id", pages=(Page(data=packed, size=len(data), values=rows),))


def actions(rows: int) -> Column:
    """A list of two numbers in every row."""
    made = struct.pack("<I", 4 * rows) + b"".join(run(0, 1) + run(1, 1) for _ in range(rows))
    data = made + struct.pack("<I", len(run(1, 2 * rows))) + run(1, 2 * rows) + bytes(8 * rows)
    page = Page(data=data, size=len(data), values=2 * rows)
    return Column(name="action", pages=(page,), kind=INT32, text=False, listed=True, codec=0)


def named(value: int, rows: int, *, times: int = 0) -> Column:
    """One dictionary value of so many bytes, in every row; `times` in a list of every row."""
    frame = zeros(value, before=struct.pack("<I", value))
    codes = bytes([1]) + run(0, rows * max(times, 1))
    if times:
        repeated = b"".join(run(0, 1) + run(1, times - 1) for _ in range(rows))
        codes = struct.pack("<I", len(repeated)) + repeated + levels(1, rows * times) + codes
    stored = pack(codes)
    return Column(
        name="task",
        listed=bool(times),
        pages=(
            Page(data=frame, size=value + 4, values=1, dictionary=True),
            Page(data=stored, size=len(codes), values=rows * max(times, 1), encoding=CODES),
        ),
    )


def shared(value: int, rows: int) -> Column:
    """A value of so many bytes in the first row, which every other one repeats as its prefix."""
    lengths = deltas([0] + [value] * (rows - 1)) + deltas([value] + [0] * (rows - 1))
    frame = zeros(value, before=lengths)
    page = Page(data=frame, size=value + len(lengths), values=rows, encoding=DELTA_BYTE_ARRAY)
    return Column(name="task", pages=(page,))


def lengthy(value: int, rows: int) -> Column:
    """Values of so many bytes, with their lengths in front of all of them."""
    lengths = deltas([value] * rows)
    frame = zeros(value * rows, before=lengths)
    page = Page(data=frame, size=value * rows + len(lengths), values=rows, encoding=DELTA_LENGTH)
    return Column(name="task", pages=(page,))


def nothing(rows: int) -> Column:
    """Nulls, in one run."""
    data = pack(levels(0, rows))
    return Column(name="task", pages=(Page(data=data, size=len(levels(0, rows)), values=rows),), need=OPTIONAL)


def alike(name: str, value: bytes, rows: int) -> Column:
    """The same few bytes in every row."""
    entry, codes = struct.pack("<I", len(value)) + value, bytes([1]) + run(0, rows)
    return Column(
        name=name,
        pages=(
            Page(data=pack(entry), size=len(entry), values=1, dictionary=True),
            Page(data=pack(codes), size=len(codes), values=rows, encoding=CODES),
        ),
    )


def pack(data: bytes) -> bytes:
    import pyarrow as pa

    return pa.Codec("zstd").compress(data, asbytes=True)


def unpacking(size: int, *, honest: bool = True) -> Column:
    """One value that unpacks to so many bytes, or whose header says so."""
    frame = zeros(size - 4, before=struct.pack("<I", size - 4)) if honest else pack(b"\0\0\0\0")
    return Column(name="task", pages=(Page(data=frame, size=size, values=1),))


BOMBS = {
    "a dictionary value in many rows": lambda: (named(50 << 20, 100_000), 100_000),
    "a dictionary value in a thousand rows": lambda: (named(50 << 20, 1000), 1000),
    "a dictionary value a thousand times in a row": lambda: (named(20 << 20, 4, times=1000), 4),
    "a prefix of many rows": lambda: (shared(1 << 20, 100_000), 100_000),
    "lengths before a page": lambda: (lengthy(1 << 20, 2000), 2000),
    "nulls in many rows": lambda: (nothing(167_000_000), 167_000_000),
    "a word in many rows": lambda: (alike("task", b"pick", 167_000_000), 167_000_000),
    "a page of two gigabytes": lambda: (unpacking((1 << 31) - 8), 1),
    "a header of two gigabytes": lambda: (unpacking((1 << 31) - 8, honest=False), 1),
}


def bomb(name: str, *, size: int = 0, fields: Sequence[int] = ()) -> bytes:
    """A file of ids, tasks and actions, whose tasks are more than they seem."""
    column, rows = BOMBS[name]()
    if rows > 1_000_000:
        return parquet(rows, alike("sequence_id", b"ep_0", rows), column, size=size, fields=fields)
    return parquet(rows, ids(rows), column, actions(rows), size=size, fields=fields)

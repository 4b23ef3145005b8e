"""TFRecord framing: where the records of a file lie, and their checksums.

A record is `length: uint64`, `crc of the length: uint32`, the bytes, `crc of the bytes: uint32`, all little-endian,
the CRCs in TFRecord's masked form. There is no header, no count and no end mark.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Blob

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
FRAME = _HEAD.size + _FOOT.size
_AHEAD = 8 << 20  # bytes fetched at once where a file can only be read by ranges
_POLYNOMIAL = 0x82F63B78  # P without its highest term, lowest bit first, as the checksum is defined
_HIGH, _MIDDLE, _LOW = 5685, 1362, 426  # x^HIGH + x^MIDDLE + x^LOW + 1 is a multiple of P
_LARGEST_SCALE = 64  # blocks of about 280 kB, which stay in a processor's cache
_SMALL = 32  # bytes; below it a plain loop is faster


@dataclass(frozen=True, slots=True, kw_only=True)
class TfRecord:
    """One record of a file.

    Attributes:
        start: Byte of the file at which its content begins.
        data: The content.
        crc: The masked checksum stored behind it.
    """

    start: int
    data: memoryview
    crc: int

    @property
    def sound(self) -> bool:
        """Whether the content has its checksum."""
        return masked(crc32c(self.data)) == self.crc


class BytesAhead:
    """The bytes of a blob in order: its view, or a window that is fetched ahead."""

    def __init__(self, blob: Blob, /) -> None:
        self._blob = blob
        self._view = blob.view()
        self._from = 0
        self._held = memoryview(b"")

    def read(self, start: int, stop: int, /) -> memoryview:
        """The bytes `start` to `stop`; both lie inside the file."""
        if self._view is not None:
            return self._view[start:stop]
        if not (self._from <= start and stop <= self._from + len(self._held)):
            ahead = max(stop, min(start + _AHEAD, self._blob.size))
            [self._held] = self._blob.ranges(np.array([start], np.int64), np.array([ahead], np.int64))
            self._from = start
        return self._held[start - self._from : stop - self._from]


def records(blob: Blob, /) -> Iterator[TfRecord]:
    """The records of a file in order; the checksums of the contents are left to the caller.

    Args:
        blob: A TFRecord file without compression.

    Raises:
        CorruptFileError: A length does not have its checksum or reaches behind the end of the file; the message
            names the file, the record and the byte. Records before it were given out.
    """
    source, at, count = BytesAhead(blob), 0, 0
    while at < blob.size:
        place = f"Record {count} of {blob.location} (byte {at})"
        if blob.size - at < FRAME:
            raise CorruptFileError(
                f"{place} is cut off: {blob.size - at} bytes are left, a record has at least {FRAME}.",
                path=blob.location,
                hint="Fetch the file again.",
            )
        head = source.read(at, at + _HEAD.size)
        length, crc = _HEAD.unpack(head)
        if masked(crc32c(head[:8])) != crc:
            raise CorruptFileError(
                f"{place} has a length that does not match its checksum.",
                path=blob.location,
                hint=_compressed(head) or "The file is damaged from there on: fetch it again.",
            )
        start = at + _HEAD.size
        if length > blob.size - at - FRAME:
            raise CorruptFileError(
                f"{place} says that it has {length} bytes, but the file ends after {blob.size - start}.",
                path=blob.location,
                hint="Fetch the file again.",
            )
        whole = source.read(start, start + length + _FOOT.size)
        yield TfRecord(start=start, data=whole[:length], crc=_FOOT.unpack(whole[length:])[0])
        at, count = start + length + _FOOT.size, count + 1


def _compressed(head: memoryview) -> str:
    known = {b"\x1f\x8b": "gzip", b"\x78\x01": "zlib", b"\x78\x9c": "zlib", b"\x78\xda": "zlib"}
    name = known.get(bytes(head[:2]))
    return f"It looks compressed with {name}: decompress it first." if name else ""


def crc32c(data: bytes | memoryview, /) -> int:
    """The CRC-32C (Castagnoli) of some bytes, as RFC 3720 defines it.

    A CRC is the remainder of the message, read as a polynomial over GF(2), after division by P. Any multiple of P
    may be added without changing it. `x^5685 + x^1362 + x^426 + 1` is such a multiple, found by search (P itself
    divides by x + 1, so four is the least number of terms). Squaring keeps a multiple a multiple and doubles every
    exponent, so the same relation holds with the exponents counted in bytes, and with those times any power of two:
    a byte that stands `5685 s` bytes before some place may be taken away and XORed into the bytes `1362 s`, `426 s`
    and 0 before it. Whole blocks are folded that way until 5685 bytes are left; those are summed bit by bit from a
    table of remainders.

    Args:
        data: Contiguous bytes, any number of them.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    if len(data) < _SMALL:
        return _small(data)
    left = _fold(np.frombuffer(data, np.uint8))
    bits = np.unpackbits(left, bitorder="little").view(np.bool_)
    # Bit i of the message, counted from its end, adds the remainder of x^(32 + i).
    remainders = _remainders()[-bits.size :]
    return int(np.bitwise_xor.reduce(np.where(bits, remainders, np.uint32(0)))) ^ 0xFFFFFFFF


def masked(crc: int, /) -> int:
    """The form in which TFRecord stores a CRC: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _fold(message: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The last 5685 bytes (or fewer) of an equivalent message; the initial value is worked in."""
    left = message.copy()
    left[:4] ^= 0xFF  # the register starts with all ones, which is the same as inverting the first four bytes
    scale = 1
    while scale < _LARGEST_SCALE and left.size > 2 * scale * _HIGH:
        scale *= 2
    while scale:
        high, middle, low = scale * _HIGH, scale * _MIDDLE, scale * _LOW
        while left.size > high:
            block = min(high - middle, left.size - high)
            front, rest = left[:block], left[block:]
            for down in (high - middle, high - low, high):
                # The block never overlaps its targets, since it is no longer than the shortest step.
                rest[down - block : down] ^= front
            left = rest
        scale //= 2
    return left


@cache
def _remainders() -> NDArray[np.uint32]:
    """[8 * 5685] the remainder of x^(32 + i), the last entry for i = 0: 182 kB, made in a few milliseconds."""
    values = np.empty(8 * _HIGH, np.uint32)
    value = 0x80000000  # lowest bit first, so this is x^0
    for _ in range(32):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    for at in range(values.size - 1, -1, -1):
        values[at] = value
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return values


@cache
def _bytes_table() -> tuple[int, ...]:
    """The 256 remainders of one byte."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _small(data: bytes | memoryview) -> int:
    table, value = _bytes_table(), 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF

"""TFRecord framing: where the records of a file lie, and their checksums.

A record is `length: uint64`, `crc of the length: uint32`, the bytes, `crc of the bytes: uint32`, all little-endian,
the CRCs in TFRecord's masked form. There is no header, no count and no end mark.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Blob

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
FRAME = _HEAD.size + _FOOT.size
_AHEAD = 8 << 20  # bytes fetched at once where a file can only be read by ranges
_PART = 1 << 20  # bytes that are copied at once


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

    Args:
        data: Contiguous bytes, any number of them.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    value = 0
    for start in range(0, len(data), _PART):
        value = google_crc32c.extend(value, bytes(data[start : start + _PART]))  # which takes nothing but bytes
    return value


def masked(crc: int, /) -> int:
    """The form in which TFRecord stores a CRC: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes, /) -> bytes:
    """One record as a file holds it, with both checksums.

    Example:
        >>> len(framed(b"abc")) - 3
        16
    """
    head = len(data).to_bytes(8, "little")
    return head + _FOOT.pack(masked(crc32c(head))) + data + _FOOT.pack(masked(crc32c(data)))

"""Checksums inside packets of FFV1 and Flash Screen Video: FFmpeg only logs one that fails, and shows something else.

That is an older picture (FFV1, RFC 9043), or what the decoder's memory held (Flash Screen Video).
"""

from __future__ import annotations

import zlib

_LENGTH, _CHECKED = 3, 8  # bytes behind a slice: its length; the same, a status and a checksum
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL = 0xFFFFFFFF
_SEEDS = (
    0,
    0x5E31029E,
)  # of the register at first, and again behind the checksum: RFC 9043; FFmpeg's `slicecrc=2`
_HEADER = 4  # width and height of blocks and of the picture


def ffv1_is_whole(packet: bytes, /) -> bool:
    """Whether no checksum of a picture's slices fails; True where it has none."""
    slices = _slices(packet, _CHECKED)
    if not slices or _slices(packet, _LENGTH):
        return True
    registers = [[_register(packet[a:b], seed) == seed for seed in _SEEDS] for a, b in slices]
    return any(all(column) for column in zip(*registers, strict=True))


def _slices(packet: bytes, trailer: int) -> list[tuple[int, int]]:
    """(start, stop) of slices, each of whose lengths stands behind it; empty where they do not fill the packet."""
    spans, stop = [], len(packet)
    while stop >= trailer:
        place = stop - trailer
        start = place - int.from_bytes(packet[place : place + 3], "big")
        if start < 0:
            return []
        spans.append((start, stop))
        stop = start
    return [] if stop else spans


def _register(data: bytes, seed: int) -> int:
    """CRC-32 of the polynomial 0x04C11DB7 with the highest bit first, its register read the other way round."""
    return zlib.crc32(data.translate(_REVERSED), seed ^ _ALL) ^ _ALL


def flashsv_is_whole(packet: bytes, /) -> bool:
    """Whether every block of a picture is whole: each that changed is a zlib stream, which ends with an Adler-32."""
    if len(packet) < _HEADER:
        return False
    (across, width), (down, height) = _size(packet[:2]), _size(packet[2:4])
    place = _HEADER
    for _ in range(-(-width // across) * -(-height // down)):
        start = place + 2
        place = start + int.from_bytes(packet[place:start], "big")
        if place > len(packet) or (place > start and not _inflates(packet[start:place], 3 * across * down)):
            return False
    return True


def _size(pair: bytes) -> tuple[int, int]:
    """Of a block and of the picture, in 4 and 12 bits."""
    both = int.from_bytes(pair, "big")
    return 16 * ((both >> 12) + 1), both & 0xFFF


def _inflates(data: bytes, most: int) -> bool:
    """Whether it is one zlib stream of at most so many bytes."""
    stream = zlib.decompressobj()
    try:
        stream.decompress(data, most + 1)
    except zlib.error:
        return False
    return stream.eof

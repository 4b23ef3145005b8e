"""The checksums of Flash Screen Video: FFmpeg only logs one that fails, and shows what the decoder's memory held."""

from __future__ import annotations

import zlib

_HEADER = 4  # width and height of blocks and of the picture


def is_whole(packet: bytes, /) -> bool:
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

"""The checksums of FFV1 (RFC 9043): FFmpeg only logs one that fails, and shows an older picture in its place."""

from __future__ import annotations

import zlib

_LENGTH, _CHECKED = 3, 8  # bytes behind a slice: its length; the same, a status and a checksum
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL = 0xFFFFFFFF
_SEEDS = (
    0,
    0x5E31029E,
)  # of the register at first, and again behind the checksum: RFC 9043; FFmpeg's `slicecrc=2`


def is_whole(packet: bytes, /) -> bool:
    """Whether no checksum of a picture's slices fails; True where it has none."""
    slices = _slices(packet, _CHECKED)
    if not slices or _slices(packet, _LENGTH):
        return True
    registers = [[_register(packet[a:b], seed) == seed for seed in _SEEDS] for a, b in slices]
    return any(all(column) for column in zip(*registers, strict=True))


def _slices(packet: bytes, trailer: int) -> list[tuple[int, int]]:
    """(start, stop) of slices, each of whose lengths stands behind it; empty where they do not fill the packet."""
    found, stop = [], len(packet)
    while stop >= trailer:
        place = stop - trailer
        start = place - int.from_bytes(packet[place : place + 3], "big")
        if start < 0:
            return []
        found.append((start, stop))
        stop = start
    return [] if stop else found


def _register(data: bytes, seed: int) -> int:
    """CRC-32 of the polynomial 0x04C11DB7 with the highest bit first, its register read the other way round."""
    return zlib.crc32(data.translate(_REVERSED), seed ^ _ALL) ^ _ALL

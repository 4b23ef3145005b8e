"""CRC-32C (Castagnoli) at the speed of numpy's XOR.

A CRC is the remainder of the message, read as a polynomial over GF(2), after division by P. Any multiple of P may
be added without changing it. `x^5685 + x^1362 + x^426 + 1` is such a multiple, found by search (P itself divides
by x + 1, so four is the least number of terms). Squaring keeps a multiple a multiple and doubles every exponent, so
the same relation holds with the exponents counted in bytes, and with those times any power of two: a byte that
stands `5685 s` bytes before some place may be taken away and XORed into the bytes `1362 s`, `426 s` and 0 before it.
Whole blocks are folded that way until 5685 bytes are left; those are summed bit by bit from a table of remainders.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # P without its highest term, lowest bit first, as the checksum is defined
_HIGH, _MIDDLE, _LOW = 5685, 1362, 426  # x^HIGH + x^MIDDLE + x^LOW + 1 is a multiple of P
_LARGEST_SCALE = 64  # blocks of about 280 kB, which stay in a processor's cache
_SMALL = 32  # bytes; below it a plain loop is faster


def crc32c(data: bytes | memoryview, /) -> int:
    """The CRC-32C of some bytes, as RFC 3720 defines it.

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

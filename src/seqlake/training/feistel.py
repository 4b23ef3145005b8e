"""Keyed permutations of 0 .. m-1 that need no table: balanced Feistel rounds with cycle walking.

Every function here is part of the sample order and is frozen by `ORDER_VERSION`: other constants would be
another order, and a saved loader state would resume somewhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Words: TypeAlias = "NDArray[np.uint32]"
Key: TypeAlias = "NDArray[np.uint32] | np.uint32"

ROUNDS = 4
_MASK = 0xFFFFFFFF
_FIRST, _SECOND = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_STEP = 0x61C88647  # the key of round r is key + r * _STEP
_MIN_BITS = 4  # below that, four rounds over halves of one bit would not mix


def bits_of(m: int) -> int:
    """Bits of the smallest domain of the rounds that holds 0 .. m-1."""
    return max(_MIN_BITS, (m - 1).bit_length())


def mix(words: Words, key: Key) -> Words:
    """32 well-mixed bits of each word under a key."""
    mixed = words * _FIRST
    mixed += key
    mixed ^= mixed >> np.uint32(16)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint32(15)
    return mixed


def _round_key(key: Key, number: int) -> Key:
    if isinstance(key, np.ndarray):
        return key + np.uint32(number * _STEP & _MASK)
    return np.uint32((int(key) + number * _STEP) & _MASK)


def _rounds(values: NDArray[np.int64], bits: int, key: Key, *, backwards: bool) -> NDArray[np.int64]:
    """One pass of the rounds over 0 .. 2**bits - 1, or of their inverse."""
    low_bits = bits // 2
    high_shift, low_shift = np.uint32(32 - (bits - low_bits)), np.uint32(32 - low_bits)
    high = (values >> low_bits).astype(np.uint32)
    low = (values & ((1 << low_bits) - 1)).astype(np.uint32)
    for number in range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS):
        if number % 2 == 0:
            high ^= mix(low, _round_key(key, number)) >> high_shift
        else:
            low ^= mix(high, _round_key(key, number)) >> low_shift
    result = high.astype(np.int64)
    result <<= low_bits
    result |= low
    return result


def permute(values: NDArray[np.int64], m: int, key: Key, *, backwards: bool = False) -> NDArray[np.int64]:
    """A permutation of 0 .. m-1, chosen by the key, applied to each value.

    The rounds permute a power of two; a value that lands at or above m is sent through them again until it does
    not, which keeps the map one to one and needs less than two passes on average.

    Args:
        values: [n], each in 0 .. m-1.
        m: Length of the domain, at most 2**62.
        key: One key, or one for each value.
        backwards: The inverse map.
    """
    if m <= 1:
        return values.copy()
    bits = bits_of(m)
    result = _rounds(values, bits, key, backwards=backwards)
    outside = np.flatnonzero(result >= m)
    while len(outside):
        keys = key[outside] if isinstance(key, np.ndarray) else key
        again = _rounds(result[outside], bits, keys, backwards=backwards)
        result[outside] = again
        outside = outside[again >= m]
    return result

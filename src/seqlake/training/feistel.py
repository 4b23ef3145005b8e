"""Keyed permutations of 0 .. m-1 that need no table: Feistel rounds over two digits, with cycle walking.

Every function here is part of the sample order and is frozen by `ORDER_VERSION`: other constants would be
another order, and a saved loader state would resume somewhere else.
"""

from __future__ import annotations

from math import isqrt
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
_LEAST = 4  # values of a digit: four rounds over smaller ones would not mix


def digits_of(m: int) -> tuple[int, int]:
    """Values of the high and of the low digit, near the root of m, so that hardly a number is outside 0 .. m-1."""
    high = max(_LEAST, isqrt(m - 1) + 1)
    return high, max(_LEAST, -(-m // high))


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


def _below(words: Words, key: Key, size: int) -> Words:
    """A number below `size` for each word, from the well-mixed upper bits of a hash under the key."""
    mixed = words * _FIRST
    mixed += key
    mixed ^= mixed >> np.uint32(16)
    mixed *= _SECOND
    if size > 1 << 16:
        return ((mixed.astype(np.uint64) * np.uint64(size)) >> np.uint64(32)).astype(np.uint32)
    mixed >>= np.uint32(16)
    mixed *= np.uint32(size)
    mixed >>= np.uint32(16)
    return mixed


def _rounds(values: NDArray[np.int64], sizes: tuple[int, int], key: Key, *, backwards: bool) -> NDArray[np.int64]:
    """One pass of the rounds over all pairs of digits, or of their inverse."""
    tall, wide = (np.uint32(size) for size in sizes)
    high = values // sizes[1]
    digits = [high.astype(np.uint32), (values - high * sizes[1]).astype(np.uint32)]
    for number in range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS):
        own, size = number % 2, (tall, wide)[number % 2]
        offset = _below(digits[1 - own], _round_key(key, number), int(size))
        # Addition modulo the digit's size: of the two candidates, the one that wrapped around is the larger.
        if backwards:
            digits[own] -= offset
            digits[own] = np.minimum(digits[own], digits[own] + size)
        else:
            digits[own] += offset
            digits[own] = np.minimum(digits[own], digits[own] - size)
    result = digits[0].astype(np.int64)
    result *= sizes[1]
    result += digits[1]
    return result


def permute(values: NDArray[np.int64], m: int, key: Key, *, backwards: bool = False) -> NDArray[np.int64]:
    """A permutation of 0 .. m-1, chosen by the key, applied to each value.

    The rounds permute all pairs of digits, a few more than m; a value that lands at or above m is sent through them
    again until it does not, which keeps the map one to one.

    Args:
        values: [n], each in 0 .. m-1.
        m: Length of the domain, at most 2**62.
        key: One key, or one for each value.
        backwards: The inverse map.
    """
    if m <= 1:
        return values.copy()
    sizes = digits_of(m)
    result = _rounds(values, sizes, key, backwards=backwards)
    outside = np.flatnonzero(result >= m)
    while len(outside):
        keys = key[outside] if isinstance(key, np.ndarray) else key
        again = _rounds(result[outside], sizes, keys, backwards=backwards)
        result[outside] = again
        outside = outside[again >= m]
    return result

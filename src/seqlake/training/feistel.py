"""Keyed permutations of 0 .. m-1 that need no table: Feistel rounds over two digits, with cycle walking.

Every function here is part of the sample order and is frozen by `ORDER_VERSION`: other constants would be
another order, and a saved loader state would resume somewhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints

Words: TypeAlias = "NDArray[np.uint32]"
Key: TypeAlias = "NDArray[np.uint32] | np.uint32"
Size: TypeAlias = "NDArray[np.uint32] | np.uint32"

ROUNDS = 4
_MASK = 0xFFFFFFFF
_FIRST, _SECOND = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_STEP = 0x61C88647  # the key of round r is key + r * _STEP
_LEAST = 4  # values of a digit: four rounds over smaller ones would not mix
_HALF = 1 << 16


@dataclass(frozen=True, slots=True)
class Domain:
    """The numbers 0 .. m-1 as pairs of digits; m is one number, or one for each value.

    Attributes:
        m: Length of the domain, at most 2**62.
        high: Values of the high digit, near the root of m, so that hardly a pair stands for a number outside.
        low: Values of the low digit.
        most: The largest high and the largest low, or more.
    """

    m: Ints | int
    high: Size
    low: Size
    most: tuple[int, int]

    @classmethod
    def of(cls, m: Ints | int) -> Domain:
        """The domain of one length, or of each of some."""
        if isinstance(m, int):
            high = max(_LEAST, isqrt(max(m, 1) - 1) + 1)
            low = max(_LEAST, -(-m // high))
            return cls(m, np.uint32(high), np.uint32(low), (high, low))
        lengths = sorted(set(m.tolist()))
        each = [cls.of(length) for length in lengths]
        if len(each) == 1:
            return each[0]
        which = np.searchsorted(lengths, m)
        highs, lows = (np.array(sizes, dtype=np.uint32) for sizes in ([d.high for d in each], [d.low for d in each]))
        return cls(m, highs[which], lows[which], (int(highs.max()), int(lows.max())))

    def __getitem__(self, which: Ints) -> Domain:
        """The domains of some of the values."""
        if isinstance(self.m, int):
            return self
        assert isinstance(self.high, np.ndarray)
        assert isinstance(self.low, np.ndarray)
        return Domain(self.m[which], self.high[which], self.low[which], self.most)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """Wide enough for the number that any pair stands for; half the width is more than twice as fast."""
        return np.uint32 if self.most[0] * self.most[1] <= _MASK else np.uint64


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


def _below(words: Words, key: Key, size: Size, most: int) -> Words:
    """A number below `size`, none of them above `most`, for each word: the well-mixed upper bits of a hash."""
    mixed = words * _FIRST
    mixed += key
    mixed ^= mixed >> np.uint32(16)
    mixed *= _SECOND
    if most > _HALF:
        wide = ((mixed.astype(np.uint64) * size) >> np.uint64(32)).astype(np.uint32)
        if np.min(size) > _HALF:
            return wide
        narrow: Words = (mixed >> np.uint32(16)) * size >> np.uint32(16)
        return np.where(size > _HALF, wide, narrow)
    mixed >>= np.uint32(16)
    mixed *= size
    mixed >>= np.uint32(16)
    return mixed


def _rounds(values: NDArray[Any], domain: Domain, key: Key, *, backwards: bool) -> NDArray[Any]:
    """One pass of the rounds over all pairs of digits, or of their inverse."""
    sizes = domain.high, domain.low
    high = values // domain.low
    digits = [high.astype(np.uint32), (values - high * domain.low).astype(np.uint32)]
    for number in range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS):
        own, size = number % 2, sizes[number % 2]
        offset = _below(digits[1 - own], _round_key(key, number), size, domain.most[own])
        # Addition modulo the digit's size: of the two candidates, the one that wrapped around is the larger.
        if backwards:
            digits[own] -= offset
            digits[own] = np.minimum(digits[own], digits[own] + size)
        else:
            digits[own] += offset
            digits[own] = np.minimum(digits[own], digits[own] - size)
    result: NDArray[Any] = digits[0].astype(values.dtype, copy=False)
    result *= domain.low
    result += digits[1]
    return result


def permute(values: Ints, domain: Domain, key: Key, *, backwards: bool = False) -> Ints:
    """A permutation of 0 .. m-1, chosen by the key, applied to each value.

    The rounds permute all pairs of digits, a few more than m; a value that lands at or above m is sent through them
    again until it does not, which keeps the map one to one.

    Args:
        values: [n], each in 0 .. m-1.
        domain: One, or one for each value.
        key: One, or one for each value.
        backwards: The inverse map.
    """
    if isinstance(domain.m, int) and domain.m <= 1:
        return values.copy()
    result = _rounds(values.astype(domain.dtype, copy=False), domain, key, backwards=backwards)
    outside = np.flatnonzero(result >= domain.m)
    while len(outside):
        keys = key[outside] if isinstance(key, np.ndarray) else key
        again = _rounds(result[outside], domain[outside], keys, backwards=backwards)
        result[outside] = again
        outside = outside[again >= domain[outside].m]
    permuted: Ints = result.astype(values.dtype, copy=False)
    return permuted

"""Random numbers that belong to a sample: a function of seed, epoch and sample number, and of nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.order import Shuffle

_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

ATTEMPTS = 16
"""Samples tried for one place; if all are bad it stays masked."""

_NEAR = 1 << 12  # in source order: substitutes come from so many samples around


class Random:
    """Random numbers for the samples of a batch, vectorised: each sample has a counter-based stream of its own.

    The numbers do not depend on the batch a sample is in, on the rank, or on worker processes. Each call continues
    the streams.

    Example:
        >>> Random(seed=0, epochs=np.zeros(2, int), numbers=np.arange(2)).uniform(3).shape
        (2, 3)
    """

    def __init__(self, *, seed: int, epochs: Ints, numbers: Ints) -> None:
        digest = hashlib.blake2b(f"seqlake random {seed}".encode(), digest_size=8).digest()
        key = np.frombuffer(digest, dtype="<u8")[0]
        self._streams = _mixed(_mixed(key ^ epochs.astype(np.uint64)) + numbers.astype(np.uint64) * _GOLDEN)
        self._used = 0

    def __len__(self) -> int:
        return len(self._streams)

    def words(self, *shape: int) -> NDArray[np.uint64]:
        """[B, *shape] 64 random bits each."""
        count = int(np.prod(shape, dtype=np.int64))
        steps = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64) * _GOLDEN
        self._used += count
        return _mixed(self._streams[:, None] + steps).reshape(len(self), *shape)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """[B, *shape] numbers in [low, high)."""
        fractions = (self.words(*shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * fractions

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """[B, *shape] numbers of the standard normal distribution."""
        first, second = 1.0 - self.uniform(*shape), self.uniform(*shape)
        normal: NDArray[np.float64] = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
        return normal

    def integers(self, low: int, high: int, *shape: int) -> Ints:
        """[B, *shape] whole numbers in low .. high - 1."""
        return low + np.floor(self.uniform(*shape) * (high - low)).astype(np.int64)

    def generator(self, sample: int) -> np.random.Generator:
        """A numpy generator for one sample of the batch."""
        return np.random.Generator(np.random.Philox(key=int(self._streams[sample])))


class Substitutes:
    """Samples that may stand in for those of one order.

    They lie in the same lane and block, so that their shards are in use anyway.

    Args:
        samples: Samples of an epoch.
        shuffle: Lanes and block; None in source order.
        seed: The loader's.
    """

    def __init__(self, *, samples: int, shuffle: Shuffle | None, seed: int) -> None:
        self._samples = samples
        self._lanes = 1 if shuffle is None else min(shuffle.lanes, max(1, samples))
        self._block = _NEAR if shuffle is None else shuffle.block
        digest = hashlib.blake2b(f"seqlake substitutes {seed}".encode(), digest_size=8).digest()
        self._seed = int.from_bytes(digest, "little")

    def of(self, epochs: Ints, numbers: Ints) -> Ints:
        """[n] samples of epochs -> [n, attempts] sample numbers of the same epochs, to be tried in turn."""
        words = Random(seed=self._seed, epochs=epochs, numbers=numbers).words(ATTEMPTS)
        lane, place = numbers % self._lanes, numbers // self._lanes
        length = self._samples // self._lanes + (lane < self._samples % self._lanes)
        first = place // self._block * self._block
        span = np.minimum(self._block, length - first)
        chosen = first[:, None] + (words % span[:, None].astype(np.uint64)).astype(np.int64)
        substitutes: Ints = chosen * self._lanes + lane[:, None]
        return substitutes


def _mixed(values: Any) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    values = np.atleast_1d(np.asarray(values, dtype=np.uint64))
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed

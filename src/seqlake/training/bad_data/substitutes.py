"""Which samples may stand in for bad ones: a function of seed, epoch and sample number, and of nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.randomness import Random

if TYPE_CHECKING:
    from seqlake.protocols import Ints
    from seqlake.training.order import Shuffle

ATTEMPTS = 16
"""Samples tried for one place; if all are bad it stays masked."""

_NEAR = 1 << 12  # in source order: substitutes come from so many samples around


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

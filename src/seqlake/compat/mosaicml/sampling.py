"""How often MosaicML Streaming 0.13 takes each sample of its streams in an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from seqlake.protocols import Ints


def per_shard(sizes: Ints, choose: int, /, *, granularity: int, seed: int) -> Ints:
    """[shards] how many samples an epoch takes of each.

    Args:
        sizes: [shards] samples of each.
        choose: Samples of all shards together.
        granularity: Samples that are taken of a shard at a time.
        seed: Of the choice; run and epoch may both be in it.

    Example:
        >>> per_shard(np.array([3, 5, 4, 6]), 7, granularity=3, seed=9176).tolist()
        [0, 5, 0, 2]
    """
    total = int(sizes.sum())
    if not choose % total:
        return sizes * choose // total
    picks = -(-sizes // granularity)
    shard_of = np.repeat(np.arange(len(sizes)), picks)
    size_of = np.full(len(shard_of), granularity)
    # As it is there, also where an empty shard has no last pick of its own and this meets another's.
    size_of[np.cumsum(picks) - 1] = sizes - (picks - 1) * granularity
    order = np.random.default_rng(seed).permutation(len(shard_of))
    counts, left = sizes * (choose // total), choose % total
    taken = size_of[order]
    taken = np.clip(left - (np.cumsum(taken) - taken), 0, taken)
    np.add.at(counts, shard_of[order], taken)
    return counts


def resampled(
    sizes: Ints, counts: Ints, /, *, first: int, generator: np.random.Generator
) -> tuple[list[int], list[Ints]]:
    """A stream's epoch before it is shuffled.

    Args:
        sizes: [shards] samples of each.
        counts: [shards] samples wanted of each.
        first: Number of the stream's first sample among those of all streams.
        generator: Chooses where a shard is not wanted whole.

    Returns:
        Sizes of the units that are shuffled as shards are, and the numbers of their samples.
    """
    units: list[int] = []
    samples: list[Ints] = []
    starts = first + np.cumsum(sizes) - sizes
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        if not size:
            continue
        whole, rest = divmod(count, size)
        units += [size] * whole
        samples += [start + np.arange(size)] * whole
        if rest:
            units.append(rest)
            samples.append(start + np.sort(generator.choice(size, rest, replace=False)))
    return units, samples

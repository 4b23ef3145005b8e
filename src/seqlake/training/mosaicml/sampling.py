"""How often MosaicML Streaming 0.13 takes each sample of its streams in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from seqlake.abilities import ShardSizes, ability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Ints, Readable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """One dataset of a mixture, and how much of it: at most one of `proportion`, `repeat` and `choose`.

    Attributes:
        sizes: [shards] samples of each.
        proportion: Of all samples of an epoch, relative to the other streams' (then all have one).
        repeat: How often its samples come in an epoch.
        choose: How many samples come in an epoch.
    """

    sizes: Ints = field(repr=False)
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    @classmethod
    def of(
        cls,
        source: Readable,
        /,
        *,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
    ) -> Stream:
        """A dataset as `seqlake.scan` gives it; of a selection, its own rows."""
        sizes = [shard.rows for shard in source.shards()]
        # Shards without samples take part in shuffles, and `shards` leaves them out.
        known = ability(source, ShardSizes)
        every = sizes if known is None else list(known.sizes)
        sizes = every if [size for size in every if size] == sizes else sizes
        return cls(sizes=np.array(sizes, dtype=np.int64), proportion=proportion, repeat=repeat, choose=choose)


def chosen(streams: Sequence[Stream], /, *, epoch_size: int | None, seed: int) -> Ints:
    """[streams] samples of each in an epoch.

    Args:
        streams: All of them.
        epoch_size: Samples of an epoch, where proportions (or nothing) decide; all samples there are by default.
        seed: Decides which streams have one more where proportions do not come out even.

    Raises:
        ValueError: Weights of different kinds, or an epoch size beside absolute ones.
    """
    for number, stream in enumerate(streams):
        given = [stream.proportion, stream.repeat, stream.choose]
        if sum(one is not None for one in given) > 1:
            raise ValueError(f"Stream {number}: expected at most one of proportion, repeat and choose, found {given}.")
    relative = [stream.proportion is not None for stream in streams]
    absolute = [stream.repeat is not None or stream.choose is not None for stream in streams]
    if any(relative) and not all(relative):
        raise ValueError(f"Stream {relative.index(False)} has no proportion, and others have one.")
    there = np.array([int(stream.sizes.sum()) for stream in streams], dtype=np.int64)
    if all(relative) or (epoch_size and not any(absolute)):
        weights = np.array([stream.proportion for stream in streams] if all(relative) else there, dtype=np.float64)
        total = epoch_size or int(there.sum())
        counts: Ints = (total * (weights / weights.sum())).astype(np.int64)
        short = total - int(counts.sum())
        counts[np.random.default_rng(seed).choice(len(streams), short, replace=False)] += 1
        return counts
    if epoch_size:
        raise ValueError("epoch_size: streams that say repeat or choose decide for themselves how long an epoch is.")
    return np.array([_own(stream, int(size)) for stream, size in zip(streams, there, strict=True)], dtype=np.int64)


def _own(stream: Stream, there: int) -> int:
    if stream.repeat is not None:
        return int(stream.repeat * there)
    return there if stream.choose is None else stream.choose


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

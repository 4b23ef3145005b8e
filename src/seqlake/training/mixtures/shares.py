"""How much of each source an epoch takes, said as MosaicML Streaming says it: proportion, repeat or choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import ShardSizes, ability

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.protocols import Ints, Readable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """One dataset of a mixture, and how much of it: at most one of `proportion`, `repeat` and `choose`.

    Attributes:
        sizes: [shards] samples of each.
        proportion: Of all samples of an epoch, relative to the other streams' (then all have one).
        repeat: How often its samples come in an epoch.
        choose: How many samples come in an epoch.

    Example:
        ```python
        streams = [Stream.of(web, proportion=0.7), Stream.of(code, proportion=0.3)]
        ```
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What `Mix.of_streams` was told.

    Attributes:
        names: Of all sources.
        proportion: Of each, relative to the others; then all have one.
        repeat: How often the samples of a source come in an epoch.
        choose: How many samples of a source come in an epoch.
        epoch_size: Samples of an epoch, where proportions (or nothing) decide.
        seed: Decides which sources have one sample more where proportions do not come out even.
    """

    names: tuple[str, ...]
    proportion: Mapping[str, float]
    repeat: Mapping[str, float]
    choose: Mapping[str, int]
    epoch_size: int | None
    seed: int

    def check(self) -> None:
        """Refuse what cannot be meant, whatever the sizes of the sources.

        Raises:
            ValueError: A name that is no source, a number below 0, or several kinds of share at once.
        """
        whole: Any = self.epoch_size
        if whole is not None and (isinstance(whole, bool) or not isinstance(whole, Integral) or whole < 1):
            raise ValueError(f"Mix epoch_size: expected a whole number from 1 on, found {whole!r}.")
        for kind, given in (("proportion", self.proportion), ("repeat", self.repeat), ("choose", self.choose)):
            for name, share in given.items():
                if name not in self.names:
                    raise ValueError(f"Mix {kind}: {name!r} is none of the sources ({', '.join(self.names)}).")
                _check(share, f"Mix {kind} of {name!r}", whole=kind == "choose")
        if self.proportion and not sum(self.proportion.values()):
            raise ValueError("Mix proportion: expected one above 0 at least, found only zeros.")
        self.counts([1] * len(self.names))

    def counts(self, sizes: Sequence[int]) -> list[int]:
        """Samples of each source in an epoch.

        Args:
            sizes: Samples that each has.

        Raises:
            ValueError: Several kinds of share at once.
        """
        streams = [
            Stream(
                sizes=np.array([size], dtype=np.int64),
                proportion=self.proportion.get(name),
                repeat=self.repeat.get(name),
                choose=self.choose.get(name),
            )
            for name, size in zip(self.names, sizes, strict=True)
        ]
        counts: list[int] = chosen(streams, epoch_size=self.epoch_size, seed=self.seed).tolist()
        return counts


def _check(share: Any, what: str, *, whole: bool) -> None:
    number = Integral if whole else Real
    if isinstance(share, bool) or not isinstance(share, number) or not isfinite(share) or share < 0:
        raise ValueError(f"{what}: expected {'a whole number' if whole else 'a number'} from 0 on, found {share!r}.")

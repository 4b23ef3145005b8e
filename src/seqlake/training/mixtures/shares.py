"""How much of each source an epoch takes, said as MosaicML Streaming says it: proportion, repeat or choose."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.training.mosaicml.sampling import Stream, chosen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        found: list[int] = chosen(streams, epoch_size=self.epoch_size, seed=self.seed).tolist()
        return found


def _check(share: Any, what: str, *, whole: bool) -> None:
    number = Integral if whole else Real
    if isinstance(share, bool) or not isinstance(share, number) or not isfinite(share) or share < 0:
        raise ValueError(f"{what}: expected {'a whole number' if whole else 'a number'} from 0 on, found {share!r}.")

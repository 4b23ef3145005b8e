"""Everything that a loader was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seqlake.training.bad_data.damage import OnError
from seqlake.training.frames.ahead import FrameOptions
from seqlake.training.order import Shuffle

if TYPE_CHECKING:
    from seqlake.training.cache import Cache
    from seqlake.training.mixtures.samples import Groups
    from seqlake.training.steps import Tail
    from seqlake.training.transforms import Transform
    from seqlake.windows.spec import Whole, Window


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that a loader was asked for; a value that travels to workers."""

    window: Window | Whole
    batch_size: int
    shuffle: bool | Shuffle
    seed: int
    rank: int
    world_size: int
    cache: Cache | None
    tail: Tail
    global_batch: int | None = None
    transforms: tuple[Transform, ...] = ()
    reuse: bool = False
    frames: FrameOptions = field(default_factory=FrameOptions)
    on_error: OnError = field(default_factory=OnError)
    groups: Groups | None = None

    def check(self) -> None:
        """Raise ValueError or TypeError, naming the argument that cannot be meant."""
        for name, value in (("batch_size", self.batch_size), ("world_size", self.world_size)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Loader {name}: expected a whole number from 1 on, found {value!r}.")
        if not isinstance(self.rank, int) or not 0 <= self.rank < self.world_size:
            raise ValueError(f"Loader rank: expected 0 to {self.world_size - 1} (world_size - 1), found {self.rank!r}.")
        if not isinstance(self.seed, int):
            raise TypeError(f"Loader seed: expected a whole number, found {self.seed!r}.")
        if not isinstance(self.shuffle, (bool, Shuffle)):
            raise TypeError(f"Loader shuffle: expected True, False or a Shuffle, found {self.shuffle!r}.")
        if self.cache is not None:
            _ = self.cache.nbytes  # says what is wrong with it

"""Everything that a loader was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

from seqlake.media import FASTEST, SLOWEST
from seqlake.plugins import require
from seqlake.training.bad_data.damage import OnError
from seqlake.training.order import Shuffle
from seqlake.windows.clouds import PointOptions

if TYPE_CHECKING:
    from seqlake.training.cache import Cache
    from seqlake.training.mixtures.samples import Groups
    from seqlake.training.steps import Tail
    from seqlake.training.transforms import Transform
    from seqlake.windows.spec import Whole, Window

Layout = Literal["THWC", "TCHW"]
LAYOUTS: tuple[Layout, ...] = ("THWC", "TCHW")
DepthAs = Literal["metres", "codes"]


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """How frames are delivered.

    Attributes:
        size: Height and width to scale to; None leaves them as they are.
        layout: Order of a window's axes; `TCHW` is a view.
        device: Where videos are decoded.
        threads: How many decode; None means one for each core.
        points: How points of clouds are delivered.
        copies: Whether videos come from training copies of this size; or the folder that they are in.
        depth: Whether depth maps are metres, or the codes that are stored.
    """

    size: tuple[int, int] | None = None
    layout: Layout = "THWC"
    device: str = "cpu"
    threads: int | None = None
    points: PointOptions = field(default_factory=PointOptions)
    copies: bool | str = False
    depth: DepthAs = "metres"

    def check(self) -> None:
        """Raise ValueError or MissingDependencyError, naming the argument that cannot be meant."""
        self.points.check()
        size = self.size
        pair = isinstance(size, (tuple, list)) and len(size) == 2
        if size is not None and not (pair and all(isinstance(one, int) and one > 0 for one in size)):
            raise ValueError(f"frames size: expected (height, width) in pixels, found {size!r}.")
        if self.copies and size is None:
            raise ValueError("frames copies: training copies are of one size; say which: size=(height, width).")
        if self.layout not in LAYOUTS:
            raise ValueError(f"frames layout: expected one of {', '.join(LAYOUTS)}, found {self.layout!r}.")
        if self.depth not in get_args(DepthAs):
            raise ValueError(f"frames depth: expected one of {', '.join(get_args(DepthAs))}, found {self.depth!r}.")
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise ValueError(f"frames threads: expected a whole number from 1 on, found {self.threads!r}.")
        if self.device != "cpu":
            if find_spec("torchcodec") is None:
                require("torchcodec", extra="torchcodec")
            if not require("torch", extra="torch").cuda.is_available():
                raise ValueError(f"frames device: {self.device!r} needs a GPU that torch sees, and it sees none.")


@dataclass(frozen=True, kw_only=True)
class AudioOptions:
    """How sound is delivered.

    Attributes:
        rate: Samples a second; None leaves them as they are.
        channels: 1 mixes all of them; None leaves them as they are.
    """

    rate: int | None = None
    channels: int | None = None

    def check(self) -> None:
        """Raise ValueError, naming the argument that cannot be meant."""
        rate = self.rate
        if rate is not None and (not isinstance(rate, int) or not SLOWEST <= rate <= FASTEST):
            raise ValueError(f"audio rate: expected {SLOWEST} to {FASTEST} samples a second, found {rate!r}.")
        if self.channels not in (None, 1):
            raise ValueError(f"audio channels: expected 1, for all of them mixed, or None, found {self.channels!r}.")


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
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
    audio: AudioOptions = field(default_factory=AudioOptions)
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
            raise TypeError(
                f"Loader shuffle: expected True, False or a Shuffle, found {self.shuffle!r}. MosaicML's orders have "
                "names in seqlake.compat.mosaicml: StreamingOrder(shuffle=...)."
            )
        if self.cache is not None:
            _ = self.cache.nbytes  # says what is wrong with it

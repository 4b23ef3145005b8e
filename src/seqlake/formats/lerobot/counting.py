"""Statistics of features as LeRobot keeps them, exact: of an episode, and of all of them.

Quantiles are numbers that occur, as `numpy.quantile(..., method="inverted_cdf")` has them, not means of the quantiles
of episodes. Numbers that are not finite do not count. Of pictures the values of each channel are counted, in as many
frames as LeRobot looks at itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

POINTS = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
OLDER = ("min", "max", "mean", "std", "count")
"""What v2.1 keeps."""

_LEAST, _MOST, _POWER = 100, 10_000, 0.75  # frames of an episode that LeRobot looks at
_SMALL, _ABOUT = 300, 150  # pixels along the longer side: what it leaves whole, what it thins larger pictures to


def of_numbers(values: NDArray[Any], /) -> dict[str, NDArray[Any]]:
    """The statistics of [T, ...] numbers, each of the shape of a step.

    Example:
        >>> of_numbers(np.array([[0.0], [2.0], [4.0]]))["q50"].tolist()
        [2.0]
    """
    numbers = values.astype(np.uint8) if values.dtype == np.bool_ else values
    flat = numbers.reshape(len(values), -1)
    columns = [_of_one(flat[:, place]) for place in range(flat.shape[1])]
    shape = values.shape[1:] or (1,)
    result: dict[str, NDArray[Any]] = {
        name: np.array([one[name] for one in columns]).reshape(shape) for name in columns[0]
    }
    result["count"] = np.array([len(values)])
    return result


def _of_one(values: NDArray[Any]) -> dict[str, float]:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(finite):
        return dict.fromkeys(("min", "max", "mean", "std", *POINTS), 0.0)
    ranks = {name: _rank(point, len(finite)) for name, point in POINTS.items()}
    ordered = np.partition(finite, sorted({0, len(finite) - 1, *ranks.values()}))
    return {
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        "mean": float(finite.mean(dtype=np.float64)),
        "std": float(finite.std(dtype=np.float64)),
        **{name: float(ordered[rank]) for name, rank in ranks.items()},
    }


def _rank(point: float, count: int) -> int:
    return min(max(0, int(np.ceil(count * point - 1))), count - 1)


def looked_at(count: int, /) -> Ints:
    """The frames of an episode of so many that LeRobot itself takes for its statistics.

    Example:
        >>> len(looked_at(60)), len(looked_at(1000))
        (60, 177)
    """
    number = max(min(count, _LEAST), min(int(count**_POWER), _MOST))
    return np.round(np.linspace(0, count - 1, number)).astype(np.int64)


@dataclass(slots=True, kw_only=True)
class PictureCounts:
    """How often each channel has each value in some frames.

    Attributes:
        frames: How many.
        values: [channels, 256 or 65 536] counts; None before the first.
        metres: What each value stands for, of depth maps; None of others.
    """

    frames: int = 0
    values: NDArray[np.int64] | None = None
    metres: NDArray[np.float64] | None = field(default=None, repr=False)

    def add(self, frames: NDArray[Any], /) -> None:
        """Count [N, height, width, channels] of uint8 or uint16, thinned as LeRobot does it.

        Raises:
            ValueError: They are of another kind than those before.
        """
        longer = max(frames.shape[1:3])
        step = 1 if longer < _SMALL else longer // _ABOUT
        thin = frames[:, ::step, ::step]
        if thin.dtype.kind != "u":
            raise ValueError(f"pictures of {thin.dtype}")
        levels = 1 << (8 * thin.dtype.itemsize)
        counted = np.stack([np.bincount(thin[..., c].ravel(), minlength=levels) for c in range(thin.shape[-1])])
        self.join(PictureCounts(frames=len(frames), values=counted.astype(np.int64)))

    def join(self, other: PictureCounts, /) -> None:
        """Add the counts of others.

        Raises:
            ValueError: They are of another kind.
        """
        if other.values is None:
            return
        if self.values is not None and self.values.shape != other.values.shape:
            raise ValueError("pictures of 8 and of 16 bits, or of one channel and of three")
        self.values = other.values if self.values is None else self.values + other.values
        self.frames += other.frames

    def statistics(self) -> dict[str, NDArray[Any]]:
        """Statistics of shape (3, 1, 1), of one channel (1, 1, 1): in [0, 1], of depth maps in metres."""
        assert self.values is not None
        levels = self.values.shape[1]
        scale = np.arange(levels) / (levels - 1) if self.metres is None else self.metres
        counts = self.values if self.metres is None else np.where(scale > 0, self.values, 0)  # 0: not measured
        channels = [_of_counts(one, scale) for one in counts]
        names = ("min", "max", "mean", "std", *POINTS)
        result: dict[str, NDArray[Any]] = {
            name: np.array([one[place] for one in channels]).reshape(-1, 1, 1) for place, name in enumerate(names)
        }
        result["count"] = np.array([self.frames])
        return result

    def to_json(self) -> dict[str, Any]:
        """Plain values: of each channel the values that occur, and how often."""
        assert self.values is not None
        there = [np.flatnonzero(one) for one in self.values]
        channels = [[which.tolist(), one[which].tolist()] for which, one in zip(there, self.values, strict=True)]
        metres = None if self.metres is None else self.metres.tolist()
        return {"frames": self.frames, "levels": self.values.shape[1], "channels": channels, "metres": metres}

    @staticmethod
    def from_json(value: Mapping[str, Any], /) -> PictureCounts:
        """The counts that `to_json` gave."""
        values = np.zeros((len(value["channels"]), value["levels"]), np.int64)
        for channel, (which, counts) in enumerate(value["channels"]):
            values[channel, which] = counts
        metres = value["metres"]
        return PictureCounts(
            frames=value["frames"], values=values, metres=None if metres is None else np.array(metres, np.float64)
        )


def _of_counts(counts: NDArray[np.int64], scale: NDArray[np.float64]) -> list[float]:
    total = int(counts.sum())
    if not total:
        return [0.0] * (4 + len(POINTS))
    places = np.flatnonzero(counts)
    behind = np.cumsum(counts)
    ranks = [_rank(point, total) for point in POINTS.values()]
    mean = float(np.average(scale, weights=counts))
    deviation = float(np.average((scale - mean) ** 2, weights=counts)) ** 0.5
    quantiles = [float(scale[np.searchsorted(behind, rank, side="right")]) for rank in ranks]
    return [float(scale[places[0]]), float(scale[places[-1]]), mean, deviation, *quantiles]


def plain(statistics: Mapping[str, NDArray[Any]], names: Iterable[str], /) -> dict[str, Any]:
    """Some statistics as nested lists, as JSON holds them."""
    return {name: statistics[name].tolist() for name in names}

"""Which samples one rank takes at each step: the same global steps for every world size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from seqlake.training.order import Order
from seqlake.training.randomness import Substitutes
from seqlake.training.samples import Samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.order import Shuffle, Visits
    from seqlake.training.survey import WindowSurvey

Tail = Literal["drop", "pad", "carry"]
TAILS: tuple[Tail, ...] = ("drop", "pad", "carry")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a pass over N samples, and one rank's share of each.

    Step t holds samples `[t * G, (t + 1) * G)` after the position where the pass begins. To deal them to ranks they
    are sorted by lane and cut into `world_size` runs whose sizes differ by at most one.

    Attributes:
        samples: N, samples of an epoch.
        lanes: V of the order; neighbouring samples lie in neighbouring lanes.
        global_batch: G, samples of a step over all ranks.
        rank: Which run is ours.
        world_size: Number of runs.
        tail: What becomes of the last samples of an epoch that do not fill a step: `"drop"` leaves them out,
            `"pad"` repeats samples marked as not valid, `"carry"` takes them into the next epoch's first step.
    """

    samples: int
    lanes: int
    global_batch: int
    rank: int
    world_size: int
    tail: Tail

    @property
    def local_batch(self) -> int:
        """Samples of each step that are this rank's."""
        low, high = self._run
        return high - low

    @property
    def _run(self) -> tuple[int, int]:
        total, ranks = self.global_batch, self.world_size
        return self.rank * total // ranks, (self.rank + 1) * total // ranks

    def count(self, position: int) -> int:
        """Steps of the pass that begins at this sample of an epoch; the same on every rank."""
        left = self.samples - position
        if self.tail == "pad":
            return -(-left // self.global_batch)
        if self.tail == "carry" and self.samples:
            while left < self.global_batch:
                left += self.samples
        return left // self.global_batch

    @property
    def longest(self) -> int:
        """Steps of the longest pass: from an epoch's beginning, or with `carry` from near the end of the one before."""
        return self.count(0) if self.tail != "carry" else -(-self.samples // self.global_batch)

    def dropped(self, position: int = 0) -> int:
        """Samples of the pass that no step holds."""
        return self.samples - position - self.count(position) * self.global_batch if self.tail == "drop" else 0

    def after(self, position: int, steps: int) -> tuple[int, int]:
        """Where the next step begins: (epochs further, sample), never at the end of an epoch."""
        end = position + steps * self.global_batch
        if self.tail == "carry":
            return divmod(end, self.samples) if self.samples else (0, 0)
        done = end >= self.samples or (self.tail == "drop" and end + self.global_batch > self.samples)
        return (1, 0) if done else (0, end)

    def lanes_of(self, position: int) -> Ints:
        """Lanes that this rank's samples come from, in the pass that begins at a sample of an epoch."""
        low, high = self._run
        period = min(self.lanes, max(1, self.count(position)))
        starts = (position + np.arange(period) * self.global_batch) % self.samples % self.lanes
        if self.global_batch >= self.samples:
            return np.arange(self.lanes)
        dealt = [
            (start + _by_lane(start, self.lanes, self.global_batch)[low:high]) % self.lanes
            for start in np.unique(starts).tolist()
        ]
        return np.unique(np.concatenate(dealt)) if dealt else np.arange(self.lanes)

    def take(self, position: int, steps: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """This rank's samples of some steps of the pass.

        Args:
            position: The sample of the epoch at which the pass begins.
            steps: [k] numbers of the steps wanted, counted from there.

        Returns:
            Three arrays [k * local_batch]: epochs after the pass's own, sample numbers, and False where a sample is a
            repetition that fills the last step.
        """
        low, high = self._run
        starts = position + steps * self.global_batch
        # Steps that begin in the same lane and stay inside the epoch are dealt alike.
        first = starts % self.samples
        inside = bool((first + self.global_batch <= self.samples).all())
        if inside and bool((first % self.lanes == first[0] % self.lanes).all()):
            numbers = starts[:, None] + self._dealt(int(starts[0]))[low:high]
        else:
            numbers = np.stack([start + self._dealt(int(start))[low:high] for start in starts])
        numbers = numbers.reshape(-1)
        if inside and len(starts) and int(starts.max()) < self.samples:
            epochs, samples = np.zeros_like(numbers), numbers
        else:
            epochs, samples = np.divmod(numbers, self.samples)
        if self.tail == "pad":
            return np.zeros_like(epochs), samples, epochs == 0
        return epochs, samples, np.ones(len(samples), dtype=np.bool_)

    def _dealt(self, start: int) -> Ints:
        """[G] the slots of a step, sorted by lane."""
        if start % self.samples + self.global_batch <= self.samples:
            return _by_lane(start % self.samples % self.lanes, self.lanes, self.global_batch)
        epochs, samples = np.divmod(start + np.arange(self.global_batch, dtype=np.int64), self.samples)
        return np.argsort(epochs * self.lanes + samples % self.lanes, kind="stable")


@lru_cache(maxsize=256)
def _by_lane(first: int, lanes: int, count: int) -> Ints:
    """[count] slots that begin in lane `first`, sorted by lane: the same for every step that begins there."""
    return np.argsort((first + np.arange(count, dtype=np.int64)) % lanes, kind="stable")


class OrderPlanner:
    """`OrderPlanner` of one dataset: the order, and where each window of it begins."""

    def __init__(self, survey: WindowSurvey, steps: Steps, *, shuffle: Shuffle | None, seed: int) -> None:
        self._survey = survey
        self._steps = steps
        self._shuffle = shuffle
        self._seed = seed
        self._orders: dict[int, Order] = {}

    @property
    def local_batch(self) -> int:
        """Samples of a step on this rank."""
        return self._steps.local_batch

    def samples(self, epoch: int, position: int, steps: Ints) -> Samples:
        """The samples of some steps of the pass that begins at a sample of an epoch."""
        further, numbers, valid = self._steps.take(position, steps)
        return self._located(epoch, further, numbers, valid)

    def substitutes(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        """Samples to be tried in the places of others; see `Substitutes`."""
        choice = Substitutes(samples=self._steps.samples, shuffle=self._shuffle, seed=self._seed)
        others = choice.of(epochs, numbers)[:, attempt]
        first = int(epochs.min())
        return self._located(first, epochs - first, others, np.ones(len(others), np.bool_))

    def _located(self, epoch: int, further: Ints, numbers: Ints, valid: NDArray[np.bool_]) -> Samples:
        windows = self._windows(epoch, further, numbers)
        rows, anchors = self._survey.axis.locate(windows)
        if self._survey.stride != 1:
            anchors *= self._survey.stride
        first = self._survey.first
        if not isinstance(first, int):
            anchors += first[rows]
        elif first:
            anchors += first
        return Samples(
            epochs=epoch + further,
            numbers=numbers,
            rows=rows,
            anchors=anchors,
            valid=valid,
        )

    def shards(self, epoch: int, position: int, steps: Ints) -> Ints:
        """The shards that samples of some steps are in, ascending; for few steps."""
        return self._survey.shards_of(self.samples(epoch, position, steps).rows)

    def visits(self, epoch: int, position: int) -> Visits:
        """When each shard is needed by this rank in an epoch."""
        return self._order(epoch).visits(lanes=self._steps.lanes_of(position))

    def _windows(self, epoch: int, further: Ints, numbers: Ints) -> Ints:
        if not further.any():
            return self._order(epoch).windows(numbers)
        windows = np.empty_like(numbers)
        for extra in np.unique(further):
            later = further == extra
            windows[later] = self._order(epoch + int(extra)).windows(numbers[later])
        return windows

    def _order(self, epoch: int) -> Order:
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = Order(
                shard_windows=self._survey.axis.shard_windows, shuffle=self._shuffle, seed=self._seed, epoch=epoch
            )
        return self._orders[epoch]

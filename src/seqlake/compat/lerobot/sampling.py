"""`VisitSampler`: a random order in which neighbouring frames come together, for torch's `DataLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.order import Order, Shuffle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

_AT_ONCE = 1 << 16  # numbers that are computed at a time


class VisitSampler:
    """The frames of a dataset in random order, some neighbours always together.

    Windows of neighbouring frames overlap, and `LeRobotDataset` decodes what they share once a batch: with windows of
    16 and visits of 4 a batch decodes 5 frames for each window instead of 16. Every frame comes once an epoch; the
    order is that of `Shuffle(visits=)`, a function of the seed and the epoch. Each `iter` is the next epoch.

    Args:
        dataset: Whose frames: whatever has a length.
        visits: Neighbouring frames that stay together; a divisor of the batch size keeps them in one batch. A batch is
            drawn from that many fewer places, so the larger the batch the less it costs.
        seed: Of the order.
        frames: Numbers of the frames to take, ascending, as `EpisodeAwareSampler(...).indices` has them; all by
            default.

    Raises:
        ValueError: `visits` is no whole number from 1 on.

    Example:
        ```python
        dataset = LeRobotDataset(root="lerobot/pusht", delta_timestamps={"observation.image": [-0.1, 0.0]})
        batches = torch.utils.data.DataLoader(dataset, batch_size=64, sampler=VisitSampler(dataset, visits=4))
        ```
    """

    def __init__(self, dataset: Sized, *, visits: int = 4, seed: int = 0, frames: Sequence[int] | None = None) -> None:
        self.epoch: int = 0
        self._shuffle, self._seed = Shuffle(visits=visits), seed
        self._frames = None if frames is None else np.asarray(frames, np.int64)
        self._count = len(dataset if frames is None else frames)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next `iter` is.

        Example:
            ```python
            sampler.set_epoch(3)
            ```
        """
        self.epoch = epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        shuffle = self._shuffle.filled(shards=1, windows=self._count)
        order = Order(shard_windows=np.array([self._count]), shuffle=shuffle, seed=self._seed, epoch=self.epoch)
        self.epoch += 1
        return self._numbers(order)

    def _numbers(self, order: Order) -> Iterator[int]:
        for first in range(0, self._count, _AT_ONCE):
            numbers = order.windows(np.arange(first, min(first + _AT_ONCE, self._count)))
            yield from (numbers if self._frames is None else self._frames[numbers]).tolist()

    def __repr__(self) -> str:
        return f"VisitSampler({self._count:,} frames, {self._shuffle!r}, seed={self._seed}, epoch={self.epoch})"

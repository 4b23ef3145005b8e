"""The windows of a dataset as a map-style dataset: any of them by its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.batches import Samples
from seqlake.training.randomness import Random
from seqlake.training.repair import Repair
from seqlake.training.substitutes import Substitutes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.protocols import Ints
    from seqlake.training.batches import Batch
    from seqlake.training.damage import Harm
    from seqlake.training.prepared import Prepared


class WindowDataset:
    """All windows in source order, for samplers that choose for themselves.

    `len(dataset)`, `dataset[i]` and `dataset.__getitems__([i, j, ...])` are what torch's `DataLoader` asks a map-style
    dataset for. A sample is a dict without the batch axis. Pickles as a description and opens files where it is used.

    Example:
        >>> windows = loader.dataset()
        >>> windows[0]["action"].shape
        (16, 12)
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def __len__(self) -> int:
        return self._prepared.windows()

    def __getitem__(self, index: int) -> Batch:
        """One sample; negative numbers count from the end.

        Raises:
            IndexError: No such window.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Batch]:
        """Many samples, gathered together.

        Raises:
            IndexError: No such window.
        """
        batch = self.batch(indices)
        return [{name: values[k] for name, values in batch.items()} for k in range(len(indices))]

    def batch(self, indices: Sequence[int], /) -> Batch:
        """Many samples as one batch, in the order asked for; repeats are allowed.

        Raises:
            IndexError: No such window.
        """
        numbers = np.asarray(indices, dtype=np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"Windows are numbered 0 to {len(self) - 1}; found {list(indices)}.")
        samples = self._at(np.zeros_like(numbers), numbers)
        repair = Repair(self._prepared, self._other) if self._prepared.settings.on_error.tolerant else None
        if repair is not None:
            samples = repair.signals(samples)
        harmed: Mapping[int, Sequence[Harm]] = {}
        assembler = self._prepared.assembler()
        batch = assembler.batch(assembler.prepare(samples, size=len(numbers)), 0)
        frames = self._prepared.frame_stream(sharers=1)
        if frames is not None:
            try:
                batch.update(frames.take(frames.begin(samples.rows, samples.anchors)))
                harmed = frames.harmed
            finally:
                frames.close()
        if repair is not None:
            repair.finish(batch, samples, harmed)
        random = Random(seed=self._prepared.settings.seed, epochs=samples.epochs, numbers=numbers)
        for transform in self._prepared.settings.transforms:
            batch = transform(batch, random)
        return batch

    def _at(self, epochs: Ints, numbers: Ints) -> Samples:
        rows, anchors = self._prepared.locate(numbers)
        valid = np.ones(len(numbers), dtype=np.bool_)
        return Samples(epochs=epochs, numbers=numbers, rows=rows, anchors=anchors, valid=valid)

    def _other(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        choice = Substitutes(samples=len(self), shuffle=None, seed=self._prepared.settings.seed)
        return self._at(epochs, choice.of(epochs, numbers)[:, attempt])

    def __repr__(self) -> str:
        return f"WindowDataset({self._prepared.settings.window!r})"

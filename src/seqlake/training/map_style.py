"""The windows of a dataset as a map-style dataset: any of them by its number."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.bad_data.substitutes import Substitutes
from seqlake.training.passes import Pipeline
from seqlake.training.samples import Samples, batch_like
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Ints
    from seqlake.training.engine import Engine
    from seqlake.training.samples import Batch


class WindowDataset:
    """All windows in source order, for samplers that choose for themselves.

    `len(dataset)`, `dataset[i]` and `dataset.__getitems__([i, j, ...])` are what torch's `DataLoader` asks a map-style
    dataset for. A sample is a dict without the batch axis. Pickles as a description and opens files where it is used.

    Example:
        >>> windows = loader.dataset()
        >>> windows[0]["action"].shape
        (16, 12)
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __len__(self) -> int:
        return self._engine.windows()

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
        window = self._engine.settings.window
        if isinstance(window, Whole) and window.packed and len(indices) > 1:
            return [sample for index in indices for sample in self.__getitems__([index])]
        batch = self.batch(indices)
        if isinstance(window, Whole) and window.packed:
            packed = {name for name in batch if f"{name.removesuffix('_mask')}_offsets" in batch}
            return [
                batch_like(
                    batch, ((name, each if _is_packed(name, packed) else each[0]) for name, each in batch.items())
                )
            ]
        return [batch_like(batch, ((name, each[k]) for name, each in batch.items())) for k in range(len(indices))]

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
        pipeline = Pipeline(self._engine, others=self._other, transforms=self._engine.settings.transforms)
        with closing(pipeline):
            return pipeline.at_once(samples)[0]

    def _at(self, epochs: Ints, numbers: Ints) -> Samples:
        rows, anchors = self._engine.locate(numbers)
        valid = np.ones(len(numbers), dtype=np.bool_)
        return Samples(epochs=epochs, numbers=numbers, rows=rows, anchors=anchors, valid=valid)

    def _other(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        choice = Substitutes(samples=len(self), shuffle=None, seed=self._engine.settings.seed)
        return self._at(epochs, choice.of(epochs, numbers)[:, attempt])

    def __repr__(self) -> str:
        return f"WindowDataset({self._engine.settings.window!r})"


def _is_packed(name: str, packed: set[str]) -> bool:
    return name in packed or name.endswith("_offsets")

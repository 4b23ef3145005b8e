"""The windows of a dataset as a map-style dataset: any of them by its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.bad_data.repair import Repair
from seqlake.training.bad_data.substitutes import Substitutes
from seqlake.training.batches import Samples
from seqlake.training.passes import parts
from seqlake.training.randomness import Random
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.batches import Batch
    from seqlake.training.loader import Loader
    from seqlake.training.prepared import Prepared

_AT_ONCE = 1 << 14  # windows whose numbers are computed together


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
        window = self._prepared.settings.window
        if isinstance(window, Whole) and window.packed and len(indices) > 1:
            return [sample for index in indices for sample in self.__getitems__([index])]
        batch = self.batch(indices)
        if isinstance(window, Whole) and window.packed:
            packed = {name for name in batch if f"{name.removesuffix('_mask')}_offsets" in batch}
            return [{name: batch[name] if _is_packed(name, packed) else batch[name][0] for name in batch}]
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


def _is_packed(name: str, packed: set[str]) -> bool:
    return name in packed or name.endswith("_offsets")


class WindowSampler:
    """A loader's order as a batch sampler: for each step of its rank, the numbers of the windows in `WindowDataset`.

    It begins where the loader is. A `DataLoader` asks it ahead of its batches, so the loader moves only when all steps
    were asked for; save `loader.state_dict(steps=n)` after n batches. Repetitions that fill the last step
    (`.tail("pad")`) come like others, and random numbers are those of the window in epoch 0.

    Args:
        loader: Whose order it is.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        prepared, (epoch, sample) = self._loader._prepared, self._loader._entry()  # noqa: SLF001 - the two are one thing
        planner, size = prepared.planner(), self._loader._steps.local_batch  # noqa: SLF001 - the two are one thing
        for part in parts(range(len(self)), size, most=_AT_ONCE):
            found = planner.samples(epoch, sample, part)
            numbers = prepared.numbers(found.rows, found.anchors)
            yield from numbers.reshape(-1, size).tolist()
        self._loader.finish()

"""What users do to batches on their way out; each transform is a picklable value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.training.samples import batch_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from seqlake.training.randomness import Random
    from seqlake.training.samples import Batch


class Transform(Protocol):
    """A batch in, a batch out."""

    def __call__(self, batch: Batch, random: Random, /) -> Batch:
        """The batch changed, or another one."""


@dataclass(frozen=True)
class MapBatch:
    """A user's function over batches."""

    function: Callable[..., Batch]
    random: bool

    def __call__(self, batch: Batch, random: Random, /) -> Batch:
        """What the function makes of the batch."""
        return self.function(batch, random) if self.random else self.function(batch)


@dataclass(frozen=True)
class MapSamples:
    """A user's function over single samples, whose results are stacked."""

    function: Callable[..., Batch]
    random: bool

    def __call__(self, batch: Batch, random: Random, /) -> Batch:
        """The samples' results, stacked along a new first axis."""
        samples = []
        for number in range(len(random)):
            sample = batch_like(batch, ((name, values[number]) for name, values in batch.items()))
            samples.append(self.function(sample, random.generator(number)) if self.random else self.function(sample))
        if not samples:
            return batch
        return batch_like(batch, ((name, stack([sample[name] for sample in samples])) for name in samples[0]))


@dataclass(frozen=True, eq=False)
class Normalize:
    """`(x - mean) / std` of temporal and vector columns; missing steps stay zero."""

    mean: Mapping[str, NDArray[Any]]
    std: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, stats: Mapping[str, Mapping[str, Any]]) -> Normalize:
        """From `{column: {"mean": [D], "std": [D]}}`; a standard deviation of 0 counts as 1.

        Raises:
            ValueError: A column without mean or std.
        """
        mean, std = {}, {}
        for name, numbers in stats.items():
            if not {"mean", "std"} <= set(numbers):
                raise ValueError(
                    f"normalize: expected 'mean' and 'std' for {name!r}, found {', '.join(numbers) or 'none'}."
                )
            mean[name] = np.asarray(numbers["mean"], dtype=np.float64)
            spread = np.asarray(numbers["std"], dtype=np.float64)
            std[name] = np.where(spread == 0, 1.0, spread)
        return cls(mean, std)

    def __call__(self, batch: Batch, _random: Random, /) -> Batch:
        """The batch with its columns normalized, in their own floating-point type."""
        for name, mean in self.mean.items():
            if name not in batch:
                raise SchemaMismatchError(f"normalize: no column {name!r} in the batch ({', '.join(batch)}).")
            values = batch[name]
            kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
            scaled = ((values - mean) / self.std[name]).astype(kind)
            mask = batch.get(f"{name}_mask")
            if mask is not None and not mask.all():
                scaled[~mask] = 0
            batch[name] = scaled
        return batch


def stack(values: list[Any], /) -> NDArray[Any]:
    """Samples' values as one array; anything but numbers as Python objects."""
    first = np.asarray(values[0])
    if first.dtype.kind in "biufcmM":
        return np.stack([np.asarray(value) for value in values])
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects

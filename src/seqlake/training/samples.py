"""What passes through a loader: samples of some steps, and the batches that are made of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import BadSample

Batch = dict[str, Any]

SOURCE, SOURCE_NUMBER = "mix_source", "mix_source_number"
"""What batches of several datasets hold beside their columns: name and number of the dataset of each sample."""

_OLD_KEYS = {"source": SOURCE, "source_number": SOURCE_NUMBER}


class MixtureBatch(Batch):
    """A batch of several datasets; the keys of older releases, `source` and `source_number`, work with a warning."""

    def __missing__(self, name: str) -> Any:
        if name not in _OLD_KEYS:
            raise KeyError(name)
        warnings.warn(
            f"batch[{name!r}] of a mixture is now batch[{_OLD_KEYS[name]!r}], which no column is called; the old key "
            "goes with the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self[_OLD_KEYS[name]]


def batch_like(batch: Batch, items: Iterable[tuple[str, Any]], /) -> Batch:
    """Other values under the names of a batch, as a batch of the same class."""
    return MixtureBatch(items) if isinstance(batch, MixtureBatch) else dict(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of some steps, in the order they are delivered.

    Attributes:
        epochs, numbers: [n] which sample of which epoch each is: the key of its random numbers.
        rows: [n] the row it comes from.
        anchors: [n] clock step it is anchored at.
        valid: [n] False where it is a repetition that fills a batch, or bad.
        bad: Position in [n] -> what is wrong with the sample that should be there.
        substituted: [n] True where another sample stands in its place; None where that never happens.
    """

    epochs: Ints
    numbers: Ints
    rows: Ints
    anchors: Ints
    valid: NDArray[np.bool_]
    bad: Mapping[int, Sequence[BadSample]] = field(default_factory=dict)
    substituted: NDArray[np.bool_] | None = None

    def part(self, start: int, stop: int) -> Samples:
        """Those from one position to before another."""
        inside = slice(start, stop)
        return Samples(
            epochs=self.epochs[inside],
            numbers=self.numbers[inside],
            rows=self.rows[inside],
            anchors=self.anchors[inside],
            valid=self.valid[inside],
            bad={place - start: self.bad[place] for place in self.bad if start <= place < stop},
            substituted=None if self.substituted is None else self.substituted[inside],
        )

    def chosen(self, which: Ints | slice, *, before: int = 0) -> Samples:
        """Some of them as samples of one dataset, of whose rows `before` rows of others are counted first."""
        return Samples(
            epochs=self.epochs[which],
            numbers=self.numbers[which],
            rows=self.rows[which] - before,
            anchors=self.anchors[which],
            valid=self.valid[which],
        )

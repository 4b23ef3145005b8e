"""The samples of a mixture: parts with an order of their own each, dealt out by the schedule."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.training.mixtures.schedule import Proportions, Schedule
from seqlake.training.order import Axis, Order, Shuffle, Visits, resolved
from seqlake.training.randomness import Substitutes
from seqlake.training.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Ints, Readable
    from seqlake.training.steps import Steps
    from seqlake.training.survey import WindowSurvey


@dataclass(frozen=True, kw_only=True, eq=False)
class MixturePart:
    """One source of a mixture, or one group of a dataset's rows.

    Attributes:
        name: In messages, and part of the key of its order.
        member: Number of the dataset it belongs to.
        survey: Of that dataset.
        axis: Its windows.
        rows: [rows of the axis] their numbers among all rows of the mixture's datasets.
        shuffle: Lanes and block of its order; None is source order.
        seed: Of its order.
        first_row: Number of its dataset's first row among all rows.
        first_shard: Number of its dataset's first shard among all shards.
    """

    name: str
    member: int
    survey: WindowSurvey = field(repr=False)
    axis: Axis = field(repr=False)
    rows: Ints = field(repr=False)
    shuffle: Shuffle | None
    seed: int
    first_row: int = 0
    first_shard: int = 0

    @classmethod
    def of(
        cls,
        survey: WindowSurvey,
        *,
        name: str,
        shuffle: bool | Shuffle,
        seed: int,
        member: int = 0,
        first_row: int = 0,
        first_shard: int = 0,
        only: Ints | None = None,
    ) -> MixturePart:
        """A part of a dataset: all of its rows, or only some.

        Args:
            survey: Of the dataset.
            name: Of the part: other parts may come and go without moving this one's order.
            shuffle: As a loader takes it.
            seed: Of the loader.
            member: Number of the dataset.
            first_row: Number of its first row among all rows.
            first_shard: Number of its first shard among all shards.
            only: Row numbers of the dataset, ascending.
        """
        axis, rows = survey.axis, np.arange(survey.rows)
        if only is not None:
            windows = axis.row_windows[only]
            axis = Axis.of(windows, shard_rows=np.diff(np.searchsorted(only, survey.first_rows)))
            rows = only
        words = hashlib.blake2b(f"seqlake mix seed {seed} source {name}".encode(), digest_size=16).digest()
        return cls(
            name=name,
            member=member,
            survey=survey,
            axis=axis,
            rows=first_row + rows,
            shuffle=resolved(shuffle, axis.shard_windows),
            seed=int.from_bytes(words, "little"),
            first_row=first_row,
            first_shard=first_shard,
        )

    def order(self, epoch: int) -> Order:
        """The order of one of its epochs."""
        return Order(shard_windows=self.axis.shard_windows, shuffle=self.shuffle, seed=self.seed, epoch=epoch)


class Mixture:
    """Parts in proportions: which window of which part each sample is.

    Args:
        parts: As many as the proportions name, in their order.
        proportions: In whole numbers.
    """

    def __init__(self, parts: Sequence[MixturePart], proportions: Proportions) -> None:
        self.parts = parts
        self.schedule: Schedule = Schedule(proportions)
        self._samples = self.schedule.epoch([len(part.axis) for part in parts])
        self._orders: dict[tuple[int, int], Order] = {}

    def __len__(self) -> int:
        """Samples of an epoch of the mixture."""
        return self._samples

    @property
    def digest(self) -> str:
        """Everything that decides the mixture's order beside datasets, window and seed."""
        parts = [(part.name, len(part.axis), part.shuffle) for part in self.parts]
        text = f"{self.schedule.proportions.digest} {parts!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def locate(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """[n] samples, counted over all epochs -> the part, the row and the anchor of each."""
        parts, numbers = self.schedule.locate(samples)
        rows, anchors = np.empty_like(samples), np.empty_like(samples)
        for number, drawn in split(parts):
            epochs, places = np.divmod(numbers[drawn], len(self.parts[number].axis))
            rows[drawn], anchors[drawn] = self._located(number, epochs, places)
        return parts, rows, anchors

    def substitutes(self, samples: Ints, attempt: int) -> tuple[Ints, Ints]:
        """[n] samples, counted over all epochs -> row and anchor of others of the same parts; see `Substitutes`."""
        parts, numbers = self.schedule.locate(samples)
        rows, anchors = np.empty_like(samples), np.empty_like(samples)
        for number, drawn in split(parts):
            part = self.parts[number]
            epochs, places = np.divmod(numbers[drawn], len(part.axis))
            choice = Substitutes(samples=len(part.axis), shuffle=part.shuffle, seed=part.seed)
            rows[drawn], anchors[drawn] = self._located(number, epochs, choice.of(epochs, places)[:, attempt])
        return rows, anchors

    def _located(self, number: int, epochs: Ints, places: Ints) -> tuple[Ints, Ints]:
        """[n] samples of a part's epochs -> row and anchor of each."""
        part, windows = self.parts[number], np.empty_like(places)
        for epoch, same in split(epochs):
            windows[same] = self._order(number, epoch).windows(places[same])
        places, index = part.axis.locate(windows)
        rows = part.rows[places]
        return rows, part.survey.anchors(rows - part.first_row, index)

    def visits(self, epoch: int) -> Visits:
        """When each shard is needed in an epoch of the mixture; shards are numbered on through its datasets."""
        begin, end = epoch * len(self), (epoch + 1) * len(self)
        first, stop = self.schedule.taken(begin).tolist(), self.schedule.taken(end).tolist()
        shards, begins, ends = [], [], []
        for number, part in enumerate(self.parts):
            size = len(part.axis)
            epochs = range(first[number] // size, -(-stop[number] // size)) if stop[number] > first[number] else ()
            for later in epochs:
                needed = self._order(number, later).visits()
                low = np.maximum(needed.begins + later * size, first[number])
                high = np.minimum(needed.ends + later * size, stop[number])
                inside = low < high
                shards.append(needed.shards[inside] + part.first_shard)
                begins.append(self.schedule.places(number, low[inside]) - begin)
                ends.append(self.schedule.places(number, high[inside] - 1) + 1 - begin)
        which, since, until = (np.concatenate(part) for part in (shards, begins, ends))
        by_begin = np.lexsort((which, since))
        return Visits(shards=which[by_begin], begins=since[by_begin], ends=until[by_begin])

    def _order(self, part: int, epoch: int) -> Order:
        if (part, epoch) not in self._orders:
            for old in [key for key in self._orders if key[0] == part and not epoch - 1 <= key[1] <= epoch + 1]:
                self._orders.pop(old, None)
            self._orders[part, epoch] = self.parts[part].order(epoch)
        return self._orders[part, epoch]


class MixPlanner:
    """`Planner` of a mixture."""

    def __init__(self, mixture: Mixture, steps: Steps) -> None:
        self._mixture = mixture
        self._steps = steps

    @property
    def local_batch(self) -> int:
        """Samples of a step on this rank."""
        return self._steps.local_batch

    def samples(self, epoch: int, position: int, steps: Ints) -> Samples:
        """The samples of some steps of the pass that begins at a sample of an epoch."""
        further, numbers, valid = self._steps.take(position, steps)
        epochs = epoch + further
        _, rows, anchors = self._mixture.locate(epochs * len(self._mixture) + numbers)
        return Samples(epochs=epochs, numbers=numbers, rows=rows, anchors=anchors, valid=valid)

    def shards(self, epoch: int, position: int, steps: Ints) -> Ints:
        """The shards that samples of some steps are in, ascending; for few steps."""
        further, numbers, _ = self._steps.take(position, steps)
        parts, rows, _ = self._mixture.locate((epoch + further) * len(self._mixture) + numbers)
        shards = [np.zeros(0, np.int64)]
        for number, drawn in split(parts):
            part = self._mixture.parts[number]
            shards.append(part.survey.shards_of(rows[drawn] - part.first_row) + part.first_shard)
        return np.unique(np.concatenate(shards))

    def visits(self, epoch: int, position: int) -> Visits:  # noqa: ARG002 - every rank needs every lane
        """When each shard is needed in an epoch."""
        return self._mixture.visits(epoch)

    def substitutes(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        """Samples to be tried in the places of others, of the same sources."""
        rows, anchors = self._mixture.substitutes(epochs * len(self._mixture) + numbers, attempt)
        valid = np.ones(len(rows), np.bool_)
        return Samples(epochs=epochs, numbers=numbers, rows=rows, anchors=anchors, valid=valid)


def split(keys: Ints, /) -> Iterator[tuple[int, Ints]]:
    """Each key that occurs, ascending, with the positions where it does, ascending."""
    if not len(keys):
        return
    if keys[0] == keys[-1] and (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys))
        return
    by_key = np.argsort(keys, kind="stable")
    unique, starts = np.unique(keys[by_key], return_index=True)
    yield from zip(unique.tolist(), np.split(by_key, starts[1:]), strict=True)


# ---- groups of one dataset


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Rows of one dataset, grouped by the values of a column.

    Attributes:
        column: A scalar column.
        weights: Of each value; None gives all groups the same.
        samples: Samples of an epoch.
    """

    column: str
    weights: tuple[tuple[object, float], ...] | None
    samples: int | None

    def mixture(self, source: Readable, survey: WindowSurvey, *, shuffle: bool | Shuffle, seed: int) -> Mixture:
        """Groups of a dataset as parts; groups without windows are left out.

        Raises:
            SchemaMismatchError: No scalar column of this name.
            ValueError: Weights that do not name all groups, or name others.
        """
        values = _values(source, self.column)
        windows = survey.axis.row_windows
        rows: dict[object, list[int]] = {}
        for row in np.flatnonzero(windows).tolist():
            rows.setdefault(values[row], []).append(row)
        weights: Mapping[object, float] = dict.fromkeys(rows, 1) if self.weights is None else dict(self.weights)
        if missing := [value for value in rows if value not in weights]:
            raise ValueError(
                f"weights: {len(missing)} groups of {self.column!r} have windows and no weight, the first is "
                f"{missing[0]!r}. Give them 0 to leave them out."
            )
        known = set(values)
        if unknown := [value for value in weights if value not in known]:
            raise ValueError(f"weights: {unknown[0]!r} is no value of {self.column!r}.")
        present = sorted(rows, key=repr)
        proportions = Proportions.of({repr(value): weights[value] for value in present}, samples=self.samples)
        parts = [
            MixturePart.of(
                survey, name=repr(value), shuffle=shuffle, seed=seed, only=np.array(rows[value], dtype=np.int64)
            )
            for value in present
        ]
        return Mixture(parts, proportions)


def _values(source: Readable, column: str) -> list[object]:
    """One scalar column of all rows."""
    if column not in source.schema or source.schema[column].category != "scalar":
        raise SchemaMismatchError(
            f"weights: {column!r} is no scalar column of the loader's source.",
            hint=f"It has {', '.join(name for name in source.schema if source.schema[name].category == 'scalar')}.",
        )
    values: list[object] = []
    for shard in source.shards():
        reader = shard.open()
        try:
            for batch in reader.batches([column]):
                values.extend(batch.column(0).to_pylist())
        finally:
            reader.close()
    return values

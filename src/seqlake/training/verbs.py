"""What a loader may be told: each verb returns a new loader, at the same position."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from seqlake.training.bad_data.damage import OnError
from seqlake.training.frames.ahead import FrameOptions
from seqlake.training.mixtures.samples import Groups
from seqlake.training.steps import TAILS
from seqlake.training.transforms import MapBatch, MapSamples, Normalise
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.training.bad_data.damage import Policy
    from seqlake.training.batches import Batch
    from seqlake.training.frames.ahead import Layout
    from seqlake.training.prepared import Prepared
    from seqlake.training.settings import Settings
    from seqlake.training.steps import Tail

_LEFT_ALONE = {"scalar", "file", "frames"}  # what statistics are also made of, and `normalise` is not for


class Verbs:
    """The verbs of `Loader`."""

    _prepared: Prepared

    @property
    def _position(self) -> tuple[int, int]:
        raise NotImplementedError

    def map(self, function: Callable[..., Batch], /, *, random: bool = False) -> Self:
        """Apply a function to each sample (a dict without the batch axis) and stack the results.

        Convenient and slow: `map_batch` does the same for all samples at once.

        Args:
            function: `sample -> sample`, or with `random` `(sample, numpy generator) -> sample`.
            random: Hand over a generator that belongs to the sample: seed, epoch and sample number decide it.

        Raises:
            ValueError: Whole sequences that are packed.
        """
        window = self._settings.window
        if isinstance(window, Whole) and window.packed:
            raise ValueError("Loader map: packed sequences lie end to end and are no samples to map; use map_batch.")
        return self._with(transforms=(*self._settings.transforms, MapSamples(function, random)))

    def map_batch(self, function: Callable[..., Batch], /, *, random: bool = False) -> Self:
        """Apply a function to each batch.

        Args:
            function: `batch -> batch`, or with `random` `(batch, Random) -> batch`.
            random: Hand over a `Random`, whose numbers belong to the samples and not to the batch.
        """
        return self._with(transforms=(*self._settings.transforms, MapBatch(function, random)))

    def normalise(self, stats: Mapping[str, Mapping[str, Any]], /) -> Self:
        """Give `(x - mean) / std` of some columns; missing steps stay zero.

        Args:
            stats: `{column: {"mean": [D], "std": [D]}}`, or what `statistics` found: then columns that the window does
                not ask for, scalar ones, which are labels, and frames stay as they are. A std of 0 counts as 1.
        """
        schema, window = self._prepared.schema, self._settings.window
        wanted = {
            name: own
            for name, own in stats.items()
            if (name in window.columns or name not in schema) and own.get("category") not in _LEFT_ALONE
        }
        return self._with(transforms=(*self._settings.transforms, Normalise.of(wanted)))

    def tail(self, rule: Tail, /) -> Self:
        """What becomes of the last samples of an epoch that do not fill a step.

        Args:
            rule: `"drop"` leaves them out (the default when shuffling), `"pad"` fills the step with repetitions whose
                `valid` is False (the default otherwise), `"carry"` takes them into the next epoch's first step.
        """
        if rule not in TAILS:
            raise ValueError(f"Loader tail: expected one of {', '.join(TAILS)}, found {rule!r}.")
        return self._with(tail=rule)

    def global_batch(self, samples: int, /) -> Self:
        """Fix the samples of a step over all ranks; ranks then differ by at most one sample.

        Args:
            samples: At least `world_size`.
        """
        if not isinstance(samples, int) or samples < self._settings.world_size:
            raise ValueError(
                f"Loader global_batch: expected at least one sample for each of {self._settings.world_size} ranks, "
                f"found {samples!r}."
            )
        return self._with(global_batch=samples)

    def weights(
        self, column: str, weights: Mapping[Any, float] | None = None, /, *, samples: int | None = None
    ) -> Self:
        """Balance the groups of a dataset: an exact mixture of the rows that share a value of a column.

        Each group has epochs of its own: all its windows come once before any comes again. The new loader begins at
        its beginning; a tail that would be dropped is carried into the next epoch, so that no group loses samples.

        Args:
            column: A scalar column of the source, as in `"task"`.
            weights: Value -> weight; equal for all by default. 0 leaves a group out.
            samples: Samples of an epoch; by default until every window of every group has come at least once.

        Raises:
            ValueError: A weight that cannot be meant, or a source that is a mixture already.

        Example:
            >>> balanced = loader.weights("task")
        """
        pairs = None if weights is None else tuple(weights.items())
        tail = "carry" if self._settings.tail == "drop" else self._settings.tail
        made = self._with(groups=Groups(column=column, weights=pairs, samples=samples), tail=tail)
        made.__dict__.update(_began=(0, 0))
        return made

    def frames(
        self,
        *,
        size: tuple[int, int] | None = None,
        layout: Layout = "THWC",
        device: str | None = None,
        threads: int | None = None,
    ) -> Self:
        """How frames of videos and images are delivered.

        Args:
            size: Height and width to scale to, in the same pass: averaged down, bicubic up.
            layout: `"THWC"` gives [B, W, height, width, 3], `"TCHW"` a view of it, [B, W, 3, height, width].
            device: Where videos are decoded: the CPU, or with the extra `torchcodec` a GPU, as in `"cuda:0"`.
            threads: How many decode; one for each core by default.

        Raises:
            MissingDependencyError: The device needs a package that is not installed.
        """
        size = tuple(size) if isinstance(size, list) else size
        options = FrameOptions(size=size, layout=layout, device=device or "cpu", threads=threads)
        options.check()
        return self._with(frames=options)

    def on_error(self, policy: Policy, /, *, budget: float | None = 0.01) -> Self:
        """What becomes of samples whose data are bad: a file gone or damaged, a frame or cell that cannot be read.

        Batches then have `valid` [B]. Shape and number of batches do not change. Broken connections and time-outs
        always raise: they say nothing about the data.

        Args:
            policy: `"raise"`, the default; `"mask"` delivers zeros, with False in `<column>_mask` where data are bad,
                and in `valid`; `"substitute"` puts another sample of the same lane and block in the place, chosen by
                seed, epoch and sample number alone, with True in `substituted` [B].
            budget: Bad samples of an epoch that are tolerated on this process: a count, a fraction of its samples
                (rounded up), or None for any number. `loader.ledger` has an entry for each.

        Raises:
            ValueError: An unknown policy, or a budget that is neither.
        """
        on_error = OnError(policy=policy, budget=budget)
        on_error.check()
        return self._with(on_error=on_error)

    def reuse_buffers(self) -> Self:
        """Write each batch's signals where the last ones were: a batch is valid until the next `next()`.

        Frames need no asking: their memory is used again once nobody has the batch any more.
        """
        return self._with(reuse=True)

    def _with(self, **changes: Any) -> Self:
        loader = copy.copy(self)
        prepared = self._prepared.changed(replace(self._settings, **changes))
        loader.__dict__.update(_prepared=prepared, _began=self._position, _delivered=0, _live=None)
        return loader

    @property
    def _settings(self) -> Settings:
        return self._prepared.settings

"""A dataset as batches of training examples, in an order that every machine agrees on."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from seqlake.arguments import knows_old_words
from seqlake.moved import OldName
from seqlake.training.bad_data.damage import OnError
from seqlake.training.engine import position_of
from seqlake.training.mixtures.engine import MixtureEngine
from seqlake.training.mixtures.samples import Groups
from seqlake.training.mixtures.schedule import Mix
from seqlake.training.passes import Pass, holding
from seqlake.training.settings import AudioOptions, LoaderSettings
from seqlake.training.sources import engine_of, named, pinned
from seqlake.training.steps import TAILS
from seqlake.training.torch import LoaderDataset, WindowDataset, WindowSampler
from seqlake.training.transforms import MapBatch, MapSamples, Normalize
from seqlake.windows.clouds import PointOptions
from seqlake.windows.spec import Whole, as_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from seqlake.protocols import Readable
    from seqlake.training.bad_data.damage import Ledger, Policy
    from seqlake.training.cache import Cache
    from seqlake.training.engine import TrainingEngine
    from seqlake.training.order import Shuffle
    from seqlake.training.plan import EpochPlan
    from seqlake.training.samples import Batch
    from seqlake.training.settings import DepthAs, Layout
    from seqlake.training.steps import Steps, Tail
    from seqlake.training.telemetry import Telemetry
    from seqlake.windows.spec import Window

_LEFT_ALONE = {"scalar", "file", "frames"}  # what statistics are also made of, and `normalize` is not for


@knows_old_words
class Loader:
    """Batches of windows, or of whole sequences, from any readable dataset.

    The order is a function of the dataset, the window, the seed and the epoch. It depends on no batch size, rank or
    machine: equal global batches give equal steps for every world size. Every window comes exactly once per epoch,
    every rank takes equally many steps, and a position in the epoch is one number.

    A batch is a dict of numpy arrays: for each temporal column `[B, W, ...]` and `<column>_mask` `[B, W]`, for each
    video and column of images uint8 `[B, W, height, width, 3]` and its mask, for each column of sound float32
    `[B, S, channels]` and its mask `[B, S]`, for each column asked for with None `[B]`
    and `<column>_mask` `[B]`, `sequence_id` `[B]`, `start` `[B]`, and with `.tail("pad")` or `.on_error` `valid` `[B]`.

    Where rows are samples (`source.schema.id` is None) and the window names columns, or is None for all of them, a
    batch has an array `[B, ...]` for each column whose cells have one declared shape, and a list of B values (texts,
    bytes, arrays of any shape) for every other; `<column>_mask` `[B]` only for columns that may be null.

    Args:
        source: A dataset, a selection, anything else that follows the `Readable` protocol, or a `Mix` of several.
        window: A mapping of columns to offsets, a `Window`, or `Whole(columns)`; names of columns mean `Whole(names)`,
            None all columns.
        batch_size: Samples a step on each rank.
        shuffle: True for the default, False for source order, or `Shuffle(lanes=, block=, visits=)`.
        seed: Any whole number.
        rank: This process among `world_size`; nothing is guessed from the environment.
        world_size: Number of processes that share every step.
        cache: Room for shards that cannot be read in place; a tenth of the machine's memory by default.

    Raises:
        ValueError: An argument out of range.
        TypeError: An argument of the wrong kind.

    Example:
        >>> loader = Loader(dataset, window={"obs_state": range(-1, 1), "action": range(16)}, batch_size=64)
        >>> next(iter(loader))["action"].shape
        (64, 16, 12)
    """

    def __init__(
        self,
        source: Readable | Mix,
        /,
        *,
        window: Window | Whole | Mapping[str, Any] | Sequence[str] | None,
        batch_size: int,
        shuffle: bool | Shuffle = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        cache: Cache | None = None,
    ) -> None:
        settings = LoaderSettings(
            window=as_window(window),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            rank=rank,
            world_size=world_size,
            cache=cache,
            tail="carry" if isinstance(source, Mix) else "drop" if shuffle else "pad",
        )
        settings.check()
        self._engine = _engine_of(source, settings)
        self._began = (0, 0)  # (epoch, sample) at which this pass began or the next one will
        self._delivered = 0  # batches of this pass that were handed out
        self._live: LoaderIterator | None = None

    @property
    def _steps(self) -> Steps:
        return self._engine.steps

    # ---- what is known before anything is read

    def __len__(self) -> int:
        """Steps of the pass under way, or of the next one: equal on every rank."""
        return self._steps.count(self._entry()[1])

    def plan(self) -> EpochPlan:
        """What one epoch will be: steps, samples, tail, clock, memory and shuffle quality, before any value is read.

        Shards are looked at when the plan is printed, or asked for what copies of them take.

        Example:
            >>> loader.plan().samples > 1000
            True
        """
        videos = tuple(dict.fromkeys(one.describe() for one in self._engine.copies))
        return replace(self._engine.plan(), copies=partial(holding, self._engine), videos=videos)

    # ---- what it met and did in this process

    @property
    def ledger(self) -> Ledger:
        """Bad samples delivered so far, with `on_error`; prints itself.

        Example:
            ```python
            for entry in loader.on_error("mask").ledger: print(entry)
            ```
        """
        return self._engine.ledger

    def report(self) -> Telemetry:
        """Where the time went so far: seconds by stage, bytes by origin, share of time waited; prints itself.

        Example:
            ```python
            print(loader.report())                      # after some batches
            ```
        """
        return self._engine.report()

    def __repr__(self) -> str:
        settings = self._settings
        return (
            f"Loader({settings.window!r}, batch_size={settings.batch_size}, shuffle={settings.shuffle}, "
            f"seed={settings.seed}, rank={settings.rank}, world_size={settings.world_size}, tail={settings.tail!r})"
        )

    # ---- iterating

    def __iter__(self) -> LoaderIterator:
        """Batches from where the state is: of epoch 0 first, of the next epoch after one is exhausted.

        A loader has one position, so it has one iterator: an older one raises RuntimeError when it is used again.

        Raises:
            ValueError: The dataset has fewer windows than a step.
        """
        self._end_live()
        self._began = self._entry()
        steps = range(self._steps.count(self._began[1]))
        if not steps and self._steps.samples and self._steps.tail == "drop":
            raise ValueError(
                f"{self._steps.samples} windows do not fill one step of {self._steps.global_batch}, and the tail is "
                "dropped: nothing would be delivered. Use .tail('pad') or a smaller batch."
            )
        self._live = LoaderIterator(self, self.batches(steps))
        return self._live

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            "A Loader is iterated over and has no numbered batches. For torch's DataLoader write "
            "DataLoader(loader.torch(), batch_size=None), or DataLoader(loader.dataset(), "
            "batch_sampler=loader.sampler()); its batches are as large as the loader's batch_size."
        )

    def batches(self, steps: range, /) -> Pass:
        """Some steps of the pass that begins at the loader's position, which does not move.

        Args:
            steps: Step numbers, as in `range(worker, len(loader), workers)`.

        Example:
            >>> [len(batch["start"]) for batch in loader.batches(range(2))]
            [64, 64]
        """
        return Pass(self._engine, position=self._entry(), steps=steps)

    @property
    def _position(self) -> tuple[int, int]:
        """(epoch, sample) of the next batch."""
        return self._moved(self._delivered) if self._delivered else self._began

    def _entry(self) -> tuple[int, int]:
        """Where a pass begins: a state at the end of an epoch means the next one."""
        epoch, sample = self._began
        over = self._steps.count(sample) == 0 and sample > 0
        return (epoch + 1, 0) if over else (epoch, sample)

    def _moved(self, steps: int) -> tuple[int, int]:
        """The position after some steps of the pass."""
        epoch, sample = self._entry()
        if not steps:
            return epoch, sample
        further, after = self._steps.after(sample, steps)
        return epoch + further, after

    def finish(self) -> None:
        """Go to where the pass ends, as if all its batches had been delivered here.

        Example:
            ```python
            loader.finish()                              # workers have delivered the epoch
            ```
        """
        self._delivered = len(self)
        self._end_live()

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.supersede()
            self._live = None
        self._go(self._position)

    def _go(self, position: tuple[int, int]) -> None:
        self._began, self._delivered = position, 0

    # ---- state

    def set_epoch(self, epoch: int, /) -> None:
        """Go to the beginning of an epoch.

        Example:
            >>> loader.set_epoch(0)                     # what `DataLoader` with workers needs before each epoch
        """
        if not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"set_epoch: expected a whole number from 0 on, found {epoch!r}.")
        self._end_live()
        self._go((epoch, 0))

    def state_dict(self, *, steps: int | None = None) -> dict[str, Any]:
        """Where the loader is, in under 1 kB of JSON values, equal on every rank.

        Args:
            steps: The state after so many steps of the pass that `iter` began last (or will begin), for loops that
                count for themselves, as with worker processes. By default the batches this loader delivered.

        Raises:
            ValueError: More steps than the pass has.

        Example:
            >>> state = loader.state_dict()             # put it into your checkpoint
        """
        if steps is not None and not 0 <= steps <= len(self):
            raise ValueError(
                f"state_dict: the pass has {len(self)} steps, so `steps` is 0 to {len(self)}; found {steps}."
            )
        epoch, sample = self._position if steps is None else self._moved(steps)
        return {**self._engine.identity, "epoch": epoch, "next_sample": sample}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Continue where a state was saved; batch size, rank and world size may have changed.

        Nothing of what lies before is read.

        Raises:
            LoaderStateError: The state belongs to another dataset, window or order; says what changed.

        Example:
            >>> loader.load_state_dict(loader.state_dict())
        """
        position = position_of(saved, self._engine.identity)
        self._end_live()
        self._go(position)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    # ---- other shapes of the same batches

    def torch(self, *, pin_memory: bool = False) -> LoaderDataset:
        """The same batches as a torch `IterableDataset` of tensors over the same memory.

        Args:
            pin_memory: Copy them into memory from which `.to(device, non_blocking=True)` does not block; without a
                GPU there is a warning, and they stay where they are.

        Example:
            >>> from torch.utils.data import DataLoader
            >>> batches = DataLoader(loader.torch(), batch_size=None, num_workers=2)  # in the same order
        """
        return LoaderDataset(self, pin_memory=pin_memory)

    def dataset(self) -> WindowDataset:
        """The windows as a map-style dataset in source order: `len`, `[i]` and `__getitems__`.

        Example:
            >>> loader.dataset()[0]["action"].shape
            (16, 12)
        """
        return WindowDataset(self._engine)

    def sampler(self) -> WindowSampler:
        """This loader's order for its `dataset()`: a batch sampler.

        Example:
            >>> from torch.utils.data import DataLoader
            >>> batches = DataLoader(loader.dataset(), batch_sampler=loader.sampler(), num_workers=2)
        """
        return WindowSampler(self)

    # ---- the same loader with something else asked of it: each verb returns a new one, at the same position

    def map(self, function: Callable[..., Batch], /, *, random: bool = False) -> Self:
        """Apply a function to each sample (a dict without the batch axis) and stack the results.

        Convenient and slow: `map_batch` does the same for all samples at once.

        Args:
            function: `sample -> sample`, or with `random` `(sample, numpy generator) -> sample`.
            random: Hand over a generator that belongs to the sample: seed, epoch and sample number decide it.

        Raises:
            ValueError: Whole sequences that are packed.

        Example:
            >>> halved = loader.map(lambda sample: {"action": sample["action"] / 2})
            >>> next(iter(halved))["action"].shape
            (64, 16, 12)
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

        Example:
            >>> last = loader.map_batch(lambda batch: {"action": batch["action"][:, -1]})
            >>> next(iter(last))["action"].shape
            (64, 12)
        """
        return self._with(transforms=(*self._settings.transforms, MapBatch(function, random)))

    def normalize(self, stats: Mapping[str, Mapping[str, Any]], /) -> Self:
        """Give `(x - mean) / std` of some columns; missing steps stay zero.

        Args:
            stats: `{column: {"mean": [D], "std": [D]}}`, or what `statistics` found: then columns that the window does
                not ask for, scalar ones, which are labels, and frames stay as they are. A std of 0 counts as 1.

        Example:
            >>> scaled = loader.normalize({"action": {"mean": np.zeros(12), "std": np.full(12, 2.0)}})
        """
        schema, window = self._engine.schema, self._settings.window
        wanted = {
            name: numbers
            for name, numbers in stats.items()
            if (name in window.columns or name not in schema) and numbers.get("category") not in _LEFT_ALONE
        }
        return self._with(transforms=(*self._settings.transforms, Normalize.of(wanted)))

    normalise: ClassVar[OldName] = OldName("normalize")

    def tail(self, rule: Tail, /) -> Self:
        """What becomes of the last samples of an epoch that do not fill a step.

        Args:
            rule: `"drop"` leaves them out (the default when shuffling), `"pad"` fills the step with repetitions whose
                `valid` is False (the default otherwise), `"carry"` takes them into the next epoch's first step.

        Example:
            >>> "valid" in next(iter(loader.tail("pad")))
            True
        """
        if rule not in TAILS:
            raise ValueError(f"Loader tail: expected one of {', '.join(TAILS)}, found {rule!r}.")
        return self._with(tail=rule)

    def global_batch(self, samples: int, /) -> Self:
        """Fix the samples of a step over all ranks; ranks then differ by at most one sample.

        Args:
            samples: At least `world_size`.

        Example:
            >>> len(next(iter(loader.global_batch(100)))["start"])
            100
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
        loader = self._with(groups=Groups(column=column, weights=pairs, samples=samples), tail=tail)
        loader.__dict__.update(_began=(0, 0))
        return loader

    def frames(
        self,
        *,
        size: tuple[int, int] | None = None,
        layout: Layout = "THWC",
        device: str | None = None,
        threads: int | None = None,
        copies: bool | str | PathLike[str] = False,
        depth: DepthAs = "metres",
    ) -> Self:
        """How frames of videos and images are delivered.

        Args:
            size: Height and width to scale to, in the same pass: averaged down, bicubic up.
            layout: `"THWC"` gives [B, W, height, width, 3], `"TCHW"` a view of it, [B, W, 3, height, width].
            device: Where videos are decoded: the CPU, or with the extra `torchcodec` a GPU, as in `"cuda:0"`.
            threads: How many decode; one for each core by default.
            copies: True takes the videos' frames from their training copies of this size, which `sl.prepare` makes; a
                folder, from the copies that were made there. Every video of the window needs one: pixels must not
                depend on what happens to be there.
            depth: `"metres"` gives depth maps as float32, `"codes"` as the whole numbers that are stored, uint8 or
                uint16, scaled to the nearest pixels: half the bytes, for who measures them on the GPU.

        Raises:
            MissingDependencyError: The device needs a package that is not installed.
            MissingCopyError: There are no training copies of that size. Batches raise it where a file has none, has
                changed since, or its copy lacks a step.

        Example:
            ```python
            loader.frames(size=(224, 224), layout="TCHW")      # uint8 [B, W, 3, 224, 224]
            ```
        """
        size = tuple(size) if isinstance(size, list) else size
        folder = copies if isinstance(copies, bool) else str(copies)
        options = replace(
            self._settings.frames,
            size=size,
            layout=layout,
            device=device or "cpu",
            threads=threads,
            copies=folder,
            depth=depth,
        )
        options.check()
        loader = self._with(frames=options)
        _ = loader._engine.copies  # noqa: SLF001 - of our own kind; says what is missing
        return loader

    def points(
        self, fields: Sequence[str] = ("x", "y", "z"), /, *, packed: bool = False, dtype: str | None = None
    ) -> Self:
        """How the points of clouds (columns of type `4d` with a file for each step) are delivered.

        Args:
            fields: Which fields of a point, side by side: C of them.
            packed: False pads to the largest cloud of the batch: `<column>` [B, W, N, C] and `<column>_points_mask`
                [B, W, N]. True lays them end to end: `<column>` [points, C] and `<column>_points_offsets` [B * W + 1].
            dtype: `"float32"` or `"float64"`; by default float32, and an error where that would round what is stored.

        Raises:
            ValueError: An argument that cannot be meant.

        Example:
            >>> lidar = loader.points(["x", "y", "z", "intensity"], packed=True)
        """
        points = PointOptions(fields=tuple(fields), packed=packed, dtype=dtype)
        points.check()
        return self._with(frames=replace(self._settings.frames, points=points))

    def audio(self, *, rate: int | None = None, channels: int | None = None) -> Self:
        """How sound is delivered: float32 [B, S, channels], full scale is 1.

        Args:
            rate: Samples a second that all sound is resampled to (FFmpeg's swresample, as `ffmpeg -ar` does it); by
                default the column's `sample_rate`, else the rate of the first file. It decides S.
            channels: 1 mixes all channels into one, their mean.

        Raises:
            ValueError: A rate or a number of channels that cannot be meant.

        Example:
            >>> speech = loader.audio(rate=16_000, channels=1)
        """
        options = AudioOptions(rate=rate, channels=channels)
        options.check()
        return self._with(audio=options)

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

        Example:
            >>> next(iter(loader.on_error("mask", budget=10)))["valid"].all()
            np.True_
        """
        on_error = OnError(policy=policy, budget=budget)
        on_error.check()
        return self._with(on_error=on_error)

    def reuse_buffers(self) -> Self:
        """Write each batch's signals where the last ones were: a batch is valid until the next `next()`.

        Frames need no asking: their memory is used again once nobody has the batch any more.

        Example:
            >>> quick = loader.reuse_buffers()
        """
        return self._with(reuse=True)

    def _with(self, **changes: Any) -> Self:
        loader = copy.copy(self)
        engine = self._engine.changed(replace(self._settings, **changes))
        loader.__dict__.update(_engine=engine, _began=self._position, _delivered=0, _live=None)
        return loader

    @property
    def _settings(self) -> LoaderSettings:
        return self._engine.settings


class LoaderIterator:
    """The batches of one pass; moves its loader's position with each batch delivered."""

    def __init__(self, loader: Loader, batches: Pass) -> None:
        self._loader: Loader | None = loader
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._loader is None:
            raise RuntimeError(
                "This iterator is over: its loader was iterated anew, or its state or epoch was set. A loader has one "
                "position; make a second Loader to iterate twice at a time."
            )
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader._go(self._loader._position)  # noqa: SLF001 - the two are one thing
            raise
        self._loader._delivered += 1  # noqa: SLF001 - the two are one thing
        return batch

    def close(self) -> None:
        """End what decodes ahead. The loader stays where it is: `iter(loader)` goes on from there."""
        self._batches.close()

    def supersede(self) -> None:
        """The loader has moved elsewhere."""
        self._loader = None
        self.close()


def _engine_of(source: Readable | Mix, settings: LoaderSettings) -> TrainingEngine:
    """What makes batches of one dataset, or of several."""
    if isinstance(source, Mix):
        return MixtureEngine.of(source, settings)
    source = pinned(source)
    return engine_of(source, named(settings, source.schema))

"""What torch takes: tensors over the memory of batches, an iterable dataset, a map-style dataset and its sampler."""

from __future__ import annotations

import sys
import warnings
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from seqlake.plugins import require
from seqlake.training.bad_data.damage import LEDGER
from seqlake.training.gather import torch as imported
from seqlake.training.lending import sendable
from seqlake.training.passes import Pipeline, parts
from seqlake.training.randomness import Substitutes
from seqlake.training.samples import Samples, batch_like
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Ledger
    from seqlake.training.engine import TrainingEngine
    from seqlake.training.samples import Batch

_AT_ONCE = 1 << 14  # windows whose numbers are computed together
_DONE = "worker_steps"


def tensors(batch: Batch, /) -> Batch:
    """A batch with tensors in place of arrays of numbers; they share memory. Strings and times stay as they are."""
    as_tensor = (imported() or require("torch", extra="torch")).from_numpy
    return batch_like(
        batch,
        (
            (name, as_tensor(values) if isinstance(values, np.ndarray) and values.dtype.kind in "biufc" else values)
            for name, values in batch.items()
        ),
    )


def sent(batch: Batch, /) -> Batch:
    """A batch with tensors as they are best sent to another process."""
    items = tensors(batch).items()
    torch = require("torch", extra="torch")
    return batch_like(
        batch, ((name, sendable(value) if isinstance(value, torch.Tensor) else value) for name, value in items)
    )


def pinned(batch: Batch, /) -> Batch:
    """A batch with tensors in memory that a GPU can copy from while the program goes on."""
    torch = require("torch", extra="torch")
    items = tensors(batch).items()
    return batch_like(
        batch, ((name, value.pin_memory() if isinstance(value, torch.Tensor) else value) for name, value in items)
    )


def _can_pin() -> bool:
    if require("torch", extra="torch").cuda.is_available():
        return True
    warnings.warn(
        "pin_memory: torch sees no GPU here, so batches stay in ordinary memory. Nothing else changes.", stacklevel=3
    )
    return False


def _iterable_dataset() -> Any:
    return require("torch.utils.data", extra="torch").IterableDataset


class _Batches(Protocol):
    """An iterator that can be ended early."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def close(self) -> None: ...


class _Loader(Protocol):
    """`Loader`, as far as it is asked here."""

    _engine: TrainingEngine

    def _entry(self) -> tuple[int, int]: ...

    def __len__(self) -> int: ...
    def __iter__(self) -> _Batches: ...
    @property
    def ledger(self) -> Ledger: ...
    def batches(self, steps: range, /) -> _Batches: ...
    def finish(self) -> None: ...
    def state_dict(self, *, steps: int | None = None) -> dict[str, Any]: ...
    def load_state_dict(self, saved: Mapping[str, Any], /) -> None: ...


class LoaderDataset:
    """A loader as a torch `IterableDataset` whose items are whole batches.

    Give it to a `DataLoader` with `batch_size=None`, or iterate over it directly. With `num_workers=k` worker j makes
    steps j, j + k, ..., which the `DataLoader` hands out in turn: the order is that of one process. Workers cannot
    move the loader in the main process: there, count steps yourself and use `loader.state_dict(steps=n)`, and call
    `loader.set_epoch(e)` before each epoch. `torchdata`'s `StatefulDataLoader` does both by itself. With `on_error`,
    workers' batches carry what their ledgers entered: see `Ledger.collect`. They are not pinned here:
    `DataLoader(pin_memory=True)` does that.
    """

    def __new__(cls, loader: _Loader, *, pin_memory: bool = False) -> Self:  # noqa: ARG004, D102 - __init__ takes them; not a method of the public kind
        # Torch decides by isinstance whether a dataset is iterable, and torch is only imported when it is used.
        base = _iterable_dataset()
        kind = cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__reduce__": _reduce})
        dataset: Self = object.__new__(kind)
        return dataset

    def __init__(self, loader: _Loader, *, pin_memory: bool = False) -> None:
        self.loader = loader
        self.pin_memory = pin_memory
        self._done = 0  # steps that this worker process made of the pass under way

    def __iter__(self) -> Iterator[Batch]:
        """Batches of tensors; in a worker process, that worker's steps.

        Raises:
            TypeError: A `DataLoader` would stack whole batches, since it was not given `batch_size=None`.
        """
        _refuse_stacking(sys._getframe(1).f_locals.get("self"))  # noqa: SLF001 - torch tells a dataset nothing
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        worker = require("torch.utils.data", extra="torch").get_worker_info()
        if worker is None:
            finished = pinned if self.pin_memory and _can_pin() else tensors
            with closing(iter(self.loader)) as batches:
                yield from map(finished, batches)
            return
        steps = range(worker.id, len(self.loader), worker.num_workers)[self._done :]
        self.loader._engine.share(worker.num_workers)  # noqa: SLF001 - the two are one thing
        self.loader.ledger.drain()  # a forked worker has the entries of its parent
        with closing(self.loader.batches(steps)) as batches:
            for batch in map(sent, batches):
                self._done += 1  # before it is handed out: a state is asked for after that
                if self.loader._engine.settings.on_error.tolerant:  # noqa: SLF001 - the two are one thing
                    batch[LEDGER] = self.loader.ledger.drain()
                yield batch
        self.loader.finish()
        self._done = 0

    def __len__(self) -> int:
        """Steps of an epoch from its beginning, as torch's loops take it; `len(loader)` is what is left of one."""
        return self.loader._engine.steps.longest  # noqa: SLF001 - the two are one thing

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: the loader's state, and in a worker process how many of its steps it made."""
        if require("torch.utils.data", extra="torch").get_worker_info() is None:
            return self.loader.state_dict()
        return {**self.loader.state_dict(steps=0), _DONE: self._done}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Continue where this process was; what worker processes saved needs as many of them.

        Raises:
            LoaderStateError: The state belongs to another dataset, window or order.
        """
        self.loader.load_state_dict(saved)
        self._done = saved.get(_DONE, 0)


def _refuse_stacking(fetcher: object) -> None:
    """What begins to read stacks several items: the fetcher of a `DataLoader` with a batch size and no other collation.

    Batches of batches would come without a word, of a shape that nobody asked for.
    """
    if getattr(fetcher, "auto_collation", False):
        data = require("torch.utils.data", extra="torch")
        if getattr(fetcher, "collate_fn", None) is data.default_collate:
            raise TypeError(
                "loader.torch() gives whole batches, and this DataLoader would stack several of them. Write "
                "DataLoader(loader.torch(), batch_size=None); how large a batch is says sl.Loader(..., batch_size=...)."
            )


def _reduce(dataset: LoaderDataset) -> tuple[Any, ...]:
    return partial(LoaderDataset, pin_memory=dataset.pin_memory), (dataset.loader,)


class WindowDataset:
    """All windows in source order, for samplers that choose for themselves.

    `len(dataset)`, `dataset[i]` and `dataset.__getitems__([i, j, ...])` are what torch's `DataLoader` asks a map-style
    dataset for. A sample is a dict without the batch axis. Pickles as a description and opens files where it is used.

    Example:
        >>> windows = loader.dataset()
        >>> windows[0]["action"].shape
        (16, 12)
    """

    def __init__(self, engine: TrainingEngine) -> None:
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

    def batches(self, numbers: Sequence[Sequence[int]], /, **options: Any) -> Any:
        """Batches of tensors of these samples, through torch's `DataLoader`; its workers change no order.

        Args:
            numbers: For each batch, the numbers of its samples.
            **options: Of `DataLoader`, as `num_workers=8`.

        Example:
            >>> [batch["action"].shape for batch in loader.dataset().batches([[0, 5, 2], [7]])]
            [torch.Size([3, 16, 12]), torch.Size([1, 16, 12])]
        """
        data = require("torch.utils.data", extra="torch")
        whole = _WholeBatches(self)
        return data.DataLoader(whole, sampler=numbers, batch_size=None, collate_fn=_as_it_is, **options)

    def _at(self, epochs: Ints, numbers: Ints) -> Samples:
        rows, anchors = self._engine.locate(numbers)
        valid = np.ones(len(numbers), dtype=np.bool_)
        return Samples(epochs=epochs, numbers=numbers, rows=rows, anchors=anchors, valid=valid)

    def _other(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        choice = Substitutes(samples=len(self), shuffle=None, seed=self._engine.settings.seed)
        return self._at(epochs, choice.of(epochs, numbers)[:, attempt])

    def __repr__(self) -> str:
        return f"WindowDataset({self._engine.settings.window!r})"


class _WholeBatches:
    """Batches by the numbers of their samples, gathered together where a worker asks for them."""

    def __init__(self, samples: WindowDataset) -> None:
        self._samples = samples

    def __getitem__(self, numbers: Sequence[int]) -> Batch:
        return sent(self._samples.batch(numbers))


def _as_it_is(batch: Batch) -> Batch:
    return batch


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

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        engine, (epoch, sample) = self._loader._engine, self._loader._entry()  # noqa: SLF001 - the two are one thing
        planner, size = engine.planner(), engine.steps.local_batch
        for part in parts(range(len(self)), size, most=_AT_ONCE):
            samples = planner.samples(epoch, sample, part)
            numbers = engine.numbers(samples.rows, samples.anchors)
            yield from numbers.reshape(-1, size).tolist()
        self._loader.finish()

"""Batches of one rank in an official order, epoch after epoch, with a state that both packages read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.compat.mosaicml.order import StreamingOrder


class NumberedSamples(Protocol):
    """What `loader.dataset()` gives, as far as it is asked here."""

    def batches(self, numbers: Sequence[Sequence[int]], /, **options: Any) -> Any:
        """Batches of tensors of these samples."""


class StreamingBatches:
    """What `StreamingDataLoader` is there: iterate for the next epoch, or for the rest of the one under way.

    Batches are dicts of tensors. They come through torch's `DataLoader`, whose worker processes change neither their
    order nor the state: that counts what was handed out. The order is that of `order.world.workers`, however many work.

    Args:
        samples: `loader.dataset()` of a `sl.Loader`: what is read, decoded and mapped.
        order: Which samples come when, and where the first epoch begins.
        rank: Among all ranks of all nodes.
        **options: Of `DataLoader`, as `num_workers=8, multiprocessing_context="forkserver"`.
    """

    def __init__(self, samples: NumberedSamples, order: StreamingOrder, *, rank: int = 0, **options: Any) -> None:
        self._samples = samples
        self._order = order
        self._rank = rank
        self._options = options
        self._next = order.epoch
        self._epoch, self._from, self._had = order.epoch, order.sample, 0

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, or the rest of the one that a state was in."""
        if self._next != self._epoch:
            self._epoch, self._from = self._next, 0
        self._next, self._had = self._epoch + 1, 0
        batches = list(self._order.batches(epoch=self._epoch, rank=self._rank, drop_first=self._from))
        numbered = self._samples.batches([numbers.tolist() for numbers in batches], **self._options)
        for numbers, batch in zip(batches, numbered, strict=True):
            self._had += len(numbers)  # before it is handed out: a state is asked for after that
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where this run is, as `StreamingDataLoader.state_dict()` says it; the same on every rank."""
        ranks = self._order.world.nodes * self._order.world.ranks
        return {
            "epoch": self._epoch,
            "sample_in_epoch": self._from + self._had * ranks,
            "num_canonical_nodes": self._order.parts,
            "shuffle_seed": self._order.seed,
            "initial_physical_nodes": self._order.initial_nodes or self._order.world.nodes,
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go on where a run of either package was; ranks and batch size may be others than there.

        Raises:
            LoaderStateError: It is no such state.
        """
        self._order = self._order.at(state)
        self._next = self._epoch = self._order.epoch
        self._from, self._had = self._order.sample, 0

"""The samples of each batch as MosaicML Streaming 0.13 would have delivered them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from seqlake.compat.mosaicml import batching, partitions, shuffles
from seqlake.compat.mosaicml.partitions import World
from seqlake.compat.mosaicml.sampling import per_shard, resampled
from seqlake.training.mixtures.shares import Stream, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Ints

_SCATTERED = ("py1s", "py2s")


@dataclass(frozen=True, kw_only=True)
class StreamingOrder:
    """Which samples come in which batch; names and defaults mean what they mean in `StreamingDataset`.

    Samples are numbered on through the shards of all streams, as `loader.dataset()` numbers them. Everything is
    computed from the arguments: nothing is shared between processes.

    Attributes:
        streams: Each dataset's shards, and how much of it.
        batch_size: Of one rank.
        world: Nodes, ranks and workers. For `replication=k` divide the ranks by k, and ask for rank // k.
        shuffle: One of `shuffles.NAMES`; None for `shuffle=False`.
        seed: `shuffle_seed`.
        block_size: `shuffle_block_size`; by default 4 000 000 over the canonical nodes, at least 2**18.
        partition: `partition_algo`.
        canonical_nodes: `num_canonical_nodes`; by default the nodes of the first run, 64 times as many for py1s, py2s.
        initial_nodes: Nodes at the beginning of the run, where it is resumed on another number of them.
        batching: `batching_method`, one of `batching.NAMES`.
        epoch_size: Samples of an epoch, where streams do not decide it.
        fixed: `sampling_method="fixed"`: every epoch takes the same samples.
        granularity: `sampling_granularity`.

    Example:
        >>> order = StreamingOrder(streams=[Stream(sizes=np.array([3, 5, 4, 6]))], batch_size=4, shuffle="naive")
        >>> next(order.batches(epoch=0)).tolist()
        [5, 2, 0, 6]
    """

    streams: Sequence[Stream]
    batch_size: int
    world: World = field(default_factory=World)
    shuffle: str | None = "py1e"
    seed: int = 9176
    block_size: int | None = None
    partition: str = "relaxed"
    canonical_nodes: int | None = None
    initial_nodes: int | None = None
    batching: str = "random"
    epoch_size: int | None = None
    fixed: bool = False
    granularity: int = 1

    def batches(self, *, epoch: int, rank: int = 0, drop_first: int = 0) -> Iterator[Ints]:
        """The sample numbers of each batch of one rank, as its `DataLoader` would deliver them.

        Args:
            epoch: From 0.
            rank: Among all ranks of all nodes.
            drop_first: `sample_in_epoch` of a saved state: samples of the epoch that all ranks have had.

        Raises:
            ValueError: No such rank, or what `deal` raises.
        """
        if not 0 <= rank < self.world.nodes * self.world.ranks:
            raise ValueError(f"rank: expected 0 to {self.world.nodes * self.world.ranks - 1}, found {rank}.")
        node, local = divmod(rank, self.world.ranks)
        dealt = self.deal(epoch, drop_first=drop_first)[node, local]
        workers = [_batches(samples[samples >= 0], self.batch_size) for samples in dealt]
        for round_ in zip_longest(*workers):  # a worker that is done is passed over
            yield from (batch for batch in round_ if batch is not None)

    def deal(self, epoch: int, /, *, drop_first: int = 0) -> Ints:
        """All of an epoch: [nodes, ranks a node, workers a rank, batches a worker, batch size] with -1 for nothing.

        Raises:
            ValueError: A name that is not known, or numbers that do not go together; says which.
        """
        return batching.deal(self, epoch, drop_first=drop_first)

    @property
    def parts(self) -> int:
        """The number of canonical nodes."""
        nodes = self.initial_nodes or self.world.nodes
        return self.canonical_nodes or nodes * (64 if self.shuffle in _SCATTERED else 1)

    @property
    def block(self) -> int:
        """Samples that are mixed with each other."""
        return self.block_size or max(4_000_000 // self.parts, 1 << 18)

    @property
    def chosen(self) -> Ints:
        """[streams] samples of each in an epoch."""
        return chosen(self.streams, epoch_size=self.epoch_size, seed=self.seed)

    def places(
        self, samples: int, /, *, world: World | None = None, batch_size: int | None = None, drop_first: int = 0
    ) -> Ints:
        """The partition of so many places; by default of this world and batch size."""
        return partitions.partition(
            self.partition,
            samples,
            world=world or self.world,
            batch_size=batch_size or self.batch_size,
            canonical_nodes=self.parts,
            drop_first=drop_first,
            initial_nodes=self.initial_nodes,
        )

    def samples(self, epoch: int, /, *, only: int | None = None, share: float = 1.0) -> Ints:
        """The samples of an epoch in the order of its places.

        Args:
            epoch: From 0.
            only: One stream instead of all.
            share: The part of the block size that it has.
        """
        units, samples = self._units(epoch, only)
        if self.shuffle is None:
            return samples
        mixed = shuffles.shuffle(
            self.shuffle,
            units,
            canonical_nodes=self.parts,
            seed=self.seed,
            epoch=epoch,
            block_size=int(self.block * share),
        )
        return samples[mixed]

    def _units(self, epoch: int, only: int | None) -> tuple[Ints, Ints]:
        generator = np.random.default_rng(self.seed if self.fixed else self.seed + epoch)
        seed = self.seed + epoch if self.shuffle is not None and not self.fixed else self.seed
        units: list[int] = []
        samples: list[Ints] = []
        first = 0
        for number, (stream, choose) in enumerate(zip(self.streams, self.chosen.tolist(), strict=True)):
            if only in (None, number):
                counts = per_shard(stream.sizes, choose, granularity=self.granularity, seed=seed)
                more = resampled(stream.sizes, counts, first=first, generator=generator)
                units += more[0]
                samples += more[1]
            first += int(stream.sizes.sum())
        return np.array(units, dtype=np.int64), np.concatenate([np.zeros(0, np.int64), *samples])


def _batches(samples: Ints, size: int) -> list[Ints]:
    return [samples[at : at + size] for at in range(0, len(samples), size)]

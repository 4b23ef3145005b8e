"""The samples of each batch as MosaicML Streaming 0.13 would have delivered them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.arguments import COUNT, knows_old_words, whole
from seqlake.compat.mosaicml import partitions, shuffles
from seqlake.compat.mosaicml.partitions import World, dealt, in_order
from seqlake.errors import LoaderStateError
from seqlake.training.mixtures.shares import Stream, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Ints

NAMES = ("random", "stratified", "per_stream", "device_per_stream")
"""What `deal` knows."""


def deal(order: StreamingOrder, epoch: int, /, *, drop_first: int) -> Ints:
    """An epoch as `StreamingOrder.deal` gives it.

    Raises:
        ValueError: No method of that name, or a stream with too few samples for one batch.
    """
    if order.batching not in NAMES:
        raise ValueError(f"batching: expected one of {', '.join(NAMES)}, found {order.batching!r}.")
    if order.batching == "random":
        places = order.places(int(order.chosen.sum()), drop_first=drop_first)
        return _filled(places, order.samples(epoch))
    method = {"stratified": _stratified, "per_stream": _per_stream, "device_per_stream": _device_per_stream}
    batches = method[order.batching](order, epoch)
    total = order.batch_size * order.world.nodes * order.world.ranks
    batches = batches.reshape(-1, total)[drop_first // total :]
    nothing = np.full((-len(batches) % order.world.workers, total), -1, dtype=np.int64)
    return dealt(np.concatenate([batches, nothing]), world=order.world, batch_size=order.batch_size)


def _filled(places: Ints, samples: Ints) -> Ints:
    return np.where(places >= 0, samples[places], -1)


def _shares(order: StreamingOrder) -> Sequence[float]:
    """The proportion of each stream."""
    given = [stream.proportion for stream in order.streams]
    weights = order.chosen if None in given else np.array(given, dtype=np.float64)
    if None in given and order.epoch_size:  # then they are those of the sizes, not of what was rounded
        weights = np.array([float(stream.sizes.sum()) for stream in order.streams])
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def _full(places: Ints, size: int, *, stream: int) -> Ints:
    """[batches, size] of the places that come in this order, without what does not fill a batch.

    Args:
        places: With -1 for nothing.
        size: Of a batch.
        stream: For the message.

    Raises:
        ValueError: Not one batch is full.
    """
    batches = np.concatenate([places, np.full(-len(places) % size, -1, np.int64)]).reshape(-1, size)
    count = int((batches.min(axis=1) >= 0).sum())
    if not count:
        raise ValueError(
            f"batching: stream {stream} has {int((places >= 0).sum())} samples, too few for one batch of {size}."
        )
    return batches[:count]


def _in_turn(parts: Sequence[Ints], generator: np.random.Generator) -> Ints:
    """Batches of several streams in a random order that keeps each stream's own."""
    origins = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    generator.shuffle(origins)
    which = np.empty(len(origins), dtype=np.int64)
    which[np.argsort(origins, kind="stable")] = np.arange(len(origins))
    batches: Ints = np.concatenate(parts)[which]
    return batches


def _seed(order: StreamingOrder, epoch: int) -> int:
    return order.seed + epoch if order.shuffle is not None and not order.fixed else order.seed


def _stratified(order: StreamingOrder, epoch: int) -> Ints:
    """Every global batch has the streams' proportions."""
    world, shares = order.world, _shares(order)
    total = order.batch_size * world.nodes * world.ranks
    sizes = np.array([int(share * total) for share in shares], dtype=np.int64)
    if short := total - int(sizes.sum()):
        wanting = total * np.array(shares) - sizes
        sizes[np.flip(np.argsort(wanting))[:short]] += 1
    if not sizes.all():
        stream = int(np.argmin(sizes))
        raise ValueError(
            f"batching: stream {stream} has no share of a global batch of {total} (its proportion is "
            f"{shares[stream]:.2g}). Use a larger batch."
        )
    parts = []
    for number, (size, share) in enumerate(zip(sizes.tolist(), shares, strict=True)):
        samples = order.samples(epoch, only=number, share=share)
        places = order.places(len(samples), world=world.of(1), batch_size=1)
        parts.append(_full(in_order(_filled(places, samples)), size, stream=number))
    steps = min(len(part) for part in parts)
    return np.concatenate([part[:steps] for part in parts], axis=1)


def _per_stream(order: StreamingOrder, epoch: int) -> Ints:
    """Every global batch is of one stream."""
    total = order.batch_size * order.world.nodes * order.world.ranks
    parts = []
    for number, share in enumerate(_shares(order)):
        samples = order.samples(epoch, only=number, share=share)
        parts.append(_full(in_order(_filled(order.places(len(samples)), samples)), total, stream=number))
    return _in_turn(parts, np.random.default_rng(_seed(order, epoch)))


def _device_per_stream(order: StreamingOrder, epoch: int) -> Ints:
    """Every rank's batch is of one stream."""
    world, size = order.world, order.batch_size
    each, odd = divmod(order.parts, world.nodes)
    if odd:
        raise ValueError(
            f"batching: device_per_stream needs canonical nodes that are a multiple of the nodes; found {order.parts} "
            f"and {world.nodes}."
        )
    nodes: list[list[Ints]] = [[] for _ in range(world.nodes)]
    for number, share in enumerate(_shares(order)):
        samples = order.samples(epoch, only=number, share=share)
        places = order.places(len(samples), world=world.of(order.parts), batch_size=1)
        for node, parts in enumerate(nodes):
            of_node = _filled(places[node * each : (node + 1) * each], samples)
            parts.append(_full(in_order(of_node), size, stream=number))
    ranks = world.nodes * world.ranks
    most = max(sum(len(part) for part in node) for node in nodes)
    most += ranks - most % ranks
    generator = np.random.default_rng(_seed(order, epoch))
    filled = []
    for node_parts in nodes:
        batches = _in_turn(node_parts, generator)
        filled.append(np.concatenate([batches, np.full((most - len(batches), size), -1, np.int64)]))
    return np.stack(filled, axis=1)


_SCATTERED = ("py1s", "py2s")
_MOST_NODES = 1 << 20  # of a state, which may come from anywhere: each takes a turn of a loop
_STATE = {
    "epoch": COUNT,
    "sample_in_epoch": COUNT,
    "num_canonical_nodes": whole(1, _MOST_NODES).or_none(),
    "shuffle_seed": COUNT,
    "initial_physical_nodes": whole(1, _MOST_NODES).or_none(),
}
_MAY_LACK = {"num_canonical_nodes", "initial_physical_nodes"}


@knows_old_words
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
        batching: `batching_method`, one of `NAMES`.
        epoch_size: Samples of an epoch, where streams do not decide it.
        fixed: `sampling_method="fixed"`: every epoch takes the same samples.
        granularity: `sampling_granularity`.
        epoch: At which a run begins: see `loader`.
        sample: Of that epoch, the samples that all ranks have had.

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
    epoch: int = 0
    sample: int = 0

    def __post_init__(self) -> None:
        """Refuse a flag for a name: `shuffle=False` there is None here.

        Raises:
            TypeError: `shuffle` is True or False.
        """
        given: Any = self.shuffle
        if isinstance(given, bool):
            names = ", ".join(shuffles.NAMES)
            raise TypeError(f"StreamingOrder shuffle: expected None, or one of {names}; found {given}.")

    @classmethod
    def from_state(cls, state: Mapping[str, Any], /, **settings: Any) -> StreamingOrder:
        """The order of a run that MosaicML's package saved, beginning where it was.

        Args:
            state: What `state_dict` of `StreamingDataset` or `StreamingDataLoader` gave; it holds seed and canonical
                nodes.
            **settings: What the state does not say: `streams`, `batch_size`, `world`, `shuffle` and the rest.

        Raises:
            LoaderStateError: It is no such state.

        Example:
            >>> saved = {"epoch": 2, "sample_in_epoch": 8, "num_canonical_nodes": 1, "shuffle_seed": 9176,
            ...          "initial_physical_nodes": 1}
            >>> order = StreamingOrder.from_state(saved, streams=[Stream(sizes=np.array([12]))], batch_size=4)
            >>> order.epoch, order.sample
            (2, 8)
        """
        return cls(**settings).at(state)

    def at(self, state: Mapping[str, Any], /) -> StreamingOrder:
        """The same order, beginning where a state is; its seed and canonical nodes are the state's.

        Raises:
            LoaderStateError: It is no state of MosaicML Streaming.
        """
        given: Any = state
        if not isinstance(given, Mapping) or (lacking := sorted(_STATE.keys() - _MAY_LACK - given.keys())):
            what = f"a dict without {lacking[0]!r}" if isinstance(given, Mapping) else type(given).__name__
            raise LoaderStateError(
                f"Expected a state of MosaicML Streaming, with {', '.join(_STATE)}; found {what}.",
                hint="A state of sl.Loader goes back with loader.load_state_dict(state).",
            )
        try:
            for name, kind in _STATE.items():
                kind.check(f"state {name}", given.get(name))
        except ValueError as error:
            raise LoaderStateError(str(error)) from None
        return replace(
            self,
            epoch=given["epoch"],
            sample=given["sample_in_epoch"],
            seed=given["shuffle_seed"],
            canonical_nodes=given.get("num_canonical_nodes"),
            initial_nodes=given.get("initial_physical_nodes"),
        )

    def loader(self, samples: NumberedSamples, /, *, rank: int = 0, **options: Any) -> StreamingBatches:
        """Batches of tensors, epoch after epoch, with `state_dict` and `load_state_dict` in the official form.

        Args:
            samples: `sl.Loader(source, window=..., batch_size=...).dataset()`; of a `Mix` the streams' in their order.
            rank: Among all ranks of all nodes.
            **options: Of torch's `DataLoader`: `num_workers=8`.

        Example:
            ```python
            batches = order.loader(sl.Loader(dataset, window=None, batch_size=32).dataset(), num_workers=8)
            for batch in batches:
                state = batches.state_dict()
            ```
        """
        return StreamingBatches(samples, self, rank=rank, **options)

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
        return deal(self, epoch, drop_first=drop_first)

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


def per_shard(sizes: Ints, choose: int, /, *, granularity: int, seed: int) -> Ints:
    """[shards] how many samples an epoch takes of each.

    Args:
        sizes: [shards] samples of each.
        choose: Samples of all shards together.
        granularity: Samples that are taken of a shard at a time.
        seed: Of the choice; run and epoch may both be in it.

    Example:
        >>> per_shard(np.array([3, 5, 4, 6]), 7, granularity=3, seed=9176).tolist()
        [0, 5, 0, 2]
    """
    total = int(sizes.sum())
    if not choose % total:
        return sizes * choose // total
    picks = -(-sizes // granularity)
    shard_of = np.repeat(np.arange(len(sizes)), picks)
    size_of = np.full(len(shard_of), granularity)
    # As it is there, also where an empty shard has no last pick of its own and this meets another's.
    size_of[np.cumsum(picks) - 1] = sizes - (picks - 1) * granularity
    order = np.random.default_rng(seed).permutation(len(shard_of))
    counts, left = sizes * (choose // total), choose % total
    taken = size_of[order]
    taken = np.clip(left - (np.cumsum(taken) - taken), 0, taken)
    np.add.at(counts, shard_of[order], taken)
    return counts


def resampled(
    sizes: Ints, counts: Ints, /, *, first: int, generator: np.random.Generator
) -> tuple[list[int], list[Ints]]:
    """A stream's epoch before it is shuffled.

    Args:
        sizes: [shards] samples of each.
        counts: [shards] samples wanted of each.
        first: Number of the stream's first sample among those of all streams.
        generator: Chooses where a shard is not wanted whole.

    Returns:
        Sizes of the units that are shuffled as shards are, and the numbers of their samples.
    """
    units: list[int] = []
    samples: list[Ints] = []
    starts = first + np.cumsum(sizes) - sizes
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        if not size:
            continue
        whole, rest = divmod(count, size)
        units += [size] * whole
        samples += [start + np.arange(size)] * whole
        if rest:
            units.append(rest)
            samples.append(start + np.sort(generator.choice(size, rest, replace=False)))
    return units, samples


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

    Example:
        ```python
        for batch in order.loader(samples, rank=3): ...     # what rank 3 had
        ```
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

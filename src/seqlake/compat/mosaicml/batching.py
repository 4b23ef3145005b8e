"""What MosaicML Streaming 0.13 calls batching methods: how the streams of a mixture share batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.compat.mosaicml.partitions import dealt, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.compat.mosaicml.order import StreamingOrder
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

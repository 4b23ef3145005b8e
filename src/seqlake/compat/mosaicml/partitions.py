"""How MosaicML Streaming 0.13 deals the places of an epoch to nodes, ranks, workers and batches.

Partitions are [nodes, ranks a node, workers a rank, batches a worker, batch size], with -1 where there is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from seqlake.protocols import Ints

NAMES = ("orig", "relaxed")
"""What `partition` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who shares an epoch.

    Attributes:
        nodes: Machines.
        ranks: Processes of each that train.
        workers: Processes of each of those that load; 1 also where a process loads for itself.

    Example:
        ```python
        World(nodes=1, ranks=8, workers=2)
        ```
    """

    nodes: int = 1
    ranks: int = 1
    workers: int = 1

    def of(self, nodes: int) -> World:
        """The same with another number of nodes."""
        return replace(self, nodes=nodes)


def partition(
    name: str,
    samples: int,
    /,
    *,
    world: World,
    batch_size: int,
    canonical_nodes: int,
    drop_first: int = 0,
    initial_nodes: int | None = None,
) -> Ints:
    """Who takes which place of an epoch.

    Args:
        name: `"orig"`, or `"relaxed"`, which also deals to numbers of nodes that do not divide the canonical ones (or
            the other way round): as if there were as many nodes as at the beginning, then anew in that order.
        samples: Places of an epoch.
        world: Nodes, ranks and workers there are.
        batch_size: Of one rank.
        canonical_nodes: Runs of places that nodes stride through; one node has several, or several nodes share one.
        drop_first: Places that were taken already.
        initial_nodes: Nodes at the beginning of the run.

    Raises:
        ValueError: An unknown name, or numbers that do not divide each other.

    Example:
        >>> partition("orig", 10, world=World(ranks=2, workers=2), batch_size=2, canonical_nodes=2)[0, 0].tolist()
        [[[0, 1], [4, -1]], [[2, 3], [-1, -1]]]
    """
    if name not in NAMES:
        raise ValueError(f"partition: expected one of {', '.join(NAMES)}, found {name!r}.")
    everyone = world.nodes * world.ranks
    if samples + everyone - samples % everyone < drop_first:
        raise ValueError(f"partition: {drop_first} samples are said to be taken, and there are {samples}.")
    known = {"canonical_nodes": canonical_nodes, "drop_first": drop_first}
    if name == "orig" or initial_nodes is None or _divides(canonical_nodes, world.nodes):
        return _orig(samples, world, batch_size, **known)
    total = world.nodes * world.ranks * batch_size
    if total % (initial_nodes * world.ranks):
        raise ValueError(
            f"partition: a global batch of {total} cannot be dealt to the {initial_nodes * world.ranks} ranks that the "
            "run began with. The global batch must stay what it was."
        )
    before = _orig(samples, world.of(initial_nodes), total // (initial_nodes * world.ranks), **known)
    return dealt(in_order(before), world=world, batch_size=batch_size)


def in_order(parts: Ints, /) -> Ints:
    """A partition's places as they come: [places]."""
    return parts.transpose(3, 2, 0, 1, 4).reshape(-1)


def dealt(places: Ints, /, *, world: World, batch_size: int) -> Ints:
    """The partition in which places come in this order: the inverse of `in_order`."""
    return places.reshape(-1, world.workers, world.nodes, world.ranks, batch_size).transpose(2, 3, 1, 0, 4)


def _divides(one: int, other: int) -> bool:
    return max(one, other) % min(one, other) == 0


def _orig(samples: int, world: World, batch_size: int, *, canonical_nodes: int, drop_first: int) -> Ints:
    nodes, ranks = world.nodes, world.ranks
    if not _divides(canonical_nodes, nodes):
        raise ValueError(
            f"partition: {canonical_nodes} canonical nodes and {nodes} nodes; one must be a multiple of the other. "
            "The partition 'relaxed' needs that only when a run begins."
        )
    places = _by_canonical_node(samples, canonical_nodes, shared_by=max(1, nodes // canonical_nodes))
    # Canonical nodes take turns, and so do the nodes that have them.
    of_nodes = places.T.reshape(-1)[drop_first - drop_first % nodes :].reshape(-1, nodes).T
    if over := of_nodes.shape[1] % ranks:
        lack, have = ranks - over, of_nodes.shape[1]
        if ranks + lack - 1 <= have:
            again = of_nodes[:, have - ranks - lack + 1 : have - ranks + 1]
        else:
            again = np.tile(of_nodes, -(-lack // have))[:, :lack]
        of_nodes = np.concatenate([of_nodes, again], axis=1)
    of_ranks = of_nodes.reshape(nodes, -1, ranks)
    per_round = world.workers * batch_size
    nothing = np.full((nodes, -of_ranks.shape[1] % per_round, ranks), -1, dtype=np.int64)
    of_ranks = np.concatenate([of_ranks, nothing], axis=1).transpose(0, 2, 1)
    return of_ranks.reshape(nodes, ranks, -1, world.workers, batch_size).transpose(0, 1, 3, 2, 4)


def _by_canonical_node(samples: int, canonical_nodes: int, *, shared_by: int) -> Ints:
    """[canonical nodes, places of each]: consecutive places, a few repeated so that all have equally many.

    Args:
        samples: Places.
        canonical_nodes: Runs.
        shared_by: Nodes that share one run: its length is made a multiple of it.
    """
    longest = -(-samples // canonical_nodes)
    pad = -longest % shared_by
    if samples < canonical_nodes or (samples == canonical_nodes and shared_by > 1):
        return np.resize(np.arange(samples), (canonical_nodes, longest + pad))
    borders = np.arange(canonical_nodes + 1) * samples // canonical_nodes
    places: Ints = np.minimum(borders[:-1, None] + np.arange(longest), borders[1:, None] - 1)
    if not pad:
        return places
    wide = np.concatenate([places, np.zeros((canonical_nodes, pad), np.int64)], axis=1)
    end = wide.shape[1] - pad - shared_by + 1
    if end < pad and end != 1:
        raise ValueError(
            f"partition: {samples} samples are too few for {canonical_nodes} canonical nodes that {shared_by} nodes "
            "share each."
        )
    wide[:, -pad:] = wide[:, max(0, end - pad) : end]
    return wide

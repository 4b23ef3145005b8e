"""The five shuffles of MosaicML Streaming 0.13: shard sizes, seed and epoch give a permutation of all samples.

Each draws the same numbers from the same generators, in the same order, as the function of that name does there:
only so are the permutations equal. A *canonical node* is a fixed part of the dataset, whatever machines there are; a
shard that lies across the border of two is cut there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Ints

_Piece = tuple[int, int]
"""First sample and the one after the last."""


def shuffle(
    name: str, sizes: Ints, /, *, canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> Ints:
    """The order of an epoch.

    Args:
        name: `"naive"`, `"py1s"`, `"py2s"`, `"py1br"` or `"py1e"`.
        sizes: [shards] samples of each.
        canonical_nodes: Parts of the dataset whose samples never mix (but in `"naive"`).
        seed: Of the run.
        epoch: From 0.
        block_size: Samples over which `"py1br"` and `"py1e"` mix.

    Returns:
        [samples] sample numbers in the order they come.

    Raises:
        ValueError: No shuffle of that name, or a canonical node without samples (`"py1e"`).

    Example:
        >>> shuffle("py1s", np.array([3, 5, 4, 6]), canonical_nodes=1, seed=9176, epoch=0)[:5].tolist()
        [14, 13, 12, 15, 17]
    """
    if name not in NAMES:
        raise ValueError(f"shuffle: expected one of {', '.join(NAMES)}, found {name!r}.")
    sizes = np.asarray(sizes, dtype=np.int64)
    generator = np.random.default_rng(seed + epoch)
    if name == "naive":
        return generator.permutation(int(sizes.sum()))
    if name == "py2s":
        return _py2s(sizes, canonical_nodes, np.random.default_rng(seed), generator)
    ends = np.cumsum(sizes)
    shards = list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))
    np.random.default_rng(seed).shuffle(shards)
    nodes = [
        [(shards[which][0] + first, shards[which][0] + stop) for which, first, stop in node]
        for node in _cut([stop - first for first, stop in shards], canonical_nodes)
    ]
    for node in nodes:
        generator.shuffle(node)
    if name == "py1s":
        return _joined([_mixed(piece, generator) for node in nodes for piece in node])
    spread = _py1br if name == "py1br" else _py1e
    return spread(nodes, block_size, generator)


NAMES = ("naive", "py1s", "py2s", "py1br", "py1e")
"""What `shuffle` knows."""


def _cut(sizes: Sequence[int], parts: int) -> list[list[tuple[int, int, int]]]:
    """Runs of samples cut into parts as equal as can be: (run, its first sample, the one after its last) in each."""
    total = sum(sizes)
    borders = [total * (part + 1) // parts for part in range(parts)]
    cut: list[list[tuple[int, int, int]]] = [[] for _ in borders]
    part = at = 0
    for run, size in enumerate(sizes):
        first = 0
        while at + size - first > borders[part]:  # an empty run at a border belongs before it
            if room := borders[part] - at:
                cut[part].append((run, first, first + room))
                first, at = first + room, at + room
            part += 1
        cut[part].append((run, first, size))
        at += size - first
    return cut


def _mixed(piece: _Piece, generator: np.random.Generator) -> Ints:
    samples = np.arange(*piece)
    generator.shuffle(samples)
    return samples


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _py2s(sizes: Ints, canonical_nodes: int, fixed: np.random.Generator, generator: np.random.Generator) -> Ints:
    """Samples of a shard are mixed for the whole run, shards are cut, and the parts are mixed again."""
    ends = np.cumsum(sizes)
    shards = [np.arange(end - size, end) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    fixed.shuffle(shards)
    for samples in shards:
        fixed.shuffle(samples)
    pieces_in_order: list[Ints] = []
    for node in _cut([len(samples) for samples in shards], canonical_nodes):
        pieces = [shards[which][first:stop] for which, first, stop in node]
        generator.shuffle(pieces)
        for piece in pieces:
            generator.shuffle(piece)
        pieces_in_order += pieces
    return _joined(pieces_in_order)


def _py1br(nodes: Sequence[Sequence[_Piece]], block_size: int, generator: np.random.Generator) -> Ints:
    """Blocks of random size, from a random place on, are mixed, each with the end of the one before it."""
    least, most = int(0.75 * block_size), int(1.25 * block_size)
    parts: list[Ints] = []
    staggers = generator.integers(0, least, len(nodes)).tolist()
    for node, stagger in zip(nodes, staggers, strict=True):
        samples = _joined([np.arange(*piece) for piece in node])
        blocks: list[_Piece] = []
        at = 0
        while at < len(samples):
            size = int(generator.integers(least, most))
            blocks.append((max(at - stagger, 0), min(at + size - stagger, len(samples))))
            at += blocks[-1][1] - blocks[-1][0]
        for first, stop in blocks:
            generator.shuffle(samples[first:stop])
        parts.append(samples)
    return _joined(parts)


def _py1e(nodes: Sequence[Sequence[_Piece]], block_size: int, generator: np.random.Generator) -> Ints:
    """Samples of a piece are mixed, then each is moved by a random distance within its node."""
    least, most = int(0.75 * block_size), int(1.25 * block_size)
    parts: list[Ints] = []
    for node in nodes:
        sizes = [stop - first for first, stop in node]
        total, at = sum(sizes), 0
        if not total:
            raise ValueError(
                f"py1e: one of {len(nodes)} canonical nodes has no sample; expected at least one sample for each. "
                "Use fewer canonical nodes."
            )
        samples = _joined([_mixed(piece, generator) for piece in node])
        places = np.arange(total, dtype=np.float64)
        for size in sizes:
            reach = max((int(generator.integers(least, most)) - size) / 2, 0)
            low, high = max(-reach, -at), min(reach, total - at - size)
            places[at : at + size] += generator.uniform(low, high, size)
            at += size
        parts.append(samples[np.argsort(places)])
    return _joined(parts)

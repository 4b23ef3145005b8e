"""The nearest of many vectors, exactly: products in the precision of the column choose, float64 decides.

A product in float32 is off by no more than a known bound. What could be among the k nearest by that bound is compared
again in float64, so that the answer depends neither on the order of a sum nor on how many vectors are asked for.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Literal

import numpy as np

from seqlake.dataset.similarity.vectors import (
    LENGTHS,
    PLAIN,
    ShardVectors,
    VectorLengths,
    norms_of,
    scaled_of,
    units_of,
)
from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.similarity.vectors import Floats, VectorPiece
    from seqlake.protocols import Ints

Metric = Literal["cosine", "dot", "l2"]

_SHARDS = 256  # whose pieces are known at a time
_AT_ONCE = 4 << 20  # bytes of vectors that are compared again at a time
# Row by row on the thread that asks; the product of a matrix wakes the threads of NumPy's library, which others wait
# for. NumPy has it since 2.0.
_DOTS = getattr(np, "vecdot", np.matmul)


@dataclass(frozen=True, slots=True, eq=False)
class NearestQuery:
    """What is looked for.

    Attributes:
        column: Of the vectors that are compared.
        vectors: [Q, D] in float64.
        metric: What near means.
        k: Neighbours of each.
        itself: [Q] the row that a vector is of, which is no neighbour of it; -1 where it is of none.
        norms: [Q] lengths.
        unit: [Q, D] the vectors of length 1.
    """

    column: str
    vectors: NDArray[np.float64]
    metric: Metric
    k: int
    itself: Ints
    norms: NDArray[np.float64]
    unit: NDArray[np.float64]

    @classmethod
    def of(cls, column: str, vectors: NDArray[np.float64], metric: Metric, k: int, itself: Ints) -> NearestQuery:
        """With what follows from them."""
        return cls(column, vectors, metric, k, itself, norms_of(vectors), units_of(vectors))

    def compared(self, which: Ints, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] scores of vectors [n, D] and the vectors asked for `which` [n]."""
        with np.errstate(all="ignore"):
            if self.metric == "l2":
                away = vectors - self.vectors[which]
                return np.asarray(np.sqrt((away * away).sum(axis=1)))
            if self.metric == "dot":
                return np.asarray((vectors * self.vectors[which]).sum(axis=1))
            scaled, _ = scaled_of(vectors)
            norms = np.sqrt((scaled * scaled).sum(axis=1)) * (self.norms[which] > 0)
            cosines = (scaled * self.unit[which]).sum(axis=1) / norms
        return np.asarray(np.clip(cosines, -1.0, 1.0))

    def ranks(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is smaller the nearer it is."""
        return scores if self.metric == "l2" else -scores


@dataclass(slots=True, eq=False)
class Best:
    """The nearest so far, of threads that look at one piece each.

    Attributes:
        asked: What is looked for.
        which, rows, scores: [n] the vector asked for, the row near it and how near; by vector, the nearest first.
        floor: [Q] below this a key cannot be among the k nearest any more.
    """

    asked: NearestQuery
    which: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    scores: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    floor: NDArray[np.float64] = field(init=False)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.floor = np.full(len(self.asked.vectors), -np.inf)

    def look(self, piece: VectorPiece, /) -> None:
        """Compare all vectors of a piece."""
        asked = self.asked
        if piece.width != asked.vectors.shape[1]:
            raise SchemaMismatchError(
                f"Column {asked.column!r}: expected vectors of {asked.vectors.shape[1]} numbers, as the one asked for, "
                f"found {piece.width}."
            )
        keys, slack, odd = _keys(piece, asked)
        least = self._least(keys, slack)
        with np.errstate(invalid="ignore"):
            close = keys >= least[:, None]
            if odd is not None:
                close |= odd
        which, numbers = np.divmod(np.flatnonzero(close), close.shape[1])  # `nonzero` of a table takes longer
        step = max(1, _AT_ONCE // (8 * piece.width + 1))
        for start in range(0, len(which), step):
            self.compare(piece, which[start : start + step], numbers[start : start + step])

    def compare(self, piece: VectorPiece, which: Ints, numbers: Ints) -> None:
        """Compare some vectors of a piece with those asked for, in float64."""
        some, place = np.unique(numbers, return_inverse=True)
        scores = self.asked.compared(which, piece.at(some)[place])
        self.add(which, piece.rows[numbers], scores)

    def add(self, which: Ints, rows: Ints, scores: NDArray[np.float64]) -> None:
        """Enter rows with their scores."""
        asked = self.asked
        good = np.isfinite(scores) & (rows != asked.itself[which])
        with self._lock:
            which, rows = np.concatenate([self.which, which[good]]), np.concatenate([self.rows, rows[good]])
            scores = np.concatenate([self.scores, scores[good]])
            order = np.lexsort((rows, asked.ranks(scores), which))
            which, rows, scores = which[order], rows[order], scores[order]
            starts = np.searchsorted(which, np.arange(len(self.floor) + 1))
            kept = np.arange(len(which)) - starts[which] < asked.k
            full = np.flatnonzero(np.diff(starts) >= asked.k)
            last = scores[starts[full] + asked.k - 1]
            self.which, self.rows, self.scores = which[kept], rows[kept], scores[kept]
            self.floor[full] = _key_of(last, asked, full)

    def _least(self, keys: Floats, slack: float) -> NDArray[np.float64]:
        """[Q] from which key on a row may be among the nearest."""
        least = self.floor.copy()
        if np.isneginf(least).any() and keys.shape[1] > self.asked.k:  # nothing to compare with but each other
            ranked = np.where(np.isnan(keys), -np.inf, keys)
            kth = np.partition(ranked, keys.shape[1] - self.asked.k, axis=1)[:, keys.shape[1] - self.asked.k]
            least = np.maximum(least, kth.astype(np.float64) - slack)
        return least - slack


def searched(shards: Sequence[ShardVectors], asked: NearestQuery, /) -> Best:
    """Look at all vectors, by threads."""
    best = Best(asked)

    def look(task: VectorPiece | ShardVectors) -> None:
        for piece in task.decoded() if isinstance(task, ShardVectors) else [task]:
            best.look(piece)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="seqlake-nearest") as pool:
        for start in range(0, len(shards), _SHARDS):
            tasks = [task for some in pool.map(_tasks, shards[start : start + _SHARDS]) for task in some]
            deque(pool.map(look, tasks), maxlen=0)
    return best


def _tasks(shard: ShardVectors) -> Sequence[VectorPiece | ShardVectors]:
    pieces = shard.flat()
    return [shard] if pieces is None else pieces


def _key_of(scores: NDArray[np.float64], asked: NearestQuery, which: Ints) -> NDArray[np.float64]:
    """Scores as keys, which are larger the nearer a vector is."""
    if asked.metric == "cosine":
        return scores
    norms = asked.norms[which]
    with np.errstate(all="ignore"):
        dots = asked.metric == "dot"
        keys = np.where(norms > 0, scores / norms, 0.0) if dots else norms * norms - scores * scores
    return np.where(np.isfinite(keys), keys, -np.inf)


def _keys(piece: VectorPiece, asked: NearestQuery) -> tuple[Floats, float, NDArray[np.bool_] | None]:
    """How near each vector is, larger is nearer, about; NaN where there is nothing to compare.

    Returns:
        [Q, n]; by how much these may be wrong; [n] vectors that they say nothing of, None where there are none.
    """
    products, lengths = _products(piece, asked)
    norms, longest = lengths.norms, lengths.longest
    odd = None
    if not PLAIN[0] < float(asked.norms.max(initial=1.0)) < PLAIN[1]:
        odd = np.isfinite(norms)
    elif lengths.plain is not None:
        odd = np.isfinite(norms) & ~lengths.plain
    bound = 4 * (piece.width + 8) * float(np.finfo(products.dtype).eps)
    with np.errstate(all="ignore"):
        if asked.metric == "cosine":
            products /= norms.astype(products.dtype)
            slack = bound
        elif asked.metric == "dot":
            slack = bound * longest
            if lengths.plain is not None:
                products[:, np.isnan(norms)] = np.nan
        else:
            asked_most = float(asked.norms.max(initial=0.0))
            products *= (2 * asked.norms).astype(products.dtype)[:, None]
            products -= (norms * norms).astype(products.dtype)
            slack = bound * (longest + asked_most) ** 2
    if odd is not None:
        products[:, odd] = np.nan
    return products, slack, odd


def _products(piece: VectorPiece, asked: NearestQuery) -> tuple[Floats, VectorLengths]:
    """[Q, n] products with the vectors of length 1 that are asked for; the lengths [n] of the others."""
    known = LENGTHS.get(piece.key)
    norms = np.empty(len(piece.rows) if known is None else 0)
    unit = asked.unit
    products: Floats = np.empty((len(unit), len(piece.rows)), np.float32)
    for first, block in piece.blocks():
        if products.dtype != block.dtype or unit.dtype != block.dtype:
            unit, products = asked.unit.astype(block.dtype, copy=False), products.astype(block.dtype, copy=False)
        some = slice(first, first + len(block))
        if known is None:
            norms[some] = norms_of(block)
        if len(unit) == 1:
            _DOTS(block, unit[0], out=products[0, some])
        else:
            np.matmul(unit, block.T, out=products[:, some])
    if known is None:
        known = VectorLengths.of(norms)
        LENGTHS.keep(piece.key, known)
    return products, known

"""Pairs of vectors that are alike: two blocks of rows compared with each other, a task of an executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seqlake.dataset.similarity.vectors import one_width, shard_vectors, units_of

if TYPE_CHECKING:
    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.protocols import Ints

Units = NDArray[np.float64]

ROWS = 4096
"""Vectors of one block, along each side."""

_FEW = 1 << 15  # pairs that are compared again one by one; of more the whole block is
_AT_ONCE = 1 << 12  # of these
_DIGITS = 12  # of a cosine: what no order of a sum in float64 changes


@dataclass(frozen=True, slots=True)
class Pairs:
    """Compares two blocks of rows; what an executor runs.

    Attributes:
        source: The rows.
        column: Of the vectors.
        threshold: The least cosine.
        most: Pairs that are given at most.
    """

    source: Excerpt
    column: str
    threshold: float
    most: int

    def __call__(self, edges: tuple[int, int], /) -> tuple[Ints, NDArray[np.float64]]:
        """[pairs, 2] rows, the smaller first, and [pairs] cosines; at most `most` of the most alike."""
        rows, left = self._unit(edges[0])
        others, right = (rows, left) if edges[0] == edges[1] else self._unit(edges[1])
        if not len(rows) or not len(others):
            return np.zeros((0, 2), np.int64), np.zeros(0)
        one_width(np.array([left.shape[1], right.shape[1]]), self.column)
        one, other, scores = self._alike(left, right, same=edges[0] == edges[1])
        if len(scores) > self.most:
            likely = scores >= np.partition(scores, -self.most)[-self.most]
            one, other, scores = one[likely], other[likely], scores[likely]
        order = np.lexsort((others[other], rows[one], -scores))[: self.most]
        return np.stack([rows[one[order]], others[other[order]]], axis=1), scores[order]

    def _alike(self, left: Units, right: Units, *, same: bool) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Numbers of both of each pair and their cosines: float32 chooses the pairs, float64 decides."""
        slack = 4 * (left.shape[1] + 8) * float(np.finfo(np.float32).eps)
        one, other = np.nonzero(left.astype(np.float32) @ right.astype(np.float32).T >= self.threshold - slack)
        if same:  # each pair once, and none with itself
            once = one < other
            one, other = one[once], other[once]
        if len(one) > _FEW:
            scores: Units = (left @ right.T)[one, other]
        else:
            parts = [slice(start, start + _AT_ONCE) for start in range(0, len(one), _AT_ONCE)]
            sums = ((left[one[some]] * right[other[some]]).sum(axis=1) for some in parts)
            scores = np.concatenate([np.zeros(0, np.float64), *sums])
        scores = np.round(scores.clip(-1.0, 1.0), _DIGITS)
        good = scores >= self.threshold
        return one[good], other[good], scores[good]

    def _unit(self, start: int) -> tuple[Ints, Units]:
        """Rows from there on and their vectors of length 1; those that have none are left out."""
        some = np.arange(start, min(start + ROWS, len(self.source)), dtype=np.int64)
        cut = self.source.cut(rows=some if self.source.rows is None else self.source.rows[some])
        rows, vectors = [np.zeros(0, np.int64)], list[Units]()
        for shard in shard_vectors(cut, self.column):
            for piece in shard.pieces():
                rows.append(some[piece.rows])
                vectors.append(piece.at(np.arange(len(piece.rows))))
        if not vectors:
            return rows[0], np.zeros((0, 1))
        one_width(np.array([part.shape[1] for part in vectors]), self.column)
        with np.errstate(all="ignore"):
            whole = units_of(np.concatenate(vectors))
        good = np.isfinite(whole).all(axis=1) & whole.any(axis=1)
        return np.concatenate(rows)[good], whole[good]

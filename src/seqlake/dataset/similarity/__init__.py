"""Which sequences are alike: vectors of a column compared with some, or all of them with each other; exactly.

```text
vectors     the vectors of a column where they lie
ranking     the nearest of them
pairs       all pairs above a threshold
ivf         an index for millions, which misses some
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np

from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.similarity import pairs
from seqlake.dataset.similarity.ivf import VectorIndex, approximate, vector_index
from seqlake.dataset.similarity.ranking import Best, Metric, NearestQuery, searched
from seqlake.dataset.similarity.vectors import Floats, check_vectors, shard_vectors
from seqlake.errors import SequenceNotFoundError
from seqlake.executors import executor_of, in_order
from seqlake.shares import begun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.executors import Executor
    from seqlake.protocols import Ints, Readable

__all__ = ["Duplicate", "Metric", "Neighbour", "VectorIndex", "duplicates", "nearest", "vector_index", "vector_of"]

_ASKED = 256  # vectors that are asked for in one pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A sequence and how near it is.

    Attributes:
        sequence_id: Its id; None where rows are samples.
        row: Its place in what was searched.
        score: The cosine, the dot product (larger is nearer), or the Euclidean distance (smaller is).
    """

    sequence_id: str | None
    row: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """Two sequences that are alike.

    Attributes:
        sequence_id: Of the first, in the order of the rows.
        other_id: Of the second.
        rows: Their places in what was searched.
        score: The cosine of their vectors.
    """

    sequence_id: str | None
    other_id: str | None
    rows: tuple[int, int]
    score: float


@overload
def nearest(
    source: Readable,
    column: str,
    like: str | Sequence[float],
    /,
    *,
    k: int = 20,
    metric: Metric = "cosine",
    index: VectorIndex | None = None,
) -> list[Neighbour]: ...
@overload
def nearest(
    source: Readable,
    column: str,
    like: list[str] | Sequence[Sequence[float]],
    /,
    *,
    k: int = 20,
    metric: Metric = "cosine",
    index: VectorIndex | None = None,
) -> list[list[Neighbour]]: ...
@overload
def nearest(
    source: Readable,
    column: str,
    like: Floats,
    /,
    *,
    k: int = 20,
    metric: Metric = "cosine",
    index: VectorIndex | None = None,
) -> Any: ...
def nearest(
    source: Readable,
    column: str,
    like: Any,
    /,
    *,
    k: int = 20,
    metric: Metric = "cosine",
    index: VectorIndex | None = None,
) -> Any:
    """The sequences whose vectors are nearest to one, the nearest first; every vector is looked at.

    Vectors in uncompressed Parquet shards are read where they lie. Products in the precision of the column choose who
    may be among the nearest, float64 decides; equal ones come in the order of the rows. Null vectors, and those with a
    number that is not finite, are near nothing, nor by `cosine` are zero vectors. The lengths of all vectors are taken
    at the first question and kept by the process.

    Args:
        source: A dataset, a selection, a scanned format.
        column: Of vectors [D], as an `Embedding`.
        like: A vector [D]; the id of a sequence, which is not among the answers; or many of either, vectors [Q, D] or a
            list of ids, which takes little longer than one.
        k: At most so many.
        metric: `cosine`, `dot` or `l2`.
        index: Of `vector_index`, of these very rows: not every vector is looked at, and some neighbours are missed; the
            scores of those that are found are as exact.

    Returns:
        Neighbours; of many, a list of such lists.

    Raises:
        SchemaMismatchError: The column holds no vectors, or vectors of another length.
        SequenceNotFoundError: No sequence has this id, or it has no vector.
        ValueError: An argument out of range, or the index is of other rows.

    Example:
        ```python
        for one in sl.nearest(ds, "embedding", "ep_004", k=5):
            print(one.sequence_id, one.score)
        ```
    """
    if metric not in get_args(Metric) or k < 1:
        kinds = ", ".join(get_args(Metric))
        raise ValueError(f"nearest: expected a metric of {kinds} and k from 1 on, found {metric!r} and {k}.")
    excerpt = Excerpt.of(source)
    vectors, itself = _asked(excerpt, column, like)
    one = vectors.ndim == 1
    vectors = np.atleast_2d(vectors)
    if index is not None and not isinstance(index, VectorIndex):
        raise ValueError(f"index: expected what sl.vector_index gives, found {index!r:.80}.")
    shards = shard_vectors(excerpt, column)
    answers: list[list[Neighbour]] = []
    for start in range(0, len(vectors), _ASKED):
        some = slice(start, start + _ASKED)
        asked = NearestQuery.of(column, vectors[some], metric, k, itself[some])
        best = searched(shards, asked) if index is None else approximate(excerpt, asked, index)
        answers += _neighbours(excerpt, best)
    return answers[0] if one else answers


def _neighbours(excerpt: Excerpt, best: Best) -> list[list[Neighbour]]:
    """Of each vector that was asked for."""
    rows = np.unique(best.rows)
    ids = {row: _id(excerpt, row) for row in rows.tolist()}
    answers: list[list[Neighbour]] = [[] for _ in best.floor]
    for which, row, score in zip(best.which.tolist(), best.rows.tolist(), best.scores.tolist(), strict=True):
        answers[which].append(Neighbour(sequence_id=ids[row], row=row, score=score))
    return answers


def duplicates(
    source: Readable,
    column: str,
    /,
    *,
    threshold: float = 0.99,
    most: int = 10_000,
    on: str | Executor = "processes",
    workers: int | None = None,
) -> list[Duplicate]:
    """Pairs of sequences whose vectors have a cosine of at least `threshold`, the most alike first.

    All pairs are looked at, in blocks that an executor compares: the work grows with the square of the rows.

    Args:
        source: A dataset, a selection, a scanned format.
        column: Of vectors [D], as an `Embedding`.
        threshold: From -1 to 1.
        most: So many pairs are given at most.
        on: `"processes"`, `"ray"` or an `Executor`.
        workers: Tasks at a time.

    Raises:
        SchemaMismatchError: The column holds no vectors, or vectors of different lengths.
        ValueError: An argument out of range.

    Example:
        ```python
        twice = {pair.other_id for pair in sl.duplicates(ds, "embedding", threshold=0.999)}
        ```
    """
    if not -1 <= threshold <= 1 or most < 1:
        raise ValueError(
            f"duplicates: expected a threshold from -1 to 1 and most from 1 on, found {threshold} and {most}."
        )
    excerpt = Excerpt.of(source)
    check_vectors(excerpt.schema, column)
    edges = range(0, len(excerpt), pairs.ROWS)
    tasks = [(one, other) for one in edges for other in edges if other >= one]
    compare = pairs.Pairs(excerpt.cut(columns=[column]), column, threshold, most)
    identity = {"source": lambda: compare.source.fingerprint, "threshold": threshold, "most": most}
    with begun(executor_of(on, workers=workers), "duplicates", identity) as executor:
        parts = in_order(executor, compare, tasks)
    rows = np.concatenate([np.zeros((0, 2), np.int64), *(rows for rows, _ in parts)])
    scores = np.concatenate([np.zeros(0), *(scores for _, scores in parts)])
    order = np.lexsort((rows[:, 1], rows[:, 0], -scores))[:most]
    return [
        Duplicate(
            sequence_id=_id(excerpt, one), other_id=_id(excerpt, other), rows=(one, other), score=float(scores[place])
        )
        for place, (one, other) in zip(order, rows[order].tolist(), strict=True)
    ]


def vector_of(source: Readable, column: str, sequence_id: str, /) -> NDArray[np.float64]:
    """The vector [D] of one sequence, in float64.

    Raises:
        SchemaMismatchError: The column holds no vectors.
        SequenceNotFoundError: No sequence has this id, or it has no vector.
    """
    excerpt = Excerpt.of(source)
    check_vectors(excerpt.schema, column)
    vector: NDArray[np.float64] = _of_sequences(excerpt, column, [sequence_id])[0][0]
    return vector


def _of_sequences(excerpt: Excerpt, column: str, ids: Sequence[str]) -> tuple[NDArray[np.float64], Ints]:
    """[Q, D] vectors and [Q] rows of some sequences."""
    rows = excerpt.find_ids(ids)
    vectors = []
    for key, row in zip(ids, rows.tolist(), strict=True):
        value = None if row < 0 else excerpt[row][column]
        if value is None:
            why = "no sequence has this id" if row < 0 else f"its cell of {column!r} is null"
            raise SequenceNotFoundError(f"{key!r}: {why}.")
        vectors.append(np.asarray(value, np.float64))
    return np.stack(vectors), rows


def _asked(excerpt: Excerpt, column: str, like: Any) -> tuple[NDArray[np.float64], Ints]:
    """The vectors [D] or [Q, D] that are asked for, and the rows [Q] that they are of."""
    check_vectors(excerpt.schema, column)
    if isinstance(like, str):
        vectors, rows = _of_sequences(excerpt, column, [like])
        return vectors[0], rows
    if isinstance(like, list | tuple) and like and all(isinstance(one, str) for one in like):
        return _of_sequences(excerpt, column, like)
    try:
        vectors = np.asarray(like, np.float64)
    except (TypeError, ValueError):
        vectors = np.zeros(0)
    if vectors.ndim not in {1, 2} or not vectors.size or not np.isfinite(vectors).all():
        raise ValueError(
            f"Expected a vector [D] of finite numbers, the id of a sequence, or many of either, found {like!r:.80}."
        )
    return vectors, np.full(len(np.atleast_2d(vectors)), -1, np.int64)


def _id(excerpt: Excerpt, row: int) -> str | None:
    return None if excerpt.schema.id is None else str(excerpt[row].id)

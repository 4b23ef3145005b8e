"""Which sequences are alike: vectors of a column compared with one vector, or all of them with each other; exactly."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seqlake.dataset.reading.cells import flat_cell, numbers_of
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.streaming import one_shard
from seqlake.errors import SchemaMismatchError, SequenceNotFoundError
from seqlake.executors import executor_of, in_order
from seqlake.shards.cells import list_lengths
from seqlake.shares import begun
from seqlake.spec.schema import is_list, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.executors import Executor
    from seqlake.protocols import Flat, Ints, Readable, Shard
    from seqlake.spec.schema import Column, Schema

Metric = Literal["cosine", "dot", "l2"]
Vectors = NDArray[np.floating[Any]]

_BLOCK = 1 << 20  # bytes of vectors that are looked at while they are in the cache
_PAIRS = 4096  # vectors of one block of pairs, along each side


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


def nearest(
    source: Readable, column: str, like: str | Sequence[float] | Vectors, /, *, k: int = 20, metric: Metric = "cosine"
) -> list[Neighbour]:
    """The sequences whose vectors are nearest to one, the nearest first; every vector is looked at.

    Vectors in uncompressed Parquet shards are read where they lie. Null and zero vectors, and those with a number that
    is not finite, are near nothing.

    Args:
        source: A dataset, a selection, a scanned format.
        column: Of vectors [D], as an `Embedding`.
        like: A vector [D]; or the id of a sequence, which is not among the answers.
        k: At most so many.
        metric: `cosine`, `dot` or `l2`.

    Raises:
        SchemaMismatchError: The column holds no vectors, or vectors of another length.
        SequenceNotFoundError: No sequence has this id, or it has no vector.
        ValueError: An argument out of range.

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
    vector, itself = _asked(excerpt, column, like)
    shards = excerpt.shards()
    score = partial(_scores, schema=excerpt.schema, column=column, vector=vector, metric=metric)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="seqlake-nearest") as pool:
        parts = list(pool.map(score, shards))
    scores = np.concatenate([np.zeros(0), *parts])
    if itself is not None:
        scores[itself] = np.nan
    ranked = np.where(np.isfinite(scores), -scores if metric != "l2" else scores, np.inf)
    most = min(k, int(np.isfinite(ranked).sum()))
    best = np.argpartition(ranked, most - 1)[:most] if most else np.zeros(0, np.int64)
    best = best[np.lexsort((best, ranked[best]))]
    return [Neighbour(sequence_id=_id(excerpt, row), row=row, score=float(scores[row])) for row in best.tolist()]


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
    _check(excerpt.schema, column)
    count = sum(shard.rows for shard in excerpt.shards())
    edges = range(0, count, _PAIRS)
    tasks = [(one, other) for one in edges for other in edges if other >= one]
    compare = _Pairs(excerpt.cut(columns=[column]), column, threshold, most)
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


def _check(schema: Schema, column: str) -> None:
    """Vectors, or lists of numbers of which nobody says that they are steps or vectors."""
    if not _holds_vectors(schema[column]):
        vectors = [name for name in schema if _holds_vectors(schema[name])]
        raise SchemaMismatchError(
            f"Expected a column of vectors [D], one of {', '.join(vectors) or 'none, there is no such column'}; found "
            f"{schema[column]}."
        )


def _holds_vectors(column: Column) -> bool:
    return column.category == "vector" or (is_list(column.arrow) and is_number(column.arrow.value_type))


def vector_of(source: Readable, column: str, sequence_id: str, /) -> Vectors:
    """The vector [D] of one sequence, in float64.

    Raises:
        SchemaMismatchError: The column holds no vectors.
        SequenceNotFoundError: No sequence has this id, or it has no vector.
    """
    return _of_sequence(Excerpt.of(source), column, sequence_id)[0]


def _of_sequence(excerpt: Excerpt, column: str, sequence_id: str) -> tuple[Vectors, int]:
    _check(excerpt.schema, column)
    [row] = excerpt.find_ids([sequence_id]).tolist()
    value = None if row < 0 else excerpt[row][column]
    if value is None:
        why = "no sequence has this id" if row < 0 else f"its cell of {column!r} is null"
        raise SequenceNotFoundError(f"{sequence_id!r}: {why}.")
    return np.asarray(value, np.float64), row


def _asked(excerpt: Excerpt, column: str, like: Any) -> tuple[Vectors, int | None]:
    """The vector that is asked for, and the row that it is of."""
    if isinstance(like, str):
        return _of_sequence(excerpt, column, like)
    _check(excerpt.schema, column)
    vector = np.asarray(like, np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ValueError(f"Expected a vector [D] of finite numbers or the id of a sequence, found {like!r:.80}.")
    return vector, None


def _id(excerpt: Excerpt, row: int) -> str | None:
    return None if excerpt.schema.id is None else str(excerpt[row].id)


def _scores(shard: Shard, /, *, schema: Schema, column: str, vector: Vectors, metric: Metric) -> NDArray[np.float64]:
    """[rows] of one shard; NaN where there is no vector to compare."""
    scores = np.full(shard.rows, np.nan)
    for rows, vectors in _vectors(shard, schema, column):
        if vectors.shape[1] != len(vector):
            raise SchemaMismatchError(
                f"Column {column!r}: expected vectors of {len(vector)} numbers, as the one asked for, found "
                f"{vectors.shape[1]}."
            )
        asked = vector.astype(vectors.dtype)
        step = max(1, _BLOCK // max(1, vectors.shape[1] * vectors.itemsize))
        for start in range(0, len(vectors), step):
            block = vectors[start : start + step]
            scores[rows[start : start + step]] = _compared(block, asked, metric)
    return scores


def _compared(block: Vectors, asked: Vectors, metric: Metric) -> NDArray[np.floating[Any]]:
    with np.errstate(all="ignore"):
        if metric == "l2":
            away = block - asked
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", away, away)))
        products = block @ asked
        if metric == "dot":
            return np.asarray(products)
        return np.asarray(products / (np.sqrt(np.einsum("ij,ij->i", block, block)) * np.linalg.norm(asked)))


def _vectors(shard: Shard, schema: Schema, column: str) -> Iterator[tuple[Ints, Vectors]]:
    """Rows of a shard and their vectors [n, D]; rows without one are left out."""
    with closing(shard.open()) as reader:
        flat = reader.flat(column)
        if flat is not None and flat.dtype.kind == "f" and flat.blob.view() is not None:
            yield from _flat_runs(flat, column)
            return
    start = 0
    for batch in one_shard(shard, [column]):
        cells = batch.column(0)
        rows = start + np.flatnonzero(np.asarray(cells.is_valid()))
        start += batch.num_rows
        if len(rows):
            there = cells.drop_null()
            width = _one_width(list_lengths(there), column)
            values = numbers_of(there.flatten(), schema[column])
            yield rows, (values if values.dtype.kind == "f" else values.astype(np.float64)).reshape(len(rows), width)


def _flat_runs(flat: Flat, column: str) -> Iterator[tuple[Ints, Vectors]]:
    """Neighbouring rows as views of the file."""
    rows = np.flatnonzero(flat.steps >= 0)
    if not len(rows):
        return
    width = _one_width(flat.steps[rows], column)
    start = flat.start[rows]
    cuts = np.flatnonzero(np.diff(start) != width * flat.stride) + 1
    for run in np.split(np.arange(len(rows)), cuts):
        steps = np.array([len(run) * width], np.int64)
        cell = flat_cell(replace(flat, start=start[run[:1]], steps=steps), 0)
        assert cell is not None
        yield rows[run], cell.reshape(len(run), width)


def _one_width(lengths: Ints, column: str) -> int:
    if (lengths != lengths[0]).any():
        other = int(lengths[lengths != lengths[0]][0])
        raise SchemaMismatchError(
            f"Column {column!r} has vectors of {int(lengths[0])} and of {other} numbers: expected one length.",
            hint="ds.validate() lists those that differ.",
        )
    return int(lengths[0])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Compares two runs of rows with each other; what an executor runs."""

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
        if left.shape[1] != right.shape[1]:
            _one_width(np.array([left.shape[1], right.shape[1]]), self.column)
        cosines = left @ right.T
        if edges[0] == edges[1]:
            cosines[np.tril_indices(len(rows))] = -2  # each pair once, and none with itself
        one, other = np.nonzero(cosines >= self.threshold)
        scores = cosines[one, other].astype(np.float64)
        if len(scores) > self.most:
            kept = np.argpartition(-scores, self.most - 1)[: self.most]
            one, other, scores = one[kept], other[kept], scores[kept]
        return np.stack([rows[one], others[other]], axis=1), np.minimum(scores, 1.0)

    def _unit(self, start: int) -> tuple[Ints, Vectors]:
        """Rows from there on and their vectors of length 1; those that have none are left out."""
        count = sum(shard.rows for shard in self.source.shards())
        some = np.arange(start, min(start + _PAIRS, count), dtype=np.int64)
        cut = self.source.cut(rows=some if self.source.rows is None else self.source.rows[some])
        rows, vectors, before = list[Any](), list[Any](), 0
        for shard in cut.shards():
            for numbers, part in _vectors(shard, cut.schema, self.column):
                rows.append(some[before + numbers])
                vectors.append(part)
            before += shard.rows
        if not rows:
            return np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
        if len({part.shape[1] for part in vectors}) > 1:
            _one_width(np.array([part.shape[1] for part in vectors]), self.column)
        whole = np.concatenate(vectors)
        with np.errstate(all="ignore"):
            unit = whole / np.sqrt(np.einsum("ij,ij->i", whole, whole))[:, None]
        good = np.isfinite(unit).all(axis=1)
        return np.concatenate(rows)[good], unit[good]

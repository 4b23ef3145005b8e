"""An index of vectors for millions of them: lists around centres, 8 bits a number (faiss: IVF with SQ8).

It is kept in the user's cache by the fingerprint of the rows that it is of. Whatever is wrong with a file there, the
index is made again, so that the cache may be emptied at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.similarity.ranking import Best, Metric, NearestQuery, searched
from seqlake.dataset.similarity.vectors import check_vectors, norms_of, shard_vectors
from seqlake.errors import SchemaMismatchError
from seqlake.files.cache import user_folder
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from seqlake.protocols import Ints, Readable

_log = logging.getLogger(__name__)

MEASURED = 20
"""Neighbours of a vector that recall is measured with."""

_LIMIT = 8 << 30  # bytes of all indexes in the cache
_LOADED = 2  # indexes that a process keeps in memory
_SAMPLE = 64  # vectors whose neighbours are looked for both ways
_TRAINED = 40  # vectors for each centre; faiss warns of fewer
_ROUNDS = 10  # of k-means
_MORE = 4  # times as many rows as are wanted are compared again, with the vectors themselves
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorIndex:
    """An index of a column of vectors, which `nearest` takes as `index=`; prints what it is and how much it finds.

    Attributes:
        column: Of the vectors.
        metric: What near means.
        rows: Vectors in it.
        lists: Lists that they are in.
        probes: Lists that are looked at for one vector.
        recall: The part of the 20 nearest that it finds, measured with vectors of its own.
        wanted: The recall that was asked for.
        fingerprint: Of the rows that it is of.
        key: Its name in the cache.

    Example:
        ```python
        index = sl.vector_index(ds, "embedding")
        print(index.lists, index.recall)
        sl.nearest(ds, "embedding", vector, index=index)
        ```
    """

    column: str
    metric: Metric
    rows: int
    lists: int
    probes: int
    recall: float
    wanted: float
    fingerprint: str
    key: str

    def __str__(self) -> str:
        return (
            f"{self.rows:,} vectors of {self.column!r} by {self.metric} in {self.lists:,} lists, {self.probes:,} "
            f"looked at: {self.recall:.1%} of the {MEASURED} nearest found, measured with vectors of its own."
        )


def vector_index(
    source: Readable, column: str, /, *, metric: Metric = "cosine", recall: float = 0.95, lists: int | None = None
) -> VectorIndex:
    """Make an index of vectors for `nearest`, or find the one in the user's cache; worth it beyond some millions.

    It takes a byte a number, about a quarter of the vectors, on disk and in memory. As many lists are looked at as the
    recall needs, which is measured against the exact search. Any change of the rows asks for another index; those that
    nobody has used for longest are removed when the cache is full (8 GiB).

    Args:
        source: A dataset, a selection, a scanned format.
        column: Of vectors [D], as an `Embedding`.
        metric: `cosine`, `dot` or `l2`.
        recall: The part of the 20 nearest to be found at least, so far as looking at all lists finds as much.
        lists: How many the vectors are put in; the root of their number by default.

    Raises:
        MissingDependencyError: faiss is not installed (`pip install 'seqlake[faiss]'`).
        SchemaMismatchError: The column holds no vectors, or vectors of different lengths.
        ValueError: An argument out of range.

    Example:
        ```python
        index = sl.vector_index(ds, "embedding")
        print(index)
        sl.nearest(ds, "embedding", "ep_004", index=index)
        ```
    """
    if metric not in get_args(Metric) or not 0 < recall <= 1 or (lists is not None and lists < 1):
        raise ValueError(
            f"vector_index: expected a metric of {', '.join(get_args(Metric))}, a recall above 0 and at most 1 and "
            f"lists from 1 on, found {metric!r}, {recall} and {lists}."
        )
    faiss = require("faiss", extra="faiss")
    excerpt = Excerpt.of(source)
    check_vectors(excerpt.schema, column)
    settings = [_FORMAT, excerpt.fingerprint, column, metric, recall, lists]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    known = _load(faiss, key)
    return _made(faiss, excerpt, column, metric, recall, lists, key)[0] if known is None else known[0]


def _made(
    faiss: Any, excerpt: Excerpt, column: str, metric: Metric, recall: float, lists: int | None, key: str
) -> tuple[VectorIndex, Any]:
    searching = _Searching(faiss, _filled(faiss, excerpt, column, metric, lists), excerpt, column)
    probes, reached = searching.measured(metric, recall)
    index = VectorIndex(
        column=column,
        metric=metric,
        rows=searching.index.ntotal,
        lists=searching.index.nlist,
        probes=probes,
        recall=reached,
        wanted=recall,
        fingerprint=excerpt.fingerprint,
        key=key,
    )
    _keep(faiss, index, searching.index)
    return index, searching.index


def approximate(excerpt: Excerpt, asked: NearestQuery, index: VectorIndex, /) -> Best:
    """The nearest that an index finds, with their exact scores; one that is not in the cache any more is made anew.

    Raises:
        ValueError: It is of other rows, another column or another metric.
        MissingDependencyError: faiss is not installed.
    """
    for what, theirs, ours in (
        ("column", index.column, asked.column),
        ("metric", index.metric, asked.metric),
        ("rows", index.fingerprint, excerpt.fingerprint),
    ):
        if theirs != ours:
            raise ValueError(
                f"The index is of the {what} {theirs!r}, what is searched is {ours!r}. Make one of what is searched: "
                f"sl.vector_index(..., {asked.column!r}, metric={asked.metric!r})."
            )
    faiss = require("faiss", extra="faiss")
    known = _load(faiss, index.key)
    if known is None:
        known = _made(faiss, excerpt, index.column, index.metric, index.wanted, index.lists, index.key)
    return _Searching(faiss, known[1], excerpt, asked.column).best(asked, known[0].probes)


def _blocks(excerpt: Excerpt, column: str, metric: str) -> Iterator[tuple[Ints, NDArray[np.float32]]]:
    """(rows, vectors as the index has them) of all that can be near something."""
    for shard in shard_vectors(excerpt, column):
        for piece in shard.pieces():
            for first, block in piece.blocks():
                norms = norms_of(block)
                good = (norms > 0) if metric == "cosine" else np.isfinite(norms)
                some = block[good].astype(np.float32)
                if metric == "cosine":
                    some /= norms[good].astype(np.float32)[:, None]
                yield piece.rows[first : first + len(block)][good], some


def _filled(faiss: Any, excerpt: Excerpt, column: str, metric: Metric, lists: int | None) -> Any:
    """An index of all vectors."""
    count, width = 0, 0
    for rows, vectors in _blocks(excerpt, column, metric):
        count += len(rows)
        if width and vectors.shape[1] != width:
            raise SchemaMismatchError(
                f"Column {column!r} has vectors of {width} and of {vectors.shape[1]} numbers: expected one length.",
                hint="ds.validate() lists those that differ.",
            )
        width = vectors.shape[1]
    number = max(1, min(lists or round(count**0.5), count))
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    centres = faiss.IndexFlatL2(max(1, width)) if metric == "l2" else faiss.IndexFlatIP(max(1, width))
    index = faiss.IndexIVFScalarQuantizer(centres, max(1, width), number, faiss.ScalarQuantizer.QT_8bit, kind)
    index.cp.niter, index.cp.min_points_per_centroid = _ROUNDS, 1
    if not count:
        return index
    chosen = np.random.default_rng(0).random(count) < min(1.0, _TRAINED * number / count)
    chosen[np.linspace(0, count - 1, number).astype(np.int64)] = True  # at least one for each centre
    sample, at = [], 0
    for rows, vectors in _blocks(excerpt, column, metric):
        sample.append(vectors[chosen[at : at + len(rows)]])
        at += len(rows)
    index.train(np.concatenate(sample))
    for rows, vectors in _blocks(excerpt, column, metric):
        if len(rows):
            index.add_with_ids(np.ascontiguousarray(vectors), rows)
    return index


@dataclass(frozen=True, slots=True)
class _Searching:
    """An index with the vectors that it is of."""

    faiss: Any
    index: Any
    excerpt: Excerpt
    column: str

    def best(self, asked: NearestQuery, probes: int) -> Best:
        """The nearest of the lists that are looked at; of more lists where these hold fewer than are wanted."""
        best = Best(asked)
        count = self.index.ntotal
        if not count:
            return best
        wanted = min(_MORE * asked.k + 1, count)
        looked = (asked.unit if asked.metric == "cosine" else asked.vectors).astype(np.float32)
        if looked.shape[1] != self.index.d:
            raise SchemaMismatchError(
                f"Column {self.column!r}: expected vectors of {looked.shape[1]} numbers, as the one asked for, found "
                f"{self.index.d}."
            )
        rows = self._rows(looked, wanted, probes)
        while probes < self.index.nlist and ((rows >= 0).sum(axis=1) < min(asked.k + 1, count)).any():
            probes *= 2
            rows = self._rows(looked, wanted, probes)
        which, place = np.nonzero(rows >= 0)
        self._compare(best, which, rows[which, place])
        return best

    def _rows(self, looked: NDArray[np.float32], wanted: int, probes: int) -> Ints:
        settings = self.faiss.SearchParametersIVF(nprobe=min(probes, self.index.nlist))
        return np.asarray(self.index.search(looked, wanted, params=settings)[1], np.int64)

    def _compare(self, best: Best, which: Ints, rows: Ints) -> None:
        """With the vectors themselves."""
        some = np.unique(rows)
        source = self.excerpt.rows
        cut = self.excerpt.cut(rows=some if source is None else source[some])
        for shard in shard_vectors(cut, self.column):
            for piece in shard.pieces():
                of_piece = some[piece.rows]
                number = np.minimum(np.searchsorted(of_piece, rows), len(of_piece) - 1)
                here = of_piece[number] == rows
                scores = best.asked.compared(which[here], piece.at(number[here]))
                best.add(which[here], rows[here], scores)

    def measured(self, metric: Metric, recall: float) -> tuple[int, float]:
        """How many lists must be looked at, and the part of the nearest that is found then."""
        wanted = np.unique(np.linspace(0, max(0, self.index.ntotal - 1), _SAMPLE).astype(np.int64))
        sample, rows, at = list[NDArray[Any]](), [np.zeros(0, np.int64)], 0
        for numbers, vectors in _blocks(self.excerpt, self.column, metric):
            some = wanted[(wanted >= at) & (wanted < at + len(numbers))] - at
            sample.append(vectors[some].astype(np.float64))
            rows.append(numbers[some])
            at += len(numbers)
        if not at:
            return 1, 1.0
        asked = NearestQuery.of(self.column, np.concatenate(sample), metric, MEASURED, np.concatenate(rows))
        exact = searched(shard_vectors(self.excerpt, self.column), asked)
        truth = {*zip(exact.which.tolist(), exact.rows.tolist(), strict=True)}
        probes, reached = 1, 0.0
        while truth:
            near = self.best(asked, probes)
            reached = len(truth & {*zip(near.which.tolist(), near.rows.tolist(), strict=True)}) / len(truth)
            if reached >= recall or probes >= self.index.nlist:
                break
            probes = min(2 * probes, self.index.nlist)
        return probes, reached if truth else 1.0


# ---- the cache

_loaded: OrderedDict[str, tuple[VectorIndex, Any]] = OrderedDict()  # by key, the newest last


def _folder() -> Path | None:
    top = user_folder()
    return None if top is None else top / "vectors"


def _load(faiss: Any, key: str) -> tuple[VectorIndex, Any] | None:
    """An index of this process, or of the cache if its bytes are those that were written."""
    known = _loaded.get(key)
    folder = _folder()
    if known is not None or folder is None:
        return known
    path = folder / f"{key}.faiss"
    try:
        said = json.loads(path.with_suffix(".json").read_bytes())
        index = VectorIndex(**said["index"])
        if index.key != key or google_crc32c.value(path.read_bytes()) != said["crc32c"]:
            return None
        known = index, faiss.read_index(str(path))
        os.utime(path)  # used now
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        _log.debug("The index %s is made again: %s", path, error)
        return None
    _remember(key, known)
    return known


def _remember(key: str, known: tuple[VectorIndex, Any]) -> None:
    _loaded[key] = known
    while len(_loaded) > _LOADED:
        _loaded.popitem(last=False)


def _keep(faiss: Any, index: VectorIndex, filled: Any) -> None:
    """Keep an index in this process and, where it can be written, in the cache."""
    _remember(index.key, (index, filled))
    folder = _folder()
    if folder is None:
        return
    path = folder / f"{index.key}.faiss"
    temporary = folder / f"{index.key}-{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        faiss.write_index(filled, str(temporary))
        said = {"index": asdict(index), "crc32c": google_crc32c.value(temporary.read_bytes())}
        temporary.replace(path)
        temporary.write_text(json.dumps(said))
        temporary.replace(path.with_suffix(".json"))
        _bound(folder, but=path)
    except (OSError, RuntimeError) as error:
        _log.debug("The index %s is not kept: %s", path, error)
        with suppress(OSError):
            temporary.unlink()


def _bound(folder: Path, *, but: Path) -> None:
    """Remove what was used longest ago until the rest fits."""
    entries = [(status.st_mtime_ns, status.st_size, path) for path in folder.glob("*.faiss") if (status := path.stat())]
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total > _LIMIT and path != but:
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            total -= size

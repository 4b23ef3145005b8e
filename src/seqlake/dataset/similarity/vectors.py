"""The vectors of a column where they lie: pieces of some megabytes, each a task of one thread."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqlake.dataset.reading.cells import numbers_of
from seqlake.dataset.reading.streaming import one_shard
from seqlake.errors import SchemaMismatchError, ShardChangedError
from seqlake.shards.cells import gather, list_lengths
from seqlake.shards.rows import Rows
from seqlake.spec.schema import is_list, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.protocols import Flat, Ints, Shard
    from seqlake.spec.schema import Column, Schema

Floats = NDArray[np.floating[Any]]

_PIECE = 64 << 20  # bytes of vectors of one task: between two of them threads wait for each other
_ROWS = 1 << 16  # vectors of one task: each has a product with all that are asked for
_BLOCK = 4 << 20  # bytes that are looked at at a time
_SCATTERED = 8  # rows that lie together on average; where there are fewer they are copied together first
_KEPT_NORMS = 128 << 20  # bytes of lengths of vectors that a process keeps
PLAIN = (1e-12, 1e12)
"""Lengths of vectors whose products and squares float32 holds without loss."""


class VectorPiece(Protocol):
    """Some vectors of a column."""

    @property
    def rows(self) -> Ints:
        """[n] their places in what is searched."""

    @property
    def width(self) -> int:
        """D, the numbers of each."""

    @property
    def key(self) -> object:
        """What tells these vectors from all others of this process; None where nothing does."""

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """(number of the first, [m, D]) of all of them, in order; float32 or float64, aligned as BLAS takes them.

        Each is good until this thread takes another, of this piece or of any.
        """

    def at(self, numbers: Ints, /) -> NDArray[np.float64]:
        """[numbers, D] some of them."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPiece:
    """Vectors in memory: what was decoded."""

    rows: Ints
    numbers: Floats
    key: object = None

    @property
    def width(self) -> int:
        """D, the numbers of each."""
        return int(self.numbers.shape[1])

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """As the protocol says it."""
        yield 0, np.require(_wide(self.numbers), requirements="A")

    def at(self, numbers: Ints, /) -> NDArray[np.float64]:
        """As the protocol says it."""
        return self.numbers[numbers].astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class FlatPiece:
    """Vectors in a mapped shard; `flat` has these rows alone, which lie side by side between two `edges`."""

    rows: Ints
    flat: Flat
    width: int
    key: object
    edges: list[int]

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """As the protocol says it."""
        flat, edges = self.flat, self.edges
        if len(edges) * _SCATTERED > len(self.rows) + 2 * _SCATTERED:
            step = max(1, _BLOCK // max(1, self.width * flat.stride))
            for first in range(0, len(self.rows), step):
                some = np.arange(first, min(first + step, len(self.rows)))
                yield first, _wide(gather(flat, some).reshape(-1, self.width))
            return
        memory, nbytes = np.frombuffer(flat.blob.view() or b"", np.uint8), self.width * flat.stride
        starts = flat.start[edges[:-1]]
        if int((starts + np.diff(edges) * nbytes).max()) > len(memory):
            raise ShardChangedError(
                f"{flat.blob.location} ends before the vectors that its index names.", path=flat.blob.location
            )
        if flat.proof is not None:
            flat.proof.touch(starts)
        # As few steps as can be: of threads that wait for the interpreter each must be woken, which takes longer.
        room, numbers, address = _ROOM.bytes, flat.stored, int(memory.__array_interface__["data"][0])
        for (first, stop), start in zip(itertools.pairwise(edges), starts.tolist(), strict=True):
            block = memory[start : start + (stop - first) * nbytes]
            if (address + start) % numbers.alignment:  # copied as bytes: as numbers it takes twice as long
                there = room[: len(block)] if len(block) <= len(room) else np.empty_like(block)
                np.copyto(there, block)
                block = there
            yield first, _wide(block.view(numbers).reshape(stop - first, self.width))

    def at(self, numbers: Ints, /) -> NDArray[np.float64]:
        """As the protocol says it."""
        return gather(self.flat, numbers).reshape(-1, self.width).astype(np.float64)


class _Room(threading.local):
    """Of each thread, for one block at a time: memory that is mapped anew for each piece costs a tenth of the pass."""

    def __init__(self) -> None:
        self.bytes = np.empty(_BLOCK, np.uint8)


_ROOM = _Room()


def _wide(block: Floats) -> Floats:
    return block if block.itemsize >= np.dtype(np.float32).itemsize else block.astype(np.float32)


def _edges(start: Ints, nbytes: int) -> list[int]:
    """Where vectors of `nbytes` bytes do not lie side by side, and where those that do fill a block."""
    edges = [0, *(np.flatnonzero(np.diff(start) != nbytes) + 1).tolist(), len(start)]
    most = max(_SCATTERED, _BLOCK // max(1, nbytes))  # however wide they are, those side by side are not scattered
    if all(stop - first <= most for first, stop in itertools.pairwise(edges)):
        return edges
    return sorted({*edges, *range(0, len(start), most)})


@dataclass(frozen=True, slots=True, eq=False)
class ShardVectors:
    """The rows of one shard that are searched: a task that gives pieces.

    Attributes:
        source: What is searched.
        column: Of the vectors.
        number: The shard's in its table.
        keep: Rows of it, in order; None: all.
        first: The place of the first of them in what is searched.
    """

    source: Excerpt
    column: str
    number: int
    keep: Ints | None
    first: int

    @property
    def shard(self) -> Shard:
        """The shard, cut down to the rows."""
        whole = self.source.access.shards[self.number]
        return whole if self.keep is None else Rows(whole, self.keep)

    def flat(self) -> list[VectorPiece] | None:
        """Its vectors where they lie; None where they must be decoded.

        Raises:
            SchemaMismatchError: Vectors of different lengths.
        """
        flat = self.source.access.flat(self.number, self.column)
        if flat is None or flat.dtype.kind != "f" or flat.stored != flat.dtype or flat.stride != flat.stored.itemsize:
            return None
        if flat.blob.view() is None:
            return None
        start = flat.start if self.keep is None else flat.start[self.keep]
        steps = flat.steps if self.keep is None else flat.steps[self.keep]
        rows = np.arange(self.first, self.first + len(steps))
        if steps.min(initial=0) < 0:
            there = steps >= 0
            rows, start, steps = rows[there], start[there], steps[there]
        if not len(rows):
            return []
        width = one_width(steps, self.column)
        size = min(_ROWS, max(1, _PIECE // max(1, width * flat.stride)))
        pieces: list[VectorPiece] = []
        key = self.shard.key
        for first in range(0, len(rows), size):
            some = slice(first, first + size)
            cut = replace(flat, start=start[some], steps=steps[some])
            # Here, and not by the threads that compare: each of their many short steps waits for the interpreter.
            edges = _edges(cut.start, width * flat.stride)
            pieces.append(FlatPiece(rows[some], cut, width, (key, self.column, first, size), edges))
        return pieces

    def pieces(self) -> Iterator[VectorPiece]:
        """All its vectors, wherever they are.

        Raises:
            SchemaMismatchError: Vectors of different lengths.
        """
        flat = self.flat()
        yield from self.decoded() if flat is None else flat

    def decoded(self) -> Iterator[VectorPiece]:
        """Its vectors, batch by batch.

        Raises:
            SchemaMismatchError: Vectors of different lengths.
        """
        first = self.first
        for batch in one_shard(self.shard, [self.column]):
            cells = batch.column(0)
            rows = first + np.flatnonzero(np.asarray(cells.is_valid()))
            first += batch.num_rows
            if len(rows):
                there = cells.drop_null()
                width = one_width(list_lengths(there), self.column)
                values = numbers_of(there.flatten(), self.source.schema[self.column])
                floats = values if values.dtype.kind == "f" else values.astype(np.float64)
                yield HeldPiece(rows, floats.reshape(len(rows), width))


def shard_vectors(source: Excerpt, column: str, /) -> list[ShardVectors]:
    """The shards that have rows of what is searched, in order."""
    starts = source.access.starts
    if source.rows is None:
        return [ShardVectors(source, column, n, None, starts[n]) for n in range(len(starts) - 1)]
    edges = np.array(starts, np.int64)
    numbers = np.searchsorted(edges, source.rows, side="right") - 1
    runs = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)] if len(numbers) else []
    return [
        ShardVectors(source, column, int(numbers[a]), source.rows[a:b] - edges[numbers[a]], a)
        for a, b in itertools.pairwise(runs)
    ]


# ---- lengths


@dataclass(frozen=True, slots=True, eq=False)
class VectorLengths:
    """The lengths of the vectors of a piece, and what is asked of them each time.

    Attributes:
        norms: [n] NaN of a vector with a number that is not finite.
        longest: Of those within `PLAIN`; 0 of none.
        plain: [n] which lie within it; None: all do.
    """

    norms: NDArray[np.float64]
    longest: float
    plain: NDArray[np.bool_] | None

    @classmethod
    def of(cls, norms: NDArray[np.float64]) -> VectorLengths:
        """With what follows from them."""
        plain = (norms > PLAIN[0]) & (norms < PLAIN[1])
        return cls(norms, float(norms[plain].max(initial=0.0)), None if plain.all() else plain)


@dataclass(slots=True)
class _Kept:
    """Lengths by the keys of their pieces; what was kept longest ago is let go first."""

    kept: OrderedDict[object, VectorLengths] = field(default_factory=OrderedDict)

    def get(self, key: object) -> VectorLengths | None:
        """Those of a piece."""
        return None if key is None else self.kept.get(key)

    def keep(self, key: object, lengths: VectorLengths) -> None:
        """Remember those of a piece."""
        # No lock, which a fork could leave taken: single operations of a dict are atomic.
        if key is None:
            return
        self.kept[key] = lengths
        while sum(one.norms.nbytes for one in list(self.kept.values())) > _KEPT_NORMS:
            self.kept.pop(next(iter(list(self.kept)), None), None)


LENGTHS = _Kept()


def norms_of(block: Floats, /) -> NDArray[np.float64]:
    """[m] lengths of vectors [m, D]; NaN of one with a number that is not finite.

    Example:
        >>> norms_of(np.array([[3.0, 4.0], [np.inf, 0.0]])).tolist()
        [5.0, nan]
    """
    with np.errstate(all="ignore"):
        norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", block, block)).astype(np.float64)
        odd = np.flatnonzero(~((norms > PLAIN[0]) & (norms < PLAIN[1])))
        if len(odd):  # squares of these may be lost, or more than there is room for
            rows = block[odd].astype(np.float64)
            scaled, most = scaled_of(rows)
            norms[odd] = np.where(np.isfinite(rows).all(axis=1), most * np.sqrt((scaled * scaled).sum(axis=1)), np.nan)
    return norms


def scaled_of(vectors: NDArray[np.float64], /) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Vectors [m, D] divided by their largest numbers [m], and these: so that squares stay within what numbers hold.

    Example:
        >>> scaled_of(np.array([[3e200, 4e200]]))[0].tolist()
        [[0.75, 1.0]]
    """
    most = np.abs(vectors).max(axis=1, initial=0)
    return vectors / np.where(most > 0, most, 1)[:, None], most


def units_of(vectors: NDArray[np.float64], /) -> NDArray[np.float64]:
    """Vectors [m, D] of length 1; zeros of zeros, and what is not finite of what is not."""
    scaled, most = scaled_of(vectors)
    return np.asarray(scaled / np.where(most > 0, np.sqrt((scaled * scaled).sum(axis=1)), 1)[:, None])


# ---- which columns


def check_vectors(schema: Schema, column: str, /) -> None:
    """See that a column holds vectors, or lists of numbers of which nobody says that they are steps.

    Raises:
        SchemaMismatchError: It does not, or is not there.
    """
    if not _holds_vectors(schema[column]):
        vectors = [name for name in schema if _holds_vectors(schema[name])]
        raise SchemaMismatchError(
            f"Expected a column of vectors [D], one of {', '.join(vectors) or 'none, there is no such column'}; found "
            f"{schema[column]}."
        )


def _holds_vectors(column: Column) -> bool:
    return column.category == "vector" or (is_list(column.arrow) and is_number(column.arrow.value_type))


def one_width(lengths: Ints, column: str, /) -> int:
    """The length that all vectors have.

    Raises:
        SchemaMismatchError: They differ.
    """
    if (lengths != lengths[0]).any():
        other = int(lengths[lengths != lengths[0]][0])
        raise SchemaMismatchError(
            f"Column {column!r} has vectors of {int(lengths[0])} and of {other} numbers: expected one length.",
            hint="ds.validate() lists those that differ.",
        )
    return int(lengths[0])

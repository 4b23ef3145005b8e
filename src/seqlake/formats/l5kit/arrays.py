"""One array of a store, sliced as numpy slices; only chunks that are touched are decoded, and kept within a limit."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.files.stores import read_all
from seqlake.formats._zarr.decoding import Blocks, blocks_of
from seqlake.formats._zarr.metadata import ArrayMetadata, decode, filled
from seqlake.formats._zarr.places import CHUNK_BYTES, Promises, damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.errors import CorruptFileError
    from seqlake.formats._zarr.caching import ChunkCache
    from seqlake.formats._zarr.places import StoreFiles
    from seqlake.protocols import Blob

THREADS = 4
_FEW = 3  # chunks that are decoded one after the other: Blosc has threads of its own
Rows: TypeAlias = "NDArray[Any]"


class RowArray(ABC):
    """Rows of an array that lie on disk; numpy's slices give fresh arrays in memory.

    Indices are whole numbers, slices of any step, arrays of whole numbers (negative ones count from the end) and of
    booleans, and the name of a field, which gives that field of all rows. Inherit it and say where rows come from.

    Args:
        name: What messages call it.
        metadata: Dtype, rows and shape of a row.
        threads: How many parts are read at a time.
    """

    def __init__(self, name: str, metadata: ArrayMetadata, /, *, threads: int = THREADS) -> None:
        self.name = name
        self.metadata = metadata
        self._threads = threads

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one row, as the store says."""
        return self.metadata.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first, then the shape of a row."""
        return self.metadata.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return self.metadata.row_bytes * self.shape[0]

    @abstractmethod
    def spans(self) -> Iterator[tuple[int, int]]:
        """(first row, row after the last) of each part that is read as a whole."""

    @abstractmethod
    def parts_of(self, numbers: NDArray[np.int64], /) -> NDArray[np.int64]:
        """[n] which part holds each row."""

    @abstractmethod
    def read(self, start: int, stop: int, /) -> Rows:
        """Rows from `start` to before `stop`, in memory of their own."""

    @abstractmethod
    def rows(self, start: int, stop: int, /) -> Rows:
        """Rows from `start` to before `stop`, perhaps read-only and shared with others.

        Args:
            start: At least 0.
            stop: At most `len`.
        """

    @abstractmethod
    def refuse_empty(self, *, each: int = 0) -> None:
        """Refuse an array that promises more rows than are stored of it, with `each` bytes more for every row."""

    def each_chunk(self) -> Iterator[Rows]:
        """All rows, part by part."""
        return (self.rows(first, stop) for first, stop in self.spans())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any, /) -> Any:
        if isinstance(index, str):
            return self._field(index)
        if isinstance(index, tuple):
            first, *rest = index or (slice(None),)
            rows = self[first]
            return rows[tuple(rest) if isinstance(first, (int, np.integer)) else (slice(None), *rest)] if rest else rows
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self.read(start, stop)
            return self._picked(np.arange(start, stop, step, dtype=np.int64))
        wanted = np.asarray(index)
        if wanted.ndim == 0 and wanted.dtype.kind in "iu":
            number = operator.index(wanted[()])
            at = int(self._counted(np.array([number]))[0])
            return self.read(at, at + 1)[0]
        if wanted.dtype == np.bool_:
            if wanted.shape != (len(self),):
                raise IndexError(f"A mask of shape {wanted.shape} does not fit {len(self)} rows.")
            return self._picked(np.flatnonzero(wanted))
        if wanted.ndim == 1 and (wanted.dtype.kind in "iu" or not wanted.size):
            return self._picked(self._counted(wanted.astype(np.int64)))
        raise IndexError(f"Rows are taken by numbers, slices, arrays of them or a field's name; found {index!r}.")

    def __iter__(self) -> Iterator[Any]:
        for first, stop in self.spans():
            yield from self.rows(first, stop).copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Rows:  # noqa: FBT001 - numpy's signature
        if copy is False:
            raise ValueError("The rows lie on disk: without a copy there is nothing to hand out.")
        whole: Rows = self[:]
        return whole if dtype is None else whole.astype(dtype)

    def _field(self, name: str) -> Rows:
        self.refuse_empty()
        if self.dtype.names is None or name not in self.dtype.names:
            raise SchemaMismatchError(f"{self.name} has the fields {self.dtype.names}, found {name!r}.")
        out = np.empty(len(self), self.dtype[name])
        at = 0
        for rows in self.each_chunk():
            out[at : at + len(rows)] = rows[name]
            at += len(rows)
        return out

    def _picked(self, numbers: NDArray[np.int64]) -> Rows:
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if not len(numbers):
            return out
        touched, position = np.unique(self.parts_of(numbers), return_inverse=True)
        order = np.argsort(position, kind="stable")
        cuts = np.searchsorted(position[order], np.arange(len(touched) + 1))

        def pick(at: int) -> None:
            picked = order[cuts[at] : cuts[at + 1]]
            low, high = int(numbers[picked].min()), int(numbers[picked].max())
            _as_bytes(out)[picked] = _as_bytes(self.rows(low, high + 1))[numbers[picked] - low]

        self._all(pick, range(len(touched)))
        return out

    def _all(self, work: Callable[[Any], None], jobs: Sequence[Any]) -> None:
        """Do some jobs, side by side where they are many."""
        if len(jobs) <= _FEW or self._threads < 2:
            for job in jobs:
                work(job)
            return
        with ThreadPoolExecutor(min(self._threads, len(jobs))) as pool:
            list(pool.map(work, jobs))

    def _counted(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers from the end as numbers from the start."""
        wrong = (numbers < -len(self)) | (numbers >= len(self))
        if wrong.any():
            raise IndexError(f"{self.name} has {len(self)} rows; there is no row {int(numbers[wrong][0])}.")
        return np.where(numbers < 0, numbers + len(self), numbers)


class Array(RowArray):
    """Rows of a store's array, in chunks.

    Args:
        place: The store's files.
        name: The array's folder in it.
        metadata: What its `.zarray` says.
        cache: Decoded chunks; shared by the arrays of a store.
        threads: How many chunks are decoded at a time.
        most: Bytes that one chunk may make, and all rows where next to nothing is stored of them.

    Example:
        ```python
        agents = l5kit.open_store("sample.zarr").agents
        agents[100:200:2]["centroid"], agents[[3, -1]], agents["track_id"]
        ```
    """

    def __init__(
        self,
        place: StoreFiles,
        name: str,
        metadata: ArrayMetadata,
        /,
        *,
        cache: ChunkCache,
        threads: int = THREADS,
        most: int = CHUNK_BYTES,
    ) -> None:
        super().__init__(name, metadata, threads=threads)
        self._place = place
        self._cache = cache
        self.promises: Promises = Promises(place=place, name=name, metadata=metadata, most=most)

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first row, row after the last) of each chunk."""
        size = self.metadata.chunks[0]
        return ((first, min(first + size, len(self))) for first in range(0, len(self), size))

    def parts_of(self, numbers: NDArray[np.int64], /) -> NDArray[np.int64]:
        """[n] the chunk of each row."""
        return numbers // self.metadata.chunks[0]

    def refuse_empty(self, *, each: int = 0) -> None:
        """Refuse what `.zarray` promises and no file holds, see `Promises.refuse_empty`."""
        self.promises.refuse_empty(each=each)

    def rows(self, start: int, stop: int, /) -> Rows:
        """Rows from `start` to before `stop`, as they lie in memory already, or read."""
        if start < 0 or stop > len(self):
            raise IndexError(f"{self.name} has {len(self)} rows; expected a part of them, found {start} to {stop}.")
        number, size = start // self.metadata.chunks[0], self.metadata.chunks[0]
        shared = self.metadata.compressor is None or self._cache.holds((self.name, number))
        if start < stop <= min((number + 1) * size, len(self)) and shared:
            return self._chunk(number)[start - number * size : stop - number * size]
        return self.read(start, stop)

    def read(self, start: int, stop: int, /) -> Rows:
        """Rows from `start` to before `stop`, in memory of their own.

        Of chunks that are not in memory, only the blocks that hold these rows are decoded, where the codec has blocks.
        """
        if stop <= start:
            return np.empty((0, *self.shape[1:]), self.dtype)
        self.promises.refuse_empty()
        size, width = self.metadata.chunks[0], self.metadata.row_bytes
        spans = [
            (number, max(start - number * size, 0), min(stop - number * size, size))
            for number in range(start // size, (stop - 1) // size + 1)
        ]
        blocks = [self._blocks(number, first, last) for number, first, last in spans]
        # Blocks begin before the first row and end behind the last one: the memory has room for both.
        head, tail = spans[0][1] * width, spans[-1][2] * width
        before = head - blocks[0].span(head, spans[0][2] * width)[0] if blocks[0] is not None else 0
        after = blocks[-1].span(spans[-1][1] * width, tail)[1] - tail if blocks[-1] is not None else 0
        total = (stop - start) * width
        out = np.empty(before + total + after, np.uint8)
        at = before
        jobs = []
        for (number, first, last), parts in zip(spans, blocks, strict=True):
            low, high = first * width, last * width
            jobs.append((number, parts, low, high, out, at))
            at += high - low
        self._all(self._fill, jobs)
        return out[before : before + total].view(self.dtype).reshape(stop - start, *self.shape[1:])

    def _fill(self, job: tuple[int, Blocks | None, int, int, Rows, int]) -> None:
        """Put the bytes `low` to `high` of a chunk where they belong in `out`."""
        number, parts, low, high, out, at = job
        if parts is None:
            chunk = np.ascontiguousarray(self._chunk(number)).reshape(-1).view(np.uint8)
            out[at : at + high - low] = chunk[low:high]
            return
        first, last = parts.span(low, high)
        self._cache.count_part((self.name, number), last - first)
        self._decode(parts, (first, last), out[at - (low - first) : at - (low - first) + last - first], number)

    def _decode(self, parts: Blocks, span: tuple[int, int], out: Rows, number: int) -> None:
        try:
            parts.decode(*span, out)
        except ValueError as error:
            raise self._damaged(number, error) from error

    def _damaged(self, number: int, error: Exception) -> CorruptFileError:
        return damaged(f"{self.name}/{self.key(number)}", str(error))

    def _blocks(self, number: int, first: int, last: int) -> Blocks | None:
        """The blocks of a chunk, where it pays to decode only those that hold the rows `first` to before `last`."""
        key, whole = (self.name, number), self.metadata.chunk_bytes
        if not self._is_blosc or self._cache.wants(key, whole, after=1 if self._small else whole):
            return None
        blob = self.promises.kept(number, self.blob(number))
        view = None if blob is None else blob.view()
        try:
            parts = None if view is None else blocks_of(view, whole)
        except ValueError as error:
            raise self._damaged(number, error) from error
        if parts is None:
            return None
        low, high = parts.span(first * self.metadata.row_bytes, last * self.metadata.row_bytes)
        return parts if high > low else None

    @property
    def _is_blosc(self) -> bool:
        return (self.metadata.compressor or {}).get("id") == "blosc"

    @property
    def _small(self) -> bool:
        """Whether all of it has room in memory: then a chunk is held from the second look at it on."""
        return self.nbytes * 8 <= self._cache.limit

    def each_chunk(self) -> Iterator[Rows]:
        """All rows, chunk by chunk and without padding; a few chunks are decoded ahead and none is kept."""
        size, numbers = self.metadata.chunks[0], range(self.metadata.count)
        if self._threads < 2 or len(numbers) < 2:
            yield from (self._decoded(n)[: len(self) - n * size] for n in numbers)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            ahead = [pool.submit(self._decoded, n) for n in numbers[: 2 * self._threads]]
            for n in numbers:
                rows = ahead.pop(0).result()
                if n + 2 * self._threads < len(numbers):
                    ahead.append(pool.submit(self._decoded, n + 2 * self._threads))
                yield rows[: len(self) - n * size]

    def mapped(self) -> Rows | None:
        """All rows as one read-only view of a mapped file; None where they are compressed or in several files."""
        if not len(self):
            return np.empty(self.shape, self.dtype)
        if self.metadata.compressor is not None or self.metadata.count != 1:
            return None
        blob = self.blob(0)
        if blob is None or blob.view() is None:
            return None
        return self._decoded(0)[: len(self)]

    def blob(self, number: int, /) -> Blob | None:
        """The file of a chunk; None where there is none."""
        try:
            return self._place.blob(f"{self.name}/{self.key(number)}")
        except FileNotFoundError:
            return None

    def blobs(self) -> list[Blob | None]:
        """The files of all chunks, asked for side by side; None where there is none."""
        self.promises.refuse_empty()
        with ThreadPoolExecutor(max(1, self._threads)) as pool:
            return list(pool.map(self.blob, range(self.metadata.count)))

    def key(self, number: int, /) -> str:
        """The name of a chunk's file."""
        return self.metadata.separator.join([str(number), *("0" for _ in self.shape[1:])])

    def _chunk(self, number: int) -> Rows:
        if self.metadata.compressor is None:
            return self._decoded(number)
        return self._cache.get((self.name, number), lambda: self._decoded(number))

    def _decoded(self, number: int) -> Rows:
        blob = self.promises.kept(number, self.blob(number))
        used = min(len(self) - number * self.metadata.chunks[0], self.metadata.chunks[0])
        if blob is None:
            self.promises.refuse_empty()
            return filled(self.metadata, used)
        view = blob.view()
        if view is not None and used < self.metadata.chunks[0] and self._is_blosc:
            try:
                parts = blocks_of(view, self.metadata.chunk_bytes)
            except ValueError as error:
                raise self._damaged(number, error) from error
            if parts is not None:
                # The last chunk is stored in full: what pads it need not be decoded.
                wanted = used * self.metadata.row_bytes
                out = np.empty(parts.span(0, wanted)[1], np.uint8)
                self._decode(parts, (0, len(out)), out, number)
                return out[:wanted].view(self.dtype).reshape(used, *self.shape[1:])
        return decode(self.metadata, read_all(blob) if view is None else view, location=blob.location)

    def __repr__(self) -> str:
        chunks = f"{self.metadata.count} chunks of {self.metadata.chunks[0]}"
        codec = (self.metadata.compressor or {"id": "no codec"})["id"]
        return f"Array({self.name!r}, {len(self)} rows of {self.metadata.row_bytes} bytes, {chunks}, {codec})"


def _as_bytes(rows: Rows) -> Rows:
    """[n] rows as opaque bytes: copying those is several times faster than copying field by field."""
    if rows.dtype.names is None or not rows.flags.c_contiguous:
        return rows
    return rows.view(f"V{rows.dtype.itemsize}")


def joined(parts: Sequence[Rows], like: ArrayMetadata, /) -> Rows:
    """Parts of an array, one after the other, in its very dtype: `np.concatenate` would change the byte order."""
    out = np.empty((sum(map(len, parts)), *like.shape[1:]), like.dtype)
    target, at = _as_bytes(out), 0
    for part in parts:
        target[at : at + len(part)] = _as_bytes(part)
        at += len(part)
    return out

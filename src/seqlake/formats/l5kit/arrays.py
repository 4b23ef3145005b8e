"""One array of a store, sliced as numpy slices; only the chunks that are touched are decoded."""

from __future__ import annotations

import operator
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.files.stores import read_all
from seqlake.formats.l5kit.metadata import ArrayMetadata, decode, filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.formats.l5kit.places import Place
    from seqlake.protocols import Blob

Rows: TypeAlias = "NDArray[Any]"

CACHE_BYTES = 32 << 20
THREADS = 4


class ChunkCache:
    """Decoded chunks of all arrays of a store, the last used ones within a limit; safe for threads.

    Args:
        limit: Bytes; chunks beyond them are decoded again when they are needed. 0 keeps none.
    """

    def __init__(self, limit: int = CACHE_BYTES, /) -> None:
        self.limit = limit
        self.nbytes = 0
        self._held: OrderedDict[tuple[str, int], Rows] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[str, int], make: Callable[[], Rows], /) -> Rows:
        """The chunk of a key, decoded where it is not held."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        made = make()
        if made.nbytes <= self.limit:
            with self._lock:
                if key not in self._held:
                    self._held[key] = made
                    self.nbytes += made.nbytes
                while self.nbytes > self.limit:
                    self.nbytes -= self._held.popitem(last=False)[1].nbytes
        return made

    def holds(self, key: tuple[str, int], /) -> bool:
        """Whether a chunk is held."""
        return key in self._held

    def __reduce__(self) -> tuple[object, ...]:
        return (ChunkCache, (self.limit,))


class Array:
    """Rows of a store's array, on disk; numpy's slices give fresh arrays in memory.

    Indices are whole numbers, slices of any step, arrays of whole numbers (negative ones count from the end) and of
    booleans, and the name of a field, which gives that field of all rows.

    Args:
        place: The store's files.
        name: The array's folder in it.
        metadata: What its `.zarray` says.
        cache: Decoded chunks; shared by the arrays of a store.
        threads: How many chunks are decoded at a time.

    Example:
        ```python
        agents = l5kit.open_store("sample.zarr").agents
        agents[100:200:2]["centroid"], agents[[3, -1]], agents["track_id"]
        ```
    """

    def __init__(
        self, place: Place, name: str, metadata: ArrayMetadata, /, *, cache: ChunkCache, threads: int = THREADS
    ) -> None:
        self._place = place
        self.name = name
        self.metadata = metadata
        self._cache = cache
        self._threads = threads

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one row, as the store says."""
        return self.metadata.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        return self.metadata.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return self.metadata.row_bytes * self.shape[0]

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
                return self.rows(start, stop).copy()
            return self._picked(np.arange(start, stop, step, dtype=np.int64))
        wanted = np.asarray(index)
        if wanted.ndim == 0 and wanted.dtype.kind in "iu":
            number = operator.index(wanted[()])
            return self._picked(self._counted(np.array([number])))[0]
        if wanted.dtype == np.bool_:
            if wanted.shape != (len(self),):
                raise IndexError(f"A mask of shape {wanted.shape} does not fit {len(self)} rows.")
            return self._picked(np.flatnonzero(wanted))
        if wanted.ndim == 1 and (wanted.dtype.kind in "iu" or not wanted.size):
            return self._picked(self._counted(wanted.astype(np.int64)))
        raise IndexError(f"Rows are taken by numbers, slices, arrays of them or a field's name; found {index!r}.")

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self), self.metadata.chunks[0]):
            yield from self.rows(first, min(first + self.metadata.chunks[0], len(self))).copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Rows:  # noqa: FBT001 - numpy's signature
        if copy is False:
            raise ValueError("The rows lie on disk: without a copy there is nothing to hand out.")
        whole: Rows = self[:]
        return whole if dtype is None else whole.astype(dtype)

    def rows(self, start: int, stop: int, /) -> Rows:
        """Rows from `start` to before `stop`, perhaps read-only and shared: not copied where one chunk holds them.

        Args:
            start: At least 0.
            stop: At most `len`.
        """
        if stop <= start:
            return np.empty((0, *self.shape[1:]), self.dtype)
        size = self.metadata.chunks[0]
        numbers = range(start // size, (stop - 1) // size + 1)
        parts = [
            chunk[max(start - number * size, 0) : stop - number * size]
            for number, chunk in zip(numbers, self.chunks(numbers), strict=True)
        ]
        return parts[0] if len(parts) == 1 else joined(parts, self.metadata)

    def chunks(self, numbers: Sequence[int], /) -> list[Rows]:
        """Whole chunks, decoded side by side: [chunk rows, ...] each, read-only; the last one padded."""
        if len(numbers) < 2 or self._threads < 2 or all(self._cache.holds((self.name, n)) for n in numbers):
            return [self._chunk(number) for number in numbers]
        with ThreadPoolExecutor(min(self._threads, len(numbers))) as pool:
            return list(pool.map(self._chunk, numbers))

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
        found = self.blob(0)
        if found is None or found.view() is None:
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
        with ThreadPoolExecutor(max(1, self._threads)) as pool:
            return list(pool.map(self.blob, range(self.metadata.count)))

    def key(self, number: int, /) -> str:
        """The name of a chunk's file."""
        return self.metadata.separator.join([str(number), *("0" for _ in self.shape[1:])])

    def _field(self, name: str) -> Rows:
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
        size = self.metadata.chunks[0]
        owners = numbers // size
        touched, position = np.unique(owners, return_inverse=True)
        order = np.argsort(position, kind="stable")
        cuts = np.searchsorted(position[order], np.arange(len(touched) + 1))
        # A few chunks at a time: not all of them need fit into memory together.
        for first in range(0, len(touched), 2 * self._threads):
            part = touched[first : first + 2 * self._threads].tolist()
            for at, chunk in enumerate(self.chunks(part), first):
                own = order[cuts[at] : cuts[at + 1]]
                _as_bytes(out)[own] = _as_bytes(chunk)[numbers[own] - touched[at] * size]
        return out

    def _counted(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers from the end as numbers from the start."""
        wrong = (numbers < -len(self)) | (numbers >= len(self))
        if wrong.any():
            raise IndexError(f"{self.name} has {len(self)} rows; there is no row {int(numbers[wrong][0])}.")
        return np.where(numbers < 0, numbers + len(self), numbers)

    def _chunk(self, number: int) -> Rows:
        if self.metadata.compressor is None:
            return self._decoded(number)
        return self._cache.get((self.name, number), lambda: self._decoded(number))

    def _decoded(self, number: int) -> Rows:
        found = self.blob(number)
        if found is None:
            return filled(self.metadata, self.metadata.chunks[0])
        view = found.view()
        return decode(self.metadata, read_all(found) if view is None else view, location=found.location)

    def __repr__(self) -> str:
        chunks = f"{self.metadata.count} chunks of {self.metadata.chunks[0]}"
        codec = (self.metadata.compressor or {"id": "no codec"})["id"]
        return f"Array({self.name!r}, {len(self)} rows of {self.metadata.row_bytes} bytes, {chunks}, {codec})"


def _as_bytes(rows: Rows) -> Rows:
    """[n] rows as opaque bytes: copying those is several times faster than copying field by field."""
    if rows.dtype.names is None or not rows.flags.c_contiguous:
        return rows
    return rows.view(np.dtype((np.void, rows.dtype.itemsize)))


def joined(parts: Sequence[Rows], like: ArrayMetadata, /) -> Rows:
    """Parts of an array, one after the other, in its very dtype: `np.concatenate` would change the byte order."""
    out = np.empty((sum(map(len, parts)), *like.shape[1:]), like.dtype)
    target, at = _as_bytes(out), 0
    for part in parts:
        target[at : at + len(part)] = _as_bytes(part)
        at += len(part)
    return out

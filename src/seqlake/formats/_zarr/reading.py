"""Rows of an array whose chunks may cut every dimension: only the chunks that hold them are read and decoded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from seqlake.files.stores import read_all
from seqlake.formats._zarr.decoding import through
from seqlake.formats._zarr.places import CHUNK_BYTES, Promises, damaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.formats._zarr.caching import ChunkCache
    from seqlake.formats._zarr.grid import GridMetadata
    from seqlake.formats._zarr.places import StoreFiles
    from seqlake.protocols import Blob

_FEW = 3  # chunks that are decoded one after the other
_THREADS = 4
_ENTRY = 16  # bytes of a shard's index for each chunk: where it begins, how long it is
_NOT_THERE = (1 << 64) - 1


class GridArray:
    """An array, read by rows.

    Args:
        place: The files of the store.
        name: The array's folder in it.
        metadata: What it says of itself.
        cache: Decoded chunks and indexes of shards, shared by arrays.
        most: Bytes that one chunk may make, and all rows where next to nothing is stored of them.
    """

    def __init__(
        self, place: StoreFiles, name: str, metadata: GridMetadata, /, *, cache: ChunkCache, most: int = CHUNK_BYTES
    ) -> None:
        self.name = name
        self.metadata = metadata
        self._place = place
        self._cache = cache
        self.promises = Promises(place=place, name=name, metadata=metadata, most=most)

    @property
    def dtype(self) -> np.dtype[Any]:
        """As rows are handed out: in this machine's byte order."""
        return self.metadata.dtype.newbyteorder("=")

    def rows(self, start: int, stop: int, /) -> NDArray[Any]:
        """[stop - start, ...] rows in memory of their own.

        Raises:
            CorruptFileError: A chunk cannot be decoded.
            InvalidMetadataError: A chunk is above the limit.
        """
        known = self.metadata
        if not 0 <= start <= stop <= known.shape[0]:
            raise IndexError(f"{self.name} has {known.shape[0]} rows; expected a part, found {start} to {stop}.")
        out = np.empty((stop - start, *known.shape[1:]), self.dtype)
        size = known.chunks[0]
        along = range(start // size, -(-stop // size)) if out.size else range(0)
        numbers = list(product(along, *map(range, known.grid[1:])))

        def put(at: tuple[int, ...]) -> None:
            chunk = self._chunk(at)
            first, *_ = (number * length for number, length in zip(at, known.chunks, strict=True))
            low, high = max(start - first, 0), min(stop - first, size)
            lengths = [
                min(length, whole - number * length)
                for number, length, whole in zip(at[1:], known.chunks[1:], known.shape[1:], strict=True)
            ]
            inner = [
                slice(number * length, number * length + kept)
                for number, length, kept in zip(at[1:], known.chunks[1:], lengths, strict=True)
            ]
            part = chunk[(slice(low, high), *map(slice, lengths))]
            out[(slice(first + low - start, first + high - start), *inner)] = part

        if len(numbers) <= _FEW or known.plain:
            for at in numbers:
                put(at)
        else:
            with ThreadPoolExecutor(min(_THREADS, len(numbers))) as pool:
                list(pool.map(put, numbers))
        return out

    def lying(self, start: int, stop: int, /) -> tuple[Blob, int] | None:
        """The file in which these rows lie one after the other as numpy has them, and where; None where they do not."""
        known = self.metadata
        size = known.chunks[0]
        if (
            not (known.plain and known.in_order and known.dtype.isnative)
            or known.shards is not None
            or known.chunks[1:] != known.shape[1:]
            or start // size != (max(stop, start + 1) - 1) // size
        ):
            return None
        numbers = (start // size, *(0 for _ in known.shape[1:]))
        blob = self.promises.kept(numbers[0], self._blob(numbers))
        if blob is None or blob.view() is None:
            return None
        return blob, (start - numbers[0] * size) * known.row_bytes

    def _blob(self, numbers: Sequence[int]) -> Blob | None:
        try:
            return self._place.blob(f"{self.name}/{self.metadata.name(numbers)}")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _chunk(self, at: tuple[int, ...]) -> NDArray[Any]:
        if self.metadata.plain or self.metadata.chunks[0] == 1:
            return self._read(at)
        return self._cache.get((f"{self.name}/{self.metadata.name(at)}", 0), lambda: self._read(at))

    def _read(self, at: tuple[int, ...]) -> NDArray[Any]:
        known = self.metadata
        if known.shards is not None:
            data, place = self._in_shard(at, known.shards.grid)
        else:
            blob = self.promises.kept(at[0], self._blob(at))
            if blob is None:
                return np.broadcast_to(known.fill, known.chunks)
            view = blob.view()
            data, place = memoryview(read_all(blob)) if view is None else view, blob.location
        if data is None:
            return np.broadcast_to(known.fill, known.chunks)
        stored = tuple(known.chunks[axis] for axis in known.axes)
        try:
            raw = through(known.codecs, data, stored, known.dtype)
        except ValueError as error:
            raise damaged(place, str(error)) from error
        if raw.nbytes != known.chunk_bytes:
            raise damaged(place, f"expected a chunk of {known.chunk_bytes} bytes, found {raw.nbytes}")
        return raw.view(known.dtype).reshape(stored).transpose(np.argsort(known.axes))

    def _in_shard(self, at: tuple[int, ...], outer: tuple[int, ...]) -> tuple[memoryview | None, str]:
        """The bytes of a chunk in the file that it shares with others; None where there are none."""
        known = self.metadata
        per = tuple(whole // part for whole, part in zip(outer, known.chunks, strict=True))
        shard = tuple(number // count for number, count in zip(at, per, strict=True))
        inner = tuple(number % count for number, count in zip(at, per, strict=True))
        name = f"{self.name}/{known.name(shard)}"
        blob = self._blob(shard)
        if blob is None:
            return None, name
        index = self._cache.get((f"{name}#", 0), lambda: self._index(blob, per))
        start, size = (int(one) for one in index[inner])
        if start == size == _NOT_THERE:
            return None, name
        if start + size > blob.size:
            raise damaged(name, f"its index names the bytes {start} to {start + size}, it has {blob.size}")
        self.promises.expect(name, size)
        [data] = blob.ranges(np.array([start], np.int64), np.array([start + size], np.int64))
        return data, name

    def _index(self, blob: Blob, per: tuple[int, ...]) -> NDArray[np.uint64]:
        shards = self.metadata.shards
        assert shards is not None
        length = prod(per) * _ENTRY + (4 if shards.sealed else 0)
        if blob.size < length:
            raise damaged(
                blob.location, f"expected an index of {length} bytes for {prod(per)} chunks, found {blob.size}"
            )
        start = blob.size - length if shards.at_end else 0
        [data] = blob.ranges(np.array([start], np.int64), np.array([start + length], np.int64))
        raw = bytes(data)
        if shards.sealed:
            if google_crc32c.value(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
                raise damaged(blob.location, "its index has another CRC-32C than it says")
            raw = raw[:-4]
        return np.frombuffer(raw, "<u8").reshape(*per, 2)

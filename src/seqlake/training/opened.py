"""The shards that a pass has come to: opened once, read in place where they are flat, decoded where not."""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CacheTooSmallError
from seqlake.training.cache import Cache
from seqlake.training.cells import Cells, Values
from seqlake.training.decoded import flatten
from seqlake.training.fetch import Fetcher
from seqlake.training.gather import Memory
from seqlake.training.residents import Residents
from seqlake.training.shard_cache import ShardCache, is_remote
from seqlake.windows.assemble import step_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints, ShardReader
    from seqlake.spec.schema import Schema
    from seqlake.training.survey import Survey
    from seqlake.training.visits import Visits

_FRESH = 0.05  # seconds for which a shard that was looked at counts as still the same file


class Opened:
    """Where everything that windows need lies in memory; belongs to one process.

    Attributes:
        memory: What the addresses in `cells` point into.
        cells: Temporal columns, time stamps among them.
        values: Columns with one value a row, the id among them.
        files: The cells of videos that windows take frames of: what they point to.
        decoded: Bytes held for shards that are not flat.
    """

    def __init__(self, schema: Schema, survey: Survey, cache: Cache | None) -> None:
        self._survey = survey
        self._lock = Lock()
        in_memory = cache is None or cache.path is None
        self._limit = (cache if cache is not None and in_memory else Cache()).nbytes
        self._residents: Residents | None = None
        self._ready = np.zeros(len(survey.shards), dtype=np.bool_)
        self._seen = np.full(len(survey.shards), -np.inf)
        self._blobs: dict[int, list[Blob]] = {}
        self._shard_of = np.repeat(np.arange(len(survey.shards)), np.diff(survey.first_rows))
        self.memory = Memory()
        self.decoded = 0
        rows, shards = survey.rows, len(survey.shards)
        names = [track.column for track in survey.tracks] + list(survey.cells)
        stepped = (*survey.tracks, *survey.framed)
        names += sorted({track.timestamps for track in stepped if track.timestamps} - {*names})
        self.cells = {
            name: Cells(name, rows=rows, shards=shards, dtype=step_dtype(schema[name]), shape=schema[name].shape)
            for name in names
        }
        singles = [*survey.singles, *([schema.id] if schema.id is not None else [])]
        self.values = {name: Values(name, rows=rows) for name in singles}
        videos = (track.column for track in survey.framed if schema[track.column].category == "file")
        self.files = {name: Values(name, rows=rows) for name in videos}
        self._vectors = {name for name in singles if schema[name].category == "vector"}
        if cache is not None and cache.path is not None:
            copied = schema.select(dict.fromkeys([*self.cells, *self.values, *self.files]))
            self._residents = Residents(
                Fetcher(survey.shards, copied, cache=ShardCache(cache.path, limit=cache.nbytes))
            )

    def shard_of(self, rows: Ints) -> Ints:
        """[n] rows -> the shard of each."""
        shards: Ints = self._shard_of[rows]
        return shards

    def rows_by_shard(self) -> Iterator[Ints]:
        """The rows of each shard that has any."""
        edges = self._survey.first_rows.tolist()
        yield from (np.arange(start, stop) for start, stop in pairwise(edges) if stop > start)

    def take_room(self, nbytes: int) -> bool:
        """Count these bytes among those held in memory, if the cache allows that many."""
        with self._lock:
            if self.decoded + nbytes > self._limit:
                return False
            self.decoded += nbytes
            return True

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Say when which shards will be needed: fetch the next ones ahead. For caches in a folder; see `Residents`."""
        if self._residents is not None:
            self._residents.begin(visits, sample=sample, then=then)

    def leave(self, sample: int) -> None:
        """Release local copies that no sample from this one on needs soon; windows found in them are void."""
        if self._residents is None:
            return
        for shard in self._residents.leave(sample):
            self._ready[shard] = False
            for cells in self.cells.values():
                self.memory.drop(int(cells.low[shard]))
                cells.low[shard] = cells.high[shard] = 0
            self._blobs.pop(shard, None)

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied to a folder as they are needed."""
        return self._residents is not None

    def visit(self, rows: Ints) -> None:
        """Open the shards of these rows, and see that those open already are still the same files.

        Raises:
            ShardChangedError: A file changed under its map.
            CacheTooSmallError: A shard that is not flat does not fit into memory.
        """
        touched = np.zeros(len(self._ready), dtype=np.bool_)
        touched[self.shard_of(rows)] = True
        for shard in np.flatnonzero(touched & ~self._ready).tolist():
            with self._lock:  # loaders made from each other share what is open
                if not self._ready[shard]:
                    self._open(shard)
        now = monotonic()
        for shard in np.flatnonzero(touched & (self._seen < now - _FRESH)).tolist():
            for blob in self._blobs[shard]:
                blob.view()
            self._seen[shard] = now

    def cell(self, name: str, row: int) -> NDArray[Any]:
        """[T, ...] one whole cell, copied; [0, ...] where it is null."""
        cells = self.cells[name]
        shard = int(self.shard_of(np.array([row]))[0])
        layout = cells.layouts[cells.layout[shard]]
        steps = int(cells.steps[row])
        if not steps or not layout.width:
            return np.zeros((steps, *layout.shape), dtype=layout.stored)
        if layout.width == layout.stride:
            data = self.memory.gather(cells.address[row : row + 1], steps * layout.stride)
        else:
            data = self.memory.gather(cells.address[row] + np.arange(steps) * layout.stride, layout.width)
        cell: NDArray[Any] = data.reshape(-1).view(layout.stored).reshape(steps, *(cells.shape or ()))
        return cell

    def _open(self, shard: int) -> None:
        start, stop = self._survey.first_rows[shard : shard + 2]
        rows = slice(int(start), int(stop))
        reader = self._read(shard)
        try:
            blobs: dict[int, Blob] = {}
            left = [*self.values, *self.files.keys() - self.values.keys()]
            for name, cells in self.cells.items():
                flat = reader.flat(name)
                if flat is None or flat.blob.view() is None:
                    left.append(name)
                else:
                    cells.place(shard, rows, flat, self.memory)
                    blobs[id(flat.blob)] = flat.blob
            if left:
                self._decode(reader, shard, rows, left)
        finally:
            reader.close()
        self._blobs[shard] = list(blobs.values())
        self._ready[shard] = True

    def _read(self, shard: int) -> ShardReader:
        """The shard, or its local copy where it cannot be read in place and there is a folder for copies."""
        own = self._survey.shards[shard]
        if self._residents is None:
            return own.open()
        if not is_remote(own):
            reader = own.open()
            flats = (reader.flat(name) for name in self.cells)
            if all(flat is not None and flat.blob.view() is not None for flat in flats):
                return reader
            reader.close()
        self._residents.come_to(np.array([shard]))
        return self._residents.open[shard].shard.open()

    def _decode(self, reader: ShardReader, shard: int, rows: slice, names: list[str]) -> None:
        self._check_room(rows, [name for name in names if name in self.cells])
        found = pa.Table.from_batches(reader.batches(names))
        for name in names:
            column = found.column(name)
            if name in self.values or name in self.files:
                single = self.values[name] if name in self.values else self.files[name]
                single.keep(rows, column.combine_chunks(), vector=name in self._vectors)
                continue
            parts = [flatten(chunk, name=name) for chunk in column.chunks]
            values = np.concatenate([part for part, _ in parts])
            steps = np.concatenate([steps for _, steps in parts])
            self.decoded += values.nbytes
            self.cells[name].keep(shard, rows, values, steps, self.memory)

    def _check_room(self, rows: slice, names: list[str]) -> None:
        """Refuse before decoding what is known not to fit."""
        need = self.decoded + sum(self._bytes(name, rows) for name in names)
        if need <= self._limit:
            return
        everything = _size(max(need, sum(self._bytes(name, slice(None)) for name in names)))
        raise CacheTooSmallError(
            f"Some shards cannot be read in place ({', '.join(names)}: compressed, encoded or remote); decoded they "
            f"need up to {everything} of memory where {_size(self._limit)} are allowed.",
            hint="Write the dataset anew with `seqlake repack`, so that it can be read in place, or allow more: "
            f"Loader(..., cache=Cache(limit={everything!r})).",
        )

    def _bytes(self, name: str, rows: slice) -> int:
        counts = self._survey.counts.get(name)
        cells = self.cells[name]
        if counts is None or cells.shape is None:
            return 0
        steps = int(np.maximum(counts[rows], 0).sum())
        return steps * int(np.prod(cells.shape)) * cells.dtype.itemsize


def _size(nbytes: int) -> str:
    """Bytes as `Cache` reads them, rounded up."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= scale:
            return f"{-(-nbytes * 10 // scale) / 10:g} {unit}"
    return f"{-(-nbytes // 1000)} kB"

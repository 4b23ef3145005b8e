"""The shards that a pass has come to: opened once, read in place where they are flat, decoded where not."""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CacheTooSmallError, DamagedTableError
from seqlake.training.bad_data.damage import is_damage
from seqlake.training.bad_data.salvage import salvage
from seqlake.training.cache import Cache
from seqlake.training.cells import Cells, Values
from seqlake.training.decoded import flatten
from seqlake.training.fetching.ahead import Fetcher
from seqlake.training.fetching.in_memory import fetched
from seqlake.training.fetching.ranged import Ranged
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.gather import Memory, torch
from seqlake.training.residents import Residents
from seqlake.training.shard_cache import ShardCache, is_remote
from seqlake.training.telemetry import ORIGINS, Fetched
from seqlake.windows.assemble import step_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints, ShardReader
    from seqlake.spec.schema import Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.fetching.in_memory import Coming
    from seqlake.training.survey import Survey
    from seqlake.training.visits import Visits

_FRESH = 0.5  # seconds for which a shard that was looked at counts as still the same file


class Opened:
    """Where everything that windows need lies in memory; belongs to one process.

    Attributes:
        memory: What the addresses in `cells` point into.
        cells: Temporal columns, time stamps among them.
        values: Columns with one value a row, the id among them.
        files: The cells of videos that windows take frames of: what they point to.
        decoded: Bytes held for shards that are not read in place from files.
        origins: [shards] where each one's steps are copied from: which of `telemetry.ORIGINS`.
        harms: Row -> what is wrong with it; only rows of shards that were salvaged.
        ranged: The shards whose windows are read by range.
        transfers: What reads stores.
        seconds: Spent on opening and looking at shards.

    Args:
        schema: Of the dataset.
        survey: The dataset through the window.
        cache: Room for what must be decoded.
        tolerant: Bad cells count as null and stand in `harms`, instead of raising.
    """

    def __init__(self, schema: Schema, survey: Survey, cache: Cache | None, *, tolerant: bool = False) -> None:
        self._tolerant = tolerant
        self.harms: dict[int, list[Harm]] = {}
        self.seconds = 0.0
        self._survey = survey
        self._lock = Lock()
        self._limit = (cache if cache is not None and cache.path is None else Cache()).nbytes
        self._residents: Residents | None = None
        self.transfers = Transfers()
        images = [track.column for track in survey.framed if schema[track.column].category == "frames"]
        self.ranged = Ranged(survey, cache, self.transfers, images=bool(images))
        self._ready = np.zeros(len(survey.shards), dtype=np.bool_)
        self._seen = np.full(len(survey.shards), -np.inf)
        self._blobs: dict[int, list[Blob]] = {}
        self._shard_of = np.repeat(np.arange(len(survey.shards)), np.diff(survey.first_rows))
        self.memory = Memory(busy=self.transfers.is_busy)
        self.decoded = 0
        self.origins = np.zeros(len(survey.shards), dtype=np.int64)
        self._pinned: list[set[int]] = [set(), set()]  # of the chunk before, and of this one
        rows, shards = survey.rows, len(survey.shards)
        names = [track.column for track in survey.tracks] + list(survey.cells)
        names += sorted({track.timestamps for track in (*survey.tracks, *survey.framed) if track.timestamps} - {*names})
        self.cells = {
            name: Cells(name, rows=rows, shards=shards, dtype=step_dtype(schema[name]), shape=schema[name].shape)
            for name in names
        }
        self._id = schema.id
        singles = [*survey.singles, *([schema.id] if schema.id is not None else [])]
        self.values = {name: Values(name, rows=rows) for name in singles}
        videos = [track.column for track in survey.framed if schema[track.column].category == "file"]
        self.files = {name: Values(name, rows=rows) for name in videos}
        self._vectors = {name for name in singles if schema[name].category == "vector"}
        self._copied = schema.select(dict.fromkeys([*self.cells, *self.values, *self.files, *images]))
        if cache is not None and cache.path is not None:
            folder = ShardCache(cache.path, limit=cache.nbytes)
            self._residents = Residents(Fetcher(survey.shards, self._copied, cache=folder, transfers=self.transfers))

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
            whole = ~self.ranged.wanted
            self._residents.begin(visits.of(whole), sample=sample, then=None if then is None else then.of(whole))

    def leave(self, sample: int) -> None:
        """Release local copies that no sample from this one on needs soon; windows found in them are void."""
        if self._residents is None:
            return
        before, now = self._pinned
        self._pinned = [now, set()]
        for shard in self._residents.leave(sample, keep=before | now):
            self._ready[shard] = False
            for cells in self.cells.values():
                self.memory.drop(int(cells.low[shard]))
                self.decoded -= int(cells.held[shard])
                cells.low[shard] = cells.high[shard] = cells.held[shard] = 0
            self._blobs.pop(shard, None)

    def harmed(self, rows: Ints) -> NDArray[np.bool_]:
        """[n] whether something is wrong with the cells of rows."""
        if not self.harms:
            return np.zeros(len(rows), np.bool_)
        return np.isin(rows, np.fromiter(self.harms, np.int64, len(self.harms)))

    def harms_of(self, row: int) -> list[Harm]:
        """What is wrong with the cells of a row."""
        return self.harms.get(row, [])

    def id_of(self, row: int) -> str | None:
        """The id of a row; None where there are none, or it cannot be read."""
        values = None if self._id is None else self.values[self._id].values
        return None if values is None or values[row] is None else str(values[row])

    def pin(self, rows: Ints) -> None:
        """Keep the shards of these rows, which the order does not ask for, as long as this chunk is in use."""
        self._pinned[1].update(np.unique(self.shard_of(rows)).tolist())

    @property
    def fetched(self) -> Fetched:
        """What came from stores."""
        if self._residents is not None:
            return self._residents.fetched()
        return Fetched.of(self.transfers.traffic)

    @property
    def portion(self) -> int | None:
        """Samples whose windows are read by range together; None where none are."""
        return self.ranged.portion

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied to a folder as they are needed."""
        return self._residents is not None

    def visit(self, rows: Ints) -> Ints:
        """Open the shards of these rows, and see that those open already are still the same files.

        Returns:
            [shards] how many of the rows are in each.

        Raises:
            ShardChangedError: A file changed under its map.
            CacheTooSmallError: A shard that is not flat does not fit into memory.
        """
        began = perf_counter()
        counts = np.bincount(self.shard_of(rows), minlength=len(self._ready))
        touched = counts > 0
        unready = np.flatnonzero(touched & ~self._ready).tolist()
        self.ranged.look_ahead(unready, self)
        shards = {s: self._survey.shards[s] for s in unready if self._residents is None and not self.ranged.wanted[s]}
        with fetched(shards, self._copied, self.transfers, room=self._limit - self.decoded) as coming:
            for shard in unready:
                with self._lock:  # loaders made from each other share what is open
                    if not self._ready[shard]:
                        self._open(shard, coming.get(shard))
        if self.harms:
            self.learn()
        now = monotonic()
        for shard in np.flatnonzero(touched & (self._seen < now - _FRESH)).tolist():
            for blob in self._blobs.get(shard, ()):
                blob.view()
            self._seen[shard] = now
        self.seconds += perf_counter() - began
        return counts

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

    def _open(self, shard: int, coming: Coming | None = None) -> None:
        before = self.decoded
        torch()  # a second to import: here it counts as opening
        try:
            if not self.ranged.read(shard, self):
                reader = self._read(shard) if coming is None else coming.shard.result().open()
                try:
                    self.take(reader, shard, [*self.cells, *self.singles])
                finally:
                    reader.close()
                if coming is not None and self._blobs[shard]:  # they stay in use
                    self.decoded += coming.nbytes
                    self.origins[shard] = ORIGINS.index("memory")
        except Exception as error:
            if not self._tolerant or not is_damage(error):
                raise
            self.decoded = before
            salvage(self, shard, self._survey.shards[shard])
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

    def reader(self, shard: int) -> ShardReader:
        """An open shard once more, for any thread: its local copy where there is one."""
        copy = None if self._residents is None else self._residents.open.get(shard)
        return (self._survey.shards[shard] if copy is None else copy.shard).open()

    @property
    def singles(self) -> list[str]:
        """Columns with one value a row, the files of videos among them."""
        return [*self.values, *self.files.keys() - self.values.keys()]

    def rows(self, shard: int) -> slice:
        """The rows of a shard."""
        start, stop = self._survey.first_rows[shard : shard + 2]
        return slice(int(start), int(stop))

    def take(self, reader: ShardReader, shard: int, names: Sequence[str]) -> None:
        """Take in columns of a shard: where they lie in the file, or else decoded."""
        decode, blobs = [], {}
        for name in names:
            flat = reader.flat(name) if name in self.cells else None
            if flat is None or flat.blob.view() is None:
                decode.append(name)
            else:
                self.cells[name].place(shard, self.rows(shard), flat, self.memory)
                blobs[id(flat.blob)] = flat.blob
        if decode:
            self._check_room(self.rows(shard), [name for name in decode if name in self.cells])
            found = pa.Table.from_batches(reader.batches(decode))
            for name in decode:
                self.keep(shard, name, found.column(name))
        self._blobs.setdefault(shard, []).extend(blobs.values())
        copied = self._residents is not None and shard in self._residents.open
        origin = "memory" if any(name in self.cells for name in decode) else "cache" if copied else "mapped"
        self.origins[shard] = ORIGINS.index(origin)

    def keep(self, shard: int, name: str, column: pa.ChunkedArray) -> None:
        """Take in a decoded column of a shard."""
        if name in self.cells:
            parts = [flatten(chunk, name=name) for chunk in column.chunks]
            self.keep_steps(shard, name, np.concatenate([v for v, _ in parts]), np.concatenate([s for _, s in parts]))
            return
        single = self.values[name] if name in self.values else self.files[name]
        single.keep(self.rows(shard), column.combine_chunks(), vector=name in self._vectors)

    def keep_steps(self, shard: int, name: str, values: NDArray[Any], steps: Ints) -> None:
        """Take in a shard's steps of one column: [all steps, ...], and [rows] how many are each row's."""
        self.cells[name].keep(shard, self.rows(shard), values, steps, self.memory)
        self.decoded += values.nbytes

    def learn(self) -> None:
        """Open further shards, in source order, until the shape of every column is known.

        Raises:
            DamagedTableError: No shard tells.
        """
        for shard in np.flatnonzero(~self._ready).tolist():
            if self._known():
                return
            with self._lock:
                if not self._ready[shard]:
                    self._open(shard)
        if not self._known():
            first = next(iter(self.harms.values()))[0]
            raise DamagedTableError(
                f"No shard can be read, so that not even the shape of a batch is known. The first, {first.file}: "
                f"{first.error}",
                path=first.file,
                hint="`seqlake validate` says what is damaged.",
            )

    def _known(self) -> bool:
        singles = (*self.values.values(), *self.files.values())
        return all(one.layouts for one in self.cells.values()) and all(one.values is not None for one in singles)

    def _check_room(self, rows: slice, names: list[str]) -> None:
        """Refuse before decoding what is known not to fit."""
        cells = [self.cells[name] for name in names]
        need = self.decoded + sum(_decoded_bytes(self._survey, each, rows) for each in cells)
        if need <= self._limit:
            return
        everything = _size(max(need, sum(_decoded_bytes(self._survey, each, slice(None)) for each in cells)))
        raise CacheTooSmallError(
            f"Some shards cannot be read in place ({', '.join(names)}: compressed, encoded or remote); decoded they "
            f"need up to {everything} of memory where {_size(self._limit)} are allowed.",
            hint="Write the dataset anew with `seqlake repack`, so that it can be read in place, or allow more: "
            f"Loader(..., cache=Cache(limit={everything!r})).",
        )


def _decoded_bytes(survey: Survey, cells: Cells, rows: slice) -> int:
    """Of some rows of a column; 0 where nothing says it."""
    counts = survey.counts.get(cells.name)
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

"""The shards that a pass has come to: opened once, read in place where they are flat, decoded where not."""

from __future__ import annotations

from math import inf
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import CacheTooSmallError, DamagedTableError
from seqlake.shards.reading import gathered
from seqlake.training.bad_data.damage import is_damage
from seqlake.training.bad_data.salvage import prove, salvage
from seqlake.training.cells import ColumnStore
from seqlake.training.fetching.by_range import Ranged
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.gather import Memory, torch
from seqlake.training.residents import Residents
from seqlake.training.shard_cache import is_remote
from seqlake.training.telemetry import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Blob, Ints, ShardReader
    from seqlake.spec.schema import Schema
    from seqlake.training.cache import Cache
    from seqlake.training.cells import StepColumn
    from seqlake.training.survey import WindowSurvey
    from seqlake.training.telemetry import Fetched
    from seqlake.training.visits import Visits

_FRESH = 0.5  # seconds for which a shard that was looked at counts as still the same file


class Opened(ColumnStore):
    """`OpenShards` of windows and whole sequences; belongs to one process.

    Attributes:
        ranged: The shards whose windows are read by range.
        transfers: What reads stores.
        seconds: Spent on opening and looking at shards.

    Args:
        schema: Of the dataset.
        survey: The dataset through the window.
        cache: Room for what must be copied or decoded.
        tolerant: Bad cells count as null and stand in `harms`, instead of raising.
    """

    def __init__(self, schema: Schema, survey: WindowSurvey, cache: Cache | None, *, tolerant: bool = False) -> None:
        images = [track.column for track in survey.framed if schema[track.column].category == "frames"]
        self.transfers = Transfers()
        self.ranged = Ranged(survey, cache, self.transfers, images=bool(images))
        super().__init__(schema, survey, Memory(busy=self.transfers.is_busy))
        self.seconds = 0.0
        self._tolerant = tolerant
        self._has_images = bool(images)
        self._proves = False  # pages of some shard are compared before windows of them are read
        self._lock = Lock()
        self._ready = np.zeros(len(survey.shards), dtype=np.bool_)
        self._seen = np.full(len(survey.shards), -np.inf)
        self._blobs: dict[int, list[Blob]] = {}
        self._pinned: list[set[int]] = [set(), set()]  # of the chunk before, and of this one
        self._residents = Residents.of(
            survey.shards,
            schema.select(dict.fromkeys([*self.cells, *self.values, *self.beside, *images])),
            cache,
            self.transfers,
            whole=~self.ranged.wanted,
            needs=is_remote,
            samples=len(survey.axis),
            decoded=sum(_decoded_bytes(survey, each, slice(None), unknown=inf) for each in self.cells.values()),
        )

    def take_room(self, nbytes: int) -> bool:
        """Count these bytes among those held in memory, if the cache allows that many."""
        with self._lock:
            return self._residents.take_room(nbytes)

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Say when which shards will be needed: fetch the next ones ahead; see `Residents`."""
        whole = ~self.ranged.wanted
        self._residents.begin(visits.of(whole), sample=sample, then=None if then is None else then.of(whole))

    def leave(self, sample: int, until: int) -> None:
        """Release local copies that no sample from this one on needs soon; windows found in them are void."""
        before, now = self._pinned
        self._pinned = [now, set()]
        for shard in self._residents.leave(sample, until=until, keep=before | now):
            self._ready[shard] = False
            for cells in self.cells.values():
                self.memory.drop(int(cells.low[shard]))
                self._residents.room.decoded -= int(cells.held[shard])
                cells.forget(shard)
            self._blobs.pop(shard, None)

    def pin(self, rows: Ints) -> None:
        """Keep the shards of these rows, which the order does not ask for, as long as this chunk is in use."""
        self._pinned[1].update(np.unique(self.shard_of(rows)).tolist())

    @property
    def fetched(self) -> Fetched:
        """What came from stores."""
        return self._residents.fetched()

    @property
    def decoded(self) -> int:
        """Bytes of memory held for shards that are not read in place from files."""
        return self._residents.nbytes

    @property
    def portion(self) -> int | None:
        """Samples that may be prepared together; None where that does not matter."""
        return self._residents.portion if self.ranged.portion is None else self.ranged.portion

    @property
    def is_ranged(self) -> bool:
        """Whether windows of some shard are read by range."""
        return self.ranged.portion is not None

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied as they are needed, to a folder or into memory."""
        return self._residents.is_fetched

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
        self.ranged.look_ahead(unready, self._names)
        if self.is_fetched:
            self._residents.announce([shard for shard in unready if not self.ranged.wanted[shard]])
        for shard in self._residents.soonest(unready) if self.is_fetched else unready:
            with self._lock:  # loaders made from each other share what is open
                if not self._ready[shard]:
                    self._open(shard)
        if self._proves:
            prove(self, rows, lock=self._lock, tolerant=self._tolerant)
        if self.harms:
            self.learn()
        now = monotonic()
        for shard in np.flatnonzero(touched & (self._seen < now - _FRESH)).tolist():
            for blob in self._blobs.get(shard, ()):
                blob.view()
            self._seen[shard] = now
        self.seconds += perf_counter() - began
        return counts

    def _open(self, shard: int) -> None:
        before = self._residents.room.decoded
        torch()  # a second to import: here it counts as opening
        try:
            if not self._take_ranged(shard):
                reader = self._read(shard)
                try:
                    self.take(reader, shard, self._names)
                finally:
                    reader.close()
                if shard in self._residents.open and not self._blobs[shard] and not self._has_images:
                    self._residents.open[shard].release()  # all of it was decoded
        except Exception as error:
            if not self._tolerant or not is_damage(error):
                raise
            self._residents.room.decoded = before
            salvage(self, shard)
        self._ready[shard] = True

    @property
    def _names(self) -> list[str]:
        return [*self.cells, *self.singles]

    def _take_ranged(self, shard: int) -> bool:
        """Take in where the windows of a shard lie, and all its other columns; False where it must be read whole."""
        look = self.ranged.look(shard, self._names)
        if look is None:
            return False
        for name, flat in look.flats.items():
            self.survey.check_counts(shard, name, flat.steps)
            self.cells[name].count(shard, self.rows(shard), flat)
        for name in look.others.column_names:
            self.keep(shard, name, look.others.column(name))
        self.ranged.flats[shard] = look.flats
        self.origins[shard] = ORIGINS.index("range")
        return True

    def _read(self, shard: int) -> ShardReader:
        """The shard, or its copy where it cannot be read in place: a folder takes any, memory those in stores."""
        original = self.survey.shards[shard]
        if not is_remote(original):
            reader = original.open()
            flats = (reader.flat(name) for name in self.cells)
            if not self._residents.in_folder or all(
                flat is not None and flat.blob.view() is not None for flat in flats
            ):
                return reader
            reader.close()
        self._residents.come_to(np.array([shard]))
        return self._residents.open[shard].shard.open()

    def reader(self, shard: int) -> ShardReader:
        """An open shard once more, for any thread: its local copy where there is one."""
        copy = self._residents.open.get(shard)
        return (self.survey.shards[shard] if copy is None else copy.shard).open()

    def take(self, reader: ShardReader, shard: int, names: Sequence[str]) -> None:
        """Take in columns of a shard: where they lie in the file, or else decoded."""
        decode, blobs = [], {}
        for name in names:
            flat = reader.flat(name) if name in self.cells else None
            if flat is None or flat.blob.view() is None:
                decode.append(name)
            else:
                self.survey.check_counts(shard, name, flat.steps)
                self.cells[name].place(shard, self.rows(shard), flat, self.memory)
                self._proves = self._proves or flat.proof is not None
                blobs[id(flat.blob)] = flat.blob
        if decode:
            cells = [self.cells[name] for name in decode if name in self.cells]
            room = _take_room(self._residents, self.survey, cells, self.rows(shard))
            try:
                table = pa.Table.from_batches(gathered(reader.batches(decode), f"Columns {decode} of a shard"))
                for name in decode:
                    self.keep(shard, name, table.column(name))
            finally:
                self._residents.room.decoded -= room  # what was kept has been counted
            for cell in cells:
                self.survey.check_counts(shard, cell.name, cell.steps[self.rows(shard)])
        self._blobs.setdefault(shard, []).extend(blobs.values())
        copies = "cache" if self._residents.in_folder else "memory"
        origin = copies if shard in self._residents.open else "mapped"
        if any(name in self.cells for name in decode):
            origin = "memory"
        self.origins[shard] = ORIGINS.index(origin)

    def count_decoded(self, nbytes: int) -> None:
        """Count bytes of memory as decoded."""
        self._residents.room.decoded += nbytes

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
        singles = (*self.values.values(), *self.beside.values())
        return all(one.layouts for one in self.cells.values()) and all(one.values is not None for one in singles)


def _take_room(residents: Residents, survey: WindowSurvey, cells: Sequence[StepColumn], rows: slice) -> int:
    """Set bytes aside for what is about to be decoded, as far as that is known; how many. Refuses what does not fit."""
    more = int(sum(_decoded_bytes(survey, each, rows) for each in cells))
    if residents.take_room(more, wait=True):
        return more
    everything = sum(_decoded_bytes(survey, each, slice(None)) for each in cells)
    least = _size(max(residents.nbytes + more, everything))
    names = ", ".join(each.name for each in cells)
    raise CacheTooSmallError(
        f"Some shards cannot be read in place ({names}: compressed, encoded or remote); decoded they need up to "
        f"{least} of memory where {_size(residents.room.limit)} are allowed.",
        hint="Write the dataset anew with `seqlake repack`, so that it can be read in place, or allow more: "
        f"Loader(..., cache=Cache(limit={least!r})).",
    )


def _decoded_bytes(survey: WindowSurvey, cells: StepColumn, rows: slice, *, unknown: float = 0) -> float:
    """Of some rows of a column; `unknown` where nothing says it."""
    counts = survey.counts.get(cells.name)
    if counts is None or cells.shape is None:
        return unknown
    steps = int(np.maximum(counts[rows], 0).sum())
    return steps * int(np.prod(cells.shape)) * cells.dtype.itemsize


def _size(nbytes: float) -> str:
    """Bytes as `Cache` reads them, rounded up."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= scale:
            return f"{-(-nbytes * 10 // scale) / 10:g} {unit}"
    return f"{-(-nbytes // 1000):g} kB"

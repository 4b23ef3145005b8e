"""The shards that a pass has come to: opened once, read in place where they are flat, decoded where not."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from functools import cached_property
from math import inf
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from seqlake.errors import CacheTooSmallError, DamagedTableError, SeqlakeError
from seqlake.shards.reading import gathered
from seqlake.training.bad_data.damage import is_damage
from seqlake.training.bad_data.salvage import prove, salvage
from seqlake.training.cells import ColumnStore, GrowingSteps
from seqlake.training.fetching.by_range import Ranged
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.gather import Memory, torch
from seqlake.training.needs import UNKNOWN, Budget, size_text
from seqlake.training.residents import Residents
from seqlake.training.shard_cache import is_remote
from seqlake.training.shard_cache.sizes import Size, StepsOf, decoded
from seqlake.training.slices import Slices
from seqlake.training.telemetry import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from seqlake.protocols import Blob, Ints, Shard, ShardReader
    from seqlake.spec.schema import Schema
    from seqlake.training.cache import Cache
    from seqlake.training.cells import StepColumn
    from seqlake.training.order import Visits
    from seqlake.training.survey import WindowSurvey
    from seqlake.training.telemetry import Fetched

_LOOKS = 16  # shards that are looked at to know whether all are read in place
_FRESH = 0.5  # seconds for which a shard that was looked at counts as still the same file


class Lender(Protocol):
    """Cells that are kept where there is room, until shards need it."""

    def forget(self, shard: int) -> bool:
        """Let go of those of a shard; whether there were any."""

    def give_back(self) -> bool:
        """Let go of all of them; whether that made room."""


class Opened(ColumnStore):
    """`OpenShards` of windows and whole sequences; belongs to one process.

    Attributes:
        ranged: The shards whose windows are read by range.
        transfers: What reads stores.
        slices: The columns of shards of which windows are read step by step.
        seconds: Spent on opening and looking at shards.

    Args:
        schema: Of the dataset.
        survey: The dataset through the window.
        cache: Room for what must be copied or decoded.
        tolerant: Bad cells count as null and stand in `harms`, instead of raising.
    """

    def __init__(self, schema: Schema, survey: WindowSurvey, cache: Cache | None, *, tolerant: bool = False) -> None:
        media = [track.column for track in survey.framed] + [span.column for span in survey.sounds]
        images = [name for name in media if schema[name].category != "file"]
        self.transfers: Transfers = Transfers()
        self.ranged: Ranged = Ranged(survey, cache, self.transfers, images=bool(images))
        super().__init__(schema, survey, Memory(busy=self.transfers.is_busy))
        self.seconds: float = 0.0
        self.slices: Slices = Slices(survey, self.cells)
        self._schema = schema
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
            steps=self._steps_of,
            decoded=sum(_decoded_bytes(survey, each, slice(None), unknown=inf) for each in self.cells.values()),
        )
        self._copies = self._residents.is_fetched  # some shard is read from a copy
        self._alone: set[int] = set()  # shards of which there is no copy, and decoded columns in memory
        self._used: list[set[int]] = [set(), set()]  # shards of the chunk before, and of this one
        self._lent: WeakSet[Lender] = WeakSet()

    def lend(self, cells: Lender) -> None:
        """Ask these for the room that they took, where there is not enough for shards."""
        self._lent.add(cells)

    def take_room(self, nbytes: int) -> bool:
        """Count these bytes among those held in memory, if the cache allows that many; fewer than none give back."""
        return self._residents.take_room(nbytes)

    def budgets(self, shards: Ints, *, look: bool, kept: bool = False) -> list[Budget]:
        """What copies of these shards take, or what is decoded of them; see `OpenShards.budgets`."""
        held, making = np.zeros(len(self._ready), np.int64), np.zeros(len(self._ready), np.int64)
        if kept or not self._residents.keeps:
            shards = shards[~self.ranged.wanted[shards]]
            if look and self._are_in_place:
                shards = shards[:0]
            for shard in shards.tolist():
                held[shard], making[shard], _ = self._size(shard, look=look)
        return [Budget(limit=self._residents.limit, held=held, making=making, folder=self._residents.folder)]

    def _size(self, shard: int, *, look: bool) -> Size:
        """What a shard takes of the folder, or of memory."""
        original, rows = self.survey.shards[shard], self.rows(shard)
        if look and not is_remote(original) and _in_place(original, self.cells):
            return Size(0)
        steps = {name: count for name in self.cells if (count := self._count(name, rows)) is not None}
        if self._residents.in_folder:
            return self._residents.size(shard, steps, look=look)
        copy = self._residents.size(shard, steps, look=look) if is_remote(original) else Size(0)
        nbytes, sliced = 0.0, self._sliced(shard) if look else self.slices.known(shard)
        for name, cells in self.cells.items():
            if name in sliced:
                continue
            if copy.decodes or cells.dtype == np.bool_:
                size = _decoded_bytes(self.survey, cells, rows, unknown=inf)
                nbytes += decoded(original, self._schema[name]) if size == inf and look else size
        decode = int(min(nbytes, UNKNOWN))
        if look and copy.decodes and not self._has_images:
            return Size(decode, copy.held)  # the copy goes when all of it was decoded
        return Size(copy.held + decode, copy.making)

    def _sliced(self, shard: int) -> Mapping[str, Ints]:
        """The columns of a shard that are read step by step; nothing where it cannot be opened."""
        try:
            with closing(self.survey.shards[shard].open()) as reader:
                return self.slices.look(shard, reader)
        except (SeqlakeError, OSError):
            return {}  # whoever needs it meets the error

    def _steps_of(self, shard: int) -> dict[str, StepsOf]:
        """What is known of the steps of each column in a shard."""
        rows = self.rows(shard)
        return {
            name: StepsOf(self._count(name, rows), int(_decoded_bytes(self.survey, cells, rows)))
            for name, cells in self.cells.items()
        }

    def _count(self, name: str, rows: slice) -> int | None:
        counts = self.survey.counts.get(name)
        return None if counts is None else int(np.maximum(counts[rows], 0).sum())

    @cached_property
    def _are_in_place(self) -> bool:
        """Whether all shards are read in place, as far as some of them tell: to look at all takes long."""
        shards = self.survey.shards
        some = np.unique(np.linspace(0, len(shards) - 1, _LOOKS).astype(np.int64)).tolist() if len(shards) else []
        return not any(is_remote(shards[shard]) or not _in_place(shards[shard], self.cells) for shard in some)

    def join(self, order: str, rank: int) -> set[int]:
        """Say which rank of an order this process is; all ranks that share its room for copies."""
        return self._residents.join(order, rank)

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Say when which shards will be needed: fetch the next ones ahead; see `Residents`."""
        whole = ~self.ranged.wanted
        self._residents.begin(visits.of(whole), sample=sample, then=None if then is None else then.of(whole))

    def leave(self, sample: int, until: int) -> None:
        """Release local copies that no sample from this one on needs soon; windows found in them are void."""
        before, now = self._pinned
        self._pinned = [now, set()]
        self._used = [self._used[1], set()]
        others = list(self._alone)
        for shard in self._residents.leave(sample, until=until, keep=before | now, others=others):
            self._forget(shard)

    def _forget(self, shard: int) -> None:
        self._ready[shard] = False
        self._alone.discard(shard)
        for cells in self.cells.values():
            self.memory.drop(int(cells.low[shard]))
            self.count_decoded(-int(cells.held[shard]))
            cells.forget(shard)
        self._blobs.pop(shard, None)
        for lent in list(self._lent):
            lent.forget(shard)

    def _give_up(self) -> bool:
        """Make room where nothing said how much was needed: let go of what this chunk and the one before do not use."""
        if any(lent.give_back() for lent in list(self._lent)):
            return True
        used = self._used[0] | self._used[1] | self._pinned[0] | self._pinned[1]
        for shard in (*self._residents.open, *self._alone):
            if shard not in used:
                self._residents.release(shard)
                self._forget(shard)
                return True
        return False

    def _come_to(self, shard: int) -> None:
        """Have a copy of a shard."""
        while True:
            try:
                self._residents.come_to(np.array([shard]))
            except CacheTooSmallError:
                if not self._give_up():
                    raise
            else:
                return

    def pieces(self, shards: Ints) -> tuple[memoryview, ...]:
        """The memory of these shards, and of no other: what others had goes when it is dropped."""
        lows = [cells.low[shards] for cells in self.cells.values()]
        return self.memory.pieces_at(np.unique(np.concatenate(lows)).tolist() if lows else [])

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
        """Samples whose windows are read by range together; None where none are."""
        return self.ranged.portion

    @property
    def is_ranged(self) -> bool:
        """Whether windows of some shard are read by range."""
        return self.ranged.portion is not None

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied as they are needed, to a folder or into memory, or decoded and do not all fit."""
        return self._residents.is_fetched or not (self._residents.keeps or self._are_in_place)

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
        if not self._residents.keeps:
            self._used = self._used if self._residents.has_course else [set(), set()]
            self._used[1].update(np.flatnonzero(touched).tolist())
        self.ranged.look_ahead(unready, self._names)
        left = deque(unready)
        while left and not self._copies:
            self._open(left.popleft())
        if left:
            self._residents.announce([shard for shard in left if not self.ranged.wanted[shard]])
            for shard in self._residents.soonest(left):
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
        with self._lock:  # loaders made from each other share what is open
            if not self._ready[shard]:
                self._take_in(shard)

    def _take_in(self, shard: int) -> None:
        before = self._residents.room.decoded
        torch()  # a second to import: here it counts as opening
        try:
            if not self._take_ranged(shard):
                reader = self._read(shard)
                try:
                    self.take(reader, shard, self._names)
                finally:
                    reader.close()
                copy = self._residents.open.get(shard)
                if copy is None:
                    self._alone.add(shard)
                elif not self._blobs[shard] and not self._has_images:
                    copy.release()  # all of it was decoded
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
        """The shard, or its copy where it cannot be read in place."""
        original = self.survey.shards[shard]
        if not is_remote(original):
            reader = original.open()
            flats = (reader.flat(name) for name in self.cells)
            if all(flat is not None and flat.blob.view() is not None for flat in flats):
                return reader
            if self.slices.look(shard, reader):
                return reader
            reader.close()
        self._copies = True
        self._come_to(shard)
        return self._residents.open[shard].shard.open()

    def reader(self, shard: int) -> ShardReader:
        """An open shard once more, for any thread: its local copy where there is one."""
        copy = self._residents.open.get(shard)
        return (self.survey.shards[shard] if copy is None else copy.shard).open()

    def take(self, reader: ShardReader, shard: int, names: Sequence[str]) -> None:
        """Take in columns of a shard: where they lie in the file, or else decoded."""
        decode, blobs = [], {}
        sliced = self.slices.known(shard)
        for name in names:
            if name in sliced:
                self.cells[name].count_alone(shard, self.rows(shard), sliced[name])
                continue
            flat = reader.flat(name) if name in self.cells else None
            if flat is None or flat.blob.view() is None:
                decode.append(name)
            else:
                self.survey.check_counts(shard, name, flat.steps)
                self.cells[name].place(shard, self.rows(shard), flat, self.memory)
                self._proves = self._proves or flat.proof is not None
                blobs[id(flat.blob)] = flat.blob
        if decode:
            self._decode(reader, shard, decode)
        self._blobs.setdefault(shard, []).extend(blobs.values())
        copies = "cache" if self._residents.in_folder else "memory"
        origin = copies if shard in self._residents.open else "mapped"
        if any(name in self.cells for name in decode):
            origin = "memory"
        self.origins[shard] = ORIGINS.index(origin)

    def _decode(self, reader: ShardReader, shard: int, names: Sequence[str]) -> None:
        """Take in columns that must be decoded: steps go to their place batch by batch, so that they are there once."""
        cells = [self.cells[name] for name in names if name in self.cells]
        rows = self.rows(shard)
        room = self._take_room(cells, rows)
        steps = {each.name: GrowingSteps(each.name, self._count(each.name, rows)) for each in cells}
        singles: dict[str, list[pa.Array]] = {name: [] for name in names if name not in steps}
        try:
            for batch in gathered(reader.batches(names), f"Columns {list(names)} of a shard"):
                for name, column in zip(names, batch.columns, strict=True):
                    if name in steps:
                        steps[name].add(column)
                    else:
                        singles[name].append(column)
            for name, parts in singles.items():
                self.keep(shard, name, pa.chunked_array(parts, self._schema[name].arrow if not parts else None))
            for name, grown in steps.items():
                self.keep_steps(shard, name, *grown.taken())
        finally:
            self.count_decoded(-room)  # what was kept has been counted
        for cell in cells:
            self.survey.check_counts(shard, cell.name, cell.steps[rows])

    def _take_room(self, cells: Sequence[StepColumn], rows: slice) -> int:
        """Set bytes aside for what is decoded, as far as that is known; how many. Refuses what does not fit."""
        more = int(sum(_decoded_bytes(self.survey, each, rows) for each in cells))
        residents = self._residents
        while not residents.take_room(more, wait=True):
            if self._give_up():
                continue
            everything = sum(_decoded_bytes(self.survey, each, slice(None)) for each in cells)
            least = size_text(max(residents.nbytes + more, everything))
            names = ", ".join(each.name for each in cells)
            raise CacheTooSmallError(
                f"Some shards cannot be read in place ({names}: compressed, encoded or remote); decoded they need up "
                f"to {least} of memory where {size_text(residents.room.limit)} are allowed.",
                hint="Write the dataset anew with `seqlake repack`, so that it can be read in place, or allow more: "
                f"Loader(..., cache=Cache(limit={least!r})).",
            )
        return more

    def count_decoded(self, nbytes: int) -> None:
        """Count bytes of memory as decoded."""
        self._residents.count(nbytes)

    def learn(self) -> None:
        """Open further shards, in source order, until the shape of every column is known.

        Raises:
            DamagedTableError: No shard tells.
        """
        for shard in np.flatnonzero(~self._ready).tolist():
            if self._known():
                return
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


def _in_place(shard: Shard, names: Iterable[str]) -> bool:
    """Whether columns are read where the shard lies."""
    try:
        reader = shard.open()
        try:
            flats = [reader.flat(name) for name in names]
        finally:
            reader.close()
    except (SeqlakeError, OSError):
        return False  # whoever needs it meets the error
    return all(flat is not None and flat.blob.view() is not None for flat in flats)


def _decoded_bytes(survey: WindowSurvey, cells: StepColumn, rows: slice, *, unknown: float = 0) -> float:
    """Of some rows of a column; `unknown` where nothing says it."""
    counts = survey.counts.get(cells.name)
    if counts is None or cells.shape is None:
        return unknown
    steps = int(np.maximum(counts[rows], 0).sum())
    return steps * int(np.prod(cells.shape)) * cells.dtype.itemsize

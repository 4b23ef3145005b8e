"""The shards that samples are read from: opened once, read row by row, let go of where memory is short."""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.abilities import Verbatim, ability
from seqlake.errors import CacheTooSmallError
from seqlake.shards.reading import gathered
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.gather import Memory, torch
from seqlake.training.needs import Budget
from seqlake.training.residents import Residents
from seqlake.training.rows.values import Form
from seqlake.training.shard_cache.layers import fits_in_memory, needs_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints, ShardReader
    from seqlake.spec.schema import Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.cache import Cache
    from seqlake.training.order import Visits
    from seqlake.training.survey import WindowSurvey
    from seqlake.training.telemetry import Fetched

_FRESH = 0.05  # seconds for which a shard that was looked at counts as still the same file
_UNKNOWN, _FLAT, _DECODED = 0, 1, 2


class Placed:
    """A column whose cells lie somewhere as they are handed out, in some shards at least.

    Attributes:
        address: [rows] of each cell.
        how: [shards] whether a shard's cells are copied as they lie, or decoded.
    """

    def __init__(self, *, rows: int, shards: int) -> None:
        self.address: Ints = np.zeros(rows, dtype=np.int64)
        self.how: NDArray[np.int8] = np.full(shards, _UNKNOWN, dtype=np.int8)


class RowShards:
    """What `Opened` is for windows, for datasets whose rows are samples; belongs to one process.

    Attributes:
        memory: What the addresses in `placed` point into.
        forms: The columns wanted, in the order of batches.
        placed: Those of them whose cells have one shape, and where they lie.
        harms: Row -> what is wrong with it; only with `on_error`.
        seconds: Spent on opening and looking at shards.

    Args:
        schema: Of the dataset.
        survey: The dataset, row by row.
        cache: Room for copies, in memory or in a folder.
    """

    def __init__(self, schema: Schema, survey: WindowSurvey, cache: Cache | None) -> None:
        self.forms: list[Form] = [Form.of(schema[name]) for name in survey.singles]
        rows, shards = survey.rows, len(survey.shards)
        self.placed: dict[str, Placed] = {
            form.name: Placed(rows=rows, shards=shards) for form in self.forms if form.shape
        }
        self.harms: dict[int, list[Harm]] = {}
        self.seconds: float = 0.0
        self._survey = survey
        self._lock = Lock()
        self._readers: dict[int, ShardReader] = {}
        self._transfers = Transfers()
        self.memory: Memory = Memory(busy=self._transfers.is_busy)
        self._blobs: dict[int, list[tuple[Blob, int]]] = {}
        self._seen = np.full(shards, -np.inf)
        self._pinned: list[set[int]] = [set(), set()]  # of the chunk before, and of this one
        self._used: list[set[int]] = [set(), set()]  # shards that were asked for, likewise
        self._needs = needs_copy if cache is not None and cache.path is not None else fits_in_memory
        self._residents = Residents.of(
            survey.shards,
            schema.select(survey.singles),
            cache,
            self._transfers,
            whole=np.ones(shards, dtype=np.bool_),
            needs=self._needs,
        )

    # ---- which shard, which row

    def shard_of(self, rows: Ints) -> Ints:
        """[n] rows -> the shard of each."""
        shards: Ints = np.searchsorted(self._survey.first_rows, rows, side="right") - 1
        return shards

    def within(self, rows: Ints, shard: int) -> Ints:
        """[n] rows of a shard -> their numbers in it."""
        numbers: Ints = rows - self._survey.first_rows[shard]
        return numbers

    def beyond(self, rows: Ints, shard: int) -> Ints:
        """[n] row numbers of a shard -> those of the dataset."""
        all_: Ints = rows + self._survey.first_rows[shard]
        return all_

    @cached_property
    def row_bytes(self) -> float:
        """Of a row, about."""
        return sum(shard.nbytes for shard in self._survey.shards) / max(1, self._survey.rows)

    def file(self, shard: int) -> str:
        """What messages call a shard."""
        key = self._survey.shards[shard].key
        return key.rpartition("#")[0] or key

    # ---- open shards

    def visit(self, rows: Ints) -> None:
        """Find where the cells of these rows lie, and see that what is open is still the same files.

        Raises:
            ShardChangedError: A file changed under its map.
            CacheTooSmallError: Shards that are decompressed do not fit into memory.
        """
        began = perf_counter()
        if self.placed:
            shards = np.unique(self.shard_of(rows))
            for shard in shards[next(iter(self.placed.values())).how[shards] == _UNKNOWN].tolist():
                self.reader(shard)
            now = monotonic()
            for shard in shards[self._seen[shards] < now - _FRESH].tolist():
                for blob, _ in self._blobs.get(shard, ()):
                    blob.view()
                self._seen[shard] = now
        self.seconds += perf_counter() - began

    def reader(self, shard: int) -> ShardReader:
        """A reader of a shard."""
        with self._lock:
            self._used[1].add(shard)
            reader = self._readers.get(shard)
            if reader is not None:
                return reader
            torch()  # a second to import: here it counts as opening
            reader = self._readers[shard] = self._read(shard)
            self._place(shard, reader)
            return reader

    def _come_to(self, shard: int) -> None:
        """Have a copy of a shard, if need be instead of one that is not in use."""
        while True:
            try:
                self._residents.come_to(np.array([shard]))
            except CacheTooSmallError:
                used = self._used[0] | self._used[1] | self._pinned[0] | self._pinned[1]
                used = used if self._residents.has_course else set()
                other = next((one for one in self._residents.open if one not in used), None)
                if other is None:
                    raise
                self._residents.release(other)
                self._forget(other)
            else:
                return

    def budgets(self, shards: Ints, *, look: bool, kept: bool = False) -> list[Budget]:
        """What copies of these shards take; see `OpenShards.budgets`."""
        held, making = (np.zeros(len(self._survey.shards), np.int64) for _ in range(2))
        for shard in shards.tolist() if kept or not self._residents.keeps else ():
            if self._needs(self._survey.shards[shard]):
                held[shard], making[shard], _ = self._residents.size(shard, {}, look=look)
        return [Budget(limit=self._residents.limit, held=held, making=making, folder=self._residents.folder)]

    def pieces(self, rows: Ints) -> tuple[memoryview, ...]:
        """The memory of the shards of rows, of nobody else: what others had goes when it is dropped."""
        shards = np.unique(self.shard_of(rows)).tolist()
        return self.memory.pieces_at([low for shard in shards for _, low in self._blobs.get(shard, ())])

    def is_flat(self, name: str, rows: Ints) -> bool:
        """Whether the cells of all these rows, which were visited, are copied as they lie."""
        placed = self.placed.get(name)
        return placed is not None and bool((placed.how[np.unique(self.shard_of(rows))] == _FLAT).all())

    def read(self, shard: int, names: Sequence[str], rows: Ints) -> pa.Table:
        """Some rows of a shard, decoded."""
        reader = self.reader(shard)
        return pa.Table.from_batches(gathered(reader.batches(names, rows=rows), f"Columns {list(names)} of a shard"))

    def verbatim(self, shard: int, name: str, rows: Ints) -> list[memoryview] | None:
        """Cells that are bytes, where they lie; None where the shard does not say it, as with most formats."""
        given = ability(self.reader(shard), Verbatim)
        return None if given is None else given.verbatim(name, rows)

    def _read(self, shard: int) -> ShardReader:
        original = self._survey.shards[shard]
        if not self._needs(original):
            return original.open()
        self._come_to(shard)
        return self._residents.open[shard].shard.open()

    def _place(self, shard: int, reader: ShardReader) -> None:
        start, stop = self._survey.first_rows[shard : shard + 2].tolist()
        kept = self._blobs[shard] = []
        for form in self.forms:
            placed = self.placed.get(form.name)
            if placed is None:
                continue
            flat = reader.flat(form.name)
            view = None if flat is None else flat.blob.view()
            inside = flat is not None and view is not None and form.fits(flat)
            if inside and flat is not None and view is not None and len(flat.start):
                inside = int(flat.start.min()) >= 0 and int(flat.start.max()) + form.width <= view.nbytes
                if flat.proof is not None:
                    flat.proof.touch(flat.start)
                low, _ = self.memory.hold(view)
                placed.address[start:stop] = low + flat.start
                kept.append((flat.blob, low))
            placed.how[shard] = _FLAT if inside else _DECODED

    def _forget(self, shard: int) -> None:
        reader = self._readers.pop(shard)
        for placed in self.placed.values():
            placed.how[shard] = _UNKNOWN
        for _, low in self._blobs.pop(shard, ()):
            self.memory.drop(low)
        reader.close()

    # ---- what passes ask of it

    @property
    def portion(self) -> int | None:
        """None: rows are not read by range."""
        return None

    @property
    def is_ranged(self) -> bool:
        """False: rows are not read by range."""
        return False

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied as they are needed, to a folder or into memory."""
        return self._residents.is_fetched

    @property
    def origin(self) -> str:
        """Where samples are copied from; see `telemetry.ORIGINS`."""
        if not self.is_fetched:
            return "mapped"
        return "cache" if self._residents.in_folder else "memory"

    @property
    def decoded(self) -> int:
        """Bytes of memory that open shards hold."""
        return self._residents.nbytes

    @property
    def fetched(self) -> Fetched:
        """What came from stores."""
        return self._residents.fetched()

    def join(self, order: str, rank: int) -> set[int]:
        """Say which rank of an order this process is; all ranks that share its room for copies."""
        return self._residents.join(order, rank)

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Say when which shards will be needed: fetch the next ones ahead; see `Residents`."""
        self._residents.begin(visits, sample=sample, then=then)

    def leave(self, sample: int, until: int) -> None:
        """Release local copies that no sample from this one on needs soon."""
        before, now = self._pinned
        self._pinned = [now, set()]
        self._used = [self._used[1], set()]
        for shard in self._residents.leave(sample, until=until, keep=before | now):
            if shard in self._readers:
                self._forget(shard)

    def pin(self, rows: Ints) -> None:
        """Keep the shards of these rows, which the order does not ask for, as long as this chunk is in use."""
        self._pinned[1].update(np.unique(self.shard_of(rows)).tolist())

    def harmed(self, rows: Ints) -> NDArray[np.bool_]:
        """[n] whether something was found wrong with rows."""
        return np.array([row in self.harms for row in rows.tolist()], dtype=np.bool_)

    def harms_of(self, row: int) -> list[Harm]:
        """What is wrong with a row."""
        return self.harms.get(row, [])

    def id_of(self, row: int) -> str | None:  # noqa: ARG002 - `Opened` has ids
        """None: samples have no ids."""
        return None

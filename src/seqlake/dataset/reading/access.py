"""Point access to one source in one process: open readers, cells kept at hand, rows found by id.

Everything here can be made again, so nothing of it is pickled, and a forked child begins anew.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
import pyarrow as pa

from seqlake.abilities import HasIds, HasLengths, HoldsFiles, KeepsFiles, OpensFiles, StepReader, ability
from seqlake.dataset.reading import streaming
from seqlake.dataset.reading.cells import arrow_cell, flat_cell
from seqlake.errors import SequenceNotFoundError
from seqlake.shards.cells import is_shown
from seqlake.shards.parquet.expansion import NARROW
from seqlake.shards.rows import Rows
from seqlake.windows.clock import dataset_clock, depends
from seqlake.windows.sources import cell_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Blob, Flat, Ints, Readable, Shard, ShardReader
    from seqlake.spec.alignment import Clock
    from seqlake.spec.schema import Column
    from seqlake.windows.sources import MediaFiles
    from seqlake.windows.spec import Window

KEPT = 64 << 20
"""Bytes of whole columns of small cells that are kept for SQL."""
_OPEN_SHARDS = 256
_BLOCK = 1024  # rows of a narrow column that are read together
_BLOCK_BYTES = 32 << 20  # of one block; what is larger is read row by row
_BLOCKS = 256  # of one shard, over all its columns
_FOUND = 65_536  # rows of ids that are remembered where the table can find ids itself


class _Handles:
    """What one process has open and knows about a source."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = RLock()
        self.open: OrderedDict[int, _OpenShard] = OrderedDict()
        self.shards: tuple[Sequence[Shard], list[int]] | None = None
        self.rows: dict[str, int] = {}
        self.ids: dict[int, str] = {}  # of rows that were found by their ids
        self.clocks: dict[object, Clock] = {}
        self.columns: OrderedDict[str, pa.Array | None] = OrderedDict()  # None: more bytes than are kept


class Access:
    """Reads single cells of a source; shared by a dataset, its selections and their threads."""

    def __init__(self, source: Readable) -> None:
        self.source = source
        self._handles = _Handles()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Access, (self.source,))

    def _here(self) -> _Handles:
        """This process's handles; a forked child begins with none."""
        handles = self._handles
        if handles.pid != os.getpid():
            handles = self._handles = _Handles()
        return handles

    def _listed(self) -> tuple[Sequence[Shard], list[int]]:
        handles = self._here()
        if handles.shards is None:
            shards = self.source.shards()
            handles.shards = shards, [0, *accumulate(shard.rows for shard in shards)]
        return handles.shards

    @property
    def shards(self) -> Sequence[Shard]:
        """The source's shards, listed once."""
        return self._listed()[0]

    @property
    def starts(self) -> list[int]:
        """[shards + 1] number of the first row of each shard, then of all rows."""
        return self._listed()[1]

    def cut(self, rows: Ints, /) -> list[Shard]:
        """The shards that hold these rows, cut down to them, in the rows' order."""
        shards, starts = self.shards, np.array(self.starts, np.int64)
        numbers = np.searchsorted(starts, rows, side="right") - 1
        pieces: list[Shard] = []
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers)) + 1):
            if len(run):
                shard = shards[int(numbers[run[0]])]
                keep = rows[run] - starts[numbers[run[0]]]
                whole = len(keep) == shard.rows and bool((np.diff(keep) == 1).all())
                pieces.append(shard if whole else Rows(shard, keep))
        return pieces

    def cell(self, row: int, column: Column, /) -> Any:
        """One cell: numpy for steps and vectors, Python values else; None where null.

        Args:
            row: Row number in the source.
            column: One of the source's columns.
        """
        starts = self.starts
        number = bisect_right(starts, row) - 1
        handles = self._here()
        if column.name == self.source.schema.id and row in handles.ids:
            return handles.ids[row]
        return self._opened(number).cell(row - starts[number], column)

    def steps(self, row: int, column: Column, /) -> SlicedSteps | None:
        """The encoded images of a cell, read when they are asked for; None where it is null, or must be read whole."""
        starts = self.starts
        number = bisect_right(starts, row) - 1
        count = self._opened(number).count(row - starts[number], column.name)
        return None if count is None else SlicedSteps(self, row, column.name, range(count))

    def slice(self, row: int, name: str, start: int, stop: int, /) -> list[Any]:
        """Some steps of a cell of which `steps` is not None."""
        starts = self.starts
        number = bisect_right(starts, row) - 1
        return self._opened(number).slice(row - starts[number], name, start, stop)

    def held(self, row: int, column: Column, /) -> tuple[str, Blob] | None:
        """Name and bytes of the file that a cell holds, read by range; None where it is null, or must be decoded."""
        starts = self.starts
        number = bisect_right(starts, row) - 1
        return self._opened(number).held(row - starts[number], column.name)

    def token(self, row: int, column: Column, /) -> str:
        """What tells the bytes of a cell from those of all others, without a look at them."""
        number = bisect_right(self.starts, row) - 1
        return cell_token(self.shards[number], column.name, row - self.starts[number])

    def _opened(self, number: int) -> _OpenShard:
        handles = self._here()
        with handles.lock:
            opened = handles.open.get(number)
            if opened is None:
                # A reader that falls out of the list closes when nothing holds its bytes any more.
                opened = handles.open[number] = _OpenShard(self.shards[number])
                if len(handles.open) > _OPEN_SHARDS:
                    handles.open.popitem(last=False)
            else:
                handles.open.move_to_end(number)
        return opened

    # ---- whole columns

    def flat(self, number: int, column: str, /) -> Flat | None:
        """Where the cells of a column lie in one shard, if they lie flat."""
        return self._opened(number).flat(column)

    def flats(self, number: int, columns: Sequence[str], /) -> dict[str, Flat] | None:
        """Temporal columns of one shard where all lie flat, in the types that the schema shows; else None."""
        opened, schema = self._opened(number), self.source.schema
        flats = {name: opened.flat(name) for name in columns}
        if not all(flat is not None and is_shown(flat, schema[name].logical) for name, flat in flats.items()):
            return None
        return {name: flat for name, flat in flats.items() if flat is not None}

    def kept(self, columns: Sequence[str], /, *, read: bool) -> dict[str, pa.Array] | None:
        """All rows of columns of small cells, kept since questions come one after the other; None: too many bytes.

        Args:
            columns: Their names.
            read: Whether those not kept yet are read now, from every shard; else None as well.
        """
        handles = self._here()
        missing = [name for name in columns if name not in handles.columns]
        if missing and not read:
            return None
        whole = self._whole(missing) if missing else {}
        with handles.lock:
            handles.columns.update(whole)
            arrays = {name: handles.columns.get(name) for name in columns}
            while sum(array.nbytes for array in handles.columns.values() if array is not None) > KEPT:
                handles.columns.popitem(last=False)
        kept = {name: array for name, array in arrays.items() if array is not None}
        return kept if len(kept) == len(arrays) else None

    def _whole(self, columns: list[str]) -> dict[str, pa.Array | None]:
        batches, nbytes = [], 0
        for batch in streaming.read(self.source, columns):
            batches.append(batch)
            nbytes += batch.nbytes
            if nbytes <= KEPT:
                continue
            if len(columns) == 1:
                return {columns[0]: None}
            return {name: array for one in columns for name, array in self._whole([one]).items()}
        types = pa.schema([self.source.schema.arrow.field(name) for name in columns])
        table = pa.Table.from_batches(batches, schema=types)
        none = [pa.nulls(0, kind) for kind in types.types]
        return {n: pa.concat_arrays([*table.column(n).chunks, no]) for n, no in zip(columns, none, strict=True)}

    def kept_packets(self, reference: str, /) -> Mapping[int, bytes]:
        """Video stream -> the packet index that the table keeps of a file; empty where it keeps none."""
        known = ability(self.source, KeepsFiles)
        return {} if known is None else known.kept_packets(reference)

    def copied_file(self, reference: str, /) -> Blob | None:
        """A file that was copied into the table, or lies in a file of another format; None for any other reference."""
        known = ability(self.source, KeepsFiles)
        if known is not None:
            return known.copied_file(reference)
        within = ability(self.source, OpensFiles)
        return None if within is None else within.file_within(reference)

    def clock(self, window: Window, files: MediaFiles, /) -> Clock:
        """The dataset's clock for a window; found once, since videos may have to be opened for it."""
        clocks, schema = self._here().clocks, self.source.schema
        key = (window.clock, depends(window, schema))
        if key not in clocks:
            clocks[key] = dataset_clock(self.source, given=window.clock, window=window, files=files)
        return clocks[key]

    def row_of(self, sequence_id: str, /) -> int:
        """The row number of one sequence.

        Raises:
            SequenceNotFoundError: No row has this id.
        """
        row = self._here().rows.get(sequence_id)
        if row is None:
            row = int(self.rows_of([sequence_id])[0])
            if row < 0:
                raise SequenceNotFoundError(
                    f"No sequence is called {sequence_id!r}.",
                    hint="ds[0].id shows what ids look like; ds.where(\"sequence_id LIKE '%...%'\") searches them.",
                )
        return row

    def rows_of(self, ids: Sequence[str], /) -> Ints:
        """[ids] row numbers, -1 where no row has the id; by the table's sorted id hashes where it has them."""
        known = ability(self.source, HasIds)
        if known is None:
            every = self._every_id()
            return np.array([every.get(one, -1) for one in ids], np.int64)
        rows = np.asarray(known.find_ids(list(ids)), np.int64)
        handles = self._here()
        if len(handles.rows) + len(rows) > _FOUND:
            handles.rows, handles.ids = {}, {}
        numbered = {one: int(row) for one, row in zip(ids[:_FOUND], rows, strict=False) if row >= 0}
        handles.rows.update(numbered)
        handles.ids.update((row, one) for one, row in numbered.items())
        return rows

    def _every_id(self) -> dict[str, int]:
        """Every id and its row, read once."""
        handles = self._here()
        if not handles.rows:
            name = self.source.schema.id
            if name is None:
                raise SequenceNotFoundError(
                    "These rows are samples without ids.", hint="Use their numbers instead, as in ds[0]."
                )
            ids: list[str | None] = []
            for batch in streaming.read(self.source, [name]):
                ids += batch.column(0).to_pylist()
            handles.rows = {one: row for row, one in enumerate(ids) if one is not None}
        return handles.rows


class SlicedSteps(Sequence[Any]):
    """The encoded images of one cell, each step's read when it is asked for.

    Args:
        access: Reads the cell.
        row: Of the source.
        column: Its name.
        numbers: The steps that are meant.
    """

    def __init__(self, access: Access, row: int, column: str, numbers: range, /) -> None:
        self._access = access
        self._row = row
        self._column = column
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, which: int, /) -> Any: ...
    @overload
    def __getitem__(self, which: slice, /) -> SlicedSteps: ...
    def __getitem__(self, which: Any, /) -> Any:
        if isinstance(which, slice):
            return SlicedSteps(self._access, self._row, self._column, self._numbers[which])
        number = self._numbers[which]
        return self._access.slice(self._row, self._column, number, number + 1)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, SlicedSteps)) and list(self) == list(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as of a list


class _OpenShard:
    """One shard's reader with the flat columns and the blocks of narrow columns that were asked for."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._reader: ShardReader = shard.open()
        self._flat: dict[str, Flat | None] = {}
        self._blocks: OrderedDict[tuple[str, int], pa.Array | None] = OrderedDict()
        self._lock = RLock()  # readers are not asked to be safe for threads

    def flat(self, name: str) -> Flat | None:
        """Where the cells of a column lie, if they lie flat."""
        if name not in self._flat:
            with self._lock:
                self._flat[name] = self._reader.flat(name)
        return self._flat[name]

    def cell(self, row: int, column: Column) -> Any:
        name = column.name
        if column.category not in NARROW:
            flat = self.flat(name) if column.category in {"temporal", "vector"} else None
            if flat is not None and column.category == "temporal":
                return flat_cell(flat, row)
            return arrow_cell(self._read(name, row, row + 1), 0, column)
        number, place = divmod(row, _BLOCK)
        if (name, number) not in self._blocks:
            block = self._read(name, number * _BLOCK, min((number + 1) * _BLOCK, self._shard.rows), most=_BLOCK_BYTES)
            with self._lock:
                self._blocks[name, number] = block
                if len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
        block = self._blocks.get((name, number))
        if block is None:  # too large to be kept, or another thread's reads pushed it out
            return arrow_cell(self._read(name, row, row + 1), 0, column)
        return arrow_cell(block, place, column)

    def count(self, row: int, name: str) -> int | None:
        """How many steps a cell has that can be read by the slice; None where it is null, or cannot."""
        able, known = ability(self._reader, StepReader), ability(self._reader, HasLengths)
        if able is None or known is None:
            return None
        with self._lock:
            lengths = known.lengths(name)
        return None if lengths is None or lengths[row] < 0 else int(lengths[row])

    def slice(self, row: int, name: str, start: int, stop: int) -> list[Any]:
        able = ability(self._reader, StepReader)
        assert able is not None  # `count` asked
        with self._lock:
            return list(able.slice(name, row, start, stop))

    def held(self, row: int, name: str) -> tuple[str, Blob] | None:
        given = ability(self._reader, HoldsFiles)
        if given is None:
            return None
        with self._lock:
            files = given.held(name, np.array([row], np.int64))
        return None if files is None else files[0]

    def _read(self, name: str, start: int, stop: int, *, most: int | None = None) -> pa.Array | None:
        """Cells of some rows; None where they take more than `most` bytes."""
        arrays, nbytes = [], 0
        with self._lock:
            for batch in self._reader.batches([name], rows=np.arange(start, stop, dtype=np.int64)):
                arrays += [batch.column(name)] * (batch.num_rows > 0)
                nbytes += batch.nbytes
                if most is not None and nbytes > most:
                    return None
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

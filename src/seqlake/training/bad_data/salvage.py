"""What can still be read of a damaged shard: column by column, part by part, cell by cell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, SchemaMismatchError
from seqlake.shards.reading import gathered
from seqlake.training.bad_data.damage import Harm, is_damage
from seqlake.training.cells import flatten

if TYPE_CHECKING:
    from threading import Lock

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, ShardReader
    from seqlake.training.cells import ColumnStore, StepColumn

_PARTS = 64  # of a shard: what lies in the same part as damaged bytes is lost with them

Steps = tuple["NDArray[Any]", int]  # [T, ...] of one row, and T with -1 for null


def salvage(columns: ColumnStore, shard: int, /) -> None:
    """Take in what can be read of a shard; every other cell counts as null and stands in `columns.harms`.

    What is lost depends on the shard's bytes alone.

    Raises:
        OSError: The line or the machine failed, not the data.
        ShardChangedError: The file changed.
    """
    for cells in columns.cells.values():
        cells.held[shard] = 0
    rows = columns.rows(shard)
    everything = np.arange(rows.start, rows.stop)
    file = columns.file(shard)
    try:
        reader = columns.survey.shards[shard].open()
    except Exception as error:
        if not is_damage(error):
            raise
        columns.lose(everything, Harm.of(error, column="", file=file))
        return
    lost: dict[str, Exception] = {}
    names = [*columns.cells, *columns.singles]
    try:
        for name in names:
            try:
                columns.take(reader, shard, [name])
            except Exception as error:
                if not is_damage(error):
                    raise
                lost[name] = error
        if len(lost) == len(names) > 1 and len({str(error) for error in lost.values()}) == 1:
            first = lost[names[0]]
            columns.lose(everything, Harm.of(first, column="", file=file))
            return
        for name, why in lost.items():
            _Column(columns, shard, file, reader, name).save(why)
    finally:
        reader.close()
    columns.origins[shard] = 0


class _Column:
    """One column of a damaged shard."""

    def __init__(self, columns: ColumnStore, shard: int, file: str, reader: ShardReader, name: str) -> None:
        self._columns = columns
        self._shard = shard
        self._file = file
        self._reader = reader
        self._name = name
        self._first = columns.rows(shard).start
        self._count = columns.rows(shard).stop - self._first
        self._gone: set[int] = set()  # rows of the shard that are lost

    def save(self, error: Exception) -> None:
        """Take in the cells that can be read.

        Args:
            error: Why the column as a whole cannot.
        """
        parts = self._read(0, self._count)
        if all(cells is None for _, _, cells in parts):
            self._lost(0, self._count, error)
        elif self._name in self._columns.cells:
            self._save_steps(parts, error)
        else:
            kind = next(cells.type for _, _, cells in parts if cells is not None)
            arrays = [pa.nulls(stop - start, kind) if cells is None else cells for start, stop, cells in parts]
            try:
                self._columns.keep(self._shard, self._name, pa.chunked_array(arrays))
            except SchemaMismatchError as other:  # vectors of unlike lengths
                self._lost(0, self._count, other)

    def _read(self, start: int, stop: int) -> list[tuple[int, int, pa.Array | None]]:
        """The cells of some rows in parts, halved where they cannot be read together; None where not at all."""
        try:
            batches = self._reader.batches([self._name], rows=np.arange(start, stop))
            table = pa.Table.from_batches(gathered(batches, f"Column {self._name!r} of a shard"))
            return [(start, stop, pa.concat_arrays(table.column(0).chunks))]
        except Exception as error:
            if not is_damage(error):
                raise
            if stop - start <= max(1, self._count // _PARTS):
                self._lost(start, stop, error)
                return [(start, stop, None)]
        middle = (start + stop) // 2
        return [*self._read(start, middle), *self._read(middle, stop)]

    def _save_steps(self, parts: list[tuple[int, int, pa.Array | None]], error: Exception) -> None:
        nothing = (np.zeros((0, 0), np.uint8), -1)
        by_row: list[Steps] = [nothing] * self._count
        for start, stop, cells in parts:
            if cells is None:
                continue
            for row in range(start, stop):
                try:
                    values, length = flatten(cells[row - start : row - start + 1], name=self._name)
                    by_row[row] = (values, int(length[0]))
                except SchemaMismatchError as ragged:
                    self._lost(row, row + 1, ragged)
        other = self._columns.survey.unplanned(self._shard, self._name, np.array([steps for _, steps in by_row]))
        for row in sorted(set(np.flatnonzero(other).tolist()) - self._gone):
            by_row[row] = nothing
            self._lost(row, row + 1, error)
        shape = self._shape(by_row)
        for row, (values, steps) in enumerate(by_row):
            if steps > 0 and values.shape[1:] != shape:
                by_row[row] = nothing
                expected = SchemaMismatchError(
                    f"Column {self._name!r}: expected steps of shape {shape}, by_row {values.shape[1:]}."
                )
                self._lost(row, row + 1, expected)
        dtype = self._columns.cells[self._name].dtype
        whole = [values for values, steps in by_row if steps > 0] or [np.zeros((0, *shape), dtype)]
        self._columns.keep_steps(self._shard, self._name, np.concatenate(whole), np.array([s for _, s in by_row]))

    def _shape(self, by_row: list[Steps]) -> tuple[int, ...]:
        """Of a step as it is stored: the declared width, else the one that most rows have."""
        known = self._columns.cells[self._name].shape
        shapes = Counter(values.shape[1:] for values, steps in by_row if steps > 0)
        if known is not None:
            size = int(np.prod(known))
            return next((shape for shape in shapes if int(np.prod(shape)) == size), known)
        return shapes.most_common(1)[0][0] if shapes else ()

    def _lost(self, start: int, stop: int, error: BaseException) -> None:
        self._gone.update(range(start, stop))
        harm = Harm.of(error, column=self._name, file=self._file)
        self._columns.lose(np.arange(self._first + start, self._first + stop), harm)


def prove(columns: ColumnStore, rows: Ints, /, *, lock: Lock, tolerant: bool) -> None:
    """Compare the pages that these rows are in and that this process did not look at yet.

    Args:
        columns: Of a dataset, the shards of the rows open.
        rows: Of the dataset.
        lock: Held meanwhile: loaders made from each other share what is open.
        tolerant: Rows of damaged pages count as null and stand in `columns.harms`.

    Raises:
        CorruptFileError: A page is not what was written.
    """
    pending = [cells for cells in columns.cells.values() if cells.proofs]
    if not pending:
        return
    rows = np.unique(rows)
    shards = columns.shard_of(rows)
    with lock:
        for cells in pending:
            for shard in np.intersect1d(shards, list(cells.proofs)).tolist():
                inside = rows[shards == shard]
                if tolerant:
                    _lose_pages(columns, cells, shard, inside)
                else:
                    cells.prove(shard, inside)


def _lose_pages(columns: ColumnStore, cells: StepColumn, shard: int, rows: Ints) -> None:
    proof, low = cells.proofs[shard], cells.low[shard]
    there = rows[cells.steps[rows] > 0]
    pages = proof.pages(cells.address[there] - low)
    for page in np.unique(pages).tolist():
        try:
            cells.prove(shard, there[pages == page])
        except CorruptFileError as error:
            # All rows of the page: what a selection has of it, in its order.
            every = np.arange(columns.rows(shard).start, columns.rows(shard).stop)
            every = every[cells.steps[every] > 0]
            every = every[proof.pages(cells.address[every] - low) == page]
            cells.steps[every] = 0
            columns.lose(every, Harm.of(error, column=cells.name, file=columns.file(shard)))

"""The laws of every kind of shard, as a suite to inherit.

```python
class TestMyShards(ShardTests):
    def make(self, table, folder):
        return [my_shard(...)]
```
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from seqlake import protocols
from seqlake.dataset.opening import create
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.errors import SeqlakeError
from seqlake.shards.cells import gather
from seqlake.shards.columns import Columns
from seqlake.shards.reading import lengths_of
from seqlake.shards.rows import Rows
from seqlake.spec.schema import Schema
from seqlake.testing.processes import elsewhere
from seqlake.testing.strict import Strict
from seqlake.versions import shard_formats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from seqlake.protocols import Flat, Shard, ShardReader


def cells_of(flat: Flat, /) -> list[Any]:
    """Every cell of a flat column as an array [T, ...], None where it is null.

    Reads step by step from the bytes, with nothing but what `Flat` says.
    """
    data = flat.blob.view()
    cells: list[Any] = []
    count = int(np.prod(flat.shape, dtype=np.int64))
    for start, steps in zip(flat.start.tolist(), flat.steps.tolist(), strict=True):
        if steps < 0:
            cells.append(None)
            continue
        at = start + flat.stride * np.arange(steps)
        stops = at + count * flat.stored.itemsize
        parts = (
            flat.blob.ranges(at, stops)
            if data is None
            else [data[a:b] for a, b in zip(at.tolist(), stops.tolist(), strict=True)]
        )
        values = np.frombuffer(b"".join(bytes(part) for part in parts), flat.stored).astype(flat.dtype)
        cells.append(values.reshape(steps, *flat.shape))
    return cells


def identical(left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray, /) -> bool:
    """Whether two Arrow columns hold the same cells bit for bit: NaN payloads, nulls and empty lists too.

    Types may differ in the names of list items and in the kind of list, not in their numbers.
    """
    left, right = (a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in (left, right))
    if len(left) != len(right) or not np.array_equal(np.asarray(left.is_valid()), np.asarray(right.is_valid())):
        return False
    if hasattr(left.type, "value_type") and hasattr(right.type, "value_type"):
        first, second = (np.asarray(pc.fill_null(pc.list_value_length(a), -1)) for a in (left, right))
        return np.array_equal(first, second) and identical(left.flatten(), right.flatten())
    if left.type != right.type:
        return False
    left, right = left.drop_null(), right.drop_null()
    if pa.types.is_floating(left.type):
        return bool(np.asarray(left).tobytes() == np.asarray(right).tobytes())
    return bool(left.equals(right))


def flat_is(flat: Flat, column: pa.Array | pa.ChunkedArray, /) -> bool:
    """Whether a flat column holds the cells that Arrow shows, bit for bit.

    Args:
        flat: The column.
        column: The same rows from an independent reader: numbers, lists of them, or raw binary cells.
    """
    return all(_same(taken, cell) for taken, cell in zip(cells_of(flat), column, strict=True))


def _same(taken: Any, cell: Any) -> bool:
    if taken is None or not cell.is_valid:
        return taken is None and not cell.is_valid
    if pa.types.is_binary(cell.type):
        return bool(taken.tobytes() == cell.as_py())
    values = cell.values if hasattr(cell, "values") else pa.array([cell])
    steps = len(values)
    while hasattr(values.type, "value_type"):
        values = values.flatten()
    numbers = np.asarray(values)
    return steps == len(taken) and numbers.dtype == taken.dtype and numbers.tobytes() == taken.tobytes()


def rows_in_child(shards: Sequence[Shard], column: str, /) -> list[int]:
    """How many rows of a column each shard gives; for a fresh process."""
    return [sum(batch.num_rows for batch in shard.open().batches([column])) for shard in shards]


def _rows() -> pa.Table:
    """Rows with numbers, text, null and empty cells."""
    random = np.random.default_rng(7)
    lengths = [3, 0, 12, 1, 40, 0, 7, 25]
    steps = [random.standard_normal((n, 4)).astype(np.float32).tolist() for n in lengths]
    cells = [None if i == 3 else cell for i, cell in enumerate(steps)]
    return pa.table(
        {
            "sequence_id": [f"ep_{i:03}" for i in range(len(lengths))],
            "task": ["pick", None, "place", "pick", "", "push", "pick", "place"],
            "reward": pa.array(np.arange(len(lengths), dtype=np.float32)),
            "action": pa.array(cells, pa.list_(pa.list_(pa.float32(), 4))),
        }
    )


class ShardTests:
    """Laws of `Shard` and `ShardReader`; inherit, and give `make`."""

    def make(self, table: pa.Table, folder: Path, /) -> Sequence[Shard]:
        """Shards of your kind that hold these rows, in order; two calls give the same."""
        raise NotImplementedError

    @pytest.fixture
    def table(self) -> pa.Table:
        """Rows with numbers, text, null and empty cells."""
        return _rows()

    @pytest.fixture
    def shards(self, table: pa.Table, tmp_path: Path) -> Sequence[Shard]:
        """What `make` gives of `table`."""
        return self.make(table, tmp_path)

    def read(self, reader: ShardReader, columns: Sequence[str], rows: Any = None) -> pa.Table:
        """The batches of a reader as one table."""
        return pa.Table.from_batches(list(reader.batches(columns, rows=rows)))

    def whole(self, shards: Sequence[Shard], columns: Sequence[str]) -> list[dict[str, Any]]:
        """All rows of all shards."""
        return [row for shard in shards for row in self.read(shard.open(), columns).to_pylist()]

    def test_rows_are_the_rows_given(self, table: pa.Table, shards: Sequence[Shard]) -> None:
        assert self.whole(shards, table.column_names) == table.to_pylist()

    def test_rows_are_counted(self, table: pa.Table, shards: Sequence[Shard]) -> None:
        assert sum(shard.rows for shard in shards) == table.num_rows
        for shard in shards:
            assert sum(batch.num_rows for batch in shard.open().batches(["sequence_id"])) == shard.rows

    def test_columns_come_in_the_order_asked_for(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            for batch in shard.open().batches(["reward", "sequence_id"]):
                assert batch.schema.names == ["reward", "sequence_id"]

    def test_no_columns_count_rows(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            assert sum(batch.num_rows for batch in shard.open().batches([])) == shard.rows

    def test_rows_asked_for_are_that_permutation(self, table: pa.Table, shards: Sequence[Shard]) -> None:
        for shard in shards:
            reader = shard.open()
            order = np.random.default_rng(1).permutation(shard.rows).astype(np.int64)
            everything = self.read(reader, table.column_names)
            assert self.read(reader, table.column_names, order).to_pylist() == everything.take(order).to_pylist()

    def test_rows_may_repeat_or_be_none(self, shards: Sequence[Shard]) -> None:
        shard = shards[0]
        reader = shard.open()
        twice = self.read(reader, ["sequence_id"], np.array([0, 0], np.int64))
        assert twice["sequence_id"].to_pylist() == ["ep_000", "ep_000"]
        assert sum(batch.num_rows for batch in reader.batches(["sequence_id"], rows=np.zeros(0, np.int64))) == 0

    def test_a_row_that_is_not_there_raises(self, shards: Sequence[Shard]) -> None:
        for bad in (shards[0].rows, -1):
            with pytest.raises(IndexError):
                list(shards[0].open().batches(["reward"], rows=np.array([bad], np.int64)))

    def test_a_column_that_is_not_there_raises(self, shards: Sequence[Shard]) -> None:
        with pytest.raises(SeqlakeError, match="nothing_of_that_name"):
            list(shards[0].open().batches(["nothing_of_that_name"]))

    def test_flat_and_batches_give_equal_cells(self, table: pa.Table, shards: Sequence[Shard]) -> None:
        for shard in shards:
            reader = shard.open()
            for name in table.column_names:
                flat = reader.flat(name)
                if flat is None:
                    continue
                assert len(flat.start) == len(flat.steps) == shard.rows
                column = self.read(reader, [name])[name]
                assert flat_is(flat, column)
                back = np.arange(shard.rows)[::-1]
                kept = [cell.tobytes() for cell in cells_of(flat)[::-1] if cell is not None]
                assert gather(flat, back).tobytes() == b"".join(kept)

    def test_nobody_asks_for_more_than_the_protocol(self, table: pa.Table, shards: Sequence[Shard]) -> None:
        """Rows and columns of a shard are taken over a proxy that lets nothing else through."""
        columns = Schema({field.name: field.type for field in table.schema})
        for shard in shards:
            described = Columns(Rows(Strict(shard, protocols.Shard), np.arange(shard.rows)[::-1]), columns, {})
            for name in table.column_names:
                asked = self.read(described.open(), [name]).column(0).to_pylist()
                assert asked == self.read(shard.open(), [name]).column(0).to_pylist()[::-1]
            assert lengths_of(described.open(), "action").tolist()[::-1] == lengths_of(shard.open(), "action").tolist()

    def test_a_shard_survives_pickle(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            copy = pickle.loads(pickle.dumps(shard))
            assert (copy.key, copy.rows, copy.nbytes) == (shard.key, shard.rows, shard.nbytes)
            assert self.read(copy.open(), ["sequence_id"]).equals(self.read(shard.open(), ["sequence_id"]))

    def test_a_shard_opens_in_a_fresh_process(self, shards: Sequence[Shard]) -> None:
        assert elsewhere(rows_in_child, shards, "sequence_id") == [shard.rows for shard in shards]

    def test_keys_are_unique_and_stable(self, table: pa.Table, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        first = self.make(table, tmp_path / "one")
        assert [shard.key for shard in first] == [shard.key for shard in first]
        other = self.make(table.slice(1), tmp_path / "two")
        keys = [shard.key for shard in [*first, *other]]
        assert len(set(keys)) == len(keys)
        assert all("#" in key for key in keys)

    def test_a_closed_reader_leaves_others_alone(self, shards: Sequence[Shard]) -> None:
        one, two = shards[0].open(), shards[0].open()
        one.close()
        assert self.read(two, ["sequence_id"]).num_rows == shards[0].rows


class ShardWriterTests:
    """Laws of `ShardFormat` and `ShardWriter`, for formats that tables are to write; inherit, and give `format`."""

    format: str
    """The name of its plug."""

    @pytest.fixture
    def table(self) -> pa.Table:
        """Rows with numbers, text, null and empty cells."""
        return _rows()

    def test_nobody_asks_a_writer_for_more_than_the_protocol(self, table: pa.Table, tmp_path: Path) -> None:
        """A dataset takes rows over a proxy that lets nothing else through, and gives them up over it."""
        strict = Strict(shard_formats.plug(self.format), protocols.ShardFormat)
        dataset = create(str(tmp_path / "written"), Schema({field.name: field.type for field in table.schema}))
        shape = ShardShape(format=self.format, rows=3)
        with mock.patch.object(shard_formats, "plug", return_value=strict) as plug:
            kept, dropped = (Staging(dataset.table, dataset.schema, shape=shape) for _ in range(2))
            for staging in (kept, dropped):
                for batch in table.to_batches():
                    staging.write(batch)
            kept.commit("append")
            dropped.discard()
        assert plug.called
        dataset.refresh()
        assert [shard.rows for shard in dataset.shards()] == [3, 3, 2]
        assert dataset.to_arrow().to_pylist() == table.to_pylist()
        assert list(dataset.table.store.list("_seqlake/staged")) == []

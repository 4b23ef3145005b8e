"""`Rows` and `Columns` keep columns flat where that is right, and only there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.errors import DamagedTableError, SchemaMismatchError
from seqlake.files.stores import open_blob
from seqlake.shards import cells, parquet
from seqlake.shards.columns import Beside, Columns, Constant, Stored
from seqlake.shards.files import parquet_shard
from seqlake.shards.memory import ArrowShard
from seqlake.shards.reading import count_lengths, lengths_of
from seqlake.shards.rows import Rows
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.shards import cells_of, flat_is

CELLS = [[[1, 2], [3, 4]], None, [], [[5, 6]], [[7, 8], [9, 10], [11, 12]]]


@pytest.fixture
def shard(tmp_path):
    schema = Schema({"act": Trajectory(dim=2, dtype=pa.int16()), "x": pa.int32()})
    writer = parquet.create(tmp_path / "a.parquet", schema)
    writer.write(pa.record_batch({"sequence_id": list("abcde"), "act": CELLS, "x": [1, 2, None, 4, 5]}))
    writer.close()
    return parquet_shard(open_blob(tmp_path / "a.parquet"))


def shown(shard, columns, mapping):
    return Columns(shard, Schema(columns), mapping).open()


def read(reader, *columns, rows=None):
    return pa.Table.from_batches(reader.batches(columns, rows=rows)).to_pydict()


@pytest.mark.parametrize(
    ("dtype", "flat"), [(pa.int16(), True), (pa.int32(), True), (pa.float32(), True), (pa.int8(), False)]
)
def test_a_cast_stays_flat_where_no_value_can_change(shard, dtype, flat):
    reader = shown(shard, {"action": Trajectory(dim=2, dtype=dtype)}, {"action": Stored("act")})
    found = reader.flat("action")
    assert (found is not None) is flat
    column = pa.chunked_array([batch.column(0) for batch in reader.batches(["action"])])
    assert column.type == pa.list_(pa.list_(dtype, 2))
    assert column.to_pylist() == CELLS
    assert found is None or flat_is(found, column)


def test_a_cast_that_loses_values_is_refused(tmp_path):
    shard = ArrowShard(pa.table({"sequence_id": ["a"], "x": [2**40]}))
    with pytest.raises(SchemaMismatchError, match="'x'"):
        read(shown(shard, {"x": pa.int32()}, {}), "x")


def test_a_declared_dim_that_does_not_fit_is_refused(shard):
    reader = shown(shard, {"action": Trajectory(dim=3, dtype=pa.int16())}, {"action": Stored("act")})
    assert reader.flat("action") is None
    with pytest.raises(SchemaMismatchError, match="'action'"):
        read(reader, "action")


def test_a_declared_shape_is_the_shape_of_a_step(shard):
    kind = Trajectory(dim=2, dtype=pa.int16(), shape=[2, 1])
    flat = shown(shard, {"action": kind}, {"action": Stored("act")}).flat("action")
    assert flat.shape == (2, 1)
    assert cells_of(flat)[0].shape == (2, 2, 1)


def test_columns_that_the_file_lacks_are_null(shard):
    reader = shown(shard, {"late": Trajectory(dim=7), "label": pa.string(), "x": pa.int64()}, {})
    assert read(reader, "late", "label", "x") == {"late": [None] * 5, "label": [None] * 5, "x": [1, 2, None, 4, 5]}
    assert reader.flat("late").shape == (7,)
    assert reader.flat("late").steps.tolist() == [-1] * 5
    assert lengths_of(reader, "late").tolist() == [-1] * 5


@pytest.mark.parametrize("limit", [1, 100, 1 << 20])
@pytest.mark.parametrize("inner", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)])
def test_signals_are_what_pyarrow_reads_in_memory_that_any_consumer_takes(shard, monkeypatch, limit, inner):
    monkeypatch.setattr(cells, "_BATCH", limit)
    reader = shown(shard, {"act": Trajectory(dim=2, dtype=pa.int64())}, {})
    kind = reader.schema.field("act").type
    truth = pq.read_table(shard.blob.location, columns=["act"]).column("act").cast(pa.list_(inner)).combine_chunks()
    for rows in (None, np.array([4, 0, 0, 1, 3, 2]), np.zeros(0, np.int64)):
        batches = list(reader.batches(["act"], rows=rows))
        found = pa.chunked_array([batch.column(0) for batch in batches], kind).cast(pa.list_(inner))
        assert found.combine_chunks().equals(truth if rows is None else truth.take(pa.array(rows)))
        for batch in batches:
            batch.validate(full=True)
            assert all(buffer is None or buffer.address % 8 == 0 for buffer in batch.column(0).buffers())
    assert len(list(reader.batches(["act"]))) == (4 if limit == 1 else 1)  # an empty cell adds nothing to a batch


@pytest.mark.parametrize("rows", [[0, 5], [-1]])
def test_a_row_that_is_not_there_is_refused(shard, rows):
    with pytest.raises(IndexError, match="0 to 4"):
        read(shown(shard, {"act": Trajectory(dim=2, dtype=pa.int16())}, {}), "act", rows=np.array(rows))


def test_side_shards_follow_the_rows_asked_for(shard):
    side = ArrowShard(pa.table({"label": list("vwxyz")}))
    mapping = {"label": Beside(side, "label")}
    columns = {"label": pa.string(), "x": pa.int32()}
    reader = shown(shard, columns, mapping)
    assert read(reader, "x", "label", rows=np.array([4, 0, 4])) == {"x": [5, 1, 5], "label": ["z", "v", "z"]}
    assert read(reader, "label") == {"label": list("vwxyz")}
    kept = Rows(Columns(shard, Schema(columns), mapping), np.array([3, 1]))
    assert read(kept.open(), "label", "x") == {"label": ["y", "w"], "x": [4, 2]}


def test_a_side_shard_of_another_length_is_damage(shard):
    side = ArrowShard(pa.table({"label": ["v"]}))
    with pytest.raises(DamagedTableError, match="5 rows"):
        read(shown(shard, {"label": pa.string()}, {"label": Beside(side, "label")}), "label")


def test_side_batches_of_other_sizes_are_aligned():
    """The side shard comes in batches of its own size."""
    rows = 100_000
    main = ArrowShard(pa.table({"sequence_id": [str(i) for i in range(rows)], "big": ["x" * 400] * rows}))
    side = ArrowShard(pa.table({"n": np.arange(rows)}))
    reader = shown(main, {"big": pa.string(), "n": pa.int64()}, {"n": Beside(side, "n")})
    batches = list(reader.batches(["n", "sequence_id"]))
    assert len(list(reader.batches(["big"]))) > 1
    table = pa.Table.from_batches(batches)
    assert table["n"].to_pylist() == [int(i) for i in table["sequence_id"].to_pylist()]
    both = pa.Table.from_batches(reader.batches(["big", "n"]))
    assert both["n"].to_pylist() == list(range(rows))


def test_rows_and_columns_in_either_order_are_the_same(shard):
    schema = Schema({"action": Trajectory(dim=2), "split": pa.string()})
    mapping = {"action": Stored("act"), "split": Constant("train")}
    keep = np.array([4, 1, 0])
    for reader in (
        Rows(Columns(shard, schema, mapping), keep).open(),
        Columns(Rows(shard, keep), schema, mapping).open(),
    ):
        assert read(reader, "action")["action"] == [CELLS[4], None, CELLS[0]]
        assert [None if c is None else c.tolist() for c in cells_of(reader.flat("action"))] == [
            CELLS[4],
            None,
            CELLS[0],
        ]
        assert lengths_of(reader, "action").tolist() == count_lengths(reader, "action").tolist() == [3, -1, 2]
        assert read(reader, "split", "sequence_id", rows=np.array([2])) == {"split": ["train"], "sequence_id": ["a"]}


def test_keys_tell_rows_and_mappings_apart(shard):
    schema = Schema({"act": Trajectory(dim=2)})
    side = ArrowShard(pa.table({"x": list(range(5))}))
    kinds = [
        shard,
        Rows(shard, np.array([0, 1])),
        Rows(shard, np.array([1, 0])),
        Columns(shard, schema, {}),
        Columns(shard, schema, {"act": Constant(None)}),
        Columns(shard, schema, {"act": Stored("x")}),
        Columns(shard, schema, {"act": Beside(side, "x")}),
        Columns(shard, Schema({"act": Trajectory(dim=2, dtype=pa.float64())}), {}),
    ]
    assert len({kind.key for kind in kinds}) == len(kinds)
    assert all(kind.key.startswith("a.parquet#") for kind in kinds)


def test_lengths_of_columns_without_an_index():
    shard = ArrowShard(pa.table({"frames": [["a", "b"], None, []], "x": [1, 2, 3]}))
    assert lengths_of(shard.open(), "frames").tolist() == [2, -1, 0]
    with pytest.raises(SchemaMismatchError, match="'x'"):
        lengths_of(shard.open(), "x")


def test_a_file_with_fewer_rows_than_its_version_says_is_damage() -> None:
    class Claimed(ArrowShard):
        rows = 3

    shard = Claimed(pa.table({"sequence_id": ["a"]}))
    shown = Columns(shard, Schema({"sequence_id": pa.string()}), {}).open()
    with pytest.raises(DamagedTableError, match="Expected 3 rows"):
        list(shown.batches(["sequence_id"], rows=np.arange(3)))
    with pytest.raises(IndexError):
        list(shown.batches(["sequence_id"], rows=np.arange(4)))

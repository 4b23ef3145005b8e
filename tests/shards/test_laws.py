"""The contract suite over every kind of shard this room has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.files.stores import open_blob
from seqlake.shards import parquet
from seqlake.shards.columns import Beside, Columns, Constant, Stored
from seqlake.shards.files import parquet_shard
from seqlake.shards.memory import ArrowShard
from seqlake.shards.parquet import building
from seqlake.shards.rows import Rows
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.shards import ShardTests, ShardWriterTests

SCHEMA = Schema({"task": pa.string(), "reward": pa.float32(), "action": Trajectory(dim=4)})
RAW = Schema({"task": pa.string(), "reward": pa.float32(), "action": Trajectory(dim=4, encoding="raw")})


def written(table, path, *, schema=SCHEMA, **options):
    writer = parquet.create(path, schema, **options)
    for batch in table.to_batches(max_chunksize=3):
        writer.write(batch)
    writer.close()
    return parquet_shard(open_blob(path))


class TestParquetWriter(ShardWriterTests):
    format = "parquet"


class TestTraining(ShardTests):
    def make(self, table, folder):
        half = table.num_rows // 2
        return [written(table[:half], folder / "a.parquet"), written(table[half:], folder / "b.parquet")]

    def test_it_is_flat(self, shards):
        assert all(shard.open().flat("action").shape == (4,) for shard in shards)


class TestFixedSizeInner(TestTraining):
    def make(self, table, folder):
        return [written(table, folder / "a.parquet", fixed_size_inner=True)]


class TestArchive(ShardTests):
    def make(self, table, folder):
        return [written(table, folder / "a.parquet", layout="archive")]


class TestRaw(TestTraining):
    def make(self, table, folder):
        return [Columns(written(table, folder / "a.parquet", schema=RAW), RAW, {})]


class TestForeign(ShardTests):
    def make(self, table, folder):
        pq.write_table(table, folder / "a.parquet", row_group_size=3)
        return [parquet_shard(open_blob(folder / "a.parquet"))]


class TestForeignIndexed(TestTraining):
    def make(self, table, folder):
        path = folder / "a.parquet"
        pq.write_table(table, path, row_group_size=3, use_dictionary=False, compression="none")
        blob = open_blob(path)
        return [parquet_shard(blob, index=building.build(blob))]


class TestMemory(ShardTests):
    def make(self, table, folder):
        return [ArrowShard(table)]


class TestRows(TestTraining):
    def make(self, table, folder):
        mixed = table.take(np.arange(table.num_rows)[::-1])
        keep = np.arange(table.num_rows)[::-1]
        return [Rows(written(mixed, folder / "a.parquet"), keep)]


class TestColumns(TestTraining):
    """Renamed, cast from wider bytes, beside and constant, all at once."""

    def make(self, table, folder):
        plain = pa.list_(pa.list_(pa.float32()))
        act = table["action"].cast(plain)
        main = pa.table({"name": table["sequence_id"], "act": act})
        pq.write_table(main, folder / "m.parquet", use_dictionary=False, compression="none")
        blob = open_blob(folder / "m.parquet")
        shard = parquet_shard(blob, index=building.build(blob))
        side = written(
            table.select(["sequence_id", "reward", "task"]),
            folder / "s.parquet",
            schema=Schema({"reward": pa.float32(), "task": pa.string()}),
        )
        mapping = {
            "sequence_id": Stored("name"),
            "action": Stored("act"),
            "reward": Beside(side, "reward"),
            "task": Beside(side, "task"),
        }
        return [Columns(shard, SCHEMA, mapping)]


class TestColumnsOfRows(TestTraining):
    def make(self, table, folder):
        doubled = pa.concat_tables([table, table.slice(0, 2)])
        return [Columns(Rows(written(doubled, folder / "a.parquet"), np.arange(table.num_rows)), SCHEMA, {})]


@pytest.mark.parametrize("value", [None, "train"])
def test_a_constant_column(tmp_path, value):
    shard = ArrowShard(pa.table({"sequence_id": ["a", "b", "c"]}))
    schema = Schema({"split": pa.string(), "action": Trajectory(dim=2)})
    reader = Columns(shard, schema, {"split": Constant(value)}).open()
    table = pa.Table.from_batches(reader.batches(["action", "split", "sequence_id"]))
    assert table["split"].to_pylist() == [value] * 3
    assert table["action"].to_pylist() == [None] * 3
    assert table.schema.field("action").type == schema.arrow.field("action").type
    flat = reader.flat("action")
    assert flat.steps.tolist() == [-1, -1, -1]
    assert (flat.shape, flat.dtype) == ((2,), np.float32)
    only = pa.Table.from_batches(reader.batches(["split"], rows=np.array([2, 0])))
    assert only["split"].to_pylist() == [value] * 2

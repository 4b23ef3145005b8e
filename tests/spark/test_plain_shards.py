"""Spark reads the shards of every home as plain Parquet; runs where a JVM and pyspark are present."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

# Spark's own client leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HOMES = {
    "standalone": "{}/plain",
    "delta": "delta:{}/delta",
    "iceberg": "iceberg:{}/warehouse/robots.arm",
    "ducklake": "ducklake:sqlite:{}/lake.sqlite?table=arm",
}


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["training", "archive"])
@pytest.mark.parametrize("home", HOMES)
def test_spark_reads_the_shards_as_they_are(home, layout, spark, tmp_path):
    schema = {
        "reward": pa.float32(),
        "action": sl.Trajectory(dim=3),
        "goal": pa.list_(pa.float64()),
        "n": pa.int16(),
    }
    ds = sl.create(HOMES[home].format(tmp_path), schema)
    random = np.random.default_rng(0)
    rows = [
        {
            "reward": float(n) if n % 3 else None,
            "action": None if n == 4 else random.normal(size=(n, 3)).astype(np.float32),
            "goal": random.normal(size=n),
            "n": n - 5,
        }
        for n in range(12)
    ]
    with ds.writer(layout=layout, rows_per_shard=5) as writer:
        for n, row in enumerate(rows):
            writer.add(f"ep_{n}", **row)
    files = [str(path) for path in tmp_path.rglob("*.parquet") if not {"_delta_log", "index"} & {*path.parts}]
    assert len(files) == 3
    # Its vectorised reader does not know BYTE_STREAM_SPLIT, in which the archive layout keeps floats.
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", str(layout == "training").lower())
    found = {row["sequence_id"]: row.asDict(recursive=True) for row in spark.read.parquet(*files).collect()}
    expected = pa.table(ds).to_pylist()
    assert found.keys() == {row["sequence_id"] for row in expected}
    for row in expected:
        assert {name: found[row["sequence_id"]][name] for name in row} == row

"""Spark reads what we wrote, and we what it changed; runs where a JVM, pyspark and Iceberg's jar for it are present."""

from __future__ import annotations

import os
import shutil

import pyarrow as pa
import pytest

import seqlake as sl

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("no JVM is here", allow_module_level=True)
JAR = os.environ.get("ICEBERG_SPARK_RUNTIME", "")
if not JAR:
    pytest.skip("ICEBERG_SPARK_RUNTIME names no iceberg-spark-runtime jar", allow_module_level=True)


@pytest.fixture
def spark(rest):
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", JAR)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "rest")
        .config("spark.sql.catalog.lake.uri", rest[0])
    )
    session = builder.getOrCreate()
    yield session
    session.stop()


def test_spark_reads_ours_and_we_read_its_deletes(spark, rest, cells):
    ds = sl.create("iceberg://cloud/rl.ep", {"n": pa.int64(), "action": sl.Trajectory(dim=1)}, storage={"uri": rest[0]})
    ds.append([{"sequence_id": f"s{n}", "n": n, "action": [[float(n)]] * n} for n in range(6)])
    found = {row["sequence_id"]: row["action"] for row in spark.table("lake.rl.ep").collect()}
    assert found == {name: row["action"] for name, row in cells(ds).items()}
    spark.sql("ALTER TABLE lake.rl.ep SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql("DELETE FROM lake.rl.ep WHERE n = 2")
    spark.sql("CALL lake.system.expire_snapshots(table => 'rl.ep', older_than => TIMESTAMP '2100-01-01 00:00:00')")
    ds.refresh()
    assert sorted(cells(ds)) == ["s0", "s1", "s3", "s4", "s5"]
    assert ds["s4"]["action"].shape == (4, 1)

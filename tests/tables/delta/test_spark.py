"""Spark reads what we wrote, and we read what it changed; runs where a JVM and delta-spark are present."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")
delta = pytest.importorskip("delta")
if shutil.which("java") is None:
    pytest.skip("no JVM is here", allow_module_level=True)


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    session = delta.configure_spark_with_delta_pip(builder).getOrCreate()
    yield session
    session.stop()


def test_spark_reads_ours_and_we_read_its_deletes(spark, tmp_path):
    root = str(tmp_path / "t")
    ds = sl.create(f"delta:{root}", {"reward": pa.float32(), "action": sl.Trajectory(dim=2)})
    ds.append([{"sequence_id": f"ep_{n}", "reward": n, "action": np.full((n + 1, 2), n)} for n in range(6)])
    rows = {row["sequence_id"]: row["action"] for row in spark.read.format("delta").load(root).collect()}
    assert rows == {one.id: one["action"].tolist() for one in ds}
    spark.sql(f"ALTER TABLE delta.`{root}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM delta.`{root}` WHERE reward = 2")
    ds.refresh()
    assert sorted(one.id for one in ds) == ["ep_0", "ep_1", "ep_3", "ep_4", "ep_5"]
    spark.sql(f"VACUUM delta.`{root}`")
    assert ds["ep_3"]["action"].shape == (4, 2)

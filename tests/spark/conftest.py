"""One session of Spark, and one JVM, for all tests here; they are skipped where pyspark or a JVM is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.ending import ended


@pytest.fixture(scope="session")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        pytest.skip("no JVM is here: Spark needs a Java of at least 17 on the path or in JAVA_HOME")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name in ("spark.driver.bindAddress", "spark.driver.host"):
            builder = builder.config(name, "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
        # A session of a minute: what a second compiler makes faster, or code made for each question, never pays.
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        builder = builder.config("spark.driver.extraJavaOptions", quick).config("spark.sql.codegen.wholeStage", "false")
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")  # failures are what some tests ask for
        yield session
        with ended():
            session.stop()

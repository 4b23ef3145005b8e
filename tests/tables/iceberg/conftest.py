"""A small Iceberg dataset in a local warehouse, and the same table as pyiceberg sees it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

pytest.importorskip("pyiceberg")


def rows(first, last):
    """Rows whose cells follow from their number; `action` has as many steps as the number says."""
    return [
        {
            "sequence_id": f"ep_{n:03d}",
            "task": ("pick", "place")[n % 2],
            "reward": None if n % 5 == 0 else n / 2,
            "action": None if n % 7 == 0 else np.arange(2 * n, dtype=np.float32).reshape(n, 2).tolist(),
        }
        for n in range(first, last)
    ]


SCHEMA = {"task": pa.string(), "reward": pa.float32(), "action": sl.Trajectory(dim=2)}


@pytest.fixture
def address(tmp_path):
    return f"iceberg:{tmp_path}/warehouse/robots.episodes"


@pytest.fixture
def dataset(address):
    """Two shards: rows 0 to 5 and 6 to 9."""
    ds = sl.create(address, SCHEMA)
    ds.append(rows(0, 6))
    ds.append(rows(6, 10))
    return ds


@pytest.fixture
def theirs(address):
    """Opens the table with pyiceberg alone, by its own configuration."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder = address.removeprefix("iceberg:").rpartition("/")[0]

    def opened():
        return SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}").load_table(
            ("robots", "episodes")
        )

    return opened


@pytest.fixture
def make_rows():
    return rows


@pytest.fixture
def cells():
    """All rows of anything that gives an Arrow table, by id, as plain values."""

    def of(table):
        return {row["sequence_id"]: row for row in (table if isinstance(table, pa.Table) else table.to_arrow()).to_pylist()}

    return of

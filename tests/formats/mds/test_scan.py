"""MDS folders as rows: the laws of every format, and values against what was written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.formats import mds
from seqlake.testing.formats import FormatTests


class TestMds(FormatTests):
    @pytest.fixture
    def source(self, arms: Path):
        return mds.scan(str(arms))


def test_rows_are_samples_in_order(arms: Path) -> None:
    rows = sl.scan(arms)
    assert len(rows) == 9
    assert rows.schema.id is None
    table = rows.to_arrow()
    assert table["label"].to_pylist() == [-(10**i) for i in range(9)]
    assert table["name"].to_pylist() == [f"ärm {i}" for i in range(9)]
    assert table["blob"].to_pylist() == [bytes(range(i)) for i in range(9)]
    assert table["score"].to_pylist() == [float(np.float32(i / 3)) for i in range(9)]
    assert table["free"].to_pylist() == [list(range(i + 1)) for i in range(9)]
    assert table["goal"].to_pylist() == [[j - i for j in range(7)] for i in range(9)]
    assert table["action"][8].as_py() == (np.arange(12.0).reshape(4, 3) + 8).tolist()
    assert table["ragged"][2].as_py() == np.arange(18.0).reshape(2, 9).tolist()
    assert table["image"][1].as_py() == (np.arange(30).reshape(2, 15) + 1).tolist()


def test_types_follow_the_encodings(arms: Path) -> None:
    schema = sl.scan(arms).schema
    assert schema["action"].type == sl.Trajectory(dim=3, steps=4)
    assert schema["image"].shape == (3, 5)
    assert schema["goal"].category == "vector"
    assert schema["label"].arrow == pa.int64()
    assert schema["ragged"].logical == pa.list_(pa.list_(pa.float64()))

"""Clouds in rows: written from arrays, read back with all fields, one a step, and aligned by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError
from seqlake.media import spatial

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

KIND = [("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "u1"), ("ring", "u2"), ("t", "u8")]


def sweep(seed: int, points: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    cloud = np.zeros(points, KIND)
    for axis in "xyz":
        cloud[axis] = rng.normal(size=points)
    cloud["ring"], cloud["t"] = rng.integers(0, 128, points), (1 << 60) + rng.integers(0, 1000, points)
    return cloud


def test_a_cloud_given_as_an_array_is_a_file_that_has_its_fields(tmp_path: Path) -> None:
    schema = sl.Schema({"scan": sl.Spatial3D(), "named": sl.Spatial3D(fields=["x", "y", "z", "intensity"])})
    ds = sl.create(tmp_path / "ds", schema)
    cloud, plain, named = sweep(0, 30), np.random.default_rng(1).normal(size=(7, 3)), np.ones((5, 4), "f4")
    with ds.writer() as writer:
        writer.add("a", scan=cloud, named=named)
        writer.add("b", scan=plain)
    ds.append([{"sequence_id": "c", "scan": cloud[:3]}])
    scan = ds["a"]["scan"]
    assert scan.reference.endswith(".pcd")
    assert scan[0].dtype == cloud.dtype
    np.testing.assert_array_equal(scan[0], cloud)
    np.testing.assert_array_equal(spatial.xyz(ds["b"]["scan"][0]), plain)
    np.testing.assert_array_equal(ds["c"]["scan"][0], cloud[:3])
    assert ds["a"]["named"][0].dtype.names == ("x", "y", "z", "intensity")
    assert list(ds.validate(depth="decode")) == []
    with (
        pytest.raises(SchemaMismatchError, match=r"Sequence 'd', column 'scan': expected points .*found \[2, 2\]"),
        ds.writer() as writer,
    ):
        writer.add("d", scan=np.zeros((2, 2)))


def test_a_cloud_may_stand_in_the_row(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"scan": sl.Spatial3D(inline=True)}))
    cloud = sweep(0, 30)
    with ds.writer() as writer:
        writer.add("a", scan=cloud)
    np.testing.assert_array_equal(ds["a"]["scan"][0], cloud)

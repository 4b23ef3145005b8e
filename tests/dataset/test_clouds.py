"""Clouds in rows: written from arrays, read back with all fields, one a step, and aligned by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError
from seqlake.media import spatial

if TYPE_CHECKING:
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


def driven(folder: Path, counts: list[int], **fields: Any) -> tuple[Any, list[NDArray[Any]]]:
    """A drive with a cloud at each step, and a signal as long."""
    schema = sl.Schema({"lidar": sl.Spatial4D(frames="files", **fields), "speed": sl.Trajectory(dim=1, fps=20)})
    ds = sl.create(folder, schema)
    clouds = [sweep(number, count) for number, count in enumerate(counts)]
    speed = np.arange(len(counts) * 20 // int(fields.get("fps", 20)), dtype="f4")[:, None]
    with ds.writer() as writer:
        writer.add("a", lidar=clouds, speed=speed)
    return ds, clouds


def test_clouds_of_a_sequence_are_counted_and_read_one_a_step(tmp_path: Path) -> None:
    ds, clouds = driven(tmp_path / "ds", [5, 0, 9, 3])
    assert ds.schema["lidar"].category == "frames"
    lidar = ds["a"]["lidar"]
    assert len(lidar) == 4
    for number, cloud in enumerate(clouds):
        assert lidar[number].dtype == cloud.dtype
        np.testing.assert_array_equal(lidar[number], cloud)
    assert [len(one) for one in lidar[1:3]] == [0, 9]
    assert list(ds.validate()) == []
    with ds.writer() as writer:
        writer.add("short", lidar=clouds[:2], speed=np.zeros((4, 1), "f4"))
        writer.add("plain", lidar=np.ones((4, 6, 3), "f4"), speed=np.zeros((4, 1), "f4"))
    assert [one.sequence_id for one in ds.validate() if one.code == "R307"] == ["short"]
    np.testing.assert_array_equal(spatial.xyz(ds["plain"]["lidar"][3]), np.ones((6, 3), "f4"))


def test_windows_pad_clouds_or_lay_them_end_to_end(tmp_path: Path) -> None:
    ds, clouds = driven(tmp_path / "ds", [5, 0, 9, 3])
    window = {"lidar": range(-1, 2), "speed": range(-1, 2)}
    loader = sl.Loader(ds, window=window, batch_size=4, shuffle=False).points(["x", "ring", "z"])
    (batch,) = loader
    assert batch["lidar"].shape == (4, 3, 9, 3)
    assert batch["lidar"].dtype == np.float32
    np.testing.assert_array_equal(batch["lidar_mask"], batch["speed_mask"])
    for anchor in range(4):
        for offset in range(3):
            step = anchor + offset - 1
            there = 0 <= step < 4
            points = clouds[step] if there else clouds[0][:0]
            mask = batch["lidar_points_mask"][anchor, offset]
            assert mask.tolist() == [True] * len(points) + [False] * (9 - len(points))
            np.testing.assert_array_equal(
                batch["lidar"][anchor, offset][mask], spatial.stacked(points, ["x", "ring", "z"])
            )
            assert not batch["lidar"][anchor, offset][~mask].any()
    (packed,) = loader.points(["x", "ring", "z"], packed=True)
    ends = packed["lidar_points_offsets"]
    assert len(ends) == 13
    flat, mask = batch["lidar"].reshape(12, 9, 3), batch["lidar_points_mask"].reshape(12, 9)
    for number in range(12):
        np.testing.assert_array_equal(packed["lidar"][ends[number] : ends[number + 1]], flat[number][mask[number]])
    one = ds["a"].window(1, 4, columns=["lidar"])
    np.testing.assert_array_equal(one["lidar"][1][one["lidar_points_mask"][1]], spatial.xyz(clouds[2]))
    with pytest.raises(SchemaMismatchError, match="uint64|float64"):
        list(loader.points(["x", "t"]))
    with pytest.raises(ValueError, match="points fields"):
        loader.points([])


@pytest.mark.parametrize("shards", ["parquet", "lance", "vortex"])
def test_clouds_of_a_sequence_may_stand_in_the_row(shards: str, tmp_path: Path) -> None:
    named, clouds = driven(tmp_path / "named", [5, 0, 9, 3])
    schema = sl.Schema({"lidar": sl.Spatial4D(frames="files", inline=True), "speed": sl.Trajectory(dim=1, fps=20)})
    assert schema["lidar"].arrow == pa.list_(pa.binary())
    ds = sl.create(tmp_path / "held", schema, shards=shards)
    data = [Path(named.root, one).read_bytes() for one in named.to_arrow()["lidar"][0].as_py()]
    with ds.writer() as writer:
        writer.add("a", lidar=data, speed=np.arange(4, dtype="f4")[:, None])
        writer.add("b", lidar=clouds, speed=np.arange(4, dtype="f4")[:, None])
    ds = sl.open(tmp_path / "held")
    for row in (0, 1):
        for number, cloud in enumerate(clouds):
            np.testing.assert_array_equal(ds[row]["lidar"][number], cloud)
    assert [one for one in ds.validate(depth="decode") if one.severity == "error"] == []
    window = {"lidar": range(-1, 2)}
    (wanted,) = sl.Loader(named, window=window, batch_size=4, shuffle=False).points(["x", "z"])
    for batch in sl.Loader(ds, window=window, batch_size=4, shuffle=False).points(["x", "z"]):
        for name in ("lidar", "lidar_mask", "lidar_points_mask"):
            np.testing.assert_array_equal(batch[name], wanted[name])
    broken = sl.create(tmp_path / "broken", schema, shards=shards)
    broken.append([{"sequence_id": "c", "lidar": [b"PLY?", data[0][:-3]], "speed": np.arange(2, dtype="f4")[:, None]}])
    assert [one for one in sl.open(tmp_path / "broken").validate(depth="decode") if one.severity == "error"]


def test_clouds_stand_on_the_clock(tmp_path: Path) -> None:
    ds, clouds = driven(tmp_path / "ds", [5, 2, 9, 3], fps=10)
    (batch,) = sl.Loader(ds, window=sl.Window({"lidar": [0], "speed": [0]}, clock=20), batch_size=8, shuffle=False)
    for step in range(8):  # the latest at or before: two steps each
        mask = batch["lidar_points_mask"][step, 0]
        np.testing.assert_array_equal(batch["lidar"][step, 0][mask], spatial.xyz(clouds[step // 2]))


def test_whole_sequences_of_clouds(tmp_path: Path) -> None:
    ds, clouds = driven(tmp_path / "ds", [5, 2, 9])
    for packed in (False, True):
        (batch,) = sl.Loader(ds, window=sl.Whole(["lidar"], packed=packed), batch_size=1, shuffle=False)
        flat, mask = batch["lidar"].reshape(-1, 9, 3), batch["lidar_points_mask"].reshape(-1, 9)
        for number, cloud in enumerate(clouds):
            np.testing.assert_array_equal(flat[number][mask[number]], spatial.xyz(cloud))


def test_each_step_s_cloud_is_decoded_by_validate(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"lidar": sl.Spatial4D(frames="files", fps=10)}))
    with ds.writer() as writer:
        writer.add("a", lidar=[sweep(n, 20) for n in range(4)])
    good = ds["a"]["lidar"].cells[1].read()
    for name, data in {"cut.pcd": good[:-30], "scene.usdc": b"PXR-USDC" + bytes(60)}.items():
        (tmp_path / "ds" / name).write_bytes(data)
    own = [cell.reference for cell in ds["a"]["lidar"].cells]
    ds.append([{"sequence_id": "b", "lidar": [own[0], "cut.pcd", "cut.pcd", own[3], None]}])
    ds.append([{"sequence_id": "c", "lidar": [own[0], "scene.usdc"]}])
    report = [f for f in ds.validate(depth="decode") if f.code != "F405"]  # files that several rows name
    findings = {f.sequence_id: (f.code, f.step, f.message) for f in report}
    assert sorted(findings) == ["b", "c"]
    assert findings["b"][:2] == ("F431", 1)
    assert "clouds 1 to 2: cannot be read as pcd: 20 points" in findings["b"][2]
    assert findings["c"][0] == "F435"
    assert "pxr.Usd.Stage.Open(file.location)" in findings["c"][2]
    assert {f.code for f in ds.validate(depth="files")} == {"F405"}

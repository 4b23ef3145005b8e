"""Replay buffers that are written: read with zarr by the lines of diffusion policy's own ReplayBuffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import DatasetExistsError, SchemaMismatchError, ValidationError
from seqlake.formats import zarr_replay
from seqlake.media import encode_image

from ..lerobot import by_hand  # noqa: TID252 - a recorder for several formats

zarr = pytest.importorskip("zarr")
pytest.importorskip("numcodecs")


def convert(source: Any, out: Path, **options: Any) -> None:
    sl.convert(source, out, to="zarr_replay", progress=False, workers=1, **options)


def copied_from_path(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `ReplayBuffer.copy_from_path` does and asserts (diffusion_policy/common/replay_buffer.py)."""
    root = zarr.open(str(path), mode="r")
    assert "data" in root
    assert "meta" in root
    assert "episode_ends" in root["meta"]
    for _, value in root["data"].arrays():
        assert value.shape[0] == root["meta"]["episode_ends"][-1]
    meta = {}
    for key, value in root["meta"].arrays():
        meta[key] = np.array(value) if len(value.shape) == 0 else value[:]
    return meta, {key: value[:] for key, value in root["data"].arrays()}


def episode(meta: dict[str, Any], data: dict[str, Any], number: int) -> dict[str, Any]:
    """As `ReplayBuffer.get_episode`."""
    start = 0 if number == 0 else meta["episode_ends"][number - 1]
    return {key: value[start : meta["episode_ends"][number]] for key, value in data.items()}


SCHEMA = {
    "action": sl.Trajectory(dim=3),
    "pose": sl.Trajectory(dim=4, shape=(2, 2), dtype=pa.float64()),
    "count": sl.Trajectory(dim=1, dtype=pa.int16()),
    "cam": sl.Image(frames="bytes", format="png"),
    "film": sl.Video(fps=10),
    "task": pa.string(),
    "success": pa.bool_(),
    "n": pa.int32(),
    "goal": sl.Embedding(dim=2),
    "words": pa.list_(pa.string()),
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(5)
    with (ds := sl.create(tmp_path_factory.mktemp("arm") / "arm", SCHEMA)).writer() as writer:
        for number, steps in enumerate((4, 0, 9)):
            writer.add(
                f"ep/{number}",
                action=rng.normal(size=(steps, 3)).astype("f4"),
                pose=rng.normal(size=(steps, 4)),
                count=np.arange(steps)[:, None] - 3,
                cam=[encode_image(rng.integers(0, 256, (8, 6, 3)).astype("u1")) for _ in range(steps)],
                film=rng.integers(0, 256, (steps, 64, 48, 3)).astype("u1") if steps else None,
                task=f"dö {number}",
                success=number != 1,
                n=number,
                goal=np.array([number, 0.5], "f4"),
                words=["a"],
            )
    return sl.open(ds.location)


THIRD: dict[str, Any] = {"zarr_format": 3}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": 2, "compressor": None},
        {"compressor": {"id": "zstd", "level": 1}},
        THIRD,
        THIRD | {"chunks": 2, "shards": 5, "compressor": None},
        THIRD | {"chunks": 3, "shards": 3, "compressor": {"id": "zstd", "level": 1}},
        THIRD | {"shards": 100, "compressor": {"id": "gzip", "level": 1}},
    ],
)
def test_diffusion_policy_reads_every_value(ours: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    kept = ours.where("len(action) > 0")
    convert(kept, tmp_path / "b.zarr", **options)
    meta, data = copied_from_path(tmp_path / "b.zarr")
    assert meta["episode_ends"].tolist() == [4, 13]
    assert meta["episode_ends"].dtype == np.int64
    assert sorted(data) == ["action", "cam", "count", "film", "pose"]
    for number, row in enumerate(kept):
        one = episode(meta, data, number)
        for name in ("action", "pose", "count"):
            np.testing.assert_array_equal(one[name].reshape(row[name].shape), row[name])
            assert one[name].dtype == row[name].dtype
        for name in ("cam", "film"):
            np.testing.assert_array_equal(one[name], row[name][:])
        assert (meta["sequence_id"][number], meta["task"][number]) == (row["sequence_id"], row["task"])
        assert (bool(meta["success"][number]), int(meta["n"][number])) == (row["success"], row["n"])
        np.testing.assert_array_equal(meta["goal"][number], row["goal"])
    assert data["pose"].shape == (13, 2, 2)
    root = zarr.open(str(tmp_path / "b.zarr"), mode="r")
    assert root.metadata.zarr_format == options.get("zarr_format", 2)
    if options.get("chunks"):
        assert root["data/action"].chunks == (options["chunks"], 3)
    several = {2: 6, 3: 3}.get(options.get("chunks", 0)) if "shards" in options else None
    if several:
        assert root["data/action"].shards == (several, 3)
    if "shards" in options:
        assert len(list((tmp_path / "b.zarr/data/cam/c").iterdir())) == -(-13 // options["shards"])
    back = sl.scan(tmp_path / "b.zarr", pictures="png")
    for row in kept:
        read = back[row["sequence_id"]]
        for name in ("action", "pose", "count", "goal"):
            np.testing.assert_array_equal(np.asarray(read[name]).reshape(np.shape(row[name])), row[name])
        np.testing.assert_array_equal(read["film"][:], row["film"][:])
        assert (read["task"], read["success"], read["n"]) == (row["task"], row["success"], row["n"])


def test_it_comes_back(ours: Any, tmp_path: Path) -> None:
    columns = [name for name in ours.schema.names if name not in {"film", "words"}]
    kept = ours.select(*columns)
    convert(kept, tmp_path / "b.zarr")
    ds = sl.scan(tmp_path / "b.zarr", pictures="png")
    assert [row["sequence_id"] for row in ds] == ["ep/0", "ep/1", "ep/2"]
    for row in kept:
        back = ds[row["sequence_id"]]
        for name in ("action", "pose", "count", "goal"):
            np.testing.assert_array_equal(np.asarray(back[name]).reshape(row[name].shape), row[name])
        if len(row["action"]):
            np.testing.assert_array_equal(back["cam"][:], row["cam"][:])
        assert (back["task"], back["success"], back["n"]) == (row["task"], row["success"], row["n"])
    convert(sl.scan(tmp_path / "b.zarr"), tmp_path / "c.zarr")
    assert copied_from_path(tmp_path / "c.zarr")[1].keys() == copied_from_path(tmp_path / "b.zarr")[1].keys()


def test_what_has_no_place_is_said_and_what_cannot_be_is_refused(ours: Any, tmp_path: Path) -> None:
    assert set(zarr_replay.dropped(ours.schema)) == {"words"}
    schema = {"a": sl.Trajectory(dim=1), "b": sl.Trajectory(dim=1), "n": pa.int64()}
    with (ds := sl.create(tmp_path / "ours", schema)).writer() as writer:
        writer.add("x", a=np.zeros((3, 1)), b=np.zeros((2, 1)), n=None)
    ds = sl.open(ds.location)
    with pytest.raises(ValidationError, match="'b' has 2 steps, the columns before it 3"):
        convert(ds.select("sequence_id", "a", "b"), tmp_path / "out")
    with pytest.raises(ValidationError, match=r"fill=\{'n'"):
        convert(ds.select("sequence_id", "a", "n"), tmp_path / "out")
    convert(ds.select("sequence_id", "a", "n"), tmp_path / "filled", fill={"n": -1})
    assert copied_from_path(tmp_path / "filled")[0]["n"].tolist() == [-1]
    with pytest.raises(SchemaMismatchError, match="needs a column of steps"):
        convert(ds.select("sequence_id", "n"), tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    with pytest.raises(DatasetExistsError):
        convert(ds.select("sequence_id", "a"), tmp_path / "filled")


def test_pictures_of_two_sizes(tmp_path: Path) -> None:
    with (ds := sl.create(tmp_path / "ours", {"cam": sl.Image(frames="bytes")})).writer() as writer:
        for number in range(2):
            writer.add(f"{number}", cam=[encode_image(np.zeros((4 + number, 6, 3), "u1"))])
    with pytest.raises(ValidationError, match="pictures of one size|of several sizes"):
        convert(sl.open(ds.location), tmp_path / "out")


@pytest.mark.parametrize(("to", "options"), [("zarr_replay", {}), ("rlds", {"images": "png"})])
def test_parts_of_videos_that_rows_share_become_pixels(tmp_path: Path, to: str, options: dict[str, Any]) -> None:
    """LeRobot in place: each row has some frames of a file; both formats get exactly those."""
    recorded = by_hand.write(tmp_path / "lerobot", by_hand.four(), "v3.0")
    sl.convert(recorded, tmp_path / "out", to=to, progress=False, workers=1, **options)
    there, written = sl.scan(recorded), sl.scan(tmp_path / "out")
    [cam] = [name for name in written.schema.names if name.endswith("images.top")]
    for before, after in zip(there, written, strict=True):
        assert before["sequence_id"] == after["sequence_id"]
        np.testing.assert_array_equal(after[cam][:], before[by_hand.CAM][:])
        np.testing.assert_array_equal(after["action"], before["action"])


def test_in_a_bucket(ours: Any, tmp_path: Path, s3_bucket: Any) -> None:
    kept = ours.select("sequence_id", "action", "cam")
    convert(kept, tmp_path / "b.zarr")
    there = f"{s3_bucket.uri}/b.zarr"
    sl.convert(kept, there, to="zarr_replay", storage=s3_bucket.storage, progress=False, workers=1)
    assert sl.scan(there, storage=s3_bucket.storage).to_arrow().equals(sl.scan(tmp_path / "b.zarr").to_arrow())


def test_what_format_2_has_not_is_refused(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give zarr_format=3"):
        convert(ours, tmp_path / "out", shards=4)
    with pytest.raises(ValueError, match="zarr_format: expected 2 or 3, found 4"):
        convert(ours, tmp_path / "out", zarr_format=4)


def test_each_number_of_format_3(tmp_path: Path) -> None:
    """Every dtype and shuffle of Blosc, as zarr 3 reads them."""
    kinds = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
    rng = np.random.default_rng(2)
    values = {name: (rng.normal(size=(7, 2)) * 50).astype(name) for name in kinds}
    with (ds := sl.create(tmp_path / "ds", {name: sl.Trajectory(dim=2, dtype=name) for name in kinds})).writer() as out:
        out.add("a", **values)
    for shuffle in (-1, 0, 1, 2):
        place = tmp_path / f"{shuffle}.zarr"
        settings = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": shuffle, "blocksize": 0}
        convert(sl.open(ds.location), place, zarr_format=3, shards=4, chunks=2, compressor=settings)
        data = zarr.open(str(place), mode="r")["data"]
        for name in kinds:
            np.testing.assert_array_equal(data[name][:], values[name])
            assert data[name].dtype == values[name].dtype

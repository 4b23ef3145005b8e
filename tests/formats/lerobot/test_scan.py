"""LeRobot folders read in place, against what was written into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.conversion import convert as conversion
from seqlake.formats import lerobot
from seqlake.protocols import Readable
from seqlake.testing.formats import FormatTests

from . import by_hand
from .by_hand import CAM, FPS, Recorded

VERSIONS = ["v2.0", "v2.1", "v3.0"]


@pytest.fixture(scope="module")
def episodes() -> list[Recorded]:
    return by_hand.four()


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request: pytest.FixtureRequest, episodes: list[Recorded], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand.write(tmp_path_factory.mktemp("lerobot"), episodes, request.param)


class TestLeRobot(FormatTests):
    @pytest.fixture
    def source(self, folder: Path) -> Readable:
        return lerobot.scan(str(folder))


def test_it_is_found_out(folder: Path) -> None:
    assert lerobot.matches(str(folder))
    assert not lerobot.matches(str(folder / "meta"))


def test_every_value_is_what_was_recorded(folder: Path, episodes: list[Recorded]) -> None:
    ds = sl.scan(folder)
    assert [row["sequence_id"] for row in ds] == [f"episode_{one.number:06d}" for one in episodes]
    for one in episodes:
        row = ds.sequence(f"episode_{one.number:06d}")
        for name, values in one.values.items():
            if isinstance(values, np.ndarray) and name != "pose":
                read = row[name]
                assert read.dtype == values.dtype
                np.testing.assert_array_equal(read, values.reshape(one.length, -1))
        np.testing.assert_array_equal(row["pose"], one.values["pose"])
        assert list(row["note"]) == one.values["note"]
        np.testing.assert_array_equal(row["timestamp"], (np.arange(one.length) / FPS).astype(np.float32))
        np.testing.assert_array_equal(row["frame_index"], np.arange(one.length))
        assert (row["episode_index"], row["length"], row["split"], row["robot_type"]) == (
            one.number,
            one.length,
            "train",
            "so100",
        )
        assert row["task"] == one.tasks[0]
        assert list(row["tasks"]) == one.tasks


def test_every_frame_is_that_of_the_episode_alone(folder: Path, episodes: list[Recorded]) -> None:
    ds = sl.scan(folder)
    for one in episodes:
        view = ds.sequence(f"episode_{one.number:06d}")[CAM]
        assert len(view) == one.length
        np.testing.assert_array_equal(view[:], by_hand.frames(one.films[CAM]))
        pictures = ds.sequence(f"episode_{one.number:06d}")["picture"]
        assert [bytes(pictures.bytes(step)) for step in range(one.length)] == one.values["picture"]


def test_columns_say_what_features_said(folder: Path) -> None:
    schema = sl.scan(folder).schema
    state, action, pose = (schema[name] for name in ("observation.state", "action", "pose"))
    assert state.dim == 6
    assert state.type is not None
    assert action.type is not None
    assert state.type.get("names") == ["j0", "j1", "j2", "j3", "j4", "j5"]
    assert action.type.get("names") == ["x", "y", "z"]
    assert (pose.shape, schema["next.reward"].shape, schema["timestamp"].shape) == ((2, 3), (1,), ())
    camera = schema[CAM].type
    assert camera is not None
    assert (camera.type, camera.rate, camera.get("codec"), camera.get("resolution")) == ("video", FPS, "h264", [64, 48])
    assert camera.pixel_format == "yuv420p"
    source = schema.metadata.extra["source"]
    assert source["info"]["robot_type"] == "so100"
    assert source["tasks"] == {"0": "pick", "1": "place"}


@pytest.mark.sampled
@pytest.mark.parametrize("files", [None, "split", "copy", "reference"])
def test_conversion_keeps_every_value_and_frame(
    folder: Path, episodes: list[Recorded], tmp_path: Path, files: str | None
) -> None:
    converted = sl.convert(folder, tmp_path / "out", files=files, progress=False, workers=1)
    before = sl.scan(folder)
    assert converted is not None
    if files == "reference":
        converted = sl.open(converted.location, allow_outside=True)
    assert not converted.validate().errors
    shared = (folder / "meta/episodes").exists() and files in {"copy", "reference"}
    assert pa.types.is_struct(converted.schema[CAM].arrow) is shared
    for one in episodes:
        row, was = converted.sequence(f"episode_{one.number:06d}"), before.sequence(f"episode_{one.number:06d}")
        np.testing.assert_array_equal(row[CAM][:], by_hand.frames(one.films[CAM]))
        for name, column in converted.schema.items():
            if column.category == "temporal":
                np.testing.assert_array_equal(row[name], was[name])
    if files in {None, "split"}:
        names = [file.reference for file in converted.files()]
        assert len(set(names)) == len(episodes)


@pytest.mark.parametrize("files", [None, "copy"])
def test_videos_that_are_cut_are_work_for_several_parts(
    folder: Path, tmp_path: Path, files: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "LEAST_ENCODED", 1)
    planned = sl.convert(folder, tmp_path / "out", files=files, dry_run=True)
    cut = (folder / "meta/episodes").exists() and files is None
    assert (len(planned.tasks) > 1) is cut


def test_sql_where_statistics_and_loader(folder: Path, episodes: list[Recorded]) -> None:
    ds = sl.open(folder)
    rows = ds.sql("SELECT sequence_id, length, len(action) AS n FROM dataset WHERE task = 'pick' ORDER BY 1").fetchall()
    assert rows == [(f"episode_{one.number:06d}", one.length, one.length) for one in episodes if one.tasks[0] == "pick"]
    assert len(ds.where("list_contains(tasks, 'place')")) == 2
    statistics = sl.statistics(ds, ["action"])
    every = np.concatenate([one.values["action"] for one in episodes])
    np.testing.assert_array_equal(statistics["action"].max, every.max(0))
    loader = sl.Loader(ds, window={"action": range(4), "next.done": range(1), CAM: range(1)}, batch_size=5, seed=1)
    seen = list(loader)
    assert sum(len(batch["action"]) for batch in seen) == sum(one.length for one in episodes)
    assert seen[0][CAM].shape[-3:] in {(*by_hand.SIZE, 3), (3, *by_hand.SIZE)}


def test_opened_in_place_it_is_only_read(folder: Path) -> None:
    ds = sl.open(folder)
    assert ds.version.rows == 4
    assert not ds.validate(depth="decode").errors
    with pytest.raises(sl.errors.ReadOnlyError, match="convert"):
        ds.delete("length > 3")
    with pytest.raises(sl.errors.VersionNotFoundError):
        sl.open(folder, version=3)

"""Folders that we wrote, opened by the official package: every item, window and word of it is what it was."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.compat.lerobot import LeRobotDataset
from seqlake.spec.schema import Column

from . import by_hand
from .official import VARIABLE, python
from .official_exported import WINDOWS

EXPORTS: dict[str, dict[str, Any]] = {
    "again": {},
    "alone": {"videos": "episode"},
    "small": {"data_files_size_in_mb": 0.01, "video_files_size_in_mb": 0.001, "chunks_size": 2},
    "h264": {"encoding": sl.Encoding(), "images": "video"},
    "parts": {"bytes_per_part": 2000},
}
STILL = "observation.images.still"
ROUNDING = 3 / 255  # how far two converters of colours may be apart

pytestmark = pytest.mark.skipif(
    python() is None, reason=f"lerobot is not installed: benchmarks/peers/setup, or name its Python in {VARIABLE}"
)


def run(what: str, out: Path) -> None:
    interpreter = python()
    assert interpreter is not None
    script = Path(__file__).with_name("official_exported.py")
    done = subprocess.run(
        [interpreter, str(script), what, str(out)],
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(out), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Its encoder of videos may end in a crash of another library when the interpreter ends: what counts is written.
    assert (out / ("recorded" if what == "RECORD" else "read.pkl")).exists(), done.stderr[-2000:]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("exported")
    run("RECORD", place)
    recorded = sl.open(place / "recorded")
    for name, options in EXPORTS.items():
        sl.convert(recorded, place / name, to="lerobot", workers=1, progress=False, **options)
    flat = [name for name in recorded.schema.names if name != "pose"]  # its tools cannot take matrices
    sl.convert(recorded.select(*flat), place / "flat", to="lerobot", workers=1, progress=False)
    sl.convert(recorded.where("episode_index <> 1"), place / "fewer", to="lerobot", workers=1, progress=False)
    by_hand.write(place / "older" / "before", by_hand.four(), "v2.1")
    sl.convert(place / "older" / "before", place / "newer", to="lerobot", workers=1, progress=False)
    sl.convert(ours(place / "older" / "ours"), place / "ours", to="lerobot", workers=1, progress=False)
    run("READ", place)
    return place


SIGNALS: dict[str, Any] = {
    "action": sl.Trajectory(dim=3, fps=25),
    "one": sl.Trajectory(dim=1, dtype=pa.float64(), fps=25),
    "reward": Column("reward", pa.list_(pa.float32()), sl.Trajectory(fps=25)),
    "code": sl.Trajectory(dim=2, dtype=pa.uint8(), fps=25),
    "grid": sl.Trajectory(dim=6, shape=[2, 3], dtype=pa.int16(), fps=25),
    "flag": sl.Trajectory(dim=1, dtype=pa.bool_(), fps=25),
    "flags": sl.Trajectory(dim=2, dtype=pa.bool_(), fps=25),
}


def takes() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "split": ("train", "val")[number % 2],
            "task": f"do {number % 2}",
            "operator": "ä",
            "embedding": np.arange(4),
            "action": rng.normal(size=(steps, 3)).astype(np.float32),
            "one": rng.normal(size=(steps, 1)),
            "reward": rng.normal(size=steps).astype(np.float32),
            "code": rng.integers(0, 255, (steps, 2), dtype=np.uint8),
            "grid": rng.integers(-9, 9, (steps, 2, 3), dtype=np.int16),
            "flag": rng.random((steps, 1)) < 0.5,
            "flags": rng.random((steps, 2)) < 0.5,
            "cam": np.stack([np.full((32, 48, 3), (60 * number + 2 * step) % 256, np.uint8) for step in range(steps)]),
            "still": rng.integers(0, 255, (steps, 8, 10, 3), dtype=np.uint8),
        }
        for number, steps in enumerate((30, 7, 12))
    ]


def ours(place: Path) -> sl.Dataset:
    """A dataset with every kind of column that LeRobot has a place for."""
    scalars = {"split": pa.string(), "task": pa.string(), "operator": pa.string(), "embedding": sl.Embedding(dim=4)}
    pictures = {"cam": sl.Video(fps=25), "still": sl.Image(format="png", frames="bytes")}
    dataset = sl.create(place, sl.Schema({**scalars, **SIGNALS, **pictures}))
    with dataset.writer() as writer:
        for number, row in enumerate(takes()):
            writer.add(f"take_{number}", **row)
    return sl.open(place)


def test_a_dataset_of_ours_is_one_of_theirs(read: dict[str, Any]) -> None:
    items, at, rows = read["ours"]["items"], 0, takes()
    for row in (rows[0], rows[2], rows[1]):  # by split
        for step in range(len(row["action"])):
            item = items[at]
            at += 1
            assert item["task"] == row["task"]
            assert item["timestamp"] == np.float32(step / 25)
            for name in SIGNALS:
                expected = np.asarray(row[name][step]).reshape(item[name].shape)
                np.testing.assert_array_equal(item[name], expected.astype(item[name].dtype), name)
            np.testing.assert_array_equal(np.round(item["still"] * 255), row["still"][step].transpose(2, 0, 1))
            assert np.abs(item["cam"] * 255 - row["cam"][step].transpose(2, 0, 1)).max() < 6
    assert at == len(items) == 49
    assert read["ours"]["splits"] == {"train": "0:2", "val": "2:3"}


@pytest.fixture(scope="module")
def read(out: Path) -> dict[str, Any]:
    read: dict[str, Any] = pickle.loads((out / "read.pkl").read_bytes())
    return read


@pytest.mark.parametrize("name", ["again", "alone", "small", "parts"])
def test_items_and_windows_are_the_same_to_the_last_bit(read: dict[str, Any], name: str) -> None:
    before, after = read["recorded"], read[name]
    for kind, least in {"items": 80, "windows": 12}.items():
        assert len(before[kind]) >= least
        for was, now in zip(before[kind], after[kind], strict=True):
            assert list(was) == list(now)
            for key, value in was.items():
                if isinstance(value, str):
                    assert now[key] == value
                else:
                    assert (now[key].dtype, now[key].shape) == (value.dtype, value.shape)
                    np.testing.assert_array_equal(now[key], value, key)
    assert {f"{key}_is_pad" for key in WINDOWS} <= set(after["windows"][0])
    for key in ("features", "tasks", "splits", "hub", "cameras", "episodes", "some"):
        assert after[key] == before[key], key


def test_encoded_anew_it_shows_the_same(read: dict[str, Any]) -> None:
    before, after = read["recorded"], read["h264"]
    assert STILL in after["cameras"][0]
    for was, now in zip(before["items"], after["items"], strict=True):
        for key, value in was.items():
            if "images" in key:
                assert np.abs(now[key] - value).mean() < 0.03
            elif not isinstance(value, str):
                np.testing.assert_array_equal(now[key], value, key)


def test_statistics_agree_where_its_own_are_right(read: dict[str, Any]) -> None:
    """Its quantiles are means of those of episodes, and its deviations of pictures overflow 8 bits."""
    before, after = read["recorded"]["stats"], read["again"]["stats"]
    assert set(before) == set(after)
    for name, stats in before.items():
        if name == "pose":
            continue  # a matrix is counted there as if its rows were steps
        pictures = "images" in name
        assert set(stats) == set(after[name])
        for key, value in stats.items():
            assert after[name][key].shape == value.shape
            if key in {"min", "max", "mean", "count"} or (key == "std" and not pictures):
                # What was counted there were pictures before they were encoded.
                np.testing.assert_allclose(after[name][key], value, rtol=1e-5, atol=0.02 if pictures else 1e-5)


def test_what_its_tools_make_of_ours_is_what_they_make_of_theirs(read: dict[str, Any]) -> None:
    """One episode deleted by its tool, and by us; a folder merged with itself."""
    theirs, ours = read["deleted"], read["fewer"]["items"]
    assert len(theirs) == len(ours) == 47
    for was, now in zip(theirs, ours, strict=True):
        for key, value in was.items():
            if "images" in key:
                assert np.abs(now[key] - value).mean() < 0.03  # its tool encodes again
            elif isinstance(value, str):
                assert now[key] == value
            elif key != "task_index":  # which its tool numbers in the order of a set
                np.testing.assert_array_equal(now[key], value, key)
    merged = read["merged"]
    assert len(merged) == 176
    np.testing.assert_array_equal(merged[88]["observation.state"], merged[0]["observation.state"])


def test_older_folders_become_newer(read: dict[str, Any]) -> None:
    items, at = read["newer"]["items"], 0
    for one in by_hand.four():
        film = by_hand.frames(one.films[by_hand.CAM]).transpose(0, 3, 1, 2) / 255
        for step in range(one.length):
            item = items[at]
            at += 1
            np.testing.assert_array_equal(item["action"], one.values["action"][step])
            assert np.abs(item[by_hand.CAM] - film[step]).max() <= ROUNDING + 0.001
    assert at == len(items)
    assert read["newer"]["tasks"] == {"pick": 0, "place": 1}


def test_our_drop_in_and_the_package_read_the_same_of_ours(out: Path, read: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    dataset = LeRobotDataset(root=out / "small")
    for number in (0, 40, 87):
        ours, theirs = dataset[number], read["small"]["items"][number]
        for key, value in theirs.items():
            if "images" not in key and not isinstance(value, str):
                np.testing.assert_array_equal(ours[key].numpy(), value, key)

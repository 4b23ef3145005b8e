"""What lerobot 0.6 writes: depth as HEVC and as TIFF, language columns, and both tables of `storage_format: lance`."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.compat.lerobot import LeRobotDataset

from .official06 import DEEP, DEPTH, LENGTHS, RGB, STILL, VARIABLE, python

ROUNDING = 3  # of 255: how far two converters of colours may be apart

pytestmark = pytest.mark.skipif(
    python() is None, reason=f"lerobot 0.6 is not installed: benchmarks/peers/setup, or name its Python in {VARIABLE}"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("official06")
    interpreter = python()
    assert interpreter is not None
    done = subprocess.run(
        [interpreter, str(Path(__file__).with_name("official06.py")), str(out)],
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(out), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (out / "truth.pkl").exists(), done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def truth(written: Path) -> dict[str, Any]:
    truth: dict[str, Any] = pickle.loads((written / "truth.pkl").read_bytes())
    return truth


def compared(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """One item, every key, value, type and shape of it."""
    assert set(found) == set(expected)
    for name, wanted in expected.items():
        one = found[name]
        if not isinstance(wanted, np.ndarray):
            assert one == wanted, name
            continue
        one = one.numpy()
        assert (one.dtype, one.shape) == (wanted.dtype, wanted.shape), name
        if name == RGB:
            assert np.abs(one - wanted).max() * 255 <= ROUNDING + 0.1
        elif name == DEPTH and wanted.max() < 20:
            # Logarithms in float32 by two libraries: off by two micrometres at most, far below a step of 12 bits.
            np.testing.assert_allclose(one, wanted, rtol=0, atol=2e-6)
        else:
            np.testing.assert_array_equal(one, wanted, err_msg=name)


@pytest.mark.parametrize("name", ["stills", "films", "lance"])
def test_every_item_is_what_the_package_gives(written: Path, truth: dict[str, Any], name: str) -> None:
    dataset = LeRobotDataset(root=written / name)
    assert len(dataset) == len(truth[name]) == sum(LENGTHS)
    for number, expected in enumerate(truth[name]):
        compared(dataset[number], expected)


@pytest.mark.parametrize("name", ["stills", "films", "lance"])
def test_windows_and_units_are_the_packages(written: Path, truth: dict[str, Any], name: str) -> None:
    dataset = LeRobotDataset(root=written / name, delta_timestamps=truth["times"])
    expected = truth[f"{'films' if name == 'lance' else name} windows"]
    for number in range(0, len(expected), 3):
        compared(dataset[number], expected[number])
    if name != "stills":
        metres = LeRobotDataset(root=written / name, depth_output_unit="m")
        for number in range(0, len(metres), 5):
            compared(metres[number], truth["films metres"][number])


OFFERED = {
    "dataset": {
        "absolute_to_relative_idx", "clear_image_transforms", "delta_timestamps", "depth_output_unit", "episodes",
        "features", "fps", "get_raw_item", "hf_dataset", "image_transforms", "meta", "num_episodes", "num_frames",
        "repo_id", "revision", "root", "select_columns", "set_image_transforms", "tolerance_s",
    },
    "meta": {
        "camera_keys", "chunks_size", "data_files_size_in_mb", "data_path", "depth_keys", "episodes", "features",
        "filter_episodes", "fps", "get_chunk_settings", "get_data_file_path", "get_task_index", "get_video_file_path",
        "has_language_columns", "image_keys", "info", "names", "repo_id", "repo_type", "rescale_depth_stats",
        "revision", "robot_type", "root", "shapes", "stats", "tasks", "tools", "total_episodes", "total_frames",
        "total_tasks", "url_root", "video_files_size_in_mb", "video_keys", "video_path",
    },
}  # fmt: skip
"""What the official class has in public and the drop-in, too."""


def test_each_public_name_is_there_or_refused_by_a_text(written: Path, truth: dict[str, Any]) -> None:
    dataset = LeRobotDataset("local/arm", root=written / "films")
    for kind, one in (("dataset", dataset), ("meta", dataset.meta)):
        theirs = set(truth["public"][kind])
        assert {name for name in theirs if hasattr(one, name)} == OFFERED[kind]
        for name in theirs - OFFERED[kind]:
            said = f"of seqlake reads, and has no '{name}': (record|use sl.push|make another)"
            with pytest.raises(AttributeError, match=said):
                getattr(one, name)


def test_names_that_came_with_it_give_what_they_give_there(written: Path, truth: dict[str, Any]) -> None:
    dataset = LeRobotDataset("local/arm", root=written / "films")
    assert (dataset.meta.tools, dataset.meta.repo_type) == (truth["tools"], truth["repo_type"])
    assert dataset.meta.filter_episodes(lambda one: one["length"] > 6, candidates=[1, 2]) == truth["long"] == [1]
    assert dataset.meta.filter_episodes(lambda one: one["length"] > 6) == [0, 1]
    for unit in ("m", "mm"):
        meta = LeRobotDataset("local/arm", root=written / "films", depth_output_unit=unit).meta
        meta.rescale_depth_stats(unit)  # a second time
        assert meta.stats is not None
        assert list(meta.stats) == list(truth[f"stats {unit}"])
        for name, one in truth[f"stats {unit}"].items():
            for key, expected in one.items():
                np.testing.assert_allclose(meta.stats[name][key], expected, rtol=1e-12, err_msg=f"{name} {key}")
        meta.rescale_depth_stats("mm")
        np.testing.assert_allclose(meta.stats[DEPTH]["max"], truth["stats mm"][DEPTH]["max"], rtol=1e-12)
    assert np.all(truth["stats mm"][DEPTH]["max"] == 1000 * truth["stats m"][DEPTH]["max"])


def test_rows_without_videos_are_the_packages(written: Path, truth: dict[str, Any]) -> None:
    pytest.importorskip("datasets")
    dataset = LeRobotDataset("local/arm", root=written / "stills", episodes=[1])
    assert len(dataset.select_columns(["action", "index"])) == LENGTHS[1]
    dataset = LeRobotDataset("local/arm", root=written / "films")
    for number in range(0, len(dataset), 5):
        compared(dataset.get_raw_item(number), truth["rows"][number])
    for row, expected in zip(dataset.select_columns("action"), truth["actions"], strict=True):
        compared(row, expected)


def test_depth_of_images_is_what_was_recorded(written: Path) -> None:
    ds = sl.open(written / "stills")
    for number, row in enumerate(ds):
        for step in range(row["length"]):
            depth = np.linspace(300, 4000, 48 * 64).reshape(48, 64, 1).astype(np.uint16)
            depth[: 1 + step] = 500 + 100 * number
            np.testing.assert_allclose(row[DEEP][step], depth / 1000, rtol=0, atol=1e-6)
            assert row[STILL][step].shape == (48, 64, 3)


def test_lance_says_what_the_files_say(written: Path) -> None:
    files, tables = sl.open(written / "films"), sl.open(written / "lance")
    assert tables.schema.names == files.schema.names
    for one, other in zip(files, tables, strict=True):
        for name in files.schema.names:
            if name in {RGB, DEPTH}:
                np.testing.assert_array_equal(one[name][:], other[name][:])
            elif isinstance(one[name], np.ndarray):
                np.testing.assert_array_equal(one[name], other[name])
            else:
                assert one[name] == other[name], name
    assert not [finding for finding in tables.validate(depth="decode") if finding.severity == "error"]


@pytest.mark.parametrize("mode", ["split", "copy"])
def test_lance_is_converted_without_decoding(written: Path, tmp_path: Path, mode: Any) -> None:
    sl.convert(written / "lance", tmp_path / "arm", files=mode)
    for one, other in zip(sl.open(written / "films"), sl.open(tmp_path / "arm"), strict=True):
        np.testing.assert_array_equal(one["action"], other["action"])
        np.testing.assert_array_equal(one[RGB][:], other[RGB][:])
        assert one["language_events"] == other["language_events"]

"""Folders that the official package wrote, edited and converted: in place, every value and frame is what it gives."""

from __future__ import annotations

import builtins
import importlib.util
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.compat.lerobot import LeRobotDataset

from . import by_hand
from .official import FPS, VARIABLE, batches, brightness, plain, python

FOLDERS = ("recorded", "small", "deleted", "merged", "older", "older_old")
ROUNDING = 3  # of 255: how far two converters of colours may be apart

pytestmark = pytest.mark.skipif(
    python() is None, reason=f"lerobot is not installed: benchmarks/peers/setup, or name its Python in {VARIABLE}"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("official")
    by_hand.write(out / "older", by_hand.four(), "v2.1")
    interpreter = python()
    assert interpreter is not None
    script = Path(__file__).with_name("official.py")
    # Its converter of videos may end in a crash of another library when the interpreter ends: what counts is written.
    done = subprocess.run(
        [interpreter, str(script), str(out), str(out / "older")],
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(out), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (out / "truth.pkl").exists(), done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def truth(written: Path) -> dict[str, list[dict[str, Any]]]:
    truth: dict[str, list[dict[str, Any]]] = pickle.loads((written / "truth.pkl").read_bytes())
    return truth


@pytest.mark.parametrize("name", FOLDERS)
def test_every_step_is_what_the_package_gives(written: Path, truth: dict[str, Any], name: str) -> None:
    ds, items = sl.open(written / name), truth[name]
    assert int(np.sum(ds.lengths("action"))) == len(items) > 40
    at = 0
    for row in ds:
        steps = items[at : at + row["length"]]
        at += row["length"]
        assert {int(item["episode_index"]) for item in steps} == {row["episode_index"]}
        assert row["task"] == steps[0]["task"]
        for column in ds.schema.values():
            if column.category == "temporal":
                expected = np.stack([item[column.name] for item in steps])
                # The package's own items of float64 are of 32 bits.
                np.testing.assert_array_equal(row[column.name].reshape(expected.shape).astype(expected.dtype), expected)
            elif column.category in {"frames", "file"}:
                same_pictures(row[column.name][:], [item[column.name] for item in steps])
    assert at == len(items)


def same_pictures(ours: np.ndarray, theirs: list[np.ndarray]) -> None:
    expected = np.round(np.stack(theirs).transpose(0, 2, 3, 1) * 255)
    assert ours.shape == expected.shape
    assert np.abs(ours.astype(np.float64) - expected).max() <= ROUNDING


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_is_wrong_with_them(written: Path, name: str) -> None:
    report = sl.open(written / name).validate(depth="decode")
    assert not report.errors
    assert not report.warnings


def test_conversion_copies_packets_of_av1(written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = sl.open(written / "recorded")
    after = sl.convert(before, tmp_path / "out", progress=False, workers=1)
    assert after is not None
    assert "encoded again" not in caplog.text
    for one, two in zip(before, after, strict=True):
        for name in ("observation.images.top", "observation.images.wrist"):
            assert len(two[name]) == two["length"]
            np.testing.assert_array_equal(one[name][:], two[name][:])


def test_the_drop_in_gives_the_items_of_the_official_class(written: Path, truth: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    for name, options, items, meta in truth["drawn"]:
        dataset = LeRobotDataset("local/arm", written / name, **options)
        assert len(dataset) == len(items) > 0
        for ours, theirs in zip((dataset[number] for number in range(len(dataset))), items, strict=True):
            assert list(ours) == list(theirs)
            for key, expected in theirs.items():
                if isinstance(expected, str):
                    assert ours[key] == expected
                    continue
                found = ours[key].numpy()
                assert (key, found.shape, found.dtype) == (key, expected.shape, expected.dtype)
                if "images" in key and not key.endswith("_is_pad"):
                    assert np.abs(found - expected).max() * 255 <= ROUNDING + 0.01
                else:
                    np.testing.assert_array_equal(found, expected, key)
        frames = torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=2)
        together = torch.cat([batch["frame_index"] for batch in frames])
        np.testing.assert_array_equal(together.numpy(), np.stack([item["frame_index"] for item in items]))
        same_meta(dataset, meta)


def test_samplers_get_the_batches_that_they_get_there(written: Path, truth: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    sampler = sampler_of_lerobot()
    for name, options, settings, expected in truth["sampled"]:
        dataset = LeRobotDataset("local/arm", written / name, image_transforms=brightness, **options)
        firsts, ends = (dataset.meta.episodes[f"dataset_{one}_index"] for one in ("from", "to"))
        same_batches(batches(dataset, sampler.EpisodeAwareSampler(firsts, ends, **settings)), expected)


def sampler_of_lerobot() -> Any:
    """The module of the sampler alone, which needs torch and nothing else."""
    interpreter = python()
    assert interpreter is not None
    [place] = Path(interpreter).parents[1].glob("lib/python3*/site-packages/lerobot/datasets/sampler.py")
    spec = importlib.util.spec_from_file_location("sampler_of_lerobot", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_batches(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs) > 2
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for key, expected in other.items():
            if not isinstance(expected, np.ndarray):
                assert one[key] == expected
            elif expected.dtype == np.float32 and "images" in key:
                assert one[key].shape == expected.shape
                assert np.abs(one[key] - expected).max() * 255 <= ROUNDING + 0.01
            else:
                np.testing.assert_array_equal(one[key], expected, key)


def test_what_it_refuses_is_refused_with_errors_of_its_classes(written: Path, truth: dict[str, Any]) -> None:
    for options, place, names in truth["refused"]:
        if names is None:
            LeRobotDataset("local/arm", written / "recorded", **options)[place]
            continue
        # The nearest of its classes that Python itself has.
        kind = next(getattr(builtins, name) for name in names.split() if hasattr(builtins, name))
        with pytest.raises(kind):
            LeRobotDataset("local/arm", written / "recorded", **options)[place]


def test_steps_that_are_not_at_the_time_of_their_frame_are_refused_alike(written: Path, truth: dict[str, Any]) -> None:
    for tolerance, given in truth["late"].items():
        dataset = LeRobotDataset(
            root=written / "late",
            tolerance_s=tolerance,
            delta_timestamps={"observation.images.top": [-1 / FPS, 0.0]},
        )
        assert all(given) == (tolerance > 1e-3)
        for number, expected in enumerate(given):
            if expected:
                dataset[number]
            else:
                with pytest.raises(ValueError, match="within tolerance_s=0.0001"):
                    dataset[number]


def same_meta(dataset: LeRobotDataset, meta: dict[str, Any]) -> None:
    ours = dataset.meta
    assert dataset.fps == meta["fps"]
    assert (len(dataset), dataset.num_frames, dataset.num_episodes) == meta["counts"]
    assert (ours.camera_keys, ours.video_keys, ours.image_keys) == meta["keys"]
    assert (ours.shapes, ours.names, ours.tasks.to_dict()) == (meta["shapes"], meta["names"], meta["tasks"])
    assert [ours.episodes[f"dataset_{one}_index"] for one in ("from", "to")] == meta["episodes"]
    assert ours.stats is not None
    assert list(ours.stats) == list(meta["stats"])
    for name, statistics in meta["stats"].items():
        for key, expected in statistics.items():
            np.testing.assert_array_equal(ours.stats[name][key], expected)


OFFERED = {
    "dataset": {
        "delta_indices", "delta_timestamps", "episodes", "features", "fps", "get_episodes_file_paths", "hf_dataset",
        "hf_features", "image_transforms", "load_hf_dataset", "meta", "num_episodes", "num_frames", "repo_id",
        "revision", "root", "tolerance_s", "video_backend",
    },
    "meta": {
        "camera_keys", "chunks_size", "data_files_size_in_mb", "data_path", "episodes", "features", "fps",
        "get_chunk_settings", "get_data_file_path", "get_task_index", "get_video_file_path", "image_keys", "info",
        "names", "repo_id", "revision", "robot_type", "root", "shapes", "stats", "subtasks", "tasks", "total_episodes",
        "total_frames", "total_tasks", "url_root", "video_files_size_in_mb", "video_keys", "video_path",
    },
}  # fmt: skip
"""What the official class has in public and the drop-in, too."""


def test_each_public_name_is_there_or_refused_by_a_text(written: Path, truth: dict[str, Any]) -> None:
    dataset = LeRobotDataset("local/arm", root=written / "recorded")
    for kind, one in (("dataset", dataset), ("meta", dataset.meta)):
        theirs = set(truth["public"][kind])
        assert theirs & {name for name in theirs if hasattr(one, name)} == OFFERED[kind]
        for name in theirs - OFFERED[kind]:
            said = f"of seqlake reads, and has no '{name}': (record|use sl.push|make another)"
            with pytest.raises(AttributeError, match=said):
                getattr(one, name)
    with pytest.raises(AttributeError, match="has no 'create': record with lerobot's own class"):
        LeRobotDataset.create("local/new", fps=30)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        _ = dataset.no_such  # type: ignore[attr-defined]


def test_steps_as_a_dataset_of_hugging_face(written: Path, truth: dict[str, Any]) -> None:
    pytest.importorskip("datasets")
    for episodes, said in truth["steps"]:
        dataset = LeRobotDataset("local/arm", root=written / "recorded", episodes=episodes)
        rows = dataset.hf_dataset
        assert len(rows) == dataset.num_frames
        assert rows.column_names == list(said["values"])
        for name, expected in said["values"].items():
            given = [plain(one) for one in rows[:][name]]
            assert len(given) == len(expected)
            for one, other in zip(given, expected, strict=True):
                np.testing.assert_array_equal(one, other)
                assert np.asarray(one).dtype == np.asarray(other).dtype, name
        assert sorted(map(str, dataset.get_episodes_file_paths())) == said["paths"]
        assert dataset.meta.get_chunk_settings() == said["chunks"]
        firsts = dataset.episode_data_index
        assert int(firsts["from"][0]) == 0
        assert firsts["from"][1:].tolist() == firsts["to"][:-1].tolist()
        assert int(firsts["to"][-1]) == dataset.num_frames

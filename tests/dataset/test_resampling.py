"""Signals at another rate: compared with numpy, pandas and rotations that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError, SeqlakeError


def moments(count: int, rate: float) -> np.ndarray:
    return np.arange(count) / rate


@pytest.fixture
def arm(tmp_path: Path) -> sl.Dataset:
    columns = {
        "task": pa.string(),
        "length": pa.int64(),
        "action": sl.Trajectory(dim=3, fps=20),
        "pose": sl.Trajectory(dim=4, shape=(2, 2), dtype=pa.float64()),
        "force": sl.Trajectory(dim=2, fps=100),
        "gripper": sl.Trajectory(dim=1, dtype=pa.int16()),
        "touch": sl.Trajectory(dim=1, timestamps="touch_times", dtype=pa.float64()),
        "touch_times": sl.Trajectory(dim=1, dtype=pa.float64()),
        "cam": sl.Video(fps=20),
        "stills": sl.Image(frames="bytes", format="png"),
    }
    ds = sl.create(tmp_path / "arm", sl.Schema(columns))
    rng = np.random.default_rng(0)
    with ds.writer() as writer:
        for number, count in enumerate((40, 7, 1)):
            frames = [np.full((16, 16, 3), k, np.uint8) for k in range(count)]
            writer.add(
                f"ep_{number}",
                action=rng.normal(size=(count, 3)),
                pose=rng.normal(size=(count, 2, 2)),
                force=rng.normal(size=(5 * count, 2)),
                gripper=rng.integers(0, 9, (count, 1)),
                touch=rng.normal(size=(count + 2, 1)),
                touch_times=100 + np.sort(rng.uniform(0, count / 20, (count + 2, 1)), axis=0),
                cam=frames,
                stills=frames,
            )
        writer.add("ep_null", task="nothing else")
    return ds


@pytest.mark.parametrize("fps", [50, 7, 20, 30000 / 1001])
def test_every_signal_stands_at_the_new_rate(arm: sl.Dataset, tmp_path: Path, fps: float) -> None:
    out = sl.resample(arm, tmp_path / "out", fps=fps)
    rate = sl.clock_of(out.schema).rate
    assert float(rate) == pytest.approx(fps)
    assert "touch_times" not in out.schema
    for old, new in zip(arm, out, strict=True):
        if old.id == "ep_null":
            assert new["action"] is None
            continue
        count = max(1, int(len(old["action"]) * rate / 20))
        assert new["length"] == len(new["action"]) == count
        at = moments(count, float(rate))
        for name, own in (("action", 20), ("pose", 20), ("force", 100)):
            before, after = np.asarray(old[name]), np.asarray(new[name])
            flat = before.reshape(len(before), -1)
            wanted = np.stack([np.interp(at, moments(len(before), own), column) for column in flat.T], -1)
            np.testing.assert_allclose(after, wanted.reshape(after.shape), rtol=1e-5, atol=1e-6)
            assert after.dtype == before.dtype
        held = pd.Series(np.asarray(old["gripper"])[:, 0], moments(len(old["gripper"]), 20))
        wanted = held.reindex(at + 1e-9, method="ffill").to_numpy()
        assert np.asarray(new["gripper"])[:, 0].tolist() == wanted.tolist()
        stamps = np.asarray(old["touch_times"])[:, 0]
        wanted = np.interp(at, stamps - stamps[0], np.asarray(old["touch"])[:, 0])
        np.testing.assert_allclose(np.asarray(new["touch"])[:, 0], wanted, atol=1e-6)
        assert len(new["cam"]) == len(new["stills"]) == len(old["action"])
    assert out.schema["stills"].type.get("fps") == 20
    assert out.validate(depth="decode").ok
    if fps == 20:
        assert out.select("sequence_id", "action", "gripper", "pose").to_arrow().equals(
            arm.select("sequence_id", "action", "gripper", "pose").to_arrow()
        )  # fmt: skip


def test_windows_of_what_was_resampled_show_the_frames_of_their_moments(arm: sl.Dataset, tmp_path: Path) -> None:
    out = sl.resample(arm.where("task IS NULL"), tmp_path / "out", fps=50)
    loader = sl.Loader(out, window={"action": [0], "stills": [0]}, batch_size=5, shuffle=False).frames()
    batch = next(iter(loader))
    assert np.asarray(batch["stills"])[:, 0, 0, 0, 0].tolist() == [0, 0, 0, 1, 1]  # steps of 20 ms, frames of 50 ms


@pytest.mark.parametrize("method", ["nearest", "hold", "linear"])
def test_methods(arm: sl.Dataset, tmp_path: Path, method: str) -> None:
    out = sl.resample(arm, tmp_path / "out", fps=33, columns=["action"], method=method)
    old, new = np.asarray(arm["ep_0"]["action"]), np.asarray(out["ep_0"]["action"])
    known, at = moments(40, 20), moments(66, 33)
    for dim in range(3):
        series = pd.Series(old[:, dim], known)
        wanted = {
            "nearest": lambda series=series: series.reindex(at, method="nearest").to_numpy(),
            "hold": lambda series=series: series.reindex(at + 1e-9, method="ffill").to_numpy(),
            "linear": lambda dim=dim: np.interp(at, known, old[:, dim]),
        }[method]()
        np.testing.assert_allclose(new[:, dim], wanted, atol=1e-6)
    assert out.schema["force"].type.get("fps") == 100  # and is as it was
    assert np.array_equal(out["ep_0"]["force"], arm["ep_0"]["force"])
    assert out.schema["gripper"].type.get("fps") == 20


def test_angles_and_quaternions_turn_the_short_way(tmp_path: Path) -> None:
    kinds = ["linear", "angle", *["quaternion"] * 4, "hold"]
    columns = {
        "state": sl.Trajectory(dim=7, fps=10, kind=kinds, dtype=pa.float64()),
        "heading": sl.Trajectory(dim=1, fps=10, kind="angle", units="deg", dtype=pa.float64()),
        "free": sl.Trajectory(dim=1, fps=10, kind="angle", units="deg", dtype=pa.float64()),
    }
    ds = sl.create(tmp_path / "ds", sl.Schema(columns))

    def turned(seconds: np.ndarray, sign: np.ndarray) -> np.ndarray:
        half = seconds * 2.5 / 2  # 2.5 rad/s about z
        return np.stack([0 * half, 0 * half, np.sin(half), np.cos(half)], -1) * sign[:, None]

    def wrapped(angle: np.ndarray) -> np.ndarray:
        return (angle + np.pi) % (2 * np.pi) - np.pi

    time, rng = moments(30, 10), np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], 30)  # q and -q are one rotation
    state = np.concatenate(
        [time[:, None], wrapped(3 * time)[:, None], turned(time, signs), rng.normal(size=(30, 1))], axis=1
    )
    with ds.writer() as writer:
        writer.add("a", state=state, heading=(50 * time % 360)[:, None], free=(50 * time + 700)[:, None])
    out = sl.resample(ds, tmp_path / "out", fps=64)["a"]
    at = np.minimum(moments(192, 64), 2.9)
    new = np.asarray(out["state"])
    np.testing.assert_allclose(new[:, 0], at, atol=1e-12)
    np.testing.assert_allclose(np.exp(1j * new[:, 1]), np.exp(3j * at), atol=1e-9)
    assert (np.abs(new[:, 1]) <= np.pi + 1e-9).all()
    wanted = turned(at, np.ones(192))
    np.testing.assert_allclose(np.abs((new[:, 2:6] * wanted).sum(1)), 1, atol=1e-12)
    assert set(new[:, 6]) <= set(state[:, 6])
    np.testing.assert_allclose(
        np.exp(1j * np.deg2rad(out["heading"][:, 0])), np.exp(1j * np.deg2rad(50 * at)), atol=1e-9
    )
    np.testing.assert_allclose(out["free"][:, 0], 50 * at + 700, atol=1e-9)


def test_what_is_not_known_stays_unknown(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=1, fps=10, kind="something of yours")}))
    ds.append([{"sequence_id": "a", "x": [[0.0], [np.nan], [2.0], [3.0]]}, {"sequence_id": "b", "x": np.zeros((0, 1))}])
    out = sl.resample(ds, tmp_path / "out", fps=20)
    found = np.asarray(out["a"]["x"])[:, 0]
    assert np.isnan(found).tolist() == [False, True, True, True, False, False, False, False]
    assert len(out["b"]["x"]) == 0
    assert out.schema["x"].type.get("kind") == "something of yours"


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"fps": 0}, ValueError, "positive number of steps per second"),
        ({"fps": 10, "columns": ["task"]}, SchemaMismatchError, "'task' is no signal"),
        ({"fps": 10, "columns": ["acton"]}, SchemaMismatchError, "'acton'"),
        ({"fps": 10, "method": "cubic"}, ValueError, "expected one of linear, nearest, hold"),
        ({"fps": 10, "method": {"gripper": "linear"}}, SchemaMismatchError, "between two of its values"),
        ({"fps": 10, "method": {"task": "hold"}}, SchemaMismatchError, "'task' is none of the columns"),
        ({"fps": "10"}, ValueError, "positive number of steps per second"),
        ({"fps": 10, "columns": "action"}, ValueError, "columns: expected a list of texts"),
        ({"fps": 10, "method": 5}, ValueError, "method: expected"),
    ],
)
def test_wrong_arguments(arm: sl.Dataset, tmp_path: Path, given: dict, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        sl.resample(arm, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_a_signal_without_a_rate_is_refused(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=1)}))
    with pytest.raises(SchemaMismatchError, match="how many samples of 'x' there are in a second"):
        sl.resample(ds, tmp_path / "out", fps=10)


def test_half_a_quaternion_is_refused(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=3, fps=5, kind="quaternion")}))
    ds.append([{"sequence_id": "a", "x": np.ones((3, 3))}])
    with pytest.raises(SchemaMismatchError, match="four dimensions beside each other"):
        sl.resample(ds, tmp_path / "out", fps=10)
    assert not (tmp_path / "out").exists()


def test_each_angle_has_its_own_unit_and_range(tmp_path: Path) -> None:
    units, turns = ["deg", "rad", "turn", "m"], [360, 2 * np.pi, 1, 9]
    kinds = ["angle", "angle", "angle", "linear"]
    column = sl.Trajectory(dim=4, fps=1, kind=kinds, units=units, dtype=pa.float64())
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": column}))
    ds.append([{"sequence_id": "a", "x": [[350, -3, 0.9, 1], [10, 3, 0.2, 2], [20, 2.9, 0.3, 4]]}])
    found = np.asarray(sl.resample(ds, tmp_path / "out", fps=2)["a"]["x"])
    for dim, middle in enumerate([0, np.pi, 0.05, 1.5]):
        off = found[1, dim] - middle
        assert min(off % turns[dim], -off % turns[dim]) == pytest.approx(0, abs=1e-9)
    assert (found[:, 0] >= 0).all()
    assert (found[:, 0] <= 360).all()
    assert np.array_equal(found[::2], ds["a"]["x"])


@pytest.mark.parametrize("kind", ["linear", "angle", "quaternion", "hold"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_sample_stays_itself_beside_what_is_no_number(tmp_path: Path, kind: str, odd: float) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=4, fps=10, kind=kind)}))
    old = np.array([[1, 0, 0, 0], [odd] * 4, [0, 1, 0, 0], [odd] * 4, [odd] * 4, [0, 0, 1, 0]], np.float32)
    ds.append([{"sequence_id": "a", "x": old}])
    new = np.asarray(sl.resample(ds, tmp_path / "out", fps=20)["a"]["x"])
    np.testing.assert_array_equal(new[::2], old)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([0, None, 2], "a timestamp is not at or after the one before it"),
        ([0, 1, 10**18], "3 samples last 1e.09 seconds: 20000000001 steps"),
    ],
)
def test_time_stamps_that_cannot_be_are_an_error(tmp_path: Path, times: list, said: str) -> None:
    columns = {"x": sl.Trajectory(dim=1, timestamps="t"), "t": pa.list_(pa.int64())}
    ds = sl.create(tmp_path / "ds", sl.Schema(columns))
    ds.append([{"sequence_id": "a", "x": [[1], [2], [3]], "t": times}])
    with pytest.raises(SeqlakeError, match=said):
        sl.resample(ds, tmp_path / "out", fps=20)
    assert not (tmp_path / "out").exists()

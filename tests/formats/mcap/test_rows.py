"""Recordings cut into rows, brought to one clock, and mapped to columns."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.abilities import SaysMapping, ability
from seqlake.errors import ColumnNotFoundError, InvalidMetadataError, SchemaMismatchError, ValidationError
from seqlake.formats import mcap
from seqlake.formats.mcap import clock
from seqlake.spec.alignment import exact

from . import by_hand
from .by_hand import BEGIN, JOINTS

SECOND = 10**9


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand.write(tmp_path_factory.mktemp("drive"), "mcap-ros2")


def ticks(path: Path, *times: float) -> Path:
    """A recording of one number at each of these seconds, after a long ago beginning."""
    return by_hand.json_file(path, [("/x", BEGIN + round(t * SECOND), {"v": float(t)}) for t in times])


# ---- rows
def test_pieces_of_a_length_are_the_messages_between(place: Path) -> None:
    ds = sl.scan(place, segment=0.1)
    assert [row["sequence_id"] for row in ds] == [f"drive-{k:05d}" for k in range(5)]
    whole = sl.scan(place)["drive"]
    for column in ("joint_states_position", "joint_states_time", "cmd_vel", "note"):
        parts = [row[column] for row in ds]
        np.testing.assert_array_equal(np.concatenate([np.asarray(one) for one in parts]), np.asarray(whole[column]))
    assert [len(row["joint_states_time"]) for row in ds] == [5, 5, 5, 5, 0]
    assert [len(row["cmd_vel"]) for row in ds] == [2] * 5


def test_ids_do_not_depend_on_what_lies_beside(place: Path, tmp_path: Path) -> None:
    for name in ("a", "b/c", "b/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(place, tmp_path / f"{name}.mcap")
    assert [row["sequence_id"] for row in sl.scan(tmp_path)] == ["a", "b/c", "b/d"]
    (tmp_path / "a.mcap").unlink()
    assert [row["sequence_id"] for row in sl.scan(tmp_path)] == ["b/c", "b/d"]


def test_equal_names_of_two_kinds_are_told_apart(place: Path, tmp_path: Path) -> None:
    shutil.copy(place, tmp_path / "drive.mcap")
    by_hand.write(tmp_path, "ros1")
    assert [row["sequence_id"] for row in sl.scan(tmp_path)] == ["drive.bag", "drive.mcap"]


def test_cut_where_nothing_was_recorded(tmp_path: Path) -> None:
    path = ticks(tmp_path / "x.mcap", 0, 1, 2, 30, 31, 90)
    ds = sl.scan(path, segment="gaps", gap=5)
    assert [row["x"][:, 0].tolist() for row in ds] == [[0, 1, 2], [30, 31], [90]]
    assert [row["sequence_id"] for row in ds] == ["x-00000", "x-00001", "x-00002"]


def test_cut_at_the_messages_of_a_topic(tmp_path: Path) -> None:
    sent = [("/x", BEGIN + k, {"v": float(k)}) for k in range(10)]
    marks = [("/mark", BEGIN + k, {"data": "go"}) for k in (2, 6)]
    path = by_hand.json_file(tmp_path / "x.mcap", sorted([*sent, *marks], key=lambda one: one[1]))
    assert [row["x"][:, 0].tolist() for row in sl.scan(path, segment="/mark")] == [[2, 3, 4, 5], [6, 7, 8, 9]]


def test_a_recording_without_marks_is_said(tmp_path: Path) -> None:
    by_hand.json_file(tmp_path / "a.mcap", [("/x", 1, {"v": 1.0}), ("/mark", 1, {"data": "go"})])
    ticks(tmp_path / "b.mcap", 1, 2)
    ds = sl.scan(tmp_path, segment="/mark")
    assert [row["sequence_id"] for row in ds] == ["a-00000"]
    assert [one.location for one in sl.validate(ds).warnings if one.code == "mcap-no-rows"] == ["b.mcap"]


def test_a_flag_begins_and_ends_a_row(tmp_path: Path) -> None:
    sent = [("/x", BEGIN + k, {"v": float(k)}) for k in range(10)]
    marks = [("/on", BEGIN + k, {"data": on}) for k, on in ((1, True), (3, False), (6, True), (8, False))]
    path = by_hand.json_file(tmp_path / "x.mcap", sorted([*sent, *marks], key=lambda one: one[1]))
    for options in ({}, {"topics": ["/x"]}, {"map": {"x": "/x.v"}}):
        rows = sl.scan(path, segment="/on", **options)
        assert [row["x"][:, 0].tolist() for row in rows] == [[1, 2], [6, 7]]


def test_a_clock_that_was_set_is_no_million_rows(tmp_path: Path) -> None:
    path = by_hand.json_file(tmp_path / "x.mcap", [("/x", 0, {"v": 1.0}), ("/x", BEGIN, {"v": 2.0})])
    with pytest.raises(InvalidMetadataError, match="gaps"):
        sl.scan(path, segment=1)
    assert len(sl.scan(path, segment="gaps")) == 2


@pytest.mark.parametrize("segment", [0, -1, True, "", float("nan"), [1]])
def test_other_ways_to_cut_are_refused(place: Path, segment: Any) -> None:
    with pytest.raises(ValueError, match="segment"):
        sl.scan(place, segment=segment)


def test_files_of_one_bag_are_one_recording(tmp_path: Path) -> None:
    """As rosbag2 splits them: the second goes on where the first ended."""
    bag = tmp_path / "bag"
    bag.mkdir()
    ticks(bag / "bag_10.mcap", 2, 3)
    ticks(bag / "bag_9.mcap", 0, 1)
    names = ["bag_9.mcap", "bag_10.mcap", "bag_11.mcap"]
    (bag / "metadata.yaml").write_text(
        "rosbag2_bagfile_information:\n  relative_file_paths:\n" + "".join(f"    - {name}\n" for name in names)
    )
    for at in (tmp_path, bag):
        ds = sl.scan(at)
        assert ds["bag"]["x"][:, 0].tolist() == [0, 1, 2, 3]
        assert [f.code for f in sl.validate(ds).errors] == ["mcap-missing-file"]


# ---- one clock
TIMES = st.lists(st.integers(0, 10**6), min_size=1, max_size=60).map(sorted)


@given(times=TIMES, steps=TIMES, most=st.none() | st.integers(0, 10**5))
@settings(max_examples=60, deadline=None)
def test_resampling_is_what_pandas_does(times: list[int], steps: list[int], most: int | None) -> None:
    """`merge_asof` backwards holds, and to the nearest picks; `numpy.interp` goes between."""
    unique, clocked = np.unique(np.array(times, np.int64)), np.array(steps, np.int64)
    values = np.random.default_rng(len(times)).normal(size=len(unique))
    left = pd.DataFrame({"t": clocked})
    right = pd.DataFrame({"t": unique, "v": values})
    for how, direction in (("hold", "backward"), ("nearest", "nearest")):
        expected = pd.merge_asof(left, right, on="t", direction=direction, tolerance=most)["v"].to_numpy()  # type: ignore[call-overload]
        picked = clock.pick(unique, clocked, how, most)
        got = clock.between(values, picked)
        if how == "nearest":  # of two as near pandas takes either
            away = np.abs(unique[picked.before] - clocked)
            np.testing.assert_array_equal(away, np.abs(unique[:, None] - clocked).min(axis=0))
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        else:
            np.testing.assert_array_equal(got, expected)
    picked = clock.pick(unique, clocked, "linear", None)
    inside = (clocked >= unique[0]) & (clocked <= unique[-1])
    np.testing.assert_array_equal(picked.valid, inside)
    straight = np.interp(clocked, unique, values)
    np.testing.assert_allclose(clock.between(values, picked)[inside], straight[inside], rtol=1e-9, atol=1e-9)


@given(st.integers(1, 2000), st.sampled_from([1, 3, 24, 29.97, 30, 59.94, 100]), st.integers(0, 2**62))
@settings(max_examples=40, deadline=None)
def test_steps_of_a_rate_do_not_drift(count: int, fps: float, begin: int) -> None:
    grid = clock.Grid(rate=exact(fps))
    assert grid.rate is not None
    last = begin + int((count - 1) * SECOND / grid.rate) + 1
    steps = grid.steps(None, [np.array([begin, last], np.int64)])
    assert len(steps) == count
    expected = [begin + k * SECOND * grid.rate.denominator // grid.rate.numerator for k in range(count)]
    assert steps.tolist() == expected


def test_a_topic_is_the_clock(place: Path) -> None:
    row = sl.scan(place, clock="/camera/compressed", without=["/tf"])["drive"]
    assert row["timestamp"].tolist() == [BEGIN + k * 100_000_000 for k in range(5)]
    np.testing.assert_array_equal(row["cmd_vel"][:, 0], [0, 2, 4, 6, 8])
    joints = sl.scan(place)["drive"]["joint_states_position"]
    np.testing.assert_array_equal(row["joint_states_position"], joints[[0, 5, 10, 15, 19]])


def test_a_rate_is_the_clock(place: Path) -> None:
    ds = sl.scan(place, fps=40, resample="linear")
    assert {ds.schema[name].type.get("fps") for name in ("cmd_vel", "joint_states_position")} == {40}
    row = ds["drive"]
    seconds = (row["timestamp"] - BEGIN) / SECOND
    np.testing.assert_allclose(row["cmd_vel"][:, 0], seconds / 0.05, atol=1e-6)
    assert len({len(row[name]) for name in ("cmd_vel", "note", "camera_compressed", "timestamp")}) == 1


def test_steps_without_a_sample(tmp_path: Path) -> None:
    messages = [("/clock", BEGIN + k * SECOND, {"v": float(k)}) for k in range(8)]
    messages += [("/x", BEGIN + k * SECOND, {"v": 10.0 * k}) for k in (1, 2, 6)]
    path = by_hand.json_file(tmp_path / "x.mcap", sorted(messages, key=lambda one: one[1]))

    def read(**options: Any) -> Any:
        return sl.scan(path, clock="/clock", map={"x": "/x.v", "k": "/clock.v"}, **options)["x"]

    def values(name: str, **options: Any) -> Any:
        return read(**options)[name][:, 0]

    np.testing.assert_array_equal(values("x"), [10, 20, 20, 20, 20, 60, 60])
    np.testing.assert_array_equal(values("x", max_gap=1.5), [10, 20, 20, np.nan, np.nan, 60, 60])
    np.testing.assert_array_equal(values("k", max_gap=0.5), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(values("x", gaps="nan"), [np.nan, 10, 20, 20, 20, 20, 60, 60])
    np.testing.assert_array_equal(values("x", resample="linear", max_gap=4), [10, 20, 30, 40, 50, 60])
    with pytest.raises(ValidationError, match="no sample for step 0"):
        read(gaps="error")["x"]


# ---- mappings
def test_what_is_mapped(place: Path) -> None:
    mapping: dict[str, Any] = {
        "state": "/joint_states.position",
        "pinch": {"source": "/joint_states.position", "names": ["wrist", "elbow"]},
        "speed": {"source": "/cmd_vel", "fields": ["linear.x", "angular.z"]},
        "x": "/odom.pose.pose.position.x",
        "sigma": "/odom.pose.covariance",
        "hand": {"source": "/tf", "frame": "gripper"},
        "front": {"source": "/camera/compressed", "type": "image", "frames": "bytes", "format": "jpeg"},
        "said": "/note.data",
        "at": "/odom.header.stamp",
    }
    ds = sl.scan(place, map=mapping)
    row = ds["drive"]
    whole = sl.scan(place)["drive"]
    np.testing.assert_array_equal(row["state"], whole["joint_states_position"])
    order = [JOINTS[::-1].index(name) for name in ("wrist", "elbow")]
    np.testing.assert_array_equal(row["pinch"], whole["joint_states_position"][:, order])
    np.testing.assert_array_equal(row["speed"], whole["cmd_vel"][:, [0, 5]])
    np.testing.assert_array_equal(row["x"], whole["odom_pose_pose"][:, :1])
    np.testing.assert_array_equal(row["hand"], whole["tf_gripper"])
    assert list(row["said"]) == list(whole["note"])
    assert row["at"].tolist() == [time - 3_000_000 for time in whole["odom_time"].tolist()]
    assert ds.schema["pinch"].type.get("names") == ["wrist", "elbow"]
    says = ability(mcap.scan(str(place), map=mapping), SaysMapping)
    assert says is not None
    told_of = {one.source: one.column for one in says.mapping()}
    assert told_of["/joint_states.position"] == "pinch"
    assert told_of["/lidar"] is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nothing", "no topic is called so"),
        ("/odom.pose.pose.nothing", "has no field"),
        ("/odom.pose.pose.position.x.y", "has no field"),
        ({"source": "/tf", "frame": "moon"}, "camera, gripper"),
        ("/tf", "frame is one of"),
        ({"source": "/joint_states.position", "names": ["knee"]}, "no joint is called 'knee'"),
        ({"source": "/cmd_vel", "names": ["knee"]}, "names are of joints"),
        ({"source": "/cmd_vel", "fields": ["linear"]}, "is no number"),
        ({"source": "/cmd_vel", "fields": "linear.x"}, "fields is a list"),
        ({"source": "/cmd_vel", "resample": "magic"}, "resample is"),
        ({"source": "/cmd_vel", "type": "video"}, "trajectory"),
        ({"source": "/odom.pose.covariance", "type": "trajectory", "dim": 35}, "36 numbers"),
        ("/lidar.fields", "list of messages"),
    ],
)
def test_mappings_that_cannot_be(place: Path, source: Any, message: str) -> None:
    with pytest.raises(InvalidMetadataError, match=message):
        sl.scan(place, map={"c": source})


def test_topics_that_are_not_there_are_named(place: Path) -> None:
    with pytest.raises(ColumnNotFoundError, match="/nothing"):
        sl.scan(place, without=["/nothing"])
    with pytest.raises(InvalidMetadataError, match="/nothing"):
        sl.scan(place, clock="/nothing")
    with pytest.raises(SchemaMismatchError, match="No topic"):
        sl.scan(place, topics=[])


def test_topics_are_chosen(place: Path) -> None:
    ds = sl.scan(place, topics=["/note", "/cmd_vel"], without=["/note"])
    assert [name for name in ds.schema.names if name.startswith(("cmd", "note"))] == ["cmd_vel_time", "cmd_vel"]


def test_lists_of_any_length_are_mapped_without_one(tmp_path: Path) -> None:
    lists = [[1.0, 2.0], [3.0], []]
    path = by_hand.json_file(tmp_path / "x.mcap", [("/x", BEGIN + k, {"v": v, "w": 1}) for k, v in enumerate(lists)])
    [cell] = sl.scan(path).select("x_v").to_arrow()["x_v"].to_pylist()
    assert cell == [[[1.0], [2.0]], [[3.0]], []]


def test_the_recording_itself_is_kept(place: Path, tmp_path: Path) -> None:
    ds = sl.scan(place, keep_file=True, topics=["/note"])
    view = ds["drive"]["mcap"]
    assert view.read() == place.read_bytes()
    taken = sl.convert(mcap.scan(str(place), keep_file=True, topics=["/note"]), tmp_path / "ds", workers=1)
    assert taken is not None
    assert taken["drive"]["mcap"].read() == place.read_bytes()
    assert "sl.open" in taken["drive"]["mcap"].hint()

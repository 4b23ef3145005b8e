"""Recordings read in place, against what was written into them and what the official readers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError
from seqlake.files.blobs import LocalBlob
from seqlake.formats import mcap
from seqlake.formats.mcap import bag, wire
from seqlake.protocols import Readable
from seqlake.testing.formats import FormatTests

from . import by_hand
from .by_hand import BEGIN, JOINTS, KINDS


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand.write(tmp_path_factory.mktemp("drive"), kind)


def by_topic(kind: str) -> dict[str, list[tuple[int, Any]]]:
    topics: dict[str, list[tuple[int, Any]]] = {}
    for topic, time, message in by_hand.drive(kind)[1]:
        topics.setdefault(topic, []).append((time, message))
    return topics


FEW = ["/joint_states", "/tf", "/camera/compressed", "/lidar", "/note"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, of which one lacks topics of the other."""
    at = tmp_path_factory.mktemp("folder")
    by_hand.write(at, "mcap-ros2", name="monday")
    by_hand.write(at, "sqlite", name="tuesday", count=8)
    by_hand.json_file(at / "wednesday.mcap", [("/note", BEGIN, {"data": "alone"})])
    return at


class TestRecordings(FormatTests):
    @pytest.fixture
    def source(self, folder: Path) -> Readable:
        return mcap.scan(str(folder), segment=0.2, topics=FEW)


class TestOnOneClock(FormatTests):
    @pytest.fixture
    def source(self, folder: Path) -> Readable:
        return mcap.scan(str(folder), fps=30, resample="linear", topics=FEW[:3])


def test_every_value_is_what_was_recorded(place: Path, kind: str) -> None:
    row = sl.open(place)["drive"]
    topics = by_topic(kind)
    joints = topics["/joint_states"]
    assert row["joint_states_time"].tolist() == [time for time, _ in joints]
    expected = [[m.position[list(m.name).index(name)] for name in JOINTS[::-1]] for _, m in joints]
    np.testing.assert_array_equal(row["joint_states_position"], expected)
    np.testing.assert_array_equal(row["joint_states_velocity"], np.array(expected) * 2)
    v = [m for _, m in topics["/cmd_vel"]]
    axes = [[*(getattr(m.linear, a) for a in "xyz"), *(getattr(m.angular, a) for a in "xyz")] for m in v]
    np.testing.assert_array_equal(row["cmd_vel"], axes)
    poses = [m.pose.pose for _, m in topics["/odom"]]
    flat = [[*(getattr(p.position, a) for a in "xyz"), *(getattr(p.orientation, a) for a in "xyzw")] for p in poses]
    np.testing.assert_array_equal(row["odom_pose_pose"], flat)
    np.testing.assert_array_equal(row["odom_pose_covariance"], [m.pose.covariance for _, m in topics["/odom"]])
    np.testing.assert_array_equal(row["odom_twist_covariance"], [m.twist.covariance for _, m in topics["/odom"]])
    np.testing.assert_array_equal(row["array"], [m.data for _, m in topics["/array"]])
    assert row["array"].dtype == np.float32
    assert list(row["note"]) == [m.data for _, m in topics["/note"]]
    assert row["enabled"][:, 0].tolist() == [int(m.data) for _, m in topics["/enabled"]]


def test_transforms_become_a_column_a_frame(place: Path) -> None:
    ds = sl.open(place)
    row = ds["drive"]
    assert row["tf_camera"].shape == (10, 7)
    assert row["tf_gripper"].shape == (5, 7)
    assert row["tf_gripper_time"].tolist() == row["tf_camera_time"].tolist()[1::2]
    assert ds.schema["tf_camera"].type.get("coordinate_frame") == "map"


def test_pictures_stay_what_they_are(place: Path, kind: str) -> None:
    ds = sl.open(place)
    table = ds.select("camera_compressed").to_arrow()
    sent = [m.data.tobytes() for _, m in by_topic(kind)["/camera/compressed"]]
    assert table["camera_compressed"][0].as_py() == sent
    row = ds["drive"]
    for k, (_, message) in enumerate(by_topic(kind)["/camera/raw"]):
        np.testing.assert_array_equal(row["camera_raw"][k], message.data.reshape(4, 6, 3)[:, :, ::-1])
    depth = [m.data.view("<u2").reshape(4, 6) for _, m in by_topic(kind)["/camera/depth"]]
    np.testing.assert_allclose(
        np.asarray(row["camera_depth"][:])[..., 0] if row["camera_depth"][:].ndim == 4 else row["camera_depth"][:],
        np.array(depth) / 1000,
        atol=1e-6,
    )


def test_points_keep_their_fields(place: Path) -> None:
    ds = sl.open(place)
    assert ds.schema["lidar"].type.get("fields") == ["x", "y", "z", "ring"]
    [scans] = ds.select("lidar").to_arrow()["lidar"].to_pylist()
    for k, scan in enumerate(scans):
        points = by_hand.cloud(k)
        np.testing.assert_array_equal(scan, [[p[name] for name in points.dtype.names] for p in points])


def test_it_is_sound(place: Path) -> None:
    report = sl.validate(sl.open(place), depth="decode")
    assert not report.errors, report


def test_stamps_of_headers(place: Path) -> None:
    row = sl.scan(place, stamp="header")["drive"]
    assert row["joint_states_time"].tolist() == [BEGIN + k * 20_000_000 - 3_000_000 for k in range(20)]
    assert row["tf_camera_time"].tolist() == [BEGIN + k * 50_000_000 - 3_000_000 for k in range(10)]
    assert row["cmd_vel_time"].tolist() == [BEGIN + k * 50_000_000 for k in range(10)]  # it has no header


def test_it_trains(place: Path) -> None:
    window = sl.Window({"joint_states_position": range(4), "camera_compressed": [0]})
    batch = next(iter(sl.Loader(sl.scan(place, fps=20), window=window, batch_size=2)))
    assert batch["joint_states_position"].shape == (2, 4, 3)


def test_the_official_readers_say_the_same(place: Path, kind: str) -> None:
    """Message by message: rosbags reads bags, mcap with its own decoders of ROS reads MCAP."""
    row = sl.scan(place, topics=["/odom", "/joint_states"])["drive"]
    read: list[tuple[int, Any]] = []
    if kind.startswith("mcap"):
        decoders = pytest.importorskip(f"mcap_ros{kind[-1]}.decoder")
        reader = pytest.importorskip("mcap.reader")
        with place.open("rb") as file:
            opened = reader.make_reader(file, decoder_factories=[decoders.DecoderFactory()])
            read = [(m.log_time, d) for _, _, m, d in opened.iter_decoded_messages(topics=["/odom"])]
    else:
        rosbags = pytest.importorskip("rosbags.highlevel")
        with rosbags.AnyReader([place]) as both:
            connections = [one for one in both.connections if one.topic == "/odom"]
            for connection, time, data in both.messages(connections):
                read.append((time, both.deserialize(data, connection.msgtype)))
    assert row["odom_time"].tolist() == [time for time, _ in read]
    np.testing.assert_array_equal(row["odom_pose_covariance"], [list(m.pose.covariance) for _, m in read])
    speeds = [[m.twist.twist.linear.x, m.twist.twist.angular.z] for _, m in read]
    np.testing.assert_array_equal(row["odom_twist_twist"][:, [0, 5]], speeds)


def test_images_become_videos(place: Path, tmp_path: Path) -> None:
    source = mcap.scan(str(place), topics=["/camera/compressed", "/cmd_vel"])
    ds = sl.convert(source, tmp_path / "ds", images="video", workers=1)
    assert ds is not None
    assert len(ds["drive"]["camera_compressed"]) == 5
    assert not sl.validate(ds, depth="decode").errors


def test_ranges_of_a_store_are_enough(place: Path, kind: str) -> None:
    """As from a bucket: no file is mapped, and what is read are ranges."""
    if kind in {"sqlite", "rosbag2"}:
        return
    whole = LocalBlob(place)
    reads = list[int]()

    class Ranged:
        location, size, token = whole.location, whole.size, whole.token

        def view(self) -> None:
            return None

        def ranges(self, starts: Any, stops: Any, /) -> list[memoryview]:
            reads.extend((stops - starts).tolist())
            return whole.ranges(starts, stops)

    reader: Any = bag if kind == "ros1" else wire
    over: Any = Ranged()
    messages = [(m.topic, m.time, bytes(m.data)) for m in reader.read(over).messages()]
    assert messages == [(m.topic, m.time, bytes(m.data)) for m in reader.read(whole).messages()]
    assert reads


@pytest.mark.parametrize("way", ["bz2", "lz4", "message", "file"])
def test_recordings_that_are_packed(tmp_path: Path, way: str) -> None:
    """As ROS packs them: chunks of ROS 1, each message of ROS 2; a file that is packed as a whole is said."""
    rosbags = pytest.importorskip("rosbags")
    assert rosbags
    from rosbags import rosbag1, rosbag2

    store, listed = by_hand.drive("ros1" if way in {"bz2", "lz4"} else "sqlite", count=8)
    listed = [one for one in listed if one[0] == "/odom"]
    writer: Any
    if way in {"bz2", "lz4"}:
        place = tmp_path / "x.bag"
        writer = rosbag1.Writer(place)
        writer.set_compression(getattr(rosbag1.Writer.CompressionFormat, way.upper()))
    else:
        place = tmp_path / "x"
        writer = rosbag2.Writer(place, version=9)
        writer.set_compression(getattr(rosbag2.CompressionMode, way.upper()), rosbag2.CompressionFormat.ZSTD)
    with writer:
        connection = writer.add_connection("/odom", "nav_msgs/msg/Odometry", typestore=store)
        for _, time, message in listed:
            serialize = store.serialize_ros1 if way in {"bz2", "lz4"} else store.serialize_cdr
            writer.write(connection, time, serialize(message, "nav_msgs/msg/Odometry"))
    if way == "file":
        with pytest.raises(CorruptFileError, match="packed as a whole"):
            sl.open(place)
        return
    np.testing.assert_array_equal(
        sl.open(place)["x"]["odom_pose_covariance"], [m.pose.covariance for _, _, m in listed]
    )

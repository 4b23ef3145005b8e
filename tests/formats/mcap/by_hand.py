"""Recordings that the official packages write: the same drive as bags of ROS 1 and ROS 2, and as MCAP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

pytest.importorskip("mcap")
pytest.importorskip("rosbags")

from mcap.writer import CompressionType, Writer
from rosbags import rosbag1, rosbag2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

BEGIN = 1_700_000_000_123_456_789
JOINTS = ["shoulder", "elbow", "wrist"]
KINDS = ("ros1", "sqlite", "rosbag2", "mcap-ros1", "mcap-ros2")


def jpeg(shade: int) -> bytes:
    """A picture of 16x12 pixels."""
    context: Any = av.CodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt, context.time_base = 16, 12, "yuvj420p", Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(np.full((12, 16, 3), shade, np.uint8), format="rgb24").reformat(
        format="yuvj420p"
    )
    frame.pts = 0
    return b"".join(bytes(one) for one in [*context.encode(frame), *context.encode(None)])


def cloud(k: int) -> np.ndarray[Any, Any]:
    points = np.zeros(k % 4 + 1, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("ring", "<u2")])
    points["x"], points["ring"] = np.arange(len(points)) + k, k
    return points


def messages(store: Any, *, ros1: bool, count: int = 20) -> Iterator[tuple[str, int, Any]]:
    """(topic, time, message) of a drive: joints at 50 Hz, odometry at 20 Hz, pictures at 10 Hz, and more."""
    types: dict[str, Any] = store.types

    def new(name: str, /, **fields: Any) -> Any:
        return types[name](**fields)

    def header(time: int, frame: str = "base_link") -> Any:
        time -= 3_000_000  # it was logged 3 ms later
        stamp = new("builtin_interfaces/msg/Time", sec=time // 10**9, nanosec=time % 10**9)
        return new("std_msgs/msg/Header", stamp=stamp, frame_id=frame, **({"seq": 7} if ros1 else {}))

    def vector(*values: float) -> Any:
        return new("geometry_msgs/msg/Vector3", **dict(zip("xyz", values, strict=True)))

    for k in range(count):
        time = BEGIN + k * 20_000_000
        names = JOINTS if k % 2 else JOINTS[::-1]  # in another order every other time
        values = np.array([k + JOINTS.index(name) / 10 for name in names])
        empty = np.empty(0)
        joints = {"name": names, "position": values, "velocity": values * 2, "effort": empty}
        yield "/joint_states", time, new("sensor_msgs/msg/JointState", header=header(time), **joints)
    for k in range(count // 2):
        time = BEGIN + k * 50_000_000
        yield "/cmd_vel", time, new("geometry_msgs/msg/Twist", linear=vector(k, k / 3, 0), angular=vector(0, 0, -k))
        point = new("geometry_msgs/msg/Point", x=float(k), y=1.0, z=2.0)
        turn = new("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.6, w=0.8)
        pose = new("geometry_msgs/msg/Pose", position=point, orientation=turn)
        covariance = np.arange(36.0) + k
        of_pose = new("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=covariance)
        twist = new("geometry_msgs/msg/Twist", linear=vector(k, 0, 0), angular=vector(0, 0, k))
        of_twist = new("geometry_msgs/msg/TwistWithCovariance", twist=twist, covariance=covariance * 2)
        odometry = {"header": header(time, "odom"), "child_frame_id": "base_link", "pose": of_pose, "twist": of_twist}
        yield "/odom", time, new("nav_msgs/msg/Odometry", **odometry)
        moved = new("geometry_msgs/msg/Transform", translation=vector(k, 2, 3), rotation=turn)
        frames = ["camera", "gripper"] if k % 2 else ["camera"]
        listed = [
            new("geometry_msgs/msg/TransformStamped", header=header(time, "map"), child_frame_id=name, transform=moved)
            for name in frames
        ]
        yield "/tf", time, new("tf2_msgs/msg/TFMessage", transforms=listed)
    for k in range(count // 4):
        time = BEGIN + k * 100_000_000
        image = np.frombuffer(jpeg(k * 20 % 256), np.uint8)
        yield (
            "/camera/compressed",
            time,
            new("sensor_msgs/msg/CompressedImage", header=header(time), format="jpeg", data=image),
        )
        pixels = (np.arange(4 * 6 * 3) + k).astype(np.uint8)
        raw = {"height": 4, "width": 6, "encoding": "bgr8", "is_bigendian": 0, "step": 18, "data": pixels}
        yield "/camera/raw", time, new("sensor_msgs/msg/Image", header=header(time), **raw)
        depth = (np.arange(4 * 6, dtype="<u2") * 1000 + k).view(np.uint8)
        deep = {"height": 4, "width": 6, "encoding": "16UC1", "is_bigendian": 0, "step": 12, "data": depth}
        yield "/camera/depth", time, new("sensor_msgs/msg/Image", header=header(time), **deep)
        points = cloud(k)
        fields = [
            new("sensor_msgs/msg/PointField", name=name, offset=4 * place, datatype=kind, count=1)
            for place, (name, kind) in enumerate([("x", 7), ("y", 7), ("z", 7), ("ring", 4)])
        ]
        lidar = {"height": 1, "width": len(points), "fields": fields, "is_bigendian": False, "point_step": 14}
        lidar |= {"row_step": points.nbytes, "data": np.frombuffer(points.tobytes(), np.uint8), "is_dense": True}
        yield "/lidar", time, new("sensor_msgs/msg/PointCloud2", header=header(time), **lidar)
        yield "/note", time, new("std_msgs/msg/String", data=f"ä{k}")
        yield "/enabled", time, new("std_msgs/msg/Bool", data=bool(k % 2))
        layout = new("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
        array = np.arange(5, dtype=np.float32) + k
        yield "/array", time, new("std_msgs/msg/Float32MultiArray", layout=layout, data=array)


def drive(kind: str, *, count: int = 20) -> tuple[Any, list[tuple[str, int, Any]]]:
    """The types and the messages of a drive, in the order of their times."""
    ros1 = kind in {"ros1", "mcap-ros1"}
    store = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
    if ros1:
        store.register(get_types_from_msg("geometry_msgs/TransformStamped[] transforms", "tf2_msgs/msg/TFMessage"))
    return store, sorted(messages(store, ros1=ros1, count=count), key=lambda one: one[1])


def write(folder: Path, kind: str, *, count: int = 20, name: str = "drive") -> Path:
    """A drive as an official package writes it; the file or folder."""
    store, listed = drive(kind, count=count)
    return {"ros1": _ros1, "sqlite": _rosbag2, "rosbag2": _rosbag2}.get(kind, _mcap)(folder, kind, name, store, listed)


def _ros1(folder: Path, _: str, name: str, store: Any, listed: list[tuple[str, int, Any]]) -> Path:
    path = folder / f"{name}.bag"
    with rosbag1.Writer(path) as writer:
        known: dict[str, Any] = {}
        for topic, time, message in listed:
            kind = message.__msgtype__
            if topic not in known:
                known[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(known[topic], time, store.serialize_ros1(message, kind))
    return path


def _rosbag2(folder: Path, kind: str, name: str, store: Any, listed: list[tuple[str, int, Any]]) -> Path:
    path = folder / name
    plugin = rosbag2.StoragePlugin.SQLITE3 if kind == "sqlite" else rosbag2.StoragePlugin.MCAP
    with rosbag2.Writer(path, version=9, storage_plugin=plugin) as writer:
        known: dict[str, Any] = {}
        for topic, time, message in listed:
            if topic not in known:
                known[topic] = writer.add_connection(topic, message.__msgtype__, typestore=store)
            writer.write(known[topic], time, store.serialize_cdr(message, message.__msgtype__))
    return path


def _mcap(folder: Path, kind: str, name: str, store: Any, listed: list[tuple[str, int, Any]]) -> Path:
    path = folder / f"{name}.mcap"
    ros1 = kind == "mcap-ros1"
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=4000, compression=CompressionType.LZ4)
        writer.start("ros1" if ros1 else "ros2")
        channels: dict[str, int] = {}
        for number, (topic, time, message) in enumerate(listed):
            full = message.__msgtype__
            if topic not in channels:
                text, _ = store.generate_msgdef(full, ros_version=1 if ros1 else 2)
                short = full.replace("/msg/", "/") if ros1 else full
                schema = writer.register_schema(short, "ros1msg" if ros1 else "ros2msg", text.encode())
                channels[topic] = writer.register_channel(topic, "ros1" if ros1 else "cdr", schema)
            data = store.serialize_ros1(message, full) if ros1 else store.serialize_cdr(message, full)
            writer.add_message(channels[topic], time, bytes(data), time, sequence=number)
        writer.finish()
    return path


def json_file(path: Path, messages: list[tuple[str, int, dict[str, Any]]], **options: Any) -> Path:
    """JSON messages without a schema, or with `schemas={topic: schema}`."""
    schemas = options.pop("schemas", {})
    profile: Callable[[], None] | None = options.pop("before_finish", None)
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start()
        channels: dict[str, int] = {}
        for topic, time, message in messages:
            if topic not in channels:
                number = 0
                if topic in schemas:
                    number = writer.register_schema(f"of {topic}", "jsonschema", json.dumps(schemas[topic]).encode())
                channels[topic] = writer.register_channel(topic, "json", number)
            writer.add_message(channels[topic], time, json.dumps(message).encode(), time)
        if profile is not None:
            profile()
        writer.finish()
    return path

"""Recordings that are cut off, damaged or made to mislead: an error of ours, a finding, or the right values."""

from __future__ import annotations

import random
import sqlite3
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidMetadataError,
    MissingDependencyError,
    SeqlakeError,
    ValidationError,
)
from seqlake.formats import mcap

from . import by_hand
from .by_hand import BEGIN

pytest.importorskip("zstandard")

import lz4.frame
import zstandard
from mcap.writer import CompressionType, IndexType, Writer

MAGIC = b"\x89MCAP0\r\n"


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drives")
    paths = {kind: by_hand.write(folder, kind, name=kind, count=12) for kind in ("ros1", "sqlite", "mcap-ros2")}
    paths["sqlite"] = next(paths["sqlite"].glob("*.db3"))
    return paths


def numbers(path: Path, count: int = 50, **options: Any) -> Path:
    return by_hand.json_file(path, [("/x", BEGIN + k, {"v": float(k)}) for k in range(count)], **options)


def record(code: int, content: bytes) -> bytes:
    return struct.pack("<BQ", code, len(content)) + content


def text(one: str | bytes) -> bytes:
    data = one.encode() if isinstance(one, str) else one
    return struct.pack("<I", len(data)) + data


HEADER = record(1, text("") + text("x"))
CHANNEL = record(4, struct.pack("<HH", 1, 0) + text("/x") + text("json") + text(b""))


def sent(time: int, value: float) -> bytes:
    return record(5, struct.pack("<HIQQ", 1, 0, time, time) + b'{"v": %.1f}' % value)


def chunk(content: bytes, compression: str, *, size: int, crc: int = 0) -> bytes:
    head = struct.pack("<QQQI", 0, 9, size, crc)
    return record(6, head + text(compression) + struct.pack("<Q", len(content)) + content)


# ---- cut off
@pytest.mark.parametrize("kind", ["ros1", "mcap-ros2"])
def test_cut_off_anywhere(drives: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """What is whole before the cut is read, in order and right; what is lost is said."""
    path = drives[kind]
    data = path.read_bytes()
    whole = sl.open(path)[kind]["joint_states_position"]
    rng = random.Random(3)
    counts = set()
    for cut in sorted(rng.sample(range(len(data)), 25)):
        short = tmp_path / f"{kind}{path.suffix}"
        short.write_bytes(data[:cut])
        try:
            source = mcap.scan(str(short), topics=["/joint_states"])
        except SeqlakeError:
            continue
        codes = {finding.code for finding in source.check("metadata")}
        assert "mcap-no-summary" in codes
        [row] = sl.scan(source)
        read = row["joint_states_position"]
        counts.add(len(read))
        np.testing.assert_array_equal(read, whole[: len(read)])
    assert len(counts) > (2 if kind == "mcap-ros2" else 0)  # the bag is one chunk


def test_cut_off_sqlite(drives: dict[str, Path], tmp_path: Path) -> None:
    data = drives["sqlite"].read_bytes()
    for cut in (0, 10, 200, len(data) // 2):
        short = tmp_path / "x.db3"
        short.write_bytes(data[:cut])
        with pytest.raises(CorruptFileError):
            sl.open(short).to_arrow()


def test_without_a_summary_all_is_read(tmp_path: Path) -> None:
    one = numbers(tmp_path / "a.mcap", chunk_size=200)
    two = numbers(tmp_path / "b.mcap", chunk_size=200, index_types=IndexType.NONE, use_statistics=False)
    three = numbers(tmp_path / "c.mcap", use_chunking=False)
    for path, code in ((one, set()), (two, {"mcap-no-summary"}), (three, {"mcap-no-summary"})):
        ds = sl.open(path)
        assert ds[path.stem]["x"][:, 0].tolist() == list(range(50))
        assert {finding.code for finding in sl.validate(ds, depth="rows").warnings} & {"mcap-no-summary"} == code


# ---- changed
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", ["ros1", "sqlite", "mcap-ros2"])
def test_bytes_that_were_changed(drives: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """Whatever byte it is: no error of a library, and no endless work."""
    path = drives[kind]
    data = path.read_bytes()
    rng = random.Random(5)
    outcomes = {"error": 0, "read": 0}
    for _ in range(25):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 8])):
            changed[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        other = tmp_path / path.name
        other.write_bytes(changed)
        try:
            ds = sl.scan(mcap.scan(str(other)))
            assert sl.validate(ds, depth="metadata") is not None
            ds.to_arrow()
            outcomes["read"] += 1
        except SeqlakeError:
            outcomes["error"] += 1
    assert sum(outcomes.values()) == 25


def test_a_chunk_that_was_changed_is_never_read(tmp_path: Path) -> None:
    """Its checksum tells, whichever byte of its content it is."""
    path = numbers(tmp_path / "x.mcap", compression=CompressionType.NONE)
    data = path.read_bytes()
    at = data.index(b'{"v": 7.0}')
    path.write_bytes(data[: at + 6] + b"8" + data[at + 7 :])
    with pytest.raises(CorruptFileError, match="checksum"):
        sl.open(path)
    numbers(path, compression=CompressionType.NONE, chunk_size=200)
    data = path.read_bytes()
    at = data.index(b'{"v": 40.0}')
    path.write_bytes(data[: at + 6] + b"8" + data[at + 7 :])
    ds = sl.open(path)
    with pytest.raises(CorruptFileError, match="checksum"):
        _ = ds["x"]["x"]
    assert "mcap-chunk" in {finding.code for finding in sl.validate(ds, depth="rows").errors}


# ---- made to mislead
def test_chunks_that_unpack_to_more_than_they_say(tmp_path: Path) -> None:
    """A bomb of 4 GiB in a few kilobytes: never more than what was said is unpacked, nor more than a chunk may be."""
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    for name, content, size in (
        ("zstd", bomb, 1000),
        ("lz4", lz4.frame.compress(bytes(64 << 20)), 1000),
        ("zstd", bomb, 1 << 62),
        ("", b"abc", 1 << 40),
        ("lzma", b"abc", 3),
    ):
        path = tmp_path / "x.mcap"
        body = HEADER + CHANNEL + chunk(content, name, size=size) + sent(5, 1.0)
        path.write_bytes(MAGIC + body + record(15, bytes(4)) + record(2, bytes(20)) + MAGIC)
        tracemalloc.start()
        source = mcap.scan(str(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20, name
        assert "mcap-chunk" in {finding.code for finding in source.check("metadata")}
        assert sl.scan(source)["x"]["x"].tolist() == [[1.0]]  # the message behind it is there


def test_sizes_beyond_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    for tail in (
        struct.pack("<BQ", 5, 2**63),
        struct.pack("<BQ", 6, 2**64 - 1),
        record(6, struct.pack("<QQQI", 0, 9, 3, 0) + struct.pack("<I", 2**32 - 1)),
        record(3, struct.pack("<H", 1) + struct.pack("<I", 2**31)),
        record(5, b"short"),
    ):
        path.write_bytes(MAGIC + HEADER + CHANNEL + sent(5, 1.0) + tail)
        source = mcap.scan(str(path))
        errors = [finding for finding in source.check("metadata") if finding.severity == "error"]
        assert errors
        assert all("Traceback" not in finding.message for finding in errors)


def summarized(path: Path, change: Callable[[bytearray, int], None]) -> Path:
    """A whole file with its summary changed and its checksum set right."""
    numbers(path, chunk_size=300)
    data = bytearray(path.read_bytes())
    end = len(data) - 8 - 20 - 9
    start = struct.unpack_from("<Q", data, end + 9)[0]
    change(data, start)
    crc = zlib.crc32(data[start : end + 9 + 16])
    struct.pack_into("<I", data, end + 9 + 16, crc)
    path.write_bytes(data)
    return path


def indexes(data: bytes, start: int) -> list[int]:
    """Where the contents of the chunk indexes begin."""
    places, at = [], start
    while at < len(data) - 37:
        code, length = struct.unpack_from("<BQ", data, at)
        if code == 8:
            places.append(at + 9)
        at += 9 + length
    return places


@pytest.mark.parametrize("offset", [0, 1, 2**40, 2**64 - 1])
def test_a_summary_that_leads_elsewhere(tmp_path: Path, offset: int) -> None:
    """The file is read from its beginning instead, and that is said."""

    def change(data: bytearray, start: int) -> None:
        struct.pack_into("<Q", data, indexes(data, start)[1] + 16, offset)

    path = summarized(tmp_path / "x.mcap", change)
    ds = sl.open(path)
    assert ds["x"]["x"][:, 0].tolist() == list(range(50))
    assert "mcap-no-summary" in {finding.code for finding in sl.validate(ds).warnings}


def test_a_chunk_that_is_listed_often_is_read_once(tmp_path: Path) -> None:
    def change(data: bytearray, start: int) -> None:
        first, *others = indexes(data, start)
        for other in others:
            data[other : other + 32] = data[first : first + 32]

    ds = sl.open(summarized(tmp_path / "x.mcap", change))
    assert ds["x"]["x"][:, 0].tolist() == list(range(50))
    assert any("overlap" in finding.message for finding in sl.validate(ds).warnings)


def test_times_that_no_clock_says(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    path.write_bytes(MAGIC + HEADER + CHANNEL + sent(2**64 - 1, 1.0) + sent(2**63, 1.0))
    with pytest.raises(CorruptFileError, match="times beyond"):
        sl.open(path)


def test_times_that_go_back_are_put_in_order_and_said(tmp_path: Path) -> None:
    path = by_hand.json_file(tmp_path / "x.mcap", [("/x", BEGIN + k, {"v": float(k)}) for k in (0, 3, 1, 2, 4)])
    ds = sl.open(path)
    assert ds["x"]["x"][:, 0].tolist() == [0, 1, 2, 3, 4]
    [finding] = [one for one in sl.validate(ds, depth="rows").warnings if one.code == "mcap-times"]
    assert "2 of 5 messages" in finding.message


def test_a_topic_of_two_schemas_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        for k, name in enumerate(["a", "b"]):
            schema = writer.register_schema(name, "jsonschema", b"{}")
            channel = writer.register_channel("/x", "json", schema)
            writer.add_message(channel, k, b'{"v": 1.5}', k)
        writer.finish()
    ds = sl.open(path)
    assert ds["x"]["x"].tolist() == [[1.5]]
    assert "mcap-file" in {finding.code for finding in sl.validate(ds).warnings}


def test_recordings_that_disagree(tmp_path: Path) -> None:
    by_hand.json_file(tmp_path / "a.mcap", [("/x", 1, {"v": 1.5}), ("/y", 1, {"w": 1.0})])
    by_hand.json_file(tmp_path / "b.mcap", [("/x", 1, {"v": "text"})])
    ds = sl.open(tmp_path)
    table = ds.to_arrow()
    assert table["x"].to_pylist() == [[[1.5]], None]
    assert table["y"].to_pylist() == [[[1.0]], None]
    assert "mcap-schema" in {finding.code for finding in sl.validate(ds).warnings}


def test_pictures_that_are_not_what_they_say(tmp_path: Path) -> None:
    from rosbags import rosbag1
    from rosbags.typesys import Stores, get_typestore

    store: Any = get_typestore(Stores.ROS1_NOETIC)
    new = store.types
    stamp = new["builtin_interfaces/msg/Time"](sec=1, nanosec=0)
    header = new["std_msgs/msg/Header"](seq=0, stamp=stamp, frame_id="")
    for size in ((4, 6, 18), (2**31, 2**31, 1), (4, 6, 2**32 - 1), (0, 0, 0), (10, 6, 18)):
        path = tmp_path / f"{size[0]}-{size[2]}.bag"
        with rosbag1.Writer(path) as writer:
            connection = writer.add_connection("/cam", "sensor_msgs/msg/Image", typestore=store)
            raw = {"encoding": "rgb8", "is_bigendian": 0, "data": np.zeros(72, np.uint8)}
            for time, (height, width, step) in enumerate([(4, 6, 18), size]):
                one = new["sensor_msgs/msg/Image"](header=header, height=height, width=width, step=step, **raw)
                data = store.serialize_ros1(one, "sensor_msgs/msg/Image")
                writer.write(connection, time + 1, data)
        ds = sl.open(path)
        if size == (4, 6, 18):
            assert len(ds[path.stem]["cam"]) == 2
        else:
            with pytest.raises(CorruptFileError, match="picture"):
                ds.to_arrow()


def test_names_in_a_bag_stay_in_it(tmp_path: Path) -> None:
    """A `metadata.yaml` that names files elsewhere: they are missing."""
    secret = numbers(tmp_path / "secret.mcap")
    bag = tmp_path / "bag"
    bag.mkdir()
    numbers(bag / "bag_0.mcap", count=2)
    (bag / "metadata.yaml").write_text(f"relative_file_paths:\n  - ../secret.mcap\n  - {secret}\n  - bag_0.mcap\n")
    ds = sl.open(bag)
    assert len(ds["bag"]["x"]) == 2
    assert len([one for one in sl.validate(ds).errors if one.code == "mcap-missing-file"]) == 2


def test_databases_that_are_no_bags(tmp_path: Path) -> None:
    path = tmp_path / "x.db3"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE VIEW messages AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT x FROM c"
        )
        database.execute("CREATE TABLE topics (id, name, type, serialization_format)")
    database.close()
    with pytest.raises(CorruptFileError, match="no tables"):
        sl.open(path)


@pytest.mark.parametrize("ending", [".mcap", ".bag", ".db3"])
def test_files_that_are_something_else(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    for content in (b"", b"hello", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError):
            sl.open(path)
    with pytest.raises(DatasetNotFoundError):
        sl.open(tmp_path / f"missing{ending}")


def test_a_note_of_ours_that_is_forged(tmp_path: Path) -> None:
    """Whoever says that a file was written from a dataset: it is read as any recording is, or refused."""
    path = tmp_path / "x.mcap"
    for note in (
        {"format": "1", "schema": "{}", "row": ""},
        {"format": "1", "schema": "[" * 5000, "row": ""},
        {"format": "1", "schema": '{"arrow": "AAAA", "types": {}, "topics": {}}', "row": "AAAA"},
        {"format": "9", "schema": "", "row": ""},
    ):
        with path.open("wb") as file:
            writer = Writer(file)
            writer.start()
            writer.add_metadata("seqlake", note)
            writer.add_message(writer.register_channel("/x", "json", 0), 1, b'{"v": 1.5}', 1)
            writer.finish()
        assert sl.open(path)["x"]["x"].tolist() == [[1.5]]


def test_other_datasets_are_left_alone(tmp_path: Path) -> None:
    """A folder of ours that holds recordings as files is ours."""
    numbers(tmp_path / "a.mcap")
    ds = sl.create(tmp_path / "ds", {"log": sl.ColumnType("mcap")})
    ds.append([{"sequence_id": "a", "log": sl.File(tmp_path / "a.mcap")}])
    assert not mcap.matches(str(tmp_path / "ds"))
    assert not mcap.matches(str(tmp_path / "ds" / "mixtrain.json"))
    assert not mcap.matches(str(tmp_path / "nothing"))
    assert mcap.matches(str(tmp_path / "a.mcap"))


def test_memory_is_that_of_a_chunk_and_the_cells(tmp_path: Path) -> None:
    """A file of 64 MB, of which one small topic is read: chunks are unpacked one at a time."""
    from mcap.writer import Writer as Plain

    path = tmp_path / "x.mcap"
    with path.open("wb") as file:
        writer = Plain(file, chunk_size=1 << 20, compression=CompressionType.NONE)
        writer.start()
        large, small = (writer.register_channel(name, "json", 0) for name in ("/large", "/small"))
        blob = b'{"s": "%s"}' % (b"x" * (1 << 20))
        for k in range(64):
            writer.add_message(large, k, blob, k)
            writer.add_message(small, k, b'{"v": 1.5}', k)
        writer.finish()
    tracemalloc.start()
    ds = sl.scan(path, topics=["/small"])
    assert len(ds["x"]["small"]) == 64
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_mappings_in_files_that_are_none(tmp_path: Path) -> None:
    numbers(tmp_path / "x.mcap")
    (tmp_path / "map.json").write_text("{")
    with pytest.raises(InvalidMetadataError):
        sl.scan(tmp_path / "x.mcap", map=tmp_path / "map.json")
    (tmp_path / "map.toml").write_text('v = "/x.v"')
    assert sl.scan(tmp_path / "x.mcap", map=tmp_path / "map.toml")["x"]["v"].shape == (50, 1)


KNOWN = [
    *(f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "PointCloud2", "JointState")),
    *(f"foxglove.{name}" for name in ("CompressedVideo", "PointCloud", "FrameTransforms")),
    "tf2_msgs/msg/TFMessage",
]
FIELDS = [
    "float64 data",
    "string data\nstring width\nstring format",
    "float64[] fields\nfloat64[] transforms",
    "string[] name",
]
FIELDS += ["float64[] name\nfloat64[] position", "uint8[] data\nint64 width\nint64 height\nfloat64 encoding\nbool step"]


@pytest.mark.parametrize("name", KNOWN)
def test_names_of_known_types_with_other_fields(tmp_path: Path, name: str) -> None:
    """Somebody's own `sensor_msgs/Image`: columns, or the reason why it is none, or an error of ours."""
    for number, fields in enumerate(FIELDS):
        path = tmp_path / f"{number}.mcap"
        with path.open("wb") as file:
            writer = Writer(file)
            writer.start()
            schema = writer.register_schema(name, "ros2msg", fields.encode())
            channel = writer.register_channel("/x", "cdr", schema)
            beside = writer.register_channel("/y", "json", 0)
            for k in range(3):
                writer.add_message(channel, k, bytes([0, 1, 0, 0]) + bytes(64), k)
                writer.add_message(beside, k, b'{"v": 1.5}', k)
            writer.finish()
        ds = sl.open(path)
        assert len(ds[str(number)]["y"]) == 3
        for source in ("/x", "/x.data", {"source": "/x", "frame": "a"}, {"source": "/x.position", "names": ["a"]}):
            try:
                sl.scan(path, map={"c": source}).to_arrow()
            except SeqlakeError:
                continue
        try:
            ds.to_arrow()
        except SeqlakeError:
            continue


def test_a_note_of_ours_that_lies(tmp_path: Path) -> None:
    """Columns that no topic and no row has, roles that do not fit: read as any recording is, or an error of ours."""
    import base64
    import json

    import pyarrow as pa

    def coded(schema: pa.Schema) -> str:
        return base64.b64encode(schema.serialize()).decode()

    row = pa.BufferOutputStream()
    table = pa.table({"sequence_id": ["a"]})
    with pa.ipc.new_stream(row, table.schema) as stream:
        stream.write_table(table)
    signal = pa.list_(pa.list_(pa.float64(), 1))
    for kind, types, topics in (
        (pa.string(), {}, {}),
        (pa.string(), {}, {"c": {"topic": "/x", "role": "signal", "paths": ["v"]}}),
        (signal, {"c": {"type": "trajectory"}}, {"c": {"topic": "/nowhere", "role": "signal", "paths": ["v"]}}),
        (signal, {"c": {"type": "trajectory"}}, {"c": {"topic": "/x", "role": "signal", "paths": ["w.z"]}}),
        (signal, {"c": {"type": "trajectory"}}, {"c": {"topic": "/x", "role": "image", "paths": [""]}}),
        (pa.binary(), {"c": {"type": "video", "inline": True}}, {"c": {"topic": "/x", "role": "video", "paths": [""]}}),
        (pa.list_(pa.string()), {}, {"c": {"topic": "/x", "role": "values", "paths": ["v"]}}),
        (
            pa.list_(pa.binary()),
            {"c": {"type": "image", "frames": "bytes"}},
            {"c": {"topic": "/x", "role": "image", "paths": [""]}},
        ),
    ):
        arrow = coded(pa.schema([("sequence_id", pa.string()), ("c", kind)]))
        schema = json.dumps({"arrow": arrow, "types": types, "topics": topics})
        note = {"format": "1", "schema": schema, "row": base64.b64encode(row.getvalue()).decode()}
        path = tmp_path / "x.mcap"
        with path.open("wb") as file:
            writer = Writer(file)
            writer.start()
            writer.add_metadata("seqlake", note)
            writer.add_message(writer.register_channel("/x", "json", 0), 1, b'{"v": 1.5}', 1)
            writer.finish()
        try:
            read = sl.open(path).to_arrow()
            assert read.num_rows == 1
        except SeqlakeError:
            continue


def test_what_is_not_installed_is_named(drives: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from seqlake.formats.mcap import ros

    for cached in (ros._standard, ros._parsed_msg):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "rosbags.typesys", None)
    with pytest.raises(MissingDependencyError, match=r"seqlake\[mcap\]"):
        sl.open(drives["ros1"])
    assert mcap.matches(str(drives["ros1"]))


def test_a_rate_over_a_clock_that_was_set_is_refused(tmp_path: Path) -> None:
    path = by_hand.json_file(tmp_path / "x.mcap", [("/x", 0, {"v": 1.0}), ("/x", BEGIN, {"v": 2.0})])
    with pytest.raises(ValidationError, match="steps at 30 a second"):
        sl.scan(path, fps=30).to_arrow()

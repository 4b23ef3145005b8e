"""Messages of every standard type of ROS, of protobuf and JSON, against the official decoders."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, InvalidMetadataError, SeqlakeError
from seqlake.formats.mcap import protos, schemas
from seqlake.formats.mcap.logs import Topic

from . import by_hand
from .by_hand import BEGIN

pytest.importorskip("mcap_protobuf")

from mcap_protobuf.writer import Writer as ProtobufWriter
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore


def value(store: Any, description: Any, rng: random.Random, depth: int = 0) -> Any:
    """A random value of a field, as rosbags holds it."""
    kind, inner = description
    if kind == Nodetype.NAME:
        return message(store, inner, rng, depth + 1)
    if kind == Nodetype.BASE:
        return base(inner[0], rng)
    one, length = inner
    count = length if kind == Nodetype.ARRAY else rng.randint(0, 3)
    values = [value(store, one, rng, depth) for _ in range(count)]
    if one[0] == Nodetype.BASE and one[1][0] != "string":
        return np.array(values, {"byte": "uint8", "char": "uint8"}.get(one[1][0], one[1][0]))
    return values


def base(name: str, rng: random.Random) -> Any:
    if name == "string":
        return rng.choice(["", "a", "ünï", "x" * 9])
    if name == "bool":
        return rng.random() < 0.5
    if name.startswith("float"):
        return float(np.dtype(name).type(rng.gauss(0, 1e3)))
    if name == "byte":
        return rng.randint(0, 127)  # rosbags has it signed, ROS 2 has not
    limits = np.iinfo("uint8" if name == "char" else name)
    return rng.randint(int(limits.min), int(limits.max))


def message(store: Any, name: str, rng: random.Random, depth: int = 0) -> Any:
    fields = store.fielddefs[name][1]
    if name.startswith("builtin_interfaces/msg/"):
        return store.types[name](sec=rng.randint(0, 2**31 - 1), nanosec=rng.randint(0, 10**9 - 1))
    return store.types[name](**{label: value(store, one, rng, depth) for label, one in fields})


STORES: list[Any] = [get_typestore(Stores.ROS2_HUMBLE), get_typestore(Stores.ROS1_NOETIC)]


def constants_of(name: str) -> Any:
    for store in STORES:
        if name in store.fielddefs:
            yield from store.fielddefs[name][0]


def plain(one: Any) -> Any:
    """A message of rosbags in plain values."""
    if hasattr(one, "__msgtype__"):
        if one.__msgtype__ in {"builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration"}:
            return one.sec * 10**9 + one.nanosec
        constants = {name for name, _, _ in constants_of(one.__msgtype__)}
        names = [name for name in one.__dataclass_fields__ if name not in constants and not name.startswith("__")]
        names = [name for name in names if name != "structure_needs_at_least_one_member"]
        return {name: plain(getattr(one, name)) for name in names}
    if isinstance(one, np.ndarray):
        return one.tolist()
    return [plain(item) for item in one] if isinstance(one, list) else one


def listed(one: Any) -> Any:
    """What our decoder gives, comparable."""
    if isinstance(one, dict):
        return {name: listed(item) for name, item in one.items() if name != "structure_needs_at_least_one_member"}
    if isinstance(one, np.ndarray):
        return one.tolist()
    return [listed(item) for item in one] if isinstance(one, list) else one


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("ros1", [True, False], ids=["ros1", "cdr"])
def test_every_standard_type(*, ros1: bool) -> None:
    store: Any = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
    rng = random.Random(11)
    names = sorted(store.fielddefs)
    assert len(names) > 100
    for name in names:
        if name.startswith("builtin_interfaces/"):
            continue
        sent = message(store, name, rng)
        text, _ = store.generate_msgdef(name, ros_version=1 if ros1 else 2)
        encoding = "ros1" if ros1 else "cdr"
        topic = Topic(name="/x", type=name, encoding=encoding, form=f"ros{2 - ros1}msg", schema=text.encode())
        data = bytes(store.serialize_ros1(sent, name) if ros1 else store.serialize_cdr(sent, name))
        decoder = schemas.decoder_of(topic, None)
        assert listed(decoder.decode(memoryview(data))) == plain(sent), name
        for cut in {len(data) // 2, len(data) - 1} - {len(data)}:
            if 0 <= cut < len(data):
                _cut(decoder, data[:cut], plain(sent))


def _cut(decoder: Any, data: bytes, sent: Any) -> None:
    """Cut off, a message is an error; but for the padding at its end, which nothing needs."""
    try:
        assert listed(decoder.decode(memoryview(data))) == sent
    except CorruptFileError:
        return


def test_big_endian_cdr() -> None:
    store: Any = get_typestore(Stores.ROS2_HUMBLE)
    name = "sensor_msgs/msg/Imu"
    sent = message(store, name, random.Random(1))
    data = bytes(store.serialize_cdr(sent, name, little_endian=False))
    topic = Topic(name="/x", type=name, encoding="cdr", form="ros2msg", schema=b"")
    assert listed(schemas.decoder_of(topic, None).decode(memoryview(data))) == plain(sent)


def test_idl() -> None:
    text = """module my_pkg { module msg {
      struct Sub { double a; };
      struct Main { uint8 flags; sequence<double> values; my_pkg::msg::Sub sub; string label; double fixed[3]; };
    }; };"""
    from rosbags.typesys import get_types_from_idl

    store: Any = get_typestore(Stores.EMPTY)
    store.register(get_types_from_idl(text))
    new = store.types
    sent = new["my_pkg/msg/Main"](
        flags=3, values=np.array([1.5, 2.5]), sub=new["my_pkg/msg/Sub"](a=7.0), label="x", fixed=np.arange(3.0)
    )
    data = bytes(store.serialize_cdr(sent, "my_pkg/msg/Main"))
    topic = Topic(name="/x", type="my_pkg/msg/Main", encoding="cdr", form="ros2idl", schema=text.encode())
    assert listed(schemas.decoder_of(topic, None).decode(memoryview(data))) == plain(sent)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("Missing x\n", "does not define it"),
        ("float64\n", "cannot be read"),
        ("\0\1", "cannot be read"),
        ("", "does not define"),
    ],
)
def test_definitions_that_are_none(definition: str, why: str) -> None:
    topic = Topic(name="/x", type="a/msg/B", encoding="cdr", form="ros2msg", schema=definition.encode())
    with pytest.raises(InvalidMetadataError, match=why):
        schemas.decoder_of(topic, None)


def test_a_type_inside_itself_is_left_out() -> None:
    text = "float64 v\nNode[] inner\nOther o\n" + "=" * 80 + "\nMSG: a/Other\nNode back\nfloat64 w\n"
    topic = Topic(name="/x", type="a/Node", encoding="ros1", form="ros1msg", schema=text.encode())
    decoder = schemas.decoder_of(topic, None)
    assert set(decoder.kind.fields) == {"v", "o"}
    assert set(decoder.kind.fields["o"].fields) == {"w"}  # type: ignore[union-attr]
    with pytest.raises(CorruptFileError):
        decoder.decode(memoryview(bytes(1000)))


def test_types_that_double_are_bounded() -> None:
    """2 ** 40 fields of no bytes: neither the plan nor a message walks through them."""
    blocks = [f"N{k + 1} a\nN{k + 1} b\n" for k in range(40)] + ["Empty e\n", ""]
    names = ["a/N0", *(f"a/N{k}" for k in range(1, 41)), "a/Empty"]
    text = blocks[0] + "".join(
        "=" * 80 + f"\nMSG: {name}\n{block}" for name, block in zip(names[1:], blocks[1:], strict=True)
    )
    topic = Topic(name="/x", type="a/N0", encoding="ros1", form="ros1msg", schema=text.encode())
    decoder = schemas.decoder_of(topic, None)
    assert decoder.kind
    with pytest.raises(CorruptFileError):
        decoder.decode(memoryview(b""))


# ---- protobuf and JSON
def proto(name: str, data: bytes) -> Any:
    return schemas.message_class(name, data)


def test_protobuf_of_all_kinds(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    file = FileDescriptorProto(name="robot.proto", package="robot", syntax="proto3")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="a", number=1, type=1, label=1)
    state = file.message_type.add(name="State")
    mode = file.enum_type.add(name="Mode")
    mode.value.add(name="IDLE", number=0)
    mode.value.add(name="RUN", number=5)
    for number, (name, kind, label) in enumerate(
        [("x", 1, 1), ("f", 2, 3), ("n", 18, 1), ("s", 9, 1), ("raw", 12, 1), ("many", 9, 3)], 1
    ):
        state.field.add(name=name, number=number, type=kind, label=label)
    state.field.add(name="mode", number=20, type=14, type_name=".robot.Mode", label=1)
    state.field.add(name="inner", number=21, type=11, type_name=".robot.Inner", label=3)
    state.field.add(name="self", number=22, type=11, type_name=".robot.State", label=1)
    whole = FileDescriptorSet(file=[file]).SerializeToString()
    new, sub = proto("robot.State", whole), proto("robot.Inner", whole)
    path = tmp_path / "x.mcap"
    sent = [
        new(
            x=k / 3,
            f=[k, 2],
            n=-k,
            s=f"s{k}",
            raw=bytes([k]),
            many=["a"] * k,
            mode=5 * (k % 2),
            inner=[{"a": float(i)} for i in range(k)],
        )
        for k in range(4)
    ]
    assert sub
    with path.open("wb") as out, ProtobufWriter(out) as writer:
        for k, one in enumerate(sent):
            writer.write_message("/state", one, BEGIN + k, BEGIN + k)
    ds = sl.open(path)
    row = ds["x"]
    assert row["state_x"][:, 0].tolist() == [one.x for one in sent]
    np.testing.assert_array_equal(row["state_f"], [list(one.f) for one in sent])
    assert row["state_n"][:, 0].tolist() == [one.n for one in sent]
    assert list(row["state_s"]) == [one.s for one in sent]
    assert row["state_mode"][:, 0].tolist() == [0, 5, 0, 5]
    assert ds.schema["state_mode"].type.get("labels") == {"0": "IDLE", "5": "RUN"}
    table = ds.select("state_raw", "state_many", "state_inner").to_arrow()
    assert table["state_raw"][0].as_py() == [one.raw for one in sent]
    assert table["state_many"][0].as_py() == [list(one.many) for one in sent]
    assert table["state_inner"][0].as_py() == [[[i.a] for i in one.inner] for one in sent]
    assert not sl.validate(ds, depth="rows").errors


@pytest.mark.parametrize(("codec", "encoder", "said"), [("h264", "libx264", "h264"), ("hevc", "libx265", "h265")])
def test_packets_of_video_become_a_video(tmp_path: Path, codec: str, encoder: str, said: str) -> None:
    """Written by the official writer with Foxglove's schema, after a lost keyframe: none is encoded again."""
    packets = encoded(encoder, 24)
    new = proto(protos.VIDEO, protos.picture_schema(protos.VIDEO))
    path = tmp_path / "x.mcap"
    with path.open("wb") as out, ProtobufWriter(out) as writer:
        for k, data in enumerate(packets[2:], 2):  # a camera that was switched on before the recording
            time = BEGIN + k * 10**9 // 30
            one = protos.stamped(new(data=data, format=said, frame_id="cam"), time)
            writer.write_message("/cam", one, time, time)
    ds = sl.open(path)
    kind = ds.schema["cam"].type
    assert (kind.type, kind.get("codec"), kind.inline) == ("video", codec, True)
    row = ds["x"]
    with av.open(io.BytesIO(b"".join(packets)), format=codec) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    begin = 8  # the first keyframe that is there
    assert len(row["cam"]) == len(frames) - begin == len(row["cam_time"])
    assert row["cam_time"].tolist() == [BEGIN + k * 10**9 // 30 for k in range(begin, 24)]
    for k in (0, 3, 15):
        assert abs(int(row["cam"][k].mean()) - int(frames[k + begin].mean())) <= 1
    report = sl.validate(ds, depth="decode")
    assert not report.errors
    [finding] = [one for one in report.warnings if one.code == "mcap-keyframe"]
    assert "6 of 22 packets" in finding.message


def encoded(encoder: str, count: int) -> list[bytes]:
    """Packets of one frame each, a keyframe every eight, without frames that refer to later ones."""
    context: Any = av.CodecContext.create(encoder, "w")
    context.width, context.height, context.pix_fmt, context.framerate = 64, 48, "yuv420p", 30
    context.options = {"g": "8", "bf": "0", "tune": "zerolatency"}
    if encoder == "libx265":
        context.options = {"x265-params": "bframes=0:keyint=8:min-keyint=8:log-level=none", "tune": "zerolatency"}
    packets: list[bytes] = []
    for k in range(count):
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 10 * k, np.uint8), format="rgb24")
        packets += [bytes(one) for one in context.encode(frame.reformat(format="yuv420p"))]
    return packets + [bytes(one) for one in context.encode(None)]


def test_json_by_its_schema_and_without(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "stamp": {"type": "object", "properties": {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}},
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "ok": {"type": "boolean"},
        },
    }
    sent = [{"stamp": {"sec": k, "nsec": 5}, "n": 2**53 + k, "x": k, "raw": "AAE=", "ok": True} for k in range(3)]
    free = [{"p": [k, k / 2], "q": {"a": 1, "b": k}, "t": "x"} for k in range(3)]
    messages = [("/s", BEGIN + k, one) for k, one in enumerate(sent)]
    messages += [("/f", BEGIN + k, one) for k, one in enumerate(free)]
    ds = sl.open(by_hand.json_file(tmp_path / "x.mcap", messages, schemas={"/s": schema}))
    row = ds["x"]
    assert row["s_n"][:, 0].tolist() == [one["n"] for one in sent]
    assert row["s_x"].dtype == np.float64
    assert ds.select("s_raw").to_arrow()["s_raw"][0].as_py() == [b"\0\1"] * 3
    np.testing.assert_array_equal(row["f_p"], [one["p"] for one in free])
    np.testing.assert_array_equal(row["f_q"], [[1, k] for k in range(3)])
    header = sl.scan(tmp_path / "x.mcap", stamp="header")["x"]
    assert header["s_time"].tolist() == [k * 10**9 + 5 for k in range(3)]


@pytest.mark.parametrize("text", ["[1]", "{", '{"v": "x"}', '{"v": {}}', json.dumps({"v": 1})[:-1], "[" * 3000])
def test_json_messages_that_are_none(tmp_path: Path, text: str) -> None:
    from mcap.writer import Writer

    path = tmp_path / "x.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel("/x", "json", 0)
        for k, data in enumerate(['{"v": 1.5}', text]):
            writer.add_message(channel, k, data.encode(), k)
        writer.finish()
    ds = sl.open(path)
    with pytest.raises(CorruptFileError, match="topic /x, message at 1 ns"):
        _ = ds["x"]["x"]
    assert "mcap-message" in {finding.code for finding in sl.validate(ds, depth="rows").errors}


@pytest.mark.parametrize("encoding", ["", "flatbuffer", "cbor"])
def test_other_encodings_are_said(tmp_path: Path, encoding: str) -> None:
    from mcap.writer import Writer

    path = tmp_path / "x.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("a", "", b"")
        writer.add_message(writer.register_channel("/other", encoding, schema), 1, b"x", 1)
        writer.add_message(writer.register_channel("/x", "json", 0), 1, b'{"v": 1}', 1)
        writer.finish()
    report = sl.validate(sl.open(path))
    assert any("/other" in note.message and "encoded as" in note.message for note in report.notes)


def test_depth_of_floats_is_metres(tmp_path: Path) -> None:
    """`32FC1` of ROS: bit for bit, 0 in place of NaN and infinity, where nothing was measured."""
    from rosbags import rosbag2
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    depth = np.linspace(0.3, 4, 24, dtype="<f4").reshape(4, 6)
    depth[0, :2] = np.nan, np.inf
    with rosbag2.Writer(tmp_path / "drive", version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/depth", "sensor_msgs/msg/Image", typestore=store)
        for k in range(3):
            stamp = store.types["builtin_interfaces/msg/Time"](sec=k, nanosec=0)
            header = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="c")
            image = store.types["sensor_msgs/msg/Image"](
                header=header, height=4, width=6, encoding="32FC1", is_bigendian=0, step=24,
                data=(depth + np.float32(k)).view(np.uint8).reshape(-1),
            )  # fmt: skip
            writer.write(topic, k * 10**9, store.serialize_cdr(image, "sensor_msgs/msg/Image"))
    [row] = sl.scan(tmp_path / "drive")
    for k in range(3):
        expected = np.nan_to_num(depth + np.float32(k), nan=0, posinf=0)
        np.testing.assert_array_equal(np.asarray(row["depth"][k])[..., 0], expected)


# ---- Bayer patterns

PATTERNS = {"rggb": "RG/GB", "bggr": "BG/GR", "gbrg": "GB/RG", "grbg": "GR/BG"}


def pictures(folder: Path, codes: list[np.ndarray], encoding: str, *, big: bool = False) -> Any:
    """The column of a bag of ROS 2 with these codes as `sensor_msgs/Image`; rows have three bytes more."""
    from rosbags import rosbag2

    store = get_typestore(Stores.ROS2_HUMBLE)
    with rosbag2.Writer(folder, version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/cam", "sensor_msgs/msg/Image", typestore=store)
        for k, one in enumerate(codes):
            stamp = store.types["builtin_interfaces/msg/Time"](sec=k, nanosec=0)
            header = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="c")
            stored = one.astype(one.dtype.newbyteorder(">" if big else "<"))
            rows = np.pad(stored.view(np.uint8).reshape(len(one), -1), ((0, 0), (0, 3)), constant_values=77)
            image = store.types["sensor_msgs/msg/Image"](
                header=header, height=one.shape[0], width=one.shape[1], encoding=encoding, is_bigendian=int(big),
                step=rows.shape[1], data=rows.reshape(-1),
            )  # fmt: skip
            writer.write(topic, k * 10**9, store.serialize_cdr(image, "sensor_msgs/msg/Image"))
    return sl.scan(folder)


def meant(codes: np.ndarray, colours: str, y: int, x: int, colour: str) -> float:
    """The mean of the codes of a colour among the nearest pixels that have it, pixel by pixel as a textbook has it."""
    tile = colours.split("/")
    if tile[y % 2][x % 2] == colour:
        return float(codes[y, x])
    near = [(y + dy, x + dx) for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    of_colour = [place for place in near if tile[place[0] % 2][place[1] % 2] == colour]
    if not of_colour:
        of_colour = [(y + dy, x + dx) for dy in (-1, 1) for dx in (-1, 1)]
    return float(np.floor(np.mean([codes[place] for place in of_colour]) + 0.5))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bayer_patterns_become_colours(tmp_path: Path, pattern: str) -> None:
    codes = np.random.default_rng(1).integers(0, 256, (7, 10)).astype(np.uint8)
    flat = np.zeros((6, 8), np.uint8)
    for number, letter in enumerate("RGB"):
        tile = np.array([[one == letter for one in row] for row in PATTERNS[pattern].split("/")])
        flat[np.tile(tile, (3, 4))] = 50 * (number + 1)
    [row] = pictures(tmp_path / "a", [codes], f"bayer_{pattern}8")
    [one] = row["cam"]
    for y in range(1, 6):
        for x in range(1, 9):
            assert np.asarray(one)[y, x].tolist() == [meant(codes, PATTERNS[pattern], y, x, c) for c in "RGB"]
    [row] = pictures(tmp_path / "b", [flat], f"bayer_{pattern}8")
    np.testing.assert_array_equal(np.asarray(row["cam"][0]), np.broadcast_to([50, 100, 150], (6, 8, 3)))


@pytest.mark.parametrize("big", [False, True])
def test_bayer_patterns_of_16_bits_stay_codes(tmp_path: Path, *, big: bool) -> None:
    codes = np.random.default_rng(1).integers(0, 4096, (5, 8)).astype(np.uint16)
    ds = pictures(tmp_path / "a", [codes], "bayer_grbg16", big=big)
    kind = ds.schema["cam"].type
    assert kind is not None
    assert (kind.get("bayer"), kind.get("format")) == ("grbg", "png")
    cell = ds.to_arrow()["cam"][0].as_py()[0]
    from PIL import Image

    stored = Image.open(io.BytesIO(cell))
    assert stored.mode.startswith("I")
    np.testing.assert_array_equal(np.array(stored), codes)


# ---- XCDR2

MIXED = """uint8 flag
float64 wide
string name
int64[] counts
string[] names
pkg/Point[2] corners
================================================================================
MSG: pkg/Point
float64 x
uint8 kind
"""
# The same message as pycdr2 1.0.0 (of Eclipse Cyclone DDS) writes it in both versions.
FIRST = bytes.fromhex(
    "000100000700000000000000000000000000f83f06000000c3bc6ec3af00000003000000010000000000"
    "0000feffffffffffffff0300000000000000020000000200000061000000030000006263000000000000"
    "000000000000044001000000000000000000000000000cc002"
)
SECOND = bytes.fromhex(
    "0007000007000000000000000000f83f06000000c3bc6ec3af0000000300000001000000000000"
    "00feffffffffffffff030000000000000013000000020000000200000061000000030000006263"
    "0000150000000000000000000440010000000000000000000cc002"
)
MESSAGE = {
    "flag": 7, "wide": 1.5, "name": "ünï", "counts": [1, -2, 3], "names": ["a", "bc"],
    "corners": [{"x": 2.5, "kind": 1}, {"x": -3.5, "kind": 2}],
}  # fmt: skip


def mixed() -> Any:
    topic = Topic(name="/x", type="pkg/msg/Mixed", encoding="cdr", form="ros2msg", schema=MIXED.encode())
    return schemas.decoder_of(topic, None)


def test_plain_xcdr2_is_what_cyclone_writes() -> None:
    assert listed(mixed().decode(memoryview(FIRST))) == MESSAGE
    for form in (0x07, 0x11):
        assert listed(mixed().decode(memoryview(bytes([0, form, *SECOND[2:]]) + bytes(3)))) == MESSAGE


def test_xcdr2_that_is_not_plain_gives_no_values() -> None:
    """Bytes of the first version under the second's name, sizes of lists that lie, bytes that are left, other forms."""
    first = bytes([0, 7, *FIRST[2:]])
    sizes = SECOND.index(bytes.fromhex("1300000002"))
    lying = SECOND[:sizes] + b"\x14" + SECOND[sizes + 1 :]
    for data in (first, lying, SECOND + bytes(4), SECOND[:-1]):
        with pytest.raises(CorruptFileError, match="cannot be read"):
            mixed().decode(memoryview(data))
    names = {0x03: "PL_CDR", 0x09: "D_CDR2", 0x15: "D_CDR2", 0x0B: "PL_CDR2", 0x13: "PL_CDR2", 0x44: "nothing known"}
    for form, name in names.items():
        with pytest.raises(CorruptFileError, match=f"encoded as {name}.*{form:#06x}.*not read"):
            mixed().decode(memoryview(bytes([0, form, *SECOND[2:]])))


@pytest.mark.parametrize("alone", [True, False])
def test_a_topic_of_xcdr2_that_is_not_read_is_named(tmp_path: Path, *, alone: bool) -> None:
    from mcap.writer import Writer

    path = tmp_path / "x.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        place = writer.register_channel(
            "/mixed", "cdr", writer.register_schema("pkg/msg/Mixed", "ros2msg", MIXED.encode())
        )
        for k in range(3):
            writer.add_message(place, k, bytes([0, 9, *SECOND[2:]]), k)
        if not alone:
            writer.add_message(writer.register_channel("/x", "json", 0), 1, b'{"v": 1}', 1)
        writer.finish()
    said = "messages are encoded as D_CDR2, delimited XCDR2 .0x0009., which is not read"
    with pytest.raises(SeqlakeError, match=f"/mixed.*{said}"):
        sl.scan(path, topics=["/mixed"])
    if alone:
        with pytest.raises(SeqlakeError, match=f"/mixed.*{said}"):
            sl.open(path)
    else:
        ds = sl.open(path)
        assert [name for name in ds.schema.names if "mixed" in name] == []
        assert [one for one in sl.validate(ds).notes if "/mixed" in str(one) and "D_CDR2" in str(one)]

"""What is written as MCAP, read by the official packages and read back."""

from __future__ import annotations

import base64
import io
import os
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.formats.mcap import protos
from seqlake.media import encode_image
from seqlake.media._priority import kept_priority

from . import by_hand

pytest.importorskip("mcap_protobuf")

from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory

RNG = np.random.default_rng(7)
SCHEMA = sl.Schema(
    {
        "action": sl.Trajectory(dim=3, fps=30, names=["x", "y", "grip"]),
        "state": sl.Trajectory(dim=2, dtype=pa.float64(), timestamps="t"),
        "t": pa.list_(pa.int64()),
        "seconds": pa.list_(pa.float64()),
        "force": sl.Trajectory(dim=2, dtype=pa.float16(), timestamps="seconds"),
        "count": pa.list_(pa.uint64()),
        "ragged": sl.Trajectory(dtype=pa.int16(), fps=30),
        "cam": sl.Video(fps=30),
        "image": sl.Image(frames="bytes", fps=30),
        "task": pa.string(),
        "reward": pa.float64(),
        "embedding": sl.Embedding(dim=4),
        "said": pa.list_(pa.string()),
        "pair": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
    }
)
TYPED = SCHEMA.with_columns({"count": sl.Schema({"count": sl.Trajectory(dim=1, dtype=pa.uint64(), fps=30)})["count"]})
# What foxglove-sdk 0.x says of its own messages: FileDescriptorSets, as Foxglove's tools know them.
OFFICIAL = {
    protos.VIDEO: (("timestamp", 1, 11), ("frame_id", 2, 9), ("data", 3, 12), ("format", 4, 9)),
    protos.IMAGE: (("timestamp", 1, 11), ("frame_id", 4, 9), ("data", 2, 12), ("format", 3, 9)),
}


def rows() -> list[dict[str, Any]]:
    listed = []
    for k in range(3):
        n = 8 + k
        image = [encode_image(RNG.integers(0, 255, (8, 8, 3), dtype=np.uint8)) for _ in range(n)]
        listed.append(
            {
                "sequence_id": ["ep/0", "..", "ü"][k],
                "action": RNG.normal(size=(n, 3)),
                "state": RNG.normal(size=(5, 2)),
                "t": [10**18 + i * 10**7 for i in range(5)],
                "seconds": [10**9 + i / 3 for i in range(4)],
                "force": RNG.normal(size=(4, 2)).astype(np.float16),
                "count": np.array([[2**64 - 1], [0]], np.uint64),
                "ragged": [[[1, 2], [3, -4]], [[5, 6]], []][k],
                "cam": RNG.integers(0, 255, (n, 48, 64, 3), dtype=np.uint8),
                "image": image,
                "task": None if k == 1 else "pick",
                "reward": float("nan") if k else 0.1,
                "embedding": RNG.normal(size=4),
                "said": ["a", None, "ü"] if k != 2 else [],
                "pair": {"a": 1, "b": ["c"]} if k else None,
            }
        )
    listed[2]["action"] = None
    return listed


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ds = sl.create(tmp_path_factory.mktemp("source") / "ds", TYPED)
    with ds.writer() as writer:
        for row in rows():
            writer.add(row.pop("sequence_id"), **row)
    return ds


@pytest.fixture(scope="module")
def exported(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "out"
    sl.convert(source, out, to="mcap", workers=1)
    return out


def official(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """topic -> (log time, message), as mcap and mcap-protobuf-support read it."""
    topics: dict[str, list[tuple[int, Any]]] = {}
    with path.open("rb") as file:
        for _, channel, message, decoded in make_reader(
            file, decoder_factories=[DecoderFactory()]
        ).iter_decoded_messages():
            topics.setdefault(channel.topic, []).append((message.log_time, decoded))
    return topics


def test_a_file_a_sequence(exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == ["%2E%2E.mcap", "%C3%BC.mcap", "ep%2F0.mcap"]


def test_it_comes_back_as_it_was(source: Any, exported: Path) -> None:
    again = sl.open(exported)
    assert again.schema.names == source.schema.names
    for name in source.schema.names:
        if name in {"cam", "sequence_id"}:
            continue
        before, after = source.schema[name], again.schema[name]
        assert (before.type, before.logical) == (after.type, after.logical), name
    order = source.to_arrow()["sequence_id"].to_pylist()
    assert sorted(again.to_arrow()["sequence_id"].to_pylist()) == sorted(order)
    plain = [name for name in source.schema.names if name != "cam"]
    for key in order:
        one, two = (ds.select(*plain).where(f"sequence_id = '{key}'").to_arrow() for ds in (source, again))
        for name in plain:
            assert repr(one[name].to_pylist()) == repr(two[name].to_pylist()), (key, name)
        np.testing.assert_array_equal(source[key]["cam"][:], again[key]["cam"][:])
    assert not sl.validate(again, depth="decode").errors


def test_the_official_packages_read_the_same(source: Any, exported: Path) -> None:
    topics = official(exported / "ep%2F0.mcap")
    row = source["ep/0"]
    begin = int(row["t"][0])
    assert [time for time, _ in topics["/state"]] == list(row["t"])
    np.testing.assert_array_equal([m.values for _, m in topics["/state"]], row["state"])
    np.testing.assert_array_equal([[m.x, m.y, m.grip] for _, m in topics["/action"]], row["action"])
    # Signals without stamps begin where the row does: with its earliest stamp.
    assert [time for time, _ in topics["/action"]] == [
        int(Fraction(10**9) * 10**9 + Fraction(k * 10**9, 30)) for k in range(8)
    ]
    assert begin == 10**18
    assert [m.data for _, m in topics["/image"]] == source.select("image").where("sequence_id = 'ep/0'").to_arrow()[
        "image"
    ][0].as_py()
    assert {m.format for _, m in topics["/image"]} == {"png"}
    assert [list(m.values) for _, m in topics["/said"]] == [["a"], [], ["ü"]]
    stamps = [m.timestamp.seconds * 10**9 + m.timestamp.nanos for _, m in topics["/cam"]]
    assert [time for time, _ in topics["/cam"]] == sorted(stamps)


def test_packets_of_video_play_as_a_plain_stream(source: Any, exported: Path) -> None:
    """Annex B with its parameter sets: FFmpeg's own demuxer of bare H.264 reads the messages end to end."""
    messages = [m for _, m in official(exported / "ep%2F0.mcap")["/cam"]]
    assert {m.format for m in messages} == {"h264"}
    with av.open(io.BytesIO(b"".join(m.data for m in messages)), format="h264") as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == len(source["ep/0"]["cam"])


def test_the_schemas_are_those_of_foxglove() -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    for name, fields in OFFICIAL.items():
        [_, file] = FileDescriptorSet.FromString(protos.picture_schema(name)).file
        described = {(field.name, field.number, field.type) for field in file.message_type[0].field}
        assert described == set(fields)


@pytest.mark.parametrize(
    ("encoder", "options"),
    [("libx264", {"g": "4", "bf": "2"}), ("libx264", {"g": "5", "bf": "0"}), ("libvpx-vp9", {}), ("libsvtav1", {})],
)
def test_frames_shown_in_another_order_come_back(tmp_path: Path, encoder: str, options: dict[str, str]) -> None:
    path = tmp_path / "b.mp4"
    with kept_priority(), av.open(str(path), "w") as out:
        stream: Any = out.add_stream(encoder, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for k in range(20):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 10 * k, np.uint8), format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    ds = sl.create(tmp_path / "ds", {"cam": sl.Video(fps=30)})
    ds.append([{"sequence_id": "a", "cam": sl.File(path)}])
    sl.convert(ds, tmp_path / "out", to="mcap", workers=1)
    np.testing.assert_array_equal(sl.open(tmp_path / "out")["a"]["cam"][:], ds["a"]["cam"][:])


def test_what_has_no_time_is_refused(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"action": sl.Trajectory(dim=1)})
    ds.append([{"sequence_id": "a", "action": [[1.0], [2.0]]}])
    with pytest.raises(SchemaMismatchError, match="action.*rate"):
        sl.convert(ds, tmp_path / "out", to="mcap")
    sl.convert(ds, tmp_path / "out", to="mcap", fps=Fraction(30000, 1001), workers=1)
    assert [time for time, _ in official(tmp_path / "out" / "a.mcap")["/action"]] == [0, 33366666]


def test_times_before_the_clock_begins_are_refused(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"a": sl.Trajectory(dim=1, timestamps="t"), "t": pa.list_(pa.float64())})
    ds.append([{"sequence_id": "a", "a": [[1.0], [2.0]], "t": [-1.0, 0.0]}])
    with pytest.raises(ValidationError, match="'a'.*'t' has times before 0"):
        sl.convert(ds, tmp_path / "out", to="mcap", workers=1)
    assert not list((tmp_path / "out").rglob("*.mcap"))


@pytest.mark.parametrize("options", [{}, {"fps": 25}])
def test_a_recording_there_and_back(tmp_path: Path, options: dict[str, Any]) -> None:
    """Native rates with their times, or one clock: what was read is what is read again."""
    drive = by_hand.write(tmp_path, "mcap-ros2")
    ds = sl.scan(drive, **options)
    sl.convert(ds, tmp_path / "out", to="mcap", workers=1)
    again = sl.open(tmp_path / "out")
    assert again.schema.names == ds.schema.names
    one, two = ds.to_arrow(), again.to_arrow()
    for name in ds.schema.names:
        assert one[name].equals(two[name]), name
        assert ds.schema[name].type == again.schema[name].type, name
    if not options:
        times = [time for time, _ in official(tmp_path / "out" / "drive.mcap")["/note"]]
        assert times == list(ds["drive"]["note_time"])


def test_foxglove_itself_reads_it(exported: Path) -> None:
    """Where `SEQLAKE_FOXGLOVE_PYTHON` names a Python with foxglove-sdk, in an environment of its own."""
    python = os.environ.get("SEQLAKE_FOXGLOVE_PYTHON")
    if not python:
        pytest.skip("no Python with foxglove-sdk")
    code = (
        "import base64\nfrom foxglove import messages\n"
        "print(*(base64.b64encode(getattr(messages, n).get_schema().data).decode() for n in "
        "('CompressedVideo', 'CompressedImage')))"
    )
    run = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    for text, name in zip(run.stdout.split(), (protos.VIDEO, protos.IMAGE), strict=True):
        theirs = FileDescriptorSet.FromString(base64.b64decode(text))
        ours = FileDescriptorSet.FromString(protos.picture_schema(name))
        both = [
            {(f.name, f.number, f.type, f.type_name) for f in one.file[-1].message_type[0].field}
            for one in (theirs, ours)
        ]
        assert both[0] == both[1]

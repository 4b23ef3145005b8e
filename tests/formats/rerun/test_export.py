"""What is written for Rerun, read back by Rerun's own reader and command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import DatasetNotFoundError, MissingDependencyError, SchemaMismatchError, SeqlakeError
from seqlake.media import encode_image

from ...media.clips import encode, picture  # noqa: TID252 - tests are no package that could be named

pytest.importorskip("rerun")
from rerun.chunk import RrdReader

ENV = {name: value for name, value in os.environ.items() if name != "RERUN"}
RNG = np.random.default_rng(7)


def read(path: Path) -> dict[tuple[str, bool], dict[str, list[Any]]]:
    """(entity, whether it is static) -> component -> a value for each row, as Rerun reads the file."""
    entities: dict[tuple[str, bool], dict[str, list[Any]]] = {}
    for chunk in RrdReader(path).stream():
        batch = chunk.to_record_batch()
        held = entities.setdefault((chunk.entity_path, chunk.is_static), {})
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name.startswith("rerun.controls"):
                continue
            numbers = column.cast(pa.int64()) if pa.types.is_duration(column.type) else column
            held.setdefault(name, []).extend(numbers.to_pylist())
    return entities


def times_of(data: bytes) -> list[int]:
    """When each frame is shown, in nanoseconds after the first, as FFmpeg says it."""
    with av.open(io.BytesIO(data)) as container:
        base = container.streams.video[0].time_base
        pts = [frame.pts for frame in container.decode(video=0)]
    return [round((one - pts[0]) * base * 10**9) for one in pts]


def film(tmp_path: Path, data: bytes, ending: str = "mp4", **columns: Any) -> Path:
    """A dataset of one row with this video, as recordings."""
    path = tmp_path / f"film.{ending}"
    path.write_bytes(data)
    ds = sl.create(tmp_path / "ds", {"cam": sl.Video(fps=30), **columns})
    ds.append([{"sequence_id": "a", "cam": sl.File(path)}])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    return tmp_path / "out" / "a.rrd"


def pixels(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


# ---- numbers and texts


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    names = ["x", "y", "z", "qw", "qx", "qy", "qz", "grip"]
    schema = {
        "action": sl.Trajectory(dim=3, fps=30),
        "count": sl.Trajectory(dim=1, dtype="int64", fps=15),
        "force": sl.Trajectory(dim=2, timestamps="t"),
        "t": pa.list_(pa.int64()),
        "ragged": sl.Trajectory(dtype=pa.int16(), fps=30),
        "hand": sl.Trajectory(dim=8, dtype="float64", fps=30, names=names),
        "said": pa.list_(pa.string()),
        "start_time": pa.timestamp("us", "UTC"),
        "reward": pa.float64(),
        "success": pa.bool_(),
        "task": pa.string(),
        "big": pa.uint64(),
        "embedding": sl.Embedding(dim=4),
        "pair": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        "sound": sl.Audio(),
        "deep": pa.list_(pa.list_(pa.list_(pa.float32()))),
    }
    rows = [
        {
            "sequence_id": key,
            "action": RNG.normal(size=(n, 3)),
            "count": np.arange(n // 2)[:, None],
            "force": RNG.normal(size=(4, 2)),
            "t": [10**9 + k * 10**8 for k in range(4)],
            "ragged": [[[1, 2]], [], [[3, 4, 5]] * 2][len(key) % 3],
            "hand": RNG.normal(size=(n, 8)),
            "said": ["hi", None, "ü\n"],
            "start_time": datetime(2026, 2, 3, tzinfo=UTC),
            "reward": 0.5,
            "success": True,
            "task": "pick",
            "big": 2**64 - 1,
            "embedding": [1, 2, 3, 4],
            "pair": {"a": 1, "b": ["c"]},
        }
        for n, key in ((8, "ep/0"), (10, ".."), (12, "ü"))
    ]
    rows[2] |= dict.fromkeys(["action", "ragged", "said", "reward", "task", "hand"])
    ds = sl.create(tmp_path_factory.mktemp("source") / "ds", schema)
    ds.append(rows)
    return ds


@pytest.fixture(scope="module")
def exported(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "arm"
    sl.convert(source, out, to="rerun", workers=1, bytes_per_part=1)
    return out


def test_a_recording_a_sequence(exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == ["%2E%2E.rrd", "%C3%BC.rrd", "ep%2F0.rrd"]
    [store] = RrdReader(exported / "ep%2F0.rrd").recordings()
    assert (store.application_id, store.recording_id) == ("arm", "ep/0")
    info = read(exported / "ep%2F0.rrd")["/__properties", True]
    assert info["RecordingInfo:name"] == [["ep/0"]]
    began = int(datetime(2026, 2, 3, tzinfo=UTC).timestamp()) * 10**9
    assert info["RecordingInfo:start_time"] == [[began]]


def test_rerun_finds_no_fault_and_merges_them(exported: Path, tmp_path: Path) -> None:
    files = sorted(map(str, exported.iterdir()))
    run = [sys.executable, "-m", "rerun", "rrd"]
    done = subprocess.run([*run, "verify", *files], capture_output=True, text=True, check=True)
    assert "3 files verified without error" in done.stdout + done.stderr
    subprocess.run([*run, "merge", *files, "-o", str(tmp_path / "set.rrd")], capture_output=True, check=True)
    merged = RrdReader(tmp_path / "set.rrd").recordings()
    assert sorted(store.recording_id for store in merged) == ["..", "ep/0", "ü"]


def test_signals_are_series_on_both_timelines(source: Any, exported: Path) -> None:
    row, held = source["ep/0"], read(exported / "ep%2F0.rrd")
    action = held["/action", False]
    np.testing.assert_array_equal(action["Scalars:scalars"], row["action"].astype(np.float64))
    assert action["frame"] == list(range(8))
    assert action["time"] == [int(Fraction(k * 10**9, 30)) for k in range(8)]
    count = held["/count", False]  # at half the rate: where its steps are on the clock of the dataset
    assert (count["frame"], count["Scalars:scalars"]) == ([0, 2, 4, 6], [[0.0], [1.0], [2.0], [3.0]])
    force = held["/force", False]
    assert (force["frame"], force["time"]) == ([0, 3, 6, 9], [0, 10**8, 2 * 10**8, 3 * 10**8])
    np.testing.assert_array_equal(force["Scalars:scalars"], row["force"].astype(np.float64))
    ragged = read(exported / "%2E%2E.rrd")["/ragged", False]  # as wide as each sequence has it
    assert ragged["Scalars:scalars"] == [[3.0, 4.0, 5.0]] * 2
    assert held["/said", False]["TextLog:text"] == [["hi"], [""], ["ü\n"]]
    assert held["/hand", True]["SeriesLines:names"][0] == ["x", "y", "z", "qw", "qx", "qy", "qz", "grip"]


def test_poses_move_in_space(source: Any, exported: Path) -> None:
    hand, held = source["ep/0"]["hand"], read(exported / "ep%2F0.rrd")
    pose = held["/hand/pose", False]
    np.testing.assert_allclose(np.array(pose["Transform3D:translation"])[:, 0], hand[:, :3], rtol=1e-6)
    np.testing.assert_allclose(np.array(pose["Transform3D:quaternion"])[:, 0], hand[:, [4, 5, 6, 3]], rtol=1e-6)
    [[path]] = held["/hand/path", True]["LineStrips3D:strips"]
    np.testing.assert_allclose(path, hand[:, :3], rtol=1e-6)
    assert not [entity for entity, _ in held if entity.startswith("/action/")]


def test_values_are_properties_and_what_is_null_is_not_there(exported: Path) -> None:
    row = read(exported / "ep%2F0.rrd")["/__properties/row", True]
    assert {name: value for name, [value] in row.items()} == {
        "start_time": ["2026-02-03 00:00:00+00:00"],
        "reward": [0.5],
        "success": [True],
        "task": ["pick"],
        "big": [2**64 - 1],
        "embedding": [1.0, 2.0, 3.0, 4.0],
        "pair": ['{"a": 1, "b": ["c"]}'],
    }
    held = read(exported / "%C3%BC.rrd")
    assert not {"/action", "/ragged", "/said", "/hand"} & {entity for entity, _ in held}
    assert not {"reward", "task"} & held["/__properties/row", True].keys()


def test_what_is_dropped_is_said(source: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    planned = sl.convert(source, tmp_path / "out", to="rerun", dry_run=True)
    assert {*planned.dropped} == {"sound", "deep"}
    assert "Dropped: deep (steps of more than one axis are no series)" in str(planned)
    sl.convert(source, tmp_path / "out", to="rerun", workers=1)
    assert "sound is dropped" in caplog.text


def test_the_layout_has_videos_above_plots(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"action": sl.Trajectory(dim=2, fps=30), "cam": sl.Video(fps=30)})
    with ds.writer() as writer:
        writer.add("a", action=np.zeros((4, 2)), cam=RNG.integers(0, 255, (4, 32, 32, 3), dtype=np.uint8))
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    reader = RrdReader(tmp_path / "out" / "a.rrd")
    [blueprint] = reader.blueprints()
    views, panels, kinds = {}, {}, []
    for chunk in reader.stream(store=blueprint):
        batch = chunk.to_record_batch().to_pydict()
        if "ViewBlueprint:class_identifier" in batch:
            views[chunk.entity_path] = (batch["ViewBlueprint:class_identifier"], batch["ViewBlueprint:space_origin"])
        panels |= {"timeline": batch["TimePanelBlueprint:timeline"]} if "TimePanelBlueprint:timeline" in batch else {}
        kinds += batch.get("ContainerBlueprint:contents", [])
    assert sorted(views.values()) == [([["2D"]], [["/cam"]]), ([["TimeSeries"]], [["/action"]])]
    assert panels == {"timeline": [["time"]]}
    assert len(kinds) == 3  # a column of two rows


# ---- videos


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "3", "g": "12"}),  # shown in another order than decoded
        ("libx264", {"times": (0, 1, 2, 5, 9, 10, 20, 21, 22, 40), "bf": "2"}),  # a variable rate
        ("libx264", {"times": range(7, 27)}),  # which begins late
        ("libx265", {"x265-params": "log-level=none"}),
        ("libsvtav1", {}),
    ],
)
def test_a_video_is_embedded_with_the_times_of_its_frames(codec: str, options: dict[str, Any], tmp_path: Path) -> None:
    data = encode(codec, **{"times": range(20), **options})
    held = read(film(tmp_path, data))
    [[blob]] = held["/cam", True]["AssetVideo:blob"]
    assert held["/cam", True]["AssetVideo:media_type"] == [["video/mp4"]]
    cam = held["/cam", False]
    shown = [stamp for [stamp] in cam["VideoFrameReference:timestamp"]]
    expected = times_of(data)
    assert len(shown) == len(expected)
    assert np.abs(np.array(shown) - shown[0] - expected).max() <= 1000
    assert np.abs(np.array(cam["time"]) - expected).max() <= 1000
    # What Rerun was given is what was there: the frames at those times are the same.
    with av.open(io.BytesIO(bytes(blob))) as one, av.open(io.BytesIO(data)) as two:
        for mine, theirs in zip(one.decode(video=0), two.decode(video=0), strict=True):
            np.testing.assert_array_equal(mine.to_ndarray(), theirs.to_ndarray())


def test_cameras_of_two_rates_are_in_step(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"fast": sl.Video(fps=30), "slow": sl.Video(fps=15)})
    frames = RNG.integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)
    with ds.writer() as writer:
        writer.add("a", fast=frames, slow=frames[:6])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    held = read(tmp_path / "out" / "a.rrd")
    fast, slow = held["/fast", False], held["/slow", False]
    assert (fast["frame"], slow["frame"]) == (list(range(12)), list(range(0, 12, 2)))
    assert np.abs(np.array(fast["time"])[::2] - slow["time"]).max() <= 1


def test_frames_have_the_times_of_their_column(tmp_path: Path) -> None:
    schema = {"cam": sl.Video(timestamps="t"), "t": pa.list_(pa.float64())}
    ds = sl.create(tmp_path / "ds", schema)
    frames = RNG.integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    with ds.writer() as writer:
        writer.add("a", cam=frames, t=[100.0, 100.25, 100.5, 101.5])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    cam = read(tmp_path / "out" / "a.rrd")["/cam", False]
    assert cam["time"] == [0, 250_000_000, 500_000_000, 1_500_000_000]
    assert len(cam["VideoFrameReference:timestamp"]) == 4


def test_packets_of_other_containers_are_copied(tmp_path: Path) -> None:
    data = encode("libvpx-vp9", container="webm", times=range(10))
    held = read(film(tmp_path, data, "webm"))
    [[blob]] = held["/cam", True]["AssetVideo:blob"]
    with av.open(io.BytesIO(bytes(blob))) as one, av.open(io.BytesIO(data)) as two:
        assert "mp4" in one.format.name
        for mine, theirs in zip(one.decode(video=0), two.decode(video=0), strict=True):
            np.testing.assert_array_equal(mine.to_ndarray(), theirs.to_ndarray())


def test_what_rerun_does_not_decode_becomes_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = encode("mpeg4", times=range(20), **{"q:v": "2"})
    held = read(film(tmp_path, data))
    assert ("/cam", True) not in held
    cam = held["/cam", False]
    assert cam["frame"] == list(range(20))
    assert np.abs(np.array(cam["time"]) - times_of(data)).max() <= 1000
    assert {kind for [kind] in cam["EncodedImage:media_type"]} == {"image/jpeg"}
    with av.open(io.BytesIO(data)) as container:
        for frame, [blob] in zip(container.decode(video=0), cam["EncodedImage:blob"], strict=True):
            apart = pixels(bytes(blob)).astype(int) - frame.to_ndarray(format="rgb24")
            assert np.abs(apart).mean() < 6
    assert "cam: its frames are written as pictures" in caplog.text


def test_a_part_of_a_shared_video_is_cut_out(tmp_path: Path) -> None:
    (tmp_path / "ds" / "clips").mkdir(parents=True)
    (tmp_path / "ds" / "clips" / "all.mp4").write_bytes(encode(times=range(30), g="5"))
    kind = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])
    schema = sl.Schema.from_arrow(
        pa.schema([("sequence_id", pa.string()), ("cam", kind)]),
        metadata=sl.Schema({"cam": sl.Video(fps=30)}).metadata,
    )
    ds = sl.create(tmp_path / "ds", schema)
    cells = [{"url": "clips/all.mp4", "first_frame": k, "num_frames": 10} for k in (0, 10, 20)]
    ds.append([{"sequence_id": f"{n}", "cam": cell} for n, cell in enumerate(cells)])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    for n in range(3):
        held = read(tmp_path / "out" / f"{n}.rrd")
        assert held["/cam", False]["frame"] == list(range(10))
        [[blob]] = held["/cam", True]["AssetVideo:blob"]
        with av.open(io.BytesIO(bytes(blob))) as container:
            first = next(container.decode(video=0)).to_ndarray(format="rgb24")
        apart = first.astype(int) - ds[str(n)]["cam"][0]
        assert np.abs(apart).mean() < 4


def test_depth_is_millimetres(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"depth": sl.Depth(fps=30), "still": sl.Depth(fps=30, frames="bytes")})
    metres = RNG.uniform(0.1, 4.0, (5, 32, 48)).astype(np.float32)
    with ds.writer() as writer:
        writer.add("a", depth=metres, still=metres)
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    held = read(tmp_path / "out" / "a.rrd")
    for name in ("depth", "still"):
        kept = held[f"/{name}", False]
        assert kept["EncodedDepthImage:meter"] == [[1000.0]] * 5
        for step, [blob] in enumerate(kept["EncodedDepthImage:blob"]):
            with av.open(io.BytesIO(bytes(blob))) as container:
                codes = next(container.decode(video=0)).to_ndarray()
            np.testing.assert_array_equal(codes, np.rint(ds["a"][name][step].squeeze().astype(np.float64) * 1000))


# ---- pictures and points


def test_pictures_stay_as_they_are(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"image": sl.Image(frames="bytes", fps=10)})
    pictures = np.stack([picture(step) // 2 for step in range(3)])
    cells = [encode_image(pictures[0]), None, encode_image(pictures[2], format="tiff")]
    ds.append([{"sequence_id": "a", "image": cells}])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    image = read(tmp_path / "out" / "a.rrd")["/image", False]
    assert image["frame"] == [0, 2]  # there is none at step 1
    blobs = [bytes(blob) for [blob] in image["EncodedImage:blob"]]
    assert blobs[0] == cells[0]
    assert np.abs(pixels(blobs[1]).astype(int) - pictures[2]).mean() < 8  # a TIFF, which Rerun does not know
    assert image["EncodedImage:media_type"] == [["image/png"], ["image/jpeg"]]


def test_one_picture_of_a_row_has_no_time_and_other_bytes_are_dropped(tmp_path: Path) -> None:
    still = tmp_path / "still.png"
    still.write_bytes(encode_image(picture(0)))
    schema = {
        "still": sl.Image(),
        "held": sl.Image(inline=True),
        "raw": pa.binary(),
        "many": pa.list_(pa.binary()),
        "body": sl.Spatial4D(format="npz", inline=True),
    }
    ds = sl.create(tmp_path / "ds", schema)
    ds.append([{"sequence_id": "a", "still": sl.File(still), "held": still.read_bytes(), "raw": b"x", "many": [b"y"]}])
    assert {*sl.convert(ds, tmp_path / "out", to="rerun", dry_run=True).dropped} == {"raw", "many", "body"}
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    held = read(tmp_path / "out" / "a.rrd")
    for name in ("still", "held"):
        [[blob]] = held[f"/{name}", True]["EncodedImage:blob"]
        assert bytes(blob) == still.read_bytes()
    assert not {"/raw", "/many", "/body", "/__properties/row"} & {entity for entity, _ in held}


def test_values_keep_their_types_from_row_to_row(tmp_path: Path) -> None:
    """Rerun's own inference keeps to the type of the first value of a name, in one process."""
    for name, kind, value in (("one", pa.int64(), 3), ("two", pa.float64(), 1.5), ("three", pa.string(), "x")):
        ds = sl.create(tmp_path / name, {"score": kind, "list": pa.list_(kind)})
        ds.append([{"sequence_id": "a", "score": value, "list": [value, None]}])
        sl.convert(ds, tmp_path / f"{name}-out", to="rerun", workers=1)
        row = read(tmp_path / f"{name}-out" / "a.rrd")
        assert row["/__properties/row", True]["score"] == [[value]]
        if name != "three":
            assert row["/__properties/row", True]["list"] == [[value, None]]


def test_meshes_and_clouds_are_points_in_space(tmp_path: Path) -> None:
    mesh = tmp_path / "one.obj"
    mesh.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    cloud = tmp_path / "some.ply"
    cloud.write_text(
        "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
        "1 2 3\n4 5 6\n"
    )
    ds = sl.create(tmp_path / "ds", {"mesh": sl.Spatial3D(), "cloud": sl.Spatial3D()})
    ds.append([{"sequence_id": "a", "mesh": sl.File(mesh), "cloud": sl.File(cloud)}])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    held = read(tmp_path / "out" / "a.rrd")
    assert held["/mesh", True]["Mesh3D:vertex_positions"] == [[[0, 0, 0], [1, 0, 0], [0, 1, 0]]]
    assert held["/mesh", True]["Mesh3D:triangle_indices"] == [[[0, 1, 2]]]
    assert held["/cloud", True]["Points3D:positions"] == [[[1, 2, 3], [4, 5, 6]]]


def test_clouds_of_each_step_have_its_time(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"lidar": sl.Spatial4D(frames="files", fps=10)})
    clouds = [RNG.normal(size=(n, 3)).astype(np.float32) for n in (4, 0, 2)]
    with ds.writer() as writer:
        writer.add("a", lidar=clouds)
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    lidar = read(tmp_path / "out" / "a.rrd")["/lidar", False]
    assert lidar["time"] == [0, 10**8, 2 * 10**8]
    for mine, theirs in zip(lidar["Points3D:positions"], clouds, strict=True):
        np.testing.assert_array_equal(np.reshape(mine, (-1, 3)), theirs)


# ---- what goes wrong

HOSTILE = [
    "a/b", "..", "/", "__properties", "self", "drop_untyped_nones", "entity_path", "ü \n", "a:b", "%2F", "$origin",
    "+ /**", "x" * 300,
]  # fmt: skip


def test_names_may_be_anything(tmp_path: Path) -> None:
    ds = sl.create(
        tmp_path / "ds",
        {name: sl.Trajectory(dim=1, fps=30) for name in HOSTILE} | {f"v{n}": pa.int64() for n in HOSTILE},
    )
    row = {name: [[float(k)]] for k, name in enumerate(HOSTILE)} | {f"v{n}": k for k, n in enumerate(HOSTILE)}
    ids = ["../../up", "a\nb", "con", "x" * 400, "<b>&"]
    ds.append([{"sequence_id": key, **row} for key in ids])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"ds", "out"}
    for path in files:
        held = read(path)
        series = {name: one["Scalars:scalars"] for (name, _), one in held.items() if "Scalars:scalars" in one}
        assert sorted(series.values()) == [[[float(k)]] for k in range(len(HOSTILE))]
        values = held["/__properties/row", True]
        assert {name: value for name, [value] in values.items()} == {f"v{n}": [k] for k, n in enumerate(HOSTILE)}
        [store] = RrdReader(path).recordings()
        assert store.recording_id in ids


def test_without_a_rate_there_are_frames_and_no_time(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"action": sl.Trajectory(dim=1)})
    ds.append([{"sequence_id": "a", "action": [[1.0], [2.0]]}])
    sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
    action = read(tmp_path / "out" / "a.rrd")["/action", False]
    assert (action["frame"], "time" in action) == ([0, 1], False)
    sl.convert(ds, tmp_path / "timed", to="rerun", fps=Fraction(30000, 1001), workers=1)
    assert read(tmp_path / "timed" / "a.rrd")["/action", False]["time"] == [0, 33366666]


def test_what_does_not_fit_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    schema = {"force": sl.Trajectory(dim=1, timestamps="t"), "t": pa.list_(pa.float64())}
    for name, times, says in (("few", [0.0], "2 steps and 1 times"), ("none", [0.0, float("nan")], "no numbers")):
        ds = sl.create(tmp_path / name, schema)
        ds.append([{"sequence_id": "a", "force": [[1.0], [2.0]], "t": times}])
        with pytest.raises(SeqlakeError, match=f"sequence 'a'.*{says}"):
            sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
        assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
    rows = pa.table({"reward": [1.0]})
    with pytest.raises(SchemaMismatchError, match="no ids"):
        sl.convert(sl.scan(rows), tmp_path / "out", to="rerun")


def test_a_video_that_is_broken_or_gone_is_an_error(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", {"cam": sl.Video(fps=30)})
    path = tmp_path / "film.mp4"
    path.write_bytes(encode(times=range(5)))
    ds.append([{"sequence_id": "a", "cam": sl.File(path)}])
    [kept] = [one for one in (tmp_path / "ds").rglob("*.mp4") if one.is_file()]
    data = kept.read_bytes()
    for broken in (data[: len(data) // 3], b"", b"\x00\x00\x00\x18ftypmp42" + bytes(40)):
        kept.chmod(0o600)
        kept.write_bytes(broken)
        with pytest.raises(SeqlakeError):
            sl.convert(ds, tmp_path / "out", to="rerun", workers=1)
        assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
    kept.unlink()
    with pytest.raises(SeqlakeError, match="not there"):
        sl.convert(ds, tmp_path / "out", to="rerun", workers=1)


def test_where_rerun_is_switched_off_it_is_said(source: Any, tmp_path: Path) -> None:
    program = "import sys, seqlake as sl\nsl.convert(sys.argv[1], sys.argv[2], to='rerun', workers=1)"
    command = [sys.executable, "-c", program, str(source.location), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env={"RERUN": "off", **ENV}, check=False)
    assert done.returncode != 0
    assert "Rerun writes no file. Unset the variable RERUN" in done.stderr


def test_the_extra_is_named_where_it_is_missing(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingDependencyError, match=r"seqlake\[rerun\]"):
        sl.convert(source, tmp_path / "out", to="rerun", workers=1)


def test_a_recording_is_not_read(exported: Path) -> None:
    for opened in (sl.open, sl.scan):
        with pytest.raises(DatasetNotFoundError, match="Rerun|rerun"):
            opened(exported / "ep%2F0.rrd")

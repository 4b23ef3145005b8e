"""Images in rows that become videos or files on the way: every frame is there, at its time, near its picture."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CorruptFrameError, DecodeError, SchemaMismatchError, ValidationError
from seqlake.media import encode_image

PROJECT = Path(__file__).parents[2]
BRIDGE = PROJECT.parent / "shared" / "data" / "bridge_rlds" / "1.0.0"
LEAST_PSNR = 30.0  # dB, which docs/reference/formats/rlds.md states for pictures of 64x64 at crf 23


def pictures(count: int, *, seed: int = 0, height: int = 48, width: int = 64) -> np.ndarray:
    """uint8 [T, H, W, 3]: waves that move, so that each frame differs from its neighbours."""
    y, x = np.mgrid[:height, :width]
    waves = [np.stack([x + 9 * i + seed, y + 7 * i, x - y + 5 * i], axis=-1) for i in range(count)]
    return (128 + 100 * np.sin(np.stack(waves) / 31)).astype(np.uint8) if count else np.zeros((0, height, width, 3))


def psnr(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.mean((found.astype(np.float64) - expected) ** 2)
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def video(path: Path) -> tuple[np.ndarray, list[Fraction]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    rgb = [f.reformat(format="rgb24", src_colorspace="ITU709", threads=1).to_ndarray() for f in frames]
    return np.stack(rgb), [f.pts * f.time_base for f in frames]


def decoded(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


SCHEMA = sl.Schema(
    {
        "task": pa.string(),
        "x": sl.Trajectory(dim=1),
        "cam": sl.Image(format="png", frames="bytes", resolution=[64, 48], source="steps/cam"),
        "side": sl.Image(format="jpeg", frames="bytes"),
        "depth": sl.Image(format="png", frames="bytes"),
    }
)


@pytest.fixture
def source(tmp_path: Path):
    """Six rows with 9 to 14 steps; in one a null cell and an empty one."""
    ds = sl.create(tmp_path / "source", SCHEMA)
    with ds.writer(rows_per_shard=2) as writer:
        for n in range(5):
            steps = 9 + n
            depth = np.full((steps, 8, 8), 1000 * n, np.uint16)
            frames = pictures(steps, seed=n)
            writer.add(f"ep{n}", task="a", x=np.zeros((steps, 1)), cam=frames, side=frames, depth=depth)
        writer.add("bare", task="b", x=np.zeros((2, 1)), cam=[], side=None)
    return sl.open(tmp_path / "source")


TWO = {"cam": "video", "side": "video"}


@pytest.mark.parametrize("workers", [1, 2])
def test_images_become_videos(source, workers: int, tmp_path: Path) -> None:
    ds = sl.convert(source, tmp_path / "out", images=TWO, fps=12.5, workers=workers, bytes_per_part=1)
    assert ds.schema["cam"].type == sl.Video(fps=12.5, codec="h264", resolution=[64, 48], source="steps/cam")
    assert ds.schema["side"].type == sl.Video(fps=12.5, codec="h264")
    assert ds.schema["depth"] == source.schema["depth"]
    assert (
        ds.select("sequence_id", "task", "x", "depth").to_arrow()
        == source.select("sequence_id", "task", "x", "depth").to_arrow()
    )
    for n in range(5):
        for name in TWO:
            reference = ds[f"ep{n}"][name].reference
            assert reference.startswith(f"files/{name}/")
            found, shown = video(tmp_path / "out" / reference)
            assert psnr(found, pictures(9 + n, seed=n)) > LEAST_PSNR
            assert shown == [Fraction(2 * k, 25) for k in range(9 + n)]
            assert np.array_equal(ds[f"ep{n}"][name][:], found)
    assert (ds["bare"]["cam"], ds["bare"]["side"]) == (None, None)
    assert ds.validate(depth="files").ok
    assert len([name for name in everything(tmp_path / "out") if name.endswith(".mp4")]) == 10
    assert not [name for name in everything(tmp_path) if name.endswith(".tmp")]


def test_images_become_files_with_the_same_bytes(source, tmp_path: Path) -> None:
    ds = sl.convert(source, tmp_path / "out", images="files", workers=1)
    assert ds.schema["cam"].type == sl.Image(format="png", frames="files", resolution=[64, 48], source="steps/cam")
    for n in range(5):
        for name, suffix in (("cam", ".png"), ("side", ".jpg"), ("depth", ".png")):
            mine, theirs = ds[f"ep{n}"][name], source[f"ep{n}"][name]
            assert [mine.bytes(k) for k in range(len(mine))] == [theirs.bytes(k) for k in range(9 + n)]
            assert {Path(cell.reference).suffix for cell in mine.cells} == {suffix}
    assert len(ds["bare"]["cam"]) == 0
    assert ds["bare"]["side"] is None
    assert ds.validate(depth="files").ok


def test_images_that_stay(source, tmp_path: Path) -> None:
    for number, images in enumerate(({"images": "bytes"}, {"images": {}}, {})):
        ds = sl.convert(source, tmp_path / str(number), workers=1, **images)
        assert ds.schema == source.schema
        assert ds.to_arrow() == source.to_arrow()


def test_a_plan_shows_what_will_be_written(source, tmp_path: Path) -> None:
    plan = sl.convert(source, tmp_path / "out", images=TWO, fps=5, dry_run=True)
    assert plan.schema["cam"].type.get("fps") == 5
    assert plan.to_json()["columns"]["cam"] == "string"
    assert not (tmp_path / "out").exists()


def test_a_rate_that_the_source_tells(tmp_path: Path) -> None:
    schema = sl.Schema({"x": sl.Trajectory(dim=1, fps=29.97), "cam": sl.Image(frames="bytes")})
    ds = sl.create(tmp_path / "source", schema)
    with ds.writer() as writer:
        writer.add("a", x=np.zeros((3, 1)), cam=pictures(3))
    made = sl.convert(ds, tmp_path / "out", images="video", workers=1)
    assert video(tmp_path / "out" / made["a"]["cam"].reference)[1] == [k * Fraction(1001, 30000) for k in range(3)]
    assert sl.convert(ds, tmp_path / "same", images="video", fps=29.97, workers=1).schema == made.schema
    with pytest.raises(SchemaMismatchError, match=r"expected 29.97 frames per second .* found fps=5. Leave fps out"):
        sl.convert(ds, tmp_path / "other", images="video", fps=5)


def test_times_of_the_source_are_the_videos(tmp_path: Path) -> None:
    schema = sl.Schema({"cam": sl.Image(frames="bytes", timestamps="t"), "t": sl.Trajectory(dim=1, dtype=pa.int64())})
    ds = sl.create(tmp_path / "source", schema)
    with ds.writer() as writer:
        writer.add("a", cam=pictures(3), t=[[7_000_000_000], [7_500_000_000], [9_000_000_000]])
    made = sl.convert(ds, tmp_path / "out", images="video", workers=1)
    assert made.schema["cam"].type == sl.Video(codec="h264", timestamps="t")
    shown = video(tmp_path / "out" / made["a"]["cam"].reference)[1]
    assert shown == [0, Fraction(1, 2), 2]


def test_an_encoding_of_ones_own(source, tmp_path: Path) -> None:
    fine = sl.Encoding(options={"crf": "5"}, keyframe_every=2)
    ds = sl.convert(source, tmp_path / "out", images=TWO, fps=5, encoding=fine, workers=1)
    path = tmp_path / "out" / ds["ep0"]["cam"].reference
    assert psnr(video(path)[0], pictures(9)) > 38
    with av.open(str(path)) as container:
        assert [frame.key_frame for frame in container.decode(video=0)] == [k % 2 == 0 for k in range(9)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"images": "video"}, SchemaMismatchError, "Column 'cam': expected a rate for its video.*fps=5"),
        ({"images": "mpeg"}, ValueError, "Images become 'bytes', 'video', 'files'; found 'mpeg'"),
        ({"images": {"cam": "vid"}}, ValueError, "found 'vid'"),
        ({"images": {"task": "video"}}, SchemaMismatchError, "'task': expected images that lie in the row.*cam, side"),
        ({"images": {"nothing": "files"}}, SchemaMismatchError, "'nothing': expected images"),
        ({"images": "video", "fps": 5}, SchemaMismatchError, "'depth', step 0: expected a picture of 8 bits.*images="),
        ({"images": TWO, "fps": 0}, ValueError, "positive number of steps per second"),
    ],
)
def test_what_is_refused_leaves_nothing(source, options: dict, error: type, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        sl.convert(source, tmp_path / "out", workers=1, **options)
    assert not (tmp_path / "out").exists()


BAD = {
    "damaged": ([b"\xff\xd8\xff\xe0 this is no picture"], CorruptFrameError, "'bad', column 'cam', step 1 is damaged"),
    "unknown": ([b"GIF89a"], DecodeError, "'bad', column 'cam', step 1: expected JPEG, PNG"),
    "size": ([encode_image(np.zeros((50, 64, 3), np.uint8))], SchemaMismatchError, "step 1: expected frames of 64x48"),
    "null": ([None], ValidationError, "step 1: expected a picture for every frame of a video, found null"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_picture_that_cannot_be_a_frame(case: str, tmp_path: Path) -> None:
    more, error, message = BAD[case]
    good = encode_image(pictures(1)[0])
    cells = pa.table({"sequence_id": ["good", "bad"], "cam": pa.array([[good], [good, *more]], pa.list_(pa.binary()))})
    ds = sl.create(tmp_path / "source", sl.Schema({"cam": sl.Image(frames="bytes")}))
    ds.append(cells)
    with pytest.raises(error, match=message):
        sl.convert(ds, tmp_path / "out", images="video", fps=5, workers=1)
    assert not (tmp_path / "out").exists()


def test_going_on_after_a_failure(tmp_path: Path, source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are finished keep their videos; the same call writes the rest."""
    from seqlake.dataset.writing import pictures as module

    options = {"images": TWO, "fps": 5, "workers": 1, "bytes_per_part": 1, "work": tmp_path / "work"}
    real, calls = module.image.decode, []

    def failing(*given, **named):
        calls.append(named["name"])
        if "'ep3'" in named["name"]:
            raise OSError("the disk is gone")
        return real(*given, **named)

    monkeypatch.setattr(module.image, "decode", failing)
    with pytest.raises(sl.errors.SeqlakeError, match="the disk is gone"):
        sl.convert(source, tmp_path / "out", **options)
    monkeypatch.undo()
    done = {path.stat().st_ino for path in (tmp_path / "out").rglob("*.mp4")}
    assert len(done) == 6
    with pytest.raises(sl.errors.SeqlakeError, match="another"):
        sl.convert(source, tmp_path / "out", **{**options, "fps": 6})
    ds = sl.convert(source, tmp_path / "out", **options)
    assert done <= {path.stat().st_ino for path in (tmp_path / "out").rglob("*.mp4")}
    assert [len(ds[f"ep{n}"]["cam"]) for n in range(5)] == [9, 10, 11, 12, 13]
    assert ds.validate(depth="files").ok


def portrait(count: int) -> np.ndarray:
    """Of the height and width that the folder declares."""
    return pictures(count, seed=count, height=64, width=48)


def test_an_rlds_folder(rlds_tool, tmp_path: Path) -> None:
    steps = {
        "action": rlds_tool.tensor([2], "float32"),
        "observation": rlds_tool.features_dict({"cam": rlds_tool.image()}),
    }
    folder = rlds_tool.Folder(steps=steps)
    records = []
    for count in (4, 0, 6):
        frames = [encode_image(picture, format="jpeg") for picture in portrait(count)]
        records.append(
            rlds_tool.example({"steps/action": np.zeros((count, 2), np.float32), "steps/observation/cam": frames})
        )
    folder.files["train"] = [records]
    place = folder.write(tmp_path / "arm")
    ds = sl.convert(place, tmp_path / "out", images="video", fps=10, split="train", workers=1)
    assert [None if row["cam"] is None else len(row["cam"]) for row in ds] == [4, None, 6]
    for row, count in ((ds[0], 4), (ds[2], 6)):
        assert psnr(row["cam"][:], portrait(count)) > LEAST_PSNR
    command = [
        sys.executable,
        "-c",
        "from seqlake.cli import main; main()",
        "convert",
        str(place),
        str(tmp_path / "cli"),
        "--images",
        "video",
    ]
    refused = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 1
    assert "fps" in refused.stderr
    done = subprocess.run([*command, "--fps", "10", "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 3), done.stderr
    assert sl.open(tmp_path / "cli").schema == ds.schema


# ---- the real set


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory):
    if not BRIDGE.is_dir():
        pytest.skip(f"the real set is not at {BRIDGE}")
    return sl.convert(BRIDGE, tmp_path_factory.mktemp("bridge") / "out", images="video", fps=5, workers=1)


CAMERAS = [f"image_{k}" for k in range(4)]


def test_bridge_has_a_video_for_every_camera(bridge) -> None:
    assert {bridge.schema[name].type.type for name in CAMERAS} == {"video"}
    assert {
        (len(row[name]), row[name].pts.tolist()[1] * row[name].time_base) for row in bridge for name in CAMERAS
    } == {(10, Fraction(1, 5))}
    assert len({row[name].reference for row in bridge for name in CAMERAS}) == 100


@pytest.mark.parametrize("name", CAMERAS)
def test_bridge_frames_are_near_the_source(bridge, name: str) -> None:
    source, nearest = sl.scan(BRIDGE), 0
    for row, before in zip(bridge, source, strict=True):
        expected = np.stack([decoded(before[name].bytes(k)) for k in range(10)])
        found = row[name][:]
        assert found.shape == (10, 64, 64, 3)
        assert psnr(found, expected) > LEAST_PSNR
        if name != "image_3":
            error = ((found[:, None].astype(np.float32) - expected[None]) ** 2).mean(axis=(2, 3, 4))
            # The robot stands still at times; where it moves, a neighbour's picture is far off.
            assert (np.diag(error) <= 1.5 * error.min(axis=1)).all()
            nearest += int((error.argmin(axis=1) == np.arange(10)).sum())
    assert name == "image_3" or nearest > 200, "frames are nearest to their own pictures"


@pytest.mark.parametrize("depth", ["rows", "files", "decode"])
def test_bridge_is_valid_at_every_depth(bridge, depth: str) -> None:
    """The black camera is worth a note once its frames are looked at; nothing else is said of any camera."""
    report = bridge.validate(depth=depth)
    assert not report.errors
    assert not report.warnings
    notes = {(finding.code, finding.column) for finding in report if finding.column in CAMERAS}
    assert notes == ({("F432", "image_3")} if depth == "decode" else set())


def test_a_rate_is_told_to_all_that_take_one(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "arm").mkdir()
    with h5py.File(tmp_path / "arm" / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((5, 3))
        file["observations/qpos"] = np.zeros((5, 2))
        file["observations/images/top"] = np.full((5, 32, 48, 3), 90, "u1")
    made = sl.convert(tmp_path / "arm", tmp_path / "video", images="video", fps=20, workers=1, progress=False)
    assert made is not None
    assert {made.schema[name].type.get("fps") for name in ("action", "qpos", "top")} == {20}
    sl.convert(tmp_path / "arm", tmp_path / "lerobot", to="lerobot", fps=20, workers=1, progress=False)
    assert sl.open(tmp_path / "lerobot").schema["action"].type.get("fps") == 20
    sl.convert(tmp_path / "arm", tmp_path / "replay", to="zarr_replay", fps=20, workers=1, progress=False)  # takes none
    assert len(sl.scan(tmp_path / "replay")) == 1
    with pytest.raises(TypeError, match="fps"):
        sl.convert(made, tmp_path / "other", to="zarr_replay", fps=20, progress=False)


def test_a_rate_is_told_to_rows_that_are_steps(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("ep,t,x\n" + "".join(f"e{n // 4},{n % 4},{n / 3}\n" for n in range(8)))
    options = {"sequence_id": "ep", "steps": "t", "fps": 25, "workers": 1, "progress": False}
    sl.convert(tmp_path / "steps.csv", tmp_path / "arm", to="lerobot", **options)
    assert sl.open(tmp_path / "arm").schema["x"].type.get("fps") == 25

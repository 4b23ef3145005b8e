"""Frames given to a writer: a video, images in the row, or a file each, and nothing left of a row that was refused."""

from __future__ import annotations

import io
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest
import torch

from seqlake.dataset import opening
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.media import Encoding
from seqlake.spec.column_types import Image, Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.training.loader import Loader

SCHEMA = Schema(
    {
        "n": pa.int64(),
        "length": pa.int64(),
        "cam": Video(fps=29.97, codec="H264", resolution=[64, 48]),
        "inline": Image(format="jpeg", frames="bytes"),
        "stills": Image(frames="files"),
        "goal": Image(),
    }
)


def pictures(count: int, *, height: int = 48, width: int = 64) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    waves = [np.stack([x + 5 * i, y + 3 * i, x - y + i], axis=-1) for i in range(count)]
    return (128 + 100 * np.sin(np.stack(waves) / 47)).astype(np.uint8)


def video(path: Path) -> tuple[np.ndarray, list[Fraction]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    rgb = [f.reformat(format="rgb24", src_colorspace="ITU709", threads=1).to_ndarray() for f in frames]
    return np.stack(rgb), [f.pts * f.time_base for f in frames]


def image(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return float(np.mean((found.astype(float) - expected) ** 2)) < 20  # 35 dB


def files_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opening.create(tmp_path / "ds", SCHEMA)
    return tmp_path / "ds"


def test_frames_become_what_the_column_is(root: Path) -> None:
    frames = pictures(20)
    ds = opening.open(root)
    with ds.writer() as writer:
        writer.add("a", cam=frames, inline=frames, stills=frames, goal=frames[3])
    row = ds.to_arrow().to_pylist()[0]
    assert row["cam"].startswith("files/cam/")
    assert row["cam"].endswith(".mp4")
    found, times = video(root / row["cam"])
    assert near(found, frames)
    assert times == [k / Fraction(30000, 1001) for k in range(20)]
    assert near(np.stack([image(data) for data in row["inline"]]), frames)
    assert all(data.startswith(b"\xff\xd8") for data in row["inline"])
    assert all(name.startswith("files/stills/") and name.endswith(".png") for name in row["stills"])
    assert np.array_equal(np.stack([image((root / name).read_bytes()) for name in row["stills"]]), frames)
    assert np.array_equal(image((root / row["goal"]).read_bytes()), frames[3])
    assert row["length"] == 20
    assert not [name for name in files_in(root) if name.startswith("_seqlake/staged")]
    before = files_in(root)
    ds.vacuum(older_than=timedelta(0))
    assert {name for name in before if name.startswith("files/")} <= files_in(root)
    assert ds.validate(depth="files").ok


@pytest.mark.parametrize(
    "given",
    [
        iter,
        list,
        torch.from_numpy,
        lambda frames: (torch.from_numpy(frame) for frame in frames),
    ],
    ids=["iterator", "list", "tensor", "tensors"],
)
def test_frames_of_any_kind(given, root: Path) -> None:
    frames = pictures(9)
    ds = opening.open(root)
    with ds.writer() as writer:
        writer.add("a", cam=given(frames), inline=given(frames), stills=given(frames))
    row = ds.to_arrow().to_pylist()[0]
    assert near(video(root / row["cam"])[0], frames)
    assert (len(row["inline"]), len(row["stills"]), row["length"]) == (9, 9, 9)


def test_what_is_encoded_already_passes_through(root: Path) -> None:
    frames = pictures(2)
    ds = opening.open(root)
    with ds.writer() as writer:
        writer.add("a", inline=[b"encoded", frames[0]], stills=["elsewhere/1.png", frames[1]], cam="s3://b/cam.mp4")
    row = ds.to_arrow().to_pylist()[0]
    assert row["inline"][0] == b"encoded"
    assert near(image(row["inline"][1]), frames[0])
    assert row["stills"][0] == "elsewhere/1.png"
    assert row["cam"] == "s3://b/cam.mp4"


def test_length_is_the_frames_of_the_video_where_no_signal_tells(tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema({"length": pa.int64(), "cam": Video(fps=30), "slow": Video(fps=15)}))
    with ds.writer() as writer:
        writer.add("both", slow=pictures(4), cam=pictures(8))
        writer.add("slow alone", slow=pictures(4))
        writer.add("said", cam=pictures(3), length=2)
    assert ds.to_arrow().column("length").to_pylist() == [8, None, 2]


def test_rows_of_dicts_take_frames_too(root: Path) -> None:
    ds = opening.open(root)
    ds.append([{"sequence_id": "a", "cam": pictures(3)}, {"sequence_id": "b", "n": 1}])
    assert len(video(root / first_cam(ds))[0]) == 3


def first_cam(ds) -> str:
    return ds.select("cam").to_arrow().column(0)[0].as_py()


def test_an_encoding_of_ones_own(tmp_path: Path) -> None:
    sizes = {}
    for crf in ("10", "40"):
        ds = opening.create(tmp_path / crf, Schema({"cam": Video(fps=10)}))
        with ds.writer(encoding=Encoding(options={"crf": crf})) as writer:
            writer.add("a", cam=pictures(20))
        sizes[crf] = (tmp_path / crf / first_cam(ds)).stat().st_size
    assert sizes["10"] > 2 * sizes["40"]


BAD = {
    "another size": ({"cam": pictures(3, width=66)}, "expected frames of 64x48 pixels, found 66x48"),
    "size changes": ({"cam": [pictures(1)[0], pictures(1, height=50)[0]]}, "step 1: expected frames of 64x48"),
    "floats": ({"cam": pictures(3).astype(np.float32)}, "expected a frame as uint8"),
    "one frame": ({"cam": pictures(1)[0]}, r"expected frames as \[T, H, W, 3\], found \[48, 64, 3\]"),
    "one image": ({"inline": pictures(1)[0]}, r"expected frames as \[T, H, W, 3\]"),
    "no frames": ({"cam": iter(())}, "expected at least one frame, found none"),
    "16 bit jpeg": ({"inline": np.zeros((2, 8, 8), np.uint16)}, "expected uint8, for JPEG, found uint16"),
    "mixed": ({"stills": [pictures(1)[0], np.zeros((48, 64), np.uint8)]}, "expected uint8 with 3 dimensions"),
    "another column": ({"cam": pictures(3), "n": "text"}, "expected int64"),
    "unknown column": ({"cam": pictures(3), "m": 1}, "m: is not in the schema"),
    "numbers": ({"cam": [1, 2]}, "expected a frame as uint8"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_leaves_nothing(case: str, root: Path) -> None:
    values, message = BAD[case]
    before = files_in(root)
    ds = opening.open(root)
    with ds.writer() as writer, pytest.raises((SchemaMismatchError, ValidationError), match=message):
        writer.add("bad", **values)
    assert files_in(root) == before
    with ds.writer() as writer:
        with pytest.raises((SchemaMismatchError, ValidationError)):
            writer.add("bad", **values)
        writer.add("good", cam=pictures(2))
    assert [row.id for row in opening.open(root)] == ["good"]
    assert len([name for name in files_in(root) if name.startswith("files/")]) == 1


def test_an_iterator_that_fails_leaves_nothing(root: Path) -> None:
    def frames():
        yield from pictures(5)
        raise ZeroDivisionError

    before = files_in(root)
    with opening.open(root).writer() as writer, pytest.raises(ZeroDivisionError):
        writer.add("a", inline=pictures(2), stills=pictures(2), cam=frames())
    assert files_in(root) == before


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"cam": Video()}, "found no fps in the schema.*sl.Video"),
        ({"cam": Video(fps=30, codec="av1")}, "declares the codec 'av1', found an encoder that makes 'h264'"),
    ],
)
def test_columns_that_frames_do_not_fit(schema: dict, message: str, tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema(schema))
    with ds.writer() as writer, pytest.raises(SchemaMismatchError, match=message):
        writer.add("a", cam=pictures(2))


def test_a_video_without_fps_takes_the_clocks(tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema({"x": Trajectory(dim=1, fps=20), "cam": Video()}))
    with ds.writer() as writer:
        writer.add("a", x=np.zeros((4, 1)), cam=pictures(4))
    assert video(tmp_path / "ds" / first_cam(ds))[1] == [k / Fraction(20) for k in range(4)]


# ---- frames with times of their own

TIMED = Schema(
    {
        "length": pa.int64(),
        "action": Trajectory(dim=1, fps=10),
        "cam": Video(timestamps="cam_times"),
        "cam_times": Trajectory(dim=1, dtype=pa.int64()),
    }
)
SECONDS = [Fraction(text) for text in ("5", "5.04", "5.0700004", "8", "8.5", "90.000123")]


def stamps(*, kind: str = "int64") -> np.ndarray:
    """[T, 1] in nanoseconds, or seconds."""
    whole = np.array([int(one * 10**9) for one in SECONDS])[:, None]
    return whole if kind == "int64" else whole / 1e9


def timed(tmp_path: Path, *, kind: str = "int64"):
    times = Trajectory(dim=1, dtype=pa.int64() if kind == "int64" else pa.float64())
    return opening.create(tmp_path / kind, TIMED.with_columns({"cam_times": times}))


@pytest.mark.parametrize("kind", ["int64", "float64"])
@pytest.mark.parametrize("given", [np.asarray, torch.from_numpy, np.ndarray.tolist], ids=["array", "tensor", "list"])
def test_a_frame_is_shown_at_its_own_time(kind: str, given, tmp_path: Path) -> None:
    """Its tick of 1/90000 s is the last one that is not after its time, so that it stands there at that time."""
    ds = timed(tmp_path, kind=kind)
    with ds.writer() as writer:
        writer.add("a", cam=iter(pictures(6)), cam_times=given(stamps(kind=kind)), action=np.zeros((850, 1)))
    found, shown = video(tmp_path / kind / first_cam(ds))
    assert near(found, pictures(6))
    since = [one - SECONDS[0] for one in SECONDS]
    assert shown == [Fraction(int(one * 90_000), 90_000) for one in since]
    assert ds["a"]["cam"].numbers_at(since).tolist() == list(range(6))
    assert ds["a"]["length"] == 850
    assert ds.validate(depth="files").ok


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (stamps()[::-1], "step 1: expected a frame at least 1/90000 s after the one before, found it -81.5001"),
        (np.arange(6)[:, None] * 5000, "step 1: expected a frame at least 1/90000 s after"),
        (stamps()[:5], "step 5: expected the frame's time in column 'cam_times', found none"),
        (np.arange(7)[:, None] * 10**9, "expected a frame for each of 7 times, found 6"),
        (None, "step 0: expected the frame's time in column 'cam_times'"),
        ([["a"]] * 6, "expected times as numbers"),
    ],
)
def test_times_that_do_not_fit(times, message: str, tmp_path: Path) -> None:
    ds = timed(tmp_path)
    before = files_in(tmp_path)
    with ds.writer() as writer, pytest.raises((SchemaMismatchError, ValidationError), match=message):
        writer.add("a", cam=pictures(6), cam_times=times)
    assert files_in(tmp_path) == before


def test_times_that_are_not_finite(tmp_path: Path) -> None:
    ds = timed(tmp_path, kind="float64")
    with ds.writer() as writer, pytest.raises(ValidationError, match="expected times that are finite, found nan"):
        writer.add("a", cam=pictures(2), cam_times=[[0.0], [np.nan]])


# ---- frames in an upsert


def test_frames_replace_frames(tmp_path: Path) -> None:
    schema = Schema({"length": pa.int64(), "cam": Video(fps=10), "stills": Image(frames="files"), "n": pa.int64()})
    root = tmp_path / "ds"
    ds = opening.create(root, schema)
    with ds.writer() as writer:
        for name in "ab":
            writer.add(name, cam=pictures(4), stills=pictures(4), n=1)
    kept = ds["b"]["cam"].reference
    ds.upsert(
        [
            {"sequence_id": "a", "cam": pictures(7)[::-1], "stills": pictures(7)},
            {"sequence_id": "c", "cam": iter(pictures(3)), "n": 5},
        ],
        encoding=Encoding(keyframe_every=2),
    )
    assert ds.to_arrow().column("length").to_pylist() == [7, 4, 3]
    assert ds.to_arrow().column("n").to_pylist() == [1, 1, 5]
    assert ds["b"]["cam"].reference == kept
    assert near(video(root / ds["a"]["cam"].reference)[0], pictures(7)[::-1])
    assert np.array_equal(ds["a"]["stills"][:], pictures(7))
    with av.open(str(root / ds["c"]["cam"].reference)) as container:
        assert [frame.key_frame for frame in container.decode(video=0)] == [True, False, True]
    assert not [name for name in files_in(root) if name.startswith("_seqlake/staged")]
    ds.vacuum(older_than=timedelta(0))
    assert ds.validate(depth="files").ok
    assert len(ds["a"]["cam"]) == 7


def test_frames_alone_leave_the_length_that_a_signal_told(tmp_path: Path) -> None:
    schema = Schema({"length": pa.int64(), "x": Trajectory(dim=1, fps=10), "cam": Video(fps=10)})
    ds = opening.create(tmp_path / "ds", schema)
    with ds.writer() as writer:
        writer.add("a", x=np.zeros((5, 1)), cam=pictures(5))
    ds.upsert([{"sequence_id": "a", "cam": pictures(3)}, {"sequence_id": "b", "cam": pictures(2)}])
    assert ds.to_arrow().column("length").to_pylist() == [5, 2]
    ds.upsert([{"sequence_id": "a", "x": np.zeros((4, 1)), "cam": pictures(4)}, {"sequence_id": "b", "length": 9}])
    assert ds.to_arrow().column("length").to_pylist() == [4, 9]


def test_an_upsert_that_fails_leaves_nothing(root: Path) -> None:
    ds = opening.open(root)
    before = files_in(root)
    for row in ({"cam": pictures(3, width=66)}, {"cam": pictures(3), "n": "text"}):
        with pytest.raises((SchemaMismatchError, ValidationError)):
            ds.upsert([{"sequence_id": "good", "cam": pictures(2)}, {"sequence_id": "bad", **row}])
        assert files_in(root) == before


def test_windows_show_the_frame_that_stands_at_each_step(tmp_path: Path) -> None:
    """At 10 steps a second: frames taken at 0, 0.25, 0.3 and 0.8 s after the start."""
    ds = timed(tmp_path)
    levels = np.array([0, 60, 120, 180], np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (4, 48, 64, 3))
    times = 7_000_000_000 + np.array([[0], [250_000_000], [300_000_000], [800_000_000]])
    with ds.writer() as writer:
        writer.add("a", cam=frames, cam_times=times, action=np.zeros((10, 1)))
    [batch] = Loader(ds, window={"cam": range(1)}, batch_size=10, shuffle=False)
    nearest = np.abs(batch["cam"][:, 0, 0, 0, :1].astype(int) - levels).argmin(axis=1)
    assert nearest.tolist() == [0, 0, 0, 2, 2, 2, 2, 2, 3, 3]

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
from seqlake.media._encoding import Encoding
from seqlake.spec.column_types import Image, Trajectory, Video
from seqlake.spec.schema import Schema

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
    ds.collect(older_than=timedelta(0))
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

"""Frames equal what the system's own `ffmpeg` command decodes, another build and release than the one inside PyAV."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from seqlake.media import video
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

from . import clips

REAL = Path(__file__).parents[3] / "shared" / "data" / "nasa_13013.mp4"
real = pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data beside the checkout")
pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg command")

CASES = [
    *((name, 0) for name in clips.CLIPS),
    ("several streams", 1),
    pytest.param("real", 0, marks=real),
    pytest.param("real", 1, marks=real),
]


def file_of(name: str, folder: Path) -> Path:
    if name == "real":
        return REAL
    path = folder / "clip"
    path.write_bytes(clips.clip(name))
    return path


def opened(path: Path, stream: int) -> video.VideoDecoder:
    return video.open(Source(blob=path.read_bytes(), column=Video(stream=stream)))


def ffmpeg(path: Path, stream: int, *options: str) -> bytes:
    """Raw frames of a stream, one after the other, as they come and not turned."""
    reading = ["ffmpeg", "-v", "error", "-nostdin", "-noautorotate", "-i", str(path), "-map", f"0:v:{stream}"]
    writing = ["-fps_mode", "passthrough", *options, "-f", "rawvideo", "-"]
    return subprocess.run([*reading, *writing], check=True, capture_output=True, timeout=60).stdout


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "stream"), CASES)
def test_planes_are_equal_byte_for_byte(name: str, stream: int, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    decoder = opened(path, stream)
    frames = decoder.planes(np.arange(len(decoder)))
    found = b"".join(plane.tobytes() for _, frame in frames for plane in clips.planes(frame))
    expected = ffmpeg(path, stream)
    if name == "hevc cut at an open group":
        # FFmpeg 5.1 also shows the leading pictures whose references were cut off, as grey; later releases do not.
        expected = expected[len(expected) - len(found) :]
    assert found == expected


@pytest.mark.parametrize(
    "name",
    ["h264 with B-frames", "h264 4:4:4, odd size", "mjpeg", "vp9, odd size", "av1", pytest.param("real", marks=real)],
)
def test_rgb_of_8_bits_is_within_2(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    decoder = opened(path, 0)
    found = decoder.read(np.arange(len(decoder)))
    raw = ffmpeg(path, 0, "-sws_flags", "bicubic", "-pix_fmt", "rgb24")
    expected = np.frombuffer(raw, np.uint8).reshape(found.shape)
    assert np.abs(found.astype(int) - expected).max() <= 2

"""Parts of videos end to end: the same packets, the same pictures, and each frame at its time."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from seqlake.errors import CorruptFrameError
from seqlake.files.blobs import LocalBlob
from seqlake.media.video import joining
from seqlake.media.video.joining import Clip
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

SIZE = (48, 64)


def film(path: Path, frames: int, *, codec: str = "libx264", shade: int = 0, **options: str) -> np.ndarray:
    """A video of random blocks; what it decodes to, by PyAV alone."""
    rng = np.random.default_rng(shade)
    settings = {"g": "8", "bf": "0", "sc_threshold": "0"} if codec == "libx264" else {}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={**settings, **options})
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for _ in range(frames):
            blocks = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
            pixels = np.repeat(np.repeat(blocks, 8, axis=0), 8, axis=1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return decoded(path.read_bytes())[0]


def decoded(data: bytes) -> tuple[np.ndarray, list[Fraction]]:
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(video=0))
    return np.stack([one.to_ndarray(format="rgb24") for one in frames]), [one.pts * one.time_base for one in frames]


def clip(path: Path, start: int, stop: int) -> Clip | str:
    return joining.clip_of(Source(blob=LocalBlob(path), column=Video(fps=25)), start=start, stop=stop)


@pytest.mark.parametrize("rate", [Fraction(25), Fraction(30000, 1001), Fraction(25, 2), Fraction(1)])
@pytest.mark.parametrize("options", [{}, {"bf": "2", "g": "6", "x264-params": "open-gop=0"}])
def test_frames_are_the_same_at_their_times(tmp_path: Path, rate: Fraction, options: dict[str, str]) -> None:
    clips, expected = [], []
    for number, (frames, start) in enumerate([(18, 0), (7, 0), (1, 0), (30, int(options.get("g", "8")))]):
        path = tmp_path / f"{number}.mp4"
        pictures = film(path, frames, shade=number, **options)
        one = clip(path, start, frames)
        assert isinstance(one, Clip), one
        assert one.frames == frames - start
        clips.append(one)
        expected.append(pictures[start:])
    joining.join(clips, tmp_path / "all.mp4", rate=rate)
    pictures, times = decoded((tmp_path / "all.mp4").read_bytes())
    np.testing.assert_array_equal(pictures, np.concatenate(expected))
    assert times == [step / rate for step in range(len(pictures))]


@pytest.mark.parametrize("codec", ["libx265", "libsvtav1", "mpeg4", "libvpx-vp9"])
def test_other_codecs(tmp_path: Path, codec: str) -> None:
    options = {"x265-params": "log-level=error:bframes=2:open-gop=0"} if codec == "libx265" else {}
    clips, expected = [], []
    for number in range(2):
        path = tmp_path / f"{number}.mp4"
        expected.append(film(path, 12, codec=codec, shade=number, **options))
        one = clip(path, 0, 12)
        assert isinstance(one, Clip), one
        clips.append(one)
    joining.join(clips, tmp_path / "all.mp4", rate=Fraction(10))
    pictures, times = decoded((tmp_path / "all.mp4").read_bytes())
    np.testing.assert_array_equal(pictures, np.concatenate(expected))
    assert times == [Fraction(step, 10) for step in range(24)]


def test_what_cannot_be_joined_says_why(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 20)
    assert "key frames" in str(clip(tmp_path / "a.mp4", 3, 20))
    with pytest.raises(IndexError):
        clip(tmp_path / "a.mp4", 0, 21)
    film(tmp_path / "b.mkv", 5, codec="libvpx")
    assert "vp8" in str(clip(tmp_path / "b.mkv", 0, 5))


def test_clips_of_other_parameters_are_refused(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 8)
    film(tmp_path / "b.mp4", 8, codec="mpeg4")
    clips = [clip(tmp_path / name, 0, 8) for name in ("a.mp4", "b.mp4")]
    assert all(isinstance(one, Clip) for one in clips)
    with pytest.raises(ValueError, match="parameters"):
        joining.join([one for one in clips if isinstance(one, Clip)], tmp_path / "all.mp4", rate=Fraction(25))


def test_bytes_that_changed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    film(path, 8)
    one = clip(path, 0, 8)
    assert isinstance(one, Clip)
    data = bytearray(path.read_bytes())
    data[int(one.packets.offset[3]) + 8] ^= 255
    path.write_bytes(data)
    changed = Clip(packets=one.packets, blob=LocalBlob(path), plan=one.plan)
    with pytest.raises(CorruptFrameError, match="damaged"):
        joining.join([changed], tmp_path / "all.mp4", rate=Fraction(25))
    assert not (tmp_path / "all.mp4").exists()


def test_a_whole_file_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    film(path, 16)
    whole, part = clip(path, 0, 16), clip(path, 0, 8)
    assert isinstance(whole, Clip)
    assert isinstance(part, Clip)
    assert whole.is_file(Fraction(25))
    assert not whole.is_file(Fraction(24))
    assert not part.is_file(Fraction(25))


def test_sound_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    film(path, 16)
    with av.open(str(path)) as source, av.open(str(tmp_path / "b.mp4"), "w") as out:
        video = out.add_stream_from_template(source.streams.video[0])
        sound = out.add_stream("aac", rate=16_000, layout="mono")
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = video
                out.mux(packet)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 16_000, 0
        out.mux([*sound.encode(silence), *sound.encode(None)])
    one = clip(tmp_path / "b.mp4", 0, 16)
    assert isinstance(one, Clip)
    assert not one.is_file(Fraction(25))
    joining.join([one], tmp_path / "c.mp4", rate=Fraction(25))
    with av.open(str(tmp_path / "c.mp4")) as container:
        assert [stream.type for stream in container.streams] == ["video"]
    np.testing.assert_array_equal(decoded((tmp_path / "c.mp4").read_bytes())[0], decoded(path.read_bytes())[0])

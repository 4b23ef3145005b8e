"""Frames that are encoded: every one of them is there, at its time, in its colours; read back by plain PyAV."""

from __future__ import annotations

import errno
import io
import os
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from seqlake import plugins
from seqlake.errors import SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.media import Encoding, VideoEncoder, _encoding, encode_image, image_format

LEAST_PSNR = 36.0  # dB, of the smooth clip at crf 23


def clip(frames: int, height: int, width: int) -> np.ndarray:
    """Smooth waves that move: uint8 [T, H, W, 3]."""
    y, x = np.mgrid[:height, :width]
    out = np.empty((frames, height, width, 3), np.uint8)
    for i in range(frames):
        waves = np.sin((x + 3 * i) / 23), np.sin((y + 2 * i) / 31), np.cos((x - y + i) / 41)
        out[i] = np.stack([128 + 100 * wave for wave in waves], axis=-1).astype(np.uint8)
    return out


def psnr(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.mean((found.astype(np.float64) - expected) ** 2)
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def encode_at(path: Path, frames, ticks) -> Path:
    encoder = VideoEncoder(path, fps=None)
    for frame, tick in zip(frames, ticks, strict=True):
        encoder.write(frame, tick=tick)
    encoder.close()
    return path


def encode(path: Path, frames, fps: Fraction = Fraction(30), encoding: Encoding | None = None) -> Path:
    encoder = VideoEncoder(path, fps=fps, encoding=encoding)
    for frame in frames:
        encoder.write(frame)
    encoder.close()
    return path


def decoded(path: Path) -> tuple[list[av.VideoFrame], SimpleNamespace]:
    """All frames, and what the stream says: a stream of PyAV may not be asked once its container is closed."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        said = {n: getattr(stream, n) for n in ("average_rate", "duration", "time_base", "codec_context")}
        return list(container.decode(stream)), SimpleNamespace(**said)


def as_rgb(frames: list[av.VideoFrame]) -> np.ndarray:
    return np.stack([f.reformat(format="rgb24", src_colorspace="ITU709", threads=1).to_ndarray() for f in frames])


@pytest.mark.parametrize(
    ("size", "fps"),
    [
        ((240, 320), Fraction(30)),
        ((241, 319), Fraction(30000, 1001)),
        ((96, 129), Fraction(25, 2)),
        ((129, 96), Fraction(1, 3)),
        ((48, 64), Fraction(997, 991)),
        ((64, 64), Fraction(200)),
        ((2, 2), Fraction(60)),
        ((1, 1), Fraction(60)),
    ],
    ids=str,
)
def test_every_frame_is_there_at_its_time(size: tuple[int, int], fps: Fraction, tmp_path: Path) -> None:
    expected = clip(25, *size)
    frames, stream = decoded(encode(tmp_path / "a.mp4", expected, fps))
    assert [f.pts * f.time_base for f in frames] == [k / fps for k in range(25)]
    assert stream.average_rate == fps
    assert stream.duration * stream.time_base == 25 / fps
    assert (frames[0].height, frames[0].width) == size
    assert psnr(as_rgb(frames), expected) > LEAST_PSNR


def test_the_training_profile(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", clip(33, 64, 80))
    frames, stream = decoded(path)
    context = stream.codec_context
    assert context.name == "h264"
    assert (context.pix_fmt, context.color_range, context.colorspace) == ("yuv420p", 1, 1)
    assert (context.color_primaries, context.color_trc) == (1, 1)
    assert [k for k, f in enumerate(frames) if f.key_frame] == [0, 8, 16, 24, 32]
    assert {int(f.pict_type) for f in frames} == {1, 2}, "I and P"
    assert context.has_b_frames == 0
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    assert [p.pts for p in packets] == sorted(p.pts for p in packets)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "a reader of the head knows every frame"


@pytest.mark.parametrize("colour", [(0, 0, 255), (255, 0, 0), (0, 255, 0), (255, 255, 255), (0, 0, 0), (200, 120, 40)])
def test_pixels_are_converted_with_the_matrix_of_the_tags(colour: tuple[int, ...], tmp_path: Path) -> None:
    """BT.709, limited range: the luma that the formula gives, and the colour back."""
    still = np.broadcast_to(np.array(colour, np.uint8), (4, 64, 64, 3))
    frames, _ = decoded(encode(tmp_path / "a.mp4", still, encoding=Encoding(options={"crf": "1"})))
    luma = frames[0].to_ndarray()[:64, :64].astype(float).mean()
    red, green, blue = (c / 255 for c in colour)
    assert abs(luma - (16 + 219 * (0.2126 * red + 0.7152 * green + 0.0722 * blue))) < 1.5
    assert np.abs(as_rgb(frames).astype(int) - still).max() <= 6


def test_buffers_may_be_reused_and_arrays_strided(tmp_path: Path) -> None:
    expected = clip(10, 64, 80)
    buffer = np.empty((64, 160, 3), np.uint8)
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30))
    for frame in expected:
        buffer[:, ::2] = frame
        encoder.write(buffer[:, ::2])
        buffer[:] = 0
    encoder.close()
    assert encoder.frames == 10
    assert psnr(as_rgb(decoded(tmp_path / "a.mp4")[0]), expected) > LEAST_PSNR


@pytest.mark.parametrize(
    "ticks", [[0], [0, 1, 2, 3], [0, 2999, 6000, 6001, 90_000, 90_000 * 7200], [7, 9, 1000]], ids=str
)
def test_frames_with_times_of_their_own(ticks: list[int], tmp_path: Path) -> None:
    """The last is two hours on: ticks and their sums are counted in more than 32 bits."""
    expected = clip(len(ticks), 240, 320)
    frames, stream = decoded(encode_at(tmp_path / "a.mp4", expected, ticks))
    assert stream.time_base == Fraction(1, 90_000)
    assert [f.pts - frames[0].pts for f in frames] == [tick - ticks[0] for tick in ticks]
    assert psnr(as_rgb(frames), expected) > LEAST_PSNR


def test_ticks_that_do_not_ascend(tmp_path: Path) -> None:
    frame = np.zeros((32, 48, 3), np.uint8)
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=None)
    encoder.write(frame, tick=5)
    for tick in (5, 4):
        with pytest.raises(ValidationError, match=f"after tick 5 of 1/90000 s, found one at {tick}"):
            encoder.write(frame, tick=tick)
    with pytest.raises(ValueError, match="a constant rate, or each has a tick"):
        encoder.write(frame)
    with pytest.raises(ValueError, match="a constant rate, or each has a tick"):
        VideoEncoder(tmp_path / "b.mp4", fps=Fraction(30)).write(frame, tick=0)
    encoder.write(frame, tick=6)
    encoder.close()
    first, second = (f.pts for f in decoded(tmp_path / "a.mp4")[0])
    assert second - first == 1


def test_options_of_ones_own(tmp_path: Path) -> None:
    frames = clip(24, 128, 128)
    fine = encode(tmp_path / "fine.mp4", frames, encoding=Encoding(options={"crf": "10", "preset": "ultrafast"}))
    coarse = encode(tmp_path / "coarse.mp4", frames, encoding=Encoding(options={"crf": "40"}, keyframe_every=4))
    other = encode(tmp_path / "other.mp4", frames, encoding=Encoding(codec="mpeg4", options={"qmin": "2"}))
    assert psnr(as_rgb(decoded(fine)[0]), frames) > psnr(as_rgb(decoded(coarse)[0]), frames) + 5
    assert [k for k, f in enumerate(decoded(coarse)[0]) if f.key_frame] == list(range(0, 24, 4))
    assert decoded(other)[1].codec_context.name == "mpeg4"
    assert len(decoded(other)[0]) == 24
    assert (Encoding().produces, Encoding(codec="mpeg4").produces) == ("h264", "mpeg4")


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (Encoding(codec="nothing"), "found none called 'nothing'"),
        (Encoding(options={"preset": "nonsense"}), "libx264 refused the options"),
        (Encoding(options={"crff": "3"}), "Expected options of libx264, found crff"),
        (Encoding(options={"x264-params": "keyint=9:crff=3"}), "Error parsing option 'crff = 3'"),
        (Encoding(pixel_format="yuv420p10le"), "8 bits a sample, such as yuv420p"),
        (Encoding(pixel_format="yuv"), "libx264 writes yuv420p, .*; found 'yuv'"),
        (Encoding(codec="libsvtav1", pixel_format="yuv444p"), "libsvtav1 writes yuv420p; found 'yuv444p'"),
    ],
)
def test_options_that_are_none(encoding: Encoding, message: str, tmp_path: Path) -> None:
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30), encoding=encoding)
    with pytest.raises(SeqlakeError, match=message):
        encoder.write(np.zeros((32, 32, 3), np.uint8))
    encoder.abort()
    assert not list(tmp_path.iterdir())


def test_options_that_would_have_no_effect() -> None:
    with pytest.raises(ValueError, match="'g' would have no effect: give keyframe_every"):
        Encoding(options={"g": "3"})
    with pytest.raises(ValueError, match="takes no options"):
        Encoding(codec="auto", options={"crf": "3"})


@pytest.mark.parametrize("pixel_format", ["yuv422p", "yuv444p"])
def test_pixel_formats(pixel_format: str, tmp_path: Path) -> None:
    frames = clip(6, 48, 64)
    file = encode(tmp_path / "a.mp4", frames, encoding=Encoding(pixel_format=pixel_format, options={"crf": "8"}))
    pictures, stream = decoded(file)
    assert stream.codec_context.pix_fmt == pixel_format
    assert psnr(as_rgb(pictures), frames) > 33


def test_subsampled_colour_needs_even_sizes(tmp_path: Path) -> None:
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30), encoding=Encoding(pixel_format="yuv420p"))
    with pytest.raises(SchemaMismatchError, match="even width and height for yuv420p, found 33x32"):
        encoder.write(np.zeros((32, 33, 3), np.uint8))


def test_auto_takes_the_first_encoder_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where hardware has none it is libx264, by the training profile; a name that FFmpeg lacks is passed over."""
    _encoding._fastest.cache_clear()
    chosen = Encoding(codec="auto").encoder
    assert chosen in {*_encoding._HARDWARE, "libx264"}
    file = encode(tmp_path / "a.mp4", clip(16, 256, 256), encoding=Encoding(codec="auto"))
    pictures, stream = decoded(file)
    assert (len(pictures), stream.codec_context.name) == (16, "h264")
    assert [k for k, picture in enumerate(pictures) if picture.key_frame] == [0, 8]
    monkeypatch.setattr(_encoding, "_HARDWARE", ("no_such_encoder", "libx264rgb", "mpeg4"))
    _encoding._fastest.cache_clear()
    assert Encoding(codec="auto").encoder == "mpeg4"  # libx264rgb takes no 4:2:0
    _encoding._fastest.cache_clear()


def test_bad_keyframe_interval() -> None:
    with pytest.raises(ValueError, match="at least 1; found 0"):
        Encoding(keyframe_every=0)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros((3, 32, 48), np.uint8), r"expected a frame as uint8 \[H, W, 3\], found uint8 .*Channels come last"),
        (np.zeros((32, 48, 3), np.float32), r"found float32 \[32, 48, 3\]"),
        (np.zeros((32, 48), np.uint8), r"found uint8 \[32, 48\]"),
        (np.zeros((0, 48, 3), np.uint8), r"found uint8 \[0, 48, 3\]"),
        (np.zeros((32, 50, 3), np.uint8), "expected frames of 48x32 pixels, found 50x32"),
        ("frame", "found str"),
    ],
    ids=str,
)
def test_what_is_no_frame_is_refused_and_the_rest_goes_on(frame: object, message: str, tmp_path: Path) -> None:
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30))
    encoder.write(np.zeros((32, 48, 3), np.uint8))
    with pytest.raises(SchemaMismatchError, match=message):
        encoder.write(frame)
    encoder.write(np.zeros((32, 48, 3), np.uint8))
    encoder.close()
    assert len(decoded(tmp_path / "a.mp4")[0]) == 2


def test_no_frames_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="at least one frame"):
        VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30)).close()
    assert not list(tmp_path.iterdir())


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30))
    encoder.abort()
    for frame in clip(20, 64, 64):
        encoder.write(frame)
    encoder.abort()
    encoder.abort()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").symlink_to("/dev/full")
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30))
    with pytest.raises(OSError, match="No space") as caught:
        for frame in np.random.default_rng(0).integers(0, 256, (60, 64, 64, 3), np.uint8):
            encoder.write(frame)
    assert caught.value.errno == errno.ENOSPC
    encoder.abort()
    assert not list(tmp_path.iterdir())


# ---- images


def read_image(data: bytes, layout: str) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return next(container.decode(video=0)).to_ndarray(format=layout)


@pytest.mark.parametrize("size", [(96, 130), (97, 131), (1, 1)])
def test_png_is_exact_picture_after_picture(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        colour = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
        grey = rng.integers(0, 256, size).astype(np.uint8)
        depth = rng.integers(0, 1 << 16, size).astype(np.uint16)
        for picture, layout in ((colour, "rgb24"), (grey, "gray"), (depth, "gray16le")):
            data = encode_image(picture)
            assert data.startswith(b"\x89PNG")
            assert np.array_equal(read_image(data, layout), picture)


@pytest.mark.parametrize("size", [(96, 130), (97, 131)])
def test_jpeg_is_near(size: tuple[int, int]) -> None:
    for picture in clip(3, *size):
        data = encode_image(picture, format="jpeg")
        assert data.startswith(b"\xff\xd8")
        assert psnr(read_image(data, "rgb24"), picture) > 40
        grey = picture[..., 0]
        assert psnr(read_image(encode_image(grey, format="jpeg"), "rgb24")[..., 1], grey) > 40


def test_what_is_no_image() -> None:
    with pytest.raises(SchemaMismatchError, match="PNG holds 16 bits"):
        encode_image(np.zeros((4, 4), np.uint16), format="jpeg")
    with pytest.raises(SchemaMismatchError, match="or grey as uint8 or uint16"):
        encode_image(np.zeros((4, 4), np.float32))
    assert [image_format(name) for name in (None, "JPG", "jpeg", "png")] == ["png", "jpeg", "jpeg", "png"]
    with pytest.raises(SchemaMismatchError, match="expected the format png or jpeg.*found 'webp'|found 'webp'"):
        image_format("webp")


def test_the_encoder_is_no_decoder_plug() -> None:
    assert not [name for name in plugins.names("media") if "encoding" in name]


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libsvtav1"])
def test_a_frame_alone_is_a_video(codec: str, tmp_path: Path) -> None:
    """libx265 gave it a time of decoding out of memory, which the container refused one time in five."""
    frame = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    for number in range(20 if codec == "libx265" else 1):
        encoder = VideoEncoder(tmp_path / "one.mp4", fps=Fraction(10), encoding=Encoding(codec=codec))
        encoder.write(frame)
        encoder.close()
        with av.open(str(tmp_path / "one.mp4")) as container:
            [packet] = [one for one in container.demux(video=0) if one.size]
            assert (packet.pts, packet.dts) == (0, 0), number


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only what root runs may have real time")
def test_encoding_av1_leaves_the_process_its_priority(tmp_path: Path) -> None:
    """As root SVT-AV1 makes whoever opens it a real-time thread, before all else on the machine."""

    def policies() -> list[int]:
        return [os.sched_getscheduler(int(one.name)) for one in Path("/proc/self/task").iterdir()]

    before = len(policies())
    encoder = VideoEncoder(tmp_path / "one.mp4", fps=Fraction(10), encoding=Encoding(codec="libsvtav1"))
    for shade in range(12):
        encoder.write(np.full((64, 64, 3), shade, np.uint8))
        assert len(policies()) > before, "the encoder's threads are there"
        assert set(policies()) == {os.SCHED_OTHER}
    encoder.close()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER

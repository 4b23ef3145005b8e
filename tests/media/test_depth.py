"""Depth between metres and codes: LeRobot's arithmetic, done again here number by number, and bounds of the error."""

from __future__ import annotations

import io
import shutil
import subprocess
from fractions import Fraction
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.soak import SOAK

from seqlake import media
from seqlake.errors import DecodeError, InvalidMetadataError, SchemaMismatchError, ValidationError
from seqlake.media import Encoding, VideoEncoder, depth_picture
from seqlake.media._depth import codes_of, metres_of
from seqlake.media.video.cutting import cut
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType, Depth
from seqlake.spec.depth import Measure, measure_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 4095
LEROBOT = {
    "is_depth_map": True,
    "depth_unit": "mm",
    "video.pix_fmt": "gray12le",
    "video.codec": "hevc",
    "video.depth_min": 0.01,
    "video.depth_max": 10.0,
    "video.shift": 3.5,
    "video.use_log": True,
}  # as its info.json has it


def lerobot_code(metres: float, low: float, high: float, shift: float, *, bent: bool) -> int:
    if bent:
        place = (log(metres + shift) - log(low + shift)) / (log(high + shift) - log(low + shift))
    else:
        place = (metres - low) / (high - low)
    return int(min(max(round(place * LARGEST), 0), LARGEST))


def lerobot_metres(code: int, low: float, high: float, shift: float, *, bent: bool) -> float:
    if not bent:
        return min(max(low + code * (high - low) / LARGEST, low), high)
    place = log(low + shift) + code * (log(high + shift) - log(low + shift)) / LARGEST
    return min(max(exp(place) - shift, low), high)


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(0, 2),
    more=st.floats(0.1, 50),
    shift=st.floats(0.01, 10),
    bent=st.booleans(),
    kept=st.sampled_from([None, 0]),
    places=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_what_comes_back_is_as_near_as_a_step(
    low: float, more: float, shift: float, *, bent: bool, kept: int | None, places: list[float]
) -> None:
    high = low + more
    measure = Measure(scale=None, unit=0.001, nearest=low, farthest=high, shift=shift if bent else None, invalid=kept)
    metres = np.array([low + place * more for place in places])
    metres = metres[metres > 0]
    codes = codes_of(metres, measure, LARGEST)
    back = metres_of(measure, LARGEST)[codes].astype(np.float64)
    step = (log(high + shift) - log(low + shift)) / LARGEST if bent else more / LARGEST
    for true, code, found in zip(metres.tolist(), codes.tolist(), back.tolist(), strict=True):
        wanted = lerobot_code(true, low, high, shift, bent=bent)
        assert abs(code - wanted) <= 1 if wanted in {0, 1} and kept == 0 else code in {wanted - 1, wanted, wanted + 1}
        assert code > 0 or kept is None  # nearest depth is no missing depth
        assert found == pytest.approx(measure.metres(code, LARGEST), rel=1e-5, abs=1e-6)
        assert found == pytest.approx(lerobot_metres(code, low, high, shift, bent=bent), rel=1e-5, abs=1e-6)
        steps = 1.0 if code == 1 and kept == 0 else 0.5  # code 0 is taken: the first half step moves up
        bound = (true + shift) * (exp(step * steps) - 1) if bent else step * steps
        assert abs(found - true) <= bound * 1.001 + 1e-5


@settings(max_examples=30, deadline=None)
@given(unit=st.sampled_from(["m", "cm", "mm", "um"]), code=st.integers(0, 65535))
def test_codes_that_count_units_come_back_exactly(unit: str, code: int) -> None:
    measure = measure_of({"is_depth_map": True, "units": unit, "invalid": 0})
    assert measure is not None
    metres = metres_of(measure, 65535)[code]
    assert codes_of(np.array([metres]), measure, 65535)[0] == code
    assert codes_of(np.array([code], np.uint16), measure, 65535)[0] == code


@pytest.mark.parametrize("nothing", [0.0, -1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [Depth(), Depth(depth_max=4.0), Depth(depth_max=4.0, use_log=False)])
def test_no_measurement_stays_none(nothing: float, kind: ColumnType) -> None:
    codes = depth_picture(np.array([[nothing, 1.0, 0.001]]), kind, LARGEST)
    assert codes[0, 0] == 0
    assert (codes[0, 1:] > 0).all()
    measure = measure_of(kind.fields)
    assert measure is not None
    assert metres_of(measure, LARGEST)[0] == 0


def test_depth_that_has_no_code_is_refused_and_quantised_depth_ends_at_its_range() -> None:
    with pytest.raises(ValidationError, match="expected depth of 0 to 65.535 m, .*found 70 m"):
        depth_picture(np.array([[70.0]]), Depth(), 65535)
    with pytest.raises(ValidationError, match="found -0.001 m"):
        depth_picture(np.array([[-1]], np.int32), Depth(), 65535)
    measure = measure_of(Depth(depth_max=4.0).fields)
    assert measure is not None
    assert metres_of(measure, LARGEST)[depth_picture(np.array([[70.0]]), Depth(depth_max=4.0), LARGEST)] == 4.0
    with pytest.raises(SchemaMismatchError, match=r"expected depth as \[H, W\].*uint8 \[4, 4, 3\]"):
        depth_picture(np.zeros((4, 4, 3), np.uint8), Depth(), 65535)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"units": "parsec"}, "units: expected one of m, cm, mm, um, found 'parsec'"),
        ({"depth_max": 1.0, "depth_min": 2.0}, "depth_min: expected metres from 0 to less than depth_max, 1.0"),
        ({"depth_max": 1.0, "shift": -0.5}, "shift: expected metres, with depth_min"),
        ({"depth_scale": 0.0}, "depth_scale: expected metres of one code, more than 0"),
        ({"depth_scale": 0.001, "depth_max": 4.0}, "none beside depth_max"),
        ({"invalid": -1}, "invalid: expected a code, 0 to 65535"),
        ({"shift": 1.0}, "belong to a range: give depth_max, too"),
        ({"frames": "rows"}, 'frames must be "bytes" or "files"'),
    ],
)
def test_fields_that_contradict_each_other(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidMetadataError, match=message):
        Depth(**fields)


def test_a_column_of_depth_is_one_after_it_was_written_down() -> None:
    for kind in (Depth(fps=30), Depth(depth_max=3.0), Depth(frames="bytes"), Depth(depth_scale=2e-4, invalid=None)):
        again = ColumnType.from_json(kind.to_json())
        assert type(again) is Depth
        assert again == kind
        assert again.arrow == kind.arrow


def encoded(path: Path, frames: np.ndarray, pixels: str, **fields: Any) -> bytes:
    encoding = Encoding.fitting(pixels) if not fields else Encoding(pixel_format=pixels, **fields)
    encoder = VideoEncoder(path, fps=Fraction(30), encoding=encoding)
    for frame in frames:
        encoder.write(frame)
    encoder.close()
    return path.read_bytes()


def noise(bits: int, count: int = 6) -> np.ndarray:
    dtype = np.uint8 if bits == 8 else np.uint16
    return np.random.default_rng(bits).integers(0, 1 << bits, (count, 34, 50)).astype(dtype)


@pytest.mark.parametrize(("pixels", "bits"), [("gray", 8), ("gray10le", 10), ("gray12le", 12), ("gray16le", 16)])
def test_grey_is_written_without_loss(pixels: str, bits: int, tmp_path: Path) -> None:
    codes = noise(bits)
    data = encoded(tmp_path / "a.mp4", codes, pixels)
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.pix_fmt == pixels
        assert stream.codec_context.name == ("hevc" if bits == 12 else "ffv1")
        frames = [np.frombuffer(f.planes[0], codes.dtype).reshape(34, -1)[:, :50] for f in container.decode(stream)]
        times = [packet.pts * packet.time_base for packet in container.demux(stream) if packet.size]
    np.testing.assert_array_equal(frames, codes)
    assert times == []  # all were decoded
    decoder = media.open(Source(blob=data, column=ColumnType("video", pixel_format=pixels)))
    np.testing.assert_array_equal(decoder.read(np.arange(6))[..., 0], codes)
    assert [tick * decoder.time_base for tick in decoder.pts.tolist()] == [Fraction(k, 30) for k in range(6)]


def short_clips(count: int) -> Iterator[np.ndarray]:
    """Noise of 12 bits; x265 lost something of one of a hundred, at the edges of pictures that refer to others."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        height, width, frames = random.integers(8, 36) * 2, random.integers(8, 36) * 2, random.integers(2, 9)
        yield random.integers(0, 4096, (frames, height, width)).astype(np.uint16)


def referring(codes: np.ndarray) -> bytes:
    """A film of 12 bits with one key frame."""
    made = io.BytesIO()
    with av.open(made, "w", format="mp4") as out:
        stream = out.add_stream("libx265", rate=30, options={"x265-params": "lossless=1:bframes=0:log-level=none"})
        stream.height, stream.width, stream.pix_fmt = *codes.shape[1:], "gray12le"
        for frame in codes:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="gray12le")))
        out.mux(stream.encode(None))
    return made.getvalue()


@pytest.mark.sampled
@pytest.mark.parametrize("fields", [{}, {"codec": "libx265", "keyframe_every": 8}])
def test_nothing_is_lost_of_twelve_bits(fields: dict[str, Any], tmp_path: Path) -> None:
    for number, codes in enumerate(short_clips(100 if SOAK else 40)):
        data = encoded(tmp_path / "a.mp4", codes, "gray12le", **fields)
        decoder = media.open(Source(blob=data, column=ColumnType("video", pixel_format="gray12le")))
        np.testing.assert_array_equal(decoder.read(np.arange(len(codes)))[..., 0], codes, err_msg=str(number))


@pytest.mark.sampled
def test_nothing_is_lost_of_twelve_bits_that_are_cut_between_key_frames(tmp_path: Path) -> None:
    column = ColumnType("video", pixel_format="gray12le")
    for number, codes in enumerate(short_clips(100 if SOAK else 40)):
        if len(codes) < 3:
            continue
        data = referring(codes)
        before = media.open(Source(blob=data, column=column)).read(np.arange(1, len(codes)))
        assert cut(Source(blob=data, column=column), tmp_path / "b.mp4", start=1, stop=len(codes)).encoded
        clip = media.open(Source(blob=(tmp_path / "b.mp4").read_bytes(), column=column))
        np.testing.assert_array_equal(clip.read(np.arange(len(codes) - 1)), before, err_msg=str(number))


@settings(max_examples=12, deadline=None)
@given(
    pixels=st.sampled_from(["gray", "gray10le", "gray12le", "gray16le"]),
    height=st.integers(16, 70),
    width=st.integers(16, 70),
    count=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_ffmpeg_reads_the_codes_that_were_written(pixels: str, height: int, width: int, count: int, seed: int) -> None:
    """Debian's command line, so another FFmpeg than the one in PyAV."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg: apt-get install ffmpeg")
    bits = int(pixels.removeprefix("gray").removesuffix("le") or 8)
    if bits == 12:  # HEVC's pictures are even
        height, width = height & ~1, width & ~1
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (count, height, width)).astype(np.uint8 if bits == 8 else np.uint16)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.mp4"
        data = encoded(path, codes, pixels)
        command = ["ffmpeg", "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", pixels, "-"]
        raw = subprocess.run(command, capture_output=True, check=True).stdout
    np.testing.assert_array_equal(np.frombuffer(raw, codes.dtype).reshape(codes.shape), codes)
    decoder = media.open(Source(blob=data, column=ColumnType("video", pixel_format=pixels)))
    order = random.permutation(count)
    np.testing.assert_array_equal(decoder.read(order)[..., 0], codes[order])


def test_what_is_no_such_grey_is_refused(tmp_path: Path) -> None:
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=Fraction(30), encoding=Encoding.fitting("gray12le"))
    with pytest.raises(SchemaMismatchError, match=r"expected grey of 12 bits as uint16 \[H, W\], found uint8"):
        encoder.write(np.zeros((8, 8), np.uint8))
    with pytest.raises(SchemaMismatchError, match="expected numbers up to 4095, of 12 bits; found 4096"):
        encoder.write(np.full((8, 8), 4096, np.uint16))
    encoder.abort()


def test_lerobots_depth_is_read_as_lerobot_reads_it(tmp_path: Path) -> None:
    codes = noise(12)
    codes[0, 0, :3] = 0, 1, 4095
    data = encoded(
        tmp_path / "a.mp4", codes, "gray12le", codec="libx265", keyframe_every=2, options={"x265-params": "lossless=1"}
    )
    column = ColumnType.from_json({"type": "video", **LEROBOT})
    metres = media.open(Source(blob=data, column=column)).read(np.arange(6))
    assert metres.dtype == np.float32
    assert metres.shape == (6, 34, 50, 1)
    expected = [lerobot_metres(code, 0.01, 10.0, 3.5, bent=True) for code in codes.reshape(-1).tolist()]
    np.testing.assert_allclose(metres.reshape(-1), expected, rtol=1e-5, atol=1e-6)
    legacy = {"type": "video", "video.is_depth_map": True, "video.depth_max": 10.0}
    again = media.open(Source(blob=data, column=ColumnType.from_json(legacy))).read(np.arange(6))
    np.testing.assert_array_equal(again, metres)


def test_depth_is_scaled_without_a_mean_of_what_is_missing(tmp_path: Path) -> None:
    codes = np.zeros((1, 32, 32), np.uint16)
    codes[0, :, 1::2] = 4000  # every other column was not measured
    data = encoded(tmp_path / "a.mp4", codes, "gray16le")
    decoder = media.open(Source(blob=data, column=Depth()))
    for size in ((16, 16), (7, 13), (64, 50)):
        small = decoder.read(np.array([0]), size=size)
        assert small.shape == (1, *size, 1)
        assert set(np.unique(small).tolist()) <= {0.0, 4.0}
    out = np.empty((1, 7, 13, 1), np.float32)
    assert decoder.read(np.array([0]), size=(7, 13), out=out) is out


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_depth_in_pictures_equals_pillow() -> None:
    codes = [noise(16, 1)[0], noise(16, 2)[1]]
    pictures = [png(one) for one in codes]
    column = Depth(frames="bytes", units="mm")
    decoder = media.open_steps(2, lambda step: Source(blob=pictures[step], column=column), column)
    found = decoder.read(np.array([1, 0, 1]))
    truth = [np.asarray(Image.open(io.BytesIO(pictures[k]))).astype(np.float64) / 1000 for k in (1, 0, 1)]
    np.testing.assert_allclose(found[..., 0], truth, rtol=1e-6)
    small = decoder.read(np.array([0]), size=(17, 25))
    assert set(np.unique(small)) <= set(np.unique(found[1]))
    coloured = png(np.random.default_rng(0).integers(0, 256, (9, 9, 3)).astype(np.uint8))
    with pytest.raises(DecodeError, match="Expected a depth map, grey of 8 or 16 bits; found colours"):
        media.open(Source(blob=coloured, column=column)).read(np.array([0]))


def test_depth_of_which_nobody_says_the_unit_stays_codes(tmp_path: Path) -> None:
    codes = noise(16)
    data = encoded(tmp_path / "a.mp4", codes, "gray16le")
    column = ColumnType.from_json({"type": "video", "is_depth_map": True})
    np.testing.assert_array_equal(media.open(Source(blob=data, column=column)).read(np.arange(6))[..., 0], codes)
    wrong = ColumnType.from_json({"type": "video", "is_depth_map": True, "units": "parsec"})
    with pytest.raises(InvalidMetadataError, match="units: expected one of"):
        media.open(Source(blob=data, column=wrong))

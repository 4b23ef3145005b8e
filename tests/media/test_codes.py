"""Pixels of 9 to 16 bits, and grey, come as the numbers that the file stores: what `ffmpeg` writes as raw video."""

from __future__ import annotations

import io
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from PIL import Image

from seqlake import media
from seqlake.errors import DecodeError
from seqlake.media import video
from seqlake.media._frames import nearest
from seqlake.media.video.codes import Codes, pixels_of, unread
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType, Depth, Video

from . import clips
from .test_video import LEFT, scaled

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg command")

WIDTH, HEIGHT, COUNT = 35, 23, 3  # both odd: chroma has a column and a row more than half
GREY = ["gray", "gray10le", "gray12le", "gray16le"]
PLANAR = ["yuv420p10le", "yuv422p10le", "yuv420p16le", "yuv444p12le", "yuva420p10le", "gbrp10le", "gbrap12le"]
PACKED = ["gray16be", "yuv420p10be", "rgb48be", "bgr48le", "rgba64le", "bgra64le"]
CODECS = dict.fromkeys(PACKED, ("rawvideo", "nut")) | {"rgb48be": ("png", "mov")}


def run(*arguments: str) -> bytes:
    return subprocess.run(
        ["ffmpeg", "-v", "error", "-nostdin", *arguments], check=True, capture_output=True, timeout=60
    ).stdout


@cache
def clips_and_raw() -> dict[str, tuple[bytes, bytes]]:
    """Of each kind of pixels a video of fractals, and the same as raw video, as ffmpeg reads it back."""
    picture = f"mandelbrot=size={WIDTH}x{HEIGHT}:rate=30:start_scale=1:end_scale=0.1:end_pts=3"
    with TemporaryDirectory() as folder:
        kinds = [*GREY, *PLANAR, *PACKED]
        paths = {one: Path(folder) / f"{one}.{CODECS.get(one, ('', 'mkv'))[1]}" for one in kinds}
        made, back = ["-f", "lavfi", "-i", picture], list[str]()
        for one, path in paths.items():
            codec = CODECS.get(one, ("ffv1",))[0]
            made += ["-frames:v", str(COUNT), "-pix_fmt", one, "-c:v", codec, str(path)]
        run(*made)
        for path in paths.values():
            back += ["-i", str(path)]
        for number, one in enumerate(kinds):
            back += ["-map", str(number), "-f", "rawvideo", "-pix_fmt", one, str(Path(folder) / f"{one}.raw")]
        run(*back)
        return {one: (path.read_bytes(), (Path(folder) / f"{one}.raw").read_bytes()) for one, path in paths.items()}


def stored(pixels: str) -> tuple[bytes, bytes]:
    return clips_and_raw()[pixels]


def half(size: int, times: int) -> int:
    return -(-size >> times)


def expected(pixels: str) -> NDArray[Any]:
    """[frames, height, width, channels] from raw video, by what FFmpeg's documentation says of each layout."""
    order = ">" if pixels.endswith("be") else "<"
    data = np.frombuffer(stored(pixels)[1], np.uint8 if pixels == "gray" else f"{order}u2").reshape(COUNT, -1)
    name = pixels[:-2] if pixels[-2:] in {"le", "be"} else pixels
    packed = {"rgb48": (3, [0, 1, 2]), "bgr48": (3, [2, 1, 0]), "rgba64": (4, [0, 1, 2]), "bgra64": (4, [2, 1, 0])}
    if name in packed:
        samples, places = packed[name]
        return data.reshape(COUNT, HEIGHT, WIDTH, samples)[..., places]
    area = WIDTH * HEIGHT
    luma = data[:, :area].reshape(COUNT, HEIGHT, WIDTH)
    if name.startswith("gray"):
        return luma[..., None]
    if name.startswith("gbr"):
        planes = data[:, : 3 * area].reshape(COUNT, 3, HEIGHT, WIDTH)
        return np.stack([planes[:, 2], planes[:, 0], planes[:, 1]], axis=-1)
    down, right = int("420" in name), int("420" in name or "422" in name)
    tall, wide = half(HEIGHT, down), half(WIDTH, right)
    chroma = [data[:, area + k * tall * wide :][:, : tall * wide].reshape(COUNT, tall, wide) for k in (0, 1)]
    grown = [one.repeat(1 + down, axis=1).repeat(1 + right, axis=2)[:, :HEIGHT, :WIDTH] for one in chroma]
    return np.stack([luma, *grown], axis=-1)


def opened(data: bytes, **fields: Any) -> Any:
    return media.open(Source(blob=data, column=Video(**fields)))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("pixels", [*GREY, *PLANAR, *PACKED])
def test_codes_are_those_of_the_file(pixels: str) -> None:
    decoder = opened(stored(pixels)[0], pixel_format=pixels)
    wanted = expected(pixels)
    frames = decoder.read(np.array([2, 0, 1, 0]))
    assert frames.dtype == (np.uint8 if pixels == "gray" else np.uint16)
    np.testing.assert_array_equal(frames, wanted[[2, 0, 1, 0]])
    np.testing.assert_array_equal(decoder.read(np.array([1]), size=(11, 50)), nearest(wanted[1:2], (11, 50)))
    assert decoder.read(np.zeros(0, np.int64)).shape == (0, *wanted.shape[1:])
    if pixels != "gray":  # which is RGB where the column says nothing
        np.testing.assert_array_equal(opened(stored(pixels)[0]).read(np.array([1])), wanted[1:2])


def test_grey_of_8_bits_is_rgb_unless_the_column_says_so() -> None:
    data = stored("gray")[0]
    assert opened(data).read(np.array([0])).shape == (1, HEIGHT, WIDTH, 3)
    assert opened(data, pixel_format="gray").read(np.array([0])).shape == (1, HEIGHT, WIDTH, 1)


@pytest.mark.parametrize("name", ["h264 10 bit", "hevc 10 bit", "prores"])
def test_rgb_of_8_bits_where_it_is_asked_for(name: str) -> None:
    data = clips.clip(name)
    found = opened(data, pixel_format="rgb24").read(np.array([7]))
    assert found.dtype == np.uint8
    with av.open(io.BytesIO(data)) as container:
        frame = list(container.decode(video=0))[7]
    chroma = LEFT if name != "prores" else ""
    np.testing.assert_array_equal(found[0], scaled(frame, chroma=chroma))


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_codes_are_turned_as_rgb_is(degrees: int) -> None:
    def clip_of(angle: int) -> bytes:
        return clips.encode(
            "libx265",
            pix_fmt="gray",
            prepare=lambda stream: clips.turn(stream, angle),
            **{"x265-params": "log-level=none"},
        )

    upright, turned = clip_of(0), clip_of(degrees)
    for pixels in ("gray", "rgb24"):
        before, after = (opened(data, pixel_format=pixels).read(np.array([3]))[0] for data in (upright, turned))
        np.testing.assert_array_equal(after, np.rot90(before, degrees // 90))


@pytest.mark.parametrize(
    ("pixels", "declared", "message"),
    [
        ("gray12le", "gray16le", "its pixels are gray12le, and its column declares gray16le"),
        ("gray", "gray16le", "its pixels are gray, and its column declares gray16le"),
        ("gray16le", "gray", "its pixels are gray16le, and its column declares gray"),
        ("yuv420p10le", "yuv420p", "its pixels are yuv420p10le, and its column declares yuv420p"),
    ],
)
def test_other_pixels_are_refused_by_name(pixels: str, declared: str | None, message: str) -> None:
    fields = {} if declared is None else {"pixel_format": declared}
    data = stored(pixels)[0]
    for wanted in ([1], []):
        with pytest.raises(DecodeError, match=f"{message}. Declare pixel_format=.*rgb24"):
            opened(data, **fields).read(np.array(wanted, np.int64))
    assert opened(data, pixel_format="rgb24").read(np.array([1])).dtype == np.uint8


@pytest.mark.parametrize("pixels", ["x2rgb10le", "grayf32le", "gbrpf16le", "y210le", "xyz12le"])
def test_pixels_whose_codes_nobody_reads(pixels: str) -> None:
    assert unread(pixels, Video()) == f"its pixels are {pixels}, whose codes are not read here"
    assert unread(pixels, Video(pixel_format="rgb24")) == ""
    assert unread("nv12", Depth(pixel_format="nv12")) == "its pixels are nv12, whose codes are not read here"
    assert unread("nv12", Video()) == unread("pal8", Video()) == ""


def test_a_name_of_pixels_is_compared_without_its_order_of_bytes() -> None:
    assert opened(stored("gray16be")[0], pixel_format="gray16le").read(np.array([0])).dtype == np.uint16
    assert opened(stored("gray16le")[0], pixel_format="GRAY16BE").read(np.array([0])).dtype == np.uint16


def test_an_unknown_declaration_of_8_bits_changes_nothing() -> None:
    data = clips.clip("h264 with B-frames")
    plain = opened(data).read(np.array([3]))
    for declared in ("yuv420p", "yuvj420p", "yuv444p", "nonsense", ""):
        np.testing.assert_array_equal(opened(data, pixel_format=declared).read(np.array([3])), plain)
    assert isinstance(ColumnType.from_json({"type": "video", "pixel_format": 7}), Video)
    odd = video.open(Source(blob=data, column=ColumnType.from_json({"type": "video", "pixel_format": 7})))
    np.testing.assert_array_equal(odd.read(np.array([3])), plain)


def test_png_of_16_bits_in_a_video_equals_pillow(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << 16, (2, 20, 30)).astype(np.uint16)
    for number, one in enumerate(codes):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
    run("-i", str(tmp_path / "%d.png"), "-start_number", "0", "-c:v", "copy", str(tmp_path / "all.mov"))
    found = opened((tmp_path / "all.mov").read_bytes()).read(np.array([0, 1]))
    read_back = np.stack([np.asarray(Image.open(tmp_path / f"{number}.png")) for number in (0, 1)])
    np.testing.assert_array_equal(found[..., 0], read_back)
    np.testing.assert_array_equal(found[..., 0], codes)


@pytest.mark.parametrize(
    ("deep", "laid_out"), [("yuv420p10le", "p010le"), ("yuv420p12le", "p012le"), ("gray16le", "ya16le")]
)
def test_layouts_that_only_hardware_decodes_to(deep: str, laid_out: str) -> None:
    """As FFmpeg's converter lays the same numbers out."""
    frame = av.VideoFrame(36, 24, deep)  # the converter leaves out the last column of chroma where it is odd
    random = np.random.default_rng(0)
    for plane in frame.planes:
        plane.update(random.integers(0, 1 << pixels_of(deep).bits, plane.buffer_size // 2).astype("<u2").tobytes())
    shape = (24, 36, pixels_of(deep).channels)
    arrays = []
    for pixels in (deep, laid_out):
        stream = replace(video.open(Source(blob=stored("gray")[0], column=Video())).packets.stream, pix_fmt=pixels)
        arrays.append(np.empty(shape, np.uint16))
        Codes(stream, channels=shape[2]).convert(frame.reformat(format=pixels), arrays[-1])
    np.testing.assert_array_equal(*arrays)

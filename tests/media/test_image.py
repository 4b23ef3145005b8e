"""Pictures: exact PNG of every depth, JPEG as its decoder gives it, damage that is never decoded in silence."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from fractions import Fraction

import av
import numpy as np
import pytest

from seqlake import media
from seqlake.errors import CorruptFrameError, DecodeError, MissingDependencyError
from seqlake.files.blobs import MemoryBlob
from seqlake.media import encode_image, image
from seqlake.protocols import Source
from seqlake.spec.column_types import Image
from seqlake.testing.media import DecoderTests

from . import clips


@pytest.fixture(params=["simplejpeg", "PyAV"])
def jpeg_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """JPEG is read and written by each of the two."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg", reason="the extra `images` is not installed")
    monkeypatch.setattr(image, "has_simplejpeg", lambda: request.param == "simplejpeg")
    return request.param


def png(pixels: np.ndarray, kind: int) -> bytes:
    """A PNG written by hand: kind 0 grey, 2 RGB, 4 grey and alpha, 6 RGBA; rows filtered by their left neighbours."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = pixels.shape[:2]
    raw = pixels.astype(pixels.dtype.newbyteorder(">")).reshape(height, -1).view(np.uint8).reshape(height, -1)
    unit = raw.shape[1] // width
    left = np.concatenate([raw[:, :unit], raw[:, unit:] - raw[:, :-unit]], 1)
    rows = np.concatenate([np.full((height, 1), 1, np.uint8), left], 1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, kind, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg(pixels: np.ndarray, pix_fmt: str = "yuvj420p") -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mjpeg") as out:
        stream = out.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = pixels.shape[1], pixels.shape[0], pix_fmt
        out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def opened(*cells: bytes | None) -> image.ImageDecoder:
    def picture(step: int) -> Source | None:
        cell = cells[step]
        return None if cell is None else Source(blob=cell, column=Image())

    return media.open_steps(len(cells), picture, Image(fps=10))


class TestLaws(DecoderTests):
    @pytest.fixture
    def decoder(self) -> image.ImageDecoder:
        return opened(*(jpeg(clips.picture(number)) for number in range(9)))


class TestLawsOfPng(DecoderTests):
    @pytest.fixture
    def decoder(self) -> image.ImageDecoder:
        return opened(*(png(random((20, 30), "u2", number), 0) for number in range(9)))


@pytest.mark.parametrize("dtype", ["u1", "u2"])
@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (6, 4)])
def test_png_is_exact(dtype: str, kind: int, channels: int) -> None:
    pictures = [random((17, 33, channels), dtype, seed) for seed in range(3)]
    found = opened(*(png(one, kind) for one in pictures)).read(np.arange(3))
    expected = np.stack(pictures)[..., :3]
    if (dtype, channels) == ("u1", 1):
        expected = np.repeat(expected, 3, axis=-1)  # grey of 8 bits is shown as RGB
    np.testing.assert_array_equal(found, expected, strict=True)


def test_grey_with_alpha_loses_only_its_alpha() -> None:
    pixels = random((9, 8, 2), "u1")
    np.testing.assert_array_equal(image.decode(png(pixels, 4)), np.repeat(pixels[..., :1], 3, axis=-1))


@pytest.mark.parametrize("pix_fmt", ["yuvj420p", "yuvj444p"])
@pytest.mark.parametrize("size", [(96, 64), (95, 63)])
def test_jpeg_is_what_its_decoder_gives(jpeg_by: str, pix_fmt: str, size: tuple[int, int]) -> None:
    data = jpeg(clips.picture(3, *size), pix_fmt)
    found = image.decode(data)
    assert found.shape == (size[1], size[0], 3)
    assert np.abs(found.astype(int) - clips.picture(3, *size)).mean() < 15
    if jpeg_by == "PyAV":
        with av.open(io.BytesIO(data), format="mjpeg") as container:
            frame = next(container.decode(video=0))
        np.testing.assert_array_equal(found, frame.to_ndarray(format="rgb24", interpolation="BICUBIC"))
    else:
        import simplejpeg

        np.testing.assert_array_equal(found, simplejpeg.decode_jpeg(data))


@pytest.mark.parametrize("size", [(64, 96), (63, 95), (1, 1)])
def test_written_pictures_come_back_near(jpeg_by: str, size: tuple[int, int]) -> None:
    y, x = np.mgrid[: size[0], : size[1]]
    smooth = np.stack([x, y, x + y], -1).astype(np.uint8)
    found = image.decode(encode_image(smooth, format="jpeg"))
    assert np.abs(found.astype(int) - smooth).mean() < 3
    grey = image.decode(encode_image(smooth[..., 0], format="jpeg"))
    assert np.abs(grey.astype(int) - smooth[..., :1]).max() <= 6
    assert np.ptp(grey, axis=-1).max() <= 3  # grey is shown as RGB


def test_the_two_read_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg", reason="the extra `images` is not installed")
    data, found = jpeg(clips.picture(3)), []
    for there in (True, False):
        monkeypatch.setattr(image, "has_simplejpeg", lambda there=there: there)
        found.append(image.decode(data).astype(int))
    assert 0 < np.abs(found[0] - found[1]).mean() < 8  # chroma is smoothed by one only


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "Gray"])
def test_jpeg_of_every_layout_is_read(jpeg_by: str, subsampling: str) -> None:
    simplejpeg = pytest.importorskip("simplejpeg", reason="writes them")
    flat = np.full((24, 40, 3), (200, 90, 30), np.uint8)
    if subsampling == "Gray":
        flat[:] = 117
        data = simplejpeg.encode_jpeg(flat[..., :1].copy(), 95, "GRAY", "Gray")
    else:
        data = simplejpeg.encode_jpeg(flat, 95, "RGB", subsampling)
    assert np.abs(image.decode(memoryview(data)).astype(int) - flat).max() <= 3


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    image._simplejpeg.cache_clear()
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'seqlake\[images\]'"):
        image.encode_jpeg(np.zeros((8, 8, 3), np.uint8))


def test_pictures_are_scaled_and_steps_of_other_sizes_meet_in_one() -> None:
    flat = np.full((40, 60, 3), 90, np.uint8)
    pair = opened(png(flat, 2), png(flat[:20, :20], 2), None)
    with pytest.raises(DecodeError, match=r"40, 60, 3\], found uint8 \[20, 20, 3\] at picture 1"):
        pair.read(np.array([0, 1]))
    found = pair.read(np.array([0, 1]), size=(20, 30))
    assert found.shape == (2, 20, 30, 3)
    assert np.abs(found.astype(int) - 90).max() <= 1
    with pytest.raises(DecodeError, match="Step 2 has no picture"):
        pair.read(np.array([2]))
    assert pair.time_base == Fraction(1, 10)


def test_scaling_down_averages() -> None:
    stripes = np.tile(np.array([[0, 200]], np.uint8), (32, 16))[..., None].repeat(3, -1)
    found = image.decode(png(stripes, 2), size=(8, 8))
    assert np.abs(found.astype(int) - 100).max() <= 2


def test_a_still_is_a_decoder_of_one() -> None:
    pixels = random((12, 16, 3), "u1")
    decoder = media.open(Source(blob=MemoryBlob(png(pixels, 2)), column=Image()))
    assert len(decoder) == 1
    np.testing.assert_array_equal(decoder.read(np.array([0, 0])), np.stack([pixels, pixels]))
    assert media.index(Source(blob=b"", column=Image())) == {}


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("make", [jpeg, lambda pixels: png(pixels, 2)], ids=["jpeg", "png"])
def test_a_cut_picture_is_damaged(jpeg_by: str, make, cut: float) -> None:
    data = make(clips.picture(1))
    with pytest.raises(CorruptFrameError, match="picture 0 is damaged"):
        opened(data[: int(len(data) * cut)]).read(np.array([0]))


def test_a_flipped_bit_in_a_png_is_found() -> None:
    data = bytearray(png(clips.picture(1), 2))
    data[len(data) // 2] ^= 4
    with pytest.raises(CorruptFrameError):
        image.decode(bytes(data))


def test_other_bytes_are_named() -> None:
    with pytest.raises(DecodeError, match="expected JPEG, PNG, TIFF, .* found gif"):
        image.decode(b"GIF89a")
    with pytest.raises(DecodeError, match="found bytes that begin with b'hello'"):
        image.decode(b"hello")

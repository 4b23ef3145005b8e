"""Pictures of every kind with every bit they have, as tifffile and Pillow read them; turned by choice."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from contextlib import suppress
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake import media
from seqlake.errors import (
    CorruptFrameError,
    DecodeError,
    InvalidMetadataError,
    MissingDependencyError,
    SchemaMismatchError,
)
from seqlake.media import image
from seqlake.protocols import Source
from seqlake.training.rows.batches import RowPictures
from seqlake.training.settings import FrameOptions

from .test_image import png, random

pytest.importorskip("PIL", reason="the extra `images` is not installed")
tifffile = pytest.importorskip("tifffile", reason="only developers have it")
from PIL import Image  # noqa: E402 - where it is not installed these tests are skipped

KINDS = ["u1", "u2", "f2", "f4", "f8"]
FLAT = random((37, 53, 3), "u1")


def saved(picture: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def tiff(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **options)
    return file.getvalue()


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    if dtype[0] == "u":
        return random(shape, dtype, seed)
    values = np.random.default_rng(seed).normal(size=shape).astype(dtype)
    values.ravel()[1::7] = np.nan
    values.ravel()[2::7] = -np.inf
    return values


def as_pillow_has_it(data: bytes) -> np.ndarray:
    """[H, W, 1 or 3] without alpha; grey of 8 bits repeated."""
    picture = Image.open(io.BytesIO(data))
    array = np.asarray(picture if picture.mode in {"I;16", "I;16B", "F"} else picture.convert("RGB"))
    array = array.astype(array.dtype.newbyteorder("="))
    return array if array.ndim == 3 else array[..., None]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_tiff_is_what_tifffile_writes_and_reads(data: st.DataObject) -> None:
    """Byte orders, strips and tiles, samples together and apart, predictors, alpha, BigTIFF; seldom a size of 16."""
    dtype, channels = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([0, 3, 4]))
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    packed = data.draw(st.sampled_from([None, "zlib"]))
    options: dict[str, Any] = {
        "byteorder": data.draw(st.sampled_from("<>")),
        "compression": packed,
        "bigtiff": data.draw(st.booleans()),
        "photometric": "rgb" if channels else "minisblack",
    }
    if packed and dtype[0] == "u":
        options["predictor"] = data.draw(st.booleans())
    if data.draw(st.booleans()):
        options["tile"] = (16, 32)
    else:
        options["rowsperstrip"] = data.draw(st.integers(1, height))
    pixels = numbers((height, width) + (channels,) * bool(channels), dtype, height)
    stored = pixels
    if channels and data.draw(st.booleans()):
        options["planarconfig"], stored = "separate", np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    if channels == 4:
        options["extrasamples"] = ["unassalpha"]
    encoded = tiff(stored, **options)
    np.testing.assert_array_equal(tifffile.imread(io.BytesIO(encoded)), stored)
    expected = pixels[..., :3] if channels else pixels[..., None]
    found = image.decode(encoded, column=sl.Image(channels=None if channels else 1))
    np.testing.assert_array_equal(found, expected, strict=True)
    head = image.describe(encoded)
    assert head is not None
    assert (head.size, head.dtype, head.channels) == ((width, height), str(pixels.dtype), expected.shape[2])


@pytest.mark.sampled
@pytest.mark.parametrize("packed", [None, "tiff_lzw", "packbits", "tiff_adobe_deflate"])
@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA", "I;16", "F"])
def test_tiff_is_what_pillow_writes_and_reads(mode: str, packed: str | None) -> None:
    if mode == "I;16":
        picture = Image.fromarray(random((37, 53), "u2"))
    elif mode == "F":
        picture = Image.fromarray(numbers((37, 53), "f4"))
    else:
        picture = Image.fromarray(FLAT).convert(mode)
    predictors = {None: [1], "packbits": [1]}.get(packed, [1, 3] if mode == "F" else [1, 2])
    for predictor in predictors:
        data = saved(picture, "TIFF", compression=packed, tiffinfo={317: predictor} if predictor > 1 else {})
        np.testing.assert_array_equal(image.decode(data), as_pillow_has_it(data), strict=True)


def test_white_may_be_zero() -> None:
    pixels = random((9, 11), "u2")
    found = image.decode(tiff(pixels, photometric="miniswhite"))
    np.testing.assert_array_equal(found[..., 0], 65535 - pixels)


def test_pages_are_refused_and_smaller_copies_are_not_pages() -> None:
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as out:
        out.write(FLAT)
        out.write(FLAT[::2, ::2], subfiletype=1)
    np.testing.assert_array_equal(image.decode(file.getvalue()), FLAT)
    with pytest.raises(DecodeError, match="TIFF with 3 pages is not read. A picture is one page: split the file"):
        image.decode(tiff(random((3, 9, 9), "u1"), photometric="minisblack"))


REFUSED = {
    "TIFF with compression JPEG": lambda: saved(Image.fromarray(FLAT), "TIFF", compression="jpeg"),
    "TIFF with 32 bits a sample, of format 1": lambda: tiff(np.zeros((4, 4), "u4")),
    "TIFF with 5 channels": lambda: tiff(np.zeros((4, 4, 5), "u1"), photometric="minisblack", planarconfig="contig"),
    "TIFF with photometric interpretation 5": lambda: saved(Image.fromarray(FLAT).convert("CMYK"), "TIFF"),
    "WebP with animation": lambda: saved(
        Image.fromarray(FLAT), "WEBP", save_all=True, append_images=[Image.fromarray(FLAT[::-1])]
    ),
    "AVIF with animation": lambda: saved(
        Image.fromarray(FLAT), "AVIF", save_all=True, append_images=[Image.fromarray(FLAT[::-1])]
    ),
    "PNG with 2 frames": lambda: saved(
        Image.fromarray(FLAT), "PNG", save_all=True, append_images=[Image.fromarray(FLAT[::-1])]
    ),
    "PGM with numbers as text": lambda: b"P2\n1 1\n255\n7\n",
    "BMP with compression 1": lambda: (
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 4, 4, 1, 8, 1, *[0] * 5)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_whole_and_not_read_is_refused_by_name(said: str) -> None:
    with pytest.raises(DecodeError, match=f"the picture: {said}.* not read") as caught:
        image.decode(REFUSED[said]())
    assert not isinstance(caught.value, CorruptFrameError)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_bmp_is_what_pillow_reads(mode: str) -> None:
    data = saved(Image.fromarray(FLAT).convert(mode), "BMP")
    np.testing.assert_array_equal(image.decode(data), as_pillow_has_it(data), strict=True)


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    channels=st.sampled_from([1, 3]),
    largest=st.sampled_from([1, 15, 255, 256, 4095, 65535]),
    note=st.sampled_from([b"", b"# by hand\n"]),
)
def test_ppm_and_pgm_have_their_stored_values(size: tuple[int, int], channels: int, largest: int, note: bytes) -> None:
    """Pillow and FFmpeg spread 12 bits over 16, and make a depth map of other distances; the file's own are kept."""
    dtype = "u1" if largest < 256 else "u2"
    pixels = np.random.default_rng(1).integers(0, largest, (*size, channels), dtype, endpoint=True)
    head = b"P%d\n%s%d %d\n%d\n" % (5 if channels == 1 else 6, note, size[1], size[0], largest)
    data = head + pixels.astype(pixels.dtype.newbyteorder(">")).tobytes()
    found = image.decode(data, column=sl.Image(channels=None if channels == 3 else 1))
    np.testing.assert_array_equal(found, pixels, strict=True)
    if largest == 255:
        np.testing.assert_array_equal(image.decode(data), as_pillow_has_it(data), strict=True)
    with pytest.raises(CorruptFrameError, match="ends after|cannot hold"):
        image.decode(data[:-1])


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("kind", ["WEBP", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("lossless", [True, False])
def test_webp_avif_and_jpeg_2000_are_pillow_s_own(kind: str, mode: str, lossless: bool) -> None:
    options = {
        "WEBP": {"lossless": lossless, "exact": True},
        "AVIF": {"quality": 100 if lossless else 60},
        "JPEG2000": {"irreversible": not lossless, "no_jp2": mode == "L"},
    }[kind]
    data = saved(Image.fromarray(FLAT).convert(mode), kind, **options)
    np.testing.assert_array_equal(image.decode(data), as_pillow_has_it(data), strict=True)
    head = image.describe(data)
    assert head is not None
    assert head.size == (53, 37)


def j2k(pixels: np.ndarray, layout: str) -> bytes:
    context: Any = av.CodecContext.create("jpeg2000", "w")
    context.width, context.height, context.pix_fmt = pixels.shape[1], pixels.shape[0], layout
    context.time_base, context.options = 1, {"pred": "dwt53"}
    frame = av.VideoFrame.from_ndarray(pixels, format=layout)
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


@pytest.mark.parametrize(
    ("layout", "shape", "largest"), [("gray12le", (), 4095), ("gray16le", (), 65535), ("rgb48le", (3,), 65535)]
)
def test_jpeg_2000_of_more_than_8_bits_keeps_them(layout: str, shape: tuple[int, ...], largest: int) -> None:
    """Pillow gives RGB of 16 bits as 8."""
    pixels = np.random.default_rng(0).integers(0, largest, (37, 53, *shape), np.uint16, endpoint=True)
    found = image.decode(j2k(pixels, layout))
    np.testing.assert_array_equal(found, pixels if shape else pixels[..., None], strict=True)


@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize("shape", [(), (3,), (4,)])
def test_avif_of_more_than_8_bits_keeps_them(bits: int, shape: tuple[int, ...]) -> None:
    """Pillow gives 8 of them; without loss the codes are those that went in, and FFmpeg's."""
    codecs = pytest.importorskip("imagecodecs")
    pixels = np.random.default_rng(0).integers(0, 1 << bits, (37, 53, *shape), np.uint16)
    data = codecs.avif_encode(pixels, level=100, bitspersample=bits)
    decoded = image.decode(data)
    np.testing.assert_array_equal(decoded, pixels[..., :3] if shape else pixels[..., None], strict=True)
    head = image.describe(data)
    assert (head.bits, head.dtype, head.channels) == (bits, "uint16", 3 if shape else 1)
    if not shape:
        with av.open(io.BytesIO(data)) as container:
            np.testing.assert_array_equal(decoded[..., 0], next(container.decode(video=0)).to_ndarray())
    assert image.decode(data, size=(8, 8)).dtype == np.uint16


def test_avif_of_more_than_8_bits_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    codecs = pytest.importorskip("imagecodecs")
    data = codecs.avif_encode(np.zeros((5, 6, 3), np.uint16), level=100, bitspersample=10)
    for stop in range(100, len(data), 7):
        with pytest.raises(DecodeError):
            image.decode(data[:stop])
    eight = saved(Image.fromarray(FLAT), "AVIF")
    at = eight.index(b"av1C") + 6
    with pytest.raises(CorruptFrameError):  # it says 10 bits, and has 8
        image.decode(eight[:at] + bytes([eight[at] | 0x40]) + eight[at + 1 :])
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingDependencyError, match=r"seqlake\[images\]"):
        image.decode(data)


@pytest.mark.sampled
@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_turns_are_applied_where_the_column_says_so(kind: str, turn: int) -> None:
    from PIL import ImageOps

    options = {"JPEG": {"quality": 90}, "WEBP": {"lossless": True}, "AVIF": {"quality": 90}}.get(kind, {})
    exif = Image.Exif()
    exif[0x112] = turn
    data = saved(Image.fromarray(FLAT), kind, exif=exif.tobytes(), **options)
    assert image.orientation(data) == turn
    as_stored = image.decode(data)
    assert as_stored.shape == (37, 53, 3)
    np.testing.assert_array_equal(image.decode(data, column=sl.Image(orientation="keep")), as_stored)
    turned = image.decode(data, column=sl.Image(orientation="apply"))
    marked = Image.fromarray(as_stored)
    marked.info["exif"] = exif.tobytes()
    marked.getexif()[0x112] = turn
    np.testing.assert_array_equal(turned, np.asarray(ImageOps.exif_transpose(marked)))
    small = image.decode(data, size=(20, 10), column=sl.Image(orientation="apply"))
    assert small.shape == (20, 10, 3)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidMetadataError, match='orientation must be "apply" or "keep"'):
        sl.Image(orientation="apppy")
    with pytest.raises(DecodeError, match="expected 1 channel, as the column declares, found 3"):
        image.decode(png(FLAT, 2), column=sl.Image(channels=1))


def test_grey_has_as_many_channels_as_the_column_says() -> None:
    eight, sixteen = random((9, 8, 1), "u1"), random((9, 8, 1), "u2")
    assert image.decode(png(eight, 0)).shape == (9, 8, 3)
    np.testing.assert_array_equal(image.decode(png(eight, 0), column=sl.Image(channels=1)), eight)
    np.testing.assert_array_equal(image.decode(png(sixteen, 0)), sixteen)
    three = image.decode(png(sixteen, 0), column=sl.Image(channels=3))
    np.testing.assert_array_equal(three, sixteen.repeat(3, -1))


@pytest.mark.parametrize("dtype", ["u2", "f4"])
@pytest.mark.parametrize("channels", [1, 3])
def test_scaling_down_averages_whatever_the_numbers_are(dtype: str, channels: int) -> None:
    pixels = np.arange(24 * 32 * channels).reshape(24, 32, channels).astype(dtype)
    expected = pixels.reshape(12, 2, 16, 2, channels).astype(float).mean((1, 3))
    data = tiff(pixels if channels == 3 else pixels[..., 0], photometric="rgb" if channels == 3 else "minisblack")
    found = image.decode(data, size=(12, 16))
    assert (found.dtype, found.shape) == (np.dtype(dtype), expected.shape)
    assert np.abs(found - expected).max() <= (1.5 if dtype == "u2" else 1e-3)


@pytest.mark.parametrize("kind", ["webp", "avif", "jp2"])
def test_without_pillow_the_extra_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(Image.fromarray(FLAT), {"jp2": "JPEG2000"}.get(kind, kind.upper()))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'seqlake\[images\]'"):
        image.decode(data)


def circle() -> bytes:
    """A TIFF whose directory names itself as the next one."""
    data = bytearray(tiff(FLAT, photometric="rgb"))
    first = int.from_bytes(data[4:8], "little")
    end = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
    data[end : end + 4] = data[4:8]
    return bytes(data)


def chain(count: int) -> bytes:
    """A TIFF of very many directories of smaller copies."""
    entry = struct.pack("<HHIHH", 254, 4, 1, 1, 0)
    each = [struct.pack("<H", 1) + entry + struct.pack("<I", 8 + 18 * (number + 1)) for number in range(count)]
    return b"II*\0" + struct.pack("<I", 8) + b"".join(each)


def tag(data: bytes, number: int, value: int) -> bytes:
    """A little TIFF with another value of one tag."""
    first = int.from_bytes(data[4:8], "little")
    for at in range(first + 2, first + 2 + 12 * int.from_bytes(data[first : first + 2], "little"), 12):
        if int.from_bytes(data[at : at + 2], "little") == number:
            return data[: at + 8] + struct.pack("<I", value) + data[at + 12 :]
    raise AssertionError(number)


def large_avif() -> bytes:
    data = saved(Image.fromarray(FLAT), "AVIF")
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", 1 << 30, 1 << 30) + data[at + 8 :]


def deflated() -> bytes:
    """A strip that unpacks to a gigabyte, of a picture that is small."""
    packer, flood = zlib.compressobj(1), bytes(1 << 20)
    data = tiff(FLAT, compression="zlib", photometric="rgb")
    bomb = packer.compress(FLAT.tobytes()) + b"".join(packer.compress(flood) for _ in range(256)) + packer.flush()
    page = tifffile.TiffFile(io.BytesIO(data)).pages[0]
    return tag(tag(data, 273, len(data)), 279, len(bomb)) + bomb if len(page.dataoffsets) == 1 else data


HOSTILE = {
    "a circle of directories": (circle, "go in a circle"),
    "a chain of directories": (lambda: chain(100_000), "more than 64"),
    "a TIFF of a million a side": (lambda: tag(tag(tiff(FLAT), 256, 10**6), 257, 10**6), "cannot hold"),
    "strips that are not there": (lambda: tag(tiff(FLAT), 278, 10), "needs 4 strips or tiles, found 1"),
    "an offset behind the end": (lambda: tag(tiff(FLAT), 273, 1 << 31), "cannot be held|ends after"),
    "a PPM of a million a side": (lambda: b"P6\n999999 999999\n255\n" + bytes(99), "cannot hold"),
    "a BMP of a million a side": (
        lambda: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 10**6, 10**6, 1, 24, 0, 0, 0, 0, 0, 0),
        "cannot hold",
    ),
    "a WebP of 16383 a side": (
        lambda: b"RIFF\x40\0\0\0WEBPVP8L\x20\0\0\0\x2f\xfe\xbf\xff\x0f" + bytes(40),
        "SEQLAKE_MAX_PIXELS",
    ),
    "a JPEG 2000 of a billion a side": (
        lambda: (
            b"\xff\x4f\xff\x51"
            + struct.pack(">HHIIIIIIIIHBBB", 41, 0, 1 << 30, 1 << 30, 0, 0, 64, 64, 0, 0, 1, 7, 1, 1)
        ),
        "SEQLAKE_MAX_PIXELS",
    ),
    "an AVIF of a billion a side": (large_avif, "SEQLAKE_MAX_PIXELS"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pictures_are_refused(name: str) -> None:
    make, why = HOSTILE[name]
    with pytest.raises(DecodeError, match=why):
        image.decode(make())


def test_a_strip_unpacks_no_further_than_the_picture() -> None:
    np.testing.assert_array_equal(image.decode(deflated()), FLAT)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_a_picture(data: st.DataObject) -> None:
    """Cut anywhere, and with other bytes in the head: never another error."""
    kind = data.draw(st.sampled_from(["TIFF", "BMP", "PPM", "WEBP", "AVIF", "JPEG2000", "PNG", "JPEG"]))
    whole = saved(Image.fromarray(FLAT), kind)
    with pytest.raises(DecodeError):
        image.decode(whole[: data.draw(st.integers(0, len(whole) * 9 // 10))])
    changed = bytearray(whole)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        changed[at % len(changed)] = value
    image.describe(bytes(changed))
    image.orientation(bytes(changed))
    with suppress(DecodeError):
        image.decode(bytes(changed))


def test_a_column_of_images_in_rows_windows_and_sheets(tmp_path) -> None:
    """One choice of the column counts in a sequence, a window, loaders, a sheet and validation."""
    exif = Image.Exif()
    exif[0x112] = 6
    cells = [saved(Image.fromarray(random((16, 24, 3), "u1", step)), "TIFF", exif=exif.tobytes()) for step in range(4)]
    depth = [tiff(numbers((16, 24), "f4", step)) for step in range(4)]
    expected = np.stack([np.rot90(random((16, 24, 3), "u1", step), -1) for step in range(4)])
    schema = sl.Schema(
        {
            "cam": sl.Image(frames="bytes", orientation="apply", fps=10),
            "depth": sl.Image(frames="bytes", fps=10),
            "photo": sl.Image(),
        }
    )
    ds = sl.create(tmp_path / "ds", schema)
    (tmp_path / "photo.dat").write_bytes(cells[1])  # content counts, and no name
    ds.append([{"sequence_id": "a", "cam": cells, "depth": depth, "photo": sl.File(tmp_path / "photo.dat")}])
    np.testing.assert_array_equal(ds["a"]["cam"][:], expected)
    np.testing.assert_array_equal(ds["a"]["photo"][0], random((16, 24, 3), "u1", 1))
    window = ds["a"].window(0, 4, columns=["cam", "depth"])
    np.testing.assert_array_equal(window["cam"], expected)
    loader = sl.Loader(ds, window={"cam": range(4), "depth": range(4)}, batch_size=1, shuffle=False)
    batch = next(iter(loader))
    np.testing.assert_array_equal(np.asarray(batch["cam"])[0], expected)
    np.testing.assert_array_equal(
        np.asarray(batch["depth"])[0, ..., 0], [numbers((16, 24), "f4", at) for at in range(4)]
    )
    pictures = RowPictures(FrameOptions())
    (rows,), failed = pictures.take(pictures.begin([cells], schema["cam"].type))
    pictures.close()
    assert not failed
    np.testing.assert_array_equal(rows, expected)
    assert media.open_steps(1, lambda _: Source(blob=cells[0], column=schema["cam"].type), schema["cam"].type).read(
        np.array([0])
    ).shape == (1, 24, 16, 3)
    codes = {(one.code, one.column) for one in sl.validate(ds, depth="decode").findings}
    assert ("F419", "photo") in codes
    assert ("F419", "cam") not in codes
    assert not {"F417", "F431", "F435"} & {code for code, _ in codes}
    assert "<img" in ds["a"]._repr_html_()


def test_a_picture_of_another_kind_is_a_finding_and_an_error(tmp_path) -> None:
    schema = sl.Schema({"cam": sl.Image(frames="bytes", channels=1)})
    ds = sl.create(tmp_path / "ds", schema)
    ds.append([{"sequence_id": "a", "cam": [png(random((8, 9, 1), "u1"), 0)]}])
    ds.append([{"sequence_id": "b", "cam": [png(random((8, 9, 1), "u2"), 0)]}])
    ds.append([{"sequence_id": "c", "cam": [png(random((8, 9, 3), "u1"), 2)]}])
    assert ds["a"]["cam"][:].shape == (1, 8, 9, 1)
    findings = {(one.code, one.sequence_id): one.message for one in sl.validate(ds, depth="files").findings}
    assert (
        findings["F417", "b"] == "picture: pixels of uint16 [H, W, 1], pictures before have pixels of uint8 [H, W, 1]"
    )
    assert findings["F416", "c"] == "picture: 1 channels are declared, the file has 3"
    with pytest.raises(SchemaMismatchError, match="uint16"):
        list(sl.Loader(ds, window={"cam": range(1)}, batch_size=3))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 9))
def test_tiff_that_is_written_is_what_tifffile_reads(dtype, height, width, colour, seed) -> None:
    pixels = numbers((height, width, 3) if colour else (height, width), dtype, seed)
    encoded = media.encode_image(pixels, format="tiff")
    found = tifffile.imread(io.BytesIO(encoded))
    assert found.dtype == pixels.dtype
    np.testing.assert_array_equal(found, pixels)
    ours = image.decode(encoded)
    wanted = pixels if colour else pixels[..., None]
    np.testing.assert_array_equal(ours, np.repeat(wanted, 3, 2) if dtype == "u1" and not colour else wanted)


@pytest.mark.parametrize("dtype", ["u2", "f4"])
@pytest.mark.parametrize("frames", ["bytes", "files", None])
def test_a_column_of_tiff_takes_floats(dtype, frames, tmp_path) -> None:
    kind = sl.Image(format="tiff", frames=frames) if frames else sl.Image(format="tiff")
    ds = sl.create(tmp_path / "ds", {"heat": kind})
    pictures = numbers((3, 5, 7), dtype)
    ds.append([{"sequence_id": "a", "heat": list(pictures) if frames else pictures[0]}])
    found = sl.open(tmp_path / "ds")["a"]["heat"][:]
    np.testing.assert_array_equal(found[..., 0], pictures if frames else pictures[:1])
    assert [one for one in ds.validate(depth="decode") if one.severity == "error"] == []
    plain = sl.create(tmp_path / "png", {"heat": sl.Image()})
    with pytest.raises(SchemaMismatchError, match="found float32"):
        plain.append([{"sequence_id": "a", "heat": np.zeros((2, 2), np.float32)}])

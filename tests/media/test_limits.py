"""A few bytes that would take gigabytes are refused before memory is taken; who trusts a file raises the limit."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest

from seqlake import media
from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError, SeqlakeError
from seqlake.media import image
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType

from . import clips, test_audio, test_spatial
from .test_image import jpeg, png, random

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANY = 150_000_000


def put(data: bytes, box: bytes, place: int, *numbers: int) -> bytes:
    """A box of an MP4 with other numbers of 32 bits, so many bytes behind its name."""
    at = data.index(box) + len(box) + place
    return data[:at] + struct.pack(f">{len(numbers)}I", *numbers) + data[at + 4 * len(numbers) :]


def mp4(**muxer: str) -> bytes:
    return clips.encode(times=range(3), g="8", bf="0", muxer=muxer)


def pcm() -> bytes:
    return test_audio.encoded("pcm_s16le", "mov", "s16")


def huge_jpeg(frame: int = 0xC0) -> bytes:
    data = jpeg(clips.picture(0, 16, 16))
    at = data.index(b"\xff\xc0")
    return data[: at + 1] + bytes([frame]) + data[at + 2 : at + 5] + struct.pack(">HH", 65500, 65500) + data[at + 9 :]


def huge_png(width: int, height: int, kind: int = 2, bits: int = 8) -> bytes:
    """Forged: its pixels are a hundred bytes."""
    data = png(random((4, 4, 3), "u1"), 2)
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return data[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + data[33:]


def black_png(size: int, bits: int = 8) -> bytes:
    """Valid, a thousandth of what it unfolds to."""
    packer = zlib.compressobj(1)
    row = bytes(1 + size * bits // 8)
    rows = b"".join(packer.compress(row) for _ in range(size)) + packer.flush()

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", size, size, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def crowd(places: int = 20_000, parts: int = 1) -> bytes:
    """A scene that shows one cloud of 20 000 points again and again."""
    points = 20_000
    data = np.zeros((points, 3), "<f4").tobytes()
    scene = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": list(range(places))}],
        "nodes": [{"mesh": 0}] * places,
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "mode": 0}] * parts}],
        "buffers": [{"byteLength": len(data)}],
        "bufferViews": [{"buffer": 0, "byteLength": len(data)}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": points, "type": "VEC3"}],
    }
    text = json.dumps(scene).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(data), b"BIN\0") + data
    return b"glTF" + struct.pack("<II", 2, 12 + len(body)) + body


def avif() -> bytes:
    """Of a billion a side: the box that says so is all that a reader looks at first."""
    Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "AVIF")
    data = file.getvalue()
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", 1 << 30, 1 << 30) + data[at + 8 :]


def j2k(width: int, height: int, *, tile: int = 64) -> bytes:
    """A code stream of one grey component, with one part of one tile, which is empty."""
    head = struct.pack(">HHIIIIIIIIHBBB", 41, 0, width, height, 0, 0, tile, tile, 0, 0, 1, 7, 1, 1)
    part = b"\xff\x90" + struct.pack(">HHIBB", 10, 0, 0, 0, 1) + b"\xff\x93" + bytes(40) + b"\xff\xd9"
    style = b"\xff\x52" + struct.pack(">HBBHBBBBBB", 12, 0, 0, 1, 0, 0, 4, 4, 0, 1)
    return b"\xff\x4f\xff\x51" + head + style + b"\xff\x5c" + struct.pack(">HBB", 4, 0x40, 0x40) + part


def silence() -> bytes:
    """Seconds of eight channels, a thousandth of what they unfold to."""
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=48_000, layout="7.1", options={"compression_level": "0"})
        stream.format = "s16"
        block = av.AudioFrame.from_ndarray(np.zeros((1, 8 * 65_535), np.int16), format="s16", layout="7.1")
        block.sample_rate = 48_000
        for number in range(60):
            block.pts = number * 65_535
            out.mux(stream.encode(block))
        out.mux(stream.encode(None))
    return file.getvalue()


def tiff(width: int, height: int, packing: int, body: bytes = bytes(64)) -> bytes:
    """One strip of RGB in 8 bits: 1 as it is, 5 LZW, 8 Deflate, 32773 PackBits."""
    tags = [(256, width), (257, height), (258, 8), (259, packing), (262, 2), (273, 8), (277, 3), (278, height)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (279, len(body))]]
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + directory


def pcd(kind: str, points: int, body: bytes = bytes(64)) -> bytes:
    return f"FIELDS x y z\nSIZE 8 8 8\nTYPE F F F\nWIDTH {points}\nHEIGHT 1\nDATA {kind}\n".encode() + body


def las(form: int, points: int, *, chunks: int = 1) -> bytes:
    """A LAS 1.2 file of so many points of 20 bytes, in words; compressed with 0x80 in its form."""
    head = bytearray(227)
    head[:4], head[24:26] = b"LASF", bytes([1, 2])
    struct.pack_into("<HIIBHI", head, 94, 227, 227, 0, form, 20, points)
    return bytes(head) + struct.pack("<q", 235) + struct.pack("<II", 0, chunks) + bytes(40)


BOMBS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "JPEG": ("image", huge_jpeg, "cannot hold the 65500 x 65500"),
    "JPEG, progressive": ("image", lambda: huge_jpeg(0xC2), "cannot hold"),
    "JPEG, arithmetic": ("image", lambda: huge_jpeg(0xC9), "SEQLAKE_MAX_PIXELS"),
    "PNG, forged": ("image", lambda: huge_png(60_000, 60_000), "cannot hold"),
    "PNG, black": ("image", lambda: black_png(12_000), "SEQLAKE_MAX_PIXELS"),
    "PNG of 16 bits, black": ("image", lambda: black_png(8_300, 16), "SEQLAKE_MAX_PIXELS"),
    "samples of one size": ("video", lambda: put(mp4(), b"stsz", 4, 1, MANY), "tables declare 150,000,000 samples"),
    "times of a billion": ("video", lambda: put(mp4(), b"stts", 8, MANY), "tables declare 150,000,000 samples"),
    "one chunk for all": ("video", lambda: put(mp4(), b"stsc", 12, MANY), "tables declare 150,000,000 samples"),
    "sizes that are not there": ("video", lambda: put(mp4(), b"stsz", 4, 0, MANY), "'stsz' declares 600,000,000 bytes"),
    "offsets that are not there": ("video", lambda: put(mp4(), b"stco", 4, MANY), "'stco' declares"),
    "a fragment": (
        "video",
        lambda: put(mp4(movflags="frag_keyframe+empty_moov"), b"trun", 0, 0, MANY),
        "'trun' declares|finds no packets|no video|cannot be decoded",
    ),
    "samples of PCM": ("audio", lambda: put(pcm(), b"stsc", 12, MANY), "tables declare"),
    "silence": ("audio", silence, "SEQLAKE_MAX_SOUND"),
    "WAV that lies": ("audio", lambda: test_audio.encoded("pcm_s16le", "wav", "s16")[:44] + bytes(8), ""),
    "GLB, a crowd": ("glb", crowd, "SEQLAKE_MAX_POINTS"),
    "GLB, a crowd in a few places": ("glb", lambda: crowd(2_000), "SEQLAKE_MAX_POINTS"),
    "GLB, one buffer for many parts": ("glb", lambda: crowd(1, 20_000), "SEQLAKE_MAX_POINTS"),
    "PLY": ("ply", lambda: test_spatial.ply(faces=True).replace(b"vertex 50", b"vertex 4000000000"), "cannot be read"),
    "PLY of text": (
        "ply",
        lambda: test_spatial.ply(faces=False, text=True).replace(b"vertex 50", b"vertex 4000000000"),
        "",
    ),
    "OFF": ("off", lambda: test_spatial.off().replace(b"50 ", b"4000000000 ", 1), "cannot be read"),
    "STL": ("stl", lambda: bytes(80) + struct.pack("<I", 0xFFFFFFFF) + bytes(100), "stl"),
    "GIF": ("video", lambda: b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;", ""),
    "Y4M": ("video", lambda: b"YUV4MPEG2 W30000 H30000 F30:1 C420\nFRAME\n" + bytes(100), ""),
    "TIFF": ("image", lambda: tiff(60_000, 60_000, 1), "cannot hold"),
    "TIFF, LZW": ("image", lambda: tiff(60_000, 60_000, 5), "cannot hold"),
    "TIFF, PackBits": ("image", lambda: tiff(60_000, 60_000, 32_773), "cannot hold"),
    "TIFF, Deflate": ("image", lambda: tiff(20_000, 20_000, 8, bytes(2 << 20)), "SEQLAKE_MAX_PIXELS"),
    "BMP, a picture": (
        "image",
        lambda: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 40_000, 40_000, 1, 24, 0, 0, 0, 0, 0, 0),
        "cannot hold",
    ),
    "BMP, runs of one colour": (
        "image",
        lambda: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 40_000, 40_000, 1, 8, 1, 0, 0, 0, 0, 0),
        "compression 1 is not read",
    ),
    "PPM": ("image", lambda: b"P6\n60000 60000\n255\n" + bytes(99), "cannot hold"),
    "PGM of 16 bits": ("image", lambda: b"P5 999999 999999 65535 " + bytes(99), "cannot hold"),
    "WebP": (
        "image",
        lambda: b"RIFF\x40\0\0\0WEBPVP8L\x20\0\0\0\x2f\xfe\xbf\xff\x0f" + bytes(40),
        "SEQLAKE_MAX_PIXELS",
    ),
    "AVIF": ("image", avif, "SEQLAKE_MAX_PIXELS"),
    "JPEG 2000": ("image", lambda: j2k(60_000, 60_000), "SEQLAKE_MAX_PIXELS"),
    "JPEG 2000, tiny tiles": ("image", lambda: j2k(11_000, 11_000, tile=1), ""),
    "PCD": ("pcd", lambda: pcd("binary", 1 << 40), "bytes are there"),
    "PCD of text": ("pcd", lambda: pcd("ascii", 1 << 31), "bytes are there"),
    "PCD, compressed": (
        "pcd",
        lambda: pcd("binary_compressed", 1 << 27, struct.pack("<II", 56, 24 << 27 & 0xFFFFFFFF) + bytes(56)),
        "bytes are there",
    ),
    "LAS": ("las", lambda: las(0, 0xFFFFFFFF), "bytes are there"),
    "LAZ": ("laz", lambda: las(0x80, 0xFFFFFFFF), "bytes are there"),
    "LAZ, chunks": ("laz", lambda: las(0x80, 1, chunks=0xFFFFFFFF), "chunks are declared"),
    "BMP": (
        "video",
        lambda: (
            b"BM"
            + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 40_000, 40_000, 1, 24, 0, 0, 0, 0, 0, 0)
            + bytes(16)
        ),
        "",
    ),
}
CODE = """
import json, resource, sys, warnings
from pathlib import Path
import av, numpy as np, trimesh
from seqlake import media
from seqlake.errors import DecodeError
from seqlake.media import audio, image, spatial, video
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType

warnings.simplefilter("ignore")
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
for path in map(Path, sys.argv[1:]):
    kind = path.suffix[1:]
    column = ColumnType(kind) if kind in {"image", "video", "audio"} else ColumnType("3d", format=kind)
    try:
        decoder = media.open(Source(blob=path.read_bytes(), column=column))
        decoder.read(np.arange(min(1, len(decoder))))
        said = ""
    except DecodeError as error:
        said = "MemoryError" if isinstance(error.__cause__, MemoryError) else str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([path.stem, said]), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process, as Linux does")
def test_what_would_take_gigabytes_is_refused_in_one(tmp_path: Path) -> None:
    pytest.importorskip("trimesh", reason="the extra `spatial` is not installed")
    paths = []
    for name, (kind, make, _) in BOMBS.items():
        paths.append(tmp_path / f"{name}.{kind}")
        paths[-1].write_bytes(make())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(tmp_path)}
    environment["SEQLAKE_MAX_SOUND"] = str(1 << 26)  # a gigabyte would take long to make
    command = [sys.executable, "-c", CODE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=200)
    said = dict(map(json.loads, done.stdout.splitlines()))
    assert list(said) == list(BOMBS), done.stderr[-1000:]
    for name, (_, _, why) in BOMBS.items():
        assert "Error" not in said[name].split(":")[0], f"{name}: {said[name]}"
        assert "annot allocate" not in said[name], name
        assert any(part in said[name] for part in why.split("|")), f"{name}: {said[name]}"


def read(kind: str, data: bytes, **fields: Any) -> np.ndarray:
    return media.open(Source(blob=data, column=ColumnType(kind, **fields))).read(np.arange(1))


LIMITS: dict[str, tuple[str, int, Callable[[], np.ndarray]]] = {
    "picture": ("SEQLAKE_MAX_PIXELS", 20 * 30, lambda: read("image", png(random((20, 30, 3), "u1"), 2))),
    "picture of 16 bits": ("SEQLAKE_MAX_PIXELS", 2 * 20 * 30, lambda: read("image", png(random((20, 30, 3), "u2"), 2))),
    "video": ("SEQLAKE_MAX_PIXELS", 2 * 96 * 64, lambda: read("video", clips.clip("h264 with B-frames"))),
    "sound": ("SEQLAKE_MAX_SOUND", 4 * 2 * 65_535 * 40, lambda: read("audio", quiet())),
    "points": ("SEQLAKE_MAX_POINTS", 50 + 16, lambda: read("3d", test_spatial.off(), format="off")),
    "cloud": ("SEQLAKE_MAX_POINTS", 50, lambda: read("3d", test_spatial.ply(faces=True), format="ply")),
}


def quiet() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=48_000, layout="stereo", options={"compression_level": "0"})
        stream.format = "s16"
        block = av.AudioFrame.from_ndarray(np.zeros((1, 2 * 65_535), np.int16), format="s16", layout="stereo")
        block.sample_rate = 48_000
        for number in range(40):
            block.pts = number * 65_535
            out.mux(stream.encode(block))
        out.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize("kind", LIMITS)
def test_each_limit_is_what_it_says_and_can_be_raised(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, enough, call = LIMITS[kind]
    if kind == "points":
        pytest.importorskip("trimesh", reason="the extra `spatial` is not installed")
    monkeypatch.setenv(name, str(enough - 1))
    with pytest.raises(DecodeError, match=f"raise the limit: export {name}=") as caught:
        call()
    assert not isinstance(caught.value, CorruptFileError | CorruptFrameError)
    monkeypatch.setenv(name, str(enough))
    assert len(call()) == 1
    monkeypatch.delenv(name)
    assert len(call()) == 1


def test_more_packets_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = clips.clip("h264 with B-frames") + b"\0\0\0\x08free"  # a file that no other test has opened
    monkeypatch.setenv("SEQLAKE_MAX_PACKETS", "1")
    with pytest.raises(DecodeError, match="SEQLAKE_MAX_PACKETS"):
        read("video", data)
    monkeypatch.setenv("SEQLAKE_MAX_PACKETS", str(clips.COUNT))
    assert len(read("video", data)) == 1


def test_a_limit_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLAKE_MAX_PIXELS", "many")
    with pytest.raises(SeqlakeError, match="SEQLAKE_MAX_PIXELS: expected a whole number of pixels, found 'many'"):
        image.decode(png(random((20, 30, 3), "u1"), 2))


def test_pictures_that_stand_for_all_that_their_bytes_can_are_read() -> None:
    """One flat colour: the densest that PNG and JPEG get."""
    assert image.decode(black_png(2_000)).max() == 0
    flat = np.zeros((2_000, 2_000, 3), np.uint8)
    assert image.decode(jpeg(flat)).max() < 8
    simplejpeg = pytest.importorskip("simplejpeg", reason="writes grey ones")
    grey = simplejpeg.encode_jpeg(flat[..., :1].copy(), 50, "GRAY", "Gray")
    assert image.decode(grey).shape == (2_000, 2_000, 3)

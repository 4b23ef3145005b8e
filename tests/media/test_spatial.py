"""Point clouds and meshes: points as the file has them, in its order; what cannot be read keeps its bytes."""

from __future__ import annotations

import json
import struct
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import seqlake as sl
from seqlake import media
from seqlake.dataset.reading.views import FileView, MediaView
from seqlake.errors import CorruptFileError, DecodeError, MissingDependencyError
from seqlake.files.blobs import MemoryBlob
from seqlake.media import spatial
from seqlake.protocols import Source

from .test_image import png, random

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("trimesh", reason="the extra `spatial` is not installed")

POINTS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32).astype(np.float64)
COLORS = random((50, 4), "u1")
FACES = np.random.default_rng(1).permutation(50)[:48].reshape(16, 3)


def ply(*, faces: bool, colors: bool = False, text: bool = False) -> bytes:
    """Written by hand: float32 points, byte colours, triangles."""
    kind = "ascii" if text else "binary_little_endian"
    head = [f"ply\nformat {kind} 1.0\nelement vertex 50", *(f"property float {axis}" for axis in "xyz")]
    head += [f"property uchar {name}" for name in ("red", "green", "blue", "alpha")] if colors else []
    head += [f"element face {len(FACES)}\nproperty list uchar int vertex_indices"] if faces else []
    body = b""
    for point, color in zip(POINTS, COLORS, strict=True):
        values = [*point.tolist(), *(color.tolist() if colors else ())]
        if text:
            body += (" ".join(map(repr, values)) + "\n").encode()
        else:
            body += struct.pack("<3f" + "4B" * colors, *values)
    for face in FACES if faces else ():
        body += (f"3 {' '.join(map(str, face))}\n").encode() if text else struct.pack("<B3i", 3, *face)
    return ("\n".join([*head, "end_header\n"])).encode() + body


def stl() -> bytes:
    triangles = POINTS[FACES].astype("<f4")
    return (
        bytes(80) + struct.pack("<I", len(FACES)) + b"".join(bytes(12) + one.tobytes() + b"\0\0" for one in triangles)
    )


def obj() -> bytes:
    lines = [f"v {x!r} {y!r} {z!r}" for x, y, z in POINTS.tolist()] + [
        f"f {a} {b} {c}" for a, b, c in (FACES + 1).tolist()
    ]
    return "\n".join(["mtllib /etc/passwd", *lines, ""]).encode()


def off() -> bytes:
    lines = [f"{x!r} {y!r} {z!r}" for x, y, z in POINTS.tolist()] + [f"3 {a} {b} {c}" for a, b, c in FACES.tolist()]
    return "\n".join(["OFF", f"50 {len(FACES)} 0", *lines, ""]).encode()


def glb() -> bytes:
    """The same mesh at two places of a scene."""
    data = POINTS.astype("<f4").tobytes() + FACES.astype("<u4").tobytes()
    scene = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0, 1]}],
        "nodes": [{"mesh": 0}, {"mesh": 0, "translation": [10, 0, 0]}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "buffers": [{"byteLength": len(data)}],
        "bufferViews": [
            {"buffer": 0, "byteOffset": 0, "byteLength": 600},
            {"buffer": 0, "byteOffset": 600, "byteLength": FACES.size * 4},
        ],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": 50, "type": "VEC3"},
            {"bufferView": 1, "componentType": 5125, "count": FACES.size, "type": "SCALAR"},
        ],
    }
    head = json.dumps(scene).encode()
    head += b" " * (-len(head) % 4)
    chunks = struct.pack("<II", len(head), 0x4E4F534A) + head + struct.pack("<II", len(data), 0x004E4942) + data
    return struct.pack("<III", 0x46546C67, 2, 12 + len(chunks)) + chunks


def source(data: bytes, kind: str) -> Source:
    return Source(blob=data, column=sl.Spatial3D(format=kind))


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("colors", [False, True])
@pytest.mark.parametrize("faces", [False, True])
def test_ply_is_read_as_it_stands(faces: bool, colors: bool, text: bool) -> None:
    found = spatial.load(source(ply(faces=faces, colors=colors, text=text), "ply"))
    np.testing.assert_allclose(found.points, POINTS, rtol=1e-7)
    np.testing.assert_array_equal(found.faces, FACES if faces else np.empty((0, 3), np.int64))
    if colors:
        np.testing.assert_array_equal(found.colors, COLORS)
    else:
        assert found.colors is None


@pytest.mark.parametrize(("make", "kind"), [(obj, "obj"), (off, "off"), (obj, ".OBJ")])
def test_text_meshes_keep_the_order_of_their_points(make, kind: str) -> None:
    found = spatial.load(source(make(), kind))
    np.testing.assert_allclose(found.points, POINTS, rtol=1e-12)
    np.testing.assert_array_equal(found.faces, FACES)


def test_stl_has_a_point_for_each_corner() -> None:
    found = spatial.load(source(stl(), "stl"))
    np.testing.assert_array_equal(found.points, POINTS[FACES].reshape(-1, 3))
    np.testing.assert_array_equal(found.faces.ravel(), np.arange(FACES.size))


def test_parts_of_a_scene_stand_at_their_places() -> None:
    found = spatial.load(source(glb(), "glb"))
    here, there = sorted(found.points.reshape(2, 50, 3), key=lambda part: part[:, 0].mean())
    np.testing.assert_allclose(here, POINTS, rtol=1e-12)
    np.testing.assert_allclose(there, POINTS + np.array([10, 0, 0]), rtol=1e-12)
    np.testing.assert_array_equal(found.faces, np.concatenate([FACES, FACES + 50]))


def test_xyz() -> None:
    text = "\n".join(" ".join(map(repr, point)) for point in POINTS.tolist())
    np.testing.assert_allclose(spatial.load(source(text.encode(), "xyz")).points, POINTS, rtol=1e-12)


def test_it_is_a_decoder_of_one_frame() -> None:
    decoder = media.open(source(obj(), "obj"))
    assert (len(decoder), decoder.pts.tolist(), decoder.time_base) == (1, [0], 1)
    found = decoder.read(np.array([0, 0]))
    assert (found.shape, found.dtype) == ((2, 50, 3), np.float64)
    assert decoder.read(np.array([], np.int64)).shape == (0, 50, 3)
    out = np.zeros((1, 50, 3))
    assert decoder.read(np.array([0]), out=out) is out
    np.testing.assert_array_equal(out[0], POINTS)
    with pytest.raises(ValueError, match=r"out: expected float64 \[2, 50, 3\]"):
        decoder.read(np.array([0, 0]), out=out)
    with pytest.raises(ValueError, match="size is for pictures"):
        decoder.read(np.array([0]), size=(3, 3))
    for beyond in (-1, 1):
        with pytest.raises(IndexError, match="frame 0 alone"):
            decoder.read(np.array([0, beyond]))
    decoder.close()
    np.testing.assert_array_equal(decoder.read(np.array([0]))[0], POINTS)
    assert media.index(source(b"", "ply")) == {}


def test_a_row_hands_out_points_and_what_cannot_be_read_keeps_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "scan.ply").write_bytes(ply(faces=True))
    (tmp_path / "depth.png").write_bytes(png(random((4, 5), "u2"), 0))
    (tmp_path / "scan.usd").write_bytes(b"#usda 1.0")
    schema = sl.Schema({"scan": sl.Spatial3D(), "motion": sl.Spatial4D(fps=10)})
    rows = sl.create(tmp_path / "ds", schema)
    names = ("scan.ply", "depth.png", "scan.usd")
    rows.append([{"sequence_id": name, "scan": sl.File(tmp_path / name), "motion": "m.splat"} for name in names])
    scan = rows["scan.ply"]["scan"]
    np.testing.assert_array_equal(spatial.xyz(scan[0]), POINTS)
    np.testing.assert_array_equal(spatial.load(scan.source()).faces, FACES)
    np.testing.assert_array_equal(rows["depth.png"]["scan"][0], random((4, 5), "u2")[..., None])
    unread = rows["scan.usd"]["scan"]
    assert isinstance(unread, MediaView)
    with pytest.raises(DecodeError, match="expected 3D data as bin, .*found 'usd'"):
        unread[0]
    assert unread.read() == b"#usda 1.0"
    assert type(rows["scan.ply"]["motion"]) is FileView


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", "ply"), (b"ply\nrubbish", "ply"), (b"glTF....", "glb"), (ply(faces=True)[:-40], "ply"), (b"OFF\n", "off")],
)
def test_damage_is_named(data: bytes, kind: str) -> None:
    with pytest.raises(CorruptFileError, match=f"as {kind}"):
        spatial.load(source(data, kind))


def test_the_format_is_the_declared_one_or_the_suffix() -> None:
    blob = MemoryBlob(off(), location="s3://bucket/a.ply?version=3")
    with pytest.raises(CorruptFileError, match="as ply"):
        spatial.load(Source(blob=blob, column=sl.Spatial3D()))
    np.testing.assert_array_equal(spatial.load(Source(blob=blob, column=sl.Spatial3D(format="off"))).faces, FACES)
    with pytest.raises(DecodeError, match="expected 3D data as bin, glb, .*, found 'splat'"):
        spatial.load(source(b"", "splat"))


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimesh", None)
    decoder = media.open(source(obj(), "obj"))
    with pytest.raises(MissingDependencyError, match=r"pip install 'seqlake\[spatial\]'"):
        decoder.read(np.array([0]))

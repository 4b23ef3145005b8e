"""Splats as gsply reads and writes them, by a file that it wrote; and files that lie."""

from __future__ import annotations

import base64
import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import CorruptFileError, DecodeError
from seqlake.files.blobs import MemoryBlob
from seqlake.media import spatial
from seqlake.protocols import Source

# By gsply 0.4.6, version 3, degree 1; READ is what its `read_spz` gives, in the order of PLY.
SPLATS = base64.b64decode(
    "H4sIAEVlBmsA/wGEAHv/TkdTUAMAAAAEAAAAAQwAAJXi/3Vv/1aGAA/u//tqAGYhAISbAPh6AHcZAHZ2AP2z/7BkAAMrGeaJkYpmlLZ+mHunmaExa4JnVEZVgn1YOHZkO7groSmgR4U3bBSc3rwbktRub2KfYF+lu50AT0lCa91wWqSEhl2Alh4uuKtmTHdDb9WHYtRX94QAAAA="
)
READ = """
-1.8386 -9.0339 8.3960 0.2484 0.4575 0.2745 0.1406 -0.1328 -0.2500 0.6562 -0.2344 -0.2578 -0.1406 0.2422
0.2891 -4.4308 -6.9375 -3.3125 -1.8750 -0.4926 0.8307 -0.2588 -0.0194 -1.1213 6.6863 2.0874 -0.6667 0.5359
1.4248 0.4609 -0.3828 -0.1641 0.2266 -0.4297 0.7266 -1.0000 -0.4844 -0.1250 -1.5954 -3.5625 -4.7500 -5.6250
0.5770 0.1688 0.7990 0.0138 9.7197 7.6855 1.5916 -0.0392 0.6405 -0.1176 -0.2969 0.0469 0.1719 0.2812 -0.2734
-0.7656 0.0312 0.0000 -0.6406 -2.2192 -4.6875 -1.8750 -2.1875 -0.5383 0.6068 0.4511 -0.3722 7.4038 -4.7507
6.2930 1.0327 0.6667 0.8758 0.4375 -0.4062 -0.1328 0.3359 -0.0703 0.6641 -0.2031 -0.4766 0.0547 2.2192 -4.5000
-6.5000 -2.6250 -0.2159 0.6264 0.6130 -0.4304
"""
VALUES = np.array([float(one) for one in READ.split()]).reshape(4, 23)


def points(data: bytes) -> np.ndarray:
    return spatial.points(Source(blob=MemoryBlob(data, location="a.spz"), column=sl.Spatial3D()))


def packed(
    count: int, body: bytes, *, version: int = 2, degree: int = 0, fraction: int = 12, magic: int = 0x5053474E
) -> bytes:
    return gzip.compress(struct.pack("<IIIBBBB", magic, version, count, degree, fraction, 0, 0) + body)


def test_splats_are_those_that_gsply_reads() -> None:
    splats = points(SPLATS)
    assert splats.dtype.names is not None
    assert splats.dtype.names[:6] == ("x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2")
    assert splats.dtype.names[-8:] == ("opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3")
    np.testing.assert_allclose(splats.view(np.float32).reshape(len(splats), -1), VALUES, atol=6e-5)
    np.testing.assert_allclose(
        spatial.load(Source(blob=MemoryBlob(SPLATS, location="a.spz"), column=sl.Spatial3D())).points,
        VALUES[:, :3],
        atol=6e-5,
    )


def test_older_versions_hold_three_parts_of_a_turn() -> None:
    rest = bytes([255, 0, 128]) + bytes([255, 0, 128]) * 1 + bytes([160, 0, 255])
    (splat,) = points(
        packed(
            1,
            (4096).to_bytes(3, "little")
            + b"\xff\xff\xff"
            + b"\0\0\x80"
            + b"\x80"
            + rest[:3]
            + rest[6:]
            + b"\xff\x80\x80",
        )
    )
    assert (splat["x"], splat["y"], splat["z"]) == (1, -1 / 4096, -2048)
    np.testing.assert_allclose([splat["f_dc_0"], splat["f_dc_1"]], [0.5 / 0.15, -0.5 / 0.15], rtol=1e-5)
    assert [splat[f"scale_{axis}"] for axis in range(3)] == [0, -10, 5.9375]
    np.testing.assert_allclose([splat[f"rot_{part}"] for part in range(4)], [0, 1, 1 / 255, 1 / 255], atol=1e-4)
    (first,) = points(packed(1, np.array([1.5, -2, 0.25], "<f2").tobytes() + b"\x80" * 10, version=1))
    assert (first["x"], first["y"], first["z"]) == (1.5, -2, 0.25)
    assert len(points(packed(0, b""))) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ply",
        b"\x1f\x8b",
        gzip.compress(b"short"),
        packed(1, b""),
        packed(1, b"0" * 18),
        packed(1, b"0" * 20),
        packed(0xFFFFFFFF, b""),
        packed(1, b"0" * 19, magic=1),
        packed(1, b"0" * 19, version=9),
        packed(1, b"0" * 19, degree=9),
        packed(1, b"0" * 19, fraction=40),
    ],
    ids=range(12),
)
def test_splats_that_lie_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"a\.spz"):
        points(data)


def test_what_is_packed_by_zstandard_is_refused() -> None:
    with pytest.raises(DecodeError, match="Write version 3"):
        points(struct.pack("<II", 0x5053474E, 4) + bytes(40))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(SPLATS) - 1), st.integers(0, 255), st.booleans())
def test_changed_splats_are_damage_or_splats(place: int, value: int, cut: bool) -> None:
    data = SPLATS[:place] if cut else SPLATS[:place] + bytes([value]) + SPLATS[place + 1 :]
    try:
        assert len(points(data)) == len(VALUES)
    except (CorruptFileError, DecodeError):
        pass
    else:
        assert not cut

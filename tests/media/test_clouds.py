"""Clouds of points with all their fields: what laspy, pypcd4, trimesh and numpy see, and files that lie."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media import spatial
from seqlake.protocols import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

laspy = pytest.importorskip("laspy", reason="the extra `spatial` is not installed")
lzf = pytest.importorskip("lzf", reason="the extra `spatial` is not installed")
pypcd4 = pytest.importorskip("pypcd4", reason="the outside reader is not installed")

PCD_KINDS = ["f4", "f8", "u1", "u2", "u4", "i1", "i2", "i4", "u8", "i8"]
PLY_KINDS = {
    "f4": "float",
    "f8": "double",
    "u1": "uchar",
    "u2": "ushort",
    "u4": "uint",
    "i1": "char",
    "i2": "short",
    "i4": "int",
}


def random_cloud(seed: int, points: int, kinds: list[str]) -> NDArray[Any]:
    """x, y, z as float32 and further fields of these kinds, with any bits that are numbers."""
    rng = np.random.default_rng(seed)
    names = [("x", "f4"), ("y", "f4"), ("z", "f4"), *((f"field{number}", kind) for number, kind in enumerate(kinds))]
    cloud = np.empty(points, names)
    for name, kind in names:
        limits = None if kind[0] == "f" else np.iinfo(kind)
        cloud[name] = (
            rng.normal(scale=1e3, size=points)
            if limits is None
            else rng.integers(limits.min, limits.max, points, kind, endpoint=True)
        )
    return cloud


clouds = st.builds(
    random_cloud, st.integers(0, 1 << 30), st.integers(1, 40), st.lists(st.sampled_from(PCD_KINDS), max_size=4)
)
ply_clouds = st.builds(
    random_cloud, st.integers(0, 1 << 30), st.integers(1, 40), st.lists(st.sampled_from(list(PLY_KINDS)), max_size=4)
)


def read(data: bytes, form: str, **fields: Any) -> NDArray[Any]:
    return spatial.points(Source(blob=data, column=sl.Spatial3D(format=form, **fields)))


def same(one: NDArray[Any], two: NDArray[Any]) -> None:
    assert one.dtype == two.dtype
    assert one.tobytes() == two.tobytes()


def pcd(cloud: NDArray[Any], encoding: str) -> bytes:
    """Written by pypcd4."""
    names = cloud.dtype.names
    theirs = pypcd4.PointCloud.from_points(
        [cloud[name] for name in names], names, [cloud.dtype[name] for name in names]
    )
    file = io.BytesIO()
    theirs.save(file, encoding=pypcd4.Encoding(encoding))
    return file.getvalue()


@settings(max_examples=30, deadline=None)
@given(clouds, st.sampled_from(["ascii", "binary", "binary_compressed"]))
def test_pcd_is_what_pypcd4_wrote(cloud: NDArray[Any], encoding: str) -> None:
    data = pcd(cloud, encoding)
    found = read(data, "pcd")
    if encoding != "ascii":
        same(found, cloud)
        return
    theirs = pypcd4.PointCloud.from_fileobj(io.BytesIO(data)).pc_data  # its text rounds, and ours is what it says
    assert found.dtype == cloud.dtype
    for name in found.dtype.names or ():
        np.testing.assert_array_equal(found[name], theirs[name])


@settings(max_examples=20, deadline=None)
@given(clouds)
def test_pypcd4_reads_what_we_write(cloud: NDArray[Any]) -> None:
    data = spatial.encode(cloud, sl.Spatial3D(), where="here")
    same(read(data, "pcd"), cloud)
    theirs = pypcd4.PointCloud.from_fileobj(io.BytesIO(data))
    same(np.asarray(theirs.pc_data), cloud)


def test_fields_of_several_numbers_and_padding() -> None:
    stored = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("fill", "u1", 3), ("fpfh", "<f4", 33)])
    rows = np.frombuffer(np.random.default_rng(0).integers(0, 2, 7 * stored.itemsize, "u1").tobytes(), stored)
    head = (
        "VERSION 0.7\nFIELDS x y z _ fpfh\nSIZE 4 4 4 1 4\nTYPE F F F U F\nCOUNT 1 1 1 3 33\n"
        "WIDTH 7\nHEIGHT 1\nPOINTS 7\nDATA "
    )
    expected = np.empty(7, [(name, stored[name].base, stored[name].shape) for name in ("x", "y", "z", "fpfh")])
    for name in expected.dtype.names or ():
        expected[name] = rows[name]
    same(read(head.encode() + b"binary\n" + rows.tobytes() + b"trailing", "pcd"), expected)
    apart = b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in stored.names or ())
    packed = lzf.compress(apart)
    data = head.encode() + b"binary_compressed\n" + struct.pack("<II", len(packed), len(apart)) + packed
    same(read(data, "pcd"), expected)
    text = "\n".join(" ".join(map(str, [*row[:3], *row[3], *row[4]])) for row in rows.tolist())
    same(read(head.encode() + b"ascii\n" + text.encode(), "pcd"), expected)


def test_long_texts_are_read_in_blocks() -> None:
    cloud = random_cloud(5, 60_000, ["u2"])
    data = ply(cloud, "ascii")
    assert len(data) > 2 << 20
    same(read(data, "ply"), cloud)


def ply(cloud: NDArray[Any], form: str, *, faces: int = 0, before: int = 0) -> bytes:
    """Written by hand, with elements before and behind the vertices."""
    head = [f"ply\nformat {form} 1.0\ncomment from a test"]
    head += [f"element camera {before}\nproperty float yaw\nproperty uchar kind"] if before else []
    head += [f"element vertex {len(cloud)}"]
    head += [f"property {PLY_KINDS[cloud.dtype[name].str[1:]]} {name}" for name in cloud.dtype.names or ()]
    head += [f"element face {faces}\nproperty list uchar int vertex_indices"] if faces else []
    start = ("\n".join(head) + "\nend_header\n").encode()
    if form == "ascii":
        lines = (
            ["0.5 3"] * before + [" ".join(repr(one) for one in row) for row in cloud.tolist()] + ["3 0 0 0"] * faces
        )
        return start + "\n".join(lines).encode() + b"\n"
    order = "<" if form == "binary_little_endian" else ">"
    stored = cloud.astype([(name, cloud.dtype[name].newbyteorder(order)) for name in cloud.dtype.names or ()])
    return (
        start
        + struct.pack(f"{order}fB", 0.5, 3) * before
        + stored.tobytes()
        + struct.pack(f"{order}B3i", 3, 0, 0, 0) * faces
    )


@settings(max_examples=40, deadline=None)
@given(
    ply_clouds,
    st.sampled_from(["ascii", "binary_little_endian", "binary_big_endian"]),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_ply_has_every_property_of_its_vertices(cloud: NDArray[Any], form: str, faces: int, before: int) -> None:
    same(read(ply(cloud, form, faces=faces, before=before), "ply"), cloud)


def test_trimesh_sees_the_same_vertices() -> None:
    cloud = random_cloud(3, 20, ["f4", "u2"])
    data = ply(cloud, "binary_little_endian", faces=2)
    np.testing.assert_array_equal(
        spatial.load(Source(blob=data, column=sl.Spatial3D(format="ply"))).points, spatial.xyz(cloud)
    )


def las(cloud: NDArray[Any], *, packed: bool, form: int, version: str) -> tuple[bytes, Any]:
    """Written by laspy, with an extra dimension."""
    header = laspy.LasHeader(point_format=form, version=version)
    header.scales, header.offsets = [0.001, 0.002, 0.01], [500_000.0, -7.0, 0.5]
    header.add_extra_dim(laspy.ExtraBytesParams(name="ring", type=np.uint16))
    scan = laspy.LasData(header)
    scan.x, scan.y, scan.z = cloud["x"] + 500_000.0, cloud["y"].astype("f8"), cloud["z"].astype("f8")
    scan.intensity, scan.ring = np.arange(len(cloud)) % 65_536, np.arange(len(cloud)) % 128
    scan.return_number = np.arange(len(cloud)) % 4
    file = io.BytesIO()
    scan.write(file, do_compress=packed, laz_backend=laspy.LazBackend.Lazrs if packed else None)
    data = file.getvalue()
    return data, laspy.read(io.BytesIO(data))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.integers(1, 60),
    st.booleans(),
    st.sampled_from([(0, "1.2"), (1, "1.2"), (3, "1.3"), (6, "1.4"), (7, "1.4")]),
)
def test_las_and_laz_are_what_laspy_reads(seed: int, points: int, packed: bool, kind: tuple[int, str]) -> None:
    data, theirs = las(random_cloud(seed, points, []), packed=packed, form=kind[0], version=kind[1])
    found = read(data, "laz" if packed else "las")
    names = [name for name in theirs.point_format.dimension_names if name not in {"X", "Y", "Z"}]
    assert found.dtype.names == ("x", "y", "z", *names)
    for name in found.dtype.names:
        values = np.asarray(theirs[name])
        assert found.dtype[name] == values.dtype
        np.testing.assert_array_equal(found[name], values)
    assert spatial.xyz(found).dtype == np.float64


def test_bin_is_what_the_column_says() -> None:
    values = np.random.default_rng(1).normal(size=(11, 4)).astype("<f4")
    found = read(values.tobytes(), "bin")  # 176 bytes are no points of five numbers
    assert found.dtype.names == ("x", "y", "z", "intensity")
    np.testing.assert_array_equal(spatial.stacked(found, found.dtype.names), values)
    assert read(values[:, :3].tobytes(), "kitti", fields=["x", "y", "z"]).dtype.names == ("x", "y", "z")
    five = np.random.default_rng(1).normal(size=(7, 5)).astype("<f4")
    assert read(five.tobytes(), "bin").dtype.names == ("x", "y", "z", "intensity", "ring")
    named = [["t", "uint64"], "x", "y", "z", ["ring", "uint16"]]
    stored = np.zeros(3, [("t", "u8"), ("x", "f4"), ("y", "f4"), ("z", "f4"), ("ring", "u2")])
    stored["t"] = 1 << 62
    same(read(stored.tobytes(), "bin", fields=named), stored)


@pytest.mark.parametrize(
    ("size", "fields", "error", "why"),
    [
        (80, {}, DecodeError, "several layouts"),
        (80, {"format": "kitti"}, None, ""),
        (12, {}, DecodeError, "no known layout"),
        (24, {"format": "nuscenes"}, CorruptFileError, "points of 20 bytes"),
        (24, {"fields": ["x", "y", "z", "i"]}, CorruptFileError, "points of 16 bytes"),
        (24, {"fields": "xyz"}, None, ""),
        (24, {"fields": [["x", "no"]]}, DecodeError, "expected names"),
        (24, {"fields": ["x", "x"]}, DecodeError, "expected names"),
        (24, {"fields": [["x", "O"]]}, DecodeError, "expected names"),
        (24, {"fields": []}, DecodeError, "expected names"),
        (24, {"fields": 7}, DecodeError, "expected names"),
    ],
)
def test_a_bin_is_guessed_only_where_its_size_allows_one_answer(
    size: int, fields: dict[str, Any], error: type[Exception] | None, why: str
) -> None:
    declared = {"format": "bin", **fields}
    form = declared.pop("format")
    if error is None:
        assert len(read(bytes(size), form, **declared))
        return
    with pytest.raises(error, match=why):
        read(bytes(size), form, **declared)


def pcd_saying(**said: str) -> bytes:
    head = {"VERSION": "0.7", "FIELDS": "x y z", "SIZE": "4 4 4", "TYPE": "F F F", "COUNT": "1 1 1", "WIDTH": "2"}
    head |= {"HEIGHT": "1", "POINTS": "2", "DATA": "binary", **said}
    body = head.pop("body", "0 " * 12)
    return "".join(f"{name} {value}\n" for name, value in head.items() if value).encode() + body.encode("latin1")


def compressed(packed: int, size: int, body: str) -> str:
    return struct.pack("<II", packed, size).decode("latin1") + body


LITTLE = "binary_little_endian"
SOME = {"WIDTH": "9999", "POINTS": "9999"}
MANY = {"WIDTH": "30000000", "POINTS": "30000000"}
LAZ = las(random_cloud(0, 50, []), packed=True, form=0, version="1.2")[0]
LAS = las(random_cloud(0, 50, []), packed=False, form=0, version="1.2")[0]


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(form, out, at, value)
    return bytes(out)


def chunk_table(data: bytes) -> int:
    (start,) = struct.unpack_from("<I", data, 96)
    return int(struct.unpack_from("<q", data, start)[0])


PLY = "ply\nformat {} 1.0\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\n{}end_header\n{}"
FACES = "element face {}\nproperty list uint int vertex_indices\n"
HOSTILE = {
    "more points than bytes": ("pcd", pcd_saying(**MANY), "bytes are there"),
    "more lines than bytes": ("pcd", pcd_saying(**MANY, DATA="ascii"), "bytes are there"),
    "more than any machine has": ("pcd", pcd_saying(WIDTH=str(1 << 40), POINTS=str(1 << 40)), "bytes are there"),
    "points unlike width": ("pcd", pcd_saying(POINTS="3"), "width x height"),
    "negative": ("pcd", pcd_saying(WIDTH="-2", POINTS="-2"), "width x height"),
    "a bomb": (
        "pcd", pcd_saying(**MANY, DATA="binary_compressed", body=compressed(8, 360_000_000, "a" * 8)),
        "bytes are there"),
    "a bomb of its size": (
        "pcd", pcd_saying(**SOME, DATA="binary_compressed", body=compressed(99, 9999 * 12, "a" * 2000)),
        "bytes in 99"),
    "compressed into nothing": (
        "pcd", pcd_saying(DATA="binary_compressed", body=compressed(9, 24, "\x07abcdefgh")),
        "do not make|cannot be read"),
    "compressed, other size": (
        "pcd", pcd_saying(DATA="binary_compressed", body=compressed(4, 400, "abcd")),
        "declared"),
    "compressed, nothing there": ("pcd", pcd_saying(DATA="binary_compressed", body="abc"), "cannot be read"),
    "wide points": ("pcd", pcd_saying(COUNT="1 1 2000000000"), "points of 1 to"),
    "no count": ("pcd", pcd_saying(COUNT="1 1 0"), "points of 1 to"),
    "names twice": ("pcd", pcd_saying(FIELDS="x x z"), "each once"),
    "odd sizes": ("pcd", pcd_saying(SIZE="4 4 3"), "cannot be read"),
    "float16": ("pcd", pcd_saying(SIZE="4 4 2"), "4 or 8 bytes"),
    "text that is none": ("pcd", pcd_saying(DATA="ascii", body="1 2 3\n1 two 3\n"), "two"),
    "text with a hole": ("pcd", pcd_saying(DATA="ascii", body="1 2 3\n1 3      \n"), "3 numbers in each line"),
    "text out of range": (
        "pcd", pcd_saying(DATA="ascii", TYPE="F F U", SIZE="4 4 1", body="1 2 3\n1 2 300\n"),
        "values of uint8"),
    "text beyond 64 bits": (
        "pcd", pcd_saying(DATA="ascii", TYPE="F F U", SIZE="4 4 8", body=f"1 2 3\n1 2 {1 << 70}\n"),
        "cannot be read"),
    "long words": ("pcd", pcd_saying(DATA="ascii", body="1 2 3\n1 2 " + "9" * 500), "found b'9999"),
    "long line": ("pcd", pcd_saying(DATA="ascii", body="1 " * 2_000_000), "longer than a million"),
    "few lines": ("pcd", pcd_saying(DATA="ascii", body="1.0000000 2.00000 3\n\n\n"), "expected 2 lines, found 1"),
    "no header": ("pcd", bytes(100), "no line that begins with DATA"),
    "endless header": ("pcd", b"# \n" * 100_000, "no line that begins with DATA"),
    "ply, more vertices than bytes": (
        "ply", PLY.format("binary_little_endian", 30_000_000, "", "").encode(),
        "bytes are there"),
    "ply, more lines than bytes": ("ply", PLY.format("ascii", 30_000_000, "", "0 0 0\n").encode(), "bytes are there"),
    "ply, more faces than bytes": (
        "ply", PLY.format("binary_little_endian", 0, FACES.format(30_000_000), "").encode(),
        "bytes are there"),
    "ply, negative": ("ply", PLY.format("ascii", -1, "", "").encode(), "cannot be read|bytes are there"),
    "ply, lists first": (
        "ply", PLY.replace("element v", FACES.format(1) + "element v").format(LITTLE, 1, "", " " * 99).encode(),
        "lists in or before"),
    "ply, text that is none": ("ply", PLY.format("ascii", 1, "", "0 zero 0\n").encode(), "zero"),
    "ply, no vertices": ("ply", b"ply\nformat ascii 1.0\nend_header\n", "no element called vertex"),
    "ply, rubbish": ("ply", b"ply\nformat ascii 1.0\nrubbish\nend_header\n", "rubbish"),
    "las, cut": ("las", LAS[:-30], "bytes are there"),
    "las, many points": ("las", changed(LAS, 107, "<I", 30_000_000), "bytes are there"),
    "las, all points": ("las", changed(LAS, 107, "<I", 0xFFFFFFFF), "bytes are there"),
    "las, many records": ("las", changed(LAS, 100, "<I", 0xFFFFFFFF), "records"),
    "las, points nowhere": ("las", changed(LAS, 96, "<I", 0xFFFFFFF0), "begin at byte"),
    "laz, many points": ("laz", changed(LAZ, 107, "<I", 30_000_000), "bytes are there"),
    "laz, many chunks": ("laz", changed(LAZ, chunk_table(LAZ) + 4, "<I", 0xFFFFFFFF), "chunks are declared"),
    "laz, table nowhere": (
        "laz", changed(LAZ, struct.unpack_from("<I", LAZ, 96)[0], "<q", 1 << 60),
        "table of chunks"),
    "laz, cut": ("laz", LAZ[:-40], "table of chunks|cannot be read"),
    "las, nothing": ("las", b"", "LASF"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_lie_are_refused(name: str) -> None:
    form, data, why = HOSTILE[name]
    with pytest.raises(DecodeError, match=why) as caught:
        read(data, form)
    assert not isinstance(caught.value.__cause__, MemoryError)
    if form == "ply" and "lists first" not in name:
        with pytest.raises(DecodeError):
            spatial.load(Source(blob=data, column=sl.Spatial3D(format="ply")))


def test_huge_lists_of_faces_are_refused() -> None:
    data = (
        PLY.format("binary_little_endian", 1, FACES.format(1), "").encode()
        + bytes(12)
        + struct.pack("<I", 0xFFFFFFFF)
        + bytes(40)
    )
    assert len(read(data, "ply")) == 1  # the vertices are whole
    with pytest.raises(CorruptFileError, match="as ply") as caught:
        spatial.load(Source(blob=data, column=sl.Spatial3D(format="ply")))
    assert not isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize(
    ("cloud", "fields", "why"),
    [
        (np.zeros((3, 4), "f4"), {}, r"\[N, 3\]"),
        (np.zeros(3), {}, r"\[N, 3\]"),
        (np.zeros(3, [("x", "f4"), ("y", "f4")]), {}, "with x, y and z"),
        (np.zeros(3, [("x", "f2"), ("y", "f4"), ("z", "f4")]), {}, "float16"),
        (np.zeros((3, 3), "f2"), {}, "float16"),
        (np.zeros((3, 3), "c8"), {}, "complex64"),
        (np.zeros((3, 3), "f4"), {"format": "ply"}, "written as PCD"),
        (np.zeros((3, 4), "f4"), {"fields": ["a", "b", "c", "d"]}, "with x, y and z"),
    ],
)
def test_what_is_no_cloud_is_not_written(cloud: NDArray[Any], fields: dict[str, Any], why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        spatial.encode(cloud, sl.Spatial3D(**fields), where="Sequence 'a', column 'scan'")


def test_numbers_without_names_are_named_by_the_column() -> None:
    values = np.random.default_rng(0).normal(size=(5, 4))
    found = read(spatial.encode(values, sl.Spatial3D(fields=["x", "y", "z", "intensity"]), where=""), "pcd")
    assert found.dtype.names == ("x", "y", "z", "intensity")
    np.testing.assert_array_equal(spatial.stacked(found, found.dtype.names), values)
    assert read(spatial.encode(np.zeros((0, 3), "f4"), sl.Spatial3D(), where=""), "pcd").shape == (0,)
    with pytest.raises(DecodeError, match="no field 'ring'; there are x, y, z, intensity"):
        spatial.stacked(found, ["x", "ring"])

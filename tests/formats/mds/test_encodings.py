"""Every encoding, read from bytes written by hand, in columns and one by one."""

from __future__ import annotations

import io
import json
import pickle
import struct
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, DecodeError, InvalidMetadataError, SchemaMismatchError
from seqlake.formats import mds
from seqlake.formats.mds import CellEncoding

from ..by_hand import write  # noqa: TID252 - one tool for several formats

Image = pytest.importorskip("PIL.Image")


def one(tmp_path: Path, encoding: str, cells: list[bytes], **options):
    """A folder of one column; gives its samples."""
    folder = write(tmp_path / "one", {"x": encoding}, [[{"x": cell} for cell in cells]])
    return mds.scan(str(folder), **options)


def column(source: mds.SampleDataset) -> list:
    return sl.scan(source).to_arrow()["x"].to_pylist()


SCALARS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("name", SCALARS)
def test_integers_at_their_limits(tmp_path: Path, name: str) -> None:
    values = [np.iinfo(name).min, np.iinfo(name).max, 1]
    source = one(tmp_path, name, [np.array(v, name).astype(f"<{np.dtype(name).str[1:]}").tobytes() for v in values])
    assert column(source) == values
    assert [source[i]["x"] for i in range(3)] == values
    assert source[0]["x"].dtype == name


@pytest.mark.parametrize(("name", "letter"), [("float16", "e"), ("float32", "f"), ("float64", "d")])
def test_floats(tmp_path: Path, name: str, letter: str) -> None:
    source = one(tmp_path, name, [struct.pack(f"<{letter}", v) for v in (0.5, -0.0, float("inf"))])
    assert column(source) == [0.5, 0.0, float("inf")]
    assert source.schema["x"].arrow == pa.from_numpy_dtype(np.dtype(name))


@pytest.mark.parametrize(
    ("name", "cells", "values"),
    [
        ("int", [struct.pack("<q", v) for v in (-(1 << 63), 5)], [-(1 << 63), 5]),
        ("bytes", [b"", b"\0\xff", b"x" * 70000], [b"", b"\0\xff", b"x" * 70000]),
        ("str", [b"", "äöü€".encode()], ["", "äöü€"]),
        ("str_int", [b"-7", b"9223372036854775807", b"+1_0"], [-7, 9223372036854775807, 10]),
        ("str_float", [b"1e+300", b"-inf", b"0.1"], [1e300, float("-inf"), 0.1]),
    ],
)
def test_values_of_text_and_bytes(tmp_path: Path, name: str, cells: list[bytes], values: list) -> None:
    source = one(tmp_path, name, cells)
    assert column(source) == values
    assert [sample["x"] for sample in source] == values


def test_decimals_keep_their_digits(tmp_path: Path) -> None:
    source = one(tmp_path, "str_decimal", [b"1.500", b"-1E+30"])
    assert column(source) == ["1.500", "-1E+30"]
    assert source[0]["x"] == Decimal("1.500")
    assert str(source[0]["x"]) == "1.500"


def test_json_is_text_in_columns_and_an_object_alone(tmp_path: Path) -> None:
    text = json.dumps({"k": [1, "é", None]})
    source = one(tmp_path, "json", [text.encode()])
    assert column(source) == [text]
    assert source[0]["x"] == {"k": [1, "é", None]}


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_arrays_of_free_shape(tmp_path: Path, width: int) -> None:
    values = [np.arange(6, dtype="i2").reshape(2, 3), np.arange(8, dtype="i2").reshape(4, 2)]
    power = {1: 0, 2: 1, 4: 2, 8: 3}[width]
    shapes = [bytes([2 << 2 | power]) + np.array(v.shape, f"<u{width}").tobytes() for v in values]
    source = one(tmp_path, "ndarray:int16", [s + v.tobytes() for s, v in zip(shapes, values, strict=True)])
    assert column(source) == [v.tolist() for v in values]
    np.testing.assert_array_equal(source[1]["x"], values[1])
    assert not source[1]["x"].flags.writeable


@pytest.mark.sampled
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("before", range(9))
def test_arrays_wherever_they_begin(tmp_path: Path, width: int, before: int) -> None:
    """A single cell is not copied: numbers in it lie askew, on which some releases of numpy crash."""
    from seqlake.formats._streaming.cells import fixed

    value = np.arange(6, dtype="i2").reshape(2, 3)
    power = {1: 0, 2: 1, 4: 2, 8: 3}[width]
    cell = bytes([2 << 2 | power]) + np.array(value.shape, f"<u{width}").tobytes() + value.tobytes()
    columns = {"a": "bytes", "x": "ndarray:int16", "y": "int64"}
    sample = {"a": bytes(before), "x": cell, "y": struct.pack("<q", -5)}
    source = mds.scan(str(write(tmp_path / "one", columns, [[sample]])))
    table = sl.scan(source).to_arrow()
    assert table["x"].to_pylist() == [value.tolist()]
    assert table["y"].to_pylist() == [-5]
    assert table["y"].chunk(0).buffers()[1].address % 8 == 0
    raw = np.zeros(64 + before, np.uint8)
    for starts in ([before], [before, before + 8], [before, before + 9, before + 30]):
        assert fixed(raw, np.array(starts), 8).view("<u8").flags.aligned


@pytest.mark.parametrize(("code", "name"), [(8, "uint8"), (17, "int16"), (18, "float16"), (66, "float64")])
def test_the_dtype_of_free_arrays_is_learned(tmp_path: Path, code: int, name: str) -> None:
    cells = [bytes([code, 1 << 2, n]) + np.arange(n).astype(name).tobytes() for n in (3, 1)]
    source = one(tmp_path, "ndarray", cells)
    assert source.schema["x"].arrow == pa.list_(pa.from_numpy_dtype(np.dtype(name)))
    assert column(source) == [[0, 1, 2], [0]]


def test_arrays_of_three_free_dimensions(tmp_path: Path) -> None:
    values = [np.arange(np.prod(shape), dtype="f4").reshape(shape) for shape in [(2, 1, 3), (1, 4, 2)]]
    source = one(tmp_path, "ndarray:float32", [bytes([3 << 2, *v.shape]) + v.tobytes() for v in values])
    assert column(source) == [v.tolist() for v in values]


def test_free_arrays_of_another_kind_are_refused_by_sample(tmp_path: Path) -> None:
    cells = [bytes([8, 1 << 2, 1, 5]), bytes([9, 1 << 2, 1, 5]), bytes([8, 2 << 2, 1, 1, 5])]
    source = one(tmp_path, "ndarray", cells)
    with pytest.raises(DecodeError, match="sample 1, column 'x': it is int8, others of its column are uint8") as found:
        column(source)
    assert not isinstance(found.value, CorruptFileError)
    assert [sample["x"].tolist() for sample in source] == [[5], [5], [[5]]]
    assert column(mds.scan(source.root, encodings={"x": "bytes"})) == cells


def test_images_stay_their_files(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGB", (4, 3), (9, 8, 7)).save(out, "JPEG")
    source = one(tmp_path, "jpeg", [out.getvalue()])
    assert column(source) == [out.getvalue()]
    assert source.schema["x"].type == sl.Image(format="jpeg")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_raw_pixels_become_png_without_loss(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (5, 9, 3), dtype=np.uint8)).convert(mode)
    raw = struct.pack("<III", *image.size, len(mode)) + mode.encode() + image.tobytes()
    [found] = column(one(tmp_path, "pil", [raw]))
    assert found[1:4] == b"PNG"
    opened = Image.open(io.BytesIO(found))
    assert opened.mode == mode
    assert opened.tobytes() == image.tobytes()


@pytest.mark.parametrize("mode", ["I", "F", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "La", "RGBa", "PA"])
def test_pixels_that_no_png_holds_say_so(tmp_path: Path, mode: str) -> None:
    """The sample is sound, and its cell can be had: nothing calls it corrupt."""
    image = Image.frombytes(mode, (2, 2), bytes(range(2 * 2 * len(Image.new(mode, (1, 1)).tobytes()))))
    raw = struct.pack("<III", 2, 2, len(mode)) + mode.encode() + image.tobytes()
    source = one(tmp_path, "pil", [raw])
    for read in (lambda: column(source), lambda: source[0]):
        with pytest.raises(DecodeError, match=f"PNG cannot hold the mode '{mode}'") as found:
            read()
        assert not isinstance(found.value, CorruptFileError)
    assert column(mds.scan(source.root, encodings={"x": "bytes"})) == [raw]


def test_a_claim_of_many_pixels_makes_nothing(tmp_path: Path) -> None:
    raw = struct.pack("<III", 1 << 31, 1 << 31, 3) + b"RGB" + b"\1\2\3"
    with pytest.raises(CorruptFileError, match="do not lie in 3 bytes"):
        column(one(tmp_path, "pil", [raw]))


@pytest.mark.parametrize(
    ("name", "head"), [("list[jpeg]", b"\0\0\0\0"), ("list[png]", b"\0\0\0\0"), ("jpeg_array", b""), ("jpegarray", b"")]
)
def test_lists_of_images(tmp_path: Path, name: str, head: bytes) -> None:
    files = [b"first", b"", b"the third"]
    cell = head + struct.pack("<4I", 3, *map(len, files)) + b"".join(files)
    source = one(tmp_path, name, [cell])
    assert column(source) == [files]
    assert source.schema["x"].category == "frames"
    assert source.lengths("x").tolist() == [3]


def test_pickles_are_shown_and_not_read(tmp_path: Path) -> None:
    source = one(tmp_path, "pkl", [pickle.dumps({"a": 1})])
    assert source.schema["x"].arrow == pa.binary()
    with pytest.raises(DecodeError, match=r"allow_pickle=\['x'\]"):
        column(source)
    with pytest.raises(DecodeError, match="pickles"):
        source[0]


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def test_no_pickle_is_read_without_leave(tmp_path: Path) -> None:
    source = one(tmp_path, "pkl", [pickle.dumps(Bomb())])
    list(source.check("rows"))
    with pytest.raises(DecodeError):
        column(source)
    assert len(column(mds.scan(source.root, encodings={"pkl": "bytes"}))[0]) > 0


def test_pickles_that_were_allowed(tmp_path: Path) -> None:
    values = [{"a": 1, "b": [1.5]}, {"a": 2, "b": []}]
    source = one(tmp_path, "pkl", [pickle.dumps(value) for value in values], allow_pickle=["x"])
    assert column(source) == values
    assert source[1]["x"] == values[1]


def test_pickles_that_arrow_cannot_hold(tmp_path: Path) -> None:
    source = one(tmp_path, "pkl", [pickle.dumps(Decimal)], allow_pickle=["x"])
    with pytest.raises(SchemaMismatchError, match="Encoding"):
        source.schema["x"]


def test_encodings_of_the_user(tmp_path: Path) -> None:
    cells = [bytes([80]), bytes([100])]
    celsius = CellEncoding(arrow=pa.float32(), decode=lambda cell: cell[0] / 2 - 40)
    for key in ("uint8", "x"):
        source = one(tmp_path, "uint8", cells, encodings={key: celsius})
        assert column(source) == [0.0, 10.0]
        assert source[1]["x"] == 10.0
    with pytest.raises(InvalidMetadataError, match="'quantised'"):
        column(one(tmp_path / "own", "quantised", cells))
    assert column(one(tmp_path / "own", "quantised", cells, encodings={"quantised": celsius})) == [0.0, 10.0]


def test_a_value_that_an_encoding_of_the_user_refuses_is_named(tmp_path: Path) -> None:
    def refuse(cell: memoryview) -> int:
        return {1: 5}[cell[0]]

    source = one(tmp_path, "uint8", [b"\1", b"\2"], encodings={"x": CellEncoding(arrow=pa.int8(), decode=refuse)})
    with pytest.raises(CorruptFileError, match="sample 1, column 'x'"):
        column(source)


@pytest.mark.parametrize(
    ("name", "cell", "what"),
    [
        ("str", b"\xff", "UTF-8"),
        ("str_int", b"seven", "'seven' is no integer"),
        ("str_float", b"one", "number"),
        ("str_decimal", b"one", "decimal"),
        ("ndarray", b"\x07\x04\x01\x05", "dtype and a shape"),
        ("ndarray:int16", b"\x04\x02\x05\x00", "does not make"),
        ("ndarray:int16", b"\x08\x02", "shape is cut off"),
        ("ndarray:int16", b"\x07" + b"\xff" * 8, "larger than any file"),
        ("pil", b"\x01\0\0\0", "cut off"),
        ("list[png]", b"\0\0\0\0\xff\xff\xff\xff", "do not lie"),
        ("list[png]", b"\0\0\0\0\1\0\0\0\5\0\0\0abc", "3 are there"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, name: str, cell: bytes, what: str) -> None:
    source = one(tmp_path, name, [cell])
    with pytest.raises(CorruptFileError, match="sample 0, column 'x'") as found:
        column(source)
    assert what in str(found.value)


def test_the_name_of_the_first_release_works_and_warns():
    with pytest.warns(DeprecationWarning, match="CellEncoding"):
        assert mds.Encoding is CellEncoding
    with pytest.raises(AttributeError, match="Decoding"):
        _ = mds.Decoding

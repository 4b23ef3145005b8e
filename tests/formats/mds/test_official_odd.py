"""What a column of samples may hold and an Arrow column cannot, beside the official package: read alike, or named.

Pictures of every mode, arrays of other dtypes and ranks, integers above 64 bits.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake import plugins
from seqlake.errors import DecodeError

from .test_official import READ, WRITE, Image, _pixels, contents, ours

HELD = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # by PNG
OTHERS = ("I", "F", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "La", "RGBa", "PA", "I;16L", "I;16B", "I;16N")
A = np.arange(6, dtype="f4")
ARRAYS = {
    "shapes": ([A.reshape(2, 3), A.reshape(3, 2), A.reshape(6, 1)], None),
    "wide shapes": ([np.zeros((300, 1), "u1"), np.ones((1, 70_000), "u1"), np.ones((2, 3), "u1")], None),
    "dtypes": ([A, A.astype("i2"), A.astype("f8")], "it is int16, others of its column are float32"),
    "ranks": ([A, A.reshape(2, 3), A.reshape(1, 2, 3)], "it has 2 dimensions, others of its column 1"),
    "both": ([A.reshape(2, 3), A.astype("u8"), np.ones((1,) * 5, "i1")], "it is uint64, others of its column"),
}
LARGE = [(1 << 63) - 1, 10**30, -(1 << 63), 1 << 63, -(1 << 63) - 1, 1 << 64]
Case = tuple[str, str, dict[str, str], dict[str, Any], list[dict[str, Any]]]


def cases(home: Any, kind: str, columns: dict[str, dict[str, list[Any]]]) -> list[Case]:
    """Name -> encoding -> values, each a folder of theirs."""
    return [
        (kind, f"{home}/theirs-{kind}-{name}".replace(";", "_"), {"x": encoding}, {}, [{"x": one} for one in values])
        for name, encodings in columns.items()
        for encoding, values in encodings.items()
    ]


def exchanged(official: Any, made: list[Case]) -> list[str]:
    """Written there and here, byte for byte the same, and read there from here; gives the folders."""
    official(WRITE, cases=made)
    folders = [ours(case) for case in made]
    for case, folder, found in zip(made, folders, official(READ, folders=folders), strict=True):
        assert contents(folder) == contents(case[1]), case[1]
        for sample, there in zip(case[4], found, strict=True):
            same(there["x"], _pixels(sample["x"]) if hasattr(sample["x"], "getpixel") else sample["x"])
    return [case[1] for case in made]


def same(found: Any, given: Any) -> None:
    if isinstance(given, np.ndarray):
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(found, given)
    else:
        assert found == given


def ways(folder: str, kind: str, **options: Any) -> dict[str, Any]:
    """The cells of `x` by every way of reading."""
    format_ = plugins.load("formats", "xsv" if kind in {"csv", "tsv"} else kind)
    samples = format_.scan(folder, **options)
    source = sl.scan(folder, **options)
    loader = sl.Loader(source, window=None, batch_size=1, shuffle=False)
    return {
        "by number": lambda: [samples[n]["x"] for n in range(len(samples))],
        "Arrow": lambda: [one.as_py() for one in source.to_arrow()["x"]],
        "loader": lambda: [one for batch in loader for one in batch["x"]],
    }


def decoded(picture: Any) -> np.ndarray:
    """What training is given: uint8 [H, W, 3], or 16 bits of grey; indices are grey, for no palette is stored."""
    if picture.mode == "I;16":
        return np.asarray(picture)[:, :, None]
    return (
        np.repeat(np.asarray(picture)[:, :, None], 3, 2) if picture.mode == "P" else np.asarray(picture.convert("RGB"))
    )


def test_pictures_of_every_mode(official: Any, tmp_path: Any) -> None:
    random = np.random.default_rng(5)
    pictures = {}
    for mode in (*HELD, *OTHERS):
        count = len(Image.new(mode, (5, 3)).tobytes())
        pictures[mode] = Image.frombytes(mode, (5, 3), random.bytes(count))
    folders = exchanged(official, cases(tmp_path, "mds", {mode: {"pil": [one] * 2} for mode, one in pictures.items()}))
    for (mode, picture), folder in zip(pictures.items(), folders, strict=True):
        how = ways(folder, "mds")
        if mode in HELD:
            for name in ("by number", "Arrow"):
                assert [_pixels(bytes(one)) for one in how[name]()] == [_pixels(picture)] * 2, (mode, name)
            for one in how["loader"]():
                np.testing.assert_array_equal(one, decoded(picture), err_msg=mode)
        else:
            for read in how.values():
                with pytest.raises(DecodeError, match=f"PNG cannot hold the mode '{mode}'; encodings="):
                    read()
        raw = struct.pack("<III", 5, 3, len(mode)) + mode.encode() + picture.tobytes()
        for name, read in ways(folder, "mds", encodings={"x": "bytes"}).items():
            assert [bytes(one) for one in read()] == [raw] * 2, (mode, name)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_other_dtypes_and_ranks(official: Any, tmp_path: Any, name: str) -> None:
    arrays, told = ARRAYS[name]
    kinds = ["ndarray"] + ([f"ndarray:{arrays[0].dtype}"] if len({one.dtype for one in arrays}) == 1 else [])
    for kind in kinds:
        [folder] = exchanged(official, cases(tmp_path / kind[7:].strip(":"), "mds", {name: {kind: arrays}}))
        how = ways(folder, "mds")
        for found, given in zip(how["by number"](), arrays, strict=True):
            same(found, given)
        for way in ("Arrow", "loader"):
            if told is None:
                for found, given in zip(how[way](), arrays, strict=True):
                    np.testing.assert_array_equal(np.asarray(found), given)
            else:
                with pytest.raises(DecodeError, match=f"{told}.*encodings="):
                    how[way]()
        for read in ways(folder, "mds", encodings={"x": "bytes"}).values():
            for cell, given in zip(read(), arrays, strict=True):
                assert bytes(cell).endswith(given.tobytes())


def test_integers_above_64_bits(official: Any, tmp_path: Any) -> None:
    made = cases(tmp_path, "mds", {"digits": {"str_int": LARGE}})
    for kind in ("csv", "tsv", "jsonl"):
        made += cases(tmp_path, kind, {"digits": {"int": LARGE}})
    for case, folder in zip(made, exchanged(official, made), strict=True):
        how = ways(folder, case[0])
        assert how["by number"]() == LARGE
        for way in ("Arrow", "loader"):
            with pytest.raises(DecodeError, match=f"{10**30} does not fit into 64 bits; encodings="):
                how[way]()
        for read in ways(folder, case[0], encodings={"x": "str"}).values():
            assert [int(one) for one in read()] == LARGE

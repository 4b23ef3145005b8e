"""JSONL folders as rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError
from seqlake.formats import jsonl
from seqlake.formats.mds import CellEncoding
from seqlake.testing.formats import FormatTests

from ..by_hand import lines  # noqa: TID252 - one tool for several formats

COLUMNS = {"a": "int", "text": "str", "x": "float"}


class TestJsonl(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path):
        first = [b'{"a": 1, "text": "one", "x": 0.5}\n', b'{"a": -2, "text": "\\u00e4", "x": NaN}\n']
        last = [b'{"x": Infinity, "a": 3, "text": ""}\n', b'{"a": 4}\n']
        return jsonl.scan(str(lines(tmp_path / "j", "json", COLUMNS, [first, [], last])))


def test_objects_are_columns(tmp_path: Path) -> None:
    samples = [{"a": 1, "text": "zwölf, \n zeilen", "x": 2.5}, {"a": 2, "text": "", "x": 3, "more": [1]}, {"a": None}]
    folder = lines(tmp_path / "j", "json", COLUMNS, [[json.dumps(one).encode() + b"\n" for one in samples]])
    assert sl.scan(folder).to_arrow().to_pylist() == [
        {"a": 1, "text": "zwölf, \n zeilen", "x": 2.5},
        {"a": 2, "text": "", "x": 3.0},
        {"a": None, "text": None, "x": None},
    ]
    assert jsonl.scan(str(folder))[1] == samples[1]


def test_nested_values_by_an_encoding_of_the_user(tmp_path: Path) -> None:
    folder = lines(tmp_path / "j", "json", {"tags": "str"}, [[b'{"tags": ["x", "y"]}\n']])
    tags = CellEncoding(arrow=pa.list_(pa.string()), decode=lambda cell: json.loads(bytes(cell)))
    assert sl.scan(folder, encodings={"tags": tags}).to_arrow()["tags"].to_pylist() == [["x", "y"]]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"a": 1\n', "no JSON"),
        (b"[1]\n", "JSON object"),
        (b'{"a": 1}', "does not end with"),
        (b'{"text": "\xff"}\n', "no JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    folder = lines(tmp_path / "j", "json", COLUMNS, [[b'{"a": 1, "text": "a", "x": 1.0}\n', line]])
    with pytest.raises(CorruptFileError, match="sample 1") as found:
        sl.scan(folder).to_arrow()
    assert what in str(found.value)

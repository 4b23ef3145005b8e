"""CSV, TSV and XSV folders as rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError
from seqlake.formats import xsv
from seqlake.testing.formats import FormatTests

from ..by_hand import lines  # noqa: TID252 - one tool for several formats

COLUMNS = {"a": "int", "text": "str", "x": "float"}


class TestXsv(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path):
        shards = [[b"1||one||0.5\n", b"-20||\xc3\xa4||nan\n", b"300||||inf\n"], [], [b"4||x||1e+300\n"]]
        return xsv.scan(str(lines(tmp_path / "x", "xsv", COLUMNS, shards, header=b"a||text||x\n")))


@pytest.mark.parametrize(("kind", "mark"), [("csv", b","), ("tsv", b"\t"), ("xsv", b"||")])
def test_values_are_cut_at_the_separator(tmp_path: Path, kind: str, mark: bytes) -> None:
    rows = [[b"7", "zwölf".encode(), b"2.5"], [b"-1", b"", b"-inf"], [b"99", b" a b ", b"0.1"]]
    header = mark.join([b"a", b"text", b"x"]) + b"\n"
    folder = lines(tmp_path / kind, kind, COLUMNS, [[mark.join(row) + b"\n" for row in rows]], header=header)
    table = sl.scan(folder).to_arrow()
    assert table.to_pylist() == [
        {"a": 7, "text": "zwölf", "x": 2.5},
        {"a": -1, "text": "", "x": float("-inf")},
        {"a": 99, "text": " a b ", "x": 0.1},
    ]
    assert xsv.scan(str(folder))[2] == {"a": 99, "text": " a b ", "x": 0.1}


def test_python_numbers_are_read_as_python_reads_them(tmp_path: Path) -> None:
    folder = lines(tmp_path / "c", "csv", {"a": "int", "x": "float"}, [[b"+1_000,1_0.5\n"]], header=b"a,x\n")
    assert sl.scan(folder).to_arrow().to_pylist() == [{"a": 1000, "x": 10.5}]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"1,two\n", "2 values, there are 3 columns"),
        (b"1,two,3,4\n", "4 values, there are 3 columns"),
        (b"1,two,3.0", "does not end with"),
        (b"one,two,3.0\n", "column 'a'"),
        (b"1,\xff,3.0\n", "column 'text'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    folder = lines(tmp_path / "c", "csv", COLUMNS, [[b"1,a,1.0\n", line]], header=b"a,text,x\n")
    with pytest.raises(CorruptFileError, match="sample 1") as found:
        sl.scan(folder).to_arrow()
    assert what in str(found.value)


def test_integers_of_any_size_are_read_as_text(tmp_path: Path) -> None:
    folder = lines(tmp_path / "c", "csv", {"a": "int"}, [[b"99999999999999999999\n"]], header=b"a\n")
    assert sl.scan(folder, encodings={"a": "str"}).to_arrow()["a"].to_pylist() == ["99999999999999999999"]

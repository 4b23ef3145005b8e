"""CSV files as rows: against pyarrow and Python's own csv, in every dialect, block by block, broken and hostile."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake import grouping
from seqlake.errors import CorruptFileError, DatasetNotFoundError, SchemaMismatchError
from seqlake.files.stores import open_store
from seqlake.formats import csv as plug
from seqlake.testing.formats import FormatTests

HEADER = ["episode", "t", "x", "task", "ok", "day"]


def lines(count: int = 60) -> list[list[object]]:
    rng = random.Random(3)
    return [
        [
            f"{n // 9:03d}",
            n / 10,
            n * n,
            rng.choice(["pick, it", 'say "go"', "two\nlines", ""]),
            n % 2 == 0,
            "2026-01-02",
        ]
        for n in range(count)
    ]


def write(path: Path, rows: list[list[object]], *, header: list[str] | None = HEADER, **how: object) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", **how)
        writer.writerows([header, *rows] if header else rows)
    return path


class TestLaws(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path):
        return plug.scan(str(write(tmp_path / "steps.csv", lines())), block_bytes=400, file_names="file")


class TestLawsOfSequences(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path):
        rows = lines()
        random.Random(1).shuffle(rows)
        place = write(tmp_path / "steps.csv", rows)
        rows, _ = grouping.collected(plug.scan(str(place), block_bytes=400), {"state": ("t, x", None)})
        return grouping.as_sequences(rows, sequence_id="episode", steps=True)


def test_every_block_gives_what_pyarrow_reads_of_the_whole(tmp_path: Path) -> None:
    place = write(tmp_path / "steps.csv", lines(300))
    whole = pacsv.read_csv(
        place,
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types={"episode": pa.string()}, strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    for size in (1 << 8, 1 << 11, 1 << 20):
        source = plug.scan(str(place), block_bytes=size)
        assert len(source.shards()) > 1 or size == 1 << 20
        table = sl.scan(source).to_arrow()
        assert table.cast(whole.schema).equals(whole), size


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(
        st.lists(st.text(st.sampled_from('ab",;\n\r '), max_size=6), min_size=2, max_size=2), min_size=1, max_size=40
    ),
    size=st.integers(256, 300),
)
def test_texts_of_any_kind_come_back(tmp_path: Path, cells: list[list[str]], size: int) -> None:
    rows = [[f"{n}-{first}", second] for n, (first, second) in enumerate(cells)]
    place = write(tmp_path / "t.csv", rows, header=["a", "b"], quoting=csv.QUOTE_ALL)
    table = sl.scan(plug.scan(str(place), block_bytes=size, types={"a": "string", "b": "string"})).to_arrow()
    assert table["a"].to_pylist() == [row[0] for row in rows]
    assert table["b"].to_pylist() == [row[1] for row in rows]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a;b\n1;2\n", {}, {"a": [1], "b": [2]}),
        ("a|b\n1|x,y\n", {}, {"a": [1], "b": ["x,y"]}),
        ("a;b\n1,5;2\n", {"delimiter": ";", "decimal": ","}, {"a": [1.5], "b": [2]}),
        ("a;b\n1,5;2\n", {"decimal": ","}, {"a": [1.5], "b": [2]}),
        ("\ufeffa,b\n1,2\n", {}, {"a": [1], "b": [2]}),
        ("a,b\r\n1,2\r\n3,4\r\n", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,b\r1,2\r3,4\r", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,b\n1,2", {}, {"a": [1], "b": [2]}),
        ("1,2\n3,4\n", {"header": False}, {"column_0": [1, 3], "column_1": [2, 4]}),
        ("1,2\n3,4\n", {"header": False, "columns": ["p", "q"]}, {"p": [1, 3], "q": [2, 4]}),
        ("# made by x\na,b\n1,2\n", {"skip_rows": 1}, {"a": [1], "b": [2]}),
        (",b\n7,2\n", {}, {"column_0": [7], "b": [2]}),
        ('a,b\n5" disk,2\nx,3\n', {"quote": None}, {"a": ['5" disk', "x"], "b": [2, 3]}),
        ("a,b\n'1,5',2\n", {"quote": "'"}, {"a": ["1,5"], "b": [2]}),
        ("a,b\nx\\,y,2\n", {"escape": "\\"}, {"a": ["x,y"], "b": [2]}),
        ("a,b\n-,2\n4,-\n", {"nulls": ["-"]}, {"a": [None, 4], "b": [2, None]}),
        ('a,b\n"",2\n,3\n', {}, {"a": ["", None], "b": [2, 3]}),
        ("a,b\nnan,2\n1.5,3\n", {}, {"a": [float("nan"), 1.5], "b": [2, 3]}),
        ("a,b\n007,2\n012,3\n", {}, {"a": ["007", "012"], "b": [2, 3]}),
        ("a,b\n1,2\n", {"types": {"a": "float32", "b": pa.string()}}, {"a": [1.0], "b": ["2"]}),
    ],
)
def test_dialects(tmp_path: Path, text: str, options: dict, expected: dict) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    table = sl.scan(tmp_path / "t.csv", **options).to_arrow()
    assert repr(table.to_pydict()) == repr(expected)


def test_latin_letters(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,b\nGrün,1\n".encode("latin-1"))
    assert sl.scan(tmp_path / "t.csv", encoding="latin-1").to_arrow()["a"].to_pylist() == ["Grün"]
    with pytest.raises(CorruptFileError, match="encoding="):
        sl.scan(tmp_path / "t.csv", types={"a": "string"}).to_arrow()
    with pytest.raises(ValueError, match="extends ASCII"):
        sl.scan(tmp_path / "t.csv", encoding="utf-16")


def test_a_type_is_that_of_all_blocks(tmp_path: Path) -> None:
    rows = [[n, n if n < 90 else n + 0.5, n if n < 90 else "none of it", "" if n < 90 else n] for n in range(100)]
    place = write(tmp_path / "t.csv", rows, header=["n", "x", "s", "late"])
    table = sl.scan(place, block_bytes=256).to_arrow()
    assert [str(kind) for kind in table.schema.types] == ["int64", "double", "string", "int64"]
    assert table["s"].to_pylist() == [str(row[2]) for row in rows]
    assert table["late"].to_pylist() == [None if row[3] == "" else row[3] for row in rows]


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.csv", [[name, 1], [name, 2]], header=["who", "t"])
    ds = sl.scan(tmp_path, sequence_id="file", steps="t", file_names="file")
    assert ds.to_arrow()["sequence_id"].to_pylist() == ["a", "b"]
    write(tmp_path / "c.csv", [["c", 1, 2]], header=["who", "t", "more"])
    with pytest.raises(SchemaMismatchError, match="more"):
        sl.scan(tmp_path)


def test_labels_beside_parquet_do_not_make_a_folder_csv(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "data" / "a.parquet")
    write(tmp_path / "labels.csv", [["a", 1]], header=["who", "label"])
    assert not plug.matches(str(tmp_path))
    assert sl.scan(tmp_path).to_arrow()["x"].to_pylist() == [1, 2]
    (tmp_path / "data" / "a.parquet").unlink()
    assert plug.matches(str(tmp_path))
    (tmp_path / "index.json").write_text("{}")
    assert not plug.matches(str(tmp_path))


def test_rows_with_a_sequence_id_are_sequences(tmp_path: Path) -> None:
    place = write(tmp_path / "clips.csv", [["a", "a.mp4"], ["b", "b.mp4"]], header=["sequence_id", "film"])
    ds = sl.scan(place, column_types={"film": sl.Video(fps=30)})
    assert ds.schema.id == "sequence_id"
    assert ds.schema["film"].category == "file"


@pytest.mark.parametrize(
    ("text", "options", "error", "what"),
    [
        ("a,b\n1,2\n3\n", {}, CorruptFileError, "Expected 2 columns, got 1"),
        ('a,b\n1,"2\n', {}, CorruptFileError, "t.csv"),
        ("", {}, CorruptFileError, "is empty"),
        ("a,a\n1,2\n", {}, SchemaMismatchError, "two columns are called 'a'"),
        ("a,b\n1,2\n", {"types": {"c": "int64"}}, SchemaMismatchError, "'c'"),
        ("a,b\n1,2\n", {"types": {"a": "numbr"}}, SchemaMismatchError, "no Arrow type"),
        ("a,b\nx,2\n", {"types": {"a": "int64"}}, CorruptFileError, "a column that holds something else"),
        ("a,b\n1,2\n", {"delimiter": "::"}, ValueError, "one character"),
        ("a,b\n1,2\n", {"columns": ["p"]}, SchemaMismatchError, "2 columns, and 1 names"),
        ("a,b\n1,2\n", {"nope": 1}, TypeError, "takes no option 'nope'"),
        ("a,b\n1,2\n", {"quote": ","}, ValueError, "different characters"),
        ("a,b\n1,2\n", {"decimal": ","}, ValueError, "different characters"),
        ("a\0b,c\n1,2\n", {}, CorruptFileError, "NUL"),
    ],
)
def test_what_is_broken_says_so(tmp_path: Path, text: str, options: dict, error: type, what: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(error, match=what):
        sl.scan(tmp_path / "t.csv", **options).to_arrow()


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    place = write(tmp_path / "steps.csv", lines())
    ds = sl.scan(place)
    place.write_text(place.read_text().replace("2026-01-02\n", "\n"))
    with pytest.raises((CorruptFileError, sl.errors.SeqlakeError)):
        ds.to_arrow()


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files_are_those_that_are_in_them(tmp_path: Path, ending: str) -> None:
    rows = [[f"{n // 9:03d}", n / 10, n * n, "a", True, "2026-01-02"] for n in range(200)]
    plain = write(tmp_path / "steps.tsv", rows, delimiter="\t")
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / f"steps.tsv{ending}"
    packed.write_bytes(PACKERS[ending](plain.read_bytes()))
    options = {"sequence_id": "episode", "steps": "t", "block_bytes": 900}
    expected = sl.scan(plain, **options).to_arrow()
    for place in (packed, packed.parent):
        assert plug.matches(str(place))
        assert sl.scan(place, **options).to_arrow().equals(expected)
    again = pickle.loads(pickle.dumps(plug.scan(str(packed), file_names="file")))
    assert [row["file"] for row in sl.scan(again).to_arrow().to_pylist()] == ["steps"] * 200
    sl.convert(packed, tmp_path / "out", sequence_id="episode", steps="t", workers=2, progress=False)
    assert (
        sl.open(tmp_path / "out")
        .select("sequence_id", "x")
        .to_arrow()
        .equals(sl.scan(plain, **options).select("sequence_id", "x").to_arrow())
    )
    data = packed.read_bytes()
    for number, damaged in enumerate((data[: len(data) // 2], data[:1], data[:30] + bytes(9) + data[39:], b"no")):
        place = tmp_path / f"bad{number}.tsv{ending}"
        place.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=f"bad{number}"):
            sl.scan(place)


def test_compressed_files_that_hold_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "t.csv.gz"
    place.write_bytes(gzip.compress(b"a\n" + b"0\n" * (8 << 20)))
    free = shutil.disk_usage(tmp_path)._replace(free=20 << 20)
    monkeypatch.setattr("seqlake.files.packed.shutil.disk_usage", lambda _: free)
    with pytest.raises(CorruptFileError, match="half of what is free"):
        sl.scan(place)


def test_archives_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "t.csv.zip").write_bytes(b"PK")
    with pytest.raises(DatasetNotFoundError, match="Unpack it first"):
        sl.scan(tmp_path / "t.csv.zip")
    with pytest.raises(DatasetNotFoundError):
        sl.scan(tmp_path / "none.csv")


def test_in_a_bucket(tmp_path: Path, s3_bucket) -> None:
    place = write(tmp_path / "steps.csv", lines(200))
    open_store(s3_bucket.uri, storage=s3_bucket.storage).put("in/steps.csv", place)
    here = sl.scan(place, sequence_id="episode", steps="t", block_bytes=900)
    there = sl.scan(
        f"{s3_bucket.uri}/in/steps.csv", sequence_id="episode", steps="t", block_bytes=900, storage=s3_bucket.storage
    )
    assert there.to_arrow().equals(here.to_arrow())
    assert len(sl.scan(f"{s3_bucket.uri}/in", storage=s3_bucket.storage)) == 200


def test_a_large_file_is_read_with_little_memory(tmp_path: Path) -> None:
    """What Arrow holds at once while every row is looked at stays near a block, and far from the file."""
    block = io.StringIO()
    csv.writer(block).writerows([[n % 7, n, n * 0.5] for n in range(20_000)])
    with (tmp_path / "big.csv").open("w") as file:
        file.write("e,t,x\n")
        for _ in range(40):
            file.write(block.getvalue())
    before, pool = pa.total_allocated_bytes(), pa.default_memory_pool()
    source = plug.scan(str(tmp_path / "big.csv"), block_bytes=1 << 20)
    assert sum(shard.rows for shard in source.shards()) == 800_000
    most = 0
    for shard in source.shards():
        for batch in shard.open().batches(["e", "t", "x"]):
            assert batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 8 << 20 < (tmp_path / "big.csv").stat().st_size, pool.backend_name
    assert np.sum([shard.nbytes for shard in source.shards()]) < (tmp_path / "big.csv").stat().st_size

"""Appending tables of every maker; what does not fit is told column by column and changes nothing."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from seqlake.dataset import opening
from seqlake.errors import DuplicateSequenceError, SchemaMismatchError, ValidationError
from seqlake.spec.column_types import Embedding, Trajectory
from seqlake.spec.schema import Schema

SCHEMA = Schema(
    {"n": pa.int32(), "s": pa.string(), "length": pa.int64(), "x": Trajectory(dim=2), "v": Embedding(dim=2)}
)
ROWS = [
    {"sequence_id": "a", "n": 1, "s": "x", "x": [[1.0, 2.0], [3.0, 4.0]], "v": [1.0, 2.0]},
    {"sequence_id": "b", "n": None, "s": None, "x": None, "v": None},
    {"sequence_id": "c", "n": 3, "s": "ü", "x": [], "v": [0.0, 0.5]},
]
EXPECTED = [{**row, "length": None if row["x"] is None else len(row["x"])} for row in ROWS]
TABLE = pa.Table.from_pylist(ROWS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opening.create(tmp_path / "ds", SCHEMA)
    return tmp_path / "ds"


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def makers(tmp_path: Path) -> dict[str, object]:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    return {
        "dicts": ROWS,
        "a generator": (row for row in ROWS),
        "arrow": TABLE,
        "reader": TABLE.to_reader(),
        "arrow dataset": pyarrow.dataset.dataset(tmp_path / "t.parquet"),
        "polars": pl.read_parquet(tmp_path / "t.parquet"),
        "polars arrays": pl.read_parquet(tmp_path / "t.parquet").with_columns(
            pl.col("v").cast(pl.Array(pl.Float64, 2)), pl.col("x").cast(pl.List(pl.Array(pl.Float64, 2)))
        ),
        "pandas": pd.DataFrame(ROWS),
        "duckdb": duckdb.sql("FROM table_", connection=connection()),
        "numpy rows": [{**row, "x": None if row["x"] is None else np.array(row["x"]).reshape(-1, 2)} for row in ROWS],
    }


def connection() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.register("table_", TABLE)
    return made


@pytest.mark.parametrize(
    "maker",
    ["dicts", "a generator", "arrow", "reader", "arrow dataset", "polars", "polars arrays", "pandas", "duckdb",
     "numpy rows"],
)  # fmt: skip
def test_tables_of_every_maker(maker: str, root: Path, tmp_path: Path) -> None:
    ds = opening.open(root)
    version = ds.append(makers(tmp_path)[maker])
    assert version.rows == 3
    found = ds.to_arrow().to_pylist()
    assert [{name: row[name] for name in EXPECTED[0]} for row in found] == EXPECTED
    assert opening.open(root).to_arrow().equals(ds.to_arrow())


def test_a_dataset_appends_to_another_and_keeps_every_bit(root: Path, tmp_path: Path) -> None:
    payload = np.array([[0x7FC00001, 0xFFC12345]], np.uint32).view(np.float32)
    ds = opening.open(root)
    ds.append([{"sequence_id": "nan", "x": payload, "v": payload[0]}])
    other = opening.create(tmp_path / "other", SCHEMA)
    other.append(ds, layout="archive")
    for column in ("x", "v"):
        assert np.asarray(other["nan"][column]).tobytes() == payload.tobytes()


def test_append_is_one_commit_or_none(root: Path) -> None:
    ds = opening.open(root)
    ds.append(ROWS, rows_per_shard=1)
    assert len(ds.versions()) == 2
    assert len(ds.shards()) == 3
    assert ds.append([]).id == 1
    assert ds.append(TABLE.slice(0, 0)).id == 1


BAD = {
    "unknown column": (TABLE.append_column("m", [[1, 2, 3]]), SchemaMismatchError, "m: is not in the schema"),
    "wrong type": (TABLE.set_column(1, "n", [["1", "2", "3"]]), SchemaMismatchError, "n: expected int32, found string"),
    "no id": (TABLE.drop(["sequence_id"]), SchemaMismatchError, "sequence_id: expected string, is missing"),
    "integer ids": (
        TABLE.set_column(0, "sequence_id", [[1, 2, 3]]), SchemaMismatchError, "expected string, found int64"),
    "null id": (TABLE.set_column(0, "sequence_id", [["a", None, "c"]]), ValidationError, "null where"),
    "empty id": (TABLE.set_column(0, "sequence_id", [["a", "", "c"]]), ValidationError, "must not be empty"),
    "id twice": (TABLE.set_column(0, "sequence_id", [["a", "b", "a"]]), DuplicateSequenceError, "'a'"),
    "out of range": (TABLE.set_column(1, "n", [[1, 2**40, 3]]), ValidationError, "int64 does not fit int32"),
    "ragged": (TABLE.set_column(3, "x", [[[[1.0, 2.0], [3.0]], None, []]]), ValidationError, "must have 2 values"),
    "vector": (TABLE.set_column(4, "v", [[[1.0], None, None]]), ValidationError, "row 0: expected 2 values, found 1"),
    "bad row last": ([*ROWS, {"sequence_id": "d", "x": [[1.0]]}], SchemaMismatchError, r"found \[1, 1\]"),
    "no rows": (3, SchemaMismatchError, "Expected Arrow data"),
    "a dict": ({"sequence_id": ["a"]}, SchemaMismatchError, "Expected Arrow data"),
    "rows of lists": ([["a", 1]], SchemaMismatchError, "expected a dict"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_change_nothing(case: str, root: Path) -> None:
    data, kind, message = BAD[case]
    before = names(root)
    with pytest.raises(kind, match=message):
        opening.open(root).append(data)
    assert names(root) == before
    assert len(opening.open(root)) == 0


def test_a_cell_beyond_1_gib_is_refused_in_tables_too(root: Path, tmp_path: Path) -> None:
    """Without the memory: a map of a file that is one hole."""
    size = (1 << 30) + 8
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(size)
    zeros = pa.py_buffer(np.memmap(tmp_path / "hole", mode="r", dtype="u1"))
    values = pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(pa.float32(), size // 4, [None, zeros]), 2)
    cells = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    with pytest.raises(ValidationError, match=r"'x', row 0: a cell may have 1 GiB, this one has 1.00 GiB"):
        opening.open(root).append(pa.table({"sequence_id": ["a"], "x": cells}))
    assert len(opening.open(root)) == 0

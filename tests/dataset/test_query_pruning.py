"""What a condition rules out is never part of the answer: conditions drawn at random, against DuckDB's own tables."""

from __future__ import annotations

import json
import math
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.versions.folders import NULL

from ..homes import PLACES  # noqa: TID252 - one tool for several rooms

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    {
        "sequence_id": pa.string(), "p": pa.string(), "k": pa.int64(), "day": pa.date32(), "x": pa.float64(),
        "f": pa.float32(), "n": pa.int64(), "s": pa.string(), "flag": pa.bool_(),
    }
)  # fmt: skip
LONG = "prefix of more than sixteen and more than thirty-two characters: "
TEXTS = ["a", "b c", "é", "x=y", "50%", "a%20b", "it's", 'say "x"', "", "Z", "\U0010ffff", LONG + "a"]
FOLDERS = [None, *TEXTS, "a/b", "#?&+*[1]"]
DAYS = [date(2023, 12, 31), date(2024, 1, 2), date(2024, 2, 29)]
LARGE = 2**53  # from here on a double cannot tell an integer from its neighbour
NUMBERS = [None, -3, 0, 1, 2, 10, LARGE, LARGE + 1, -LARGE - 1, 2**62 + 1]
FLOATS = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 1.5, -2.5, 1e-45, 1e300, float(LARGE)]


def table(seed: int, count: int) -> pa.Table:
    """Rows whose order makes shards with narrow bounds of `n`, `day` and `s`."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any], *, ordered: bool = False) -> list[Any]:
        chosen = rng.integers(0, len(values), count)
        return [values[at] for at in (np.sort(chosen) if ordered else chosen)]

    columns = {
        "sequence_id": [f"ep {number:03}" for number in range(count)],
        "p": some([FOLDERS[at] for at in rng.integers(0, len(FOLDERS), 4)]),
        "k": some([-1, 0, 7, LARGE + 1][: int(rng.integers(1, 5))]),
        "day": some([None, *DAYS], ordered=True),
        "x": some(FLOATS, ordered=bool(rng.integers(0, 2))),
        "f": [None if value is None or abs(value) > 1e38 else value for value in some(FLOATS, ordered=True)],
        "n": some(NUMBERS, ordered=True),
        "s": some([None, *TEXTS], ordered=True),
        "flag": some([True, False, None]),
    }
    return pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()})


def quoted(text: str) -> str:
    """As SQL takes it."""
    return "'" + text.replace("'", "''") + "'"


DATES = st.sampled_from([*DAYS, date(2024, 1, 1), date(2030, 1, 1)]).map(lambda day: f"DATE '{day}'")
NUMERALS = st.sampled_from(
    ["0", "1", "-3", "1.5", "0.1", "1e-45", "-2.5", "1e300", str(LARGE), str(LARGE + 1), f"{LARGE + 1}.0", f"{LARGE}e0",
     f"-{LARGE}e0", "'nan'::DOUBLE", "'inf'::DOUBLE", "NULL", "0.1::FLOAT", "7", "4611686018427387905.0"]
)  # fmt: skip
LITERALS = st.sampled_from([*TEXTS, "a/b", "#?&+*[1]", "zz", LONG, LONG + "b"]).map(quoted)
SIGNS = st.sampled_from(["=", "<", "<=", ">", ">=", "<>", "IS DISTINCT FROM"])


def compared(columns: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One condition over one of these columns."""
    column = st.sampled_from([*columns, columns[0].upper(), f"dataset.{columns[0]}", f'"{columns[-1]}"'])
    several = st.lists(values, min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(column, SIGNS, values).map(" ".join),
        st.tuples(values, SIGNS, column).map(" ".join),
        st.tuples(column, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), values, st.just("AND"), values).map(" ".join),
        st.tuples(column, st.sampled_from(["IN", "NOT IN"]), several).map(lambda one: f"{one[0]} {one[1]} ({one[2]})"),
        column.map(lambda name: f"{name} IS NULL"),
    )


ATOMS = st.one_of(
    compared(["p", "s"], LITERALS),
    compared(["k", "n", "x", "f"], NUMERALS),
    compared(["day"], DATES),
    st.sampled_from(
        ["flag", "NOT flag", "day = '2024-01-02'", "CAST(day AS VARCHAR) < '2024'", "k = '7'", "n < '10'",
         "day >= TIMESTAMP '2024-01-02 00:00:01'", "CAST(n AS VARCHAR) = '10'", "k::VARCHAR <= p", "p LIKE 'a%'",
         "n::DOUBLE = 9007199254740992",
         "p || s = 'aa'", "n = k", "-n > 0", "try_cast(x AS FLOAT) = f", "coalesce(n, 1) = 1", "lower(p) = 'z'"]
    ),
)  # fmt: skip
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "AND", "OR"]), inner).map(
            lambda two: f"({two[0]}) {two[1]} ({two[2]})"
        ),
        inner.map(lambda one: f"NOT ({one})"),
    ),
    max_leaves=4,
)


def hive(folder: Path, rows: pa.Table) -> Any:
    """A file for each `p` and `k`, as other engines write them, which are in the names of folders alone."""
    for number, part in enumerate(cells(rows, ["p", "k"])):
        p, k = part["p"][0].as_py(), part["k"][0].as_py()
        place = folder / "data" / f"p={NULL if p is None else quote(p, safe='')}" / f"k={k}"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(part.drop_columns(["p", "k"]), place / f"{number}.parquet")
    (folder / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0"}))
    return sl.open(folder)


def cells(rows: pa.Table, names: list[str]) -> list[pa.Table]:
    """The rows of each combination of values, in their order."""
    keys = list(zip(*(rows[name].to_pylist() for name in names), strict=True))
    return [rows.take([at for at, key in enumerate(keys) if key == one]) for one in dict.fromkeys(keys)]


def stored(place: str, rows: pa.Table, partition_by: list[str]) -> Any:
    """A table of ours of several commits, each of which has some shards."""
    schema = sl.Schema({name: SCHEMA.field(name).type for name in SCHEMA.names[1:]})
    ds = sl.create(place, schema, partition_by=partition_by)
    for start in range(0, len(rows), 16):
        ds.append(rows[start : start + 16])
    return ds


def source(kind: str, folder: Path, rows: pa.Table) -> Any:
    """The rows in a dataset of this kind."""
    if kind in {"hive", "hive, scanned"}:
        opened = hive(folder, rows)
        return opened if kind == "hive" else sl.scan(folder / "data")
    if kind == "standalone":
        return stored(str(folder / "own"), rows, [])
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg", "ducklake": "duckdb"}[kind])
    return stored(PLACES[kind].format(folder=folder, name="t"), rows, ["k"])


def duckdb_table(kind: str, folder: Path, rows: pa.Table) -> duckdb.DuckDBPyConnection:
    """All rows in a table of DuckDB's, which has no files to leave out; of folders those that it reads itself."""
    db = duckdb.connect()
    if kind.startswith("hive"):
        files = f"read_parquet('{folder}/data/**/*.parquet', hive_partitioning=true)"
        db.execute(f"CREATE TABLE dataset AS SELECT {', '.join(SCHEMA.names)} FROM {files}")
    else:
        db.register("arrow", rows)
        db.execute("CREATE TABLE dataset AS SELECT * FROM arrow")
    return db


def agree(ds: Any, db: duckdb.DuckDBPyConnection, condition: str) -> None:
    """The same rows by SQL, by `where` and in sums."""
    expected = [
        one for (one,) in db.execute(f"SELECT sequence_id FROM dataset WHERE {condition} ORDER BY 1").fetchall()
    ]
    asked = ds.sql(f"SELECT sequence_id FROM dataset WHERE {condition}").fetchall()
    assert sorted(one for (one,) in asked) == expected, condition
    assert sorted(ds.where(condition).to_arrow()["sequence_id"].to_pylist()) == expected, condition
    counted = "count(*), min(n), max(day), count(DISTINCT p)"
    query = f"SELECT {counted} FROM dataset WHERE {condition}"
    assert ds.sql(query).fetchall() == db.execute(query).fetchall(), condition


KINDS = ["hive", "hive, scanned", "standalone", "delta", "iceberg", "ducklake"]


SLOW = {"standalone", "iceberg", "ducklake"}  # to be made; their bounds are used as Delta's are


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=[pytest.mark.soak] if one in SLOW else []) for one in KINDS]
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A dataset of each kind, and the truth."""
    folder, rows = tmp_path_factory.mktemp("pruned"), table(3, 60)
    ds = source(request.param, folder, rows)
    assert len(ds.shards()) > 3
    return ds, duckdb_table(request.param, folder, rows)


@pytest.mark.sampled(every=2)
@settings(max_examples=6, deadline=None)
@given(condition=CONDITIONS)
def test_any_condition_has_the_rows_that_duckdb_finds(both, condition: str) -> None:
    agree(*both, condition)


EDGES = [
    f"n = {LARGE + 1}.0", f"n <= {LARGE}e0", f"n >= {-LARGE}e0", "k <= 9007199254740992e0", "f = 1e-45", "f <= 0.1",
    "x > 1e308", "x = 'nan'::DOUBLE", f"s > {quoted(LONG)}", "p = ''", "p = '50%'", "day > DATE '2024-01-02'",
]  # fmt: skip


@pytest.mark.sampled(every=2)
def test_conditions_at_the_edge_of_bounds(both) -> None:
    for condition in EDGES:
        agree(*both, condition)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), conditions=st.lists(CONDITIONS, min_size=20, max_size=40))
def test_any_dataset_and_any_condition(kind: str, seed: int, conditions: list[str], tmp_path_factory) -> None:
    folder, rows = tmp_path_factory.mktemp("drawn"), table(seed, 10 + seed % 60)
    ds, db = source(kind, folder, rows), duckdb_table(kind, folder, rows)
    for condition in conditions:
        agree(ds, db, condition)

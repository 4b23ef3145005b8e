"""Shards that a condition rules out are not opened, and no row is lost by it."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli import main
from seqlake.dataset.reading.pruning import Comparison, left

pytest.importorskip("deltalake")


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    """Nine shards: three splits of three commits; rewards 0 to 26, one NaN, one null."""
    root = tmp_path_factory.mktemp("lake")
    schema = {"split": pa.string(), "reward": pa.float32(), "steps": pa.int64(), "action": sl.Trajectory(dim=2)}
    made = sl.create(f"delta:{root}/t", schema, partition_by=["split"])
    for commit in range(3):
        made.append(
            [
                {
                    "sequence_id": f"ep_{n}",
                    "split": ["train", "val", None][n % 3],
                    "reward": {13: float("nan"), 14: None}.get(n, float(n)),
                    "steps": n,
                    "action": np.zeros((3, 2), np.float32),
                }
                for n in range(9 * commit, 9 * commit + 9)
            ]
        )
    return made


CONDITIONS = [
    "split = 'train'",
    "split IN ('train', 'val') AND steps < 9",
    "split IS NULL",
    "split <> 'train'",
    "reward > 20",
    "reward = 13.0 OR steps = 14",
    "steps BETWEEN 4 AND 11",
    "9 > steps",
    "steps = 14 AND reward IS NULL",
    "SPLIT = 'val' AND STEPS >= 18",
    "reward < 2.5",
    "steps > 100",
    "NOT (split = 'train')",
    "reward <= 8",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_rows_are_those_of_the_whole_table(ds, condition):
    whole = duckdb.connect().register("whole", ds.to_arrow())  # DuckDB itself, over everything
    expected = whole.sql(f"SELECT sequence_id FROM whole WHERE {condition}").to_arrow_table().column(0).to_pylist()
    assert sorted(s.id for s in ds.where(condition)) == sorted(expected)
    found = ds.sql(f"SELECT sequence_id FROM dataset WHERE {condition}").to_arrow_table().column(0).to_pylist()
    assert sorted(found) == sorted(expected)


def test_explain_counts_the_files_that_are_opened(ds):
    every = ds.explain("SELECT avg(steps) FROM dataset")
    assert (every.opened, every.shards, every.rows) == (9, 9, 27)
    part = ds.explain("SELECT avg(steps) FROM dataset WHERE split = 'train' AND steps < 9")
    assert (part.opened, part.rows) == (1, 3)
    assert 0 < part.nbytes < every.nbytes < every.total
    assert "split = 'train'" in str(part)


def test_partition_values_are_known_without_opening_a_file(ds):
    told = ds.explain("SELECT split, count(*) FROM dataset GROUP BY split")
    assert (told.opened, told.nbytes) == (0, 0)


def test_a_selection_explains_the_files_that_hold_its_rows(ds):
    told = ds.where("split = 'val'").select("steps").explain()
    assert (told.opened, told.shards, told.rows) == (3, 9, 9)


def test_a_second_look_at_the_table_is_not_ruled_out(ds):
    query = "SELECT count(*) FROM dataset WHERE split = 'train' AND steps < (SELECT max(steps) FROM dataset)"
    assert ds.sql(query).fetchall() == [(9,)]
    assert ds.explain(query).opened == 9


def test_columns_under_other_names_rule_nothing_out(tmp_path):
    ds = sl.create(f"delta:{tmp_path}/t", {"a": pa.int64(), "b": pa.int64()})
    ds.append([{"sequence_id": f"ep_{n}", "a": n, "b": n + 100} for n in range(3)])
    assert ds.schema.names == ["sequence_id", "a", "b"]
    assert ds.sql("SELECT i FROM dataset AS d(i, b, a) WHERE b = 2").fetchall() == [("ep_2",)]
    assert ds.sql("SELECT sequence_id FROM dataset AS d WHERE b = 102").fetchall() == [("ep_2",)]


def test_a_bound_that_is_nan_rules_nothing_out(ds):
    class Told:
        schema = ds.schema

        def shards(self):
            return ds.source.shards()[:2]

        def bounds(self, column):
            return [(float("nan"), float("nan")), (50.0, 60.0)]

    assert left(Told(), [Comparison(column="reward", sign="<", values=(3.0,))]).tolist() == [True, False]


def test_the_command_explains(ds, capsys):
    query = "SELECT avg(steps) FROM dataset WHERE split = 'train'"
    with pytest.raises(SystemExit) as ended:
        main(["sql", ds.location, query, "--explain", "--json"])
    assert ended.value.code in {0, None}
    told = json.loads(capsys.readouterr().out)
    assert told["files_opened"] == 3
    assert told["columns"] == ["split", "steps"] or set(told["columns"]) == {"split", "steps"}

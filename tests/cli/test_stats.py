"""`seqlake stats` against numpy on the dataset's own cells."""

from __future__ import annotations

import csv
import io

import numpy as np
import pyarrow.parquet as pq
import pytest

import seqlake as sl


@pytest.fixture
def odd(dataset):
    """The dataset with one more sequence that spikes."""
    ds = sl.open(dataset)
    cell = np.random.default_rng(0).normal(size=(12, 3)).astype("f4")
    cell[4, 2] = 1000
    ds.append([{"sequence_id": "odd", "task": "pick", "reward": 1.0, "action": cell}])
    return dataset


def actions(dataset, where=None) -> np.ndarray:
    ds = sl.open(dataset)
    return np.concatenate([view["action"] for view in (ds if where is None else ds.where(where))])


def test_json_holds_every_number(run, dataset) -> None:
    told = run("stats", dataset, "--json").json
    assert told["rows"] == 12
    assert list(told["columns"]) == ["reward", "action"]
    own, truth = told["columns"]["action"], actions(dataset)
    assert own["count"] == [len(truth)] * 3
    assert own["min"] == truth.min(axis=0).tolist()
    assert np.allclose(own["mean"], truth.mean(axis=0, dtype="f8"), rtol=1e-12)
    assert np.allclose(own["std"], truth.std(axis=0, dtype="f8"), rtol=1e-12)
    assert [point for point, _ in own["quantiles"]] == [0.01, 0.5, 0.99]
    median = np.quantile(truth.astype("f8"), 0.5, axis=0, method="inverted_cdf")
    assert own["quantiles"][1][1] == median.tolist()
    assert told["columns"]["reward"]["mean"] == 5.5
    assert "outliers" not in told


def test_rows_columns_and_quantiles_are_chosen(run, dataset) -> None:
    told = run(
        "stats", dataset, "--where", "task = 'pick'", "--columns", "action", "--quantiles", "0.25", "--json"
    ).json
    assert told["rows"] == 6
    assert list(told["columns"]) == ["action"]
    assert told["columns"]["action"]["count"][0] == len(actions(dataset, "task = 'pick'"))
    assert [point for point, _ in told["columns"]["action"]["quantiles"]] == [0.25]
    assert run("stats", dataset, "--quantiles", "", "--json").json["columns"]["action"]["quantiles"] == []


def test_people_see_one_line_for_each_dimension(run, dataset) -> None:
    told = run("stats", dataset)
    assert told.code == 0
    lines = told.out.splitlines()
    assert lines[0] == "12 sequences"
    assert lines[1].split()[:7] == ["column", "dim", "count", "min", "max", "mean", "std"]
    assert lines[1].split()[9:] == ["q0.01", "q0.5", "q0.99", "note"]
    assert [line.split()[0] for line in lines[2:]] == ["reward", "action", "action", "action"]


def test_other_formats_hold_the_same_rows(run, dataset) -> None:
    lines = list(csv.DictReader(io.StringIO(run("stats", dataset, "--format", "csv").out)))
    assert [(line["column"], line["dim"]) for line in lines] == [
        ("reward", ""),
        *(("action", str(d)) for d in range(3)),
    ]
    assert float(lines[1]["max"]) == actions(dataset)[:, 0].max()
    assert run("stats", dataset, "-q").out.split() == ["reward", "action", "action", "action"]


def test_outliers_are_ranked_with_the_reason(run, odd) -> None:
    told = run("stats", odd, "--outliers", 2, "--json").json
    assert len(told["outliers"]) == 2
    assert told["outliers"][0]["sequence_id"] == "odd"
    assert "action[2]" in told["outliers"][0]["reason"]
    assert run("stats", odd, "--outliers", 1, "-q").out == "odd\n"
    assert "odd  score" in run("stats", odd, "--outliers", 1).out
    parquet = run("stats", odd, "--outliers", 3, "--format", "csv").out
    assert parquet.splitlines()[0] == "sequence_id,score,peak,jerk,static,length,reason"


def test_what_was_wrong_is_said_in_one_line(run, dataset) -> None:
    for arguments in (["--columns", "acton"], ["--quantiles", "half"], ["--outliers", "0"]):
        assert run("stats", dataset, *arguments).code == 2
    told = run("stats", dataset, "--columns", "task")
    assert (told.code, told.err.count("\n")) == (1, 1)
    assert "task" in told.err
    assert run("stats", dataset, "--quantiles", "2").code == 1
    assert run("stats", dataset.parent / "nothing").code == 1


def test_files_without_a_table_are_looked_at_as_they_are(run, dataset, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = sl.open(dataset).select("sequence_id", "reward").to_arrow()
    pq.write_table(table, tmp_path / "rewards.parquet")
    told = run("stats", tmp_path / "rewards.parquet", "--json").json
    assert told["columns"]["reward"]["max"] == 11.0


def test_a_wide_vector_is_one_line_about_all_its_numbers(run, tmp_path) -> None:
    vectors = np.random.default_rng(3).normal(2, 3, size=(7, 64)).astype("f4")
    ds = sl.create(tmp_path / "wide", sl.Schema({"v": sl.Embedding(dim=64)}))
    ds.append([{"sequence_id": f"{n}", "v": vector} for n, vector in enumerate(vectors)])
    lines = [line for line in run("stats", ds.location).out.splitlines() if line.startswith("v ")]
    assert len(lines) == 1
    name, dim, count, low, high, mean, std, *note = lines[0].split()
    assert (name, dim, int(count)) == ("v", "[64]", vectors.size)
    truth = [vectors.min(), vectors.max(), vectors.mean(dtype="f8"), vectors.std(dtype="f8")]
    assert [float(one) for one in (low, high, mean, std)] == pytest.approx(truth, rel=1e-4)
    assert " ".join(note) == "64 dimensions together; --no-truncate lists each"
    assert len(run("stats", ds.location, "--no-truncate").out.splitlines()) == 2 + 64
    assert len(run("stats", ds.location, "--json").json["columns"]["v"]["mean"]) == 64

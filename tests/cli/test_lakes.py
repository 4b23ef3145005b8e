"""Every command that takes a dataset takes a lake's table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

pytest.importorskip("deltalake")


@pytest.fixture
def place(tmp_path):
    ds = sl.create(
        f"delta:{tmp_path}/t", {"split": pa.string(), "action": sl.Trajectory(dim=2)}, partition_by=["split"]
    )
    rows = [
        {"sequence_id": f"ep_{n}", "split": "train" if n < 4 else "val", "action": np.ones((n + 1, 2), np.float32)}
        for n in range(6)
    ]
    ds.append(rows)
    return f"delta:{tmp_path}/t"


def test_looking(run, place):
    assert run("info", place, "--json").json["rows"] == 6
    assert "delta" in run("info", place).out
    assert [v["operation"] for v in run("versions", place, "--json").json["rows"]] == ["create", "append"]
    assert run("ls", place).code == 0
    assert run("show", place, "ep_3").code == 0
    assert run("schema", place).code == 0
    assert run("sql", place, "SELECT count(*) AS n FROM dataset WHERE split = 'val'", "--json").json["rows"] == [
        {"n": 2}
    ]
    assert run("stats", place).code == 0


def test_explain_names_the_files_that_are_opened(run, place):
    told = run("sql", place, "SELECT sequence_id FROM dataset WHERE split = 'val'", "--explain")
    assert "opens 1 of 2 files" in told.out
    assert "split = 'val'" in told.out


def test_validate_finds_nothing(run, place):
    assert run("validate", place).code == 0


def test_rollback_and_collect(run, place):
    ds = sl.open(place)
    ds.delete("split = 'val'")
    assert run("rollback", place, 1).code == 0
    assert len(sl.open(place)) == 6
    ds.refresh()
    ds.delete("split = 'val'")
    listed = run("vacuum", place, "--older-than", 0, "--dry-run")
    assert listed.code == 0
    assert "part-" in listed.out
    assert run("vacuum", place, "--older-than", 0).code == 0
    assert len(sl.open(place).versions()) == 1


def test_convert_there_and_back(run, place, tmp_path):
    assert run("convert", place, f"{tmp_path}/plain", "--adopt").code == 0
    assert run("convert", f"{tmp_path}/plain", f"delta:{tmp_path}/again", "--workers", 1).code == 0
    assert sl.open(f"delta:{tmp_path}/again").to_arrow().equals(sl.open(place).to_arrow())

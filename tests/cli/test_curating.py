"""Curating from the command line, compared with what pyarrow and DuckDB read, in every home."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.shards.files import ParquetShard

from ..homes import PLACES, QUICK  # noqa: TID252 - tests are no package that could be named


@pytest.fixture(params=QUICK)
def place(request, tmp_path) -> str:
    """Six sequences, one of whose columns allows no null."""
    columns = {
        "task": pa.field("task", pa.string(), nullable=False),
        "reward": pa.float64(),
        "action": sl.Trajectory(dim=2),
    }
    ds = sl.create(PLACES[request.param].format(folder=tmp_path, name="ds"), sl.Schema(columns))
    ds.append(
        [
            {"sequence_id": f"ep_{n}", "task": "pick", "reward": n / 2, "action": np.full((n + 1, 2), n, "f4")}
            for n in range(6)
        ]
    )
    return ds.location


def cells(place: str, column: str) -> dict[str, object]:
    table = sl.open(place).select("sequence_id", column).to_arrow()
    return dict(zip(*(table.column(i).to_pylist() for i in (0, 1)), strict=True))


@pytest.mark.sampled(every=2)
def test_label_computes_gives_and_reads(run, place, tmp_path) -> None:
    truth = sl.open(place).to_arrow()
    told = run("label", place, "good", "--sql", "reward > 1 AND len(action) < 6", "-m", "first look", "--json")
    assert told.json["added"] == ["good"]
    asked = duckdb.sql("SELECT sequence_id, reward > 1 AND len(action) < 6 FROM truth").fetchall()
    assert cells(place, "good") == dict(asked)
    assert sl.open(place).versions()[-1].message == "first look"
    assert run("label", place, "good", "null", "--where", "reward = 0").code == 0
    assert cells(place, "good") == {**dict(asked), "ep_0": None}
    assert run("label", place, "split", "val", "--where", "reward < 1").code == 0
    assert cells(place, "split") == {f"ep_{n}": "val" if n < 2 else None for n in range(6)}
    (tmp_path / "ids.txt").write_text("ep_5\nep_4\n")
    assert run("label", place, "split", "train", "--ids", tmp_path / "ids.txt").code == 0
    assert [*cells(place, "split").values()] == ["val", "val", None, None, "train", "train"]
    (tmp_path / "labels.csv").write_text("sequence_id,reward,note,grade\nep_3,9.5,fine,3\nep_0,,,\n")
    assert run("label", place, "--csv", tmp_path / "labels.csv", "-m", "by hand").code == 0
    assert [one.message for one in sl.open(place).versions()].count("by hand") == 1
    assert cells(place, "reward") == {"ep_0": None, **{f"ep_{n}": n / 2 for n in range(1, 6)}, "ep_3": 9.5}
    assert cells(place, "note") == {**dict.fromkeys(cells(place, "note")), "ep_3": "fine"}
    assert sl.open(place).schema["grade"].arrow == pa.int64()
    assert run("label", place, "scores", "--sql", "[reward, 0.5]").code == 0
    assert run("label", place, "scores", "--sql", "[0.25]", "--where", "reward > 9").code == 0
    assert cells(place, "scores")["ep_3"] == [0.25]
    assert cells(place, "scores")["ep_4"] == [2.0, 0.5]
    assert sl.open(place).select(*truth.column_names).to_arrow().column("action").equals(truth.column("action"))


def test_a_value_that_a_column_cannot_hold_is_wrong_usage_and_changes_nothing(run, place) -> None:
    assert run("label", place, "grade", "7").code == 0
    version = sl.open(place).version
    for value in ("8.5", "true", '"x"', "99999999999999999999", "many"):
        for told in (run("label", place, "grade", value), run("set", place, "ep_0", f"grade={value}")):
            assert told.code == 2
            assert "Column 'grade'" in told.err
            assert "int64" in told.err or "64 bits" in told.err
    assert sl.open(place).version == version
    assert run("label", place, "grade", "8.0").code == 0
    assert set(cells(place, "grade").values()) == {8}


def test_set_changes_cells_of_one_sequence(run, place) -> None:
    before = sl.open(place).to_arrow().to_pylist()
    assert run("set", place, "ep_2", "task=pour it = now", "reward=7.25", "action=[[1, 2], [3, 4]]").code == 0
    changed = {"task": "pour it = now", "reward": 7.25, "action": [[1.0, 2.0], [3.0, 4.0]]}
    expected = {row["sequence_id"]: row for row in before} | {"ep_2": {**before[2], **changed}}
    assert {row["sequence_id"]: row for row in sl.open(place).to_arrow().to_pylist()} == expected
    assert run("set", place, "ep_2", "reward=null").code == 0
    assert cells(place, "reward")["ep_2"] is None
    version = sl.open(place).version
    for wrong in ("reward=many", "rewrad=1", "reward", "sequence_id=x", "task=null"):
        assert run("set", place, "ep_2", wrong).code in {1, 2}, wrong
    assert run("set", place, "nobody", "reward=1").code == 1
    assert sl.open(place).version == version


def test_delete_rename_and_drop(run, place, tmp_path) -> None:
    first = sl.open(place).version
    assert run("delete", place, "--where", "reward > 2", "--json").json["deleted"] == 1
    (tmp_path / "ids.txt").write_text("ep_0\n")
    assert run("delete", place, "--ids", tmp_path / "ids.txt").out.startswith("Deleted 1 of 5 sequences")
    assert [*cells(place, "task")] == ["ep_1", "ep_2", "ep_3", "ep_4"]
    assert run("rename", place, "reward", "score", "--rewrite").code == 0
    assert cells(place, "score") == {f"ep_{n}": n / 2 for n in range(1, 5)}
    assert run("drop", place, "score", "task", "--rewrite").code == 0
    assert sl.open(place).schema.names == ["sequence_id", "action"]
    assert len(sl.open(place, version=first)) == 6


def test_dry_runs_and_mistakes_change_nothing(run, place, tmp_path) -> None:
    version = sl.open(place).version
    (tmp_path / "labels.csv").write_text("sequence_id,a\nep_0,1\n")
    (tmp_path / "odd.csv").write_text("id,a\nep_0,1\n")
    (tmp_path / "nobody.csv").write_text("sequence_id,a\nnobody,1\n")
    for arguments in (
        ["label", "x", "--sql", "reward"],
        ["label", "x", "1"],
        ["label", "--csv", tmp_path / "labels.csv"],
        ["set", "ep_0", "reward=1"],
        ["delete", "--where", "true"],
        ["rename", "reward", "score"],
        ["drop", "reward"],
    ):
        verb, *rest = arguments
        told = run(verb, place, *rest, "--dry-run")
        assert (told.code, told.out[:5]) == (0, "Would"), arguments
        assert sl.open(place).version == version
    for wrong in (
        ["label", "x"],
        ["label", "x", "1", "--sql", "2"],
        ["label", "--sql", "1"],
        ["label", "--csv", tmp_path / "odd.csv"],
        ["label", "b", "--csv", tmp_path / "labels.csv"],
        ["label", "reward", "many"],
        ["label", "x", "--sql", "rewrad"],
        ["delete"],
        ["delete", "--where", ""],
        ["delete", "--where", "rewrad > 1"],
        ["rename", "rewrad", "x"],
        ["drop", "rewrad"],
        ["drop", "reward", "sequence_id"],
    ):
        verb, *rest = wrong
        assert run(verb, place, *rest).code == 2, wrong
        assert sl.open(place).version == version
    assert run("label", place, "--csv", tmp_path / "nobody.csv").code == 1
    assert sl.open(place).version == version


@pytest.mark.sampled(every=2)
def test_diff_says_what_each_verb_did(run, place) -> None:
    first = sl.open(place)
    assert not sl.diff(first, sl.open(place))
    ds = sl.open(place)
    ds.delete(ids=["ep_1"])
    ds.upsert([{"sequence_id": "ep_3", "action": np.zeros((2, 2))}, {"sequence_id": "ep_9", "task": "new"}])
    ds.update([{"sequence_id": "ep_3", "reward": float("nan")}, {"sequence_id": "ep_5", "task": "pour"}])
    ds.add_column("good", pa.bool_())
    difference = sl.diff(first, ds)
    assert (difference.added, difference.removed) == (["ep_9"], ["ep_1"])
    assert difference.changed == {"ep_3": ["reward", "action"], "ep_5": ["task"]}
    assert (difference.columns_added, difference.columns_removed, difference.types) == (["good"], [], {})
    assert ds.diff(first.version).to_json() == difference.to_json()
    back = sl.diff(ds, first)
    assert (back.added, back.removed, back.columns_removed) == (["ep_1"], ["ep_9"], ["good"])
    told = run("diff", place, "--from", first.version.id, "--json").json
    assert {key: told[key] for key in difference.to_json()} == difference.to_json()
    assert sorted(run("diff", place, "--from", first.version.id, "-q").out.split()) == ["ep_1", "ep_3", "ep_5", "ep_9"]
    assert run("diff", place).out == "+ column good\n"
    assert run("diff", place, "--exit-code").code == 1
    assert run("diff", place, place, "--exit-code").out == "no difference\n"


def test_diff_compares_files_by_what_they_name(tmp_path, monkeypatch) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.log").write_bytes(b"same" if name != "three" else b"other")
    kinds = {
        "log": sl.ColumnType("mcap"),
        "cam": sl.Image(frames="files"),
        "film": sl.Column("film", pa.struct([("url", pa.string()), ("note", pa.string())]), sl.Video()),
        "note": pa.string(),
    }

    def cells(log: object, *, url: str = "", note: str = "") -> dict[str, object]:
        one = str(tmp_path / "one.log")
        return {"log": log, "cam": [url or one, one], "film": {"url": url or one, "note": note}, "note": "x"}

    log = {name: tmp_path / f"{name}.log" for name in ("one", "two", "three")}
    left = sl.create(tmp_path / "left", sl.Schema(kinds))
    right = sl.create(tmp_path / "right", sl.Schema(kinds))
    for name, old, new in (
        ("copied twice", cells(sl.File(log["one"])), cells(sl.File(log["two"]))),
        ("other bytes", cells(sl.File(log["one"])), cells(sl.File(log["three"]))),
        ("one place", cells(str(log["one"]), url="../one.log"), cells(log["one"].as_uri(), url="../left/../one.log")),
        ("two places", cells("../one.log"), cells("../two.log")),
        ("beside it", cells(None), cells(None, note="dark")),
        ("null", cells(None), cells(str(log["one"]))),
    ):
        left.append([{"sequence_id": name, **old}])
        right.append([{"sequence_id": name, **new}])
    opened, one = [], ParquetShard.open
    monkeypatch.setattr(ParquetShard, "open", lambda shard: opened.append(shard.key) or one(shard))
    wanted = {"other bytes": ["log"], "two places": ["log"], "beside it": ["film"], "null": ["log"]}
    assert sl.diff(left, right).changed == wanted
    assert sl.diff(right[::-1], left).changed == wanted
    some = left.where(ids=["copied twice", "other bytes", "beside it"])
    assert not sl.diff(some, sl.repack(some, tmp_path / "copy"))
    opened.clear()
    sl.diff(left, right.select("sequence_id", "note"))
    few = len(opened)
    opened.clear()
    sl.diff(left, right)
    assert len(opened) == few, "each shard is opened once, however many columns are compared"


def test_diff_of_two_datasets_reads_cells_not_shards(run, dataset, tmp_path) -> None:
    assert run("repack", dataset, tmp_path / "copy", "--layout", "archive", "--rows-per-shard", 5).code == 0
    assert run("diff", dataset, tmp_path / "copy", "--exit-code").out == "no difference\n"
    copy = sl.open(tmp_path / "copy")
    copy.widen_column("action", pa.float64(), rewrite=True)
    copy.update([{"sequence_id": "ep_07", "reward": -0.0}, {"sequence_id": "ep_00", "reward": -0.0}])
    difference = sl.diff(sl.open(dataset), copy)
    assert difference.changed == {"ep_07": ["reward"], "ep_00": ["reward"]}
    assert list(difference.types) == ["action"]
    lists = sl.scan({"sequence_id": ["a", "b", "c"], "x": [[[1], []], [[1, 2]], None]})
    others = sl.scan({"sequence_id": ["c", "b", "a"], "x": [[], [[1], [2]], [[], [1]]]})
    assert sorted(sl.diff(lists, others).changed) == ["a", "b", "c"]
    assert not sl.diff(lists, sl.scan({"sequence_id": ["a", "b", "c"], "x": [[[1], []], [[1, 2]], None]}))


def test_label_refuses_sql_over_names_that_differ_by_case_alone(run, tmp_path) -> None:
    ds = sl.create(tmp_path / "twins", {"A": pa.int64(), "a": pa.int64(), "b": pa.int64()})
    ds.append([{"sequence_id": "s", "A": 1, "a": 2, "b": 3}])
    told = run("label", tmp_path / "twins", "more", "--sql", "A + 1")
    assert told.code != 0
    assert "the columns A and a apart" in told.err
    assert "more" not in sl.open(tmp_path / "twins").schema
    assert run("label", tmp_path / "twins", "more", "--sql", "b + 1").code == 0
    assert sl.open(tmp_path / "twins").to_arrow()["more"].to_pylist() == [4]

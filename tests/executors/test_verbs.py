"""Verbs give the same on threads of this process, on processes and on Ray."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl

from .test_processes import Backwards

EXECUTORS = ["processes", "ray"]


@pytest.fixture(params=EXECUTORS)
def on(request):
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return request.param


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Several shards, films, one film too short and one missing."""
    place = tmp_path_factory.mktemp("recorded") / "ds"
    schema = {
        "cam": sl.Video(fps=10),
        "action": sl.Trajectory(dim=3, fps=10),
        "count": sl.Trajectory(dim=1, fps=10, dtype="int64"),
    }
    ds = sl.create(place, sl.Schema(schema))
    rng = np.random.default_rng(0)
    for shard in range(4):
        with ds.writer() as writer:
            for row in range(3):
                steps = 8 + row
                writer.add(
                    f"ep_{shard}_{row}",
                    cam=rng.integers(0, 255, (steps - (shard == row == 1), 32, 32, 3), dtype=np.uint8),
                    action=rng.normal(size=(steps, 3)).astype(np.float32),
                    count=rng.integers(-9, 9, (steps, 1)),
                )
    gone = next(iter(ds[5:6]))["cam"].location
    Path(gone).unlink()
    return place


def test_statistics_are_the_same(recorded, on, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ds = sl.open(recorded).where("sequence_id != 'ep_1_2'")
    for some in (ds, ds.select("action", "count")):
        columns = ["action", "count", *(["cam"] if "cam" in some.schema else [])]
        here = sl.statistics(some, columns, quantiles=(0.1, 0.5, 0.9))
        there = sl.statistics(some[::1], columns, quantiles=(0.1, 0.5, 0.9), on=on, workers=2)
        assert here.to_json() == there.to_json()
    assert sl.outliers(ds, here) == sl.outliers(ds, here, on=on, workers=2)


@pytest.mark.parametrize("depth", ["rows", "files", "decode"])
def test_findings_are_the_same(recorded, on, depth) -> None:
    here = sl.validate(recorded, depth=depth)
    there = sl.validate(recorded, depth=depth, on=on, workers=2)
    assert [one.to_json() for one in here] == [one.to_json() for one in there]
    assert bool(here.errors) == (depth != "rows")


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_shards_are_judged_in_their_order_whatever_ends_first(recorded, at_once, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.dataset.validation.checking._ROWS_OF_TASK", 2)
    monkeypatch.setattr("seqlake.dataset.validation.checking._TASKS_AT_ONCE", at_once)
    here = sl.validate(recorded, depth="decode")
    there = sl.validate(recorded, depth="decode", on=Backwards())
    assert [one.to_json() for one in here] == [one.to_json() for one in there]


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_shards_without_rows_and_broken_ones_stand_between_others(tmp_path, at_once, monkeypatch) -> None:
    """What was seen of a file is of its own row, whatever its shard stands beside."""
    monkeypatch.setattr("seqlake.dataset.validation.checking._ROWS_OF_TASK", 2)
    monkeypatch.setattr("seqlake.dataset.validation.checking._TASKS_AT_ONCE", at_once)
    notes = {"mixtrain": "1.0", "column_types": {"picture": {"type": "image"}}}
    (tmp_path / "mixtrain.json").write_text(json.dumps(notes))
    schema = pa.schema([("sequence_id", pa.string()), ("picture", pa.string())])
    (tmp_path / "data").mkdir()
    for number, rows in enumerate([0, 3, 0, 0, 5, 2, 0, 1, 0]):
        names = [f"ep_{number}_{row}" for row in range(rows)]
        cells = {"sequence_id": names, "picture": [f"files/{name}.png" for name in names]}
        path = tmp_path / "data" / f"{number}.parquet"
        pq.write_table(pa.table(cells, schema=schema), path, compression="none")
        if number == 5:  # its pages, not its footer
            path.write_bytes(path.read_bytes().replace(b"files/ep_5_1.png", b"files/ep_5_\xff.png"))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    alone = sl.validate(tmp_path, depth="decode")
    monkeypatch.setattr("os.cpu_count", lambda: 8)  # files are looked at further ahead
    here = sl.validate(tmp_path, depth="decode")
    assert [one.to_json() for one in here] == [one.to_json() for one in alone]
    missing = [one.sequence_id for one in here if one.code == "F404"]
    assert {f"ep_1_{row}" for row in range(3)} | {f"ep_4_{row}" for row in range(5)} | {"ep_7_0"} <= set(missing)
    there = sl.validate(tmp_path, depth="decode", on=Backwards())
    assert [one.to_json() for one in here] == [one.to_json() for one in there]


class _Forgotten:
    """Runs tasks here; histograms that a task gave are taken in at once, since those of all tasks may be gigabytes."""

    def run(self, function, tasks, /, *, done, tick) -> None:
        def run(task):
            result = function(task)
            histograms = [weakref.ref(one) for one in _arrays(result) if one.base is None]
            done(task, result)
            return histograms

        for task in tasks:
            assert not [one for one in run(task) if one() is not None], "a result is held"
            tick()


def _arrays(result):
    """The arrays of sparse histograms within what a search for quantiles has seen."""
    if not isinstance(result, dict):
        return []
    return [array for _, counted in result.values() for sparse in counted.values() for array in sparse]


def test_quantiles_of_many_numbers_come_of_histograms(tmp_path, monkeypatch) -> None:
    """Many numbers are counted, a task's at a time; what each saw is taken in before the next."""
    monkeypatch.setattr("seqlake.dataset.statistics.ranks._KEPT", 16)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.default_rng(1)
    rows = [{"sequence_id": f"{n}", "x": rng.normal(size=(40, 2)).astype(np.float32)} for n in range(6)]
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=2)}))
    for row in rows:
        ds.append([row])
    numbers = np.concatenate([row["x"] for row in rows])
    stats = sl.statistics(ds, ["x"], quantiles=(0.25, 0.75), on=_Forgotten())
    for point in (0.25, 0.75):
        assert np.array_equal(
            stats["x"].quantiles[point], np.quantile(numbers, point, axis=0, method="inverted_cdf").astype(np.float32)
        )

"""A dry run is refused by what would refuse the real run, in the same words, and writes nothing."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl

CSV = {
    "unknown.csv": "sequence_id,reward\nep_9,1\n",
    "twice.csv": "sequence_id,reward\nep_1,1\nep_1,2\n",
    "new.csv": "sequence_id,grade\nep_9,1\n",
    "alone.csv": "sequence_id\nep_1\n",
    "null.csv": "sequence_id,task\nep_1,\n",
    "signal.csv": "sequence_id,action\nep_1,3\n",
}
REFUSED = [
    *(["label", "ds", "--csv", name] for name in CSV),
    ["label", "ds", "sequence_id", "x"],
    ["label", "ds", "action", "[[1,2]]"],
    ["merge", "ds", "full", "out"],
    ["merge", "ds", "full", "out", "--prefix", "a", "--prefix", "a"],
    ["merge", "ds", "full"],
    ["rename", "ds", "task", "reward"],
    ["rename", "ds", "task", ""],
    ["rename", "ds", "sequence_id", "x"],
    ["set", "ds", "ep_1", "task=null"],
    ["set", "ds", "ep_9", "task=pick"],
    ["drop", "ds", "sequence_id"],
    ["delete", "ds", "--ids", "ids.txt"],
    ["subset", "ds", "full", "--where", "reward > 0"],
    ["subset", "ds", "ds", "--where", "reward > 0", "--overwrite"],
    ["subset", "ds", "ds/inside", "--where", "reward > 0"],
    ["resample", "ds", "full", "--fps", "5"],
    ["resample", "ds", "out", "--fps", "5", "--signals", "rewrad"],
    ["resample", "ds", "out", "--fps", "5", "--signals", "reward"],
    ["resample", "ds", "out", "--fps", "5", "--method", "acton=linear"],
    ["trim", "ds", "full", "--start", "1"],
    ["segment", "ds", "full", "--length", "2"],
    ["segment", "ds", "out", "--by", "reward"],
    ["split", "ds", "out", "--by", "rewrad"],
    ["split", "ds", ".", "--by", "task"],
    ["repack", "ds", "full"],
    ["convert", "ds", "full"],
    ["rename", "hive", "reward", "r"],
    ["label", "hive", "x", "1"],
    ["delete", "hive", "--where", "reward > 1"],
    ["drop", "hive", "reward"],
    ["set", "hive", "a", "reward=3"],
    ["compact", "hive"],
    ["fold", "hive"],
    ["index", "hive"],
    ["adopt", "hive"],
    ["split", "hive"],
    ["relocate", "hive", "--from", "x", "--to", "y"],
]


def make(place) -> None:
    columns = {
        "task": pa.field("task", pa.string(), nullable=False),
        "reward": pa.float64(),
        "action": sl.Trajectory(dim=2, fps=10),
    }
    rows = [
        {"sequence_id": f"ep_{n}", "task": "full", "reward": n / 2, "action": np.full((n + 3, 2), n, "f4")}
        for n in range(3)
    ]
    sl.create(place, sl.Schema(columns)).append(rows)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Two datasets of the same ids, one in a hive folder, tables and ids."""
    folder = tmp_path_factory.mktemp("dry")
    make(folder / "ds")
    shutil.copytree(folder / "ds", folder / "full")
    within = folder / "hive" / "data" / "split=val"
    within.mkdir(parents=True)
    pq.write_table(
        pa.table({"sequence_id": ["a", "b"], "reward": [1.0, 2.0]}),
        folder / "hive" / "data" / "split=val" / "x.parquet",
    )
    sl.init(folder / "hive")
    for name, text in CSV.items():
        (folder / name).write_text(text)
    (folder / "ids.txt").write_text("ep_9\n")
    return folder


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("command", REFUSED, ids=" ".join)
def test_a_dry_run_is_refused_as_the_real_one(command, run, places, monkeypatch) -> None:
    monkeypatch.chdir(places)
    before = {path: path.stat().st_mtime_ns for path in places.rglob("*") if path.is_file()}
    dry = run(*command, "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in places.rglob("*") if path.is_file()} == before
    real = run(*command)
    assert (dry.code, dry.err) == (real.code, real.err)
    assert dry.code in {1, 2}, dry.out

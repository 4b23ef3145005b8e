"""`compute` against the function called by hand, on every executor, after kills and with failures."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.executors.processes import Processes
from seqlake.testing import samples

ONE = Processes(workers=1)


@pytest.fixture
def ds(tmp_path):
    return samples.arm_dataset(tmp_path / "arm", count=150)


def summed(batch):
    return {"total": [float(np.sum(one, dtype=np.float64)) for one in batch["action"]]}


def embedded(batch, scale):
    return {"vector": np.stack([one.mean(axis=0) * scale for one in batch["action"]])}


def two():
    return 2.0


class Counter:
    """Built once in each worker."""

    built = 0

    def __init__(self):
        Counter.built += 1

    def __call__(self, batch):
        return {"total": [float(Counter.built)] * len(batch["sequence_id"])}


@pytest.mark.parametrize("on", ["processes", ONE])
def test_scalars_and_embeddings(ds, on) -> None:
    options = {"workers": 2} if on == "processes" else {}
    before = ds.version.rows
    done = sl.compute(ds, summed, {"total": pa.float64()}, read=["action"], on=on, **options)
    assert done.rows == before == len(ds)
    assert ds.version == done.version
    for view in ds[::17]:
        assert view["total"] == float(np.sum(view["action"], dtype=np.float64))
    sl.compute(ds, embedded, {"vector": sl.Embedding(dim=12)}, read=["action"], setup=two, on=on, **options)
    assert np.allclose(ds[3]["vector"], ds[3]["action"].mean(axis=0) * 2)
    assert not ds.validate(depth="rows").errors


def test_a_class_is_built_once_in_each_worker(ds) -> None:
    Counter.built = 0
    sl.compute(ds, Counter, {"total": pa.float64()}, on=ONE, batch_size=7)
    assert Counter.built == 1
    assert {view["total"] for view in ds} == {1.0}


def per_window(batch):
    return {"speed": np.abs(batch["action"]).sum(axis=(1, 2))[:, None].astype(np.float32)}


def test_windows_become_steps(ds) -> None:
    window = sl.Window({"action": [0, 1]}, stride=5)
    sl.compute(ds, per_window, {"speed": sl.Trajectory(dim=1, fps=10)}, window=window, on=ONE, batch_size=13)
    for view in ds[::31]:
        action = view["action"]
        padded = np.concatenate([action, np.zeros((1, 12), np.float32)])
        expected = [np.abs(padded[at : at + 2]).sum() for at in range(0, len(action), 5)]
        assert np.allclose(view["speed"][:, 0], expected, rtol=1e-5)
    with pytest.raises(ValidationError, match="one window a sequence"):
        sl.compute(ds, whole, {"most": pa.float32()}, window=window, on=ONE)


def whole(batch):
    return {"most": batch["action"].max(axis=(1, 2))}


def test_only_what_is_missing(ds) -> None:
    sl.compute(ds, summed, {"total": pa.float64()}, read=["action"], where="task = 'pick'", on=ONE)
    picks = len(ds.where("task = 'pick'"))
    assert ds.sql("SELECT count(total) FROM dataset").fetchall() == [(picks,)]
    ds.append(samples.arm_episodes(10, first=150))
    done = sl.compute(ds, summed, {"total": pa.float64()}, read=["action"], only="missing", on=ONE)
    assert done.rows == 160 - picks
    assert ds.sql("SELECT count(total) FROM dataset").fetchall() == [(160,)]
    assert sl.compute(ds, summed, {"total": pa.float64()}, read=["action"], only="missing", on=ONE).rows == 0


def fussy(batch):
    if "pour" in batch["task"]:
        raise ArithmeticError("cannot pour")
    return {"length2": [2] * len(batch["task"])}


def test_failures_are_raised_or_listed(ds) -> None:
    version = ds.version
    with pytest.raises(ArithmeticError, match="cannot pour") as caught:
        sl.compute(ds, fussy, {"length2": pa.int64()}, read=["task"], on=ONE)
    assert "sequences 0 to 63" in caught.value.__notes__[0]
    assert sl.open(ds.location).version == version
    done = sl.compute(ds, fussy, {"length2": pa.int64()}, read=["task"], on=ONE, on_error="skip")
    pours = ds.where("task = 'pour'").to_arrow()["sequence_id"].to_pylist()
    assert sorted(one.sequence_id for one in done.failures) == sorted(pours)
    assert "cannot pour" in str(done)
    assert ds.sql("SELECT count(*) FROM dataset WHERE length2 IS NULL").fetchall() == [(len(pours),)]


def nothing(_):
    return {}


def short(batch):
    return {"total": [1.0]}


def test_wrong_arguments(ds) -> None:
    with pytest.raises(ValidationError, match="Expected a mapping with 'total'"):
        sl.compute(ds, nothing, {"total": pa.float64()}, on=ONE)
    with pytest.raises(ValidationError, match="expected 32 values for as many sequences, found 1"):
        sl.compute(ds, short, {"total": pa.float64()}, on=ONE)
    with pytest.raises(KeyError, match="nope"):
        sl.compute(ds, summed, {"total": pa.float64()}, read=["nope"], on=ONE)
    with pytest.raises(SchemaMismatchError, match="is there as"):
        sl.compute(ds, summed, {"reward": pa.string()}, read=["action"], on=ONE)
    with pytest.raises(SchemaMismatchError, match="expected a scalar, a vector or a trajectory"):
        sl.compute(ds, summed, {"film": sl.Video()}, read=["action"], on=ONE)
    with pytest.raises(ValueError, match="at least one"):
        sl.compute(ds, summed, {}, on=ONE)
    with pytest.raises(TypeError, match="takes no option 'gpus'"):
        sl.compute(ds, summed, {"total": pa.float64()}, num_gpus=1)


SCRIPT = """
import os, signal, sys
import pyarrow as pa
import seqlake as sl
from seqlake.executors.processes import Processes
place, work, log, most = sys.argv[1:]
def slow(batch):
    with open(log, "a") as file:
        file.write("".join(f"{key}\\n" for key in batch["sequence_id"]))
    if sum(1 for _ in open(log)) >= int(most):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"total": [float(one.sum()) for one in batch["action"]]}
sl.compute(sl.open(place), slow, {"total": pa.float64()}, read=["action"],
           work=work, on=Processes(workers=1), batch_size=64)
"""


def test_a_kill_loses_only_what_was_under_way(ds, tmp_path) -> None:
    log, work = tmp_path / "log", tmp_path / "work"
    command = [sys.executable, "-c", SCRIPT, ds.location, str(work), str(log)]
    assert subprocess.run([*command, "100"], check=False).returncode == -signal.SIGKILL
    assert "total" not in sl.open(ds.location).schema
    first = log.read_text().split()
    subprocess.run([*command, "1000"], check=True)
    again = log.read_text().split()[len(first) :]
    assert set(first) | set(again) == set(ds.to_arrow()["sequence_id"].to_pylist())
    assert len(set(first) & set(again)) == 64  # the task that was under way
    ds.refresh()
    assert ds.sql("SELECT count(total) FROM dataset").fetchall() == [(150,)]
    assert not work.exists()


def test_a_work_folder_of_another_run_is_refused(ds, tmp_path) -> None:
    work = tmp_path / "work"
    with pytest.raises(ArithmeticError):
        sl.compute(ds, fussy, {"length2": pa.int64()}, read=["task"], on=ONE, work=work)
    with pytest.raises(SeqlakeError, match="belongs to another run"):
        sl.compute(ds, summed, {"total": pa.float64()}, read=["action"], on=ONE, work=work)


def test_a_rival_that_deletes_and_adds_meanwhile(ds, tmp_path) -> None:
    rival = sl.open(ds.location)

    def meddling(batch):
        if "ep_0000" in batch["sequence_id"] or batch["sequence_id"][0] == first:
            rival.delete(ids=[first])
            rival.append(samples.arm_episodes(2, first=500))
        return summed(batch)

    first = ds[0].id
    done = sl.compute(ds, meddling, {"total": pa.float64()}, read=["action"], on=ONE, batch_size=64)
    assert done.rows == 150
    assert len(ds) == 151
    assert ds.sql("SELECT count(total) FROM dataset").fetchall() == [(149,)]


def frame_means(batch):
    return {"brightness": batch["cam"].mean(axis=(1, 2, 3, 4))[:, None].astype(np.float32)}


def test_frames_of_windows(tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Video(fps=10), "action": sl.Trajectory(dim=1, fps=10)}))
    rng = np.random.default_rng(0)
    with ds.writer() as writer:
        for n in range(3):
            writer.add(
                f"ep_{n}", cam=rng.integers(0, 255, (6 + n, 16, 16, 3), dtype=np.uint8), action=np.zeros((6 + n, 1))
            )
    sl.compute(ds, frame_means, {"brightness": sl.Trajectory(dim=1, fps=10)}, window={"cam": [0]}, on=ONE)
    for view in ds:
        assert np.allclose(view["brightness"][:, 0], view["cam"][:].mean(axis=(1, 2, 3)), rtol=1e-4)

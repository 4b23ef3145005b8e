"""`compute` against the function called by hand, on every executor, after kills and with failures."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.computing.keeping import Results
from seqlake.errors import BadDataError, SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.executors.processes import Processes
from seqlake.receipts import WorkFolder
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


def later(batch):
    return {"later": batch["a"][:, 1]}


def test_windows_of_all_tasks_have_one_clock(tmp_path) -> None:
    kinds = {"a": sl.Trajectory(dim=1), "length": pa.int64(), "duration_seconds": pa.float64()}
    ds = sl.create(tmp_path / "ds", sl.Schema(kinds))
    steps = np.arange(40.0)[:, None]
    seconds = [4.0] * 64 + [2.0] * 6  # the clock is that of the first rows, 10 steps a second
    ds.append(
        [
            {"sequence_id": f"{number:02}", "a": steps, "length": 40, "duration_seconds": one}
            for number, one in enumerate(seconds)
        ]
    )
    window = sl.Window({"a": sl.seconds(0, 0.4, every=0.2)}, stride=10)
    sl.compute(ds, later, {"later": sl.Trajectory(dim=1)}, window=window, on=ONE)
    assert {tuple(view["later"][:, 0]) for view in ds} == {(2.0, 12.0, 22.0, 32.0)}


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
    assert "sequences 'ep_0000' to 'ep_0031'" in caught.value.__notes__[0]
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
    with pytest.raises(SchemaMismatchError, match="expected a scalar, a vector, a trajectory or files"):
        sl.compute(ds, summed, {"nest": pa.list_(pa.list_(pa.string()))}, read=["action"], on=ONE)
    with pytest.raises(SchemaMismatchError, match="is the id"):
        sl.compute(ds, summed, {"sequence_id": pa.string()}, on=ONE)
    with pytest.raises(ValueError, match="on_error='skip' alone"):
        sl.compute(ds, summed, {"total": pa.float64()}, budget=3, on=ONE)
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
    assert len(set(first) & set(again)) == 8  # the task that was under way, an eighth of a batch as the last ones are
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


# ---- what a rival does between a kill and the next run


def logged(batch, log):
    with Path(log).open("a") as file:
        file.write("".join(f"{key}\n" for key in batch["sequence_id"]))
    if len(Path(log).read_text().split()) > 100 and not os.environ.get("SEQLAKE_TEST_GO_ON"):
        raise KeyboardInterrupt
    return summed(batch)


def interrupted(ds, log, work, **options):
    columns = {"total": pa.float64()}
    return sl.compute(ds, logged, columns, read=["action"], setup=partial(str, log), on=ONE, work=work, **options)


def test_results_of_rows_that_a_rival_left_alone_still_count(ds, tmp_path, monkeypatch) -> None:
    log, work = tmp_path / "log", tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        interrupted(ds, log, work)
    done = log.read_text().split()[:100]  # of tasks that had ended
    rival = sl.open(ds.location)
    rival.append(samples.arm_episodes(3, first=500))
    rival.update([{"sequence_id": done[5], "reward": 7.0}])  # the shard is another one, what was read is the same
    rival.delete(ids=[done[6]])
    changed = np.ones((5, 12), np.float32)
    rival.upsert([{"sequence_id": done[7], "action": changed}])
    sl.compact(rival)
    log.write_text("")
    monkeypatch.setenv("SEQLAKE_TEST_GO_ON", "1")
    assert interrupted(ds, log, work).rows == 152
    assert sorted(log.read_text().split()) == sorted({*ds.to_arrow()["sequence_id"].to_pylist()} - {*done} | {done[7]})
    for view in ds:
        assert view["total"] == float(np.sum(view["action"], dtype=np.float64))
    assert ds[done[7]]["total"] == 60.0
    assert not work.exists()


def test_results_count_for_shards_that_are_the_same_when_the_rest_of_their_version_is_gone(
    tmp_path, monkeypatch
) -> None:
    ds = samples.arm_dataset(tmp_path / "arm", count=150, rows_per_shard=30)
    log, work = tmp_path / "log", tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        interrupted(ds, log, work)
    rival = sl.open(ds.location)
    rival.upsert([{"sequence_id": "ep_0010", "action": np.ones((5, 12), np.float32)}])  # in the first of 5 shards
    [place] = (Path(ds.root) / "_seqlake" / "retired").iterdir()
    place.unlink()
    log.write_text("")
    monkeypatch.setenv("SEQLAKE_TEST_GO_ON", "1")
    assert interrupted(ds, log, work).rows == 150
    done = {f"ep_{number:04}" for number in range(30, 100)}
    assert sorted(log.read_text().split()) == sorted({*ds.to_arrow()["sequence_id"].to_pylist()} - done)
    assert ds["ep_0010"]["total"] == 60.0


def test_a_rival_that_changes_what_columns_mean_makes_results_worthless(ds, tmp_path, monkeypatch) -> None:
    log, work = tmp_path / "log", tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        interrupted(ds, log, work)
    sl.open(ds.location).set_type("action", sl.Trajectory(dim=12, units="deg", fps=50))
    log.write_text("")
    monkeypatch.setenv("SEQLAKE_TEST_GO_ON", "1")
    assert interrupted(ds, log, work).rows == 150
    assert len(log.read_text().split()) == 150


def test_a_dataset_that_was_made_anew_gets_no_results_of_the_old_one(ds, tmp_path, monkeypatch) -> None:
    log, work = tmp_path / "log", tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        interrupted(ds, log, work)
    shutil.rmtree(ds.location)
    again = samples.arm_dataset(ds.location, count=150, seed=1)
    log.write_text("")
    monkeypatch.setenv("SEQLAKE_TEST_GO_ON", "1")
    interrupted(again, log, work)
    assert len(log.read_text().split()) == 150
    assert again[3]["total"] == float(np.sum(again[3]["action"], dtype=np.float64))


def added_up(batch):
    return {"reward": [np.float32(one + 1) for one in batch["reward"]]}


@pytest.mark.parametrize("at", ["end", "clear", "unlink"])
def test_a_kill_between_the_commit_and_its_end_adds_nothing_twice(ds, tmp_path, monkeypatch, at) -> None:
    before = {view.id: view["reward"] for view in ds}
    options = {"read": ["reward"], "on": ONE, "work": tmp_path / "work"}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if at == "unlink":  # some results are gone already
            patch.setattr(WorkFolder, "clear", interrupt)
        else:
            patch.setattr(Results, at, interrupt)
        sl.compute(ds, added_up, {"reward": pa.float32()}, **options)
    assert (tmp_path / "work").exists()
    assert ds[0]["reward"] == before[ds[0].id] + 1
    done = sl.compute(ds, added_up, {"reward": pa.float32()}, **options)
    assert done.rows == 150
    assert {view.id: view["reward"] for view in ds} == {key: np.float32(one + 1) for key, one in before.items()}
    assert not (tmp_path / "work").exists()
    sl.compute(ds, added_up, {"reward": pa.float32()}, **options)  # another run
    assert ds[0]["reward"] == np.float32(np.float32(before[ds[0].id] + 1) + 1)


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_run_that_is_over_does_not_stand_for_other_rows(ds, tmp_path, monkeypatch) -> None:
    options = {"read": ["action"], "on": ONE, "work": tmp_path / "work"}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Results, "clear", interrupt)
        sl.compute(ds, summed, {"total": pa.float64()}, where="task = 'pick'", **options)
    sl.compute(ds, summed, {"total": pa.float64()}, where="task = 'pour'", **options)
    [(count,)] = ds.sql("SELECT count(total) FROM dataset").fetchall()
    assert count == len(ds.where("task = 'pick' OR task = 'pour'"))


# ---- the ledger


def test_the_ledger_survives_a_kill_and_has_a_budget(ds, tmp_path) -> None:
    options = {"read": ["task"], "on": ONE, "on_error": "skip", "work": tmp_path / "work"}
    pours = sorted(ds.where("task = 'pour'").to_arrow()["sequence_id"].to_pylist())
    version = ds.version
    with pytest.raises(BadDataError, match=r"of 150 sequences failed so far; budget=0.1 tolerates 15"):
        sl.compute(ds, fussy, {"length2": pa.int64()}, budget=0.1, **options)
    assert sl.open(ds.location).version == version
    with pytest.raises(BadDataError, match="budget=20 tolerates 20"):  # those of before are counted
        sl.compute(ds, fussy, {"length2": pa.int64()}, budget=20, **options)
    with pytest.raises(BadDataError, match="budget=36 tolerates 36"):  # the last task is done by then
        sl.compute(ds, fussy, {"length2": pa.int64()}, budget=len(pours) - 1, **options)
    with pytest.raises(BadDataError, match="37 of 150 sequences failed"):  # and here nothing is left to do
        sl.compute(ds, fussy, {"length2": pa.int64()}, budget=len(pours) - 1, **options)
    assert sl.open(ds.location).version == version
    done = sl.compute(ds, fussy, {"length2": pa.int64()}, budget=len(pours), **options)
    assert sorted(one.sequence_id for one in done.failures) == pours
    assert f"{len(pours)} times, first ep_0002: ArithmeticError: cannot pour" in str(done)


def offline(batch):
    raise ConnectionError("no route to the model")


def test_trouble_of_the_line_is_not_the_fault_of_sequences(ds) -> None:
    with pytest.raises(ConnectionError):
        sl.compute(ds, offline, {"caption": pa.string()}, on=ONE, on_error="skip")


calls: list[list[str]] = []


def fussy_once(batch):
    calls.append(list(batch["sequence_id"]))
    return fussy(batch)


def test_only_the_batch_that_fails_is_done_one_by_one(ds) -> None:
    calls.clear()
    options = {"read": ["task"], "where": "task = 'pick' OR sequence_id = 'ep_0002'", "on_error": "skip"}
    done = sl.compute(ds, fussy_once, {"length2": pa.int64()}, batch_size=8, on=ONE, **options)
    assert [one.sequence_id for one in done.failures] == ["ep_0002"]
    assert sorted(map(len, calls), reverse=True) == [8, 8, *[2] * 4, *[1] * 15, *[1] * 8]


# ---- files


@pytest.fixture
def films(tmp_path):
    schema = {"cam": sl.Video(fps=10), "action": sl.Trajectory(dim=1, fps=10), "times": pa.list_(pa.int64())}
    ds = sl.create(tmp_path / "films", sl.Schema(schema))
    rng = np.random.default_rng(0)
    with ds.writer(rows_per_shard=6) as writer:
        for n in range(11):
            frames = rng.integers(0, 255, (4 + n % 3, 16, 16, 3), dtype=np.uint8)
            action = rng.normal(size=(len(frames), 1))
            writer.add(f"ep_{n:02d}", cam=frames, action=action, times=np.arange(len(frames)) ** 2 * 10**8)
    return ds


FILES = {
    "dark": sl.Video(fps=10),
    "timed": sl.Video(timestamps="times"),
    "still": sl.Image(format="png"),
    "steps": sl.Image(frames="files", format="png"),
    "held": sl.Image(frames="bytes", format="png"),
    "notes": pa.string(),
    "count": pa.int32(),
}


def pictured(batch):
    frames = [view[:] for view in batch["cam"]]
    notes = []
    for key, one in zip(batch["sequence_id"], frames, strict=True):
        path = Path(tempfile.gettempdir()) / f"seqlake-test-notes-{os.getpid()}-{key}.txt"
        path.write_text(f"{len(one)} frames of {key}")
        notes.append(sl.File(path))
    return {
        "dark": [iter(one // 2) for one in frames],
        "timed": frames,
        "still": [one[0] for one in frames],
        "steps": [list(one) for one in frames],
        "held": [list(one) for one in frames],
        "notes": notes,
        "count": [len(one) for one in frames],
    }


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("workers", [1, 2])
def test_frames_become_files(films, workers) -> None:
    done = sl.compute(films, pictured, FILES, read=["cam"], on=Processes(workers=workers), batch_size=4)
    assert done.rows == 11
    assert [version.operation for version in films.versions()] == ["create", "append", "evolve"]
    for view in films:
        frames = view["cam"][:]
        assert np.abs(view["dark"][:].astype(int) - frames // 2).mean() < 12
        assert np.array_equal(view["still"][:], frames[:1])
        assert np.array_equal(view["steps"][:], frames)
        assert np.array_equal(view["held"][:], frames)
        assert len(view["timed"][:]) == view["count"] == len(frames)
        assert (Path(films.root) / view["notes"]).read_text() == f"{len(frames)} frames of {view.id}"
    assert not films.validate(depth="decode").errors
    assert not list((Path(films.root) / "_seqlake" / "staged").glob("*"))


def test_files_are_made_anew_and_for_new_sequences(films) -> None:
    sl.compute(films, pictured, FILES, read=["cam"], on=ONE)
    before = films["ep_03"]["notes"]
    films.append([{"sequence_id": "new", "cam": np.zeros((3, 16, 16, 3), np.uint8), "times": [0, 10**8, 10**9]}])
    assert sl.compute(films, pictured, FILES, read=["cam"], only="missing", on=ONE).rows == 1
    assert films["ep_03"]["notes"] == before
    assert films["new"]["dark"][:].shape == (3, 16, 16, 3)
    sl.compute(films, pictured, FILES, read=["cam"], where="sequence_id = 'ep_03'", on=ONE)
    assert films["ep_03"]["notes"] != before
    assert not films.validate(depth="files").errors


def negative(batch):
    return {"film": 255 - batch["cam"][:, 0], "bright": batch["cam"].mean(axis=(1, 2, 3, 4))[:, None]}


def test_windows_become_frames(films) -> None:
    columns = {"film": sl.Video(fps=10), "bright": sl.Trajectory(dim=1, fps=10)}
    sl.compute(films, negative, columns, window={"cam": [0]}, on=ONE, batch_size=7)
    for view in films:
        assert np.abs(view["film"][:].astype(int) - (255 - view["cam"][:])).mean() < 12


def lossy(batch):
    if "ep_05" in batch["sequence_id"]:
        return {"film": [np.zeros((2, 16, 16), np.float64) for _ in batch["sequence_id"]]}
    return {"film": [view[:] for view in batch["cam"]]}


def test_frames_that_are_none_stand_in_the_ledger(films) -> None:
    with pytest.raises(SchemaMismatchError, match="ep_05.*film"):
        sl.compute(films, lossy, {"film": sl.Video(fps=10)}, read=["cam"], on=ONE, batch_size=1)
    done = sl.compute(films, lossy, {"film": sl.Video(fps=10)}, read=["cam"], on=ONE, on_error="skip")
    assert [one.sequence_id for one in done.failures] == ["ep_05"]
    assert films["ep_05"]["film"] is None
    assert not films.validate(depth="files").errors


FILMS = """
import os, signal, sys
import seqlake as sl
from seqlake.executors.processes import Processes
place, work, log, most = sys.argv[1:]
def doubled(batch):
    with open(log, "a") as file:
        file.write("".join(f"{key}\\n" for key in batch["sequence_id"]))
    if sum(1 for _ in open(log)) >= int(most):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"film": [view[:] for view in batch["cam"]]}
sl.compute(sl.open(place), doubled, {"film": sl.Video(fps=10)}, read=["cam"],
           work=work, on=Processes(workers=1), batch_size=1)
"""


def test_a_kill_keeps_the_files_that_are_there(films, tmp_path) -> None:
    log, work = tmp_path / "log", tmp_path / "work"
    command = [sys.executable, "-c", FILMS, films.location, str(work), str(log)]
    assert subprocess.run([*command, "10"], check=False).returncode == -signal.SIGKILL
    kept = sorted(work.glob("file-*"))
    assert len(kept) == 9
    kept[0].write_bytes(kept[0].read_bytes()[:-1])  # torn by a loss of power: its task counts as not done
    sl.open(films.location).append([{"sequence_id": "new", "cam": np.zeros((3, 16, 16, 3), np.uint8)}])
    subprocess.run([*command, "1000"], check=True)
    assert len(log.read_text().split()) == 10 + 4  # the torn one, the two that were left, the new one
    films.refresh()
    assert all(view["film"][:].shape == view["cam"][:].shape for view in films)
    assert not films.validate(depth="decode").errors
    assert not work.exists()


def widened(batch):
    return {"wide": [np.zeros((3, 1 + (key == "ep_05")), np.float32) for key in batch["sequence_id"]]}


def test_steps_are_equally_wide(films) -> None:
    with pytest.raises(ValidationError, match="expected 1 numbers a step"):
        sl.compute(films, widened, {"wide": sl.Trajectory()}, on=ONE)
    assert "wide" not in sl.open(films.location).schema

"""Ray Data reads what a dataset holds and writes datasets by one commit."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.errors import SchemaMismatchError
from seqlake.testing import samples

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def ds(tmp_path):
    ds = samples.arm_dataset(tmp_path / "arm", count=20)
    ds.append(samples.arm_episodes(15, first=20))
    return ds


def test_rows_are_those_of_the_dataset(ds) -> None:
    rows = sl.ray.read(ds)
    assert rows.count() == 35
    table = pa.concat_tables(ray.get(rows.to_arrow_refs())).sort_by("sequence_id")
    assert table.cast(ds.to_arrow().schema).equals(ds.to_arrow().sort_by("sequence_id"))
    some = sl.ray.read(ds.where("task = 'pick'"), columns=["sequence_id", "reward"]).to_pandas()
    assert list(some.columns) == ["sequence_id", "reward"]
    assert sorted(some["sequence_id"]) == sorted(ds.where("task = 'pick'").to_arrow()["sequence_id"].to_pylist())


def test_only_what_is_selected_is_read_and_filters_hold(ds) -> None:
    rows = sl.ray.read(ds).select_columns(["reward", "sequence_id"])
    assert {*rows.schema().names} == {"reward", "sequence_id"}
    every = sl.ray.read(ds)
    good = every.filter(expr="reward > 0").to_pandas()
    assert sorted(good["sequence_id"]) == sorted(ds.where("reward > 0").to_arrow()["sequence_id"].to_pylist())
    assert every.count() == 35  # the filter is not remembered by what it was made of


def planned(content, *, columns=None, predicate=None, parallelism=1):
    """The tasks of a read, and what each gives, in this process."""
    source = sl.ray._source(ray.data, content)
    source = source if columns is None else source.apply_projection({name: name for name in columns})
    source = source if predicate is None else source.apply_predicate(predicate)
    tasks = source.get_read_tasks(parallelism)
    assert source.estimate_inmemory_data_size() == sum(task.metadata.size_bytes for task in tasks)
    return [(task, list(task())) for task in tasks]


@pytest.mark.parametrize("columns", [None, ["action"], ["reward", "success"], ["obs_state", "instruction_embedding"]])
def test_tasks_are_of_bounded_size_and_known_before_they_are_read(ds, columns, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.ray.BYTES_PER_TASK", 20_000)
    tasks = planned(sl.ray._Rows(Excerpt.of(ds)), columns=columns)
    names = columns or ds.schema.names
    assert [task.metadata.num_rows for task, _ in tasks] == [sum(map(len, tables)) for _, tables in tasks]
    assert all(task.metadata.num_rows == 1 or task.metadata.size_bytes <= 20_000 for task, _ in tasks)
    tables = [table for _, some in tasks for table in some]
    assert pa.concat_tables(tables).equals(ds.select(*names).to_arrow())
    if "success" not in names:
        said, held = (sum(sizes) for sizes in ([t.metadata.size_bytes for t, _ in tasks], [t.nbytes for t in tables]))
        assert 0.8 < said / held < 1.25
    assert (len(tasks) == 1) == (columns == ["reward", "success"])


def test_small_shards_are_read_together_and_large_ones_by_many(ds, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.ray._LEAST", 1000)
    content = sl.ray._Rows(Excerpt.of(ds))
    assert len(planned(content)) == 1  # of two shards
    assert 8 <= len(planned(content, parallelism=8)) <= 10
    assert len(planned(sl.ray._Rows(Excerpt.of(ds.where("reward > 1000"))))) == 0
    assert sl.ray.read(ds.where("reward > 1000")).count() == 0


def test_a_read_has_some_tasks_for_each_core_if_they_have_enough_to_do(ds, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(
        ray.data, "read_datasource", lambda _, *, override_num_blocks: asked.append(override_num_blocks)
    )
    sl.ray.read(ds)
    sl.ray.read(ds.where("reward > 1000"))
    assert asked == [1, 1]
    monkeypatch.setattr("seqlake.ray._ENOUGH", 1000)
    monkeypatch.setattr("seqlake.ray._LEAST", 1000)
    sl.ray.read(ds)
    assert 4 <= asked[-1] <= 4 * ray.cluster_resources()["CPU"] + 1
    source = sl.ray._source(ray.data, sl.ray._Rows(Excerpt.of(ds)))
    assert len(source.get_read_tasks(asked[-1])) >= asked[-1]  # of fewer Ray would cut the blocks in pieces
    monkeypatch.setattr("seqlake.ray.BYTES_PER_TASK", 1)
    sl.ray.read(ds)
    assert asked[-1] == len(ds)  # no more tasks than rows


def test_what_a_filter_leaves_out_is_not_read(ds, monkeypatch) -> None:
    read, one_shard = [], sl.ray.one_shard

    def spied(shard, columns):
        for batch in one_shard(shard, columns):
            read.append((tuple(columns), len(batch)))
            yield batch

    monkeypatch.setattr("seqlake.ray.one_shard", spied)
    predicate = (ray.data.expressions.col("task") == "pick") & (ray.data.expressions.col("reward") > 0)
    tasks = planned(sl.ray._Rows(Excerpt.of(ds)), columns=["action"], predicate=predicate)
    expected = ds.where("task = 'pick' AND reward > 0").select("action").to_arrow()
    assert pa.concat_tables(table for _, tables in tasks for table in tables).equals(expected)
    assert sum(rows for columns, rows in read if columns == ("action",)) == len(expected) == 9
    assert {columns for columns, _ in read} == {("action",), ("reward", "task")}
    assert all(task.metadata.num_rows is None for task, _ in tasks)
    monkeypatch.undo()
    rows = sl.ray.read(ds)
    assert rows.filter(expr=predicate).count() == 9
    assert rows.filter(expr=predicate).select_columns(["sequence_id"]).count() == 9
    assert rows.select_columns(["task", "reward"]).filter(expr=predicate).to_pandas()["task"].unique() == ["pick"]
    assert rows.rename_columns({"task": "job"}).filter(expr=ray.data.expressions.col("job") == "pour").count() == 9
    assert rows.count() == 35  # as if nothing had been filtered
    assert rows.limit(7).count() == 7


def test_windows_are_counted_by_the_index_and_come_in_bounded_tasks(ds, monkeypatch) -> None:
    window = {"action": range(4), "obs_state": [-1, 0]}
    nbytes = 4 * (4 * 12 + 2 * 48)
    monkeypatch.setattr("seqlake.ray.BYTES_PER_TASK", 50 * nbytes)
    chosen = Excerpt.of(ds)
    tasks = planned(sl.ray._Windows(chosen, sl.ray.survey(chosen, sl.Window(window)), 64))
    counts = [task.metadata.num_rows for task, _ in tasks]
    assert counts == [sum(map(len, blocks)) for _, blocks in tasks]
    assert sum(counts) == sum(ds.to_arrow()["length"].to_pylist())
    assert all(task.metadata.size_bytes == count * nbytes for (task, _), count in zip(tasks, counts, strict=True))
    assert max(len(block) for _, blocks in tasks for block in blocks) == 50
    assert len(tasks) > 20
    whole = sl.ray.read(ds, window=sl.Whole(["reward", "action"]), batch_size=4)
    assert whole.count() == len(whole.take_all()) == 35


def test_windows_have_one_clock_whatever_rows_a_task_has(tmp_path, monkeypatch) -> None:
    columns = {
        "a": sl.Trajectory(dim=1),
        "b": sl.Trajectory(dim=1),
        "length": pa.int64(),
        "duration_seconds": pa.float64(),
    }
    ds = sl.create(tmp_path / "ds", sl.Schema(columns))
    for number, rate in enumerate([10, 20, 40]):  # the clock is that of the first
        steps = np.arange(40.0)[:, None]
        ds.append([{"sequence_id": str(number), "a": steps, "b": -steps, "length": 40, "duration_seconds": 40 / rate}])
    monkeypatch.setattr("seqlake.ray.BYTES_PER_TASK", 1)
    window = {"a": sl.seconds(0, 0.3, every=0.1), "b": [0]}
    rows = sl.ray.read(ds, window=window).take_all()
    expected = {
        (key, int(start)): a
        for batch in sl.Loader(ds, window=window, batch_size=8, shuffle=False)
        for key, start, a in zip(batch["sequence_id"], batch["start"], batch["a"], strict=True)
    }
    assert len(rows) == len({(row["sequence_id"], int(row["start"])) for row in rows}) == 120
    assert all(np.array_equal(row["a"], expected[row["sequence_id"], int(row["start"])]) for row in rows)


def test_windows_are_those_of_the_loader(ds) -> None:
    window = {"action": range(4), "obs_state": [-1, 0]}
    rows = sl.ray.read(ds, window=window, batch_size=16).take_all()
    expected = [
        (key, start, action)
        for batch in sl.Loader(ds, window=window, batch_size=16, shuffle=False)
        for key, start, action, valid in zip(
            batch["sequence_id"], batch["start"], batch["action"], batch.get("valid", np.ones(16, bool)), strict=False
        )
        if valid
    ]
    assert len(rows) == len(expected)
    by_place = {(row["sequence_id"], int(row["start"])): row["action"] for row in rows}
    for key, start, action in expected:
        assert np.array_equal(by_place[key, int(start)], action)


def test_samples_without_ids_and_other_formats(ds, tmp_path) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "c"]})
    assert sl.ray.read(sl.scan(table)).take_all() == table.to_pylist()
    assert [row["x"] for row in sl.ray.read(sl.scan(table), window=sl.Whole(["x"])).take_all()] == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="leave packed=True out"):
        sl.ray.read(ds, window=sl.Whole(["action"], packed=True))
    with pytest.raises(ValueError, match="batch_size: expected at least 1"):
        sl.ray.read(ds, batch_size=0)
    sl.convert(ds, tmp_path / "lerobot", to="lerobot")
    theirs = sl.scan(tmp_path / "lerobot")
    windows = sl.ray.read(theirs, window={"action": range(3)})
    assert windows.count() == len(windows.take_all()) == sum(ds.to_arrow()["length"].to_pylist())


def doubled(batch):
    batch["reward"] = batch["reward"] * 2
    return batch


def test_what_is_written_is_one_commit(ds, tmp_path) -> None:
    rows = sl.ray.read(ds).map_batches(doubled, batch_format="pandas")
    out = sl.ray.write(rows, tmp_path / "out", ds.schema)
    assert [version.operation for version in out.versions()] == ["create", "append"]
    assert not out.validate(depth="rows").errors
    both = out.to_arrow().sort_by("sequence_id"), ds.to_arrow().sort_by("sequence_id")
    assert np.allclose(both[0]["reward"], np.asarray(both[1]["reward"]) * 2)
    assert both[0]["action"].equals(both[1]["action"])
    more = ray.data.from_items([{"sequence_id": "new", "reward": 1.0, "task": "pick"}])
    assert len(sl.ray.write(more, tmp_path / "out")) == 36
    with pytest.raises(Exception, match="already"):
        sl.ray.write(more, tmp_path / "out")
    assert len(sl.open(tmp_path / "out")) == 36


def test_files_are_copied_in_from_the_root_that_is_named(tmp_path) -> None:
    schema = sl.Schema({"cam": sl.Video(fps=10), "action": sl.Trajectory(dim=1, fps=10)})
    ds = sl.create(tmp_path / "films", schema)
    frames = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    with ds.writer() as writer:
        writer.add("a", cam=frames, action=np.zeros((4, 1)))
    out = sl.ray.write(sl.ray.read(ds), tmp_path / "out", schema, root=ds.root)
    assert np.array_equal(out[0]["cam"][:], ds[0]["cam"][:])
    assert not out.validate(depth="files").errors
    with pytest.raises(Exception, match="not there"):
        sl.ray.write(sl.ray.read(ds), tmp_path / "lost", schema)


def named(row):
    return {"sequence_id": f"{row['sequence_id']}-{row['start']}", "action": row["action"], "goal": row["obs_state"][0]}


def test_windows_are_written_as_sequences(ds, tmp_path) -> None:
    windows = sl.ray.read(ds, window={"action": range(4), "obs_state": [0]}).map(named)
    schema = {"action": sl.Trajectory(dim=12), "goal": sl.Embedding(dim=48)}
    out = sl.ray.write(windows, tmp_path / "out", schema)
    assert len(out) == sum(ds.to_arrow()["length"].to_pylist())
    assert np.array_equal(out["ep_0003-5"]["action"], ds["ep_0003"]["action"][5:9])
    assert np.array_equal(out["ep_0003-5"]["goal"], ds["ep_0003"]["obs_state"][5])
    assert not out.validate(depth="rows").errors


def test_nothing_is_written_of_nothing(ds, tmp_path) -> None:
    out = sl.ray.write(sl.ray.read(ds.where("reward > 1000")), tmp_path / "out", ds.schema)
    assert len(out) == 0
    assert not out.validate(depth="rows").errors


def test_a_refused_commit_leaves_nothing(ds) -> None:
    before = sorted(Path(ds.root).rglob("*"))
    version = ds.version
    with pytest.raises(Exception, match="already"):
        sl.ray.write(sl.ray.read(ds), ds.location)
    assert sorted(Path(ds.root).rglob("*")) == before
    assert sl.open(ds.location).version == version


def test_a_long_write_says_that_it_lives(ds, tmp_path, monkeypatch) -> None:
    renewed = []
    monkeypatch.setattr("seqlake.ray._RENEWED", 0.05)
    monkeypatch.setattr("seqlake.dataset.writing.sink.TableSink.renew", lambda sink: renewed.append(sink.transaction))
    sl.ray.write(sl.ray.read(ds), tmp_path / "out", ds.schema)
    assert renewed
    assert len({one.id for one in renewed}) == 1
    assert not [one for one in threading.enumerate() if one.name == "seqlake-renew"]


def test_nothing_of_ray_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, seqlake as sl; sl.ray.read; sl.compute; sl.convert; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def broken(batch):
    raise ArithmeticError(f"broken on purpose: {len(batch)}")


def test_a_failure_leaves_nothing(ds, tmp_path) -> None:
    with pytest.raises(Exception, match="broken on purpose"):
        sl.ray.write(sl.ray.read(ds).map_batches(broken), tmp_path / "out", ds.schema)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
    wrong = ray.data.from_items([{"sequence_id": "a", "reward": "much"}])
    with pytest.raises(Exception, match="reward"):
        sl.ray.write(wrong, tmp_path / "out", ds.schema)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
    with pytest.raises(SchemaMismatchError, match="needs its columns"):
        sl.ray.write(wrong, tmp_path / "out")

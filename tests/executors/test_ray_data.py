"""Ray Data reads what a dataset holds and writes datasets by one commit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
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


def test_a_shard_of_many_bytes_is_cut(ds, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.ray.BYTES_PER_TASK", 10_000)
    rows = sl.ray.read(ds)
    assert rows.materialize().num_blocks() > 2
    assert rows.count() == 35


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

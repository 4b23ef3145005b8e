"""What a look at one sequence costs on an object store."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import ShardChangedError
from seqlake.tables._lakes import sidecar

pytest.importorskip("deltalake")


@pytest.fixture
def place(s3_bucket):
    uri, storage = s3_bucket
    kinds = {"task": pa.string(), "action": sl.Trajectory(dim=3), "obs_state": sl.Trajectory(dim=2)}
    ds = sl.create(f"delta:{uri}/t", kinds, storage=storage)
    ds.append(
        [
            {
                "sequence_id": f"ep_{n}",
                "task": "pick",
                "action": np.full((5, 3), n, np.float32),
                "obs_state": np.full((5, 2), -n, np.float32),
            }
            for n in range(50)
        ]
    )
    return ds.location, storage


def test_one_request_for_the_index_and_one_for_each_signal(place, asked):
    location, storage = place
    ds = sl.open(location, storage=storage)
    asked.clear()
    sequence = ds.sequence("ep_7")
    assert [path.rpartition("/")[0] for _, path in asked] == ["_seqlake/index"]
    asked.clear()
    assert np.array_equal(sequence["action"], np.full((5, 3), 7, np.float32))
    assert np.array_equal(sequence["obs_state"], np.full((5, 2), -7, np.float32))
    assert len(asked) == 2
    asked.clear()
    assert sequence["task"] == "pick"
    assert len(asked) <= 2
    asked.clear()
    other = ds.sequence("ep_8")
    assert (other.id, other["sequence_id"], other["action"][0, 0]) == ("ep_8", "ep_8", 8)
    assert len(asked) == 1


def test_a_whole_row_costs_four_requests(place, asked):
    location, storage = place
    ds = sl.open(location, storage=storage)
    sequence = ds.sequence("ep_7")
    asked.clear()
    assert {name: sequence[name] is not None for name in ds.schema} == dict.fromkeys(ds.schema, True)
    assert len(asked) <= 4


def _append_one_by_one(location, storage, names):
    ds = sl.open(location, storage=storage)
    for name in names:
        ds.append([{"sequence_id": name, "task": "pick", "action": np.full((2, 3), 9, np.float32)}])


def test_many_commits_cost_one_request_for_the_index_too(place, asked):
    location, storage = place
    _append_one_by_one(location, storage, ["more_0", "more_1", "more_2"])
    ds = sl.open(location, storage=storage)
    asked.clear()
    assert (ds.sequence("more_1").id, ds.sequence("ep_7").id) == ("more_1", "ep_7")
    assert [path for _, path in asked] == ["_seqlake/index/merged"]


def test_a_large_index_costs_two_requests_however_many_commits_there_are(place, asked, monkeypatch):
    monkeypatch.setattr(sidecar, "SMALL", 2000)
    location, storage = place
    _append_one_by_one(location, storage, ["more_0", "more_1", "more_2"])
    ds = sl.open(location, storage=storage)
    asked.clear()
    assert np.array_equal(ds.sequence("more_2")["action"], np.full((2, 3), 9, np.float32))
    index = [path for _, path in asked if path.startswith("_seqlake/index/")]
    assert (index[0], len(index), len(asked)) == ("_seqlake/index/merged", 2, 3)


def test_a_merged_index_that_a_slower_writer_replaced_costs_a_request_and_no_row(place, asked):
    location, storage = place
    ds = sl.open(location, storage=storage)
    _append_one_by_one(location, storage, ["more_0"])
    old = ds.table.store.read("_seqlake/index/merged")
    _append_one_by_one(location, storage, ["more_1"])
    ds.table.store.put("_seqlake/index/merged", bytes(old))
    found = sl.open(location, storage=storage)
    asked.clear()
    assert [found.sequence(name).id for name in ("more_0", "more_1", "ep_7")] == ["more_0", "more_1", "ep_7"]
    assert len(asked) == 2


def test_a_shard_that_was_overwritten_is_noticed_by_its_size(place):
    location, storage = place
    ds = sl.open(location, storage=storage)
    (shard,) = ds.table.snapshot().shards()
    path = shard.key.rpartition("#")[0]
    ds.table.store.put(path, b"PAR1 something else")
    with pytest.raises(ShardChangedError):
        ds.sequence("ep_7")["action"]


def test_an_index_that_is_not_there_is_looked_for_once_a_version(place, asked):
    location, storage = place
    store = sl.open(location, storage=storage).table.store
    store.delete([path for path, _ in store.list("_seqlake/index")])
    source = sl.open(location, storage=storage).table.snapshot()
    asked.clear()
    assert source.lengths("action").tolist() == source.lengths("obs_state").tolist() == [5] * 50
    index = [path for _, path in asked if path.startswith("_seqlake/index/")]
    assert len(index) == 3  # by the version, and by the two readers of the shard itself

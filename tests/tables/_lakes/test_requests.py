"""What a look at one sequence costs on an object store."""

from __future__ import annotations

import numpy as np
import obstore
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import ShardChangedError

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


@pytest.fixture
def requests(monkeypatch):
    """The names of the objects that are asked for, in order."""
    asked = []
    for name in ("get", "head", "list"):
        real = getattr(obstore, name)

        def counted(store, *given, real=real, **named):
            asked.append(str(given[0]) if given else "")
            return real(store, *given, **named)

        monkeypatch.setattr(obstore, name, counted)
    return asked


def test_one_request_for_the_index_and_one_for_each_signal(place, requests):
    location, storage = place
    ds = sl.open(location, storage=storage)
    requests.clear()
    sequence = ds.sequence("ep_7")
    assert [name.rpartition("/")[0] for name in requests] == ["_seqlake/index"]
    requests.clear()
    assert np.array_equal(sequence["action"], np.full((5, 3), 7, np.float32))
    assert np.array_equal(sequence["obs_state"], np.full((5, 2), -7, np.float32))
    assert len(requests) == 2
    requests.clear()
    assert sequence["task"] == "pick"
    assert len(requests) <= 2
    assert ds.sequence("ep_8")["action"][0, 0] == 8
    assert len(requests) <= 3


def test_a_shard_that_was_overwritten_is_noticed_by_its_size(place):
    location, storage = place
    ds = sl.open(location, storage=storage)
    (shard,) = ds.table.snapshot().shards()
    path = shard.key.rpartition("#")[0]
    ds.table.store.put(path, b"PAR1 something else")
    with pytest.raises(ShardChangedError):
        ds.sequence("ep_7")["action"]

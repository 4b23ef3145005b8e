"""Windows from a lake's table are those from the same rows standalone, also behind partitions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

pytest.importorskip("deltalake")


def rows():
    rng = np.random.default_rng(0)
    return [
        {
            "sequence_id": f"ep_{n}",
            "split": "train" if n % 3 else "val",
            "action": rng.normal(size=(4 + n % 5, 3)).astype(np.float32),
        }
        for n in range(12)
    ]


def steps(dataset, **options):
    loader = sl.Loader(dataset, window={"action": range(3)}, batch_size=1, seed=1, **options)
    return {
        (name, int(start)): np.asarray(action).tolist()
        for batch in loader
        for name, start, action in zip(batch["sequence_id"], batch["start"], batch["action"], strict=True)
    }


@pytest.mark.parametrize("partition_by", [(), ("split",)])
def test_windows_are_equal_to_those_of_a_standalone_table(tmp_path, partition_by):
    schema = {"split": pa.string(), "action": sl.Trajectory(dim=3)}
    lake = sl.create(f"delta:{tmp_path}/lake", schema, partition_by=partition_by)
    plain = sl.create(tmp_path / "plain", schema)
    for ds in (lake, plain):
        ds.append(rows()[:7])
        ds.append(rows()[7:])
        ds.delete(ids=["ep_3"])
    found = steps(lake)
    assert found
    assert found == steps(plain)
    assert steps(lake.where("split = 'val'")) == steps(plain.where("split = 'val'"))

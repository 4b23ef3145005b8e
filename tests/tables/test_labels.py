"""Some columns of some rows, as tables hand them over: in every home, beside columns that allow no null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError

from ..homes import PLACES, QUICK  # noqa: TID252 - tests are no package that could be named

KEY = "sequence_id"


@pytest.fixture(params=QUICK)
def ds(request, tmp_path) -> sl.Dataset:
    required = {"task": pa.field("task", pa.string(), nullable=False), "reward": pa.float64()}
    schema = sl.Schema({"action": sl.Trajectory(dim=2), **required})
    made = sl.create(PLACES[request.param].format(folder=tmp_path, name="ds"), schema)
    made.append([{KEY: f"ep_{n}", "action": np.full((3, 2), n), "task": "pick", "reward": 0.0} for n in range(3)])
    return made


def cells(ds: sl.Dataset) -> dict[str, tuple[str, float]]:
    rows = ds.select(KEY, "task", "reward").to_arrow().to_pylist()
    return {row[KEY]: (row["task"], row["reward"]) for row in rows}


@pytest.mark.sampled
@pytest.mark.parametrize("verb", ["update", "upsert"])
def test_a_table_of_labels_changes_what_it_gives(ds: sl.Dataset, verb: str) -> None:
    before = ds.to_arrow().column("action")
    getattr(ds, verb)(pa.table({KEY: ["ep_2", "ep_0"], "reward": [2.5, 0.5]}))
    assert cells(ds) == {"ep_0": ("pick", 0.5), "ep_1": ("pick", 0.0), "ep_2": ("pick", 2.5)}
    assert {s.id: s["action"][0, 0] for s in ds} == {"ep_0": 0, "ep_1": 1, "ep_2": 2}
    assert len(before) == len(ds)


def test_a_new_row_must_give_what_allows_no_null(ds: sl.Dataset) -> None:
    before = ds.version
    for rows in ([{KEY: "ep_9", "reward": 1.0}], pa.table({KEY: ["ep_0", "ep_9"], "reward": [1.0, 1.0]})):
        with pytest.raises(SchemaMismatchError, match=r"'task'.*1 new rows give none, the first is 'ep_9'"):
            ds.upsert(rows)
    assert sl.open(ds.location).version == before
    ds.upsert(pa.table({KEY: ["ep_9"], "task": ["pour"]}))
    assert cells(ds)["ep_9"] == ("pour", None)


def test_a_table_without_ids_or_with_an_unknown_column_is_refused(ds: sl.Dataset) -> None:
    with pytest.raises(SchemaMismatchError, match="sequence_id: expected string, is missing"):
        ds.update(pa.table({"reward": [1.0]}))
    with pytest.raises(SchemaMismatchError, match="did you mean 'reward'"):
        ds.update(pa.table({KEY: ["ep_0"], "rewards": [1.0]}))

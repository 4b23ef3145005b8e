"""Writers that act once on a dataset and may die of it, see `dying.py`: `acting.py PLACE FOLDER ACTION`."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from tests.dying import serve

import seqlake as sl


def row(number: int) -> dict[str, Any]:
    """A sequence, the same for the same number."""
    random = np.random.default_rng(number)
    return {
        "sequence_id": f"ep_{number}",
        "task": ["pick", None][number % 2],
        "reward": float(number),
        "action": random.random((number % 7, 3)).astype(np.float32),
    }


def prepare(place: str, shards: str | None) -> None:
    """Versions of six sequences, of which one is deleted, one that has a name, and one that nothing needs any more."""
    schema = {"task": pa.string(), "reward": pa.float64(), "action": sl.Trajectory(dim=3)}
    ds = sl.create(place, sl.Schema(schema), shards=shards)
    for number in range(0, 6, 2):
        ds.append([row(number), row(number + 1)])
    ds.tag("kept", ds.versions()[2])
    ds.delete(ids=["ep_1"])


def added(ds: Any) -> None:
    ds.add_column("length", pa.int64(), sql="len(action)")


ACTIONS = {
    "append": lambda ds: ds.append([row(6), row(7)]),
    "delete": lambda ds: ds.delete(ids=["ep_0", "ep_2", "ep_3"]),
    "update": lambda ds: ds.update([{"sequence_id": "ep_4", "reward": 44.0}]),
    "upsert": lambda ds: ds.upsert([row(6), {**row(5), "reward": 55.0}]),
    "add_column": added,
    "rename_column": lambda ds: ds.rename_column("reward", "score"),
    "drop_column": lambda ds: ds.drop_column("task"),
    "compact": sl.compact,
    "rollback": lambda ds: ds.rollback(ds.versions()[2]),
    "tag": lambda ds: ds.tag("paper"),
    "untag": lambda ds: ds.untag("kept"),
    "vacuum": lambda ds: ds.vacuum(older_than=timedelta(0)),
}


def main(place: str, folder: str, action: str) -> None:
    """A writer for each line that comes."""

    def act(arm: Any) -> None:
        ds = sl.open(place)
        arm(folder)
        ACTIONS[action](ds)

    serve(act)


if __name__ == "__main__":
    main(*sys.argv[1:])

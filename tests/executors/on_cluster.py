"""A driver of its own, that tests start and kill: one verb on some executor, each read of a sequence in a log.

python tests/executors/on_cluster.py compute DATASET WORK LOG ray
python tests/executors/on_cluster.py convert DATASET WORK LOG ray OUT
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import seqlake as sl
from seqlake.executors.processes import Processes
from seqlake.executors.ray import Ray

PAUSE = 0.02  # seconds a sequence, so that there is a middle to be killed in


def enter(log: str, keys: list[str]) -> None:
    """One line for each: who did it, and when it was begun."""
    with Path(log).open("a") as file:
        file.write("".join(f"{key} {os.getpid()}\n" for key in keys))
    time.sleep(PAUSE * len(keys))


def measured(batch: dict[str, Any], log: str) -> dict[str, Any]:
    """A number, a vector, a picture and a film of each sequence."""
    enter(log, batch["sequence_id"])
    actions = batch["action"]
    films = [(np.abs(one[:, :4]).repeat(192, axis=1).reshape(-1, 16, 16, 3) * 255).astype(np.uint8) for one in actions]
    return {
        "total": [float(one.sum(dtype=np.float64)) for one in actions],
        "mean": np.stack([one.mean(axis=0) for one in actions]),
        "picture": [film[-1] for film in films],
        "film": films,
    }


COLUMNS = {
    "total": "float64",
    "mean": sl.Embedding(dim=12),
    "picture": sl.Image(format="png"),
    "film": sl.Video(fps=50),
}


@dataclass(frozen=True)
class LoggedShard:
    """A shard that says when its rows are read."""

    shard: Any
    log: str

    @property
    def key(self) -> str:
        return self.shard.key

    @property
    def rows(self) -> int:
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        return self.shard.nbytes

    def open(self) -> LoggedReader:
        return LoggedReader(self.shard.open(), self.log)


@dataclass(frozen=True)
class LoggedReader:
    """Its reader."""

    reader: Any
    log: str

    def batches(self, columns, /, *, rows=None):
        for batch in self.reader.batches(columns, rows=rows):
            if "action" in columns:
                enter(self.log, batch.column("sequence_id").to_pylist())
            yield batch

    def flat(self, column, /):
        return self.reader.flat(column)

    def close(self):
        self.reader.close()


@dataclass(frozen=True)
class Logged:
    """A dataset of such shards."""

    dataset: Any
    log: str

    @property
    def schema(self):
        return self.dataset.schema

    @property
    def root(self):
        return self.dataset.root

    @property
    def fingerprint(self):
        return self.dataset.fingerprint

    def shards(self):
        return [LoggedShard(shard, self.log) for shard in self.dataset.shards()]

    def lengths(self, column, /):
        return self.dataset.lengths(column)


def copied(dataset: sl.Dataset, log: str, out: str) -> None:
    """Read and written by Ray Data."""
    import ray

    def logged(batch):
        enter(log, batch["sequence_id"].to_pylist())
        return batch

    ray.init(log_to_driver=False)
    rows = sl.ray.read(dataset).map_batches(logged, batch_format="pyarrow", batch_size=4)
    sl.ray.write(rows, out, dataset.schema)


def main(verb: str, place: str, work: str, log: str, on: str, *out: str) -> None:
    """Run it."""
    executor = Ray(retries=8) if on == "ray" else Processes(workers=1)
    dataset = sl.open(place)
    if verb == "rows":
        copied(dataset, log, out[0])
        return
    if verb == "convert":
        sl.convert(Logged(dataset, log), out[0], on=executor, work=work, bytes_per_part=20_000)
        return
    import pyarrow as pa

    columns = {name: pa.float64() if kind == "float64" else kind for name, kind in COLUMNS.items()}
    options = {"setup": Log(log), "read": ["action"], "work": work, "batch_size": 4}
    sl.compute(dataset, measured, columns, on=executor, **options)


@dataclass(frozen=True)
class Log:
    """Where the function writes; known by its name, wherever the log lies."""

    path: str

    def __call__(self) -> str:
        return self.path


if __name__ == "__main__":
    main(*sys.argv[1:])

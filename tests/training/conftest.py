"""Small readable datasets whose every number is known, in each of the forms a loader meets."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seqlake.files.blobs import MemoryBlob
from seqlake.files.local import LocalBlob
from seqlake.protocols import Flat
from seqlake.shards import parquet
from seqlake.shards.columns import Columns
from seqlake.shards.files import parquet_shard
from seqlake.shards.memory import ArrowShard
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema


def table_of(schema: Schema, rows: list[dict[str, Any]]) -> pa.Table:
    columns = {}
    for name in schema:
        cells = [row.get(name) for row in rows]
        plain = [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in cells]
        columns[name] = pa.array(plain, schema.arrow.field(name).type)
    return pa.table(columns)


class FlatReader:
    """Signals in one blob, cells apart and unaligned; everything else as Arrow."""

    def __init__(self, shard: FlatShard) -> None:
        self._shard = shard
        shard.opened += 1

    def batches(self, columns, /, *, rows=None):
        table = self._shard.table if rows is None else self._shard.table.take(rows)
        yield from table.select(list(columns)).combine_chunks().to_batches()

    def flat(self, column: str, /) -> Flat | None:
        kind = self._shard.schema[column]
        if kind.category != "temporal":
            return None
        cells = self._shard.table.column(column).to_pylist()
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        data, start, steps = bytearray(b"\xff" * 7), [], []
        for cell in cells:
            start.append(len(data))
            steps.append(-1 if cell is None else len(cell))
            data += np.asarray(cell if cell is not None else [], dtype).tobytes() + b"\xff" * 3
        dim = kind.shape if kind.shape is not None else np.shape(next(c for c in cells if c))[1:]
        return Flat(
            blob=MemoryBlob(bytes(data)),
            start=np.array(start, np.int64),
            steps=np.array(steps, np.int64),
            stride=int(np.prod(dim)) * dtype.itemsize,
            stored=dtype,
            dtype=dtype,
            shape=tuple(dim),
        )

    def close(self) -> None: ...


@dataclass
class FlatShard:
    schema: Schema
    table: pa.Table
    key: str
    opened: int = 0

    @property
    def rows(self) -> int:
        return self.table.num_rows

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def open(self) -> FlatReader:
        return FlatReader(self)


@dataclass
class Readable:
    schema: Schema
    rows: list[dict[str, Any]] = field(repr=False)
    parts: list[Any] = field(repr=False)
    fingerprint: str = "dataset 1"
    root: str = "/"
    asked: list[str] = field(default_factory=list, repr=False)

    def shards(self):
        return self.parts

    def lengths(self, column: str):
        self.asked.append(column)
        return np.array([-1 if row.get(column) is None else len(row[column]) for row in self.rows], np.int64)

    def row(self, sequence_id: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["sequence_id"] == sequence_id)


@pytest.fixture
def readable(tmp_path):
    """A function that makes a `Readable` of rows: kind is `flat`, `parquet`, `archive` or `arrow`."""

    def make(schema: Schema, rows: list[dict[str, Any]], *, shards: int = 3, kind: str = "flat") -> Readable:
        table, parts = table_of(schema, rows), []
        for number in range(shards):
            low, high = number * len(rows) // shards, (number + 1) * len(rows) // shards
            part = table.slice(low, high - low)
            if kind == "flat":
                parts.append(FlatShard(schema, part, f"flat#{number}"))
            elif kind == "arrow":
                parts.append(ArrowShard(part, key=f"arrow#{number}"))
            else:
                path = tmp_path / f"{kind}-{number}.parquet"
                writer = parquet.create(path, schema, layout="archive" if kind == "archive" else "training")
                for batch in part.combine_chunks().to_batches():
                    writer.write(batch)
                writer.close()
                parts.append(Columns(parquet_shard(LocalBlob(path)), schema, {}))
        return Readable(schema, rows, parts)

    return make


@pytest.fixture
def arm():
    """A function that makes rows of an arm's signals: lengths -> (schema, rows)."""

    def make(lengths, *, action: int = 3, state: int = 5, seed: int = 0):
        schema = Schema(
            {
                "task": pa.string(),
                "reward": pa.float32(),
                "action": Trajectory(dim=action),
                "obs_state": Trajectory(dim=state),
            }
        )
        random = np.random.default_rng(seed)
        rows = [
            {
                "sequence_id": f"ep_{k:04d}",
                "task": f"task {k % 3}",
                "reward": float(k),
                "action": None if steps < 0 else random.normal(size=(steps, action)).astype(np.float32),
                "obs_state": None if steps < 0 else random.normal(size=(steps, state)).astype(np.float32),
            }
            for k, steps in enumerate(lengths)
        ]
        return schema, rows

    return make


@pytest.fixture
def begun():
    """The names of threads that began since and still run, without those of Arrow, which count as Python's for ever."""
    gc.collect()  # loaders of other tests, which might begin threads yet
    before = set(threading.enumerate())
    return lambda: sorted(
        one.name for one in set(threading.enumerate()) - before if not isinstance(one, threading._DummyThread)
    )


@pytest.fixture
def interrupted():
    """Runs lines that make `loader`, loops over it for ever in a process of its own, and presses Ctrl-C there."""

    def run(lines: str) -> None:
        script = f"""{lines}
next(iter(loader))  # torch is imported by now: stopping that half way crashes its own clean-up
try:
    print("ready", flush=True)
    while True:
        for batch in loader:
            pass
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out, error) == (0, "stopped\n", "")

    return run

"""Each lake's own client, asked for what the benchmark of lakes asks seqlake for, by its fastest documented calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
from signals import DIMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH = 16
DUCKDB = Path(sys.prefix, "duckdb-1.5")
_ARM = [*DIMS]


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock and of the processor that a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def cut(table: pa.Table, picks: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """[windows, steps, dim] the windows (sequence id, first step) out of the sequences that a client read."""
    place = {name: row for row, name in enumerate(table.column("sequence_id").to_pylist())}
    rows, starts = np.array([place[name] for name, _ in picks]), np.array([start for _, start in picks])
    found = {}
    for name, dim in DIMS.items():
        cells = table.column(name).combine_chunks()
        steps = np.asarray(cells.flatten().flatten()).reshape(-1, dim)
        first = np.asarray(cells.offsets)[rows] - int(cells.offsets[0].as_py()) + starts
        found[name] = steps[first[:, None] + np.arange(WIDTH)]
    return found


class Delta:
    """deltalake."""

    def __init__(self, dataset: Any) -> None:
        import deltalake

        self.root = dataset.table.root
        self.table = deltalake.DeltaTable(self.root)

    def rows(self) -> list[tuple[float, float]]:
        """Both columns of all rows: as a table, and batch by batch."""
        stream = lambda: [batch.num_rows for batch in self.table.to_pyarrow_dataset().to_batches(columns=_ARM)]  # noqa: E731
        return [timed(lambda: self.table.to_pyarrow_table(columns=_ARM)), timed(stream)]

    def windows(self, picks: list[tuple[str, int]]) -> tuple[float, float]:
        """The sequences of these windows by their ids, and the windows out of them."""
        wanted = pads.field("sequence_id").isin([name for name, _ in picks])
        read = self.table.to_pyarrow_dataset().to_table
        return timed(lambda: cut(read(columns=["sequence_id", *_ARM], filter=wanted), picks))

    def commit(self, number: int) -> tuple[float, float]:
        """One more row."""
        import deltalake

        row = pa.table({"sequence_id": [f"b{number}"], "reward": [float(number)]})
        return timed(lambda: deltalake.write_deltalake(self.root, row, mode="append"))

    def close(self) -> None:
        """Nothing is open."""


class Iceberg:
    """pyiceberg."""

    def __init__(self, dataset: Any) -> None:
        self.table = dataset.table.engine.address.open_catalog().load_table(dataset.table.engine.address.identifier)

    def rows(self) -> list[tuple[float, float]]:
        """Both columns of all rows: as a table, and batch by batch."""
        scan = self.table.scan(selected_fields=tuple(_ARM))
        stream = lambda: [batch.num_rows for batch in scan.to_arrow_batch_reader()]  # noqa: E731
        return [timed(scan.to_arrow), timed(stream)]

    def windows(self, picks: list[tuple[str, int]]) -> tuple[float, float]:
        """The sequences of these windows by their ids, and the windows out of them."""
        from pyiceberg.expressions import In

        wanted = In("sequence_id", [name for name, _ in picks])
        scan = self.table.scan(row_filter=wanted, selected_fields=("sequence_id", *_ARM))
        return timed(lambda: cut(scan.to_arrow(), picks))

    def commit(self, number: int) -> tuple[float, float]:
        """One more row."""
        kinds = self.table.schema().as_arrow()
        row = pa.table({"sequence_id": [f"b{number}"], "reward": [float(number)]}).select(kinds.names).cast(kinds)
        return timed(lambda: self.table.append(row))

    def close(self) -> None:
        """Nothing is open."""


class DuckLake:
    """DuckDB's extension, in a process of its own: the DuckDB that has it may be another one than ours."""

    def __init__(self, dataset: Any) -> None:
        script = Path(__file__).parent / "peers" / "ducklake_client.py"
        target = dataset.location.removeprefix("ducklake:").rpartition("?")[0]
        self.process = subprocess.Popen(
            [sys.executable, script, target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(DUCKDB)},
        )

    def _ask(self, *question: Any) -> tuple[float, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        wall, cpu = json.loads(self.process.stdout.readline())
        return wall, cpu

    def rows(self) -> list[tuple[float, float]]:
        """Both columns of all rows: as a table, and batch by batch."""
        return [self._ask("whole"), self._ask("streamed")]

    def windows(self, picks: list[tuple[str, int]]) -> tuple[float, float]:
        """The windows, cut out by the engine."""
        return self._ask("windows", picks, WIDTH)

    def commit(self, number: int) -> tuple[float, float]:
        """One more row."""
        return self._ask("commit", number)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def client(lake: str, dataset: Any) -> Delta | Iceberg | DuckLake | None:
    """The client of a lake; None where it is not installed."""
    if lake == "ducklake":
        return DuckLake(dataset) if DUCKDB.exists() else None
    return Delta(dataset) if lake == "delta" else Iceberg(dataset)

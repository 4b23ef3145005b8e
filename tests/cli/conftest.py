"""A dataset to run commands on, and a way to run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli import main


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        document = json.loads(self.out)
        assert document["schema_version"] == 1
        return document


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `seqlake` with arguments, in this process."""

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        code = stop.value.code
        out, err = capsys.readouterr()
        return Ran(code if isinstance(code, int) else 0, out, err)

    return call


def run_as_process(*arguments: object, stdin: str = "", env: dict[str, str] | None = None) -> Ran:
    """Run `seqlake` as people do."""
    done = subprocess.run(
        [sys.executable, "-c", "from seqlake.cli import main; main()", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def rows(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {
            "sequence_id": f"ep_{i:02d}",
            "task": ["pick", "place"][i % 2],
            "reward": float(i),
            "action": rng.normal(size=(10 + i, 3)).astype(np.float32),
        }
        for i in range(count)
    ]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Twelve sequences in two shards."""
    path = tmp_path / "arm"
    schema = sl.Schema({"task": pa.string(), "reward": pa.float64(), "action": sl.Trajectory(dim=3, fps=10)})
    ds = sl.create(path, schema)
    with ds.writer(rows_per_shard=6) as writer:
        for row in rows(12):
            writer.add(row.pop("sequence_id"), **row)
    return path

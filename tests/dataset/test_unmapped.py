"""A shard that is cut short while it is read: with `mmap="false"` an error, and never the end of the process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import seqlake as sl

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
import os, sys
import numpy as np, seqlake as sl
root, shard, what = sys.argv[1:]
ds = sl.open(root, storage={"mmap": "false"})
try:
    if what == "loader":
        batches = iter(sl.Loader(ds, window={"action": [0]}, batch_size=100, shuffle=False))
        total = float(next(batches)["action"].sum())
        os.truncate(shard, 4096)
        total += sum(float(batch["action"].sum()) for batch in batches)
    else:
        total = float(np.asarray(ds[0]["action"]).sum())
        os.truncate(shard, 4096)
        total += sum(float(np.asarray(ds[row]["action"]).sum()) for row in range(1, 4))
    print(round(total))
except sl.errors.ShardChangedError:
    print("changed")
"""


@pytest.mark.sampled(every=2, start=1)
@pytest.mark.parametrize("what", ["loader", "cells"])
def test_a_shard_that_is_cut_short_meanwhile(tmp_path: Path, what: str) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"action": sl.Trajectory(dim=64, fps=10)}))
    with ds.writer() as writer:
        for row in range(4):
            writer.add(f"ep_{row}", action=np.full((5000, 64), row + 1))
    (shard,) = (tmp_path / "ds" / "data").glob("*.parquet")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "ds"), str(shard), what]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended  # mapped, it is -SIGBUS
    # What was read before is right as it was; nothing else is ever delivered.
    assert ended.stdout.strip() in {str(10 * 5000 * 64), "changed"}

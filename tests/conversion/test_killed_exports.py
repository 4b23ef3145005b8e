"""Exports that no file makes one: killed at any change of the disk, nothing half is opened, and they go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError

SCRIPT = """
import os, signal, sys
import seqlake as sl
from seqlake.files.local import LocalStore

source, out, work, to, at = sys.argv[1:]
calls = {"n": 0}

def dying(name):
    before = getattr(LocalStore, name)
    def call(self, *args, **options):
        if "/out" in self.root:
            calls["n"] += 1
            if calls["n"] == int(at):
                os.kill(os.getpid(), signal.SIGKILL)
        return before(self, *args, **options)
    setattr(LocalStore, name, call)

for name in ("put", "move", "delete", "sync"):
    dying(name)
sl.convert(sl.open(source), out, to=to, work=work, workers=1, progress=False, bytes_per_part=1)
print(calls["n"])
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", ["huggingface", "webdataset"])
@pytest.mark.parametrize("points", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_killed_anywhere_nothing_half_is_opened_and_it_goes_on(tmp_path: Path, to: str, points: int) -> None:
    if to == "webdataset":
        pytest.importorskip("webdataset")
    ds = sl.create(tmp_path / "ds", {"x": sl.Trajectory(2, dtype="float32"), "split": pa.string()})
    for number in range(6):
        with ds.writer() as writer:
            writer.add(f"ep{number}", x=np.full((3, 2), number, "f4"), split=("train", "test")[number % 2])

    def run(name: str, at: int) -> subprocess.CompletedProcess[str]:
        home = tmp_path / name
        arguments = [str(tmp_path / "ds"), str(home / "out"), str(home / "work"), to, str(at)]
        return subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False)

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    total, expected = int(whole.stdout), contents(tmp_path / "whole/out")
    assert total > 12
    assert len(expected) > 2
    for at in np.unique(np.linspace(total // 2, total, points).astype(int)).tolist():
        out = tmp_path / f"killed{at}" / "out"
        assert run(f"killed{at}", at).returncode == -signal.SIGKILL
        if to == "huggingface":  # what other readers see: all files, or none
            there = {name for name in contents(out) if not name.startswith(".")}
            assert there in (set(), set(expected)), at
        try:
            rows = len(sl.scan(out))
        except SeqlakeError:
            rows = 6
        assert rows == 6
        done = run(f"killed{at}", 0)
        assert done.returncode == 0, done.stderr
        assert contents(out) == expected

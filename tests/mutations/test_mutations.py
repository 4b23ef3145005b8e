"""Whatever is changed in a file, reading it ends in the right answer or in an error of ours, and it ends.

The shards, logs, media and formats have such tests in their own rooms; here is what no room has alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..counting import Counts, many, seeded  # noqa: TID252 - tests are no package that could be named
from .mutating import CASES

SCRIPT = Path(__file__).with_name("mutating.py")
LONG = 1000
FAST = {"user's cache", "receipts", "statistics", "mixtrain.json"}


def counted(reader: str, seed: int, count: int, folder: Path, *, patience: float) -> Counts:
    """In a process of its own: a crash and a hang are seen, and counted."""
    command = [sys.executable, "-W", "error::ResourceWarning", str(SCRIPT), reader, str(seed), str(count), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired as slow:
        told = slow.stderr.decode() if isinstance(slow.stderr, bytes) else slow.stderr or ""
        return Counts(reader=reader, mutations=told.count('"number"'), hang=1, examples=told.splitlines()[-3:])
    if done.returncode or not done.stdout:
        told = done.stderr
        return Counts(reader=reader, mutations=told.count('"number"'), crash=1, examples=told.splitlines()[-30:])
    return Counts(**json.loads(done.stdout.splitlines()[-1]))


def check(found: Counts, reader: str) -> None:
    if not CASES[reader].cause:
        found.cause = ""
    found.keep()
    assert found.mutations
    allowed = {"wrong"} if CASES[reader].cause else set()
    assert not found.bad().keys() - allowed, (found.bad(), found.examples)


@pytest.mark.mutations
@pytest.mark.parametrize("reader", CASES)
def test_changed_files(reader, tmp_path) -> None:
    check(counted(reader, 7, 60 if reader in FAST else 10, tmp_path, patience=240), reader)


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("reader", CASES)
def test_many_changed_files(reader, tmp_path) -> None:
    check(counted(reader, seeded(8), many(LONG if reader in FAST else LONG // 5), tmp_path, patience=3600), reader)

"""`examples/elastic_training.py`: real processes, a real SIGKILL, other ranks afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_training.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="gloo and kills as on Linux and macOS")
def test_four_ranks_are_killed_and_two_go_on(tmp_path):
    arguments = ["--work", tmp_path, "--sequences", "16", "--save-every", "3", "--kill-at", "11"]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *map(str, arguments)], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ranks: killed in step 11 of 16 ([-9, -9, -9, -9]), the last checkpoint is of step 9" in done.stdout
    assert "2 ranks: went on to step 16\n768 samples" in done.stdout
    assert "each at most 2 times" in done.stdout  # in two epochs
    assert "nothing lost, nothing repeated" in done.stdout

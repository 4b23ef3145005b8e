"""`examples/ray_training.py`: Ray Train, a real SIGKILL, more workers afterwards; in the soak.

Every run has `test_elastic_training.py`, which shows the same with torch's own launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_training.py"


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, "fork"), reason="gloo and kills as on Linux and macOS")
def test_two_workers_are_killed_and_three_go_on(tmp_path):
    arguments = ["--work", tmp_path, "--sequences", "16", "--save-every", "3", "--kill-at", "11"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, EXAMPLE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers: WorkerGroupError in step 11 of 16, the last checkpoint is of step 9" in done.stdout
    assert "3 workers: went on to step 16\n768 samples" in done.stdout
    assert "each at most 2 times" in done.stdout  # in two epochs
    assert "nothing lost, nothing repeated" in done.stdout

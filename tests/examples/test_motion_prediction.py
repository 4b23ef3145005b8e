"""`examples/motion_prediction.py` on the real scene: it learns, and draws."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "examples" / "motion_prediction.py"
REAL = PROJECT.parent / "shared" / "data" / "lyft_single_scene.zarr"

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real scene is not at {REAL}")
pytest.importorskip("torch", reason="the example trains with torch")
pytest.importorskip("numcodecs", reason="the extra l5kit is not installed")


def test_it_learns_and_draws(tmp_path):
    out = tmp_path / "predicted.png"
    command = [sys.executable, str(EXAMPLE), str(REAL), "--out", str(out), "--epochs", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.search(r"error: ([\d.]+) m .*, ([\d.]+) m", done.stdout).groups())
    assert last < first < 2
    import av

    with av.open(str(out)) as picture:
        [frame] = picture.decode(video=0)
    pixels = frame.to_ndarray(format="rgb24")
    assert pixels.shape == (600, 900, 3)
    for color in ([0x20] * 3, [0x99] * 3, [0xB0, 0, 0x20]):
        assert (pixels == color).all(axis=-1).sum() > 100, color


def test_the_windows_are_those_of_the_store():
    """What the model is trained on, counted by the rule alone."""
    spec = importlib.util.spec_from_file_location("motion_prediction", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    from seqlake.formats.l5kit.selecting import select_agents
    from seqlake.formats.l5kit.store import open_store

    runs = select_agents(open_store(str(REAL)))
    assert len(example.sightings(REAL)) == np.sum((runs[:, 0] >= 10) & (runs[:, 1] >= 20)) > 100

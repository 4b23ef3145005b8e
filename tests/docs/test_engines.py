"""What the page of other engines says of Dask and Daft, where they are installed.

Daft wants an older pyarrow than the rest: it also runs in the environment that `benchmarks/peers/setup` makes for it,
or with the Python that `SEQLAKE_DAFT_PYTHON` names.
"""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "other-engines.md"
CODE = re.findall(r"^```(?:py|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
LABEL = 'ds.add_column("good", pa.bool_(), sql="reward > 0.5")\n'
DAFT = Path(os.environ.get("SEQLAKE_DAFT_PYTHON") or ROOT / "benchmarks" / ".venv-daft" / "bin" / "python")


def block_of(package: str) -> str:
    """What the page says of one engine."""
    [block] = [one for one in CODE if one.startswith(f"import {package}")]
    return block


@pytest.mark.sampled(every=2)
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("package", ["dask.dataframe", "daft"])
def test_what_the_page_says_of_them_is_so(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    names = {"np": np, "pa": pa, "sl": sl}
    exec(CODE[0], names)
    exec(LABEL, names)
    exec(block_of(package), names)


@pytest.mark.skipif(not DAFT.exists(), reason="no environment of Daft: PEERS=daft benchmarks/peers/setup makes one")
def test_daft_in_an_environment_of_its_own(tmp_path: Path) -> None:
    code = "\n".join([CODE[0], LABEL, block_of("daft")])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "DAFT_PROGRESS_BAR": "0"}
    ran = subprocess.run(
        [DAFT, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr

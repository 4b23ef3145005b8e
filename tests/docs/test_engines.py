"""What the page of other engines says of Dask and Daft, where they are installed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "other-engines.md"
CODE = re.findall(r"^```(?:py|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("package", ["dask.dataframe", "daft"])
def test_what_the_page_says_of_them_is_so(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    names = {"np": np, "pa": pa, "sl": sl}
    exec(CODE[0], names)
    names["ds"].add_column("good", pa.bool_(), sql="reward > 0.5")
    [block] = [one for one in CODE if one.startswith(f"import {package}")]
    exec(block, names)

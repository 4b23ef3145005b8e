"""A folder of MDS, written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..by_hand import arm, write  # noqa: TID252 - one tool for several formats


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    """Three shards of 5, 0 and 4 samples: numbers, texts, bytes, arrays of fixed and of free shape."""
    columns = {
        "action": "ndarray:float32:4,3",
        "blob": "bytes",
        "free": "ndarray",
        "goal": "ndarray:int16:7",
        "image": "ndarray:uint8:2,3,5",
        "label": "int",
        "name": "str",
        "ragged": "ndarray:float64",
        "score": "float32",
    }
    return write(tmp_path / "arms", columns, [[arm(i) for i in range(5)], [], [arm(i) for i in range(5, 9)]])

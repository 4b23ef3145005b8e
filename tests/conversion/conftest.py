"""A small RLDS folder, made by the tool of the format's own tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_TOOL = Path(__file__).parents[1] / "formats" / "rlds" / "conftest.py"


@pytest.fixture(scope="session")
def rlds_tool():
    spec = importlib.util.spec_from_file_location("rlds_tool", _TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rlds_tool"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def arm(rlds_tool, tmp_path):
    return rlds_tool.arm_folder().write(tmp_path / "arm")


@pytest.fixture
def damaged_arm(arm):
    path = arm / "arm-train.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[data.index(b"do 3")] ^= 1
    path.write_bytes(data)
    return arm

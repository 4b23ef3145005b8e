"""The laws of every format, over each layout as its project writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.formats.hdf5 import by_hand

from seqlake.formats import hdf5
from seqlake.protocols import Readable
from seqlake.testing.formats import FormatTests


class TestAloha(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Readable:
        return hdf5.scan(str(by_hand.aloha(tmp_path / "aloha", effort=True)), fps=2)


class TestRobomimic(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Readable:
        for name in ("a", "b"):
            by_hand.robomimic(tmp_path / "demos" / f"{name}.hdf5", instruction=f"pick {name}")
        return hdf5.scan(str(tmp_path / "demos"), fps=2)


class TestDroid(FormatTests):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Readable:
        return hdf5.scan(str(by_hand.droid(tmp_path / "droid")), fps=2)

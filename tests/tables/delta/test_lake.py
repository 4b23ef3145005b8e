"""The Delta table keeps the laws of lakes: many writers, killed writers, files out of reach."""

from __future__ import annotations

import pytest

from seqlake.tables import delta
from seqlake.testing import lakes, tables

pytest.importorskip("deltalake")


class TestDelta(lakes.LakeTests):
    @pytest.fixture
    def table(self, tmp_path):
        return delta.create(str(tmp_path / "t"), tables.SCHEMA)

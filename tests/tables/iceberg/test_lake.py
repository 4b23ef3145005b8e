"""Iceberg tables keep the laws of lakes: many writers at once, killed writers, files out of reach."""

from __future__ import annotations

import pytest

pytest.importorskip("pyiceberg")

from seqlake.tables import iceberg
from seqlake.testing import lakes, tables


class TestIceberg(lakes.LakeTests):
    @pytest.fixture
    def table(self, tmp_path):
        return iceberg.create(f"iceberg:{tmp_path}/warehouse/robots.episodes", tables.SCHEMA)

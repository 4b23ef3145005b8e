"""The laws of a table hold for DuckLake: catalogs in DuckDB and SQLite, data on disk and on a server that speaks S3."""

from __future__ import annotations

import pytest

from seqlake.tables import ducklake
from seqlake.testing import tables


class TestDuckdbFile(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path):
        return ducklake.create(f"ducklake:{tmp_path}/lake.ducklake?table=episodes", tables.SCHEMA)


class TestSqlite(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path):
        return ducklake.create(f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=robots.episodes", tables.SCHEMA)


class TestOnABucket(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path, s3_bucket):
        uri, storage = s3_bucket
        place = f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=episodes&data_path={uri}/lake"
        return ducklake.create(place, tables.SCHEMA, storage=storage)

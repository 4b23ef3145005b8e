"""Iceberg tables keep the laws of tables, on disk and on a bucket."""

from __future__ import annotations

import pytest

from seqlake.testing import tables

pytest.importorskip("pyiceberg")

from seqlake.tables import iceberg


class TestOnDisk(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path):
        return iceberg.create(f"iceberg:{tmp_path}/warehouse/robots.episodes", tables.SCHEMA)


class TestOnS3(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path, s3_bucket):
        storage = {
            **s3_bucket.storage,
            "uri": f"sqlite:///{tmp_path}/catalog.db?timeout=60",
            "warehouse": f"{s3_bucket.uri}/warehouse",
        }
        return iceberg.create("iceberg://lab/robots.episodes", tables.SCHEMA, storage=storage)

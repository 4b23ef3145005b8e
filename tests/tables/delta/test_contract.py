"""The Delta table keeps the laws of tables on local disk and on a bucket."""

from __future__ import annotations

import pytest

from seqlake.tables import delta
from seqlake.testing import tables

pytest.importorskip("deltalake")


class TestOnDisk(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path):
        return delta.create(str(tmp_path / "t"), tables.SCHEMA)


class TestOnABucket(tables.TableTests):
    @pytest.fixture
    def table(self, s3_bucket):
        uri, storage = s3_bucket
        return delta.create(f"delta:{uri}/t", tables.SCHEMA, storage=storage)

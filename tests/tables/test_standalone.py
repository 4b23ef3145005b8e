"""The standalone table keeps the laws of tables on local disk and on a bucket."""

from __future__ import annotations

import pytest

from seqlake.tables import standalone
from seqlake.testing import tables


class TestOnDisk(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path):
        return standalone.create(tmp_path / "t", tables.SCHEMA)


class TestOnABucket(tables.TableTests):
    @pytest.fixture
    def table(self, s3_bucket):
        uri, storage = s3_bucket
        return standalone.create(f"{uri}/t", tables.SCHEMA, storage=storage)

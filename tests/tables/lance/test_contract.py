"""The laws of a table hold for Lance datasets, on a disk and on a server that speaks S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from seqlake.tables import lance
from seqlake.testing import lakes, tables

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("lance")


class TestOnDisk(tables.TableTests):
    @pytest.fixture
    def table(self, tmp_path: Path) -> Any:
        return lance.create(f"lance:{tmp_path}/t", tables.SCHEMA)


def test_a_bucket_holds_one(s3_bucket: Any) -> None:
    uri, storage = s3_bucket
    table = lance.create(f"lance:{uri}/t", tables.SCHEMA, storage=storage)
    tables.append(table, ["a", "b"])
    tables.append(table, ["c"])
    again = lance.open(f"lance:{uri}/t", storage=storage)
    assert tables.rows_of(again.snapshot()) == tables.expected(["a", "b", "c"])
    assert tables.rows_of(again.snapshot(2)) == tables.expected(["a", "b"])


@pytest.mark.soak
class TestOnABucket(tables.TableTests):
    @pytest.fixture
    def table(self, s3_bucket: Any) -> Any:
        uri, storage = s3_bucket
        return lance.create(f"lance:{uri}/t", tables.SCHEMA, storage=storage)


@pytest.mark.soak
class TestManyWriters(lakes.LakeTests):
    @pytest.fixture
    def table(self, tmp_path: Path) -> Any:
        return lance.create(f"lance:{tmp_path}/t", tables.SCHEMA)

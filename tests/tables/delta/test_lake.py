"""The Delta table keeps the laws of lakes: many writers, killed writers, files out of reach."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from seqlake.protocols import Change
from seqlake.tables import delta
from seqlake.testing import lakes, tables
from seqlake.testing.processes import fresh

pytest.importorskip("deltalake")


class TestDelta(lakes.LakeTests):
    @pytest.fixture
    def table(self, tmp_path):
        return delta.create(str(tmp_path / "t"), tables.SCHEMA)


def append_some(pickled, writer):
    table = pickle.loads(pickled)
    for number in range(5):
        tables.append(table, [f"w{writer}-{number}"])


def test_writers_on_a_bucket_lose_nothing(s3_bucket):
    uri, storage = s3_bucket
    table = delta.create(f"delta:{uri}/t", tables.SCHEMA, storage=storage)
    with fresh().Pool(2) as pool:
        pool.starmap(append_some, [(pickle.dumps(table), writer) for writer in range(2)], chunksize=1)
    ids = [f"w{writer}-{number}" for writer in range(2) for number in range(5)]
    assert tables.rows_of(table.snapshot()) == tables.expected(ids)
    assert [version.id for version in table.versions()] == list(range(11))
    assert not [path for path, _ in table.store.list("_seqlake/staged")]


def test_another_client_that_appends_meanwhile_loses_nothing(tmp_path):
    """deltalake's own appends between ours: each sees the other's commit and goes on top of it."""
    import deltalake

    table = delta.create(str(tmp_path / "t"), tables.SCHEMA)
    kinds = table.state().schema
    for number in range(6):
        transaction = table.begin()
        written = tables.write(table, transaction, [tables.episode(f"ours-{number}")])
        theirs = pa.Table.from_pylist([tables.episode(f"theirs-{number}")], kinds)
        deltalake.write_deltalake(table.root, theirs, mode="append")
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    ids = [f"{who}-{number}" for who in ("ours", "theirs") for number in range(6)]
    assert tables.rows_of(table.snapshot()) == tables.expected(ids)

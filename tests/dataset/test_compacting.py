"""Compaction: the same rows in few shards of our layout, as one commit that older versions do not notice."""

from __future__ import annotations

import os
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset.reshaping.compacting import wasteful
from seqlake.errors import CommitConflictError

COLUMNS = {"task": pa.string(), "action": sl.Trajectory(dim=1)}


def rows(first, last):
    return [{"sequence_id": f"s{n}", "task": "pick", "action": [[float(n)]] * (n % 4)} for n in range(first, last)]


def cells(ds):
    return {row["sequence_id"]: row for row in ds.to_arrow().to_pylist()}


@pytest.fixture
def ds(tmp_path):
    made = sl.create(tmp_path / "ds", COLUMNS)
    for start in range(0, 12, 3):
        made.append(rows(start, start + 3))
    return made


def test_small_shards_become_one(ds):
    before, old = cells(ds), ds.version
    version = sl.compact(ds)
    assert (version.rows, version.operation, len(ds.source.shards())) == (12, "rewrite", 1)
    assert cells(ds) == before == cells(sl.open(ds.location, version=old))
    ds.vacuum(older_than=timedelta(0))
    assert cells(sl.open(ds.location)) == before
    assert ds.validate().ok


def test_nothing_to_gain_is_no_commit(ds):
    sl.compact(ds)
    version = ds.version
    assert sl.compact(ds) == version
    assert len(ds.versions()) == 6


def test_shards_of_others_become_ours_and_flat(ds):
    plain = pa.schema(
        [("sequence_id", pa.string()), ("task", pa.string()), ("action", pa.list_(pa.list_(pa.float32())))]
    )
    pq.write_table(pa.Table.from_pylist(rows(20, 24), plain), os.path.join(ds.location, "data", "theirs.parquet"))  # noqa: PTH118 - short
    ds.adopt()
    before = cells(ds)
    sl.compact(ds, bytes_per_shard=1)  # none of ours is small
    assert cells(ds) == before
    assert [shard.rows for shard in ds.source.shards()] == [3, 3, 3, 3, 4]
    assert all(shard.open().flat("action") is not None for shard in ds.source.shards())


def test_a_rivals_change_of_these_rows_is_a_conflict_and_nothing_is_left(ds, monkeypatch):
    from seqlake.dataset.reshaping import compacting

    real = compacting.several_for_writing

    def meanwhile(*given, **named):
        monkeypatch.setattr(compacting, "several_for_writing", real)
        sl.open(ds.location).delete(ids=["s4"])
        return real(*given, **named)

    monkeypatch.setattr(compacting, "several_for_writing", meanwhile)
    with pytest.raises(CommitConflictError):
        sl.compact(ds)
    assert set(cells(sl.open(ds.location))) == {f"s{n}" for n in range(12)} - {"s4"}


def test_labels_beside_a_shard_are_folded_in(ds):
    ds.add_column("good", pa.bool_(), values={"s3": True, "s7": False})
    before = cells(ds)
    sl.compact(ds, rows_per_shard=100)
    assert cells(ds) == before
    assert len(ds.source.shards()) == 1


def test_which_shards_are_wasteful(ds):
    shards = ds.source.shards()
    assert wasteful(shards, nbytes=1 << 20, rows=None) == list(shards)
    assert wasteful(shards[:1], nbytes=1 << 20, rows=None) == []
    assert wasteful(shards, nbytes=1, rows=None) == []
    assert wasteful(shards, nbytes=1 << 20, rows=5) == []

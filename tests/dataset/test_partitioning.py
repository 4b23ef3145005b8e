"""Rows divided by partition: each shard has the files that its own rows name, and joins only with its like."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.reading.streaming import one_shard

pytest.importorskip("deltalake")


def test_each_shard_lists_exactly_the_files_that_its_rows_name(tmp_path):
    ds = sl.create(f"delta:{tmp_path}/t", {"split": pa.string(), "notes": sl.Video()}, partition_by=["split"])
    with ds.writer(rows_per_shard=4) as writer:
        for number in range(20):
            film = tmp_path / f"{number}.mp4"
            film.write_bytes(b"film %d" % number)
            writer.add(f"ep_{number}", split="train" if number % 3 else "val", notes=sl.File(str(film)))
    snapshot = ds.table.snapshot()
    assert len(snapshot.shards()) == 6
    for shard in snapshot.shards():
        named = {cell for batch in one_shard(shard, ["notes"]) for cell in batch.column(0).to_pylist()}
        assert set(snapshot.copied(shard.key)) == named
        assert all(Path(ds.table.root, path).is_file() for path in named)


def test_one_small_shard_in_each_partition_is_nothing_to_join(tmp_path):
    ds = sl.create(f"delta:{tmp_path}/t", {"split": pa.string(), "steps": pa.int64()}, partition_by=["split"])
    for start in (0, 3):
        ds.append([{"sequence_id": f"ep_{n}", "split": "abc"[n % 3], "steps": n} for n in range(start, start + 3)])
    before = {one.id: one["steps"] for one in ds}
    version = sl.compact(ds)
    assert len(ds.source.shards()) == 3
    assert {one.id: one["steps"] for one in ds} == before
    assert sl.compact(ds) == version

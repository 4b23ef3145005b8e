"""Folders in a bucket: what one cold sample costs, columns by range, and objects that change."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import obstore
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, DatasetNotFoundError, ShardChangedError
from seqlake.files.stores import open_store
from seqlake.formats import mds

from ...training.faulty import Proxy  # noqa: TID252 - one tool for several formats

COLUMNS = {"a": "int", "blob": "bytes", "free": "ndarray", "x": "ndarray:float32:3"}


def sample(i: int) -> dict:
    return {"a": i, "blob": os.urandom(3000), "free": np.arange(i + 1), "x": np.full(3, i, "f4")}


SAMPLES = [sample(i) for i in range(60)]


@pytest.fixture
def uri(s3_bucket) -> str:
    uri = f"{s3_bucket.uri}/set"
    for name, compression in (("raw", None), ("zip", "bz2")):
        options = {"compression": compression, "size_limit": "100kb", "hashes": ["sha1"]}
        with sl.create(f"{uri}/{name}", COLUMNS, format="mds", storage=s3_bucket.storage, **options) as writer:
            writer.write_all(SAMPLES)
    return uri


def test_one_cold_sample_is_the_header_and_then_one_range(uri, s3_bucket, monkeypatch) -> None:
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        source = mds.scan(f"{uri}/raw", storage={**s3_bucket.storage, "endpoint": proxy.url})
        proxy.reset_counts()
        monkeypatch.setattr(obstore, "head", None)  # nothing is looked for before it is read
        np.testing.assert_array_equal(source[40]["free"], SAMPLES[40]["free"])
        assert sum(proxy.seen.values()) == 2
        entry = source.index.entries[1]
        size = 3000 + 8 + 12 + 3 + 8 * 41 + 8  # the cells, and the lengths of two of them
        header = len(entry.config.header()) + 64  # compared with the index, and what it may be longer by
        assert proxy.nbytes <= 4 * (entry.samples + 2) + header + size
        proxy.reset_counts()
        assert source[41]["blob"] == SAMPLES[41]["blob"]
        assert sum(proxy.seen.values()) == 1


def test_one_cold_sample_of_a_compressed_shard_is_one_request(uri, s3_bucket, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.files.ranges.LARGEST", 10_000)  # however large the pieces of other reads are
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        source = mds.scan(f"{uri}/zip", storage={**s3_bucket.storage, "endpoint": proxy.url})
        proxy.reset_counts()
        monkeypatch.setattr(obstore, "head", None)
        assert source[40]["blob"] == SAMPLES[40]["blob"]
        assert source[41]["blob"] == SAMPLES[41]["blob"]
        assert sum(proxy.seen.values()) == 1


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["raw", "zip"])
def test_columns_of_a_bucket(uri, s3_bucket, name: str) -> None:
    rows = sl.scan(f"{uri}/{name}", storage=s3_bucket.storage)
    table = rows.to_arrow()
    assert table["a"].to_pylist() == list(range(60))
    assert table["free"].to_pylist() == [list(range(i + 1)) for i in range(60)]
    assert table["blob"].to_pylist() == [one["blob"] for one in SAMPLES]
    assert table["x"].to_pylist() == [[float(i)] * 3 for i in range(60)]
    assert rows.where("a IN (3, 50, 17)").to_arrow()["a"].to_pylist() == [3, 17, 50]


def test_flat_of_a_bucket_needs_no_look_at_samples(s3_bucket) -> None:
    columns = {"a": "ndarray:float32:2,3", "z": "bytes", "zz": "ndarray:int8:4"}
    storage = s3_bucket.storage
    with sl.create(f"{s3_bucket.uri}/f", columns, format="mds", storage=storage) as writer:
        for i in range(5):
            writer.write({"a": np.full((2, 3), i, "f4"), "z": b"x" * i, "zz": np.full(4, i, "i1")})
    [shard] = mds.scan(f"{s3_bucket.uri}/f", storage=storage).shards()
    flat = shard.open().flat("a")
    raw = flat.blob.ranges(flat.start, flat.start + 2 * flat.stride)
    assert [np.frombuffer(one, "<f4").tolist() for one in raw] == [[float(i)] * 6 for i in range(5)]
    assert shard.open().flat("zz") is None


def test_shards_of_a_bucket_pickle(uri, s3_bucket) -> None:
    shard = mds.scan(f"{uri}/raw", storage=s3_bucket.storage).shards()[1]
    again = pickle.loads(pickle.dumps(shard))
    assert again.key == shard.key
    assert again.open().sample(0)["a"] == shard.open().sample(0)["a"]


def test_an_object_of_another_size_is_refused(uri, s3_bucket) -> None:
    store = open_store(f"{uri}/raw", storage=s3_bucket.storage)
    store.put("shard.00000.mds", b"other")
    source = mds.scan(f"{uri}/raw", storage=s3_bucket.storage)
    with pytest.raises((ShardChangedError, CorruptFileError)):
        source[0]
    store.delete(["shard.00001.mds"])
    with pytest.raises((DatasetNotFoundError, FileNotFoundError)):
        source[59]


def test_equal_indexes_of_other_local_shards_have_other_keys(tmp_path: Path) -> None:
    keys = []
    for value in (1, 2):
        with sl.create(tmp_path / str(value), {"a": "int"}, format="mds") as writer:
            writer.write({"a": value})
        keys.append(mds.scan(str(tmp_path / str(value))).shards()[0].key)
    assert keys[0] != keys[1]

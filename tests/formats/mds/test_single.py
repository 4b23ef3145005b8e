"""Samples one by one: `ds[i]` and iterating give what reading many gives, and damage is told as there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, ShardChangedError
from seqlake.formats import mds


def written(folder, count=50, **options):
    columns = {
        "n": "int",
        "half": "float32",
        "text": "str",
        "x": "ndarray:int16:2,3",
        "raw": "bytes",
        "free": "ndarray",
    }
    rows = [
        {
            "n": n - 3,
            "half": np.float32(n / 2),
            "text": "é" * (n % 4),
            "x": np.full((2, 3), n, np.int16),
            "raw": b"\x00" * (n % 5),
            "free": np.arange(n % 3 + 1.0),
        }
        for n in range(count)
    ]
    with sl.create(folder, columns, format="mds", **{"size_limit": 1200, **options}) as writer:
        writer.write_all(rows)
    return rows


def same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert found[name] == value
            assert type(found[name]) is type(value)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_any_order_gives_what_was_written(tmp_path, compression):
    rows = written(tmp_path / "a", compression=compression)
    samples = mds.scan(str(tmp_path / "a"))
    for number in [3, 0, 49, 49, -1, -50, 17]:
        same(samples[number], rows[number])
    for number, sample in enumerate(samples):
        same(sample, rows[number])
    assert number == 49
    same(pickle.loads(pickle.dumps(samples))[np.int64(5)], rows[5])
    for number in (50, -51):
        with pytest.raises(IndexError, match="50"):
            samples[number]


def test_columns_of_fixed_size_alone(tmp_path):
    with sl.create(tmp_path / "a", {"b": "uint8", "a": "int"}, format="mds") as writer:
        writer.write_all({"a": n, "b": n} for n in range(9))
    samples = mds.scan(str(tmp_path / "a"))
    assert [sample["a"] for sample in samples] == list(range(9))
    assert samples[4] == {"a": 4, "b": np.uint8(4)}


@pytest.mark.parametrize(
    ("where", "what"), [("length", "lengths of its columns"), ("text", "text"), ("end", "lengths of its columns")]
)
def test_a_damaged_sample_says_where_and_others_are_read(tmp_path, where, what):
    with sl.create(tmp_path / "a", {"n": "int", "text": "str"}, format="mds") as writer:
        writer.write_all({"n": n, "text": "four"} for n in range(5))
    path = tmp_path / "a" / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    start, stop = np.frombuffer(data, "<u4", 2, 4 + 4 * 2).tolist()
    data[{"length": start, "text": stop - 2, "end": start + 3}[where]] = 0xFF
    path.write_bytes(data)
    samples = mds.scan(str(tmp_path / "a"))
    with pytest.raises(CorruptFileError, match=f"shard.00000.mds, sample 2.*{what}"):
        samples[2]
    assert [samples[n]["n"] for n in (0, 1, 3, 4)] == [0, 1, 3, 4]
    with pytest.raises(CorruptFileError, match="sample 2"):
        list(samples)


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path, monkeypatch):
    written(tmp_path / "a")
    samples = mds.scan(str(tmp_path / "a"))
    _ = samples[0]
    path = tmp_path / "a" / "shard.00000.mds"
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    other.replace(path)
    monkeypatch.setattr("seqlake.formats._streaming.scan._FRESH", 0)
    samples._due = 0
    with pytest.raises(ShardChangedError):
        samples[0]


def test_decompressed_shards_are_let_go_of(tmp_path, monkeypatch):
    rows = written(tmp_path / "a", compression="zstd")
    monkeypatch.setattr("seqlake.formats._streaming.scan._HELD", 2000)
    samples = mds.scan(str(tmp_path / "a"))
    for number in np.random.default_rng(0).permutation(50).tolist():
        same(samples[number], rows[number])
        assert sum(reader.held for reader in samples._open.values()) <= 3 * 1200

"""Valid Parquet that expands without end: refused or streamed, in bounded memory, wherever it is read."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.files.stores import MemoryBlob
from seqlake.shards import parquet
from seqlake.shards.parquet import expansion, reader

from ...formats.bounded import run  # noqa: TID252 - one tool for all hostile files
from . import by_hand

STREAMED = "a dictionary value in a thousand rows"
REFUSED = [name for name in by_hand.BOMBS if name != STREAMED]

WAYS = """
import tempfile
TOLD = "bytes of decoded cells"
import duckdb, pyarrow.dataset, pyarrow.fs
from seqlake.dataset.validation import validate

def converted():
    with tempfile.TemporaryDirectory() as out:
        return sl.convert(sl.scan(place), out + "/x")

WAYS = {
    "arrow": lambda: sl.scan(place).select("task").to_arrow(),
    "point": lambda: sl.scan(place)[0]["task"],
    "id": lambda: sl.scan(place).sequence("ep_0")["task"],
    "some": lambda: sl.scan(place).select("task")[::2].to_arrow(),
    "where": lambda: len(sl.scan(place).where("task IS NOT NULL")),
    "convert": converted,
    "validate": lambda: any(TOLD in one.message for one in validate(sl.scan(place), depth="rows").errors),
}
def sql():
    try:
        sl.scan(place).sql("SELECT max(task) FROM dataset").fetchall()
    except duckdb.Error as error:  # DuckDB's own, of a stream that ended with ours
        return TOLD in str(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("bombs")
    for name in by_hand.BOMBS:
        (home / f"{name}.parquet").write_bytes(by_hand.bomb(name))
    return home


def test_what_no_memory_holds_is_refused_by_every_way_in(folder):
    """A file of a few kilobytes in 600 MiB."""
    code = """
bound(600 << 20)
result = {}
for place in sys.argv[1:]:
    result[place] = {name: told(way) for name, way in WAYS.items()} | {"sql": told(sql)}
"""
    places = [str(folder / f"{name}.parquet") for name in REFUSED]
    found = run(WAYS + code, *places)
    assert found is not None
    for place, ends in found.items():
        for way, (kind, text, ours) in ends.items():
            assert ours, (place, way, kind, text)
            if way in {"validate", "sql"} and not kind:  # one whose rows are too many is not even opened
                assert (kind, text) == ("", "True"), (place, way, kind, text)
            else:
                assert kind == "CorruptFileError", (place, way, text)
                assert "bytes of decoded cells" in text
                assert "SEQLAKE_MAX_DECODED" in text


@pytest.mark.soak
def test_what_lies_in_a_bucket_is_refused_as_well(folder, s3_bucket):
    """Over the network nothing is mapped: the same answers, in the same memory."""
    from seqlake.files.stores import open_store

    store = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for name in REFUSED:
        store.put(f"{name}.parquet".replace(" ", "-"), (folder / f"{name}.parquet").read_bytes())
    code = """
storage = json.loads(sys.argv[1])
scan = sl.scan
sl.scan = lambda place: scan(place, storage=storage)
len(sl.scan(sys.argv[2]))  # what talks to the store is there before the bound
bound(600 << 20)
result = {}
for place in sys.argv[3:]:
    result[place] = {name: told(WAYS[name]) for name in ("arrow", "point", "some", "validate")}
"""
    store.put("fine.parquet", by_hand.parquet(3, by_hand.ids(3)))
    places = [f"{s3_bucket.uri}/{name}.parquet".replace(" ", "-") for name in REFUSED]
    ends_of = run(WAYS + code, json.dumps(s3_bucket.storage), f"{s3_bucket.uri}/fine.parquet", *places, timeout=120)
    assert ends_of is not None
    for place, ends in ends_of.items():
        for way, (kind, text, _) in ends.items():
            assert kind == "CorruptFileError" or (way, kind, text) == ("validate", "", "True"), (place, way, kind, text)


def test_what_is_read_piece_by_piece_takes_a_piece_of_memory(folder):
    """Fifty gigabytes in 15 kB: the first cells are had, all at once are not."""
    code = """
bound(900 << 20)
from itertools import islice
place = sys.argv[1]
result = {name: told(WAYS[name]) for name in ("point", "id")}
result["batches"] = told(lambda: [b.num_rows for b in islice(sl.scan(place).select("task").batches(), 3)])
result["arrow"] = told(WAYS["arrow"])
"""
    found = run(WAYS + code, str(folder / f"{STREAMED}.parquet"))
    assert found is not None
    assert [found[name][0] for name in ("point", "id")] == ["", ""]
    assert found["batches"] == ["", "[1, 1, 1]", True]
    kind, text, _ = found["arrow"]
    assert (kind, "memory that is free" in text) == ("DecodeError", True)
    assert "export SEQLAKE_MAX_DECODED=" in text


def test_the_limit_is_the_users(monkeypatch):
    data = by_hand.parquet(1, by_hand.ids(1), by_hand.unpacking(3_000_000))
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "1000000")
    with pytest.raises(CorruptFileError, match=r"2,999,\d+ bytes of decoded cells; the limit is 1,000,000") as told:
        read(data, "task")
    assert "export SEQLAKE_MAX_DECODED=3000000" in str(told.value)
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "3000000")
    assert read(data, "task").to_pylist() == ["\0" * 2_999_996]


def read(data, name, rows=None):
    return pa.Table.from_batches(parquet.open(MemoryBlob(data)).batches([name], rows=rows))[name]


@pytest.mark.sampled
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "lz4"])
def test_rows_of_all_sizes_come_back_in_pieces(codec, version, monkeypatch):
    """Honest data under a small limit: cut as bombs are, and read as pyarrow reads it."""
    rng = np.random.default_rng(3)
    counts = np.where(rng.random(400) < 0.03, 900, rng.integers(0, 4, 400))
    table = pa.table(
        {
            "text": [rng.choice(["a", "b" * 70, "c" * 3000]) for _ in counts],
            "texts": [["d" * 40, "e"] * (count // 20) for count in counts.tolist()],
            "steps": [None if count == 1 else [[1.0, 2.0]] * count for count in counts.tolist()],
            "small": [[7] * count for count in counts.tolist()],
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=codec, data_page_version=version, data_page_size=2000, write_batch_size=20)
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "60000")
    monkeypatch.setattr(expansion, "BATCH", 5000)
    monkeypatch.setattr(reader, "BATCH", 5000)
    data, rows = sink.getvalue(), rng.integers(0, len(counts), 150)
    for name in table.column_names:
        batches = list(parquet.open(MemoryBlob(data)).batches([name]))
        assert len(batches) > 1
        assert pa.Table.from_batches(batches)[name].to_pylist() == table[name].to_pylist()
        assert read(data, name, rows).to_pylist() == table[name].take(pa.array(rows)).to_pylist()


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_whose_lengths_come_first_are_read_in_pieces(encoding, monkeypatch):
    """What bounds a bomb of such pages leaves honest ones as pyarrow reads them."""
    rng = np.random.default_rng(5)
    texts = [f"{'shared/prefix/' * int(rng.integers(0, 40))}{number}" for number in range(500)]
    table = pa.table({"text": texts, "texts": [texts[:count] for count in rng.integers(0, 5, 500)]})
    sink = io.BytesIO()
    encodings = {"text": encoding, "texts.list.element": encoding}
    pq.write_table(table, sink, use_dictionary=False, column_encoding=encodings, data_page_size=4000)
    monkeypatch.setenv("SEQLAKE_MAX_DECODED", "2000000")
    monkeypatch.setattr(expansion, "BATCH", 20_000)
    monkeypatch.setattr(reader, "BATCH", 20_000)
    for name in table.column_names:
        assert read(sink.getvalue(), name).to_pylist() == table[name].to_pylist()


HOMES = {"standalone": "{}/ds", "delta": "delta:{}/ds", "iceberg": "iceberg:{}/w/robots.arm"}
HOMES["ducklake"] = "ducklake:sqlite:{}/m.db?table=arm"


@pytest.mark.parametrize("home", HOMES)
def test_tables_of_every_home_are_bounded(home, tmp_path):
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg", "ducklake": "duckdb"}.get(home, "numpy"))
    uri = HOMES[home].format(tmp_path)
    ds = sl.create(uri, sl.Schema({"sequence_id": pa.string(), "task": pa.string()}))
    noise = np.random.default_rng(0).bytes(4000).hex()
    ds.append([{"sequence_id": "ep_0", "task": noise}])
    (shard,) = tmp_path.rglob("part-*.parquet")
    fields = [int(f.metadata[b"PARQUET:field_id"]) for f in pq.read_schema(shard) if f.metadata]
    shard.write_bytes(by_hand.bomb("a header of two gigabytes", size=shard.stat().st_size, fields=fields))
    ds = sl.open(uri)
    for way in (ds.to_arrow, lambda: ds[0]["task"], lambda: next(iter(sl.Loader(ds, window=["task"], batch_size=1)))):
        with pytest.raises(SeqlakeError, match="would take 2,147,483,") as told:
            way()
        assert "SEQLAKE_MAX_DECODED" in str(told.value)

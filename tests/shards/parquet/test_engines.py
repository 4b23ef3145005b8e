"""Every engine reads our files, and what other engines write is read here: flat or not, the same cells."""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.files.stores import open_blob
from seqlake.shards import parquet
from seqlake.shards.parquet import building
from seqlake.spec.column_types import Embedding, Image, Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.shards import flat_is, identical

pytestmark = pytest.mark.engines

SCHEMA = Schema(
    {
        "task": pa.string(),
        "reward": pa.float32(),
        "when": pa.timestamp("us", "UTC"),
        "action": Trajectory(dim=3),
        "grip": Trajectory(dim=2, dtype=pa.int16()),
        "force": Trajectory(dim=1, dtype=pa.float64()),
        "speed": pa.list_(pa.float32()),
        "emb": Embedding(dim=4),
        "cam": Image(frames="bytes"),
        "raw": Trajectory(dim=2, encoding="raw"),
    }
)


def rows(count):
    random = np.random.default_rng(3)
    for i in range(count):
        steps = int(random.integers(1, 40)) if i % 6 else 0
        yield {
            "sequence_id": f"ep_{i:04}",
            "task": ["pick", "place", None][i % 3],
            "reward": float(i),
            "when": 1_700_000_000_000_000 + i,
            "action": None if i % 5 == 4 else random.random((steps, 3), np.float32).tolist(),
            "grip": random.integers(-300, 300, (steps, 2)).tolist(),
            "force": random.random((steps, 1)).tolist(),
            "speed": random.random(steps, np.float32).tolist(),
            "emb": random.random(4, np.float32).tolist(),
            "cam": [random.bytes(30) for _ in range(steps % 4)],
            "raw": random.random((steps, 2), np.float32).tolist(),
        }


@pytest.fixture(scope="module")
def table():
    return pa.Table.from_pylist(list(rows(200)), SCHEMA.arrow)


@pytest.fixture(params=[("training", False), ("training", True), ("archive", False), ("archive", True)], ids=str)
def path(request, table, tmp_path, monkeypatch):
    monkeypatch.setattr("seqlake.shards.parquet.layout.ROW_GROUP", 40_000)
    layout, fixed = request.param
    writer = parquet.create(tmp_path / "ours.parquet", SCHEMA, layout=layout, fixed_size_inner=fixed)
    for batch in table.to_batches(max_chunksize=17):
        writer.write(batch)
    writer.close()
    assert pq.read_metadata(tmp_path / "ours.parquet").num_row_groups > 2
    return tmp_path / "ours.parquet"


def raw_bytes(table):
    return [None if not c.is_valid else np.asarray(c.values.flatten()).tobytes() for c in table["raw"]]


def assert_same(found, table):
    """Rows of an engine equal the rows written, raw cells as bytes."""
    assert found["raw"].to_pylist() == raw_bytes(table)
    for name in table.column_names:
        if name != "raw":
            assert found[name].to_pylist() == table[name].to_pylist(), name


def test_pyarrow_reads_ours(path, table):
    assert_same(pq.read_table(path), table)


def test_duckdb_reads_ours(path, table):
    with duckdb.connect() as connection:
        assert_same(connection.sql(f"SELECT * FROM '{path}'").to_arrow_table(), table)


def test_polars_reads_ours(path, table):
    found = pl.read_parquet(path)
    assert_same({name: found[name].to_arrow() for name in found.columns}, table)


def test_engines_find_rows_by_id_and_bounds(path):
    """Statistics, page index and Bloom filter say the truth."""
    with duckdb.connect() as connection:
        sql = f"SELECT reward FROM '{path}' WHERE sequence_id = 'ep_0123'"
        assert connection.sql(sql).fetchall() == [(123.0,)]
        assert connection.sql(f"SELECT count(*) FROM '{path}' WHERE reward >= 150").fetchall() == [(50,)]
    assert pl.scan_parquet(path).filter(pl.col("sequence_id") == "ep_0007").collect()["reward"].to_list() == [7.0]
    assert pq.read_table(path, filters=[("sequence_id", "==", "ep_0199")])["reward"].to_pylist() == [199.0]


def test_list_extract_in_sql(path, table):
    sql = f"SELECT sequence_id, list_extract(action, 1)[1] FROM '{path}' WHERE len(action) > 10 ORDER BY 1"
    expected = [
        (row["sequence_id"], row["action"][0][0])
        for row in table.to_pylist()
        if row["action"] and len(row["action"]) > 10
    ]
    with duckdb.connect() as connection:
        assert connection.sql(sql).fetchall() == expected
    assert len(expected) > 20


def test_our_reader_shows_every_temporal_column_flat(path, table):
    reader = parquet.open(open_blob(path))
    truth = pq.read_table(path)
    training = reader.flat("action") is not None
    for name in ("action", "grip", "force", "speed", "emb", "raw"):
        flat = reader.flat(name)
        assert (flat is not None) is training
        assert flat is None or flat_is(flat, truth[name])
    assert (reader.flat("task"), reader.flat("cam")) == (None, None)
    assert_same(pa.Table.from_batches(reader.batches(table.column_names)), table)


def test_the_arrow_schema_in_the_file(tmp_path, table):
    for fixed, inner in ((False, pa.list_(pa.float32())), (True, pa.list_(pa.float32(), 3))):
        path = tmp_path / f"{fixed}.parquet"
        writer = parquet.create(path, SCHEMA, fixed_size_inner=fixed)
        writer.write(table.to_batches()[0])
        writer.close()
        stored = pq.read_schema(path).field("action").type.value_type
        assert stored.equals(inner)
        assert pa.types.is_fixed_size_list(stored) is fixed


# ---- files of theirs


def theirs_by_pyarrow(table, path):
    pq.write_table(table, path)


def theirs_plain(table, path):
    pq.write_table(table, path, use_dictionary=False, compression="none", data_page_version="2.0", row_group_size=50)


def theirs_by_duckdb(table, path):
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.sql(f"COPY t TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")


def theirs_by_duckdb_plain(table, path):
    with duckdb.connect() as connection:
        connection.register("t", table)
        options = "FORMAT parquet, COMPRESSION uncompressed, DICTIONARY_SIZE_LIMIT 1, PARQUET_VERSION v1"
        connection.sql(f"COPY t TO '{path}' ({options})")


def theirs_by_polars(table, path):
    pl.from_arrow(table).write_parquet(path)


def theirs_by_polars_plain(table, path):
    pl.from_arrow(table).write_parquet(path, compression="uncompressed", statistics=False)


@pytest.mark.parametrize(
    "write",
    [
        theirs_by_pyarrow,
        theirs_plain,
        theirs_by_duckdb,
        theirs_by_duckdb_plain,
        theirs_by_polars,
        theirs_by_polars_plain,
    ],
)
def test_files_of_theirs(tmp_path, table, write):
    path = tmp_path / "theirs.parquet"
    plain = table.drop_columns(["raw"])
    write(plain, path)
    truth = pq.read_table(path)
    blob = open_blob(path)
    reader = parquet.open(blob, index=building.build(blob))
    flats = {name: reader.flat(name) for name in truth.column_names}
    order = np.random.default_rng(0).permutation(truth.num_rows)
    for name in truth.column_names:
        found = pa.chunked_array([batch.column(0) for batch in reader.batches([name])])
        assert identical(found, truth[name])
        taken = pa.chunked_array([batch.column(0) for batch in reader.batches([name], rows=order)])
        assert identical(taken, truth[name].take(order))
        assert flats[name] is None or flat_is(flats[name], truth[name])
        assert found.to_pylist() == plain[name].to_pylist()
    if write is theirs_plain:
        assert all(flats[name] is not None for name in ("action", "grip", "force", "speed", "emb", "reward"))

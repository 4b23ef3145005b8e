"""DuckDB's Iceberg extension reads what we write, and we what it writes: merge-on-read deletes too.

Runs where the extension's wheel fits the DuckDB that is installed; it is never fetched from the net.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import seqlake as sl


def extension(name):
    """The path of a DuckDB extension that a wheel brought; None where there is none for this DuckDB."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = list(found.submodule_search_locations or []) if found else []
    path = Path(*folders[:1], "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")
    return path if path.exists() else None


pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(extension("iceberg") is None, reason="no Iceberg extension for this DuckDB is installed"),
]


@pytest.fixture
def duck():
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg", "httpfs"):  # in this order, or the second does not load
            connection.execute(f"LOAD '{extension(name)}'")
        yield connection


def by_id(found):
    return {row["sequence_id"]: row for row in found.to_pylist()}


def test_it_reads_equal_after_changes_and_back_in_time(duck, dataset, cells, theirs):
    dataset.rename_column("task", "label")
    dataset.add_column("steps", pa.int64(), sql="len(action)")
    dataset.drop_column("reward")
    dataset.delete(ids=["ep_008"])
    metadata = theirs().metadata_location.removeprefix("file://")
    assert by_id(duck.execute(f"SELECT * FROM iceberg_scan('{metadata}')").to_arrow_table()) == cells(dataset)
    old = dataset.versions()[2]
    query = f"SELECT * FROM iceberg_scan('{metadata}', snapshot_from_id=>{old.id}::UBIGINT)"
    assert by_id(duck.execute(query).to_arrow_table()) == cells(sl.open(dataset.location, version=old))


@pytest.fixture
def served(rest):
    """A dataset in a REST catalog that DuckDB is attached to as `lake`."""
    uri, _, _ = rest
    ds = sl.create("iceberg://cloud/rl.ep", {"task": pa.string(), "action": sl.Trajectory(dim=1)}, storage={"uri": uri})
    ds.append([{"sequence_id": f"s{n}", "task": "pick", "action": [[float(n)]] * n} for n in range(6)])
    return ds


def test_its_inserts_deletes_and_updates_are_read(duck, rest, served, cells):
    duck.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{rest[0]}', AUTHORIZATION_TYPE 'none')")
    duck.execute("INSERT INTO lake.rl.ep VALUES ('new', 'duck', [[3.0], [4.0]])")
    duck.execute("DELETE FROM lake.rl.ep WHERE sequence_id = 's2'")
    duck.execute("UPDATE lake.rl.ep SET task = 'place' WHERE sequence_id = 's3'")
    deletes = {file["content"] for file in rest[1].load_table("rl.ep").inspect.files().to_pylist()}
    assert 1 in deletes  # positions, as merge-on-read has them
    served.refresh()
    wanted = {f"s{n}": {"sequence_id": f"s{n}", "task": "pick", "action": [[float(n)]] * n} for n in (0, 1, 3, 4, 5)}
    wanted["s3"]["task"] = "place"
    wanted["new"] = {"sequence_id": "new", "task": "duck", "action": [[3.0], [4.0]]}
    assert cells(served) == wanted == by_id(duck.execute("SELECT * FROM lake.rl.ep").to_arrow_table())
    assert sorted(served.lengths("action").tolist()) == [0, 1, 2, 3, 4, 5]
    assert served.validate(depth="rows").ok
    sl.compact(served)
    assert cells(served) == wanted == by_id(duck.execute("SELECT * FROM lake.rl.ep").to_arrow_table())
    assert all(shard.open().flat("action") is not None for shard in served.source.shards())

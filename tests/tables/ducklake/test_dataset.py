"""A DuckLake table as a dataset: made, filled, queried, validated, trained on, partitioned."""

from __future__ import annotations

import pickle
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import DatasetExistsError, DatasetNotFoundError, SchemaMismatchError
from seqlake.tables import ducklake
from seqlake.testing import tables

SCHEMA = sl.Schema({"task": pa.string(), "reward": pa.float32(), "action": sl.Trajectory(dim=3, fps=10)})


@pytest.fixture
def location(tmp_path):
    return f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=robots.episodes"


def fill(dataset, count=12, start=0):
    with dataset.writer(rows_per_shard=4) as writer:
        for number in range(start, start + count):
            steps = np.full((number % 5 + 3, 3), number, np.float32)
            writer.add(f"ep_{number:03}", task=("pick", "place")[number % 2], reward=number / 2, action=steps)


def test_made_filled_opened_and_queried(location):
    fill(sl.create(location, SCHEMA))
    dataset = sl.open(location)
    assert len(dataset) == 12
    assert dataset.where("reward > 4").to_arrow().num_rows == 3
    assert dataset.sql("SELECT task, count(*) AS n FROM dataset GROUP BY task ORDER BY task").fetchall() == [
        ("pick", 6),
        ("place", 6),
    ]
    assert dataset["ep_007"]["action"].shape == (5, 3)
    assert dataset.validate(depth="files").ok
    assert float(sl.statistics(dataset, ["reward"])["reward"]["max"]) == 5.5
    with pytest.raises(DatasetExistsError):
        sl.create(location, SCHEMA)
    with pytest.raises(DatasetNotFoundError, match=r"robots\.episodes"):
        sl.open(location.replace("episodes", "nothing"))


def test_windows_are_those_of_the_same_rows_standalone(location, tmp_path):
    fill(sl.create(location, SCHEMA))
    fill(sl.create(tmp_path / "plain", SCHEMA))

    def batches(place):
        loader = sl.Loader(sl.open(place), window={"action": range(4)}, batch_size=8, shuffle=True, seed=3)
        return [{name: np.asarray(value).tolist() for name, value in batch.items()} for batch in loader]

    found = batches(location)
    assert found == batches(tmp_path / "plain")
    assert len(found) > 3


def test_loaders_stay_on_the_fast_path_after_deletes_and_renames(location):
    dataset = sl.create(location, SCHEMA)
    fill(dataset)
    dataset.rename_column("action", "command")
    dataset.delete("reward < 1")
    (first, *_) = sl.open(location).source.shards()
    assert first.open().flat("command") is not None
    loader = sl.Loader(sl.open(location), window={"command": range(2)}, batch_size=4)
    assert {one for batch in loader for one in batch["sequence_id"]} == {f"ep_{n:03}" for n in range(2, 12)}


def test_partitions_have_files_of_their_own_and_prune(location):
    fill(sl.create(location, SCHEMA, partition_by=["task"]), 8)
    dataset = sl.open(location)
    fill(dataset, 4, start=20)
    paths = [file.name for file in dataset.table.state().files]
    assert all("/task=pick/" in path or "/task=place/" in path for path in paths)
    assert len(dataset) == 12
    assert dataset.validate(depth="files").ok
    told = dataset.explain("SELECT count(*) FROM dataset WHERE task = 'pick' AND reward < 9")
    assert told.opened == 1
    assert dataset.sql("SELECT count(*) FROM dataset WHERE task = 'pick' AND reward < 9").fetchall() == [(4,)]
    with pytest.raises(SchemaMismatchError, match="scalar"):
        sl.create(location.replace("episodes", "others"), SCHEMA, partition_by=["action"])


@pytest.mark.engines
def test_duckdb_prunes_our_partitions_and_we_read_its_own(location, engine):
    fill(sl.create(location, SCHEMA, partition_by=["task"]), 8)
    lake = engine(location)
    lake.run("INSERT INTO robots.episodes SELECT 'x' || i, 'place', i, [[i, i, i]] FROM range(20) t(i)")
    lake.run("INSERT INTO robots.episodes SELECT 'y' || i, NULL, i, [[i, i, i]] FROM range(20) t(i)")
    dataset = sl.open(location)
    assert {row["sequence_id"]: row for row in dataset.to_arrow().to_pylist()} == lake.rows()
    found = lake.run("SELECT count(*) AS n FROM robots.episodes WHERE task = 'pick'")
    assert found == [{"n": 4}]
    (plan,) = lake.run("EXPLAIN ANALYZE SELECT count(*) FROM robots.episodes WHERE task = 'pick'")
    assert "Total Files Read: 1" in str(plan)
    lake.run("ALTER TABLE robots.episodes SET PARTITIONED BY (bucket(4, sequence_id))")
    with pytest.raises(SchemaMismatchError, match="bucket"):
        fill(sl.open(location), 1, start=99)


def test_a_snapshot_travels_with_its_bounds(location):
    fill(sl.create(location, SCHEMA))
    source = sl.open(location).source
    again = pickle.loads(pickle.dumps(source))
    assert again.bounds("reward") == source.bounds("reward") == [(0.0, 1.5), (2.0, 3.5), (4.0, 5.5)]
    assert again.lengths("action").tolist() == [number % 5 + 3 for number in range(12)]


def test_a_version_and_a_rollback(location):
    dataset = sl.create(location, SCHEMA)
    fill(dataset, 4)
    first = sl.open(location).versions()[-1]
    fill(sl.open(location), 4, start=4)
    sl.open(location).add_column("score", pa.float32(), sql="reward * 2")
    assert len(sl.open(location, version=first)) == 4
    assert len(sl.open(location, version=first.time)) == 4
    sl.open(location).table.rollback(first)
    dataset = sl.open(location)
    assert len(dataset) == 4
    assert dataset.where("score IS NULL").to_arrow().num_rows == 4
    assert dataset.table.vacuum(older_than=timedelta(0))
    assert len(sl.open(location)) == 4


def test_a_shard_that_was_adopted_is_another_name_for_it(location, tmp_path):
    """DuckLake owns what is registered, so what is adopted is a link or a copy, never the file itself."""
    table = ducklake.create(location, tables.SCHEMA)
    theirs = tmp_path / "theirs.parquet"
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("a")])
    theirs.hardlink_to(written.location)
    table.commit(tables.Change(operation="adopt", add=[written]), transaction=transaction)
    tables.append(table, ["b"], operation="rewrite", remove=tables.keys(table.snapshot()))
    table.vacuum(older_than=timedelta(0))
    assert theirs.exists()
    assert not list(tmp_path.rglob(f"{written.location.rpartition('/')[2]}*"))


HOMES = {"plain": "{}/plain", "ducklake": "ducklake:sqlite:{}/to.sqlite?table=episodes"}


@pytest.mark.parametrize(("source", "target"), [("ducklake", "plain"), ("plain", "ducklake"), ("ducklake", "ducklake")])
@pytest.mark.parametrize("adopt", [True, False])
def test_moved_between_homes(tmp_path, source, target, adopt):
    dataset = sl.create(HOMES[source].format(tmp_path / "from"), SCHEMA)
    fill(dataset, 6)
    out = sl.convert(sl.open(dataset.location), HOMES[target].format(tmp_path / "to"), adopt=adopt, workers=1)
    assert out.to_arrow().sort_by("sequence_id").equals(dataset.to_arrow().sort_by("sequence_id"))
    assert out.validate(depth="files").ok
    out.delete(ids=["ep_001"])
    out.vacuum(older_than=timedelta(0))
    assert len(sl.open(dataset.location)) == 6
    assert len(sl.open(out.location)) == 5


@pytest.mark.engines
def test_what_duckdb_left_is_compacted_into_our_layout(location, engine):
    fill(sl.create(location, SCHEMA), 6)
    lake = engine(location)
    lake.run("INSERT INTO robots.episodes SELECT 'x' || i, 'place', i, [[i, i, i]] FROM range(20) t(i)")
    lake.run("DELETE FROM robots.episodes WHERE sequence_id = 'ep_001'")
    lake.run("CALL lake.set_option('data_inlining_row_limit', 50, schema => 'robots', table_name => 'episodes')")
    lake.run("INSERT INTO robots.episodes VALUES ('held', 'pick', 1, [[1, 2, 3]])")
    before = lake.rows()
    dataset = sl.open(location)
    sl.compact(dataset)
    (shard,) = sl.open(location).source.shards()
    assert shard.rows == 26
    assert shard.open().flat("action") is not None
    assert {row["sequence_id"]: row for row in sl.open(location).to_arrow().to_pylist()} == lake.rows() == before
    lake.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    lake.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    sl.open(location).vacuum(older_than=timedelta(0))
    assert lake.rows() == before
    assert sl.open(location).validate(depth="files").ok

"""Versions: by snapshot, time, tag and branch; rollbacks of ours and of other clients; the property's own history."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import (
    CommitConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidMetadataError,
    VersionNotFoundError,
)


def ids(dataset):
    return dataset.to_arrow()["sequence_id"].to_pylist()


def test_versions_are_the_snapshots(dataset, theirs):
    versions = dataset.versions()
    assert [(v.operation, v.rows) for v in versions] == [("create", 0), ("append", 6), ("append", 10)]
    assert [v.id for v in versions] == [entry.snapshot_id for entry in theirs().history()]
    assert [len(sl.open(dataset.location, version=v)) for v in versions] == [0, 6, 10]
    assert [len(sl.open(dataset.location, version=v.time)) for v in versions] == [0, 6, 10]
    assert len(sl.open(dataset.location, version=versions[1].time + timedelta(milliseconds=1))) in {6, 10}
    assert len(sl.open(dataset.location, version=str(versions[1].id))) == 6


def test_tags_and_branches_are_versions(dataset, theirs, make_rows):
    first = dataset.versions()[1]
    theirs().manage_snapshots().create_tag(first.id, "v1").create_branch(first.id, "trial").commit()
    schema = theirs().scan().to_arrow().schema
    theirs().append(pa.Table.from_pylist(make_rows(30, 32), schema), branch="trial")
    assert len(sl.open(dataset.location, version="v1")) == 6
    assert ids(sl.open(dataset.location, version="trial"))[-2:] == ["ep_030", "ep_031"]
    assert ids(sl.open(dataset.location, version="main")) == ids(dataset)
    with pytest.raises(VersionNotFoundError, match="v1"):  # what there is instead
        sl.open(dataset.location, version="v2")


def test_a_rollback_is_a_snapshot_that_every_client_sees(dataset, theirs, cells, make_rows):
    first = dataset.versions()[1]
    dataset.rollback(first)
    assert [(v.operation, v.rows) for v in dataset.versions()][-1] == ("rollback", 6)
    assert cells(dataset) == cells(theirs().scan().to_arrow()) == {r["sequence_id"]: r for r in make_rows(0, 6)}
    dataset.append(make_rows(6, 7))
    assert dataset.lengths("action").tolist() == [-1, 1, 2, 3, 4, 5, 6]
    assert theirs().current_snapshot().summary["total-records"] == "7"


def test_a_rollback_by_pyiceberg_is_seen(dataset, theirs):
    first = dataset.versions()[1]
    theirs().manage_snapshots().rollback_to_snapshot(first.id).commit()
    dataset.refresh()
    assert len(dataset) == 6
    assert [(v.operation, v.rows) for v in dataset.versions()][-1] == ("rollback", 6)
    dataset.delete(ids=["ep_000"])
    assert len(dataset) == 5


def test_a_rollback_loses_to_a_commit_that_came_between(dataset, monkeypatch, make_rows):
    first, engine = dataset.versions()[1], dataset.table.engine
    base = engine.state()
    sl.open(dataset.location).append(make_rows(50, 51))
    monkeypatch.setattr(engine, "state", lambda version=None: base)
    with pytest.raises(CommitConflictError, match="meanwhile"):
        dataset.rollback(first)


def test_the_property_is_the_same_json_and_may_be_changed_by_any_client(dataset, theirs):
    text = theirs().properties["mixtrain"]
    assert json.loads(text) == {"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 2}}}
    changed = {**json.loads(text), "robot": "arm"}
    with theirs().transaction() as tx:
        tx.set_properties({"mixtrain": json.dumps(changed)})
    dataset.refresh()
    assert dataset.schema.metadata.extra == {"robot": "arm"}
    dataset.add_column("note", pa.string())
    assert json.loads(theirs().properties["mixtrain"])["robot"] == "arm"


def test_a_property_that_a_rival_changed_is_never_overwritten(dataset, theirs):
    """The lost update: what was read is not what is there any more when the commit is made."""
    from seqlake.protocols import Change

    schema = dataset.schema.with_columns({"note": pa.string()})
    transaction = dataset.table.begin()
    with theirs().transaction() as tx:
        tx.set_properties({"mixtrain": '{"mixtrain": "1.0", "theirs": true}'})
    with pytest.raises(CommitConflictError, match="metadata"):
        dataset.table.commit(Change(operation="evolve", schema=schema), transaction=transaction)
    assert json.loads(theirs().properties["mixtrain"])["theirs"] is True


def test_changes_of_the_property_by_four_writers_are_all_there(dataset, address):
    """Each adds keys of its own; a plain set of the property would keep about half of them."""
    from concurrent.futures import ThreadPoolExecutor

    def add(writer):
        mine = sl.open(address)
        left = [f"note_{writer}_{number}" for number in range(4)]
        while left:
            with suppress(CommitConflictError):  # rivals were faster ten times: told, and nothing was lost
                mine.add_column(left[-1], sl.Trajectory(dim=writer + 1))
                left.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    dataset.refresh()
    wanted = {f"note_{writer}_{number}" for writer in range(4) for number in range(4)}
    assert wanted <= dataset.schema.metadata.column_types.keys()
    assert wanted <= set(dataset.schema.names)


def test_a_table_without_the_property_says_what_to_do(theirs, dataset, address):
    with theirs().transaction() as tx:
        tx.remove_properties("mixtrain")
    with pytest.raises(DatasetNotFoundError, match="no property 'mixtrain'"):
        sl.open(address)
    with pytest.raises(DatasetExistsError):
        sl.create(address, {"task": pa.string()})
    with theirs().transaction() as tx:
        tx.set_properties({"mixtrain": "{}"})
    with pytest.raises(InvalidMetadataError, match="property 'mixtrain'"):
        len(sl.open(address).schema)


def test_a_table_that_pyiceberg_made_is_a_dataset_once_it_has_the_property(tmp_path, make_rows, cells):
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lab", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("rl")
    kind = pa.list_(pa.list_(pa.float32()))
    arrow = pa.schema([("sequence_id", pa.string()), ("task", pa.string()), ("reward", pa.float32()), ("action", kind)])
    text = '{"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 2}}}'
    table = catalog.create_table("rl.ep", arrow, properties={"mixtrain": text})
    empty = sl.open(table)
    assert (len(empty), empty.versions()) == (0, [])
    table.append(pa.Table.from_pylist(make_rows(0, 5), arrow))
    ds = sl.open(table)
    ds.append(make_rows(5, 8))
    assert cells(ds) == {r["sequence_id"]: r for r in make_rows(0, 8)} == cells(table.refresh().scan().to_arrow())
    assert ds["ep_003"]["action"].shape == (3, 2)
    assert ds.validate().ok

"""Columns that come, go, change their names and widen, without a shard being rewritten."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.errors import CommitConflictError, SchemaMismatchError, VersionNotFoundError
from seqlake.protocols import Change, Side
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Schema
from seqlake.tables import standalone
from seqlake.testing import oracle, tables


@pytest.fixture
def table(tmp_path):
    made = standalone.create(tmp_path / "t", tables.SCHEMA)
    tables.append(made, ["a", "b"])
    return made


def evolve(table, schema, *, renamed=None, transaction=None):
    transaction = transaction or table.begin()
    return table.commit(Change(operation="evolve", schema=schema, renamed=renamed or {}), transaction=transaction)


def column(table, name, **where):
    return {one: row[name] for one, row in tables.rows_of(table.snapshot(**where)).items()}


def label(table, values, *, operation="upsert", schema=None, name="split"):
    """Put a column beside every shard."""
    snapshot = table.snapshot()
    transaction = table.begin(snapshot.version)
    sides = []
    for number, shard in enumerate(snapshot.shards()):
        ids = [row["sequence_id"] for row in tables.rows_of_shard(shard, ["sequence_id"])]
        path = table.place_side(transaction, n=str(number))
        pq.write_table(pa.table({name: pa.array([values[one] for one in ids], pa.string())}), path)
        sides.append(Side(location=path, shard=shard.key, columns=[name], nbytes=Path(path).stat().st_size))
    return table.commit(Change(operation=operation, side=sides, schema=schema), transaction=transaction)


def test_a_rename_keeps_the_values(table):
    evolve(table, table.snapshot().schema.renamed({"reward": "score"}), renamed={"reward": "score"})
    tables.append(table, ["c"])
    assert column(table, "score") == {"a": 97.0, "b": 98.0, "c": None}
    assert "reward" not in table.snapshot().schema


def test_two_columns_may_swap_their_names(table):
    schema = table.snapshot().schema.with_columns({"other": pa.float32()})
    evolve(table, schema)
    swapped = schema.renamed({"reward": "other", "other": "reward"})
    evolve(table, swapped, renamed={"reward": "other", "other": "reward"})
    assert column(table, "other") == {"a": 97.0, "b": 98.0}
    assert column(table, "reward") == {"a": None, "b": None}


def test_a_later_column_of_an_old_name_does_not_find_old_values(table):
    schema = table.snapshot().schema
    evolve(table, schema.without(["reward"]))
    evolve(table, schema.without(["reward"]).with_columns({"reward": pa.float32()}))
    assert column(table, "reward") == {"a": None, "b": None}
    evolve(table, table.snapshot().schema.renamed({"label": "text"}), renamed={"label": "text"})
    evolve(table, table.snapshot().schema.with_columns({"label": pa.string()}))
    assert column(table, "label") == {"a": None, "b": None}
    assert column(table, "text") == {"a": "label of a", "b": "label of b"}


def test_a_wider_type_is_cast(table):
    schema = table.snapshot().schema.with_columns({"reward": pa.float64()})
    evolve(table, schema)
    assert table.snapshot().schema["reward"].arrow == pa.float64()
    assert column(table, "reward") == {"a": 97.0, "b": 98.0}


def test_old_versions_keep_their_columns(table):
    before = table.snapshot()
    evolve(table, before.schema.without(["label"]))
    again = table.snapshot(before.version)
    assert again.schema.arrow == before.schema.arrow
    assert tables.rows_of(again) == tables.expected(["a", "b"])
    assert again.fingerprint == before.fingerprint != table.snapshot().fingerprint


def test_a_shard_staged_before_a_rename_is_mapped_when_it_lands(table):
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("d")])
    rival = standalone.open(table.root)
    evolve(rival, rival.snapshot().schema.renamed({"label": "text"}), renamed={"label": "text"})
    evolve(rival, rival.snapshot().schema.without(["reward"]))
    table.commit(Change(operation="append", add=[written]), transaction=transaction)
    assert column(table, "text") == {"a": "label of a", "b": "label of b", "d": "label of d"}
    evolve(rival, rival.snapshot().schema.with_columns({"reward": pa.float32()}))
    assert column(table, "reward") == {"a": None, "b": None, "d": None}
    oracle.check(table.store, oracle.Expected())


def test_two_changes_of_the_schema_are_replayed(table):
    schema = table.snapshot().schema
    transaction = table.begin()
    evolve(standalone.open(table.root), schema.with_columns({"one": pa.int64()}))
    with pytest.raises(CommitConflictError, match="schema") as caught:
        evolve(table, schema.with_columns({"two": pa.int64()}), transaction=transaction)
    assert caught.value.replay
    evolve(table, table.snapshot().schema.with_columns({"two": pa.int64()}))
    assert {"one", "two"} <= set(table.snapshot().schema)


def test_a_rename_of_nothing_is_refused(table):
    with pytest.raises(SchemaMismatchError, match="nothing"):
        evolve(table, table.snapshot().schema, renamed={"nothing": "reward"})
    assert len(table.versions()) == 2


def test_metadata_alone_may_change(table):
    schema = table.snapshot().schema
    metadata = Metadata(column_types=schema.metadata.column_types, extra={"licence": "CC0"})
    changed = Schema({name: schema[name] for name in schema}, metadata=metadata)
    table.commit(Change(operation="metadata", schema=changed), transaction=table.begin())
    assert standalone.open(table.root).snapshot().schema.metadata.extra == {"licence": "CC0"}
    assert "CC0" in Path(table.root, "mixtrain.json").read_text()
    record = oracle.Disk(table.store).records[-1]
    assert "schema" not in record
    assert record["mixtrain"]["licence"] == "CC0"


# ---- columns beside shards
def test_a_side_shard_adds_a_column_and_rewrites_none(table):
    before = tables.keys(table.snapshot())
    inodes = {path.name: path.stat().st_ino for path in Path(table.root, "data").iterdir()}
    schema = table.snapshot().schema.with_columns({"split": pa.string()})
    label(table, {"a": "train", "b": "test"}, schema=schema)
    assert column(table, "split") == {"a": "train", "b": "test"}
    assert {path.name: path.stat().st_ino for path in Path(table.root, "data").iterdir()} == inodes
    assert tables.keys(table.snapshot()) != before  # other values, other key
    tables.append(table, ["c"])
    assert column(table, "split") == {"a": "train", "b": "test", "c": None}
    (shard, _) = table.snapshot().shards()
    assert shard.open().flat("action") is not None
    assert table.snapshot().arrow_dataset() is None


def test_a_later_side_replaces_an_earlier_one(table):
    schema = table.snapshot().schema.with_columns({"split": pa.string()})
    first = label(table, {"a": "train", "b": "test"}, schema=schema)
    label(table, {"a": "val", "b": "val"})
    assert column(table, "split") == {"a": "val", "b": "val"}
    assert {one: row["split"] for one, row in tables.rows_of(table.snapshot(first)).items()} == {
        "a": "train",
        "b": "test",
    }
    evolve(table, table.snapshot().schema.renamed({"split": "part"}), renamed={"split": "part"})
    assert column(table, "part") == {"a": "val", "b": "val"}
    oracle.check(table.store, oracle.Expected())
    assert len(list(Path(table.root, "_seqlake/side").iterdir())) == 1


def test_a_side_follows_its_shard_through_a_rollback(table):
    schema = table.snapshot().schema.with_columns({"split": pa.string()})
    labelled = label(table, {"a": "train", "b": "test"}, schema=schema)
    evolve(
        table,
        table.snapshot().schema.renamed({"split": "part", "label": "text"}),
        renamed={"split": "part", "label": "text"},
    )
    renamed = table.snapshot().version
    tables.append(table, ["x"], operation="rewrite", remove=tables.keys(table.snapshot()))
    table.rollback(labelled)
    assert column(table, "split") == {"a": "train", "b": "test"}
    assert column(table, "label") == {"a": "label of a", "b": "label of b"}
    table.rollback(renamed)
    assert column(table, "part") == {"a": "train", "b": "test"}
    assert column(table, "text") == {"a": "label of a", "b": "label of b"}
    oracle.check(table.store, oracle.Expected())
    assert column(table, "part") == {"a": "train", "b": "test"}


def test_a_rollback_across_a_dropped_name_finds_the_old_values(table):
    before = table.snapshot()
    schema = before.schema
    evolve(table, schema.without(["reward"]))
    evolve(table, schema.without(["reward"]).with_columns({"reward": pa.float32()}))
    table.rollback(before.version)
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b"])


def test_a_side_of_a_shard_that_is_gone_is_a_conflict(table):
    snapshot = table.snapshot()
    transaction = table.begin(snapshot.version)
    path = table.place_side(transaction, n="0")
    pq.write_table(pa.table({"split": ["x", "y"]}), path)
    side = Side(location=path, shard=tables.keys(snapshot)[0], columns=["split"], nbytes=1)
    tables.append(standalone.open(table.root), ["a"], operation="delete", remove=tables.keys(snapshot))
    with pytest.raises(CommitConflictError, match="replaced or removed"):
        table.commit(Change(operation="upsert", side=[side]), transaction=transaction)
    assert not Path(path).exists()


# ---- checkpoints and time
def test_checkpoints_give_the_same_versions(table, monkeypatch):
    from seqlake.tables.standalone import checkpoints

    monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", 3)
    schema = table.snapshot().schema.with_columns({"split": pa.string()})
    label(table, {"a": "train", "b": "test"}, schema=schema)
    evolve(table, table.snapshot().schema.renamed({"split": "part"}), renamed={"split": "part"})
    for number in range(9):
        tables.append(table, [f"n{number}"])
    rows = {version.id: tables.rows_of(table.snapshot(version)) for version in table.versions()}
    folder = Path(table.root, "_seqlake/checkpoints")
    assert len(list(folder.glob("*.arrow"))) >= 3
    again = standalone.open(table.root)
    assert {version.id: tables.rows_of(again.snapshot(version)) for version in again.versions()} == rows
    assert list(table.snapshot().check("rows")) == []
    # A hint is read once: at opening, and the log from there on.
    opened = standalone.open(table.root)
    (folder / "last").write_text("3")
    assert tables.rows_of(opened.snapshot()) == rows[table.snapshot().version.id]
    for number in range(9, 13):
        tables.append(table, [f"n{number}"])
    rows = {version.id: tables.rows_of(table.snapshot(version)) for version in table.versions()}
    assert tables.rows_of(opened.snapshot()) == rows[table.snapshot().version.id]
    # Without them, with a hint that leads nowhere, and with a torn one, all is as before.
    (folder / "last").write_text("777")
    newest = max(folder.glob("*.arrow"))
    newest.write_bytes(newest.read_bytes()[:100])
    assert tables.rows_of(standalone.open(table.root).snapshot()) == rows[table.snapshot().version.id]
    assert {finding.code for finding in table.snapshot().check("rows")} == {"T508"}
    for path in folder.iterdir():
        path.unlink()
    for path in Path(table.root, "_seqlake/index").iterdir():
        path.unlink()
    bare = standalone.open(table.root)
    assert tables.rows_of(bare.snapshot()) == rows[table.snapshot().version.id]
    assert bare.snapshot().find_ids(["a", "n8", "nobody"]).tolist() == [0, 10, -1]
    assert bare.snapshot().lengths("action").tolist() == table.snapshot().lengths("action").tolist()
    tables.append(bare, ["after"])
    with pytest.raises(tables.DuplicateSequenceError):
        tables.append(bare, ["n3"])


def test_an_expired_version_is_named(table):
    from datetime import timedelta

    first = table.snapshot().version
    pinned = table.snapshot()
    tables.append(table, ["z"], operation="rewrite", remove=tables.keys(pinned))
    table.vacuum(older_than=timedelta(0))
    with pytest.raises(VersionNotFoundError, match="from 2 to 3"):
        table.snapshot(first)
    with pytest.raises(VersionNotFoundError):
        oracle.read_ids(pinned)
    with pytest.raises(VersionNotFoundError):
        table.rollback(first)
    assert list(table.snapshot().check("rows")) == []


def test_a_version_that_expires_while_it_is_rolled_back_to_is_named(table, monkeypatch):
    from datetime import timedelta

    from seqlake.tables.standalone import committing

    tables.append(table, ["z"], operation="rewrite", remove=tables.keys(table.snapshot()))
    real, done = committing._create, []

    def create(log, record):
        if not done:
            done.append(True)
            # Long transactions are not given up, but the version is.
            standalone.open(table.root).vacuum(older_than=timedelta(seconds=-1))
        return real(log, record)

    monkeypatch.setattr(committing, "_create", create)
    with pytest.raises((VersionNotFoundError, CommitConflictError)):
        table.rollback(1)
    assert tables.rows_of(table.snapshot()) == tables.expected(["z"])
    oracle.check(table.store, oracle.Expected())


def test_a_side_shard_that_is_gone_is_damage(table):
    from seqlake.errors import DamagedTableError

    label(table, {"a": "x", "b": "y"}, schema=table.snapshot().schema.with_columns({"split": pa.string()}))
    next(Path(table.root, "_seqlake/side").iterdir()).unlink()
    assert [finding.code for finding in table.snapshot().check("rows")] == ["T501"]
    with pytest.raises(DamagedTableError, match="side-"):
        column(standalone.open(table.root), "split")

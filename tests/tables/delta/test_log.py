"""What others write into the log: paths in other letters, commits without words, versions that come meanwhile."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import DamagedTableError, UnsupportedVersionError
from seqlake.tables import delta
from seqlake.tables.delta import listing, retention
from seqlake.tables.delta.log import DeltaLog
from seqlake.testing import tables

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def table(tmp_path):
    return delta.create(str(tmp_path / "t"), tables.SCHEMA)


def commit_file(root, number):
    return Path(root, "_delta_log", f"{number:020d}.json")


def actions_of(root, number):
    return [json.loads(line) for line in commit_file(root, number).read_text().splitlines()]


def write(root, number, actions):
    commit_file(root, number).write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_files_of_a_commit_that_comes_while_collecting_stay(table):
    tables.append(table, ["a"])

    def meanwhile(number):
        tables.append(table, ["b"])
        return table.engine.state(number)

    expired = retention.expire(table.engine.log, datetime.now(UTC), dry_run=False, state=meanwhile)
    assert not expired.removed
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b"])


def test_a_version_that_tells_no_time_does_not_make_the_others_old(table):
    tables.append(table, ["a"])
    tables.append(table, ["b"])
    (add,) = [action["add"] for action in actions_of(table.root, 1) if "add" in action]
    write(table.root, 3, [{"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}}])
    assert not [path for path in table.vacuum(older_than=timedelta(days=1)) if path.endswith(".parquet")]
    assert tables.rows_of(table.snapshot(2)) == tables.expected(["a", "b"])
    assert tables.rows_of(table.snapshot(3)) == tables.expected(["b"])


def test_where_only_a_checkpoint_is_left_nothing_expires(table):
    tables.append(table, ["a"])
    deltalake.DeltaTable(table.root).create_checkpoint()
    for number in range(2):
        commit_file(table.root, number).unlink()
    again = delta.open(table.root)
    assert not [path for path in again.vacuum(older_than=timedelta(0)) if path.endswith(".parquet")]
    assert tables.rows_of(again.snapshot()) == tables.expected(["a"])


def test_a_file_whose_path_is_encoded_otherwise_leaves_when_it_is_rewritten(tmp_path):
    root = str(tmp_path / "t")
    ds = sl.create(f"delta:{root}", {"action": sl.Trajectory(dim=2)})
    for number in (1, 2):
        ds.append([{"sequence_id": f"ep_{number}", "action": np.ones((number, 2), np.float32)}])
        actions = actions_of(root, number)
        for action in actions:
            if "add" in action:
                action["add"]["path"] = action["add"]["path"].replace("-", "%2D")
        write(root, number, actions)
    ds = sl.open(root)
    sl.compact(ds)
    assert sorted(one.id for one in sl.open(root)) == ["ep_1", "ep_2"]
    assert deltalake.DeltaTable(root).to_pyarrow_table().num_rows == 2
    removed = {action["remove"]["path"] for action in actions_of(root, 3) if "remove" in action}
    assert len(removed) == 2
    assert all("%2D" in path and Path(root, unquote(path)).exists() for path in removed)


def test_a_commit_that_stands_is_no_failure_when_the_store_then_fails(table, monkeypatch):
    create, version = DeltaLog.create, DeltaLog.version
    failing = []

    def created(self, number, lines, /, *, transaction):
        create(self, number, lines, transaction=transaction)
        failing.append(number)

    def fails_once(self, number, /):
        if failing:
            failing.clear()
            raise ConnectionError("the store is away")
        return version(self, number)

    engine = table.engine
    proposals = []
    real = type(engine).commit

    def kept(self, proposal, /):
        proposals.append(proposal)
        made = real(self, proposal)
        failing.clear()
        return made

    monkeypatch.setattr(DeltaLog, "create", created)
    monkeypatch.setattr(DeltaLog, "version", fails_once)
    monkeypatch.setattr(type(engine), "commit", kept)
    tables.append(table, ["a"])
    assert len(proposals) == 1
    assert tables.rows_of(table.snapshot()) == tables.expected(["a"])


def test_structs_with_other_names_inside_the_files_are_refused(tmp_path):
    root = str(tmp_path / "t")
    schema = pa.schema([("sequence_id", pa.string()), ("pose", pa.list_(pa.struct([("x", pa.float32())])))])
    deltalake.DeltaTable.create(root, schema=schema, configuration={"delta.columnMapping.mode": "name"})
    with pytest.raises(UnsupportedVersionError, match="inside pose"):
        sl.open(root)


def test_a_deletion_vector_of_no_file_is_damage(table, monkeypatch):
    tables.append(table, ["a"])
    monkeypatch.setattr(listing, "deleted_rows", lambda _: {"data/elsewhere.parquet": np.array([0])})
    with pytest.raises(DamagedTableError, match=r"elsewhere\.parquet"):
        table.state()

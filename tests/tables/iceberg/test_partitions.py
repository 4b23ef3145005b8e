"""Tables in partitions, hidden transforms among them: pyiceberg finds what is asked for, and nothing else is opened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CommitConflictError, SchemaMismatchError

pytest.importorskip("pyiceberg_core")

COLUMNS = {
    "split": pa.string(),
    "made": pa.timestamp("us", "UTC"),
    "count": pa.int64(),
    "action": sl.Trajectory(dim=1),
}
START = datetime(2026, 1, 1, 22, tzinfo=UTC)


def rows(count):
    return [
        {
            "sequence_id": f"s{n:03d}",
            "split": None if n == 7 else ("train", "test")[n % 2],
            "made": START + timedelta(hours=n),
            "count": n,
            "action": [[float(n)]] * n,
        }
        for n in range(count)
    ]


def listed(theirs):
    return theirs().inspect.files().to_pylist()


@pytest.mark.parametrize(
    ("by", "partitions"),
    [
        (["split"], 3),
        (["day(made)"], 2),
        (["bucket(4, sequence_id)"], 4),
        (["truncate(5, count)"], 3),
        (["split", "hour(made)"], 12),
    ],
)
def test_each_partition_has_shards_of_its_own(by, partitions, address, theirs, cells):
    ds = sl.create(address, COLUMNS, partition_by=by)
    ds.append(rows(12))
    files = listed(theirs)
    assert len({str(file["partition"]) for file in files}) == len(files) == partitions
    assert cells(ds) == {row["sequence_id"]: row for row in rows(12)} == cells(theirs().scan().to_arrow())
    # What pyiceberg expects in a partition is what lies there: it finds each row by each of its cells.
    for row in rows(12)[::3]:
        for condition in (f"sequence_id == '{row['sequence_id']}'", f"count == {row['count']}"):
            assert theirs().scan(row_filter=condition).to_arrow()["sequence_id"].to_pylist() == [row["sequence_id"]]
    assert list(theirs().scan(row_filter="count == 100").plan_files()) == []  # no shard has it by its bounds


def test_hidden_partitions_are_pruned_by_other_clients(address, theirs):
    ds = sl.create(address, COLUMNS, partition_by=["day(made)"])
    ds.append(rows(12))
    assert len(list(theirs().scan(row_filter="made < '2026-01-02T00:00:00+00:00'").plan_files())) == 1


def test_only_shards_that_may_match_are_opened(address):
    ds = sl.create(address, COLUMNS, partition_by=["split"])
    ds.append(rows(12))
    told = ds.where("split = 'test'").explain()
    assert (told.shards, told.opened) == (3, 1)
    told = ds.where("count > 10 and split = 'train'").explain()
    assert told.rows == 0


def test_changes_stay_in_their_partitions(address, theirs, cells):
    ds = sl.create(address, COLUMNS, partition_by=["split"])
    ds.append(rows(12))
    ds.update([{"sequence_id": "s000", "split": "test"}])
    ds.upsert([{"sequence_id": "s001", "count": 100}, {"sequence_id": "new", "split": "new", "count": 1}])
    ds.delete("count = 2")
    wanted = {row["sequence_id"]: row for row in rows(12) if row["count"] != 2}
    wanted["s000"]["split"] = "test"
    wanted["s001"]["count"] = 100
    wanted["new"] = {"sequence_id": "new", "split": "new", "made": None, "count": 1, "action": None}
    assert cells(ds) == wanted == cells(theirs().scan().to_arrow())
    for file in listed(theirs):
        found = theirs().scan(row_filter=f"split == '{file['partition']['split']}'").to_arrow()
        assert file["partition"]["split"] is None or found.num_rows == sum(
            one["record_count"] for one in listed(theirs) if one["partition"] == file["partition"]
        )


def test_a_table_whose_partitions_another_client_changed(address, theirs, cells):
    from pyiceberg.transforms import BucketTransform

    ds = sl.create(address, COLUMNS)
    ds.append(rows(6))
    with theirs().update_spec() as update:
        update.add_identity("split")
        update.add_field("sequence_id", BucketTransform(2), "half")
    ds = sl.open(address)
    ds.append(rows(12)[6:])
    assert cells(ds) == {row["sequence_id"]: row for row in rows(12)} == cells(theirs().scan().to_arrow())
    assert {len(file["partition"]) for file in listed(theirs)} == {2}


@pytest.mark.parametrize(
    ("by", "message"),
    [("nothing", "partition_by names"), ("day(count)", "cannot be partitioned"), ("action", "cannot be partitioned")],
)
def test_what_cannot_be_a_partition_is_refused(by, message, address):
    with pytest.raises(SchemaMismatchError, match=message):
        sl.create(address, COLUMNS, partition_by=[by])
    with pytest.raises(ValueError, match="bucket\\(N, column\\)"):
        sl.create(address, COLUMNS, partition_by=["week(made)"])


def test_a_column_that_partitions_need_stays_and_may_be_renamed(address, theirs, cells):
    ds = sl.create(address, COLUMNS, partition_by=["split"])
    ds.append(rows(4))
    before = ds.version
    with pytest.raises(SchemaMismatchError, match="partition"):
        ds.drop_column("split")
    assert ds.refresh() == before
    ds.rename_column("split", "part")
    ds.append([{"sequence_id": "new", "part": "train"}])
    assert cells(ds) == cells(theirs().scan().to_arrow())
    assert len(listed(theirs)) == 3


def test_rows_written_for_other_partitions_are_not_committed(address, theirs):
    from pyiceberg.transforms import IdentityTransform

    ds = sl.create(address, COLUMNS)
    writer = ds.writer()
    writer.add_batch(rows(4))
    with theirs().update_spec() as update:
        update.add_field("split", IdentityTransform(), "split")
    with pytest.raises(CommitConflictError, match="partitioned by nothing, and .* it is by split"):
        writer.commit()
    ds.append(rows(4))
    assert {one["partition"]["split"] for one in listed(theirs)} == {"train", "test"}

"""Columns come and go by field id: pyiceberg and seqlake show the same cells after every change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import CommitConflictError, SchemaMismatchError
from seqlake.tables.iceberg.files import naming
from seqlake.tables.iceberg.listing import Manifests, live_files


def same(dataset, theirs, cells):
    assert cells(sl.open(dataset.location)) == cells(theirs().scan().to_arrow())


def test_a_table_of_ours_reads_equal_in_pyiceberg(dataset, theirs, cells, make_rows):
    same(dataset, theirs, cells)
    assert cells(dataset) == {row["sequence_id"]: row for row in make_rows(0, 10)}


def test_renamed_dropped_and_used_again(dataset, theirs, cells):
    before = cells(dataset)
    dataset.rename_column("task", "label")
    dataset.rename_column("action", "act")
    dataset.drop_column("reward")
    dataset.add_column("reward", pa.float64())
    same(dataset, theirs, cells)
    after = cells(dataset)
    assert [row["label"] for row in after.values()] == [row["task"] for row in before.values()]
    assert [row["act"] for row in after.values()] == [row["action"] for row in before.values()]
    assert {row["reward"] for row in after.values()} == {None}
    dataset.drop_column("label")
    dataset.rename_column("act", "label")
    same(dataset, theirs, cells)
    assert dataset.lengths("label").tolist() == [-1, 1, 2, 3, 4, 5, 6, -1, 8, 9]


def test_a_name_used_again_has_lengths_of_its_own(dataset):
    dataset.drop_column("action")
    dataset.add_column("action", sl.Trajectory(dim=2))
    dataset.append([{"sequence_id": "new", "action": [[1.0, 2.0]]}])
    assert dataset.lengths("action").tolist() == [-1] * 10 + [1]
    assert sl.open(dataset.location).lengths("action").tolist() == [-1] * 10 + [1]


def test_numbers_grow_wider_inside_lists_too(dataset, theirs, cells):
    dataset.widen_column("reward", pa.float64())
    dataset.widen_column("action", pa.float64())
    same(dataset, theirs, cells)
    assert dataset.schema["action"].value_type == pa.float64()
    assert str(theirs().schema().find_type("action")) == "list<list<double>>"
    dataset.append([{"sequence_id": "new", "reward": 1e300, "action": [[1e-300, 2.0]]}])
    same(dataset, theirs, cells)
    # Bounds of shards from before were written in fewer bytes.
    assert dataset.where("reward > 4").to_arrow()["sequence_id"].to_pylist() == ["ep_009", "new"]
    assert theirs().scan(row_filter="reward > 4").to_arrow().num_rows == 2


def test_what_iceberg_cannot_widen_is_refused(dataset):
    dataset.add_column("count", pa.int32())
    with pytest.raises(SchemaMismatchError, match="cannot make double of int"):
        dataset.widen_column("count", pa.float64())
    assert dataset.schema["count"].arrow == pa.int32()


def test_a_column_with_values_is_numbered_as_the_table_numbers_it(dataset, theirs, cells):
    dataset.add_column("steps", pa.int64(), sql="len(action)")
    same(dataset, theirs, cells)
    ids = {field.name: field.field_id for field in theirs().schema().fields}
    for file in theirs().inspect.files()["file_path"].to_pylist():
        found = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in pq.read_schema(file.removeprefix("file://"))}
        assert found == ids


def test_shards_numbered_before_a_rivals_column_are_refused(dataset, address):
    """Both add a column at once: the one who is late has numbered it as the other's."""
    from seqlake.protocols import Change
    from seqlake.shards import parquet
    from seqlake.testing import tables

    late = sl.open(address)
    schema = late.schema.with_columns({"mine": pa.int64()})
    transaction = late.table.begin()
    writer = parquet.create(late.table.place(transaction, n="0"), schema, ids=late.table.field_ids(schema))
    writer.write(tables.batch([{"sequence_id": "late", "mine": 7}], schema))
    with theirs_update(dataset) as update:
        update.add_column("yours", "string_type")
    with pytest.raises(CommitConflictError) as caught:
        late.table.commit(Change(operation="evolve", add=[writer.close()], schema=schema), transaction=transaction)
    assert caught.value.replay


def theirs_update(dataset):
    from pyiceberg.types import StringType

    class Update:
        def __enter__(self):
            self.made = dataset.table.engine.load().update_schema()
            return self

        def add_column(self, name, _):
            self.made.add_column(name, StringType())

        def __exit__(self, *_):
            self.made.commit()

    return Update()


def test_files_without_ids_are_read_by_the_names_they_had(dataset, theirs, cells):
    """`add_files` of Parquet that any writer made; then its columns are renamed, dropped and their names used again."""
    plain = pa.schema(
        [
            pa.field("sequence_id", pa.string(), nullable=False),
            ("task", pa.string()),
            ("reward", pa.float32()),
            ("action", pa.list_(pa.list_(pa.float32()))),
        ]
    )
    path = Path(dataset.root, "theirs.parquet")
    row = {"sequence_id": "foreign", "task": "wave", "reward": 3.0, "action": [[1.0, 2.0]]}
    pq.write_table(pa.Table.from_pylist([row], plain), path)
    theirs().add_files([str(path)])
    dataset.refresh()
    same(dataset, theirs, cells)
    assert cells(dataset)["foreign"] == row
    dataset.rename_column("task", "label")
    dataset.drop_column("reward")
    dataset.add_column("reward", pa.float32())
    assert cells(dataset)["foreign"] == {
        "sequence_id": "foreign",
        "label": "wave",
        "reward": None,
        "action": [[1.0, 2.0]],
    }
    same(dataset, theirs, cells)


def test_changes_by_pyiceberg_are_read(dataset, theirs, cells):
    from pyiceberg.types import DoubleType, FloatType, ListType, StringType

    with theirs().update_schema() as update:
        update.add_column("latent", ListType(0, ListType(0, FloatType(), False), False))
        update.add_column("note", StringType())
        update.rename_column("task", "label")
        update.update_column("reward", DoubleType())
    theirs().append(
        pa.table(
            {
                "sequence_id": pa.array(["theirs"]),
                "label": ["wave"],
                "latent": pa.array([[[1.0], [2.0, 3.0]]], pa.list_(pa.list_(pa.float32()))),
            },
            schema=pa.schema(
                [
                    pa.field("sequence_id", pa.string(), nullable=False),
                    ("label", pa.string()),
                    ("latent", pa.list_(pa.list_(pa.float32()))),
                ]
            ),
        )
    )
    dataset.refresh()
    same(dataset, theirs, cells)
    assert cells(dataset)["theirs"]["latent"] == [[1.0], [2.0, 3.0]]
    assert dataset.where("label = 'wave'").to_arrow()["sequence_id"].to_pylist() == ["theirs"]


def test_fields_inside_structs_are_found_by_id(address, theirs, cells):
    """Another client renames, drops, adds and widens them, in structs and in lists of structs."""
    from pyiceberg.types import DoubleType, StringType

    pose = pa.struct([("x", pa.float32()), ("y", pa.float32()), ("frame", pa.string())])
    ds = sl.create(address, {"pose": pose, "marks": pa.list_(pose)})
    ds.append(
        [
            {"sequence_id": "a", "pose": {"x": 1.0, "y": 2.0, "frame": "w"}, "marks": [{"x": 3.0, "y": 4.0}, None]},
            {"sequence_id": "b", "pose": None, "marks": None},
            {"sequence_id": "c", "pose": {"x": None, "y": 5.0, "frame": None}, "marks": []},
        ]
    )
    with theirs().update_schema() as update:
        update.rename_column(("pose", "x"), "left")
        update.delete_column(("pose", "frame"))
        update.rename_column(("pose", "y"), "x")
        update.add_column(("pose", "note"), StringType())
        update.update_column(("marks", "element", "y"), DoubleType())
        update.rename_column(("marks", "element", "x"), "u")
    fresh = sl.open(address)
    assert cells(fresh)["a"]["pose"] == {"left": 1.0, "x": 2.0, "note": None}
    fresh.append([{"sequence_id": "d", "pose": {"left": 9.0, "x": 8.0, "note": "n"}}])
    # pyiceberg makes an empty list of a null one where fields inside were renamed.
    assert [row["marks"] for row in cells(fresh).values()] == [
        [{"u": 3.0, "y": 4.0, "frame": None}, None],
        None,
        [],
        None,
    ]
    theirs_now = cells(theirs().scan(selected_fields=("sequence_id", "pose")).to_arrow())
    assert {name: {**row, "marks": 0} for name, row in cells(fresh).items()} == {
        name: {**row, "marks": 0} for name, row in theirs_now.items()
    }


def test_an_old_version_has_its_columns_and_their_meaning(dataset, address):
    first = dataset.version
    dataset.rename_column("action", "act")
    dataset.drop_column("task")
    old = sl.open(address, version=first)
    assert old.schema.names == ["sequence_id", "task", "reward", "action"]
    assert old.schema["action"].shape == (2,)
    assert old["ep_003"]["action"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_types_that_iceberg_lacks_become_wider_or_are_refused(tmp_path):
    columns = {"small": pa.int16(), "half": pa.float16(), "unsigned": pa.uint32(), "when": pa.timestamp("ms", "UTC")}
    ds = sl.create(f"iceberg:{tmp_path}/w/a.b", columns)
    ds.append([{"sequence_id": "x", "small": -3, "unsigned": 2**32 - 1}])
    assert [str(ds.schema[name].arrow) for name in columns] == ["int32", "float", "int64", "timestamp[us, tz=UTC]"]
    assert ds.to_arrow()["unsigned"].to_pylist() == [2**32 - 1]
    for kind in (pa.uint64(), pa.timestamp("ns"), pa.duration("s")):
        with pytest.raises(SchemaMismatchError, match="column|Column"):
            sl.create(f"iceberg:{tmp_path}/w/a.c", {"x": kind})


def test_a_first_default_is_no_constant_of_files_that_hold_the_column(dataset, theirs):
    from pyiceberg.schema import Schema

    table = theirs()
    fields = [
        one.model_copy(update={"initial_default": 7.5}) if one.name == "reward" else one
        for one in table.schema().fields
    ]
    snapshot = table.current_snapshot()
    for file in live_files(Manifests(), table.metadata, table.io, snapshot, Schema(*fields)):
        assert (dict(file.constants), dict(file.defaults)) == ({}, {"reward": 7.5})
        assert "7.5" in file.identity


def test_names_say_nothing_once_a_schema_was_forgotten(dataset, theirs):
    dataset.rename_column("task", "label")
    dataset.add_column("task", pa.string())
    metadata = theirs().metadata
    assert naming(metadata, metadata.schema()).only.keys() == {"sequence_id", "reward", "action"}
    forgetful = metadata.model_copy(update={"schemas": [metadata.schema()]})
    assert naming(forgetful, metadata.schema()).only == {}

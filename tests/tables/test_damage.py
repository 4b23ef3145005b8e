"""Damage that was believed once: a hole in the log, rotten records, index rows and side shards; each is seen now."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import DamagedTableError, DuplicateSequenceError
from seqlake.files.checksums import seal
from seqlake.files.stores import LocalStore
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.records import ShardEntry
from seqlake.tables.standalone.state import State
from seqlake.testing import oracle
from seqlake.versions.indexes import IndexFile


def version(root: Path, number: int) -> Path:
    return root / "_seqlake" / "versions" / f"{number:020d}.json"


def codes(root: Path, **options: object) -> set[str]:
    return {finding.code for finding in sl.open(root).validate(**options)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four ids, one a version, and a column beside them."""
    ds = sl.create(tmp_path / "ds", sl.Schema({"n": pa.int32(), "x": sl.Trajectory(dim=1)}))
    for number in range(4):
        ds.append([{"sequence_id": f"id{number}", "n": number, "x": np.ones((number + 1, 1), np.float32)}])
    ds.add_column("grade", pa.int32(), values={f"id{number}": 10 * number for number in range(4)})
    return tmp_path / "ds"


# ---- the log


@pytest.mark.parametrize("act", [lambda ds: ds.append([{"sequence_id": "new"}]), lambda ds: ds.validate()])
def test_a_version_that_is_gone_is_no_newest_version(root, act):
    version(root, 3).unlink()
    with pytest.raises(DamagedTableError, match="00000000000000000003.json is gone"):
        act(sl.open(root))


def test_a_gap_of_eight_is_seen_wherever_reading_stands(root):
    ds = sl.open(root)
    for number in range(9):
        ds.append([{"sequence_id": f"more{number}"}])
    assert ds.version.id == 14
    for number in range(6, 14):
        version(root, number).unlink()
    for _ in range(2):
        with pytest.raises(DamagedTableError, match="00000000000000000006.json is gone"):
            sl.open(root)


def test_a_gap_that_nobody_looks_beyond_is_found_by_writers_and_by_validation(root):
    ds = sl.open(root)
    for number in range(15):
        ds.append([{"sequence_id": f"more{number}"}])
    for number in range(6, 18):
        version(root, number).unlink()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    ds = sl.open(root)
    assert ds.version.id == 5
    assert "T514" in {finding.code for finding in ds.validate()}
    for act in (lambda: ds.append([{"sequence_id": "x"}]), lambda: ds.vacuum(older_than=timedelta(0)), ds.table.adopt):
        with pytest.raises(DamagedTableError, match="00000000000000000006.json is gone"):
            act()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_bucket_shows_the_gap_when_it_is_listed():
    from seqlake.tables.standalone import StandaloneTable

    from .test_bucket import made

    bucket = made()
    del bucket.objects["_seqlake/versions/00000000000000000002.json"]
    with pytest.raises(DamagedTableError, match="00000000000000000002.json is gone"):
        StandaloneTable(bucket).snapshot()


def test_a_record_of_another_history_does_not_fit(root, tmp_path):
    """Two copies go on apart: the log of one with a file of the other is no log."""
    other = Path(shutil.copytree(root, tmp_path / "other"))
    for place, ids in ((root, "ab"), (other, "cd")):
        for one in ids:
            sl.open(place).append([{"sequence_id": one}])
    shutil.copy(version(other, 6), version(root, 6))
    with pytest.raises(DamagedTableError, match="another version 6"):
        sl.open(root)


@pytest.mark.parametrize("renamed", [{"m": "number"}, {"n": "nomber"}, {"n": "number", "m": "x"}])
def test_a_sealed_record_renames_only_what_is_there(root, renamed):
    """Else the column reads null in every shard, and nothing says so."""
    ds = sl.open(root)
    ds.rename_column("n", "number")
    path = version(root, ds.version.id)
    document = {key: value for key, value in json.loads(path.read_bytes()).items() if key != "digest"}
    assert document["renamed"] == {"n": "number"}
    path.write_bytes(seal({**document, "renamed": renamed}))
    with pytest.raises(DamagedTableError, match="renames"):
        sl.open(root)


@pytest.mark.parametrize("key", ["add", "rows", "operation"])
def test_a_letter_of_a_key_loses_no_row(root, key):
    path = version(root, 2)
    path.write_bytes(path.read_bytes().replace(f'"{key}"'.encode(), f'"{key[:-1]}~"'.encode(), 1))
    with pytest.raises(DamagedTableError, match=path.name):
        sl.open(root)


def test_a_record_below_a_checkpoint_is_compared_by_validation(root, monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", 3)
    sl.open(root).append([{"sequence_id": "new"}])
    path = version(root, 1)
    path.write_bytes(path.read_bytes().replace(b'"append"', b'"upsert"'))
    assert len(sl.open(root)) == 5
    assert "T514" in codes(root)


def test_a_log_of_a_release_without_digests_is_gone_on_with(tmp_path):
    root = Path(shutil.copytree(Path(__file__).parents[1] / "data" / "stored" / "0.1.0", tmp_path / "ds"))
    ds = sl.open(root)
    last, ids = ds.version.id, {view.id for view in ds}
    for number in range(2):
        ds.append([{"sequence_id": f"new{number}"}])
    formats = [json.loads(version(root, number).read_text())["format"] for number in range(last + 3)]
    assert formats == [1] * (last + 1) + [2, 2]
    oracle.check_left(LocalStore(root), oracle.Expected())
    assert {view.id for view in sl.open(root)} == ids | {"new0", "new1"}
    path = version(root, last)
    path.write_bytes(path.read_bytes().replace(b'"writer": "seqlake 0.1.0"', b'"writer": "seqlake 0.1.1"'))
    with pytest.raises(DamagedTableError, match=f"another version {last}"):
        sl.open(root)


# ---- index files


def rewritten(path: Path, change: object) -> None:
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    table = change(table)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def nulls(table: pa.Table) -> pa.Table:
    fields = [field if field.name == "shard" else field.with_nullable(True) for field in table.schema]
    columns = [table["shard"], *(pa.nulls(table.num_rows, field.type) for field in fields[1:])]
    return pa.table(columns, schema=pa.schema(fields))


def other_ids(table: pa.Table) -> pa.Table:
    ids = [bytes(len(one)) for one in table["ids"].to_pylist()]
    return table.set_column(table.column_names.index("ids"), "ids", pa.array(ids, pa.binary()))


def no_checksum(table: pa.Table) -> pa.Table:
    return other_ids(table).drop_columns(["checksum"])


@pytest.mark.parametrize("harm", [nulls, other_ids, no_checksum])
def test_a_rotten_index_costs_speed_and_no_truth(root, harm):
    for path in (root / "_seqlake" / "index").iterdir():
        rewritten(path, harm)
    ds = sl.open(root)
    assert ds.source.lengths("x").tolist() == [1, 2, 3, 4]
    assert ds.sequence("id2")["n"] == 2
    with pytest.raises(DuplicateSequenceError):
        ds.append([{"sequence_id": "id2"}])
    assert ("T513" in codes(root)) == (harm is not no_checksum)


@pytest.mark.parametrize("rewritten_first", [False, True])
@pytest.mark.parametrize("harm", [nulls, other_ids, no_checksum])
def test_no_file_is_removed_because_an_index_rots(tmp_path, harm, rewritten_first):
    """Only the index file knew which copied-in files a shard needs; now the rows are asked."""
    (tmp_path / "a.mcap").write_bytes(b"a")
    ds = sl.create(tmp_path / "ds", sl.Schema({"log": sl.ColumnType("mcap"), "n": pa.int32()}))
    ds.append([{"sequence_id": one, "log": sl.File(tmp_path / "a.mcap"), "n": 1} for one in ("kept", "gone", "same")])
    (path,) = (Path(ds.location) / "_seqlake" / "index").iterdir()

    def forget(table: pa.Table) -> pa.Table:
        files = pa.array([[]] * table.num_rows, table.schema.field("files").type)
        return harm(table.set_column(table.column_names.index("files"), "files", files))

    rewritten(path, forget)
    if rewritten_first:
        sl.open(ds.location).delete(ids=["gone"])  # what the rows name that stay goes on with them
    dry = sl.open(ds.location).vacuum(older_than=timedelta(0), dry_run=True)
    gone = [path for path in sl.open(ds.location).vacuum(older_than=timedelta(0)) if path.startswith("files/")]
    assert [path for path in dry if path.startswith("files/")] == gone
    ds, left = sl.open(ds.location), 3 - rewritten_first
    assert [Path(ds.location, view["log"].reference).read_bytes() for view in ds] == [b"a"] * left
    assert len([path for path in Path(ds.location, "files").rglob("*") if path.is_file()]) == left
    assert not ds.validate().errors


def test_an_index_row_is_of_the_very_shard(root):
    """A name that is taken again by a file of others, with other rows."""
    first, second = sorted((root / "_seqlake" / "index").iterdir())[:2]
    one, two = (pa.ipc.open_file(path.read_bytes()).read_all() for path in (first, second))
    rewritten(second, lambda table: one.set_column(0, "shard", two["shard"]))
    assert sl.open(root).source.lengths("x").tolist() == [1, 2, 3, 4]
    assert sl.open(root).sequence("id1")["n"] == 1


# ---- side shards


def sides(root: Path) -> list[Path]:
    return sorted((root / "_seqlake" / "side").iterdir())


def test_a_side_shard_without_its_column_is_damage_and_not_null(root):
    path = sides(root)[1]
    path.write_bytes(path.read_bytes().replace(b"grade", b"grime"))
    with pytest.raises(DamagedTableError, match="other bytes"):
        [view["grade"] for view in sl.open(root)]
    assert "T515" in codes(root)


@pytest.mark.parametrize("change", [lambda table: table.rename_columns(["other"]), lambda table: table.slice(0, 0)])
def test_a_side_shard_of_a_release_without_digests(root, change):
    """Whose log says no more than its size."""
    (first,) = sides(root)[:1]
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(first)), sink)
    first.write_bytes(sink.getvalue())
    previous = ""
    for number in range(6):
        record = json.loads(version(root, number).read_text())
        for side in record.get("side", ()):
            del side["sha256"]
            side["nbytes"] = (root / "_seqlake" / "side" / side["name"]).stat().st_size
        record = {key: value for key, value in record.items() if key not in {"digest", "previous"}}
        data = seal(record | ({"previous": previous} if previous else {}))
        previous = json.loads(data)["digest"]
        version(root, number).write_bytes(data)
    with pytest.raises(DamagedTableError, match="Expected .* side shard"):
        [view["grade"] for view in sl.open(root)]
    assert "T515" in codes(root)


# ---- markers, checkpoints


def test_a_rotten_marker_gives_no_committed_version_up(root):
    """Its `begin` says after which version to look: a later number would hide the commit."""
    ds = sl.open(root)
    transaction = json.loads(version(root, 4).read_text())["transaction"]
    marker = {"format": 2, "transaction": transaction, "begin": 2, "time": "2026-01-01T00:00:00.000000Z"}
    path = root / "_seqlake" / "staged" / f"{transaction}.json"
    path.write_bytes(seal(marker).replace(b'"begin": 2', b'"begin": 9'))
    ds.vacuum(older_than=timedelta(0))
    assert [view.id for view in sl.open(root)] == [f"id{number}" for number in range(4)]
    assert transaction not in json.loads(version(root, 6).read_text()).get("aborted", [])


def test_a_checkpoint_that_is_later_than_this_release_is_done_without(root, monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", 3)
    sl.open(root).append([{"sequence_id": "new"}])
    (path,) = (root / "_seqlake" / "checkpoints").glob("*.arrow")
    path.write_bytes(path.read_bytes().replace(b'{"format": 2', b'{"format": 9'))
    assert len(sl.open(root)) == 5
    assert "T508" in codes(root)
    sl.open(root).vacuum(older_than=timedelta(0))
    assert len(sl.open(root)) == 5


# ---- memory


def test_little_bytes_that_take_much_memory_are_refused_before_they_do(tmp_path):
    bomb = pa.table({"shard": ["a.parquet"], "ids": pa.array([bytes(1 << 24)], pa.binary())})
    with pa.ipc.new_file(tmp_path / "x", bomb.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(bomb)
    many = pa.table({"shard": pa.nulls(1 << 30)})
    with pa.ipc.new_file(tmp_path / "y", many.schema) as writer:
        writer.write_table(many)
    for name, why in (("x", "compressed"), ("y", "1073741824 rows")):
        with pytest.raises(DamagedTableError, match=why):
            IndexFile.decode((tmp_path / name).read_bytes(), path=name)
    entry = ShardEntry(
        name="a.parquet", transaction="0" * 32, rows=1, nbytes=1, statistics=f'{{"{"x" * (65 << 20)}": 1}}'
    )
    data = checkpoints.encode(replace(State(), version=0, shards={"a.parquet": entry}), index="")
    assert len(data) < 100_000
    with pytest.raises(DamagedTableError, match="more memory"):
        checkpoints.decode(data, version=0, path="z")


# ---- the oracle sees them, too


def _resealed(path: Path, change: dict[str, object]) -> None:
    document = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
    path.write_bytes(seal(document | change))


HARMS = {
    "a record's bytes": lambda root: version(root, 5).write_bytes(
        version(root, 5).read_bytes().replace(b'"operation": "', b'"operation":  "')
    ),
    "its predecessor": lambda root: _resealed(version(root, 4), {"previous": "0" * 64}),
    "an older record": lambda root: _resealed(version(root, 2), {"writer": "nobody"}),
    "an index row": lambda root: rewritten(next((root / "_seqlake" / "index").iterdir()), other_ids),
    "a side shard": lambda root: sides(root)[0].write_bytes(sides(root)[0].read_bytes()[:-1] + b"2"),
    "a checkpoint": lambda root: _blank(next((root / "_seqlake" / "checkpoints").glob("*.arrow"))),
}


def _blank(path: Path) -> None:
    rest = json.loads(pa.ipc.open_file(path.read_bytes()).schema.metadata[b"seqlake"])
    path.write_bytes(path.read_bytes().replace(rest["digest"].encode(), b"1" * 64))


@pytest.mark.parametrize("harm", HARMS)
def test_the_oracle_catches(root, harm, monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", 3)
    sl.open(root).append([{"sequence_id": "new"}])
    oracle.check_left(LocalStore(root), oracle.Expected())
    HARMS[harm](root)
    with pytest.raises(oracle.OracleError):
        oracle.check_left(LocalStore(root), oracle.Expected())

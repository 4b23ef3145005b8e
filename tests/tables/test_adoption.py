"""Plain folders, strangers, hand edits, failing disks: reported, never used silently, never touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    DamagedTableError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidMetadataError,
    PublishPendingWarning,
    ReadOnlyError,
    ValidationError,
)
from seqlake.files.local import SystemCalls
from seqlake.files.stores import LocalStore
from seqlake.protocols import Change
from seqlake.tables import standalone
from seqlake.tables.standalone import StandaloneTable
from seqlake.testing import oracle, tables

METADATA = tables.SCHEMA.metadata.to_json()


def put(root, name, ids, *, schema=None, **options):
    """A Parquet file as another tool writes it."""
    path = Path(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = tables.batch(map(tables.episode, ids), tables.SCHEMA)
    pq.write_table(pa.Table.from_batches([rows]).cast(schema or tables.SCHEMA.stored()), path, **options)


@pytest.fixture
def plain(tmp_path):
    put(tmp_path, "data/part-00000.parquet", ["a", "b"])
    put(tmp_path, "data/part-00001.parquet", ["c"])
    Path(tmp_path, "mixtrain.json").write_text(METADATA)
    return tmp_path


@pytest.fixture
def table(tmp_path):
    made = standalone.create(tmp_path / "t", tables.SCHEMA)
    tables.append(made, ["a", "b"])
    return made


def listing(root):
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in Path(root).rglob("*") if path.is_file()}


# ---- plain folders
def test_a_plain_folder_is_read_as_it_is(plain):
    before = listing(plain)
    table = standalone.open(plain)
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b", "c"])
    assert table.snapshot().lengths("action").tolist() == [2, -1, 4]
    assert table.snapshot().find_ids(["c", "nobody", "a"]).tolist() == [2, -1, 0]
    assert list(table.snapshot().check("rows")) == []
    assert list(table.versions()) == []
    assert not table.manifest_exists
    table.write_derived("statistics", b"kept elsewhere")
    assert listing(plain) == before


def test_its_first_writer_adopts_it(plain):
    before = listing(plain)
    fingerprint = standalone.open(plain).snapshot().fingerprint
    version = standalone.open(plain).adopt()
    assert (version.id, version.operation, version.rows) == (0, "adopt", 3)
    table = standalone.open(plain)
    assert table.snapshot().version.id == 0
    assert {name: when for name, when in listing(plain).items() if "_seqlake" not in name} == before
    tables.append(table, ["d"])
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b", "c", "d"])
    assert fingerprint != table.snapshot().fingerprint
    with pytest.raises(tables.DuplicateSequenceError):
        tables.append(table, ["b"])
    oracle.check(table.store, oracle.Expected())


def test_begin_adopts_too(plain):
    tables.append(standalone.open(plain), ["d"])
    assert [version.operation for version in standalone.open(plain).versions()] == ["adopt", "append"]


def test_an_adopted_shard_that_leaves_is_retired_and_collected(plain):
    table = standalone.open(plain)
    table.adopt()
    first = table.snapshot()
    tables.append(table, ["b"], operation="delete", remove=tables.keys(first)[:1])
    assert min(path.name for path in Path(plain, "data").iterdir()) == "part-00001.parquet"
    assert tables.rows_of(first) == tables.expected(["a", "b", "c"])
    back = table.rollback(0)
    assert back.rows == 3
    table.vacuum(older_than=timedelta(0))
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b", "c"])
    oracle.check(table.store, oracle.Expected())


def test_a_folder_with_files_elsewhere_is_read_only(tmp_path):
    put(tmp_path, "deep/b.parquet", ["b"])
    put(tmp_path, "a.parquet", ["a"])
    put(tmp_path, "files/cam/not-a-shard.parquet", ["x"])
    put(tmp_path, "_hidden/c.parquet", ["y"])
    Path(tmp_path, "mixtrain.json").write_text(METADATA)
    table = standalone.open(tmp_path)
    assert list(tables.rows_of(table.snapshot())) == ["a", "b"]
    with pytest.raises(ReadOnlyError, match=r"a\.parquet.*repack"):
        table.begin()
    assert not Path(tmp_path, "_seqlake").exists()


def test_files_of_other_columns_and_narrower_types_fit_one_schema(tmp_path):
    narrow = pa.schema([pa.field("sequence_id", pa.string()), pa.field("reward", pa.int16())])
    path = Path(tmp_path, "data/b.parquet")
    path.parent.mkdir()
    pq.write_table(pa.table({"sequence_id": ["n"], "reward": pa.array([3], pa.int16())}, schema=narrow), path)
    put(tmp_path, "data/a.parquet", ["a"])
    Path(tmp_path, "mixtrain.json").write_text(METADATA)
    table = standalone.open(tmp_path)
    for _ in range(2):
        rows = tables.rows_of(table.snapshot())
        assert rows["n"] == {"sequence_id": "n", "reward": 3.0, "label": None, "action": None}
        assert rows["a"] == tables.episode("a")
        table.adopt()


def test_missing_and_repeated_ids_are_not_adopted(plain):
    put(plain, "data/part-00002.parquet", ["a"])
    with pytest.raises(ValidationError, match="'a'"):
        standalone.open(plain).adopt()
    assert not standalone.open(plain).manifest_exists
    Path(plain, "data/part-00002.parquet").unlink()
    nulls = pa.table({"sequence_id": pa.array([None], pa.string())})
    pq.write_table(nulls, Path(plain, "data/part-00003.parquet"))
    with pytest.raises(ValidationError, match="part-00003"):
        standalone.open(plain).adopt()
    assert not list(Path(plain, "_seqlake").rglob("*.arrow"))


def test_a_folder_without_metadata_is_no_dataset(tmp_path):
    put(tmp_path, "data/a.parquet", ["a"])
    assert not standalone.matches(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="seqlake init"):
        standalone.open(tmp_path)
    with pytest.raises(DatasetExistsError):
        standalone.create(tmp_path, tables.SCHEMA)


def test_nothing_is_created_where_something_is(table, plain):
    for place in (table.root, plain):
        before = listing(place)
        with pytest.raises(DatasetExistsError):
            standalone.create(place, tables.SCHEMA)
        assert listing(place) == before


# ---- strangers and hand edits
def test_a_stranger_is_reported_not_read_and_adopted_on_request(table):
    put(table.root, "data/theirs.parquet", ["x"])
    Path(table.root, "data/notes.txt").write_text("mine")
    assert table.strangers() == ["data/notes.txt", "data/theirs.parquet"]
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b"])
    assert {(f.code, f.location) for f in table.snapshot().check("metadata")} == {
        ("T503", "data/notes.txt"),
        ("T503", "data/theirs.parquet"),
    }
    tables.append(table, ["c"])
    table.vacuum(older_than=timedelta(0))
    assert Path(table.root, "data/theirs.parquet").exists()
    assert table.adopt().operation == "adopt"
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b", "c", "x"])
    assert table.strangers() == ["data/notes.txt"]
    assert table.adopt() == table.versions()[-1]  # nothing more to take in


def test_a_stranger_with_a_known_id_is_refused(table):
    put(table.root, "data/theirs.parquet", ["x", "a"])
    with pytest.raises(tables.DuplicateSequenceError, match="'a'"):
        table.adopt()
    assert Path(table.root, "data/theirs.parquet").exists()
    assert table.snapshot().version.id == 1


def test_edited_metadata_is_reported_not_used_and_adopted_on_request(table):
    edited = {**json.loads(METADATA), "licence": "CC0"}
    path = Path(table.root, "mixtrain.json")
    path.write_text(json.dumps(edited))
    assert table.metadata_edited()
    assert table.snapshot().schema.metadata.extra == {}
    assert [finding.code for finding in table.snapshot().check("metadata")] == ["T504"]
    tables.append(table, ["c"])  # leaves it
    assert json.loads(path.read_text()) == edited
    schema = table.snapshot().schema.with_columns({"more": pa.int64()})
    schema = type(schema)(
        {name: schema[name] for name in schema}, metadata=replace(schema.metadata, extra={"note": "from a commit"})
    )
    with pytest.raises(ReadOnlyError, match="edited by hand"):
        table.commit(Change(operation="evolve", schema=schema), transaction=table.begin())
    assert table.adopt().operation == "metadata"
    assert table.snapshot().schema.metadata.extra == {"licence": "CC0"}
    assert not table.metadata_edited()
    oracle.check(table.store, oracle.Expected())


def test_the_same_metadata_in_other_words_is_not_edited(table):
    path = Path(table.root, "mixtrain.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(document.items())), indent=7))
    assert not table.metadata_edited()


def test_metadata_that_cannot_be_used_is_not_adopted(table):
    Path(table.root, "mixtrain.json").write_text("{")
    with pytest.raises(InvalidMetadataError):
        table.adopt()
    assert len(table.versions()) == 2
    assert not list(Path(table.root, "_seqlake/staged").iterdir())


def test_metadata_of_an_older_version_is_put_right(table):
    old = Path(table.root, "mixtrain.json").read_text()
    edited = {**json.loads(METADATA), "licence": "CC0"}
    Path(table.root, "mixtrain.json").write_text(json.dumps(edited))
    table.adopt()
    Path(table.root, "mixtrain.json").write_text(old)
    assert not table.metadata_edited()
    assert [finding.code for finding in table.snapshot().check("metadata")] == ["T505"]
    table.publish()
    assert json.loads(Path(table.root, "mixtrain.json").read_text()) == edited


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_a_shard_that_others_took_or_changed_is_damage_and_a_rollback_the_way_out(table, damage):
    tables.append(table, ["c"])
    name = table.snapshot().shards()[1].key.partition("#")[0]
    path = Path(table.root, "data", name)
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data[:-1])
    with pytest.raises(DamagedTableError, match=name):
        tables.rows_of(table.snapshot())
    codes = {finding.code for finding in table.snapshot().check("metadata")}
    assert codes == {"T501" if damage == "gone" else "T502"}
    table.rollback(1)
    assert tables.rows_of(table.snapshot()) == tables.expected(["a", "b"])


def test_a_flipped_bit_is_found_by_its_checksum(table):
    path = next(Path(table.root, "data").iterdir())
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    assert any(f.severity == "error" and f.location == f"data/{path.name}" for f in table.snapshot().check("rows"))


# ---- every tool reads data/
def test_engines_see_the_newest_version_in_data(table):
    tables.append(table, ["c"])
    tables.append(table, ["b"], operation="rewrite", remove=tables.keys(table.snapshot())[:1])
    ids = ["b", "c"]
    for pattern in ("data/*.parquet", "**/*.parquet"):
        where = f"{table.root}/{pattern}"
        assert sorted(duckdb.sql(f"SELECT sequence_id FROM read_parquet('{where}')").fetchall()) == [(i,) for i in ids]
        assert sorted(pl.read_parquet(where)["sequence_id"]) == ids
        assert (
            sorted(pa.concat_tables(map(pq.read_table, Path(table.root).glob(pattern)))["sequence_id"].to_pylist())
            == ids
        )
    folder = pyarrow.dataset.dataset(f"{table.root}/data")
    assert sorted(folder.to_table(columns=["sequence_id"])["sequence_id"].to_pylist()) == ids
    ours = table.snapshot().arrow_dataset()
    assert sorted(ours.to_table(filter=pyarrow.dataset.field("reward") == 98.0)["sequence_id"].to_pylist()) == ["b"]


def test_a_pinned_version_is_scanned_where_its_shards_went(table):
    old = table.snapshot()
    tables.append(table, ["z"], operation="rewrite", remove=tables.keys(old))
    assert sorted(old.arrow_dataset().to_table()["sequence_id"].to_pylist()) == ["a", "b"]


# ---- errors of disks
class Failing(SystemCalls):
    """One kind of call fails, once it is told to."""

    def __init__(self):
        self.what = {}

    def _may(self, kind, path):
        number = self.what.get(kind)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))

    def create(self, path, /):
        self._may("create", path)
        return super().create(path)

    def link(self, source, target, /):
        self._may("link", target)
        super().link(source, target)

    def rename(self, source, target, /):
        self._may("rename", target)
        super().rename(source, target)

    def fsync_folder(self, path, /):
        self._may(f"fsync {path.name}", path)
        super().fsync_folder(path)


@contextmanager
def failing(table, **what):
    table.store.calls.what = {key.replace("_", " "): number for key, number in what.items()}
    yield
    table.store.calls.what = {}


@pytest.fixture
def fragile(table):
    return StandaloneTable(LocalStore(table.root, calls=Failing()))


@pytest.mark.parametrize("call", ["create", "link"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_an_error_before_the_commit_leaves_nothing(fragile, call, number):
    before = listing(fragile.root)
    transaction = fragile.begin()
    written = tables.write(fragile, transaction, [tables.episode("c")])
    kind = OSError if number in {errno.ENOSPC, errno.EDQUOT} else ReadOnlyError
    with failing(fragile, **{call: number}), pytest.raises(kind, match="was not committed"):
        fragile.commit(Change(operation="append", add=[written]), transaction=transaction)
    assert listing(fragile.root) == before
    tables.append(fragile, ["c"])


def test_an_error_while_publishing_is_a_warning_and_the_next_writer_finishes(fragile):
    transaction = fragile.begin()
    written = tables.write(fragile, transaction, [tables.episode("c")])
    written = fragile.stage(transaction, written)
    real = fragile.store.calls.rename

    def rename(source, target, /):
        if "/data/" in str(target):
            raise OSError(errno.EIO, "broken", str(target))
        real(source, target)

    fragile.store.calls.rename = rename
    with pytest.warns(PublishPendingWarning, match="Do not repeat the commit"):
        version = fragile.commit(Change(operation="append", add=[written]), transaction=transaction)
    assert version.id == 2
    assert tables.rows_of(fragile.snapshot()) == tables.expected(["a", "b", "c"])
    assert {finding.code for finding in fragile.snapshot().check("metadata")} == {"T506"}
    healthy = standalone.open(fragile.root)
    healthy.discard(healthy.begin())
    assert sorted(oracle.glob_ids(healthy.store)) == ["a", "b", "c"]
    assert list(healthy.snapshot().check("metadata")) == []


def test_a_commit_whose_durability_is_unknown_is_not_discarded(fragile):
    transaction = fragile.begin()
    written = tables.write(fragile, transaction, [tables.episode("c")])
    calls = fragile.store.calls
    real, linked = calls.link, []
    calls.link = lambda source, target, /: (real(source, target), linked.append(target))[0]
    sync = calls.fsync_folder

    def fsync_folder(path, /):
        if linked and path.name == "versions":
            raise OSError(errno.EIO, "broken", str(path))
        sync(path)

    calls.fsync_folder = fsync_folder
    with pytest.raises(CommitUnknownError, match=transaction.id):
        fragile.commit(Change(operation="append", add=[written]), transaction=transaction)
    fragile.discard(transaction)  # what a writer does on any error: it must not take what may be committed
    assert tables.rows_of(standalone.open(fragile.root).snapshot()) == tables.expected(["a", "b", "c"])
    oracle.check(LocalStore(fragile.root), oracle.Expected(acknowledged={2: transaction.id}))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_says_so(table):
    Path(table.root, "_seqlake/staged").chmod(0o500)
    with pytest.raises(ReadOnlyError):
        table.begin()


def test_a_copied_table_is_the_same_table(table, tmp_path):
    shutil.copytree(table.root, tmp_path / "copy")
    copy = standalone.open(tmp_path / "copy")
    assert copy.snapshot().fingerprint == table.snapshot().fingerprint
    tables.append(copy, ["elsewhere"])
    assert copy.snapshot().fingerprint != table.snapshot().fingerprint


def test_shards_without_their_log_are_a_plain_dataset(table, tmp_path):
    """`data/` and `mixtrain.json` copied without `_seqlake`: adopted under the names they have."""
    shutil.copytree(Path(table.root, "data"), tmp_path / "copy/data")
    shutil.copy(Path(table.root, "mixtrain.json"), tmp_path / "copy")
    copy = standalone.open(tmp_path / "copy")
    tables.append(copy, ["c"])
    tables.append(copy, ["d"], operation="rewrite", remove=tables.keys(copy.snapshot())[:1])
    copy.vacuum(older_than=timedelta(0))
    assert tables.rows_of(copy.snapshot()) == tables.expected(["c", "d"])
    oracle.check(copy.store, oracle.Expected())


def test_partitions_are_refused(tmp_path, table):
    with pytest.raises(ValueError, match="split"):
        standalone.create(tmp_path / "p", tables.SCHEMA, partition_by=["label"])
    with pytest.raises(ValueError, match="split"):
        table.place(table.begin(), {"label": "x"}, n="0")


def test_hostile_numbers_and_names_are_refused(table):
    transaction = table.begin()
    for n in ("../../x", "", "A", "x" * 17, "a/b"):
        with pytest.raises(ValueError, match="n is"):
            table.place(transaction, {}, n=n)
    for name in ("../x", "a/b", "", "x.parquet"):
        with pytest.raises(ValueError, match="plain name"):
            table.write_derived(name, b"")


def test_a_writer_given_up_by_collect_is_told(table):
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("late")])
    standalone.open(table.root).vacuum(older_than=timedelta(0))
    with pytest.raises(CommitConflictError, match="gave transaction"):
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    table.renew(transaction)  # does not bring it back
    assert not list(Path(table.root, "_seqlake/staged").iterdir())


def test_a_renewed_writer_is_not_given_up(table):
    transaction = table.begin()
    marker = Path(table.root, f"_seqlake/staged/{transaction.id}.json")
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "time": "2020-01-01T00:00:00Z"}))
    table.renew(transaction)
    standalone.open(table.root).vacuum(older_than=timedelta(hours=1))
    written = tables.write(table, transaction, [tables.episode("alive")])
    assert table.commit(Change(operation="append", add=[written]), transaction=transaction).rows == 3


def test_a_torn_marker_is_as_old_as_its_transaction(table):
    transaction = table.begin()
    Path(table.root, f"_seqlake/staged/{transaction.id}.json").write_bytes(b'{"form')
    table.vacuum(older_than=timedelta(hours=1))
    written = tables.write(table, transaction, [tables.episode("alive")])
    table.commit(Change(operation="append", add=[written]), transaction=transaction)
    dead = "0" * 11 + "17" + "0" * 19
    Path(table.root, f"_seqlake/staged/{dead}.json").write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.vacuum(older_than=timedelta(hours=1))
    assert not list(Path(table.root, "_seqlake/staged").iterdir())


def test_a_folder_that_polars_wrote_is_adopted(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    pl.DataFrame({"sequence_id": ["a", "b"], "x": [1.0, 2.0]}).write_parquet(tmp_path / "data" / "rows.parquet")
    table = standalone.open(str(tmp_path))
    assert table.adopt().rows == 2
    assert table.snapshot().find_ids(["b", "c"]).tolist() == [1, -1]


def test_adopted_raw_cells_are_indexed(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    kind = {"type": "trajectory", "dim": 2, "encoding": "raw", "dtype": "float32"}
    (tmp_path / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "column_types": {"x": kind}}))
    cells = [np.arange(n * 2, dtype="<f4").tobytes() for n in (3, 0, 5)]
    rows = pa.table({"sequence_id": ["a", "b", "c"], "x": pa.array(cells, pa.binary())})
    pq.write_table(rows, tmp_path / "data" / "rows.parquet", compression="none", use_dictionary=False)
    table = standalone.open(str(tmp_path))
    table.adopt()
    [shard] = table.snapshot().shards()
    reader = shard.open()
    assert reader.flat("x").steps.tolist() == [3, 0, 5]
    reader.close()

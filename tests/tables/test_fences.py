"""Folders, logs and catalogs of strangers: nothing outside a dataset is read, written, moved or deleted through them.

Each test builds what somebody could send, beside files that are the user's own, and looks at these afterwards.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError, UnsafeReferenceError
from seqlake.files.local import LocalStore, SystemCalls
from seqlake.files.stores import list_without_links

NOW = timedelta(0)
SCHEMA = sl.Schema({"cam": sl.ColumnType("mcap"), "n": sl.Trajectory(dim=1)})
HOMES = {
    "standalone": "{}/set",
    "delta": "delta:{}/set",
    "iceberg": "iceberg:{}/set/robots.takes",
    "ducklake-sqlite": "ducklake:sqlite:{}/set/lake.sqlite?table=takes",
    "ducklake-duckdb": "ducklake:{}/set/lake.ducklake?table=takes",
}
LAKES = {"delta": "deltalake", "iceberg": "pyiceberg"}


def rows(tmp_path, *ids):
    files = tmp_path / "recorded"
    files.mkdir(exist_ok=True)
    for one in ids:
        (files / f"{one}.mcap").write_bytes(one.encode() * 9)
    return [{"sequence_id": one, "cam": sl.File(files / f"{one}.mcap"), "n": [[1.0], [2.0]]} for one in ids]


@pytest.fixture(params=HOMES)
def home(request, tmp_path):
    """The address of a dataset with an old version, in each home."""
    pytest.importorskip(LAKES.get(request.param, "seqlake"))
    address = HOMES[request.param].format(tmp_path)
    (tmp_path / "set").mkdir()
    ds = sl.create(address, SCHEMA)
    ds.append(rows(tmp_path, "a", "b"))
    ds.append(rows(tmp_path, "c"))
    ds.delete(ids=["b"])
    return address


def listed(folder):
    """Every file and link below a folder, links not followed, with its bytes."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink() or path.is_file():
            found[str(path.relative_to(folder))] = str(path.readlink()) if path.is_symlink() else path.read_bytes()
    return found


def precious(folder):
    """A dataset of the user's own, with an old version that a vacuum of it would remove."""
    ds = sl.create(folder, SCHEMA)
    ds.append(rows(folder.parent, "x", "y"))
    ds.delete(ids=["y"])
    return listed(folder)


@pytest.mark.sampled(every=2, start=1)
def test_a_dry_run_lists_exactly_what_a_collection_removes(home, tmp_path):
    """In every home: shards, files of deletes, copied-in files and what lies beside them."""
    ds = sl.open(home)
    before = listed(ds.root).keys()
    told = ds.vacuum(older_than=NOW, dry_run=True)
    assert listed(ds.root).keys() == before
    ds.vacuum(older_than=NOW)
    gone = before - listed(ds.root).keys()
    assert {path for path in gone if "/b-" in path and path.endswith(".mcap")}
    assert set(told) == gone
    assert {one: ds[one]["cam"].read() for one in "ac"} == {"a": b"a" * 9, "c": b"c" * 9}


# ---- links in the folder of a standalone dataset
LINKED = ["data", "files", "_seqlake", "_seqlake/retired", "_seqlake/staged", "_seqlake/index", "_seqlake/versions"]


@pytest.mark.parametrize("folder", LINKED)
def test_no_verb_goes_through_a_folder_that_is_a_link(tmp_path, folder):
    kept = precious(tmp_path / "mine")
    ds = sl.create(tmp_path / "set", SCHEMA)
    ds.append(rows(tmp_path, "a", "b"))
    place = tmp_path / "set" / folder
    place.mkdir(exist_ok=True)
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path / "mine" / folder)
    verbs = {
        "vacuum": lambda ds: ds.vacuum(older_than=NOW),
        "dry run": lambda ds: ds.vacuum(older_than=NOW, dry_run=True),
        "append": lambda ds: ds.append(rows(tmp_path, "c")),
        "upsert": lambda ds: ds.upsert(rows(tmp_path, "a")),
        "delete": lambda ds: ds.delete(ids=["a"]),
        "rollback": lambda ds: ds.rollback(0),
    }
    for name, verb in verbs.items():
        for allowed in (False, True):
            with pytest.raises(SeqlakeError):
                verb(sl.open(tmp_path / "set", allow_outside=allowed))
            assert listed(tmp_path / "mine") == kept, name


@pytest.mark.parametrize("folder", ["data", "files"])
def test_a_folder_that_the_user_linked_is_read_where_that_is_allowed(tmp_path, folder):
    sl.create(tmp_path / "set", SCHEMA).append(rows(tmp_path, "a"))
    (tmp_path / "set" / folder).rename(tmp_path / "disk")
    (tmp_path / "set" / folder).symlink_to(tmp_path / "disk")
    with pytest.raises(UnsafeReferenceError, match="allow_outside"):
        sl.open(tmp_path / "set")["a"]["cam"].read(), sl.open(tmp_path / "set").to_arrow()
    ds = sl.open(tmp_path / "set", allow_outside=True)
    assert ds["a"]["cam"].read() == b"a" * 9
    assert ds["a"]["n"][:].ravel().tolist() == [1.0, 2.0]


def test_a_dataset_whose_whole_folder_is_a_link_is_like_any_other(tmp_path):
    sl.create(tmp_path / "disk", SCHEMA)
    (tmp_path / "set").symlink_to(tmp_path / "disk")
    ds = sl.open(tmp_path / "set")
    ds.append(rows(tmp_path, "a", "b"))
    ds.delete(ids=["b"])
    assert ds.vacuum(older_than=NOW)
    assert ds["a"]["cam"].read() == b"a" * 9
    assert ds.validate(depth="files").ok


def test_links_inside_a_dataset_are_read(tmp_path):
    sl.create(tmp_path / "set", SCHEMA).append(rows(tmp_path, "a"))
    (tmp_path / "set" / "data").rename(tmp_path / "set" / "data-1")
    (tmp_path / "set" / "data").symlink_to("data-1")
    assert sl.open(tmp_path / "set")["a"]["n"][:].ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("call", ["unlink", "rename", "create", "link", "mkdir"])
def test_a_link_that_is_swapped_in_at_the_last_moment_is_not_followed(tmp_path, call):
    """Between the listing and the call itself."""

    class Swapping(SystemCalls):
        def __getattribute__(self, name):
            method = super().__getattribute__(name)
            if name != call:
                return method

            def called(*arguments):
                if not (tmp_path / "set" / "aside").exists():
                    (tmp_path / "set" / "in").rename(tmp_path / "set" / "aside")
                    (tmp_path / "set" / "in").symlink_to(tmp_path / "mine")
                return method(*arguments)

            return called

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "a").write_bytes(b"precious")
    store = LocalStore(tmp_path / "set")
    store.put("in/a", b"theirs")
    store.put("top", b"theirs")
    store.calls = Swapping()
    verbs = {
        "unlink": lambda: store.delete([path for path, _ in list_without_links(store, "in")]),
        "rename": lambda: store.move("in/a", "b"),
        "create": lambda: store.put("in/new", b"x", if_absent=True),
        "link": lambda: store.copy("top", "in/copy"),
        "mkdir": lambda: store.put("in/deep/new", b"x"),
    }
    with pytest.raises(UnsafeReferenceError, match="is a link"):
        verbs[call]()
    assert listed(mine) == {"a": b"precious"}


# ---- logs, manifests and catalogs that name files elsewhere
@pytest.mark.parametrize(
    "named", ["../mine/x.parquet", "{}/mine/x.parquet", "file://{}/mine/x.parquet", "in/x.parquet"]
)
@pytest.mark.parametrize("encoded", [False, True])
def test_a_delta_log_that_names_files_outside(tmp_path, named, encoded):
    pytest.importorskip("deltalake")
    sl.create(f"delta:{tmp_path}/set", SCHEMA).append(rows(tmp_path, "a"))
    shard = next((tmp_path / "set").rglob("part-*.parquet"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "x.parquet").write_bytes(shard.read_bytes())
    (tmp_path / "set" / "in").symlink_to(mine)
    path = named.format(tmp_path)
    path = path.replace("..", "%2e%2e").replace("/x", "%2Fx") if encoded else path
    log = tmp_path / "set" / "_delta_log"
    add = json.loads(next(line for line in max(log.glob("*.json")).read_text().splitlines() if '"add"' in line))
    add["add"]["path"] = path
    number = len(list(log.glob("*.json")))
    told = [{"commitInfo": {"timestamp": 1 << 40, "operation": "WRITE"}}, {"commitInfo": {"timestamp": 1 << 40}}]
    (log / f"{number:020d}.json").write_text(f"{json.dumps(told[0])}\n{json.dumps(add)}\n")
    with pytest.raises(SeqlakeError):
        sl.open(tmp_path / "set").to_arrow()
    remove = {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}
    (log / f"{number + 1:020d}.json").write_text(f"{json.dumps(told[1])}\n{json.dumps(remove)}\n")
    before = listed(tmp_path / "mine")
    told = sl.open(tmp_path / "set").vacuum(older_than=NOW, dry_run=True)
    assert sl.open(tmp_path / "set").vacuum(older_than=NOW) == told
    assert listed(tmp_path / "mine") == before


def test_an_iceberg_table_whose_metadata_lead_elsewhere(tmp_path):
    pytest.importorskip("pyiceberg")
    address = f"iceberg:{tmp_path}/set/robots.takes"
    (tmp_path / "mine").mkdir()
    sl.create(address, SCHEMA).append(rows(tmp_path, "a", "b"))
    ds = sl.open(address)
    ds.delete(ids=["a"])
    # The whole table, moved to where its own metadata do not say: every path in them is absolute.
    (tmp_path / "elsewhere").mkdir()
    with closing(sqlite3.connect(tmp_path / "set" / "catalog.db")) as catalog:
        ((place,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
        metadata = json.loads(Path(place.removeprefix("file://")).read_text())
        for key, value in (("location", f"file://{tmp_path}/elsewhere"), ("location", f"file://{tmp_path}/set/robots")):
            changed = tmp_path / "set" / "changed.metadata.json"
            changed.write_text(json.dumps({**metadata, key: value}))
            catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", [f"file://{changed}"])
            catalog.commit()
            before = listed(tmp_path / "set")
            if value.endswith("elsewhere"):
                with pytest.raises(UnsafeReferenceError, match="allow_outside"):
                    sl.open(address)
                continue
            sl.open(address)  # it lies in the warehouse, whatever it is called
            assert listed(tmp_path / "set") == before
        moved = {**metadata, "location": f"file://{tmp_path}/set/other"}
        changed.write_text(json.dumps(moved))
    with pytest.raises(UnsafeReferenceError, match="leads out"):
        sl.open(address).to_arrow()
    assert sl.open(address, allow_outside=True)["b"]["n"][:].ravel().tolist() == [1.0, 2.0]


def lake(tmp_path, kind):
    address = HOMES[f"ducklake-{kind}"].format(tmp_path)
    (tmp_path / "set").mkdir(exist_ok=True)
    ds = sl.create(address, SCHEMA)
    ds.append(rows(tmp_path, "a", "b"))
    ds.delete(ids=["b"])
    return address


def change(tmp_path, kind, *statements):
    """The sender's hand in the catalog."""
    name = {"sqlite": "lake.sqlite", "duckdb": "lake.ducklake"}[kind]
    connect = {"sqlite": sqlite3.connect, "duckdb": duckdb.connect}[kind]
    with closing(connect(str(tmp_path / "set" / name))) as catalog:
        for one in statements:
            catalog.execute(one)
        catalog.commit()


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_ducklake_that_schedules_files_of_others_for_removal(tmp_path, kind):
    address = lake(tmp_path, kind)
    root = Path(sl.open(address).root)
    part = f"part-{'0' * 32}-0.parquet"
    kept = {}
    for path in (
        tmp_path / "mine" / part,
        root / "main" / "takes" / "thesis.txt",
        root / "main" / "takes" / "x.parquet",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"precious")
        kept[path] = b"precious"
    (root / "main" / "takes" / "in").symlink_to(tmp_path / "mine")
    named = [f"{tmp_path}/mine/{part}", f"main/takes/../../../../mine/{part}", "main/takes/thesis.txt",
             "main/takes/x.parquet", f"main/takes/in/{part}"]  # fmt: skip
    change(
        tmp_path, kind,
        *(f"INSERT INTO ducklake_files_scheduled_for_deletion VALUES ({n}, '{path}', true, '2020-01-01 00:00:00+00')"
          for n, path in enumerate(named)),
        *(f"INSERT INTO ducklake_files_scheduled_for_deletion VALUES ({n + 50}, '{path}', false, "
          "'2020-01-01 00:00:00+00')" for n, path in enumerate(named)),
    )  # fmt: skip
    change(
        tmp_path, kind,
        "INSERT INTO ducklake_files_scheduled_for_deletion SELECT 90, 'main/takes/' || path, true, "
        "'2020-01-01 00:00:00+00' FROM ducklake_data_file WHERE end_snapshot IS NULL",
    )  # fmt: skip
    ds = sl.open(address)
    before = listed(tmp_path).keys()
    told = ds.vacuum(older_than=NOW, dry_run=True)
    assert set(ds.vacuum(older_than=NOW)) == set(told)
    gone = before - listed(tmp_path).keys()
    assert {path.removeprefix(f"{root.relative_to(tmp_path)}/") for path in gone} == set(told)
    assert {path: path.read_bytes() for path in kept} == kept
    assert sl.open(address)["a"]["n"][:].ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_ducklake_that_says_its_data_lie_elsewhere(tmp_path, kind):
    address = lake(tmp_path, kind)
    root = Path(sl.open(address).root)
    root.rename(tmp_path / "mine")
    before = listed(tmp_path / "mine")
    change(tmp_path, kind, f"UPDATE ducklake_metadata SET value = '{tmp_path}/mine/' WHERE key = 'data_path'")
    with pytest.raises(UnsafeReferenceError, match="data_path="):
        sl.open(address)
    assert listed(tmp_path / "mine") == before
    ds = sl.open(f"{address}&data_path={tmp_path}/mine")
    assert ds["a"]["n"][:].ravel().tolist() == [1.0, 2.0]
    assert sl.open(address, allow_outside=True)["a"]["n"][:].ravel().tolist() == [1.0, 2.0]
    assert ds.vacuum(older_than=NOW)


@pytest.mark.parametrize("path", ["{}/mine/x.parquet", "../../../mine/x.parquet", "file://{}/mine/x.parquet"])
@pytest.mark.parametrize("relative", ["true", "false"])
def test_a_ducklake_whose_data_file_lies_elsewhere(tmp_path, path, relative):
    address = lake(tmp_path, "sqlite")
    shard = next(Path(sl.open(address).root).rglob("part-*.parquet"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x.parquet").write_bytes(shard.read_bytes())
    change(
        tmp_path, "sqlite",
        f"UPDATE ducklake_data_file SET path = '{path.format(tmp_path)}', path_is_relative = {relative}",
    )  # fmt: skip
    with pytest.raises(SeqlakeError):
        sl.open(address).to_arrow()
    assert (tmp_path / "mine" / "x.parquet").exists()


SPY = "CREATE VIEW ducklake_{0} AS SELECT * FROM kept_{0}{1}"


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize("table", ["metadata", "snapshot", "table", "data_file"])
def test_a_ducklake_with_views_runs_none_of_them(tmp_path, kind, table):
    """A view is SQL that its maker would run on the reader's machine: it could read the reader's files."""
    address = lake(tmp_path, kind)
    spied = " WHERE (SELECT count(*) FROM read_text('/etc/passwd')) > 0" if kind == "duckdb" else ""
    change(tmp_path, kind, f"ALTER TABLE ducklake_{table} RENAME TO kept_{table}", SPY.format(table, spied))
    with pytest.raises(SeqlakeError, match="views"):
        sl.open(address)


def test_sql_of_a_duckdb_catalogs_maker_reaches_no_file(tmp_path):
    """Macros come before DuckDB's own functions of the same name, and we call `min`."""
    address = lake(tmp_path, "duckdb")
    change(tmp_path, "duckdb", "CREATE MACRO min(x) AS (SELECT length(content) FROM read_text('/etc/hostname'))")
    with pytest.raises(UnsafeReferenceError, match="reach outside"):
        sl.open(address)


def test_a_condition_reaches_no_file_and_fetches_no_extension(tmp_path):
    ds = sl.create(tmp_path / "set", SCHEMA)
    ds.append(rows(tmp_path, "a"))
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for text in (
        f"sequence_id IN (FROM read_csv('{secret}'))",
        f"read_text('{secret}') IS NOT NULL",
        "st_point(1, 2) IS NOT NULL",
        f"length(getvariable('x')) > 0 OR exists(SELECT * FROM '{secret}')",
    ):
        with pytest.raises(SeqlakeError):
            ds.where(text).to_arrow()
    for text in (f"FROM '{secret}'", f"FROM read_csv('{secret}')", "INSTALL spatial", "SELECT st_point(1, 2)",
                 "SET enable_external_access = true"):  # fmt: skip
        with pytest.raises(SeqlakeError):
            ds.sql(text).fetchall()


def test_shards_of_a_plain_folder_that_are_links(tmp_path):
    sl.create(tmp_path / "mine", SCHEMA).append(rows(tmp_path, "a"))
    shard = next((tmp_path / "mine" / "data").iterdir())
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "x.parquet").symlink_to(shard)
    with pytest.raises(UnsafeReferenceError, match="allow_outside"):
        sl.scan(tmp_path / "sent").to_arrow()
    assert sl.scan(tmp_path / "sent", allow_outside=True).to_arrow().num_rows == 1
    assert sl.scan(tmp_path / "sent" / "x.parquet").to_arrow().num_rows == 1  # the user named the link itself
    (tmp_path / "sent" / "x.parquet").unlink()
    (tmp_path / "sent" / "folder").symlink_to(shard.parent)
    with pytest.raises(UnsafeReferenceError, match="allow_outside"):
        sl.scan(tmp_path / "sent").to_arrow()
    assert pq.read_table(shard).num_rows == sl.scan(tmp_path / "sent", allow_outside=True).to_arrow().num_rows

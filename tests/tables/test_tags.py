"""Names for versions: given, taken by every way to name a version, honoured by vacuum."""

from __future__ import annotations

import json
import pickle
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli import main
from seqlake.errors import (
    CommitConflictError,
    DamagedTableError,
    DatasetNotFoundError,
    TagExistsError,
    UnsupportedVersionError,
    VersionNotFoundError,
)
from seqlake.files.stores import LocalStore
from seqlake.tables.delta import retention
from seqlake.tables.delta.engine import DeltaEngine
from seqlake.tables.standalone import checkpoints, committing
from seqlake.testing import oracle
from seqlake.versions import format as forms

from ..homes import PLACES, QUICK  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOMES = list(PLACES)


def create(kind: str, folder: Path) -> sl.Dataset:
    ds = sl.create(PLACES[kind].format(folder=folder, name="ds"), sl.Schema({"n": pa.int64()}))
    ds.append([{"sequence_id": f"ep_{n}", "n": n} for n in range(4)])
    return ds


@pytest.fixture(params=QUICK)
def ds(request, tmp_path) -> sl.Dataset:
    return create(request.param, tmp_path)


@pytest.fixture
def standalone(tmp_path) -> sl.Dataset:
    return create("standalone", tmp_path)


def numbers(ds: sl.Dataset, version: object = None) -> list[int]:
    opened = sl.open(ds.location, version=version)
    return sorted(opened.to_arrow()["n"].to_pylist())


def add_one(ds: sl.Dataset) -> None:
    """Every row is written anew, so that no shard of before is needed after."""
    ds.update(
        [
            {"sequence_id": name, "n": n + 1}
            for name, n in ds.to_arrow().select(["sequence_id", "n"]).to_pandas().itertuples(index=False)
        ]
    )


def test_a_version_is_opened_compared_and_restored_by_its_name(ds: sl.Dataset) -> None:
    first = ds.version
    assert ds.tags() == {}
    assert ds.tag("v1") == first
    assert ds.version == first
    add_one(ds)
    assert ds.tag("next", message=None) == ds.version
    assert ds.tags() == sl.open(ds.location).tags() == {"v1": first.id, "next": ds.tags()["next"]}
    assert numbers(ds, "v1") == [0, 1, 2, 3]
    assert numbers(ds, "next") == [1, 2, 3, 4]
    assert len(ds.diff("v1").changed) == 4
    assert ds.tag("again", "v1") == first
    ds.rollback("v1")
    assert numbers(ds) == [0, 1, 2, 3]
    assert set(ds.tags()) == {"v1", "next", "again"}


def test_a_vacuum_keeps_what_has_a_name_and_nothing_else(ds: sl.Dataset) -> None:
    ds.tag("v1")
    held = sl.open(ds.location, version="v1")
    between = None
    for _ in range(3):
        add_one(ds)
        between = between or ds.version
    planned = set(ds.vacuum(older_than=timedelta(0), dry_run=True))
    removed = set(ds.vacuum(older_than=timedelta(0)))
    assert removed or ds.table.kind == "delta"  # there all versions since stay
    assert planned <= removed
    assert numbers(ds, "v1") == sorted(held.to_arrow()["n"].to_pylist()) == [0, 1, 2, 3]
    assert numbers(ds) == [3, 4, 5, 6]
    assert ds.tags()["v1"] in [version.id for version in ds.versions()]
    ds.untag("v1")
    assert ds.tags() == {}
    add_one(ds)
    assert ds.vacuum(older_than=timedelta(0))
    for gone in ("v1", held.version):
        with pytest.raises(VersionNotFoundError):
            sl.open(ds.location, version=gone)
    assert numbers(ds) == [4, 5, 6, 7]
    assert not sl.open(ds.location).validate(depth="rows").errors


def test_a_name_stays_where_it_is_unless_it_is_moved(ds: sl.Dataset) -> None:
    first = ds.tag("v1")
    count = len(ds.versions())
    assert ds.tag("v1") == first
    assert len(sl.open(ds.location).versions()) == count
    add_one(ds)
    with pytest.raises(TagExistsError, match="'v1' is version .* already"):
        ds.tag("v1")
    assert ds.tags() == {"v1": first.id}
    assert ds.tag("v1", move=True) == ds.version
    assert numbers(ds, "v1") == [1, 2, 3, 4]


def test_what_is_no_name_is_refused_and_nothing_is_written(ds: sl.Dataset) -> None:
    before = sl.open(ds.location).version
    for wrong in ("", "7", "a/b", "..", ".a", "a b", "a\n", "ä", "x" * 65, "a\\b", "-a"):
        with pytest.raises(ValueError, match="A tag has 1 to 64"):
            ds.tag(wrong)
    with pytest.raises(TypeError, match="A tag is a text"):
        ds.tag(7)
    with pytest.raises(VersionNotFoundError):
        ds.tag("v9", 999)
    ds.tag("paper-1")
    with pytest.raises(VersionNotFoundError, match="Did you mean 'paper-1'"):
        ds.untag("papper-1")
    with pytest.raises(VersionNotFoundError):
        sl.open(ds.location, version="papper-1")
    assert ds.tags() == {"paper-1": before.id}


def test_versions_that_never_were_are_told_at_once(ds: sl.Dataset, monkeypatch) -> None:
    # deltalake looks for every file of the log up to the one that it is asked for: it must not be asked.
    asked, real = [], DeltaEngine._table
    monkeypatch.setattr(DeltaEngine, "_table", lambda self, number: (asked.append(number), real(self, number))[1])
    ids = [version.id for version in ds.versions()]
    for absent in (-1, -(2**70), 10**9, 10**20, str(10**9), "nope", "", datetime.min, datetime.min.replace(tzinfo=UTC)):
        for act in (lambda v: sl.open(ds.location, version=v), ds.rollback, lambda v: ds.tag("x", v)):
            with pytest.raises(VersionNotFoundError):
                act(absent)
    assert {number for number in asked if number is not None} <= set(ids)
    for late in (datetime.max, datetime.max.replace(tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)):
        assert sl.open(ds.location, version=late).version.id == ids[-1]
    for wrong in (1.5, b"v1", date(2024, 1, 1), ["v1"]):
        with pytest.raises(TypeError, match="A version is a Version, its id, a tag or a datetime"):
            sl.open(ds.location, version=wrong)
        with pytest.raises(TypeError, match="A tag is a text"):
            ds.untag(wrong)
    assert [version.id for version in ds.versions()] == ids


def test_the_command_line_gives_lists_takes_and_honours_names(ds: sl.Dataset, capsys) -> None:
    def run(*arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, arguments)))
        assert stop.value.code == code
        said = capsys.readouterr()
        return said.out if code == 0 else said.err

    place, first = ds.location, ds.version.id
    assert f"v1 is version {first}: 4 sequences." in run("tag", place, "v1")
    add_one(ds)
    assert json.loads(run("tag", place, "v2", "--version", "v1", "--json")) == {
        "schema_version": 1,
        "tag": "v2",
        "version": first,
    }
    listed = json.loads(run("versions", place, "--json"))["rows"]
    assert [row["tags"] for row in listed if row["id"] == first][:1] == ["v1, v2"]
    assert {row["tags"] for row in listed} == {"v1, v2", ""}
    assert json.loads(run("sql", place, "SELECT min(n) AS n FROM dataset", "--version", "v1", "--json"))["rows"] == [
        {"n": 0}
    ]
    assert f"Kept by their tags: v1 (version {first}), v2 (version {first})." in run("vacuum", place, "--older-than", 0)
    assert numbers(ds, "v1") == [0, 1, 2, 3]
    assert "already" in run("tag", place, "v1", code=1)
    run("tag", place, "v1", "--move")
    assert numbers(ds, "v1") == [1, 2, 3, 4]
    run("rollback", place, "v2")
    assert numbers(ds) == [0, 1, 2, 3]
    run("tag", place, "v2", "--delete")
    assert [row["tag"] for row in json.loads(run("tag", place, "--json"))["rows"]] == ["v1"]
    assert "NAME is missing" in run("tag", place, "--delete", code=2)


# ---- lakes
@pytest.mark.parametrize("kind", HOMES[1:])
def test_in_a_lake_a_name_is_no_commit_and_has_no_message(kind: str, tmp_path) -> None:
    ds = create(kind, tmp_path)
    count = len(ds.versions())
    with pytest.raises(ValueError, match="no commit, so it has no message"):
        ds.tag("v1", message="why")
    assert ds.tags() == {}
    ds.tag("v1")
    with pytest.raises(ValueError, match="no commit, so it has no message"):
        ds.untag("v1", message="why")
    assert list(ds.tags()) == ["v1"]
    assert len(sl.open(ds.location).versions()) == count


def test_icebergs_own_tags_are_these(tmp_path) -> None:
    ds = create("iceberg", tmp_path)
    named = ds.tag("v1")
    table = ds.table.engine.load()
    assert table.snapshot_by_name("v1").snapshot_id == named.id
    table.manage_snapshots().create_tag(named.id, "theirs/1").create_branch(named.id, "trial").commit()
    assert ds.tags() == {"theirs/1": named.id, "v1": named.id}
    for branch in ("main", "trial"):
        with pytest.raises(TagExistsError, match="is a branch"):
            ds.tag(branch, move=True)
        with pytest.raises(VersionNotFoundError):
            ds.untag(branch)
    ds.untag("v1")
    assert set(ds.table.engine.load().metadata.refs) == {"main", "theirs/1", "trial"}


@pytest.mark.parametrize("kind", ["delta", "ducklake, sqlite"])
def test_a_file_of_a_name_that_rotted_stops_the_vacuum(kind: str, tmp_path) -> None:
    ds = create(kind, tmp_path)
    ds.tag("v1")
    add_one(ds)
    (file,) = tmp_path.rglob("v1.json")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"version": ', b'"version": 1'))
    for act in (lambda: ds.vacuum(older_than=timedelta(0)), ds.tags, lambda: sl.open(ds.location, version="v1")):
        with pytest.raises(DamagedTableError, match=r"v1\.json"):
            act()
    file.write_bytes(whole)
    ds.vacuum(older_than=timedelta(0))
    assert numbers(ds, "v1") == [0, 1, 2, 3]


def test_a_name_given_while_a_delta_vacuum_is_at_work_counts(tmp_path, monkeypatch) -> None:
    ds = create("delta", tmp_path)
    first = ds.version
    add_one(ds)
    real, done = retention._write_oldest, []

    def write(log, number):
        if not done:
            done.append(True)
            sl.open(ds.location).tag("v1", first)
        real(log, number)

    monkeypatch.setattr(retention, "_write_oldest", write)
    ds.vacuum(older_than=timedelta(0))
    assert done
    assert numbers(ds, "v1") == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", HOMES[1:])
def test_an_expired_version_of_a_lake_gets_no_name(kind: str, tmp_path) -> None:
    ds = create(kind, tmp_path)
    first = ds.version
    add_one(ds)
    ds.vacuum(older_than=timedelta(0))
    with pytest.raises(VersionNotFoundError):
        ds.table.tag("v1", first)
    assert ds.tags() == {}


def test_tables_of_one_lake_have_names_of_their_own_and_honour_all(tmp_path) -> None:
    ds = create("ducklake, sqlite", tmp_path)
    other = sl.create(ds.location.replace("table=ds", "table=other"), sl.Schema({"n": pa.int64()}))
    ds.tag("v1")
    assert other.tags() == {}
    other.tag("v1")
    add_one(ds)
    other.append([{"sequence_id": "a", "n": 1}])
    other.vacuum(older_than=timedelta(0))
    ds.vacuum(older_than=timedelta(0))
    assert numbers(ds, "v1") == [0, 1, 2, 3]
    assert numbers(other, "v1") == []


@pytest.mark.parametrize("kind", [kind for kind in HOMES if kind.startswith("ducklake")])
def test_names_belong_to_the_table_and_not_to_its_name(kind: str, tmp_path) -> None:
    """Renamed by another client it keeps them; one of the same name later has none of them."""
    duckdb = pytest.importorskip("duckdb")
    ds = create(kind, tmp_path)
    first = ds.tag("v1")
    add_one(ds)
    address = ds.location.removeprefix("ducklake:").partition("?")[0]
    del ds
    with sqlite_or_duckdb(duckdb, address) as run:
        run("UPDATE ducklake_table SET table_name = 'renamed' WHERE table_name = 'ds'")
    place = PLACES[kind].format(folder=tmp_path, name="{}")
    renamed = sl.open(place.format("renamed"))
    assert renamed.tags() == {"v1": first.id}
    assert numbers(renamed, "v1") == [0, 1, 2, 3]
    again = sl.create(place.format("ds"), sl.Schema({"n": pa.int64()}))
    assert again.tags() == {}
    with pytest.raises(VersionNotFoundError):
        sl.open(again.location, version="v1")
    again.tag("v1")
    assert numbers(again, "v1") == []
    assert renamed.tags() == {"v1": first.id}


@pytest.mark.parametrize("kind", ["delta", "iceberg", "ducklake", "ducklake, sqlite"])
def test_a_table_dropped_and_made_again_is_another_one(kind: str, tmp_path) -> None:
    """Whoever has the first one open never sees, changes, names or vacuums the second."""
    ds = create(kind, tmp_path)
    still, carried = sl.open(ds.location), pickle.dumps(sl.open(ds.location))
    owner = sl.open(ds.location)
    owner.table.drop()
    with pytest.raises(DatasetNotFoundError):
        still.refresh()
    create(kind, tmp_path).append([{"sequence_id": "new", "n": 10}])
    again = sl.open(ds.location)
    verbs: dict[str, Callable[[sl.Dataset], object]] = {
        "refresh": lambda one: one.refresh(), "versions": lambda one: one.versions(), "tags": lambda one: one.tags(),
        "tag": lambda one: one.tag("v1"), "append": lambda one: one.append([{"sequence_id": "mine", "n": 5}]),
        "delete": lambda one: one.delete(ids=["ep_0"]), "rollback": lambda one: one.rollback(one.version),
        "vacuum": lambda one: one.vacuum(older_than=timedelta(0)), "drop": lambda one: one.table.drop(),
    }  # fmt: skip
    for verb, do in verbs.items():
        for opened in (lambda: still, lambda: pickle.loads(carried)):
            with pytest.raises(DatasetNotFoundError, match="another one was made under its name") as refused:
                do(opened())
            assert "sl.open" in str(refused.value), verb
    assert (again.tags(), len(again.versions())) == ({}, len(sl.open(ds.location).versions()))
    assert numbers(ds) == [0, 1, 2, 3, 10]


@contextmanager
def sqlite_or_duckdb(duckdb: Any, address: str) -> Iterator[Callable[[str], Any]]:
    """The catalog itself, as another client changes it."""
    path = address.removeprefix("sqlite:")
    connection = sqlite3.connect(path) if path != address else duckdb.connect(path)
    yield connection.execute
    connection.commit()
    connection.close()


# ---- standalone tables keep them in the log
def test_the_log_says_that_readers_must_know_tags(standalone: sl.Dataset, monkeypatch) -> None:
    place = Path(standalone.location)
    assert not any("requires" in json.loads(one.read_text()) for one in place.glob("_seqlake/versions/*"))
    number = standalone.version.id
    standalone.tag("v1", message="as in the paper")
    record = json.loads(max(place.glob("_seqlake/versions/*")).read_text())
    assert record["tags"] == {"v1": number}
    assert (record["requires"], record["operation"], record["message"]) == (["tags"], "tag", "as in the paper")
    add_one(standalone)
    monkeypatch.setattr(forms, "UNDERSTOOD", frozenset())  # an older release
    with pytest.raises(UnsupportedVersionError, match="requires 'tags'"):
        sl.open(standalone.location)


def test_checkpoints_carry_them(standalone: sl.Dataset, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", 3)
    standalone.tag("v1")
    for _ in range(4):
        add_one(standalone)
    place = Path(standalone.location)
    assert list(place.glob("_seqlake/checkpoints/*.arrow"))
    assert sl.open(standalone.location).tags() == {"v1": 1}
    monkeypatch.setattr(forms, "UNDERSTOOD", frozenset())
    with pytest.raises(UnsupportedVersionError):  # a checkpoint does not hide what the log requires
        sl.open(standalone.location)
    monkeypatch.undo()
    standalone.vacuum(older_than=timedelta(0))
    oracle.check(LocalStore(place), oracle.Expected())
    assert numbers(standalone, "v1") == [0, 1, 2, 3]


def test_an_expired_version_gets_no_name(standalone: sl.Dataset) -> None:
    first = standalone.tag("v1")
    add_one(standalone)
    add_one(standalone)
    standalone.vacuum(older_than=timedelta(0))
    assert standalone.tag("v2", "v1") == first  # it is still there
    standalone.untag("v1")
    standalone.untag("v2")
    with pytest.raises(VersionNotFoundError):
        standalone.tag("v3", first)
    with pytest.raises(VersionNotFoundError):
        standalone.rollback(first)


def test_a_plain_folder_is_adopted(tmp_path) -> None:
    source = create("standalone", tmp_path)
    (tmp_path / "plain/data").mkdir(parents=True)
    for file in Path(source.location, "data").iterdir():
        (tmp_path / "plain/data/a.parquet").write_bytes(file.read_bytes())
    (tmp_path / "plain/mixtrain.json").write_bytes(Path(source.location, "mixtrain.json").read_bytes())
    plain = sl.open(tmp_path / "plain")
    plain.tag("v1")
    assert plain.tags() == {"v1": 0}
    assert numbers(plain, "v1") == [0, 1, 2, 3]


def test_a_vacuum_that_comes_between_is_noticed(standalone: sl.Dataset, monkeypatch) -> None:
    first = standalone.version
    add_one(standalone)
    moment = datetime.now(UTC)
    time.sleep(0.5)  # the tag begins later, so that the vacuum does not give it up
    real, done = committing._create, []

    def create(log, record):
        if not done:
            done.append(True)
            assert sl.open(standalone.location).vacuum(older_than=datetime.now(UTC) - moment)
        return real(log, record)

    monkeypatch.setattr(committing, "_create", create)
    with pytest.raises(VersionNotFoundError):
        standalone.tag("v1", first)
    assert sl.open(standalone.location).tags() == {}
    oracle.check(LocalStore(Path(standalone.location)), oracle.Expected())


def test_two_who_give_one_name_at_once(standalone: sl.Dataset, monkeypatch) -> None:
    first = standalone.version
    add_one(standalone)
    real, done = committing._create, []

    def create(log, record):
        if not done:
            done.append(True)
            sl.open(standalone.location).tag("v1", first)
        return real(log, record)

    monkeypatch.setattr(committing, "_create", create)
    with pytest.raises(TagExistsError):
        standalone.tag("v1")
    assert sl.open(standalone.location).tags() == {"v1": first.id}


def test_writers_vacuums_and_names_at_once(standalone: sl.Dataset) -> None:
    """Whoever was told that a version has a name finds it, whatever vacuums do meanwhile."""
    place, given, stop = standalone.location, {}, threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            sl.open(place).vacuum(older_than=timedelta(milliseconds=100))

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(12):
            name = f"v{number}"
            with suppress(VersionNotFoundError, CommitConflictError):  # the vacuum was faster, and says so
                ds = sl.open(place)
                add_one(ds)
                given[name] = (ds.tag(name), numbers(ds, name))
    finally:
        stop.set()
        sweeper.join()
    assert {name: version.id for name, (version, _) in given.items()} == sl.open(place).tags()
    standalone.vacuum(older_than=timedelta(0))
    for name, (_, rows) in given.items():
        assert numbers(standalone, name) == rows
    oracle.check(LocalStore(Path(place)), oracle.Expected())

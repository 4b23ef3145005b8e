"""Where tables are: local warehouses, configured catalogs, a REST catalog, pyiceberg's own objects."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CommitUnknownError, DatasetExistsError, DatasetNotFoundError
from seqlake.tables import iceberg

COLUMNS = {"task": pa.string()}


def row(number):
    return [{"sequence_id": f"s{number}", "task": "pick"}]


def test_a_local_warehouse_is_made_and_is_found_by_pyiceberg(address, theirs, tmp_path, monkeypatch):
    ds = sl.create(address, COLUMNS)
    ds.append(row(1))
    assert theirs().scan().to_arrow().num_rows == 1
    monkeypatch.chdir(tmp_path)
    assert len(sl.open("iceberg:warehouse/robots.episodes")) == 1
    assert ds.source.root == str(tmp_path / "warehouse" / "robots" / "episodes")
    with pytest.raises(DatasetExistsError):
        sl.create(address, COLUMNS)
    assert len(sl.create(address, COLUMNS, exist_ok=True)) == 1


def test_what_is_not_there_is_said(address, tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"catalog\.db"):
        sl.open(address)
    assert not (tmp_path / "warehouse").exists()  # looking makes nothing
    sl.create(address, COLUMNS)
    with pytest.raises(DatasetNotFoundError, match="no table robots.other"):
        sl.open(address.replace("episodes", "other"))
    with pytest.raises(DatasetNotFoundError, match="no catalog 'unheard-of'"):
        sl.open("iceberg://unheard-of/a.b")
    for wrong in ("iceberg:table", "iceberg://catalog", f"iceberg:{tmp_path}/table"):
        with pytest.raises(ValueError, match="namespace.table"):
            sl.open(wrong)


def test_a_catalog_of_pyicebergs_own_configuration(tmp_path, monkeypatch):
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAB__URI", f"sqlite:///{tmp_path}/c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAB__WAREHOUSE", f"file://{tmp_path}/w")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # it reads the environment once
    sl.create("iceberg://lab/rl.episodes", COLUMNS).append(row(1))
    table = pyiceberg.catalog.load_catalog("lab").load_table("rl.episodes")
    assert table.scan().to_arrow()["sequence_id"].to_pylist() == ["s1"]
    assert len(sl.open("iceberg://lab/rl.episodes")) == 1


def test_a_warehouse_given_as_storage(tmp_path):
    storage = {"warehouse": str(tmp_path / "w")}
    sl.create("iceberg://mine/rl.episodes", COLUMNS, storage=storage).append(row(1))
    assert len(sl.open("iceberg://mine/rl.episodes", storage=storage)) == 1
    assert (tmp_path / "w" / "catalog.db").is_file()


def test_a_folder_of_any_name(tmp_path, cells):
    folder = tmp_path / "pick & place, 100% (ü)"
    ds = sl.create(f"iceberg:{folder}/rl.episodes", COLUMNS)
    ds.append(row(1))
    ds.append(row(2))
    assert sorted(path.name for path in folder.iterdir()) == ["catalog.db", "rl"]
    ds = sl.open(f"iceberg:{folder}/rl.episodes")
    assert cells(ds) == cells(ds.table.engine.load().scan().to_arrow())
    ds.delete(ids=["s1"])
    assert ds.vacuum(older_than=timedelta(0))
    assert len(sl.open(f"iceberg:{folder}/rl.episodes")) == 1


def test_pyicebergs_own_object_travels_to_other_processes(address, theirs):
    sl.create(address, COLUMNS).append(row(1))
    ds = sl.open(theirs())
    ds.append(row(2))
    again = pickle.loads(pickle.dumps(ds))
    assert len(again) == 2
    again.append(row(3))
    assert theirs().scan().to_arrow().num_rows == 3
    assert iceberg.matches(theirs())
    assert not iceberg.matches(object())


def test_a_catalog_in_memory_lives_in_its_table(tmp_path):
    from pyiceberg.catalog.memory import InMemoryCatalog

    catalog = InMemoryCatalog("here", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("rl")
    properties = {"mixtrain": '{"mixtrain": "1.0"}'}
    table = catalog.create_table("rl.ep", pa.schema([("sequence_id", pa.string())]), properties=properties)
    ds = sl.open(table)
    ds.append([{"sequence_id": "a"}])
    assert table.scan().to_arrow().num_rows == 0  # its owner has not looked again
    assert table.refresh().scan().to_arrow().num_rows == 1


def test_no_secret_is_shown(tmp_path):
    storage = {"warehouse": str(tmp_path / "w"), "s3.secret-access-key": "hidden-1", "secret_access_key": "hidden-2"}
    ds = sl.create("iceberg://mine/rl.episodes", COLUMNS, storage=storage)
    assert "hidden" not in repr(ds) + repr(ds.table) + repr(ds.table.engine) + repr(ds.table.engine.address)


def test_a_rest_catalog(rest, cells):
    uri, behind, _ = rest
    storage = {"uri": uri}
    ds = sl.create("iceberg://cloud/rl.episodes", {**COLUMNS, "action": sl.Trajectory(dim=1)}, storage=storage)
    ds.append([{"sequence_id": "a", "action": [[1.0], [2.0]]}])
    ds.rename_column("task", "label")
    ds.append([{"sequence_id": "b", "label": "wave"}])
    ds.delete(ids=["a"])
    assert cells(ds) == cells(behind.load_table("rl.episodes").scan().to_arrow())
    assert len(sl.open("iceberg://cloud/rl.episodes", storage=storage, version=ds.versions()[1])) == 1
    assert [v.rows for v in ds.versions()] == [0, 1, 1, 2, 1]


def test_a_lost_answer_to_a_commit_is_looked_up(rest):
    uri, behind, spoil = rest
    ds = sl.create("iceberg://cloud/rl.episodes", COLUMNS, storage={"uri": uri})
    spoil.append("after")
    ds.append(row(1))
    assert ds.versions()[-1].rows == 1
    spoil.append("before")
    with pytest.raises(CommitUnknownError, match="snapshot"):
        ds.append(row(2))
    assert behind.load_table("rl.episodes").scan().to_arrow()["sequence_id"].to_pylist() == ["s1"]
    ds.append(row(3))
    assert len(sl.open("iceberg://cloud/rl.episodes", storage={"uri": uri})) == 2


def test_no_password_of_a_catalog_that_cannot_be_opened_is_shown():
    with pytest.raises(DatasetNotFoundError, match="no catalog 'mine'") as raised:
        sl.open("iceberg://mine/rl.episodes", storage={"uri": "odd://me:hunter2@db/lake"})
    assert "hunter2" not in str(raised.value)

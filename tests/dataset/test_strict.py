"""Nobody asks a plug for more than its protocol says: everything runs over proxies that let nothing else through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake import abilities, plugins, protocols
from seqlake.cli import main
from seqlake.dataset import reshaping
from seqlake.testing import samples
from seqlake.testing.strict import Strict, strict_plugs

pytest.importorskip("pyiceberg")

HOMES = {
    "standalone": "{}/arm",
    "delta": "delta:{}/arm",
    "iceberg": "iceberg:{}/warehouse/robots.arm",
    "ducklake": "ducklake:sqlite:{}/lake.sqlite?table=arm",
}


@pytest.fixture(autouse=True)
def strict():
    with strict_plugs():
        yield


@pytest.fixture(params=HOMES)
def ds(request, tmp_path):
    made = sl.create(HOMES[request.param].format(tmp_path), samples.arm_schema())
    made.append(list(samples.arm_episodes(6)))
    made.append(list(samples.arm_episodes(4, first=6)))
    assert isinstance(made.table, Strict)
    return made


def cli(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    out, err = capsys.readouterr()
    assert not stop.value.code, err
    return out


def test_a_proxy_lets_nothing_else_through(tmp_path: Path) -> None:
    ds = sl.create(f"delta:{tmp_path}/arm", samples.arm_schema())
    with pytest.raises(AttributeError, match="Table has no 'engine'"):
        _ = ds.table.engine
    assert isinstance(plugins.load("formats", "mds"), Strict)
    lake = abilities.ability(ds.table, abilities.OfALake)
    assert lake is not None
    assert lake.plain_lists
    with pytest.raises(AttributeError, match="OfALake has no 'snapshot'"):
        _ = lake.snapshot
    assert abilities.ability(ds.table, abilities.HasStrangers) is None
    assert isinstance(ds.table.snapshot(), protocols.Readable)


def test_reading(ds: sl.Dataset) -> None:
    assert len(ds) == 10
    assert ds["ep_0003"]["action"].shape[1] == samples.ACTION
    assert len(ds.where("length > 0 AND task = 'pick'")) == len([s for s in ds if s["task"] == "pick"])
    assert ds.sql("SELECT count(*) AS n FROM dataset").fetchall() == [(10,)]
    assert ds.to_arrow().num_rows == 10
    assert ds.lengths("action").min() > 0
    assert sl.statistics(ds, ["action"]).rows == 10
    assert ds.validate(depth="files").ok
    assert repr(ds)
    assert np.array_equal(abilities.ability(ds, abilities.HasIds).find_ids(["ep_0009", "none"]), [9, -1])
    loader = sl.Loader(ds.where("length > 0"), window=sl.Window({"action": range(4)}), batch_size=8, seed=1)
    assert sum(len(batch["action"]) for batch in loader) > 8


@pytest.mark.sampled(every=2)
def test_changing(ds: sl.Dataset) -> None:
    ds.update([{"sequence_id": "ep_0001", "task": "pour"}])
    ds.upsert([{"sequence_id": "ep_0002", "reward": 1.5}, {"sequence_id": "new", "task": "wipe"}])
    ds.add_column("good", pa.bool_(), sql="length > 30")
    ds.rename_column("good", "fine", rewrite=True)
    ds.drop_column("fine", rewrite=True)
    before = ds.version.id
    ds.delete("task = 'pour'")
    ds.rollback(before)
    assert ds["ep_0001"]["task"] == "pour"
    assert len(ds) == 11
    assert len(ds.versions()) >= 6
    sl.compact(ds)
    ds.adopt()
    ds.vacuum(dry_run=True)
    assert ds.validate(depth="rows").ok


def test_files_that_are_copied_in(ds: sl.Dataset, tmp_path: Path) -> None:
    ds.add_column("note", sl.ColumnType("image"))
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    ds.upsert([{"sequence_id": "ep_0000", "note": sl.File(path)}])
    assert ds["ep_0000"]["note"].read() == path.read_bytes()
    out = sl.convert(ds, tmp_path / "moved", progress=False)
    assert out["ep_0000"]["note"].read() == path.read_bytes()


@pytest.mark.sampled(every=2)
def test_moving(ds: sl.Dataset, tmp_path: Path) -> None:
    sl.convert(ds, tmp_path / "mds", to="mds", progress=False)
    assert len(sl.scan(tmp_path / "mds")) == 10
    assert len(sl.convert(tmp_path / "mds", tmp_path / "back", progress=False)) == 10
    for number, home in enumerate([HOMES["standalone"], HOMES["delta"]]):
        out = sl.convert(ds, home.format(tmp_path / f"to-{number}"), progress=False, adopt=number == 1)
        assert len(out) == 10
    reshaping.subset(ds.where("length > 0"), tmp_path / "part")
    reshaping.split(ds, tmp_path / "parts", by="task")


def test_the_command_line(ds: sl.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ds.location
    assert "10" in cli(capsys, "info", place)
    assert "ep_0003" in cli(capsys, "ls", place)
    for words in (("validate", place), ("stats", place), ("versions", place), ("files", place), ("schema", place)):
        cli(capsys, *words)
    cli(capsys, "sql", place, "SELECT count(*) FROM dataset")
    cli(capsys, "convert", place, str(tmp_path / "out"))
    assert "10" in cli(capsys, "info", str(tmp_path / "out"))

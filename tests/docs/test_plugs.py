"""The plugs of `docs/how-to/write-a-plug.md` work as written, installed by entry points."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import feather

import seqlake as sl
from seqlake import media, plugins
from seqlake.errors import DatasetExistsError, DatasetNotFoundError, DuplicateSequenceError, UnsafeReferenceError
from seqlake.protocols import Change, Version, Written
from seqlake.shards.ids import hash_ids, pack
from seqlake.tables import delta, standalone
from seqlake.testing import tables

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-plug.md"
BLOCKS = dict(re.findall(r"^```py\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module", autouse=True)
def my_lab(tmp_path_factory: pytest.TempPathFactory):
    """The package of the page, installed for as long as these tests run."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "my_lab-1.0.dist-info"
    for path in (about, folder / "my_lab"):
        path.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lab\nVersion: 1.0\n")
    toml = re.findall(r'^\[project.entry-points."(.*?)"\]\n(\w+) = "(.*?)"', PAGE.read_text(), re.MULTILINE)
    assert len(toml) == 5
    (about / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {place}\n" for group, name, place in toml))
    (folder / "my_lab" / "__init__.py").touch()
    for name, code in BLOCKS.items():
        if name.startswith("my_lab/"):
            (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        forget()
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]
    forget()


def forget() -> None:
    importlib.invalidate_caches()
    plugins._installed.cache_clear()
    media._plugs.cache_clear()


def names() -> dict[str, object]:
    import io

    return {"__name__": "page", "np": np, "sl": sl, "Path": Path, "io": io}


def run(name: str) -> dict[str, object]:
    known = names()
    exec(compile(BLOCKS[name], f"{PAGE}: {name}", "exec"), known)
    return known


@pytest.mark.sampled(every=2, start=1)
@pytest.mark.parametrize("name", [name for name in BLOCKS if name.startswith("tests/")])
def test_the_suites_of_the_page_pass(name: str, tmp_path: Path) -> None:
    """Each law of the suite that the page's test inherits, as its author would run it."""
    path = tmp_path / Path(name).name
    path.write_text("import io\nimport numpy as np\nimport seqlake as sl\n" + BLOCKS[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    passed = re.search(r"^(\d+) passed in", ended.stdout, re.MULTILINE)  # nothing failed, nothing was skipped
    assert passed, ended.stdout
    assert int(passed[1]) >= 5


@pytest.mark.parametrize("name", [name for name in BLOCKS if name.startswith("use")])
def test_what_the_page_does_with_them_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(name)


def test_a_dataset_that_lies_elsewhere_may_not_name_their_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sl.create("box://films.db", {"action": sl.Trajectory(dim=1)}).table.store.put("cam.png", b"a picture")
    ds = sl.create("sent", {"pic": sl.Image()})
    ds.append([{"sequence_id": "a", "pic": "box://films.db/cam.png"}])
    with pytest.raises(UnsafeReferenceError, match="of scheme 'box'"):
        sl.open("sent")["a"]["pic"].open()
    trusted = sl.open("sent", allow_buckets=["box://films.db"])
    assert trusted["a"]["pic"].open().read() == b"a picture"


def test_files_that_were_copied_in_lie_in_their_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read, checked, converted and cleaned up where the rows are."""
    monkeypatch.chdir(tmp_path)
    pictures = {f"ep_{number}": np.full((8, 6, 3), 40 * number, np.uint8) for number in range(4)}
    for name, picture in pictures.items():
        Image.fromarray(picture).save(f"{name}.png")
    ds = sl.create("box://arm.db/takes", {"cam": sl.Image()})
    ds.append([{"sequence_id": name, "cam": sl.File(f"{name}.png")} for name in pictures])
    for path in tmp_path.glob("*.png"):
        path.unlink()
    ds = sl.open("box://arm.db/takes")
    assert ds["ep_1"]["cam"].location.startswith("box://arm.db/takes/files/cam/")
    for name, picture in pictures.items():
        assert np.array_equal(ds[name]["cam"][0], picture)
    assert ds.validate(depth="decode").ok
    assert {entry.state for entry in ds.files()} == {"present"}
    copy = sl.convert(ds, "box://arm.db/copy")
    assert np.array_equal(copy["ep_3"]["cam"][0], pictures["ep_3"])
    ds.delete(ids=["ep_0"])
    assert any(".png" in path for path in ds.vacuum(older_than=timedelta(0)))
    assert ds.validate(depth="decode").ok
    assert len([path for path, _ in ds.table.store.list("files")]) == 3


def feathered(table: Any, ids: list[str]) -> Version:
    """Commit the episodes of these ids in one shard of their format."""
    transaction = table.begin()
    path = Path(table.place(transaction, {}, n="0", format="feather"))
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = tables.batch(map(tables.episode, ids), tables.SCHEMA)
    feather.write_feather(pa.Table.from_batches([rows]), path)
    written = Written(
        location=str(path),
        rows=len(ids),
        nbytes=path.stat().st_size,
        partition={},
        statistics={},
        ids=pack(hash_ids(rows["sequence_id"])),
        index=b"",
    )
    version: Version = table.commit(Change(operation="append", add=[written]), transaction=transaction)
    return version


def test_new_shards_may_be_of_their_format(tmp_path: Path) -> None:
    """They are committed, found by id, rewritten, brought back under their format and removed, as others are."""
    table = standalone.create(tmp_path / "arm", tables.SCHEMA)
    first = feathered(table, ["a", "b", "c"])
    assert [path.suffix for path in (tmp_path / "arm" / "data").iterdir()] == [".feather"]
    with pytest.raises(DuplicateSequenceError):
        feathered(table, ["c", "d"])
    tables.append(table, ["d"])
    ds = sl.open(tmp_path / "arm")
    ds.delete(ids=["b"])
    assert tables.rows_of(sl.open(tmp_path / "arm")) == tables.expected("acd")
    table.rollback(first)
    assert tables.rows_of(table.snapshot()) == tables.expected("abc")
    table.vacuum(older_than=timedelta(0))
    left = list((tmp_path / "arm").rglob("part-*"))
    assert [path.suffix for path in left] == [".feather"]
    assert pa.ipc.open_file(left[0]).read_all()["sequence_id"].to_pylist() == ["a", "b", "c"]
    assert sl.open(tmp_path / "arm").validate(depth="rows").ok


def test_a_folder_of_their_files_becomes_a_dataset_under_their_names(tmp_path: Path) -> None:
    rows = tables.batch(map(tables.episode, "abc"), tables.SCHEMA)
    feather.write_feather(pa.Table.from_batches([rows]), tmp_path / "takes.feather")
    (tmp_path / "mixtrain.json").write_text(tables.SCHEMA.metadata.to_json())
    sl.open(tmp_path).table.adopt()
    assert [path.suffix for path in (tmp_path / "data").iterdir()] == [".feather"]
    assert tables.rows_of(sl.open(tmp_path)) == tables.expected("abc")


def test_shards_of_a_format_that_nobody_offers_have_no_place(tmp_path: Path) -> None:
    for table in (standalone.create(tmp_path / "arm", tables.SCHEMA), delta.create(str(tmp_path / "d"), tables.SCHEMA)):
        with pytest.raises(ValueError, match="'wool'"):
            table.place(table.begin(), {}, n="0", format="wool")
    with pytest.raises(ValueError, match="has parquet shards, found the format 'feather'"):
        table.place(table.begin(), {}, n="0", format="feather")


def test_a_folder_of_theirs_is_known_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from seqlake.cli import main

    monkeypatch.chdir(tmp_path)
    run("use.py")
    for words in (["info", "recordings"], ["validate", "recordings", "--depth", "rows"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert not stop.value.code, capsys.readouterr().err
    assert "4 sequences" in capsys.readouterr().out


def test_a_table_of_theirs_is_known_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from seqlake.cli import main

    monkeypatch.chdir(tmp_path)
    ds = sl.create("ledger:arm", {"action": sl.Trajectory(dim=2)})
    ds.append([{"sequence_id": name, "action": np.ones((5, 2))} for name in ("a", "b", "c")])
    for words in (["info", "ledger:arm"], ["validate", "ledger:arm"], ["convert", "ledger:arm", "ledger:copy"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        out, err = capsys.readouterr()
        assert not stop.value.code, err
        assert words[0] != "info" or "3 sequences" in out
    assert len(sl.open("ledger:copy")) == 3
    with pytest.raises(DatasetNotFoundError, match="No ledger"):
        sl.open("ledger:nowhere")
    with pytest.raises(DatasetExistsError):
        sl.create("ledger:arm", {"action": sl.Trajectory(dim=2)})

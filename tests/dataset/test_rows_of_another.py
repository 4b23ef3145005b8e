"""Rows given as another dataset, or as an older version of the same one, bring the files that they name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, UnsafeReferenceError, ValidationError

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = sl.Schema({"log": sl.ColumnType("mcap"), "note": pa.string(), "n": pa.int64()})
BYTES = {f"ep_{number}": bytes([number]) * 100 for number in range(4)}


def _written(ds: sl.Dataset, other: sl.Dataset) -> None:
    with ds.writer(rows_per_shard=3) as writer:
        writer.add("mine", n=7)  # in the shard before: no file goes with it
        writer.add_batch(other)
    ds.delete(ids=["mine"])


def _updated(ds: sl.Dataset, other: sl.Dataset) -> None:
    ds.append([{"sequence_id": key} for key in BYTES])
    ds.update(other)


GIVES: dict[str, Callable[[sl.Dataset, sl.Dataset], Any]] = {
    "append": lambda ds, other: ds.append(other),
    "a commit each": lambda ds, other: ds.append(other.where("true"), commit_every=1),
    "add_batch": _written,
    "upsert": lambda ds, other: ds.upsert(other.where("n >= 0")),
    "update": _updated,
}


def filled(place: str, folder: Path) -> sl.Dataset:
    """Two shards; each text names a file as the file column does."""
    ds = sl.create(place, SCHEMA)
    rows = []
    for number, (key, data) in enumerate(BYTES.items()):
        (folder / key).write_bytes(data)
        file = sl.File(folder / key)
        rows.append({"sequence_id": key, "log": file, "note": file, "n": number})
    ds.append(rows[:2])
    ds.append(rows[2:])
    return ds


def check(ds: sl.Dataset) -> None:
    """Every file is there by its bytes, and stays when the dataset is cleaned."""
    ds.vacuum(older_than=timedelta(0))
    ds = sl.open(ds.location)
    assert {view.id: Path(ds.root, view["log"].reference).read_bytes() for view in ds} == BYTES
    assert {view.id: Path(ds.root, view["note"]).read_bytes() for view in ds} == BYTES
    assert not [finding for finding in ds.validate(depth="files") if finding.severity == "error"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "verb"), [*(("standalone", verb) for verb in GIVES), *((kind, "append") for kind in list(PLACES)[1:4])]
)
def test_its_files_come_along(tmp_path: Path, kind: str, verb: str) -> None:
    other = filled(str(tmp_path / "other"), tmp_path)
    ds = sl.create(PLACES[kind].format(folder=tmp_path, name="ds"), SCHEMA)
    GIVES[verb](ds, other)
    for path in (tmp_path / "other").rglob("*"):
        if path.is_file():
            path.unlink()
    check(ds)


@pytest.mark.parametrize("verb", ["append", "upsert"])
def test_rows_of_an_older_version_keep_theirs(tmp_path: Path, verb: str) -> None:
    """A vacuum removes what no version names: the row that came back names a file of its own."""
    ds = filled(str(tmp_path / "ds"), tmp_path)
    older = sl.open(tmp_path / "ds")
    ds.delete(ids=["ep_1", "ep_2"])
    GIVES[verb](ds, older.where("sequence_id = 'ep_1'"))
    GIVES[verb](ds, older.where("sequence_id = 'ep_2'"))
    check(ds)


def test_links_into_the_own_root_stay(tmp_path: Path) -> None:
    """What was not copied in belongs to nobody's commit: it is neither copied nor moved."""
    ds = sl.create(tmp_path / "ds", SCHEMA)
    (tmp_path / "ds" / "mine.mcap").write_bytes(b"here")
    ds.append([{"sequence_id": "a", "log": "mine.mcap", "note": "files are here"}])
    older = sl.open(tmp_path / "ds")
    ds.delete(ids=["a"])
    ds.append(older)
    assert ds.select("log", "note").to_arrow().to_pylist() == [{"log": "mine.mcap", "note": "files are here"}]


def harm(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


@pytest.mark.parametrize(
    ("spoil", "error"), [(Path.unlink, ValidationError), (harm, CorruptFileError), (None, UnsafeReferenceError)]
)
@pytest.mark.parametrize("verb", ["append", "upsert"])
def test_what_cannot_come_along_stops_it(tmp_path: Path, verb: str, spoil: Any, error: type[Exception]) -> None:
    other, ds = filled(str(tmp_path / "other"), tmp_path), sl.create(tmp_path / "ds", SCHEMA)
    if spoil is None:
        other.append([{"sequence_id": "out", "log": "../elsewhere.mcap", "n": 5}])
    else:
        spoil(tmp_path / "other" / other.sequence("ep_3")["log"].reference)
    before = ds.version.id
    with pytest.raises(error):
        GIVES[verb](ds, other)
    assert sl.open(tmp_path / "ds").version.id == before
    assert not list((tmp_path / "ds").rglob("*.parquet"))
    assert not [path for path in (tmp_path / "ds" / "files").rglob("*") if path.is_file()]

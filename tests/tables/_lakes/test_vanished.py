"""A file of a lake's table that vanishes, before it is opened or after: errors of ours, and validation names it."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import DamagedTableError, SeqlakeError

from ...homes import PLACES  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from collections.abc import Callable

VERBS: dict[str, Callable[[sl.Dataset], Any]] = {
    "rows": lambda ds: ds.to_arrow(),
    "frames": lambda ds: [view["cam"][0] for view in ds],
    "loader": lambda ds: sum(1 for _ in sl.Loader(ds, window={"action": range(2), "cam": range(2)}, batch_size=8)),
    "append": lambda ds: ds.append([{"sequence_id": "new"}]),
    "update": lambda ds: ds.update([{"sequence_id": "ep_3", "split": "test"}]),
    "compact": sl.compact,
    "versions": lambda ds: ds.versions(),
    "tag": lambda ds: ds.tag("v1"),
    "vacuum": lambda ds: ds.vacuum(older_than=timedelta(0)),
}
KINDS = {
    "iceberg": {
        "data file": "data/*.parquet",
        "delete file": "deletes-1.parquet",
        "manifest": "metadata/*-m?.avro",
        "manifest list": "metadata/snap-*.avro",
        "metadata": "metadata/*.metadata.json",
        "copied-in video": "files/cam/*/*.mp4",
    },
    "ducklake": {"data file": "part-*.parquet", "delete file": "*-delete.parquet", "copied-in video": "*.mp4"},
}


@pytest.fixture(scope="module", params=list(KINDS))
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """(address, where it lies, a copy of that): two shards with videos, and a row that another client deleted."""
    top = tmp_path_factory.mktemp("vanished")
    work = top / "work"
    work.mkdir()
    place = PLACES[request.param].format(folder=work, name="ds")
    ds = sl.create(place, sl.Schema({"action": sl.Trajectory(dim=2), "split": pa.string(), "cam": sl.Video(fps=10)}))
    for shard in range(2):
        with ds.writer() as writer:
            for number in range(2 * shard, 2 * shard + 2):
                writer.add(f"ep_{number}", action=np.ones((4, 2)), cam=np.zeros((4, 16, 24, 3), np.uint8))
    DELETES[request.param](ds)
    shutil.copytree(work, top / "saved")
    return place, work, top / "saved"


def iceberg_delete(ds: sl.Dataset) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    from ..iceberg.test_deletes import position_deletes  # noqa: TID252 - as above

    folder = Path(ds.root).parents[1]
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    theirs = catalog.load_table(("robots", "ds"))
    position_deletes(theirs, {theirs.inspect.files()["file_path"][0].as_py(): [0]}, Path(ds.root))


def duckdb_delete(ds: sl.Dataset) -> None:
    from ..ducklake.conftest import Engine, extension  # noqa: TID252 - as above

    if extension("ducklake"):
        Engine(ds.location).run("DELETE FROM main.ds WHERE sequence_id = 'ep_0'")


DELETES = {"iceberg": iceberg_delete, "ducklake": duckdb_delete}


def ended(call: Callable[[], Any]) -> SeqlakeError | None:
    """The error of ours that a call ends with; any other is one too many."""
    try:
        call()
    except SeqlakeError as error:
        return error
    return None


def vanish(lake: tuple[str, Path, Path], pattern: str) -> list[Path]:
    _, work, saved = lake
    shutil.rmtree(work)
    shutil.copytree(saved, work)
    paths = [path for path in work.rglob(pattern) if path.is_file()]
    for path in paths:
        path.unlink()
    return paths


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "verbs", [["rows", "frames", "update", "vacuum"], pytest.param(list(VERBS), marks=pytest.mark.soak)]
)
def test_a_file_that_vanishes_is_an_error_of_ours(lake: tuple[str, Path, Path], verbs: list[str]) -> None:
    place, work, saved = lake
    for kind, pattern in KINDS[place.partition(":")[0]].items():
        met = []
        for verb in map(VERBS.__getitem__, verbs):
            shutil.rmtree(work)
            shutil.copytree(saved, work)
            ds = sl.open(place)
            gone = vanish(lake, pattern)
            met.append(ended(lambda verb=verb, ds=ds: verb(ds)))  # type: ignore[misc]
            vanish(lake, pattern)
            met.append(ended(lambda verb=verb: verb(sl.open(place))))  # type: ignore[misc]
        assert gone or kind == "delete file", kind  # of DuckLake's, where no wheel brought DuckDB's extension
        if gone:
            assert any(isinstance(error, DamagedTableError) for error in met), kind
            vanish(lake, pattern)
            found = ended(lambda: sl.open(place).validate(depth="files").raise_for_errors())
            assert found is not None, kind

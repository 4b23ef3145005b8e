"""Types and metadata of a dataset that is there: one commit that writes no data file, in every home."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import InvalidMetadataError, SchemaMismatchError, ValidationError

from ..homes import PLACES, QUICK  # noqa: TID252 - tests are no package that could be named


@pytest.fixture(params=QUICK)
def ds(request: pytest.FixtureRequest, tmp_path: Path) -> sl.Dataset:
    schema = {"cam": pa.string(), "note": pa.string(), "force": pa.list_(pa.list_(pa.float32()))}
    made = sl.create(PLACES[request.param].format(folder=tmp_path, name="ds"), sl.Schema(schema))
    for number in range(2):
        force = np.full((4, 3), number, np.float32)
        made.append([{"sequence_id": f"ep_{number}", "cam": f"videos/{number}.mp4", "force": force.tolist()}])
    return made


def data_files(tmp_path: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in tmp_path.rglob("*.parquet")}


def test_a_type_is_one_commit_that_writes_no_file(ds: sl.Dataset, tmp_path: Path) -> None:
    before, files = ds.versions(), data_files(tmp_path)
    ds.set_type("cam", sl.Video(fps=30))
    ds.set_type("force", sl.Trajectory(dim=3, units="N"), message="calibrated")
    assert data_files(tmp_path) == files
    assert len(ds.versions()) == len(before) + 2
    again = sl.open(ds.location)
    assert again.schema["cam"].category == "file"
    assert again.schema["cam"].type == sl.Video(fps=30)
    assert again.schema["force"].shape == (3,)
    assert again["ep_1"]["force"].tolist() == [[1.0, 1.0, 1.0]] * 4
    assert sl.open(ds.location, version=before[-1]).schema["cam"].type is None
    batch = next(iter(sl.Loader(again, window={"force": range(2)}, batch_size=2)))
    assert batch["force"].shape == (2, 2, 3)
    ds.set_type("cam", None)
    assert sl.open(ds.location).schema["cam"].category == "scalar"


def test_several_at_once_and_metadata(ds: sl.Dataset) -> None:
    count = len(ds.versions())
    types = {"cam": sl.Video(fps=30), "force": {"type": "trajectory", "dim": 3}}
    ds.declare(types=types, metadata={"license": "MIT", "robot": {"arms": 2}})
    ds.append([{"sequence_id": "ep_9", "force": np.ones((2, 3))}])
    assert len(ds.versions()) == count + 2
    again = sl.open(ds.location)
    assert again.schema.metadata.extra == {"license": "MIT", "robot": {"arms": 2}}
    assert [again.schema[name].category for name in ("cam", "force")] == ["file", "temporal"]
    version = ds.set_metadata({"license": "MIT"})
    assert version == ds.declare(types=types), "nothing changes, so nothing is committed"
    ds.set_metadata({"robot": None})
    assert sl.open(ds.location).schema.metadata.extra == {"license": "MIT"}


def test_what_the_data_are_not_is_refused(ds: sl.Dataset) -> None:
    count = len(ds.versions())
    with pytest.raises(ValidationError, match=r"(?s)Nothing was changed: force.*3 numbers, 4 declared"):
        ds.set_type("force", sl.Trajectory(dim=4))
    with pytest.raises(SchemaMismatchError, match="a trajectory must be"):
        ds.set_type("note", sl.Trajectory(dim=4))
    with pytest.raises(SchemaMismatchError, match="No column 'camm'.*Did you mean 'cam'"):
        ds.set_type("camm", sl.Video())
    with pytest.raises(SchemaMismatchError, match="is the id"):
        ds.set_type("sequence_id", sl.ColumnType("mcap"))
    with pytest.raises(TypeError, match=r"sl\.Video"):
        ds.set_type("cam", "video")  # type: ignore[arg-type]
    for key in ("mixtrain", "column_types", "x_seqlake"):
        with pytest.raises(InvalidMetadataError, match=f"{key}.*cannot be set"):
            ds.set_metadata({key: "2.0"})
    with pytest.raises(InvalidMetadataError, match="JSON"):
        ds.set_metadata({"score": float("nan")})
    with pytest.raises(ValidationError, match="Nothing was changed: cam"):
        ds.set_type("cam", sl.Video(fps=30), depth="files")  # the videos are not there
    ds.declare(types={"cam": sl.Video(fps=30)}, dry_run=True)
    assert len(ds.versions()) == count


def test_a_rival_in_between_is_met_by_setting_it_again(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": pa.string(), "wrist": pa.string()}))
    rival = sl.open(ds.location)
    rival.set_metadata({"license": "MIT"})
    ds.set_type("cam", sl.Video(fps=30))
    assert json.loads((tmp_path / "ds/mixtrain.json").read_text()) == {
        "mixtrain": "1.0",
        "column_types": {"cam": {"type": "video", "fps": 30}},
        "license": "MIT",
    }

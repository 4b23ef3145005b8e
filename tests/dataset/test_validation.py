"""Every seeded defect is found by its code and at its place; clean datasets give no finding at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.dataset import opening
from seqlake.dataset.selection import Selection
from seqlake.dataset.validation import validate
from seqlake.dataset.writing.ingest import File
from seqlake.errors import DatasetNotFoundError, ValidationError
from seqlake.shards.columns import Columns
from seqlake.shards.memory import ArrowShard
from seqlake.spec.column_types import Spatial4D, Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.testing import samples

ONE, TWO = "data/one.parquet", "data/two.parquet"
SIGNAL = pa.list_(pa.list_(pa.float32()))
IDS = {"sequence_id": ["a", "b", "c"]}
X2 = {"x": {"type": "trajectory", "dim": 2}}
FINE = [[1.0, 2.0], [3.0, 4.0]]


@dataclass
class Defect:
    """A plain folder with one thing wrong, and the finding that says so."""

    code: str
    at: dict[str, Any]
    one: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    two: dict[str, Any] | None = None
    arrow: dict[str, pa.DataType] = field(default_factory=dict)
    text: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def build(self, root: Path) -> None:
        (root / "data").mkdir(parents=True)
        for name, columns in (("one", {**IDS, **self.one}), ("two", self.two)):
            if columns is not None:
                arrays = {
                    key: pa.array(cells, self.arrow.get(key)) for key, cells in columns.items() if cells is not None
                }
                pq.write_table(pa.table(arrays), root / "data" / f"{name}.parquet")
        for path, data in self.files.items():
            (root / path).write_bytes(data)
        text = json.dumps({"mixtrain": "1.0", "column_types": self.types}) if self.text is None else self.text
        (root / "mixtrain.json").write_text(text)


def x(*cells: Any) -> dict[str, Any]:
    return {"x": list(cells)}


META = {"location": "mixtrain.json"}
X_META = {**META, "column": "x"}
FLOATS = {"x": SIGNAL}
RAW = {"x": {"type": "trajectory", "dim": 2, "encoding": "raw", "dtype": "float32"}}
CAM = {"cam": {"type": "video", "fps": 30}}

DEFECTS = {
    "metadata is no JSON": Defect("M101", META, text="{"),
    "metadata is no object": Defect("M101", META, text="[]"),
    "metadata without its key": Defect("M101", META, text='{"column_types": {}}'),
    "a type that is none": Defect("M101", META, text='{"mixtrain": "1.0", "column_types": {"x": 3}}'),
    "a future major version": Defect("M102", META, text='{"mixtrain": "2.0"}'),
    "a future minor version": Defect("M103", META, text='{"mixtrain": "1.7"}'),
    "a type without a column": Defect("M104", {**META, "column": "y"}, types={"y": {"type": "trajectory"}}),
    "dim is negative": Defect(
        "M105", X_META, x(FINE, None, []), {"x": {"type": "trajectory", "dim": -2}}, arrow=FLOATS),
    "fps is zero": Defect(
        "M106", {**META, "column": "cam"}, {"cam": [None, None, None]}, {"cam": {"type": "video", "fps": 0}},
        arrow={"cam": pa.string()}),
    "dim differs from the type": Defect(
        "M107", X_META, x(FINE, None, []), {"x": {"type": "trajectory", "dim": 3}},
        arrow={"x": pa.list_(pa.list_(pa.float32(), 2))}),
    "a trajectory of text": Defect("M108", X_META, x("a", "b", "c"), X2),
    "a video of numbers": Defect("M109", {**META, "column": "cam"}, {"cam": [1, 2, 3]}, CAM),
    "an embedding of text": Defect("M110", X_META, x("a", "b", "c"), {"x": {"type": "embedding"}}),
    "raw without dim": Defect("M111", X_META, x(b"", b"", b""), {"x": {"type": "trajectory", "encoding": "raw"}}),
    "an encoding nobody knows": Defect(
        "M112", X_META, x(FINE, None, []), {"x": {"type": "trajectory", "dim": 2, "encoding": "zip"}}, arrow=FLOATS),
    "timestamps of no column": Defect(
        "M113", X_META, x(FINE, None, []), {"x": {"type": "trajectory", "dim": 2, "timestamps": "t"}}, arrow=FLOATS),
    "shape is not dim": Defect(
        "M114", X_META, x(FINE, None, []), {"x": {"type": "trajectory", "dim": 2, "shape": [3, 3]}}, arrow=FLOATS),
    "too few names": Defect(
        "M115", X_META, x(FINE, None, []), {"x": {"type": "trajectory", "dim": 2, "names": ["a"]}}, arrow=FLOATS),
    "no ids": Defect("S201", META, {"sequence_id": None, "n": [1]}),
    "columns that differ in case": Defect("S203", {**META, "column": "N"}, {"n": [1, 2, 3], "N": [1, 2, 3]}),
    "lists of lists of text": Defect("S204", X_META, x([["a"]], None, [])),
    "a null id": Defect("R301", {"location": ONE, "column": "sequence_id"}, {"sequence_id": ["a", None, "c"]}),
    "an empty id": Defect("R302", {"location": ONE, "column": "sequence_id"}, {"sequence_id": ["a", "", "c"]}),
    "an id in two files": Defect("R303", {"location": TWO, "sequence_id": "b"}, two={"sequence_id": ["d", "b"]}),
    "a null in a step": Defect(
        "R304", {"location": ONE, "sequence_id": "b", "column": "x", "step": 1},
        x(FINE, [[1, 2], [3, None]], None), X2, arrow=FLOATS),
    "a null step": Defect(
        "R304", {"location": ONE, "sequence_id": "c", "column": "x", "step": 0},
        x(FINE, FINE, [None]), X2, arrow=FLOATS),
    "a step of another size": Defect(
        "R305", {"location": TWO, "sequence_id": "d", "column": "x", "step": 1},
        x(FINE, FINE, FINE), X2, {"sequence_id": ["d"], "x": [[[1, 2], [3]]]}, arrow=FLOATS),
    "ragged without dim": Defect(
        "R305", {"location": ONE, "sequence_id": "c", "column": "x", "step": 2},
        x(FINE, None, [[1], [2], [3, 4]]), {"x": {"type": "trajectory"}}, arrow=FLOATS),
    "signals of unequal length": Defect(
        "R307", {"location": ONE, "sequence_id": "b", "column": "y"},
        {"x": [FINE, FINE, None], "y": [FINE, FINE[:1], FINE]}, {**X2, "y": X2["x"]}, arrow={"x": SIGNAL, "y": SIGNAL}),
    "a wrong length": Defect(
        "R308", {"location": ONE, "sequence_id": "b", "column": "length"},
        {**x(FINE, FINE, None), "length": [2, 3, 5]}, X2, arrow=FLOATS),
    "not a number": Defect(
        "R309", {"location": ONE, "sequence_id": "b", "column": "x", "step": 1},
        x(FINE, [[1, 2], [float("nan"), 4]], None), X2, arrow=FLOATS),
    "infinity in a raw cell": Defect(
        "R309", {"location": ONE, "sequence_id": "a", "column": "x", "step": 1},
        x(np.array([1, 2, np.inf, 3], "<f4").tobytes(), None, b""), RAW),
    "half a step": Defect("R311", {"location": ONE, "sequence_id": "b", "column": "x"}, x(b"", b"12345", None), RAW),
    "time runs backwards": Defect(
        "R312", {"location": ONE, "sequence_id": "a", "column": "t", "step": 1},
        {**x(FINE, None, None), "t": [[2, 1], None, None]}, {"x": {**X2["x"], "timestamps": "t"}}, arrow=FLOATS),
    "a wrong duration": Defect(
        "R314", {"location": ONE, "sequence_id": "a", "column": "duration_seconds"},
        {**x(FINE, None, None), "duration_seconds": [7.0, None, None]}, {"x": {**X2["x"], "fps": 10}}, arrow=FLOATS),
    "no steps": Defect(
        "R315", {"location": ONE, "sequence_id": "b", "column": "x"}, x(FINE, [], None), X2, arrow=FLOATS),
    "a vector of another size": Defect(
        "R316", {"location": ONE, "sequence_id": "c", "column": "v"},
        {"v": [[1.0, 2.0], None, [1.0]]}, {"v": {"type": "embedding", "dim": 2}}),
    "an empty reference": Defect(
        "F401", {"location": ONE, "sequence_id": "a", "column": "cam"}, {"cam": ["", None, None]}, CAM),
    "a reference that leaves": Defect(
        "F402", {"location": ONE, "sequence_id": "b", "column": "cam"}, {"cam": [None, "../x.mp4", None]}, CAM),
    "an absolute reference": Defect(
        "F403", {"location": ONE, "sequence_id": "b", "column": "cam"}, {"cam": [None, "/x.mp4", None]}, CAM),
    "a file of two rows": Defect(
        "F405", {"location": ONE, "sequence_id": "b", "column": "log"}, {"log": ["x.log", "x.log", None]},
        {"log": {"type": "4d"}}, files={"x.log": b"log"}),
    "a missing file": Defect(
        "F404", {"location": ONE, "sequence_id": "a", "column": "cam"}, {"cam": ["x.mp4", None, None]}, CAM),
    "an empty file": Defect(
        "F406", {"location": ONE, "sequence_id": "a", "column": "cam"}, {"cam": ["x.mp4", None, None]}, CAM,
        files={"x.mp4": b""}),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_by_its_code_and_place_and_alone(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    defect.build(tmp_path / "ds")
    report = validate(tmp_path / "ds", depth="files")
    found = [f for f in report if f.code == defect.code]
    assert len(found) == 1, report
    assert {key: getattr(found[0], key) for key in defect.at} == defect.at
    # What follows from the defect may be said too, but nothing of other kinds of data.
    assert {f.code for f in report} - {defect.code} <= ALSO.get(defect.code, set())


ALSO = {"M105": set(), "M111": {"R315"}, "R311": {"R315"}, "R309": {"R315"}, "M107": {"R305", "R315"}} | {
    code: {"R315"} for code in ("M112", "M113", "M114", "M115", "M105")
}


def test_a_breach_of_the_format_is_an_error_and_raises(tmp_path: Path) -> None:
    DEFECTS["an id in two files"].build(tmp_path / "ds")
    report = validate(tmp_path / "ds", depth="rows")
    assert not report.ok
    with pytest.raises(ValidationError, match="R303") as caught:
        report.raise_for_errors()
    assert caught.value.findings == report.findings


def test_depths_include_each_other(tmp_path: Path) -> None:
    DEFECTS["a missing file"].build(tmp_path / "ds")
    ds = opening.open(tmp_path / "ds")
    assert [[f.code for f in ds.validate(depth=depth)] for depth in ("metadata", "rows", "files", "decode")] == [
        [], [], ["F404"], ["F404"]
    ]  # fmt: skip
    with pytest.raises(ValueError, match="A depth is one of metadata, rows, files, decode; found 'deep'"):
        ds.validate(depth="deep")
    with pytest.raises(DatasetNotFoundError):
        validate(tmp_path / "nowhere")


# ---- damage to a table of ours


def damaged(root: Path, how: Callable[[Path], None]) -> list[tuple[str, str]]:
    ds = samples.arm_dataset(root / "arm", count=6, rows_per_shard=3)
    shard = sorted((root / "arm" / "data").glob("*.parquet"))[1]
    how(shard)
    found = opening.open(ds.location).validate(depth="rows").errors
    assert all(f.location == f"data/{shard.name}" for f in found), found
    return [f.code for f in found]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_bytes_of_a_shard_that_changed(tmp_path: Path) -> None:
    """In the values of a signal, which no reader checks."""

    def change(path: Path) -> None:
        chunk = pq.read_metadata(path).row_group(0).column(7)
        flip(path, chunk.data_page_offset + chunk.total_compressed_size // 2)

    codes = damaged(tmp_path, change)
    assert codes
    assert all(code.startswith("P6") for code in codes)


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    assert set(damaged(tmp_path, Path.unlink)) <= {"T501", "T510"}


def test_a_shard_that_was_cut(tmp_path: Path) -> None:
    assert "T502" in damaged(tmp_path, lambda path: path.write_bytes(path.read_bytes()[:-100]))


def test_strangers_edits_and_copied_files(tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema({"cam": Video(fps=30)}))
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"clip")
    with ds.writer() as writer:
        writer.add("a", cam=File(clip))
    copied = ds.select("cam").to_arrow().column(0)[0].as_py()
    (tmp_path / "ds" / copied).unlink()
    pq.write_table(pa.table({"sequence_id": ["z"]}), tmp_path / "ds" / "data" / "theirs.parquet")
    (tmp_path / "ds" / "mixtrain.json").write_text('{"mixtrain": "1.0", "mine": 1}')
    report = opening.open(tmp_path / "ds").validate(depth="files")
    assert {(f.code, f.location) for f in report} == {
        ("T503", "data/theirs.parquet"), ("T504", "mixtrain.json"), ("T510", copied)
    }  # fmt: skip


def test_columns_that_no_dataset_can_be_opened_with_are_findings(tmp_path: Path) -> None:
    numbers, texts = ({"sequence_id": ["d"], "n": [one]} for one in (1, "one"))
    Defect("", {}, {"sequence_id": [1, 2, 3]}).build(tmp_path / "ids")
    Defect("", {}, {"n": [1, 2, 3]}, two=texts).build(tmp_path / "types")
    Defect("", {}, {"n": [1, 2, 3]}).build(tmp_path / "cut")
    (tmp_path / "cut" / ONE).write_bytes((tmp_path / "cut" / ONE).read_bytes()[:-1])
    (tmp_path / "twice").mkdir()
    Defect("", {}, numbers).build(tmp_path / "twice" / "ds")
    twice = pa.table([["a"], [1], [2]], names=["sequence_id", "n", "n"])
    pq.write_table(twice, tmp_path / "twice" / "ds" / ONE)
    for root, code, place in (
        (tmp_path / "ids", "S201", ONE),
        (tmp_path / "twice" / "ds", "S202", ONE),
        (tmp_path / "types", "V701", str(tmp_path / "types")),
        (tmp_path / "cut", "V702", ONE),
    ):
        report = validate(root, depth="metadata")
        assert [(f.code, f.severity, f.location) for f in report] == [(code, "error", place)]


def test_a_location_is_validated_at_a_version_and_with_the_options_of_its_store(s3_bucket: Any) -> None:
    place = f"{s3_bucket.uri}/ds"
    ds = opening.create(place, Schema({"x": Trajectory(dim=1)}), storage=s3_bucket.storage)
    first = ds.append([{"sequence_id": "a", "x": [[1.0]]}])
    ds.append([{"sequence_id": "b", "x": [[np.nan]]}])
    assert [f.code for f in validate(place, depth="rows", storage=s3_bucket.storage)] == ["R309"]
    assert not len(validate(place, depth="rows", version=first, storage=s3_bucket.storage))
    store = ds.table.store
    store.delete([path for path, _ in store.list("_seqlake/versions")])
    store.put("mixtrain.json", b'{"mixtrain": "3.0"}')
    assert [f.code for f in validate(place, storage=s3_bucket.storage)] == ["M102"]


class Memory:
    """Rows in memory under a schema that they may not fit."""

    def __init__(self, schema: Schema, *tables: pa.Table) -> None:
        self.schema, self.root, self.fingerprint = schema, "/nowhere", "0"
        self._shards = [Columns(ArrowShard(table, key=f"{n}#0"), schema, {}) for n, table in enumerate(tables)]

    def shards(self) -> list[Columns]:
        return self._shards

    def lengths(self, column: str) -> object:
        raise AssertionError("not asked")


def test_a_shard_whose_column_is_of_another_type(tmp_path: Path) -> None:
    schema = Schema({"x": Trajectory(dim=1), "n": pa.int64()})
    good = pa.table({"sequence_id": ["a"], "x": [[[1.0]]], "n": [1]})
    bad = pa.table({"sequence_id": ["b"], "x": [["text"]], "n": [2]})
    report = validate(Selection(Memory(schema, good, bad)), depth="rows")
    assert [(f.code, f.location, f.column) for f in report] == [("V701", "1", "x")]


# ---- clean datasets


def carried(root: Path) -> object:
    ds = opening.create(root / "ds", Schema({"cloud": Spatial4D(), "x": Trajectory(dim=1)}))
    (root / "c.bag").write_bytes(b"cloud")
    with ds.writer() as writer:
        writer.add("a/../b", cloud=File(root / "c.bag"), x=[[1.0]])
        writer.add("a")
    return ds


def changed(root: Path) -> object:
    ds = samples.arm_dataset(root / "arm", count=8, rows_per_shard=3)
    ds.add_column("label", pa.string(), values={"ep_0002": "x"})
    ds.rename_column("reward", "score")
    ds.widen_column("score", pa.float64())
    ds.drop_column("operator")
    ds.update([{"sequence_id": "ep_0003", "label": "y", "task": None}])
    ds.delete(ids=["ep_0004"])
    return ds


def plain(root: Path) -> object:
    Defect("", {}, x(FINE, None, FINE), X2, {"sequence_id": ["d"], "x": [FINE]}, arrow=FLOATS).build(root / "ds")
    return opening.open(root / "ds")


def rated(root: Path) -> object:
    schema = Schema(
        {
            "t": pa.list_(pa.int64()),
            "slow": Trajectory(dim=1, timestamps="t"),
            "x": Trajectory(dim=2, fps=10),
            "fast": Trajectory(dim=1, fps=100),
            "duration_seconds": pa.float64(),
            "length": pa.int64(),
        }
    )
    ds = opening.create(root / "ds", schema)
    ds.append([{"sequence_id": "a", "x": FINE, "fast": np.arange(20)[:, None], "duration_seconds": 0.2,
                "t": [0, 10**8, 10**9], "slow": [[1.0], [2.0], [3.0]]}])  # fmt: skip
    return ds


CLEAN: dict[str, Callable[[Path], object]] = {
    "training": lambda root: samples.arm_dataset(root / "ds"),
    "archive": lambda root: samples.arm_dataset(root / "ds", layout="archive"),
    "fixed inner lists": lambda root: samples.arm_dataset(root / "ds", fixed_size_inner=True),
    "raw": lambda root: samples.arm_dataset(root / "ds", raw=True),
    "raw archive": lambda root: samples.arm_dataset(root / "ds", raw=True, layout="archive"),
    "many shards": lambda root: samples.arm_dataset(root / "ds", rows_per_shard=1),
    "many versions": lambda root: samples.arm_dataset(root / "ds", count=5, commit_every=1),
    "empty": lambda root: samples.arm_dataset(root / "ds", count=0),
    "nulls everywhere": lambda root: _appended(samples.arm_dataset(root / "ds", count=0), [{"sequence_id": "a"}]),
    "files": carried,
    "changed": changed,
    "plain": plain,
    "own rates": rated,
    "a selection": lambda root: samples.arm_dataset(root / "ds").where("success").select("sequence_id", "action"),
}


def _appended(ds: Any, rows: list[dict[str, Any]]) -> Any:
    ds.append(rows)
    return ds


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_dataset_gives_no_finding(name: str, tmp_path: Path) -> None:
    assert list(validate(CLEAN[name](tmp_path), depth="files")) == []

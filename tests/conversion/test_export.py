"""Datasets of ours as MDS, CSV, TSV, XSV and JSON lines, with their types kept for whoever reads them back with us."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.conversion import convert as conversion
from seqlake.dataset.validation import validate
from seqlake.errors import DatasetExistsError, InvalidMetadataError, SchemaMismatchError, ValidationError
from seqlake.files.local import LocalStore
from seqlake.formats import mds
from seqlake.spec.schema import Column
from seqlake.testing.formats import FormatTests

SCALARS: dict[str, Any] = {
    "day": pa.date32(),
    "n": pa.int16(),
    "ok": pa.bool_(),
    "price": pa.decimal128(10, 3),
    "r": pa.float32(),
    "task": pa.string(),
    "took": pa.duration("ms"),
    "when": pa.timestamp("us"),
}
NESTED: dict[str, Any] = {
    "action": sl.Trajectory(dim=3, units="rad"),
    "emb": sl.Embedding(dim=4, model="clip"),
    "flags": pa.list_(pa.bool_()),
    "rot": sl.Trajectory(dim=9, shape=(3, 3), dtype=pa.float64()),
    "state": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "tags": pa.list_(pa.string()),
}
FRAMES: dict[str, Any] = {"cam": sl.Image(format="jpeg", frames="bytes"), "raw": pa.binary()}


def row(i: int) -> dict[str, Any]:
    steps = 2 + i % 4
    return {
        "day": date(2024, 2, 1 + i),
        "n": -i,
        "ok": i % 2 == 0,
        "price": Decimal("1.250") * i,
        "r": i / 3,
        "task": f"pick; {i} ä",
        "took": i * 1000,
        "when": datetime(2024, 1, 1, 0, i, 1, 5),
        "action": np.full((steps, 3), i / 7, "f4"),
        "emb": np.arange(4, dtype="f4") + i,
        "flags": [True, False][: i % 3],
        "rot": np.arange(9.0 * steps).reshape(-1, 3, 3),
        "state": {"a": i, "b": "x; y"},
        "tags": ["p,q", "r;s"][: i % 3],
        "cam": [b"\xff\xd8%d" % step for step in range(steps)],
        "raw": bytes(range(i)),
    }


@pytest.fixture
def ds(tmp_path: Path) -> sl.Dataset:
    dataset = sl.create(tmp_path / "ds", sl.Schema({**SCALARS, **NESTED, **FRAMES}))
    with dataset.writer() as writer:
        for i in range(12):
            writer.add(f"ep_{i:02d}", **row(i))
    return sl.open(tmp_path / "ds")


class TestExported(FormatTests):
    @pytest.fixture
    def source(self, ds, tmp_path: Path):
        sl.convert(ds, tmp_path / "out", to="mds", workers=1, bytes_per_part=2000)
        return mds.scan(str(tmp_path / "out"))


def same(found: sl.Selection, ds: sl.Selection) -> None:
    table = found.to_arrow()
    wanted = ds.select(*table.column_names).to_arrow()
    assert table.schema.equals(wanted.schema)
    for name in table.column_names:
        assert table[name].equals(wanted[name]), name
    assert {name: found.schema[name].type for name in table.column_names} == {
        name: ds.schema[name].type for name in table.column_names
    }
    assert found.schema.id == "sequence_id"


@pytest.mark.parametrize("options", [{}, {"compression": "bz2", "hashes": ["sha1"], "size_limit": 700}])
def test_mds_keeps_everything(ds, tmp_path: Path, options: dict) -> None:
    sl.convert(ds, tmp_path / "out", to="mds", workers=1, bytes_per_part=3000, **options)
    found = sl.scan(tmp_path / "out")
    assert found.schema.names == ds.schema.names
    same(found, ds)
    assert validate(found, depth="rows").ok


@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("xsv", {}),
        ("xsv", {"separator": "\t"}),
        ("xsv", {"separator": "||"}),
        ("jsonl", {}),
        ("jsonl", {"newline": "\r\n"}),
    ],
)
def test_texts_keep_everything_but_bytes(ds, tmp_path: Path, to: str, options: dict) -> None:
    sl.convert(ds, tmp_path / "out", to=to, workers=1, bytes_per_part=3000, **options)
    found = sl.scan(tmp_path / "out")
    assert found.schema.names == [name for name in ds.schema.names if name not in FRAMES]
    same(found, ds)


def test_windows_of_an_export_are_those_of_the_dataset(ds, tmp_path: Path) -> None:
    sl.convert(ds, tmp_path / "out", to="mds", workers=1, bytes_per_part=3000)
    found = mds.scan(str(tmp_path / "out"))
    assert all(shard.open().flat(name) is not None for shard in found.shards() for name in ("action", "rot"))
    loaders = [sl.Loader(x, window={"action": range(2)}, batch_size=4, shuffle=False) for x in (ds, found)]
    for one, other in zip(*loaders, strict=True):
        assert one["sequence_id"].tolist() == other["sequence_id"].tolist()
        np.testing.assert_array_equal(one["action"], other["action"])


def test_what_is_dropped_is_said_first(ds, tmp_path: Path) -> None:
    plan = sl.convert(ds, tmp_path / "out", to="jsonl", dry_run=True)
    assert sorted(plan.dropped) == ["cam", "raw"]
    assert sl.convert(ds, tmp_path / "out", to="mds", dry_run=True).dropped == {}
    assert not (tmp_path / "out").exists()


def test_an_export_converts_back(ds, tmp_path: Path) -> None:
    sl.convert(ds, tmp_path / "out", to="mds", workers=1)
    again = sl.convert(tmp_path / "out", tmp_path / "again", workers=1)
    assert again.to_arrow().sort_by("sequence_id").equals(ds.to_arrow().sort_by("sequence_id"))


def test_any_reader_finds_plain_encodings(ds, tmp_path: Path) -> None:
    sl.convert(ds, tmp_path / "out", to="mds", workers=1)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    [shard] = index["shards"]
    encodings = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    assert encodings == {
        "action": "ndarray:float32",
        "cam": "list[jpeg]",
        "day": "str",
        "emb": "ndarray:float32:4",
        "flags": "json",
        "n": "int16",
        "ok": "uint8",
        "price": "str_decimal",
        "r": "float32",
        "raw": "bytes",
        "rot": "ndarray:float64",
        "sequence_id": "str",
        "state": "json",
        "tags": "json",
        "task": "str",
        "took": "int64",
        "when": "str",
    }
    sample = mds.scan(str(tmp_path / "out"))[5]
    np.testing.assert_array_equal(sample["rot"], row(5)["rot"])
    assert sample["price"] == Decimal("6.250")
    assert sample["state"] == row(5)["state"]


def test_encodings_of_the_user_s_choice(ds, tmp_path: Path) -> None:
    options = {"columns": {"r": "str_float", "action": "json"}}
    sl.convert(ds, tmp_path / "out", to="mds", workers=1, **options)
    index = mds.scan(str(tmp_path / "out")).index
    assert dict(index.entries[0].config.columns)["r"] == "str_float"
    same(sl.scan(tmp_path / "out"), ds)
    with pytest.raises(SchemaMismatchError, match="'nope'"):
        sl.convert(ds, tmp_path / "other", to="mds", columns={"nope": "str"})


def test_nulls_need_a_value(tmp_path: Path) -> None:
    dataset = sl.create(tmp_path / "ds", {"r": pa.float32(), "a": sl.Trajectory(dim=2)})
    with dataset.writer() as writer:
        writer.add("one", r=1.0, a=np.zeros((1, 2)))
        writer.add("two", a=np.zeros((1, 2)))
    with pytest.raises(ValidationError, match="'r' is null"):
        sl.convert(dataset, tmp_path / "out", to="mds", workers=1)
    assert list((tmp_path / "out").iterdir()) == [] if (tmp_path / "out").exists() else True
    sl.convert(dataset, tmp_path / "out", to="mds", workers=1, fill={"r": -1.0})
    assert sl.scan(tmp_path / "out").to_arrow()["r"].to_pylist() == [1.0, -1.0]


def test_empty_signals_are_refused_by_name(tmp_path: Path) -> None:
    dataset = sl.create(tmp_path / "ds", {"a": sl.Trajectory(dim=2)})
    with dataset.writer() as writer:
        writer.add("one", a=np.zeros((0, 2)))
    with pytest.raises(ValidationError, match="sequence 'one'.*column 'a'"):
        sl.convert(dataset, tmp_path / "out", to="mds", workers=1)


def test_values_that_text_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    dataset = sl.create(tmp_path / "ds", {"task": pa.string()})
    with dataset.writer() as writer:
        writer.add("one", task="a, b")
    with pytest.raises(ValidationError, match="sequence 'one'"):
        sl.convert(dataset, tmp_path / "csv", to="xsv", workers=1)
    sl.convert(dataset, tmp_path / "tsv", to="xsv", separator="\t", workers=1)


def test_references_to_files_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "cam.mp4").write_bytes(b"not really")
    dataset = sl.create(tmp_path / "ds", {"cam": sl.Spatial3D()})
    with dataset.writer() as writer:
        writer.add("one", cam=sl.File(tmp_path / "cam.mp4"))
    sl.convert(dataset, tmp_path / "out", to="mds", workers=1)
    [found] = sl.scan(tmp_path / "out").to_arrow()["cam"].to_pylist()
    assert Path(found).read_bytes() == b"not really"


@pytest.mark.parametrize(("path", "says"), [("in.png", None), ("gone.png", "gone.png"), ("../out.png", "leads out")])
def test_a_file_that_a_cell_only_names_is_exported_with_its_bytes(tmp_path: Path, path: str, says: str | None) -> None:
    named = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = sl.Schema({"photo": Column("photo", named, sl.Image())})
    for place in ("ds/in.png", "out.png"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"picture")
    rows = [
        {"sequence_id": "a", "photo": {"bytes": None, "path": path}},
        {"sequence_id": "b", "photo": {"bytes": b"of its own", "path": "in.png"}},
    ]
    [batch] = pa.Table.from_pylist(rows, schema.arrow).to_batches()
    sink = mds.create(str(tmp_path / "out"), schema)
    if says is not None:
        with pytest.raises(ValidationError, match=f"'photo' names the file '{path}'.*{says}"):
            sink.write(0, iter([batch]), root=str(tmp_path / "ds"))
        return
    sink.commit([sink.write(0, iter([batch]), root=str(tmp_path / "ds"))])
    found = sl.scan(tmp_path / "out").to_arrow()["photo"].to_pylist()
    assert [cell["bytes"] for cell in found] == [b"picture", b"of its own"]


def test_references_in_lists_and_structs_become_absolute(tmp_path: Path) -> None:
    clip = pa.struct([("url", pa.string()), ("first_frame", pa.int64())])
    columns = {
        "clip": Column("clip", clip, sl.Video(fps=10)),
        "scan": sl.Spatial3D(),
        "stills": sl.Image(format="png", frames="files"),
    }
    row = {"sequence_id": "one", "clip": {"url": "a/v.mp4", "first_frame": 3}, "scan": "s.bin"}
    schema = sl.Schema(columns)
    [batch] = pa.Table.from_pylist([{**row, "stills": ["0.png", "s3://b/1.png"]}], schema.arrow).to_batches()
    sink = mds.create(str(tmp_path / "out"), schema)
    sink.commit([sink.write(0, iter([batch]), root="/data/ds")])
    [found] = sl.scan(tmp_path / "out").to_arrow().to_pylist()
    assert found["clip"] == {"url": "/data/ds/a/v.mp4", "first_frame": 3}
    assert found["scan"] == "/data/ds/s.bin"
    assert found["stills"] == ["/data/ds/0.png", "s3://b/1.png"]


@pytest.mark.parametrize("stage", ["before the index", "after it"])
def test_an_interrupted_commit_keeps_its_parts(ds, tmp_path: Path, monkeypatch, stage: str) -> None:
    real = LocalStore.put

    def put(self, path, data, **options):
        if path != "index.json":
            return real(self, path, data, **options)
        if stage == "after it":
            real(self, path, data, **options)
        raise OSError(28, "No space left on device", path)

    options = {"to": "mds", "workers": 1, "bytes_per_part": 2000, "work": tmp_path / "work"}
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", put)
        with pytest.raises(OSError, match="No space is left"):
            sl.convert(ds, tmp_path / "out", **options)
    monkeypatch.setattr(conversion, "convert_part", lambda *_: pytest.fail("a part is written anew"))
    sl.convert(ds, tmp_path / "out", **options)
    same(sl.scan(tmp_path / "out"), ds)
    assert not (tmp_path / "work").exists()


def test_what_an_index_names_is_not_discarded(ds, tmp_path: Path, monkeypatch) -> None:
    real = LocalStore.put

    def put(self, path, data, **options):
        real(self, path, data, **options)
        if path == "index.json":
            raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", put)
        with pytest.raises(OSError, match="Input/output"):
            sl.convert(ds, tmp_path / "out", to="mds", workers=1)
    same(sl.scan(tmp_path / "out"), ds)


def stop_after_two_parts(monkeypatch) -> None:
    real, left = conversion.convert_part, [2]

    def run(part, /, **options):
        left[0] -= 1
        if left[0] < 0:
            raise ValidationError("stop")
        return real(part, **options)

    monkeypatch.setattr(conversion, "convert_part", run)


def test_an_interrupted_export_shows_nothing_and_goes_on(ds, tmp_path: Path, monkeypatch) -> None:
    options = {"to": "mds", "workers": 1, "bytes_per_part": 2000, "work": tmp_path / "work"}
    with monkeypatch.context() as patch:
        stop_after_two_parts(patch)
        with pytest.raises(ValidationError, match="stop"):
            sl.convert(ds, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "index.json").exists()
    sl.convert(ds, tmp_path / "out", **options)
    same(sl.scan(tmp_path / "out"), ds)


def test_a_failed_export_leaves_nothing(ds, tmp_path: Path, monkeypatch) -> None:
    stop_after_two_parts(monkeypatch)
    with pytest.raises(ValidationError, match="stop"):
        sl.convert(ds, tmp_path / "out", to="mds", workers=1, bytes_per_part=2000)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_processes_write_the_same_bytes(ds, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        sl.convert(ds, tmp_path / name, to="mds", workers=workers, bytes_per_part=3000)
    one, two = (
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two")
    )
    assert one == two


def test_an_occupied_place_is_refused(ds, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(DatasetExistsError):
        sl.convert(ds, tmp_path / "out", to="mds", workers=1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_samples_export_as_samples(tmp_path: Path) -> None:
    with sl.create(tmp_path / "mds", {"a": "int", "t": "str"}, format="mds") as writer:
        writer.write_all({"a": i, "t": f"x{i}"} for i in range(9))
    sl.convert(tmp_path / "mds", tmp_path / "json", to="jsonl", workers=1)
    found = sl.scan(tmp_path / "json")
    assert found.schema.id is None
    assert found.to_arrow().to_pylist() == [{"a": i, "t": f"x{i}"} for i in range(9)]


@pytest.mark.parametrize("value", [{"arrow": "x"}, {"arrow": 5}, {"arrow": "AAAA", "metadata": {}, "id": None}])
def test_a_description_that_makes_no_sense_is_refused(tmp_path: Path, value: Any) -> None:
    with sl.create(tmp_path / "mds", {"a": "int"}, format="mds") as writer:
        writer.write({"a": 1})
    index = json.loads((tmp_path / "mds" / "index.json").read_text())
    (tmp_path / "mds" / "index.json").write_text(json.dumps({**index, "x_seqlake": value}))
    with pytest.raises(InvalidMetadataError, match="x_seqlake"):
        sl.scan(tmp_path / "mds").schema["a"]


def test_the_official_package_reads_an_export(ds, tmp_path: Path, official) -> None:
    read = """
from streaming import LocalDataset
rows = LocalDataset(folder)
result = [(rows[i]['sequence_id'], rows[i]['action'].tolist(), rows[i]['state']) for i in range(len(rows))]
"""
    wanted = [(f"ep_{i:02d}", row(i)["action"].tolist(), row(i)["state"]) for i in range(12)]
    sl.convert(ds.select("sequence_id", "action", "state"), tmp_path / "few", to="mds", workers=1, bytes_per_part=1000)
    assert official(read, folder=str(tmp_path / "few")) == wanted

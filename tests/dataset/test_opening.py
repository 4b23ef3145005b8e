"""Opening, creating, scanning, and making a Parquet folder a dataset."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    DuplicateSequenceError,
    SchemaMismatchError,
    UnknownPluginError,
    ValidationError,
    VersionNotFoundError,
)

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=2)})
TABLE = pa.table(
    {
        "sequence_id": ["a", "b"],
        "cam": ["x/1.mp4", "x/2.MP4"],
        "note": ["free text", "no.mp4 here"],
        "photo": ["a.png", None],
        "action": pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.float32()))),
        "ragged": pa.array([[[1], [2, 3]], []], pa.list_(pa.list_(pa.float32()))),
        "clip_embedding": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.float32())),
        "counts": pa.array([[1, 2, 3], [4]], pa.list_(pa.int64())),
        "frames": pa.array([[b"\xff\xd8\xff\xe0..", b"\xff\xd8\xff\xe0.."], []], pa.list_(pa.binary())),
        "reward": [1.0, 2.0],
    }
)


def filled(path: Path, rows: int = 3) -> sl.Dataset:
    ds = sl.create(path, SCHEMA)
    with ds.writer() as writer:
        for n in range(rows):
            writer.add(f"ep_{n}", task="pick", action=np.full((n + 1, 2), n, np.float32))
    return sl.open(path)


def test_created_datasets_open_by_every_name_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "arm")
    monkeypatch.chdir(tmp_path)
    places = ["arm", "arm/", "./arm", tmp_path / "arm", "arm/mixtrain.json", (tmp_path / "arm").as_uri()]
    for place in places:
        ds = sl.open(place)
        assert isinstance(ds, sl.Dataset)
        assert len(ds) == 3
        assert ds["ep_2"]["action"].shape == (3, 2)
    monkeypatch.chdir(tmp_path / "arm")
    assert len(sl.open("mixtrain.json")) == len(sl.open(".")) == 3


def test_a_dataset_says_where_and_what_it_is(tmp_path: Path) -> None:
    ds = filled(tmp_path / "arm")
    first, *columns = repr(ds).split("\n")
    assert first == f"Dataset {str(tmp_path / 'arm')!r} · standalone · version {ds.version.id} · 3 sequences in 1 shard"
    assert columns == [
        "  sequence_id  string",
        "  task         string",
        "  action       trajectory  [T, 2] float32",
    ]


def test_older_versions_open_by_version_id_and_time(tmp_path: Path) -> None:
    ds = filled(tmp_path / "arm")
    before = ds.version
    ds.delete("sequence_id = 'ep_1'")
    assert len(sl.open(tmp_path / "arm")) == 2
    for version in (before, before.id, before.time):
        old = sl.open(tmp_path / "arm", version=version)
        assert [view.id for view in old] == ["ep_0", "ep_1", "ep_2"]
    with pytest.raises(VersionNotFoundError):
        sl.open(tmp_path / "arm", version=99)


def test_what_was_taken_from_a_dataset_stays_when_it_moves_on(tmp_path: Path) -> None:
    ds = filled(tmp_path / "arm")
    view, chosen, relation = ds["ep_2"], ds[1:], ds.sql("SELECT count(*) FROM dataset")
    every, pinned = sl.scan(ds), ds.where()
    ds.delete("sequence_id = 'ep_1'")
    assert len(ds) == 2
    assert (view.id, view["task"], view.index) == ("ep_2", "pick", 2)
    assert [one.id for one in chosen] == ["ep_1", "ep_2"]
    assert relation.fetchall() == [(3,)]
    assert len(every) == len(pinned) == 3
    assert every.fingerprint == pinned.fingerprint != ds.fingerprint


def test_a_dataset_pickles_as_a_description(tmp_path: Path) -> None:
    ds = filled(tmp_path / "arm")
    ds["ep_0"]["action"]
    again = pickle.loads(pickle.dumps(ds))
    assert isinstance(again, sl.Dataset)
    assert again.fingerprint == ds.fingerprint
    assert again["ep_2"]["action"].tolist() == [[2, 2]] * 3


def test_nothing_there_is_said_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"nothing is there.*sl\.create") as missing:
        sl.open(tmp_path / "nowhere")
    assert isinstance(missing.value, FileNotFoundError)

    with pytest.raises(DatasetNotFoundError, match=r"neither mixtrain\.json nor Parquet"):
        sl.open(tmp_path)

    pq.write_table(TABLE, tmp_path / "part.parquet")
    with pytest.raises(DatasetNotFoundError, match=r"Parquet \(1 files\).*sl\.scan.*seqlake init"):
        sl.open(tmp_path)
    with pytest.raises(DatasetNotFoundError, match=r"one file.*sl\.scan"):
        sl.open(tmp_path / "part.parquet")

    filled(tmp_path / "sets" / "one")
    with pytest.raises(DatasetNotFoundError, match=r"folder of datasets.*one"):
        sl.open(tmp_path / "sets")
    with pytest.raises(DatasetNotFoundError, match="found int"):
        sl.open(3)


def test_create_refuses_to_write_over_a_dataset(tmp_path: Path) -> None:
    filled(tmp_path / "arm")
    with pytest.raises(DatasetExistsError, match="exist_ok"):
        sl.create(tmp_path / "arm", SCHEMA)
    assert len(sl.create(tmp_path / "arm", SCHEMA, exist_ok=True)) == 3
    with pytest.raises(SchemaMismatchError, match="reward: is missing"):
        sl.create(tmp_path / "arm", SCHEMA.with_columns({"reward": pa.float32()}), exist_ok=True)
    assert len(sl.create(tmp_path / "new", {"reward": pa.float32()})) == 0


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        ("x", sl.Trajectory(encoding="raw"), r"x: encoding raw needs dim \(M111\)"),
        ("x", sl.Trajectory(dim=4, shape=(3, 3)), r"x: shape \[3, 3\] has 9 numbers, dim is 4 \(M114\)"),
        ("x", sl.Trajectory(dim=2, timestamps="t"), r"x: timestamps names 't'.* \(M113\)"),
        ("cam", sl.Video(fps=0), r"cam: fps must be a positive number, found 0 \(M106\)"),
    ],
)
def test_columns_that_break_a_rule_are_refused(tmp_path: Path, column: str, kind: sl.ColumnType, said: str) -> None:
    with pytest.raises(SchemaMismatchError, match=said):
        sl.create(tmp_path / "new", {"task": pa.string(), column: kind})
    assert not (tmp_path / "new").exists()
    ds = filled(tmp_path / "arm")
    with pytest.raises(SchemaMismatchError, match=said):
        ds.add_column(column, kind)
    assert column not in sl.open(tmp_path / "arm").schema


def test_scan_finds_out_what_is_there(tmp_path: Path) -> None:
    ds = filled(tmp_path / "arm")
    scanned = sl.scan(tmp_path / "arm")
    assert type(scanned) is sl.Selection
    assert scanned.fingerprint == ds.fingerprint
    assert sl.scan(ds).to_arrow() == ds.to_arrow()
    assert len(sl.scan(tmp_path / "arm", format="parquet")) == 3
    with pytest.raises(DatasetNotFoundError, match="No Parquet"):
        sl.scan(tmp_path / "nowhere")
    with pytest.raises(UnknownPluginError, match="known are"):
        sl.scan(tmp_path, format="rlsd")


def test_files_of_ours_and_hidden_ones_are_not_scanned(tmp_path: Path) -> None:
    good = TABLE.select(["sequence_id", "reward"])
    for name in ("b/part.parquet", "a.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(good, tmp_path / name)
    for name in ("_delta_log/x.parquet", ".hidden.parquet", "files/y.parquet", "_seqlake/z.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not for you")
    assert len(sl.scan(tmp_path)) == 4
    (tmp_path / "data").mkdir()
    pq.write_table(good, tmp_path / "data" / "part.parquet")
    assert len(sl.scan(tmp_path)) == 2


def test_init_reads_off_what_columns_mean_and_writes_only_its_file(tmp_path: Path) -> None:
    for number in range(2):
        ids = pa.array([f"{name}{number}" for name in ("a", "b")])
        pq.write_table(TABLE.set_column(0, "sequence_id", ids), tmp_path / f"part-{number}.parquet")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    metadata = sl.init(tmp_path, dry_run=True)
    assert {path.name for path in tmp_path.iterdir()} == set(before)
    assert json.loads(metadata.to_json()) == {
        "mixtrain": "1.0",
        "column_types": {
            "cam": {"type": "video"},
            "photo": {"type": "image"},
            "action": {"type": "trajectory", "dim": 2},
            "ragged": {"type": "trajectory"},
            "clip_embedding": {"type": "embedding", "dim": 3},
            "frames": {"type": "image", "format": "jpeg", "frames": "bytes"},
        },
    }

    declared = {"cam": sl.Video(fps=30), "counts": {"type": "trajectory"}}
    assert sl.init(tmp_path, column_types=declared) == sl.open(tmp_path).schema.metadata
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(after) - set(before) == {"mixtrain.json"}
    assert {name: after[name] for name in before} == before
    ds = sl.open(tmp_path)
    assert ds.schema["cam"].type == sl.Video(fps=30)
    assert ds["b1"]["counts"].tolist() == [4]
    assert ds["a0"]["action"].tolist() == [[1, 2]]
    with pytest.raises(DatasetExistsError, match=r"mixtrain\.json"):
        sl.init(tmp_path)


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (["a", "a"], DuplicateSequenceError),
        (["a", None], ValidationError),
        (["a", ""], ValidationError),
        ([1, 2], SchemaMismatchError),
        (None, SchemaMismatchError),
    ],
)
def test_init_refuses_rows_without_names(tmp_path: Path, ids: list | None, error: type) -> None:
    table = TABLE.drop_columns(["sequence_id"])
    pq.write_table(table if ids is None else table.append_column("sequence_id", [ids]), tmp_path / "part.parquet")
    with pytest.raises(error):
        sl.init(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["part.parquet"]


def test_init_refuses_types_of_columns_that_are_not_there(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "part.parquet")
    with pytest.raises(SchemaMismatchError, match="'camera'"):
        sl.init(tmp_path, column_types={"camera": sl.Video(fps=30)})
    with pytest.raises(DatasetNotFoundError):
        sl.init(tmp_path / "empty")


def test_credentials_are_never_printed(tmp_path: Path) -> None:
    filled(tmp_path / "arm")
    ds = sl.open(tmp_path / "arm", storage={"aws_secret_access_key": "hunter2"})
    for text in (repr(ds), ds._repr_html_(), repr(ds[0]), repr(ds[:1]), repr(vars(ds)), repr(ds.source)):
        assert "hunter2" not in text


def test_buckets_are_opened_scanned_and_said_like_folders(tmp_path: Path, s3_bucket) -> None:
    uri, storage = s3_bucket
    ds = sl.create(f"{uri}/arm", SCHEMA, storage=storage)
    ds.append([{"sequence_id": "ep_0", "task": "pick", "action": [[1, 2], [3, 4]]}])
    ds = sl.open(f"{uri}/arm/mixtrain.json", storage=storage)
    assert ds["ep_0"]["action"].tolist() == [[1, 2], [3, 4]]
    assert len(ds.where("task = 'pick' AND len(action) = 2")) == 1
    assert ds.sql("SELECT task FROM dataset").fetchall() == [("pick",)]
    assert storage["secret_access_key"] not in repr(ds) + ds._repr_html_()

    with pytest.raises(DatasetNotFoundError, match=r"neither mixtrain\.json nor Parquet"):
        sl.open(f"{uri}/nothing", storage=storage)
    from seqlake.files.stores import open_store

    pq.write_table(TABLE, tmp_path / "part.parquet")
    open_store(uri, storage=storage).put("plain/part.parquet", (tmp_path / "part.parquet").read_bytes())
    with pytest.raises(DatasetNotFoundError, match="seqlake init"):
        sl.open(f"{uri}/plain", storage=storage)
    for place in (f"{uri}/plain", f"{uri}/plain/part.parquet"):
        rows = sl.scan(place, storage=storage)
        assert rows.to_arrow().to_pydict() == TABLE.to_pydict()
        assert rows["b"]["action"].tolist() == [[3, 4], [5, 6]]
        assert [view.id for view in rows.where("reward > 1")] == ["b"]
    sl.init(f"{uri}/plain", storage=storage)
    file = sl.open(f"{uri}/plain", storage=storage)["a"]["cam"]
    assert file.location == f"{uri}/plain/x/1.mp4"
    open_store(uri, storage=storage).put("plain/x/1.mp4", b"0123456789")
    with file.open() as stream:
        stream.seek(4)
        assert stream.read(3) == b"456"
    assert file.read() == b"0123456789"
    with pytest.raises(DatasetNotFoundError):
        sl.scan(f"{uri}/nothing", storage=storage)


def test_a_log_without_checkpoints_in_a_bucket_is_listed_in_the_time_of_looking_for_them(
    s3_bucket, asked, monkeypatch
) -> None:
    from seqlake.tables.standalone import log

    uri, storage = s3_bucket
    ds = sl.create(f"{uri}/arm", SCHEMA, storage=storage)
    ds.append([{"sequence_id": "ep_0", "task": "pick", "action": [[1, 2], [3, 4]]}])
    both, listed = threading.Barrier(2, timeout=60), log.names_in

    def meeting(store, folder, /, **options):
        both.wait()  # for ever, were one asked for after the other
        return listed(store, folder, **options)

    monkeypatch.setattr(log, "names_in", meeting)
    asked.clear()
    assert len(sl.open(f"{uri}/arm", storage=storage)) == 1
    assert sorted(verb for verb, _ in asked) == ["get"] * 4 + ["list"] * 2  # metadata, hint, two versions


@pytest.mark.parametrize("engine", ["lance", "vortex"])
def test_one_file_of_another_engine_is_named_and_opened_as_the_hint_says(tmp_path, engine):
    pytest.importorskip(engine)
    with sl.create(tmp_path / "ds", sl.Schema({"reward": pa.float64()}), shards=engine).writer() as writer:
        writer.add("a", reward=1.0)
    (shard,) = (tmp_path / "ds").rglob(f"*.{engine}")
    lone = tmp_path / "lone" / f"x.{engine}"
    lone.parent.mkdir()
    shutil.copy(shard, lone)
    for look in (sl.open, sl.scan):
        with pytest.raises(DatasetNotFoundError, match=f"one file, a shard of {engine}"):
            look(lone)
    (lone.parent / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    assert sl.open(lone.parent).to_arrow()["reward"].to_pylist() == [1.0]

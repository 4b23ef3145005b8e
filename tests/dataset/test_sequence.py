"""One sequence: values of every category, files and their safety, windows, and what it costs."""

from __future__ import annotations

import datetime as dt
import multiprocessing
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import DamagedTableError, ShardChangedError, UnsafeReferenceError, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

JPEG = b"\xff\xd8\xff\xe0 not much of a picture"
COLUMNS = {
    "sequence_id": pa.array(["a", "b", "c"]),
    "flag": pa.array([True, None, False]),
    "count": pa.array([1, None, 3], pa.uint8()),
    "price": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(8, 2)),
    "day": pa.array([dt.date(2024, 2, 29), None, dt.date(1970, 1, 1)]),
    "seen": pa.array([1_000_000_001, None, 2_000], pa.timestamp("ns", "UTC")),
    "blob": pa.array([b"\x00\xff", None, b""]),
    "action": pa.array([[[1, 2], [3, 4]], None, []], pa.list_(pa.list_(pa.float32()))),
    "reward_step": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
    "pose": pa.array([[list(range(9))] * 2, None, []], pa.list_(pa.list_(pa.float64()))),
    "raw": pa.array([np.arange(4, dtype="<f4").tobytes(), None, b""]),
    "embedding": pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.float16())),
    "camera": pa.array(["a.mp4", None, "s3://elsewhere/c.mp4"]),
    "shared": pa.array([{"url": "a.mp4", "first_frame": 3}, None, {"url": None, "first_frame": 0}]),
    "images": pa.array([[JPEG, None], None, []], pa.list_(pa.binary())),
    "stills": pa.array([["0.png", "1.png"], None, []], pa.list_(pa.string())),
    "notes": pa.array([[{"k": 1}], None, []], pa.list_(pa.struct([("k", pa.int8())]))),
}
TYPES = {
    "action": sl.Trajectory(dim=2),
    "reward_step": sl.Trajectory(),
    "pose": sl.Trajectory(dim=9, shape=[3, 3]),
    "raw": sl.Trajectory(dim=2, encoding="raw"),
    "embedding": sl.Embedding(dim=3),
    "camera": sl.Video(fps=30),
    "shared": sl.Video(fps=30),
    "images": sl.Image(format="jpeg"),
    "stills": sl.Image(),
}


@pytest.fixture(params=["memory", "flat", "dictionary"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> sl.Selection:
    table = pa.table(COLUMNS)
    if request.param == "memory":
        return sl.scan(table, column_types=TYPES)
    plain = request.param == "flat"
    pq.write_table(
        table,
        tmp_path / "part.parquet",
        compression="none" if plain else "zstd",
        use_dictionary=not plain,
        write_page_index=plain,
    )
    return sl.scan(tmp_path, column_types=TYPES)


def same(found: object, expected: object) -> None:
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert not found.flags.writeable


def test_every_category_has_its_form(rows: sl.Selection) -> None:
    first = rows["a"]
    assert first["flag"] is True
    assert first["count"] == 1
    assert first["price"] == Decimal("1.50")
    assert first["day"] == dt.date(2024, 2, 29)
    assert first["seen"] == np.datetime64(1_000_000_001, "ns")
    assert rows["c"]["seen"] == dt.datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=dt.UTC)
    assert first["blob"] == b"\x00\xff"
    same(first["action"], np.array([[1, 2], [3, 4]], np.float32))
    same(first["reward_step"], np.array([1, 2], np.int16))
    same(first["pose"], np.broadcast_to(np.arange(9.0).reshape(3, 3), (2, 3, 3)))
    same(first["raw"], np.array([[0, 1], [2, 3]], np.float32))
    same(first["embedding"], np.array([1, 2, 3], np.float16))
    assert first["images"].cells == [JPEG, None]
    assert [still.reference for still in first["stills"].cells] == ["0.png", "1.png"]
    assert first["camera"].reference == first["shared"].reference == "a.mp4"
    assert first["notes"] == [{"k": 1}]


def test_null_cells_are_none_and_empty_ones_have_no_steps(rows: sl.Selection) -> None:
    null = dict(rows["b"])
    assert {name for name, value in null.items() if value is not None} == {"sequence_id"}
    empty = rows["c"]
    same(empty["action"], np.empty((0, 2), np.float32))
    same(empty["reward_step"], np.empty(0, np.int16))
    same(empty["pose"], np.empty((0, 3, 3)))
    same(empty["raw"], np.empty((0, 2), np.float32))
    assert empty["shared"] is None
    assert empty["images"].cells == []


def test_it_is_a_mapping(rows: sl.Selection) -> None:
    view = rows[0]
    assert list(view) == list(COLUMNS)
    assert len(view) == len(COLUMNS)
    assert "action" in view
    assert "actoin" not in view
    assert view.get("actoin", 3) == 3
    with pytest.raises(KeyError, match="action"):
        view["actoin"]
    assert view == rows["a"]
    assert view != rows[1]
    assert len({view, rows["a"], rows[1]}) == 2
    assert (view.id, view.index) == ("a", 0)
    assert rows.select("flag")[1].id == "b"


def test_ragged_and_missing_numbers_are_said() -> None:
    kind = pa.list_(pa.list_(pa.int32()))
    for cell, match in (
        ([[1, 2], [3]], "different widths"),
        ([[1, 2], None], "null step"),
        ([[1, None]], "null among"),
    ):
        view = sl.scan(pa.table({"sequence_id": ["a"], "x": pa.array([cell], kind)}))[0]
        with pytest.raises(ValidationError, match=match):
            view["x"]
    floats = pa.array([[[1, None]]], pa.list_(pa.list_(pa.float32())))
    assert np.isnan(sl.scan(pa.table({"sequence_id": ["a"], "x": floats}))[0]["x"]).tolist() == [[False, True]]


def test_files_are_resolved_against_the_root_and_read(tmp_path: Path) -> None:
    inside = tmp_path / "data set" / "videos"
    inside.mkdir(parents=True)
    (inside / "a.mp4").write_bytes(bytes(range(100)))
    table = pa.table({"sequence_id": ["a"], "cam": ["videos/a.mp4"]})
    pq.write_table(table, inside.parent / "part.parquet")
    file = sl.scan(inside.parent, column_types={"cam": sl.Video(fps=30)})[0]["cam"]
    assert file.size == 100
    assert file.location == str(inside / "a.mp4")
    assert file.read() == bytes(range(100))
    with file.open() as stream:
        assert stream.read(3) == b"\x00\x01\x02"
        stream.seek(-2, 2)
        assert stream.read() == b"\x62\x63"
        assert stream.seek(50) == 50
        assert stream.read(1) == b"\x32"
    assert repr(file) == "MediaView('videos/a.mp4', video)"


@pytest.mark.parametrize("how", ["relative", "absolute", "file", "inside"])
def test_files_outside_the_root_are_read_only_when_allowed(tmp_path: Path, how: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    outside = tmp_path / "secret.mp4"
    outside.write_bytes(b"secret")
    reference = {
        "relative": "../secret.mp4",
        "absolute": str(outside),
        "file": f"file://{outside}",
        "inside": "x/../../secret.mp4",
    }[how]
    pq.write_table(pa.table({"sequence_id": ["a"], "cam": [reference]}), root / "part.parquet")
    rows = sl.scan(root, column_types={"cam": sl.Video(fps=30)})
    file = rows[0]["cam"]
    for attempt in (file.read, file.open, lambda: file.size):
        with pytest.raises(UnsafeReferenceError, match="allow_outside"):
            attempt()
    assert sl.Selection(rows, allow_outside=True)[0]["cam"].read() == b"secret"


def test_a_window_is_what_training_would_see(rows: sl.Selection) -> None:
    view = rows["a"]
    padded = view.window(-1, 3, columns=["action", "count"])
    np.testing.assert_array_equal(padded["action"], [[0, 0], [1, 2], [3, 4], [0, 0]])
    assert padded["action_mask"].tolist() == [False, True, True, False]
    assert (padded["sequence_id"], padded["start"], padded["count"]) == ("a", -1, 1)
    clamped = view.window(0, 4, columns=["action"], edges="clamp")
    np.testing.assert_array_equal(clamped["action"], [[1, 2], [3, 4], [3, 4], [3, 4]])
    with pytest.raises(ValueError, match="edges"):
        view.window(0, 4, columns=["action"], edges="drop")
    assert set(rows.select("sequence_id", "action")[0].window(0, 1)) == {
        "sequence_id",
        "start",
        "action",
        "action_mask",
    }


def test_flat_local_cells_are_views_of_the_file(tmp_path: Path) -> None:
    table = pa.table({"sequence_id": ["a"], "x": pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.float32())))})
    schema = sl.Schema.from_arrow(table.schema)
    from seqlake.shards import parquet

    writer = parquet.create(tmp_path / "part.parquet", schema)
    writer.write(table.to_batches()[0])
    writer.close()
    rows = sl.scan(tmp_path)
    first, again = rows[0]["x"], rows[0]["x"]
    np.testing.assert_array_equal(first, [[1, 2], [3, 4]])
    assert np.shares_memory(first, again)


def test_a_file_that_changes_under_an_open_sequence_is_noticed(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "arm", sl.Schema({"x": sl.Trajectory(dim=1)}))
    ds.append([{"sequence_id": "a", "x": [[1.0], [2.0]]}])
    view = ds["a"]
    assert view["x"].tolist() == [[1], [2]]
    (shard,) = (tmp_path / "arm" / "data").iterdir()
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    with pytest.raises((ShardChangedError, DamagedTableError)):
        view["x"]


def _values_in_a_child(rows: sl.Selection) -> list[float]:
    return rows[0]["action"].ravel().tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_opens_its_own_readers(rows: sl.Selection, method: str) -> None:
    assert rows[0]["action"] is not None
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_values_in_a_child, (rows,)) == [1, 2, 3, 4]

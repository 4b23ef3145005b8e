"""`storage_format: lance`: tables that are gone, cut off or say what is not so; whole: in test_official06.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidMetadataError,
    MissingFileError,
    SeqlakeError,
    UnsafeReferenceError,
    UnsupportedVersionError,
)

from . import by_hand
from .by_hand import CAM

lance = pytest.importorskip("lance")

LARGE = 5 << 20  # bytes from which Lance gives a blob a file of its own


def in_tables(files: Path, root: Path, *, pad: int = 0, only: tuple[str, ...] = ()) -> Path:
    """A folder of files as one of tables: as `lerobot-lancedb` writes it, by Lance alone.

    Args:
        files: The folder, of v3.0.
        root: Where to.
        pad: Bytes that are put behind each video, which decoders skip: how large a blob is says where Lance puts it.
        only: Features to keep; all by default.
    """
    shutil.copytree(files / "meta", root / "meta")
    info = json.loads((root / "meta/info.json").read_text()) | {"storage_format": "lance"}
    table = pa.concat_tables([pq.read_table(path) for path in sorted((files / "data").rglob("*.parquet"))])
    table = table.select([name for name in table.column_names if name in (only or table.column_names)])
    if only:
        info["features"] = {name: one for name, one in info["features"].items() if name in only}
    (root / "meta/info.json").write_text(json.dumps(info))
    fixed = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_list(column.type):
            column = pa.FixedSizeListArray.from_arrays(column.flatten(), len(column[0]))
        fixed[name.replace(".", "_")] = column
    lance.write_dataset(pa.table(fixed), root / "frames.lance", data_storage_version="2.1", max_rows_per_file=20)
    videos = []
    for path in sorted((files / "videos").rglob("*.mp4")):
        data = path.read_bytes() + (pad.to_bytes(4, "big") + b"free" + bytes(pad - 8) if pad else b"")
        place = {
            "video_key": path.parts[-3],
            "chunk_index": int(path.parts[-2][-3:]),
            "file_index": int(path.stem[-3:]),
        }
        videos.append({**place, "file_size": len(data), "video_bytes": data})
    names = ("video_key", "chunk_index", "file_index", "file_size")
    columns = {name: [one[name] for one in videos] for name in names}
    blobs = lance.blob_array([one["video_bytes"] for one in videos])
    fields = [pa.field("video_key", pa.string()), *(pa.field(name, pa.int64()) for name in names[1:])]
    fields.append(lance.blob_field("video_bytes"))
    rows = pa.table([*columns.values(), blobs], schema=pa.schema(fields))
    lance.write_dataset(rows, root / "videos.lance", data_storage_version="2.2")
    return root


ONLY = ("observation.state", "action", CAM, "timestamp", "frame_index", "episode_index", "index", "task_index")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand.write(tmp_path_factory.mktemp("files") / "arm", by_hand.four(), "v3.0")


@pytest.fixture
def tables(files: Path, tmp_path: Path) -> Path:
    return in_tables(files, tmp_path / "tables", only=ONLY)


@pytest.mark.parametrize("pad", [0, 1 << 20, LARGE])
def test_videos_are_read_wherever_lance_puts_them(files: Path, tmp_path: Path, pad: int) -> None:
    root = in_tables(files, tmp_path / "tables", pad=pad, only=ONLY)
    beside = list((root / "videos.lance" / "data").rglob("*.blob"))
    assert bool(beside) == bool(pad)
    for one, other in zip(sl.open(files), sl.open(root), strict=True):
        np.testing.assert_array_equal(one["action"], other["action"])
        np.testing.assert_array_equal(one[CAM][:], other[CAM][:])


def test_a_window_is_that_of_the_files(files: Path, tables: Path) -> None:
    window = sl.Window({"action": [-1, 0, 3], CAM: [0]}, edges="clamp")
    one, other = (sl.Loader(sl.open(root), window=window, batch_size=45, shuffle=False) for root in (files, tables))
    for here, there in zip(one, other, strict=True):
        np.testing.assert_array_equal(here["action"], there["action"])
        np.testing.assert_array_equal(here[CAM], there[CAM])


@pytest.mark.parametrize("name", ["frames.lance", "videos.lance"])
def test_a_table_that_is_gone_is_said(tables: Path, name: str) -> None:
    shutil.rmtree(tables / name)
    with pytest.raises(DatasetNotFoundError, match=name):
        sl.open(tables)


def test_another_storage_is_refused(tables: Path) -> None:
    place = tables / "meta/info.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"storage_format": "tar"}))
    with pytest.raises(UnsupportedVersionError, match="'tar'; parquet and lance can be read"):
        sl.open(tables)


def test_features_that_would_share_a_column_are_refused(tables: Path) -> None:
    place = tables / "meta/info.json"
    info = json.loads(place.read_text())
    info["features"]["observation_state"] = info["features"]["observation.state"]
    place.write_text(json.dumps(info))
    with pytest.raises(InvalidMetadataError, match="one column of frames.lance"):
        sl.open(tables)


def test_fewer_steps_than_are_listed_are_found(tables: Path) -> None:
    lance.dataset(tables / "frames.lance").delete("index = 3")
    ds = sl.open(tables)
    with pytest.raises(CorruptFileError, match=r"has 11 steps of episode 0|steps of episode"):
        _ = [row["action"] for row in ds]
    assert any(one.code == "lerobot-steps" for one in ds.validate(depth="rows"))


def test_a_blob_that_is_gone_or_cut_off_is_said(files: Path, tmp_path: Path) -> None:
    root = in_tables(files, tmp_path / "tables", pad=LARGE, only=ONLY)
    blob = next(iter((root / "videos.lance" / "data").rglob("*.blob")))
    with blob.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CorruptFileError, match="expected .* bytes of videos/"):
        sl.open(root)
    blob.unlink()
    with pytest.raises(MissingFileError, match="which is not there"):
        sl.open(root)


@pytest.mark.parametrize("change", [{"video_key": "../../../etc"}, {"file_size": 7}, {"chunk_index": -1}])
def test_rows_of_videos_that_lie_are_refused(tables: Path, change: dict[str, Any]) -> None:
    dataset = lance.dataset(tables / "videos.lance")
    (name, value) = next(iter(change.items()))
    dataset.update({name: f"'{value}'" if isinstance(value, str) else str(value)})
    if name == "chunk_index":
        assert any(one.severity == "error" for one in sl.open(tables).validate(depth="files"))
        return
    with pytest.raises((CorruptFileError, UnsafeReferenceError)):
        sl.open(tables)


def test_damaged_bytes_never_raise_what_is_not_ours(tables: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    places = [
        path for name in ("frames.lance", "videos.lance") for path in (tables / name).rglob("*") if path.is_file()
    ]
    for number, path in enumerate(places):
        root = shutil.copytree(tables, tmp_path / f"damaged-{number}")
        damaged = root / path.relative_to(tables)
        data = bytearray(damaged.read_bytes())
        for at in random.integers(0, len(data), 20).tolist():
            data[at] ^= 0xFF
        damaged.write_bytes(data)
        try:
            for row in sl.open(root):
                _ = row["action"], row[CAM][0]
        except SeqlakeError:
            pass

"""What hostile and broken rows do in every format: NaN, ids twice, ids that are paths; in and out, never silently."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.media import encode_image

OPTIONS: dict[str, dict[str, Any]] = {
    "huggingface": {},
    "lerobot": {"fps": 10},
    "mcap": {},
    "mds": {},
    "rlds": {},
    "webdataset": {},
    "zarr_replay": {},
    "rerun": {},
}
READ = [name for name in OPTIONS if name != "rerun"]
NEEDS = {"mcap": "mcap", "rerun": "rerun", "zarr_replay": "numcodecs"}
ODD = np.array([[np.nan, np.inf], [-np.inf, -0.0], [1e-40, 3.0]], "f4")


def source(folder: Path, ids: list[str]) -> Any:
    schema = {"x": sl.Trajectory(2, dtype="float32", fps=10), "cam": sl.Image(frames="bytes", format="png")}
    ds = sl.create(folder, schema)
    picture = encode_image(np.zeros((16, 16, 3), "u1"))
    ds.append([{"sequence_id": key, "x": ODD + number, "cam": [picture] * 3} for number, key in enumerate(ids)])
    return ds


def exported(ds: Any, out: Path, to: str) -> Path:
    pytest.importorskip(NEEDS.get(to, "seqlake"))
    sl.convert(ds, out, to=to, workers=1, progress=False, **OPTIONS[to])
    return out


def cells_of(read: Any, to: str) -> list[bytes]:
    """The bytes of the signal of each row; tar shards call it after its file."""
    return [np.asarray(row["x.npy" if to == "webdataset" else "x"], "f4").tobytes() for row in read]


@pytest.mark.parametrize("to", READ)
def test_numbers_that_are_none_come_back_bit_for_bit(to: str, tmp_path: Path) -> None:
    out = exported(source(tmp_path / "ds", ["a", "b"]), tmp_path / "out", to)
    read = sl.scan(out)
    assert cells_of(read, to) == [(ODD + number).astype("f4").tobytes() for number in range(2)]
    more = {"sequence_id": True} if to == "webdataset" else {}
    copied = sl.convert(read, tmp_path / "copy", workers=1, progress=False, **more)
    said = [one for one in sl.validate(copied, depth="rows").warnings if one.column in {"x", "x.npy"}]
    assert any("NaN" in one.message or "infinit" in one.message for one in said), said


IDS = [
    *("../../up", "/etc/passwd", "..", ".", "a/../../b", "C:\\windows", "con", ".seqlake_parts", "x\ny", "data/a"),
    "ü" * 120,
]


@pytest.mark.parametrize("to", OPTIONS)
def test_ids_that_are_paths_write_nothing_elsewhere(to: str, tmp_path: Path) -> None:
    ds = source(tmp_path / "a" / "b" / "ds", IDS)
    place = tmp_path / "inner" / "deep" / "out"
    place.parent.mkdir(parents=True)
    out = exported(ds, place, to)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "inner"}
    assert [path.name for path in place.parent.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["deep"]
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    if to in {"mcap", "rerun"}:
        assert len(list(out.iterdir())) == len(IDS)
    if to != "rerun":
        read = sl.scan(out)
        assert sorted(cells_of(read, to)) == sorted((ODD + number).astype("f4").tobytes() for number in range(len(IDS)))


def tar(path: Path, keys: list[str]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, key in enumerate(keys):
            data = json.dumps({"n": number}).encode()
            info = tarfile.TarInfo(f"{key}.json")
            info.size = len(data)
            archive.addfile(info, BytesIO(data))


def twice_in_webdataset(top: Path) -> Any:
    (top / "shards").mkdir()
    tar(top / "shards/s-0.tar", ["a", "b"])
    tar(top / "shards/s-1.tar", ["a", "c"])
    return sl.scan(top / "shards", sequence_id=True)


def twice_in_parquet(top: Path) -> Any:
    (top / "data").mkdir()
    pq.write_table(pa.table({"sequence_id": ["a", "b", "a", "c"], "n": [0, 1, 2, 3]}), top / "data/train-0.parquet")
    return sl.scan(top / "data" / "train-0.parquet")


def twice_in_csv(top: Path) -> Any:
    (top / "rows.csv").write_text("sequence_id,n\na,0\nb,1\na,2\nc,3\n")
    return sl.scan(top / "rows.csv")


def twice_in_frame(_top: Path) -> Any:
    import pandas as pd

    return sl.scan(pd.DataFrame({"sequence_id": ["a", "b", "a", "c"], "n": [0, 1, 2, 3]}))


TWICE = {"webdataset": twice_in_webdataset, "parquet": twice_in_parquet, "csv": twice_in_csv, "pandas": twice_in_frame}


@pytest.mark.parametrize("kind", TWICE)
def test_ids_that_come_twice_are_said_or_made_their_own(kind: str, tmp_path: Path) -> None:
    """Four rows, or an error: never three, and never one id for two."""
    try:
        read = TWICE[kind](tmp_path)
        copied = sl.convert(read, tmp_path / "copy", workers=1, progress=False)
    except SeqlakeError as error:
        assert "'a'" in str(error)  # noqa: PT017 - which of the two it is, is the format's
        return
    assert len(copied) == 4
    ids = [row["sequence_id"] for row in copied]
    assert len(set(ids)) == 4


def test_episodes_of_replay_buffers_that_are_called_the_same(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    import zarr

    root = zarr.open_group(str(tmp_path / "b.zarr"), mode="w", zarr_format=2)
    root.create_array("data/action", data=np.zeros((6, 2), "f4"))
    root.create_array("meta/episode_ends", data=np.array([2, 4, 6]))
    root.create_array("meta/sequence_id", data=np.array(["a", "b", "a"]))
    ids = [row["sequence_id"] for row in sl.scan(tmp_path / "b.zarr")]
    assert ids == ["episode_000000", "episode_000001", "episode_000002"]


def test_a_frame_whose_steps_jump_is_put_in_order_and_twice_the_same_step_is_refused() -> None:
    """A clock that was set back: `steps` orders, and two rows of one step are nobody's."""
    import pandas as pd

    rows = pd.DataFrame({"e": ["a"] * 4, "t": [0.0, 9.0, 0.5, 1.0], "v": [0, 3, 1, 2]})
    read = sl.scan(rows, sequence_id="e", steps="t")
    assert np.asarray(next(iter(read))["v"]).reshape(-1).tolist() == [0, 1, 2, 3]
    rows.loc[2, "t"] = 9.0
    with pytest.raises(SeqlakeError, match="'a'"):
        list(sl.scan(rows, sequence_id="e", steps="t"))
    rows.loc[2, "t"] = np.nan
    with pytest.raises(SeqlakeError, match="1 samples have no 't'"):
        list(sl.scan(rows, sequence_id="e", steps="t"))


def test_videos_beside_hdf5_that_are_missing_or_lie_elsewhere(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from seqlake.formats import hdf5

    folder = tmp_path / "demos"
    folder.mkdir()
    (tmp_path / "secret.mp4").write_bytes(b"not yours")
    for name in ("a", "b"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["action"] = np.zeros((3, 2), "f4")
    (folder / "a.mp4").write_bytes(b"here")
    cam = {"type": "video", "source": "file:{stem}.mp4"}
    read = hdf5.scan(str(folder), map={"action": "action", "cam": cam})
    said = [one for one in read.check("rows") if one.code == "hdf5-missing"]
    assert [(one.column, one.sequence_id) for one in said] == [("cam", "b")], said
    assert sl.scan(read).to_arrow()["cam"].is_null().to_pylist() == [False, True]
    outside = hdf5.scan(str(folder), map={"action": "action", "cam": cam | {"source": "file:../secret.mp4"}})
    assert sl.scan(outside).to_arrow()["cam"].null_count == 2
    assert {one.column for one in outside.check("rows") if one.code == "hdf5-missing"} == {"cam"}


def test_files_that_rows_of_hugging_face_name_and_that_are_missing(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = pa.array([{"bytes": None, "path": "gone.png"}, {"bytes": encode_image(np.zeros((4, 4, 3), "u1"))}], kind)
    features = {"n": {"dtype": "int64", "_type": "Value"}, "cam": {"_type": "Image"}}
    described = {"huggingface": json.dumps({"info": {"features": features}})}
    (tmp_path / "data").mkdir()
    table = pa.table({"n": [0, 1], "cam": cells}).replace_schema_metadata(described)
    pq.write_table(table, tmp_path / "data/train-00000-of-00001.parquet")
    read = sl.scan(tmp_path)
    assert len(read) == 2
    for to, more in (("huggingface", {}), (None, {"sequence_id": True})):
        with pytest.raises(SeqlakeError, match=r"gone\.png"):
            sl.convert(read, tmp_path / f"out-{to}", to=to, workers=1, progress=False, **more)
        assert not list(tmp_path.glob(f"out-{to}/*"))

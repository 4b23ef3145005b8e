"""Folders of other formats, changed at random: an error of ours or the right answer, within bounds."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from seqlake.formats import jsonl, mds, xsv

from ..counting import Counts, many, seeded  # noqa: TID252 - tests are no package that could be named
from .l5kit import conftest as zarr
from .mutating import counted
from .rlds import conftest as tfds

pytest.importorskip("zstandard")
pytest.importorskip("numcodecs")

FEW, MANY = 3, 500
OFTEN = (
    "MDS",
    "MDS, zstd, hashed",
    "CSV",
    "XSV, bz2",
    "JSON lines",
    "L5Kit, Blosc",
    "L5Kit, zlib",
    "L5Kit, zip",
    "HDF5, a file an episode",
    "RLDS",
    "LeRobot, v3.0",
    "MCAP, ROS 2",
    "bag, ROS 1",
    "replay buffer, zarr 3",
    "WebDataset",
    "Hugging Face",
    "row a step, CSV",
)


def samples(home: Path, **options: Any) -> None:
    columns = {"a": "int", "f": "ndarray:int16:2,2", "h": "float32", "j": "json", "n": "ndarray", "p": "jpeg_array"}
    columns |= {"q": "pil", "r": "ndarray:float64", "s": "str", "t": "str_int", "u": "str_decimal", "z": "bytes"}
    Image = pytest.importorskip("PIL.Image")
    with mds.writer(str(home / "set"), columns, size_limit=900, **options) as writer:
        for i in range(12):
            one = {"a": i, "f": np.full((2, 2), i, "i2"), "h": i / 3, "j": {"k": [i]}, "p": [b"x" * i, b""]}
            one |= {"n": np.arange(i + 1, dtype="i2"), "q": Image.new("L", (3, 2), i), "s": "ä" * i, "t": 10**i}
            one |= {"r": np.arange(2.0 * (i + 1)).reshape(2, -1), "u": Decimal(i), "z": bytes(i)}
            writer.write(one)


def texts(plug: Any, **options: Any) -> Callable[[Path], object]:
    def make(home: Path) -> None:
        columns = {"t": "str", "i": "int", "x": "float"}
        with plug.writer(str(home / "set"), columns, size_limit=300, **options) as writer:
            writer.write_all({"t": "ä" * i, "i": i, "x": i / 3} for i in range(30))

    return make


def store(codec: str, *, archive: int | None = None) -> Callable[[Path], object]:
    def make(home: Path) -> None:
        arrays = zarr.drives(scenes=3, frames=12, agents=6)
        arrays["agents_mask/0.5"] = np.ones((len(arrays["agents"]), 2), np.uint32)
        folder = zarr.write(home / "s.zarr", arrays, codec=zarr.CODECS.get(codec, {"id": codec}), chunks=60)
        if archive is not None:
            zarr.zipped(folder, home / "s.zip", method=archive)
            shutil.rmtree(folder)

    return make


def episodes(home: Path, **options: Any) -> None:
    h5py = pytest.importorskip("h5py")
    (home / "set").mkdir()
    for number, steps in enumerate((5, 4)):
        with h5py.File(home / "set" / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.arange(steps * 3.0).reshape(steps, 3)
            file.create_dataset("observations/qpos", data=np.arange(steps * 2.0).reshape(steps, 2), **options)
            file.create_dataset("observations/images/top", data=np.full((steps, 9, 8, 3), number, "u1"), **options)
            file.create_dataset("note", data=["a" * steps] * steps, dtype=h5py.string_dtype())
            file.attrs["task"] = "pick"


def demonstrations(home: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (home / "set").mkdir()
    with h5py.File(home / "set" / "demo.hdf5", "w", libver="latest") as file:
        for number, steps in enumerate((5, 4, 3)):
            options = {"chunks": (2, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}
            file.create_dataset(f"data/demo_{number}/actions", data=np.arange(steps * 3.0).reshape(-1, 3), **options)
            file.create_dataset(f"data/demo_{number}/obs/x", data=np.arange(steps), maxshape=(None,))
        file["data"].attrs["env_args"] = '{"env_kwargs": {"control_freq": 20}}'
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])


def recording(kind: str) -> Callable[[Path], object]:
    def make(home: Path) -> None:
        pytest.importorskip("mcap")
        pytest.importorskip("rosbags")
        from .mcap import by_hand

        by_hand.write(home, kind, count=6)

    return make


def replay(home: Path, form: int) -> None:
    library = pytest.importorskip("zarr")
    group = library.open_group(store=str(home / "set.zarr"), mode="w", zarr_format=form)
    group.create_array("data/action", data=np.arange(36.0, dtype="f4").reshape(12, 3), chunks=(4, 3))
    group.create_array("data/top", data=np.arange(12 * 72).reshape(12, 4, 6, 3).astype("u1"), chunks=(5, 4, 6, 3))
    group.create_array("meta/episode_ends", data=np.array([5, 12]))


def tars(home: Path) -> None:
    library = pytest.importorskip("webdataset")
    (home / "set").mkdir()
    for shard in range(2):
        with library.TarWriter(str(home / "set" / f"s-{shard:06d}.tar")) as sink:
            for step in range(4):
                one = {
                    "cls": step,
                    "json": {"step": step, "ok": True},
                    "x.npy": np.arange(3.0) + step,
                    "txt": "ä" * step,
                }
                sink.write({"__key__": f"ep{shard}_{step}", "bin": bytes([step]) * 9, **one})


def rows(home: Path) -> None:
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    pair = {"n": library.Value("int32"), "label": library.ClassLabel(names=["no", "yes"])}
    features = {"name": library.Value("string"), "x": library.Array2D((None, 3), "float32"), "pair": pair}
    (home / "set" / "data").mkdir(parents=True)
    for number in range(2):
        made = [{"name": "ä" * i, "x": np.full((i + 1, 3), i), "pair": {"n": i, "label": i % 2}} for i in range(6)]
        official = library.Dataset.from_list(made, features=library.Features(features))
        official.to_parquet(str(home / "set" / "data" / f"train-{number:05d}-of-00002.parquet"))


def saved(home: Path) -> None:
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    library.Dataset.from_list([{"name": "ä" * i, "x": [i, 2.5]} for i in range(9)]).save_to_disk(str(home / "set"))


def steps(home: Path, form: str) -> None:
    table = pa.table(
        {
            "episode": [f"ep{n // 5}" for n in range(15)],
            "t": [n % 5 for n in range(15)],
            "x": pa.array(np.arange(15) / 3),
            "note": ["ä" * (n % 3) for n in range(15)],
        }
    )
    if form == "csv":
        pa_csv.write_csv(table, home / "steps.csv")
    else:
        pq.write_table(table, home / "steps.parquet", row_group_size=4)


def arms(home: Path, version: str) -> None:
    pytest.importorskip("av")
    from .lerobot import by_hand

    recorded = [by_hand.record(number, length) for number, length in enumerate((4, 6, 3))]
    by_hand.write(home / "arm", recorded, version)


REZIPPED = "a member that somebody changed and packed anew is a value"
READERS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "MDS": ("mds", samples, "no hash in the index"),
    "MDS, hashed": ("mds", lambda home: samples(home, hashes=["sha1"]), ""),
    "MDS, zstd, hashed": ("mds", lambda home: samples(home, hashes=["xxh64"], compression="zstd"), ""),
    "MDS, gz": ("mds", lambda home: samples(home, compression="gz"), ""),
    "MDS, br": ("mds", lambda home: samples(home, compression="br"), "no hash in the index"),
    "CSV": ("csv", texts(xsv), "no hash in the index"),
    "TSV, zstd, hashed": ("tsv", texts(xsv, separator="\t", compression="zstd", hashes=["md5"]), ""),
    "XSV, bz2": ("xsv", texts(xsv, separator="::", newline="\r\n", compression="bz2"), ""),
    "JSON lines": ("json", texts(jsonl), "no hash in the index"),
    "JSON lines, snappy, hashed": ("json", texts(jsonl, compression="snappy", hashes=["sha1"]), ""),
    "L5Kit, Blosc": ("l5kit", store("blosc-1"), "chunks of zarr have no checksum"),
    "L5Kit, plain": ("l5kit", store("none"), "chunks of zarr have no checksum"),
    "L5Kit, zlib": ("l5kit", store("zlib"), "a file of zarr that is gone, or another's, is no damage"),
    "L5Kit, zstd": ("l5kit", store("zstd"), "chunks of zarr have no checksum"),
    "L5Kit, lz4": ("l5kit", store("lz4"), "chunks of zarr have no checksum"),
    "L5Kit, zip": ("l5kit", store("blosc-1", archive=zipfile.ZIP_STORED), REZIPPED),
    "L5Kit, zip, deflated": ("l5kit", store("none", archive=zipfile.ZIP_DEFLATED), REZIPPED),
    "HDF5, a file an episode": ("hdf5", episodes, "values of HDF5 have no checksum"),
    "HDF5, packed": ("hdf5", lambda home: episodes(home, compression="lzf"), "values of HDF5 have no checksum"),
    "HDF5, demonstrations": ("hdf5", demonstrations, "values of HDF5 have no checksum"),
    "RLDS": ("rlds", lambda home: tfds.arm_folder().write(home / "arm"), ""),
    "LeRobot, v3.0": ("lerobot", lambda home: arms(home, "v3.0"), "pages of Parquet and videos have no checksum"),
    "LeRobot, v2.1": ("lerobot", lambda home: arms(home, "v2.1"), "pages of Parquet and videos have no checksum"),
    "MCAP, ROS 2": ("mcap", recording("mcap-ros2"), "records outside chunks have no checksum that must be there"),
    "MCAP, ROS 1": ("mcap", recording("mcap-ros1"), "records outside chunks have no checksum that must be there"),
    "bag, ROS 1": ("mcap", recording("ros1"), "bags have no checksum"),
    "bag, SQLite": ("mcap", recording("sqlite"), "bags have no checksum"),
    "replay buffer, zarr 2": ("zarr_replay", lambda home: replay(home, 2), "chunks of zarr have no checksum"),
    "replay buffer, zarr 3": ("zarr_replay", lambda home: replay(home, 3), "chunks of zarr have no checksum"),
    "WebDataset": ("webdataset", tars, "files in tar archives have no checksum"),
    "Hugging Face": ("huggingface", rows, "pages of Parquet have no checksum"),
    "Hugging Face, saved": ("huggingface", saved, "Arrow files have no checksum"),
    "row a step, CSV": ("steps", lambda home: steps(home, "csv"), "texts have no checksum"),
    "row a step, Parquet": ("steps", lambda home: steps(home, "parquet"), "pages of Parquet have no checksum"),
}
"""Reader -> its kind, how its folder is made, and why a changed byte may go unnoticed."""


def look(reader: str, home: Path, *, first: int, count: int) -> None:
    kind, make, why = READERS[reader]
    (home / "base").mkdir()
    make(home / "base")
    counts = Counts(reader=reader)
    counted(kind, home / "base", counts, first=first, count=count)
    if why and counts.wrong:
        counts.cause = why
    counts.keep()
    bad = {name: number for name, number in counts.bad().items() if name != "wrong" or not why}
    assert not bad, (bad, counts.examples[:20])
    assert counts.right + counts.refused
    if count > FEW:
        assert counts.right
        assert counts.refused


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("reader", OFTEN)
def test_what_is_changed_is_an_error_or_the_right_answer(tmp_path: Path, reader: str) -> None:
    look(reader, tmp_path, first=0, count=FEW)


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("reader", READERS)
def test_thousands_of_changes(tmp_path: Path, reader: str) -> None:
    look(reader, tmp_path, first=seeded(FEW), count=many(MANY))

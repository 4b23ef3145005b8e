"""Files that are carried and not decoded: what they are and what reads them, said wherever they are met."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest

import seqlake as sl
from seqlake import media
from seqlake.cli import main
from seqlake.errors import DecodeError
from seqlake.media._carried import KINDS, carried
from seqlake.protocols import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MCAP = b"\x89MCAP0\r\n" + bytes(60)
TABLE = pa.table({"x": [1, 2]})
READ = "It is an MCAP log, read by `sl.open(file.location)`."


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("a", b"1")


def tarred(path: Path) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as out:
        out.addfile(tarfile.TarInfo("a"))


def torched(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.ones(2)}, path)


def tensors(path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file({"x": np.ones(2)}, path)


def arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as out:
        out.write_table(TABLE)


def database(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE messages (x)")
    base.close()


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.npy": lambda path: np.save(path, np.arange(3)),
    "a.npz": lambda path: np.savez(path, x=np.arange(3)),
    "a.zip": zipped,
    "a.tar": tarred,
    "a.tgz": tarred,
    "a.pt": torched,
    "a.safetensors": tensors,
    "a.pkl": lambda path: path.write_bytes(pickle.dumps([1])),
    "a.parquet": lambda path: pyarrow.parquet.write_table(TABLE, path),
    "a.arrow": arrow,
    "a.csv": lambda path: pyarrow.csv.write_csv(TABLE, path),
    "a.tsv": lambda path: path.write_text("x\ty\n1\t2\n"),
    "a.json": lambda path: path.write_text(json.dumps([1])),
    "a.jsonl": lambda path: path.write_text('{"x": 1}\n'),
    "a.yaml": lambda path: path.write_text("x: 1"),
    "a.txt": lambda path: path.write_text("x"),
    "a.gz": lambda path: path.write_bytes(gzip.compress(b"x")),
    "a.sqlite": database,
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_call_that_is_named_reads_the_file(name: str, tmp_path: Path) -> None:
    """With the library itself; those of logs, volumes and scenes are no part of the tests' environment."""
    WRITERS[name](tmp_path / name)
    ds = sl.create(tmp_path / "ds", sl.Schema({"log": sl.ColumnType("other", file=True)}))
    ds.append([{"sequence_id": "a", "log": sl.File(tmp_path / name)}])
    file = ds["a"]["log"]
    kind = carried(file.reference, file.open().read(64))
    assert kind is not None
    assert kind.endings
    assert name.endswith(kind.endings)
    assert kind == carried(name)  # by its name alone, too
    assert f"`{kind.call}`" in file.hint()
    root, *inner = kind.call.partition("(")[0].split(".")[:-1]
    space: dict[str, Any] = {"file": file}
    if root != "file":
        space[root] = pytest.importorskip(root)
        if inner:
            import_module(".".join([root, *inner]))
    result = eval(kind.call, space)
    assert result is not None
    if isinstance(result, (sqlite3.Connection, np.lib.npyio.NpzFile, zipfile.ZipFile, tarfile.TarFile)):
        result.close()


@pytest.mark.parametrize(
    ("name", "head", "what"),
    [
        ("a.bin", MCAP, "an MCAP log"),
        ("a.json", MCAP, "an MCAP log"),  # how it begins counts before its name
        ("https://host/a.mcap?X-Sig=1.json", b"", "an MCAP log"),
        ("A.MCAP", b"", "an MCAP log"),
        ("a.mcap", b"hello", None),
        ("a.bag", b"#ROSBAG V2.0\n", "a ROS 1 bag"),
        ("a.db3", b"SQLite format 3\0", "a ROS 2 bag"),
        ("a", b"SQLite format 3\0", "an SQLite database"),
        ("a", b"PK\x03\x04", "a ZIP archive"),
        ("a.npz", b"PK\x03\x04", "numpy arrays"),
        ("a.usdz", b"PK\x03\x04", "a scene in USD"),
        ("a.zarr.zip", b"PK\x03\x04", "a zarr store in a ZIP archive"),
        ("a.zarr/", b"", "a zarr store"),
        ("a.nii.gz", b"\x1f\x8b\x08", "a NIfTI volume"),
        ("a.h5", b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        ("a.mat", b"\x89HDF\r\n\x1a\n", "a MATLAB 7.3 file (HDF5)"),
        ("a.mat", b"MATLAB 5.0 MAT-file", "a MATLAB file"),
        ("a.usd", b"PXR-USDC", "a scene in USD"),
        ("a.usd", b"#usda 1.0", "a scene in USD"),
        ("a.rrd", b"RRF2", "a Rerun recording"),
        ("a.pth", b"\x80\x02", "a PyTorch file"),
        ("a.mp4", b"\0\0\0\x20ftypisom", None),
        ("a", bytes(64), None),
        ("", b"", None),
    ],
)
def test_the_first_bytes_decide_then_the_name(name: str, head: bytes, what: str | None) -> None:
    kind = carried(name, head)
    assert (kind and kind.what) == what


def test_every_call_is_one_and_needs_what_it_says() -> None:
    for kind in KINDS:
        compile(kind.call, kind.what, "eval")
        assert ("copy on this disk" in str(kind)) == ("file.location" in kind.call and not kind.call.startswith("sl."))
        assert all(ending.startswith(".") for ending in kind.endings)


def built(root: Path) -> sl.Dataset:
    (root / "a.mcap").write_bytes(MCAP)
    kinds = {"log": sl.ColumnType("mcap"), "cam": sl.Video(), "scan": sl.Spatial3D(), "still": sl.Image()}
    ds = sl.create(root / "ds", sl.Schema(kinds))
    ds.append([{"sequence_id": "a", **dict.fromkeys(kinds, sl.File(root / "a.mcap"))}])
    return ds


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main([*arguments])
    return capsys.readouterr().out


def test_each_place_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = built(tmp_path)
    row = ds["a"]
    for name in ("log", "cam", "scan", "still"):
        view = row[name]
        assert view.hint() == READ
        assert READ in repr(view)
        source = Source(blob=view.blob(), column=view.column)
        with pytest.raises(DecodeError) as caught:
            media.open(source).read(np.array([0]))
        assert READ in str(caught.value)
    assert repr(row).count(READ) == 4
    assert row._repr_html_().count("It is an MCAP log") == 5  # why the picture is not there says it too
    findings = {f.column: f.message for f in ds.validate(depth="decode") if f.code in {"F409", "F435"}}
    assert sorted(findings) == ["cam", "log", "scan", "still"]
    assert all(READ.rstrip(".") in message for message in findings.values())
    for command in (["info", ds.location], ["show", ds.location, "a"]):
        assert json.loads(printed(capsys, *command, "--json"))["hints"] == dict.fromkeys(findings, READ)
        assert printed(capsys, *command).count(READ) == 4


def test_what_is_decoded_under_another_type_says_so_and_what_is_decoded_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.glb").write_bytes(b"glTF" + bytes(60))
    ds = sl.create(tmp_path / "ds", sl.Schema({"log": sl.ColumnType("other", file=True), "scan": sl.Spatial3D()}))
    ds.append([{"sequence_id": "a", "log": sl.File(tmp_path / "a.glb"), "scan": sl.File(tmp_path / "a.glb")}])
    assert ds["a"]["log"].hint() == "It is decoded where the type of its column is `sl.Spatial3D()`."
    assert ds["a"]["scan"].hint() == ""


def test_bytes_in_the_row_are_known_by_how_they_begin(tmp_path: Path) -> None:
    out = io.BytesIO()
    np.save(out, np.arange(2))
    ds = sl.create(tmp_path / "ds", sl.Schema({"scan": sl.Spatial3D(inline=True)}))
    ds.append([{"sequence_id": "a", "scan": out.getvalue()}])
    assert "numpy.load" in repr(ds["a"]["scan"])
    assert "numpy.load" in ds["a"]["scan"].hint()


def test_nothing_is_asked_of_other_machines_nor_of_what_is_gone(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"log": sl.ColumnType("mcap")}))
    rows = ["https://a.invalid/a.mcap", "gone.mcap", "nosuch://x/a.mcap", "../outside.mcap", "https://a.invalid/x"]
    ds.append([{"sequence_id": str(n), "log": one} for n, one in enumerate(rows)])
    assert [ds[n]["log"].hint() for n in range(5)] == [READ] * 4 + [""]

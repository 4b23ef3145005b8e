"""A folder of attacks is opened, read, trained on and validated: refused, nothing outside touched, little memory."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

from ..media import clips  # noqa: TID252 - tests are no package that could be named
from ..media.test_containers import LISTS  # noqa: TID252 - the same
from ..media.test_image import jpeg, png  # noqa: TID252 - the same
from ..shards.parquet import forging  # noqa: TID252 - the same

SCRIPT = Path(__file__).with_name("strangers.py")
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\nseqlake: error: believe")
SMALL = np.full((8, 8, 3), 7, np.uint8)
HUGE = (65500).to_bytes(2, "big")
EVIL = "a\x1b[2J\x9b31m\u202e\u2066\r\x07\x7fz\nseqlake: error: believe me"


def jpeg_bomb() -> bytes:
    """A small picture that says it is 65 500 pixels wide and high."""
    data = bytearray(jpeg(SMALL))
    frame = next(at for at in range(len(data)) if data[at] == 0xFF and data[at + 1] in {0xC0, 0xC1, 0xC2})
    data[frame + 5 : frame + 9] = HUGE * 2
    return bytes(data)


def png_bomb() -> bytes:
    data = bytearray(png(SMALL, 2))
    data[16:24] = (b"\0\0" + HUGE) * 2  # its checksum is wrong now; what is looked at first is the size
    return bytes(data)


def references(place: Path, outside: Path, port: int) -> dict[str, tuple[str, str]]:
    """Sequence -> its column and what it names."""
    files = place / "sent"
    files.mkdir()
    made = {f"{kind}.mp4": LISTS[kind].encode() for kind in ("ffconcat", "HLS", "DASH", "SDP")}
    made |= {"bomb.jpg": jpeg_bomb(), "bomb.png": png_bomb(), f"{EVIL}.png": b"no picture"}
    for name, data in made.items():
        (files / name).write_bytes(data)
    (files / "secret.mp4").write_bytes((outside / "secret.mp4").read_bytes())  # what the lists name beside them
    (files / "link.png").symlink_to(outside / "secret.png")
    found = {Path(name).stem if "bomb" not in name else name: f"sent/{name}" for name in made}
    found |= {
        "link": "sent/link.png",
        "up": f"../../{outside.name}/secret.png",
        "absolute": str(outside / "secret.png"),
        "file uri": (outside / "secret.png").as_uri(),
        "loopback": f"http://127.0.0.1:{port}/secret.png",
        "loopback by name": f"http://localhost:{port}/secret.png",
        "bucket": "s3://films/secret.png",
        "nul": "sent/a\0.png",
        "ftp": f"ftp://127.0.0.1:{port}/secret.png",
    }
    return {name: ("cam" if one.endswith(".mp4") else "pic", one) for name, one in found.items()}


def samples_bomb(place: Path) -> None:
    """MDS whose only shard becomes 5 GB."""
    zstandard = pytest.importorskip("zstandard")
    with sl.create(place, {"x": "int"}, format="mds", compression="zstd:3") as writer:
        writer.write({"x": 1})
    [shard] = place.glob("*.zstd")
    engine = zstandard.ZstdCompressor(level=1).compressobj()
    zeros = bytes(64 << 20)
    data = b"".join([*(engine.compress(zeros) for _ in range(80)), engine.flush()])
    shard.write_bytes(data)
    index = json.loads((place / "index.json").read_text())
    index["shards"][0]["zip_data"] = {"basename": shard.name, "bytes": len(data), "hashes": {}}
    index["shards"][0]["raw_data"]["bytes"] = 80 * len(zeros)
    (place / "index.json").write_text(json.dumps(index))


def drives_bomb(place: Path) -> None:
    """A store of l5kit of ten thousand million scenes, none of which is there."""
    for name, dtype in {
        "scenes": [["frame_index_interval", "<i8", [2]], ["host", "<U16"], ["start_time", "<i8"], ["end_time", "<i8"]],
    }.items():
        (place / name).mkdir(parents=True)
        held = {
            "chunks": [10**10], "compressor": None, "dtype": dtype, "fill_value": None, "filters": None, "order": "C",
            "shape": [10**10], "zarr_format": 2,
        }  # fmt: skip
        (place / name / ".zarray").write_text(json.dumps(held))
    (place / ".zgroup").write_text('{"zarr_format": 2}')


def archives(place: Path) -> dict[str, Path]:
    """Zip archives of a store of l5kit, one of whose members lies."""
    l5 = pytest.importorskip("seqlake.compat.l5kit")
    pytest.importorskip("numcodecs")
    store = place / "store"
    l5.create_store(str(store), l5.sized(scenes=1, frames=1, agents=100))
    whole = json.loads((store / "agents" / ".zarray").read_text())["chunks"][0] * l5.AGENT_DTYPE.itemsize
    engine = zlib.compressobj(9, wbits=-15)
    block = engine.compress(bytes(1 << 24)) + engine.flush(zlib.Z_FULL_FLUSH)
    zeros = block * 320 + b"\3\0"  # deflated: they make 5 GB
    lies = {  # what stands in the directory: bytes of the member, its method, bytes that it makes, its place
        "makes 5 GB": (len(zeros), 8, 320 << 24, None),
        "makes more than it says": (len(zeros), 8, whole, None),
        "plain beyond the end": (320 << 24, 0, 320 << 24, None),
        "lies elsewhere": (len(zeros), 8, whole, 7),
    }
    for name, told in lies.items():
        path = place / f"{name}.zarr.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for one in sorted(store.rglob("*")):
                if one.is_file():
                    archive.write(one, one.relative_to(store).as_posix())
            archive.writestr("agents/0", zeros)
        data = bytearray(path.read_bytes())
        at = data.rindex(b"agents/0") - 46
        for offset, size, value in zip((20, 10, 24, 42), (4, 2, 4, 4), told, strict=True):
            if value is not None:
                data[at + offset : at + offset + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        path.write_bytes(data)
    return {name: place / f"{name}.zarr.zip" for name in lies}


def catalogs(place: Path, secret: Path) -> dict[str, str]:
    """Catalogs of DuckLake in DuckDB that bring SQL which would read a file of the reader's."""
    read = f"FROM read_text('{secret}')"
    brought = {
        "a view": (
            "ALTER TABLE ducklake_snapshot RENAME TO kept",
            f"CREATE VIEW ducklake_snapshot AS SELECT * FROM kept WHERE (SELECT count(*) {read}) > 0",
        ),
        "a macro": (f"CREATE MACRO min(x) AS (SELECT length(content) {read})",),
    }
    made = {}
    for name, statements in brought.items():
        (place / name).mkdir()
        made[name] = f"ducklake:{place / name}/lake.ducklake?table=takes"
        sl.create(made[name], sl.Schema({"n": pa.int64()})).append([{"sequence_id": "a", "n": 1}])
        with closing(duckdb.connect(str(place / name / "lake.ducklake"))) as catalog:
            for one in statements:
                catalog.execute(one)
    return made


def forged(place: Path) -> list[int]:
    """A dataset whose shard's offset index promises a million steps, sealed as ours are; what steps there are."""
    ds = sl.create(place, sl.Schema({"action": sl.Trajectory(dim=2, fps=10)}))
    lengths = [5, 9, 7]
    ds.append({"sequence_id": str(n), "action": np.full((n, 2), n, np.float32)} for n in lengths)
    [shard] = (place / "data").glob("*.parquet")
    data = shard.read_bytes()
    told = forging.own_index(data)
    steps = told.columns["action"].steps.copy()
    steps[1] += 10**6
    shard.write_bytes(forging.resealed(data, forging.lying(told, "action", steps=steps)))
    shutil.rmtree(place / "_seqlake")  # as somebody sends a folder
    return lengths


def state_of(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*"))}


def test_a_folder_of_attacks(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.png").write_bytes(png(SMALL, 2))
    (outside / "secret.mp4").write_bytes(clips.clip("h264 with B-frames"))
    before = state_of(outside)
    schema = {
        "kind": pa.string(),
        "action": sl.Trajectory(dim=1, fps=10),
        "cam": sl.Video(fps=10),
        "pic": sl.Image(fps=10, frames="files"),
    }
    sent = tmp_path / "sent"
    ds = sl.create(sent / "arm", sl.Schema(schema))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = references(sent / "arm", outside, listener.getsockname()[1])
        steps = np.zeros((2, 1), np.float32)
        ds.append(
            [
                {"sequence_id": name, "kind": column, "action": steps, column: one if column == "cam" else [one] * 2}
                for name, (column, one) in named.items()
            ]
        )
        samples_bomb(sent / "samples")
        drives_bomb(sent / "drives")
        (sent / "metadata").mkdir()
        zipped, lakes, steps = archives(sent), catalogs(sent, outside / "secret.png"), forged(sent / "forged")
        with (sent / "metadata" / "mixtrain.json").open("wb") as file:
            file.truncate(1 << 43)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(sent), *lakes.values()], capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    shown = {name: text for name, text in told.items() if name.startswith("shown: ")}
    assert len(shown) > 6
    assert [name for name, text in shown.items() if not told.pop(name) or RAW.search(text)] == []
    assert told.pop("forged index") == f"read {steps}"
    assert told.pop("forged index, loader") == f"read {sum(steps)}"
    assert told["forged index, validate"] == "a finding"
    assert len(told) == 3 * len(named) + 4 + 2 * len(zipped) + 2 * len(lakes)
    wrong = {name: how for name, how in told.items() if not (how.endswith("Error") or how == "a finding")}
    assert wrong == {}
    assert "SchemaMismatchError" not in told.values()  # a window that could not be asked for shows nothing
    assert state_of(outside) == before

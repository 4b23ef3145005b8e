"""A folder of attacks is opened, read, trained on and validated: refused, nothing outside touched, little memory."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

from ..media import clips  # noqa: TID252 - tests are no package that could be named
from ..media.test_containers import LISTS  # noqa: TID252 - the same
from ..media.test_image import jpeg, png  # noqa: TID252 - the same

SCRIPT = Path(__file__).with_name("strangers.py")
SMALL = np.full((8, 8, 3), 7, np.uint8)
HUGE = (65500).to_bytes(2, "big")


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
    made |= {"bomb.jpg": jpeg_bomb(), "bomb.png": png_bomb()}
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


def state_of(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*"))}


def test_a_folder_of_attacks(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.png").write_bytes(png(SMALL, 2))
    (outside / "secret.mp4").write_bytes(clips.clip("h264 with B-frames"))
    before = state_of(outside)
    schema = {"kind": pa.string(), "action": sl.Trajectory(dim=1, fps=10), "cam": sl.Video(fps=10), "pic": sl.Image()}
    sent = tmp_path / "sent"
    ds = sl.create(sent / "arm", sl.Schema(schema))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = references(sent / "arm", outside, listener.getsockname()[1])
        steps = np.zeros((2, 1), np.float32)
        ds.append(
            [
                {"sequence_id": name, "kind": column, "action": steps, column: one}
                for name, (column, one) in named.items()
            ]
        )
        samples_bomb(sent / "samples")
        drives_bomb(sent / "drives")
        (sent / "metadata").mkdir()
        with (sent / "metadata" / "mixtrain.json").open("wb") as file:
            file.truncate(1 << 43)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(sent)], capture_output=True, text=True, timeout=300, check=False
        )
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert len(told) == 3 * len(named) + 3
    wrong = {name: how for name, how in told.items() if not (how.endswith("Error") or how == "a finding")}
    assert wrong == {}
    assert state_of(outside) == before

"""The tables and metadata that the specification prints, made literally by the writers of each home."""

from __future__ import annotations

import io
import json
import re
import wave
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.files.locations import local_path

from .. import theirs  # noqa: TID252 - tests are no package that could be named
from ..media import clips  # noqa: TID252 - as above

ROBOTICS = """
| sequence_id | robot_id | task | reward | action | obs_state | video_cam_high |
|---|---|---|---|---|---|---|
| ep_001 | go1 | pick-n-place | 42.3 | float[200][12] | float[200][48] | s3://.../1.mp4 |
"""
WORLD_MODELS = """
| sequence_id | environment | video_input | video_output | action | latent_state |
|---|---|---|---|---|---|
| sim_001 | kitchen_v2 | s3://.../mp4 | s3://.../mp4 | float[90][6] | float[90][256] |
"""
VISION_LANGUAGE = """
| sequence_id | instruction | response | video | image | bbox |
|---|---|---|---|---|---|
| vlm_001 | "Describe this video" | "A person is pick…" | s3://.../mp4 | s3://.../f.png | float[30][4] |
"""
BLOCK = """{
"mixtrain": "1.0",
"column_types": {
"action": { "type": "trajectory", "dim": 12 },
"obs_state": { "type": "trajectory", "dim": 48 },
"video_cam_high": { "type": "video", "fps": 30, "codec": "h264" },
"video_cam_wrist": { "type": "video", "fps": 30, "codec": "h264" },
"audio": { "type": "audio" }
}
}"""
# The columns that the specification lists line by line; what follows the dash is prose.
LISTED = """
sequence_id : string — unique, required
duration_seconds : float
reward : float
length : int — number of timesteps
source : string — "real", "sim", "augmented"
split : string — "train", "val", "test"
label : string
created_at : timestamp
action : list<list<float>> — [T, action_dim]
obs_state : list<list<float>> — [T, obs_dim]
camera_pose : list<list<float>> — [T, 7] (position + quaternion)
steering : list<list<float>> — [T, 1]
latent_state : list<list<float>> — [T, latent_dim]
video_cam_high : string — path/URL to MP4
video_cam_wrist : string — path/URL to MP4
audio : string — path/URL to audio file
mcap : string — path/URL to MCAP file
"""
BARE = '{"mixtrain": "1.0"}'
WORLD_TYPES = json.dumps(
    {
        "mixtrain": "1.0",
        "column_types": {
            "video_input": {"type": "video"},
            "video_output": {"type": "video"},
            "action": {"type": "trajectory", "dim": 6, "units": "m", "coordinate_frame": "base"},
            "latent_state": {"type": "embedding", "dim": 256, "model": "vae"},
        },
    }
)
VLM_TYPES = json.dumps(
    {
        "mixtrain": "1.0",
        "column_types": {
            "instruction": {"type": "language"},
            "response": {"type": "language"},
            "video": {"type": "video"},
            "image": {"type": "image"},
            "bbox": {"type": "bbox"},
        },
    }
)
FLOATS = pa.list_(pa.list_(pa.float32()))
PRINTED = {
    "robotics": (ROBOTICS, BARE),
    "robotics, printed metadata": (ROBOTICS, BLOCK),
    "world models": (WORLD_MODELS, BARE),
    "world models, common types": (WORLD_MODELS, WORLD_TYPES),
    "vision-language": (VISION_LANGUAGE, BARE),
    "vision-language, open types": (VISION_LANGUAGE, VLM_TYPES),
}


def printed(markdown: str) -> pa.Table:
    """A printed table as Arrow: `float[T][D]` is a signal, a number a float, all else text."""
    head, _, row = (line.strip("| \n").split(" | ") for line in markdown.strip().splitlines())
    columns = {name: _cell(text) for name, text in zip(head, row, strict=True)}
    return pa.table(columns)


def _cell(text: str) -> pa.Array:
    signal = re.fullmatch(r"float\[(\d+)\]\[(\d+)\]", text)
    if signal is not None:
        steps, dim = map(int, signal.groups())
        return pa.array([np.arange(steps * dim, dtype="f4").reshape(steps, dim).tolist()], FLOATS)
    if re.fullmatch(r"[\d.]+", text):
        return pa.array([float(text)], pa.float32())
    return pa.array([text.strip('"')])


def listed(files: dict[str, str], steps: int = 8) -> pa.Table:
    """One row with every column that the specification lists, by the types it writes."""
    widths = {"action": 12, "obs_state": 48, "camera_pose": 7, "steering": 1, "latent_state": 16}
    values = {
        "duration_seconds": steps / 30, "reward": 42.3, "length": steps,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC), **files,
    }  # fmt: skip
    kinds = {"float": pa.float32(), "int": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    columns = {}
    for line in LISTED.strip().splitlines():
        name, kind = re.fullmatch(r"(\w+) : (\S+).*", line).groups()
        if kind == "list<list<float>>":
            columns[name] = pa.array([np.ones((steps, widths[name]), "f4").tolist()], FLOATS)
        else:
            columns[name] = pa.array([values.get(name, "x")], kinds.get(kind, pa.string()))
    return pa.table(columns)


def sound(seconds: float) -> bytes:
    """A WAV file with a tone."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setparams((1, 2, 48_000, 0, "NONE", ""))
        file.writeframes((9000 * np.sin(np.arange(round(48_000 * seconds)) / 9)).astype("<i2").tobytes())
    return held.getvalue()


def check(ds: sl.Dataset, table: pa.Table, mixtrain: str, out: Path, *, depth: str = "rows") -> None:
    """Open, validate, SQL, windows and conversion, none with a finding above note and all with the same cells."""
    assert [one for one in ds.validate(depth=depth) if one.severity != "note"] == []
    declared = json.loads(mixtrain).get("column_types", {})
    assert json.loads(ds.schema.metadata.to_json()).get("column_types", {}) == declared
    cells = table.to_pylist()
    assert ds.to_arrow().to_pylist() == cells
    plain = [name for name in table.column_names if table.schema.field(name).type != FLOATS]
    asked = ds.sql(f"SELECT {', '.join(plain)} FROM dataset").to_arrow_table()
    assert asked.to_pylist() == table.select(plain).to_pylist()
    signals = [name for name in table.column_names if name not in plain]
    (first, *_) = sl.Loader(ds, window=dict.fromkeys(signals, range(4)), batch_size=2, shuffle=False)
    for name in signals:
        assert first[name].tolist() == [cells[0][name][0:4], cells[0][name][1:5]]
    converted = sl.convert(ds, out, progress=False)
    assert [one for one in converted.validate(depth=depth) if one.severity != "note"] == []
    if depth == "rows":  # files that were taken along have names of their own
        assert converted.to_arrow().to_pylist() == cells
    assert converted.schema.metadata == ds.schema.metadata


@pytest.mark.sampled
@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("home", theirs.HOMES)
def test_a_printed_table_is_a_dataset(home, name, tmp_path) -> None:
    markdown, mixtrain = PRINTED[name]
    table = printed(markdown)
    ds = sl.open(theirs.make(home, tmp_path / "made", table, mixtrain))
    check(ds, table, mixtrain, tmp_path / "out")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("home", theirs.HOMES)
def test_every_listed_column_with_the_printed_metadata_and_real_files(home, tmp_path) -> None:
    steps = 8
    media = {"cam.mp4": clips.encode(times=range(steps)), "1.wav": sound(steps / 30), "1.mcap": b"\x89MCAP0\r\n"}
    files = dict.fromkeys(("video_cam_high", "video_cam_wrist"), "files/cam.mp4")
    files |= {"audio": "files/1.wav", "mcap": "files/1.mcap"}
    table = listed(files, steps)
    ds = sl.open(theirs.make(home, tmp_path / "made", table, BLOCK))
    folder = Path(local_path(ds.root), "files")
    folder.mkdir(parents=True)
    for name, data in media.items():
        (folder / name).write_bytes(data)
    check(ds, table, BLOCK, tmp_path / "out", depth="decode")
    window = sl.Window({"action": range(2), "video_cam_high": range(2)}, edges="drop")
    batches = list(sl.Loader(ds, window=window, batch_size=1, shuffle=False))
    frames = ds.sequence("x")["video_cam_high"][:]
    assert len(batches) == steps - 1
    for number, batch in enumerate(batches):
        assert (batch["video_cam_high"][0] == frames[number : number + 2]).all()

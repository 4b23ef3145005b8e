"""Makes the dataset of a release that later releases must read for ever, and what is in it.

    python tests/data/stored/make.py            # once, with the release that it is named after

It writes `<version>/`, the dataset, and `<version>.json`, every cell of every version of it: what was given to the
writer, not what was read back. `rows` holds each row as it was at some time, and `versions` says which of these a
version has. Frames are told by the digests of the planes that plain PyAV decodes. A folder that is there already is
never made again: its bytes are the promise.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import sys
import wave
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import av
import numpy as np
import pyarrow as pa

import seqlake as sl
from seqlake.spec.metadata import Metadata
from seqlake.tables.standalone import checkpoints

HERE = Path(__file__).parent
SCHEMA = sl.Schema(
    {
        "task": pa.string(),
        "note": pa.string(),
        "gone": pa.int64(),
        "count": pa.int16(),
        "when": pa.timestamp("us", "UTC"),
        "ok": pa.bool_(),
        "length": pa.int64(),
        "action": sl.Trajectory(dim=3, fps=10, units="rad"),
        "grip": sl.Column("grip", pa.list_(pa.float64()), sl.Trajectory()),
        "raw": sl.Trajectory(dim=2, encoding="raw"),
        "vector": sl.Embedding(dim=4),
        "cam": sl.Video(fps=10, codec="h264"),
        "slow": sl.Video(timestamps="slow_times"),
        "slow_times": sl.Trajectory(dim=1, dtype=pa.int64()),
        "thumb": sl.Image(format="png", frames="bytes"),
        "sound": sl.Audio(sample_rate=8000, channels=1),
        "log": sl.ColumnType("mcap", topics=["/joints"]),
    },
    metadata=Metadata(extra={"made_for": {"robot": "arm", "gripper": None}}),
)
IDS = ("ep_a", "ep/ä ö", "ep_c", "Ep_C", "ep_e", "ep_f")


def frames(count: int, *, seed: int) -> np.ndarray:
    """uint8 [T, 16, 24, 3] waves."""
    y, x = np.mgrid[:16, :24]
    waves = [np.stack([x + 3 * k, y + 5 * k, x - y + seed], axis=-1) for k in range(count)]
    return (128 + 100 * np.sin(np.stack(waves) / 7)).astype(np.uint8)


def tone(path: Path) -> Path:
    """200 samples of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((np.arange(200) % 97 * 300).astype("<i2").tobytes())
    return path


def row(number: int, scratch: Path) -> dict[str, Any]:
    """Cells of a row as they are given: T is 4 + number; row 2 is bare, row 3 has empty signals."""
    if number == 2:
        return {"task": "bare"}
    steps = 0 if number == 3 else 4 + number
    ramp = np.arange(steps, dtype=np.float64)
    cells: dict[str, Any] = {
        "task": ["pick", "place"][number % 2],
        "note": f"number {number} — ß",
        "gone": -number,
        "count": 30_000 + number,
        "when": datetime(2026, 11, 21, 12, number, 0, 250_000 + number, UTC),
        "ok": number % 2 == 0,
        "action": np.stack([ramp / 8, ramp - number, 1 / (1 + ramp)], -1).astype(np.float32),
        "grip": ramp * 0.1,
        "raw": np.stack([ramp, -ramp], -1).astype(np.float32),
        "vector": np.array([number, 0.5, -1, np.pi], np.float32),
        "log": f"s3://bucket/logs/{number}.mcap",
    }
    if steps:
        pictures = frames(steps, seed=number)
        cells |= {"cam": pictures, "thumb": pictures[:2]}
        if number % 4 == 1:
            nanoseconds = 1_000_000_000 * number + np.cumsum(np.arange(steps)) * 41_666_667
            cells |= {"slow": pictures[::-1], "slow_times": nanoseconds[:, None]}
        if number == 0:
            cells["sound"] = sl.File(tone(scratch / "tone.wav"))
    return cells


def plain(value: Any) -> Any:
    """A cell as JSON: exact numbers, bytes in base64, times as text."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def media(path: Path) -> dict[str, Any]:
    """What plain PyAV finds in a file: the digest of its planes, and when each frame is shown."""
    with av.open(str(path)) as container:
        if container.streams.audio:
            samples = np.concatenate([frame.to_ndarray().ravel() for frame in container.decode(audio=0)])
            return {"samples": len(samples), "sha256": hashlib.sha256(samples.tobytes()).hexdigest()}
        planes, shown = hashlib.sha256(), []
        for frame in container.decode(video=0):
            planes.update(frame.to_ndarray().tobytes())
            shown.append(str((frame.pts or 0) * frame.time_base))
        size = [frame.width, frame.height]
    return {"frames": len(shown), "seconds": shown, "size": size, "sha256": planes.hexdigest()}


class Model:
    """The dataset as plain dicts: changed as the dataset is, and never read from it but for names of files."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.names = [name for name in SCHEMA.names if name != "sequence_id"]
        self.versions: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []

    def put(self, key: str, cells: dict[str, Any]) -> None:
        held = self.rows.setdefault(key, dict.fromkeys(self.names))
        held |= {name: plain(value) for name, value in cells.items() if name not in FILES}
        if "action" in cells:
            held["length"] = len(cells["action"])

    def seen(self, ds: sl.Dataset) -> None:
        """Remember the state, with what lies in the files that rows name."""
        root = Path(ds.location)
        for view in ds:
            held = self.rows[view.id]
            for name in FILES:
                found = view[name]
                if found is None:
                    held[name] = None
                elif name == "thumb":
                    held[name] = [hashlib.sha256(cell).hexdigest() for cell in found.cells]
                else:
                    held[name] = {"reference": found.reference, **media(root / found.reference)}
        version = ds.version
        self.versions.append(
            {
                "id": version.id,
                "operation": version.operation,
                "columns": {name: str(ds.schema[name].arrow) for name in ds.schema.names},
                "rows": {key: self._number(held) for key, held in self.rows.items()},
            }
        )

    def _number(self, held: dict[str, Any]) -> int:
        if held not in self.told:
            self.told.append(copy.deepcopy(held))
        return self.told.index(held)

    def back_to(self, version: dict[str, Any]) -> None:
        self.rows = {key: copy.deepcopy(self.told[number]) for key, number in version["rows"].items()}


FILES = ("cam", "slow", "thumb", "sound")


def make(root: Path, scratch: Path) -> Model:
    """One commit of each kind."""
    model = Model()
    ds = sl.create(root, SCHEMA)
    given = [row(number, scratch) for number in range(6)]
    model.seen(ds)
    for options, numbers in (
        ({"rows_per_shard": 3}, (0, 1, 2)),
        ({"layout": "archive"}, (3, 4)),
        ({"fixed_size_inner": True}, (5,)),
    ):
        with ds.writer(**options) as writer:
            for number in numbers:
                writer.add(IDS[number], **given[number])
                model.put(IDS[number], given[number])
        model.seen(ds)

    ds.add_column("grade", pa.int32(), values={key: number * 10 for number, key in enumerate(IDS)})
    model.names.append("grade")
    for number, key in enumerate(IDS):
        model.rows[key]["grade"] = number * 10
    model.seen(ds)
    ds.update([{"sequence_id": IDS[0], "grade": -1}, {"sequence_id": IDS[5], "grade": None}])
    model.put(IDS[0], {"grade": -1})
    model.put(IDS[5], {"grade": None})
    model.seen(ds)
    ds.delete(ids=[IDS[4]])
    del model.rows[IDS[4]]
    model.seen(ds)
    ds.rename_column("note", "remark")
    for held in model.rows.values():
        held["remark"] = held.pop("note")
    model.seen(ds)
    ds.drop_column("gone")
    for held in model.rows.values():
        del held["gone"]
    model.seen(ds)
    ds.widen_column("count", pa.int64())
    model.seen(ds)
    model.names = [name for name in ds.schema.names if name != "sequence_id"]
    fresh = {**given[0], "count": 1 << 40}
    upserted = {name: fresh[name] for name in ("task", "count", "action", "cam")}
    ds.upsert([{"sequence_id": "ep_g", **upserted}, {"sequence_id": IDS[1], "ok": None, "count": -1}])
    model.put("ep_g", upserted)
    model.put(IDS[1], {"ok": None, "count": -1})
    model.seen(ds)
    before = model.versions[-2]
    ds.rollback(before["id"])
    model.back_to(before)
    model.seen(ds)
    with ds.writer() as writer, writer.record("ep_h", task="live") as take:
        steps = {"action": np.full((3, 3), 0.25, np.float32), "cam": frames(3, seed=9)}
        for k in range(3):
            take.add(action=steps["action"][k], cam=steps["cam"][k])
    model.put("ep_h", {"task": "live", **steps})
    model.seen(ds)
    sl.statistics(ds, ["action", "cam"], progress=False)  # kept with the version
    return model


def main() -> None:
    folder, told = HERE / sl.__version__, HERE / f"{sl.__version__}.json"
    if folder.exists() or told.exists():
        sys.exit(f"{folder} is there already and stays as it is.")
    with TemporaryDirectory() as scratch, patch.object(checkpoints, "EVERY_VERSIONS", 5):
        model = make(folder, Path(scratch))
    sl.open(folder).vacuum(older_than=timedelta(days=1))
    lines = [json.dumps(one, ensure_ascii=False) for one in (*model.versions, *model.told)]
    split = len(model.versions)
    versions, rows = ",\n".join(lines[:split]), ",\n".join(lines[split:])
    told.write_text(f'{{"made_by": "seqlake {sl.__version__}",\n"versions": [\n{versions}],\n"rows": [\n{rows}]}}\n')
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{folder}: {size} bytes, {len(model.versions)} versions\n")


if __name__ == "__main__":
    main()

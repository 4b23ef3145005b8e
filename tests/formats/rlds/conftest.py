"""A tiny writer of RLDS folders that shares nothing with the reader: struct, a bytewise CRC, protobuf by hand."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

REAL = Path(__file__).parents[4] / "shared" / "data" / "bridge_rlds" / "1.0.0"


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


TABLE = _table()


def crc(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 255] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) % 2**32


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def delimited(number: int, data: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(data)) + data


def feature(values: Any, *, packed: bool = True) -> bytes:
    """One tf.train.Feature: of bytes, of floats or of ints, by the first element."""
    if isinstance(values, np.ndarray):
        values = values.ravel().tolist()
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return delimited(1, b"".join(delimited(1, value) for value in values))
    if isinstance(values[0], float):
        raw = [struct.pack("<f", value) for value in values]
        body = delimited(1, b"".join(raw)) if packed else b"".join(b"\x0d" + value for value in raw)
        return delimited(2, body)
    raw = [varint(value) for value in values]
    body = delimited(1, b"".join(raw)) if packed else b"".join(b"\x08" + value for value in raw)
    return delimited(3, body)


def example(features: dict[str, Any], *, packed: bool = True) -> bytes:
    entries = [delimited(1, k.encode()) + delimited(2, feature(v, packed=packed)) for k, v in features.items()]
    return delimited(1, b"".join(delimited(1, entry) for entry in entries))


def frame(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", crc(head)) + data + struct.pack("<I", crc(data))


def tensor(shape: list[int], dtype: str, **more: Any) -> dict[str, Any]:
    dimensions = {"dimensions": [str(size) for size in shape]} if shape else {}
    name = "tensorflow_datasets.core.features.tensor_feature.Tensor"
    return {"pythonClassName": name, "tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none", **more}}


def text() -> dict[str, Any]:
    return {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}


def image(encoding: str = "jpeg") -> dict[str, Any]:
    shape = {"dimensions": ["64", "48", "3"]}
    name = "tensorflow_datasets.core.features.image_feature.Image"
    return {"pythonClassName": name, "image": {"shape": shape, "dtype": "uint8", "encodingFormat": encoding}}


def features_dict(features: dict[str, Any]) -> dict[str, Any]:
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": features}}


def sequence(inner: dict[str, Any]) -> dict[str, Any]:
    name = "tensorflow_datasets.core.features.dataset_feature.Dataset"
    return {"pythonClassName": name, "sequence": {"feature": inner, "length": "-1"}}


@dataclass
class Folder:
    """An RLDS folder to be: `steps` and `episode` features, then records by split and shard."""

    steps: dict[str, Any]
    episode: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list[list[bytes]]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        root = {"steps": sequence(features_dict(self.steps))}
        if self.episode:
            root["episode_metadata"] = features_dict(self.episode)
        (folder / "features.json").write_text(json.dumps(features_dict(root)))
        splits = []
        for split, shards in self.files.items():
            lengths = [str(len(records)) for records in shards]
            splits.append({"name": split, "shardLengths": lengths, "numBytes": "0"})
            if split in self.absent:
                continue
            for number, records in enumerate(shards):
                path = folder / f"arm-{split}.tfrecord-{number:05d}-of-{len(shards):05d}"
                path.write_bytes(b"".join(map(frame, records)))
        info = {"name": "arm", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        return folder


def arm_folder() -> Folder:
    """Two splits in three files, with an empty episode and one of a single step."""
    rng = np.random.default_rng(7)
    made = Folder(
        steps={
            "action": tensor([3], "float32"),
            "observation": features_dict(
                {"state": tensor([2, 2], "float64"), "count": tensor([], "int16"), "cam": image()}
            ),
            "is_last": tensor([], "bool"),
            "reward": tensor([], "float32"),
            "instruction": text(),
            "embedding": tensor([4], "float32"),
            "note": text(),
        },
        episode={"success": tensor([], "bool"), "path": text(), "pose": tensor([4, 4], "float32")},
    )
    number = 0
    for split, counts in {"train": [[4, 0], [1, 7, 2]], "val": [[3]]}.items():
        made.files[split] = []
        for shard in counts:
            records = []
            for steps in shard:
                vector = rng.normal(size=4).astype(np.float32)
                records.append(
                    example(
                        {
                            "steps/action": rng.normal(size=(steps, 3)).astype(np.float32),
                            "steps/observation/state": rng.normal(size=(steps, 2, 2)).astype(np.float32),
                            "steps/observation/count": list(range(-number, steps - number)),
                            "steps/observation/cam": [rng.bytes(5 + k) for k in range(steps)],
                            "steps/is_last": [int(k == steps - 1) for k in range(steps)],
                            "steps/reward": [float(k) for k in range(steps)],
                            "steps/instruction": [f"do {number}".encode()] * steps,
                            "steps/embedding": np.tile(vector, (steps, 1)),
                            "steps/note": [f"step {k}".encode() for k in range(steps)],
                            "episode_metadata/success": [number % 2],
                            "episode_metadata/path": [f"/data/é{number}".encode()],
                            "episode_metadata/pose": rng.normal(size=(4, 4)).astype(np.float32),
                        }
                    )
                )
                number += 1
            made.files[split].append(records)
    return made


@pytest.fixture(scope="session")
def tfds() -> SimpleNamespace:
    """The tools of this file, for test modules that cannot import each other."""
    names = "Folder arm_folder crc delimited example feature features_dict frame image sequence tensor text varint"
    return SimpleNamespace(**{name: globals()[name] for name in names.split()})


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    return arm_folder().write(tmp_path / "arm")


@pytest.fixture(scope="session")
def bridge() -> Path:
    if not REAL.is_dir():
        pytest.skip(f"the real set is not at {REAL}")
    return REAL

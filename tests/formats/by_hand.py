"""Tiny writers of MosaicML Streaming's folders that share nothing with ours: struct, json, the layout's own words."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"int": 8, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8}
SIZES |= {"float16": 2, "float32": 4, "float64": 8}


def size_of(encoding: str) -> int | None:
    if encoding.startswith("ndarray:") and encoding.count(":") == 2:
        _, dtype, shape = encoding.split(":")
        return int(np.prod([int(n) for n in shape.split(",")])) * np.dtype(dtype).itemsize
    return SIZES.get(encoding)


def shard_bytes(columns: dict[str, str], samples: list[dict[str, bytes]], **config: Any) -> bytes:
    """One shard of samples whose cells are bytes already."""
    names = sorted(columns)
    sizes = [size_of(columns[name]) for name in names]
    bodies = []
    for sample in samples:
        heads = [len(sample[n]) for n, size in zip(names, sizes, strict=True) if size is None]
        bodies.append(struct.pack(f"<{len(heads)}I", *heads) + b"".join(sample[name] for name in names))
    text = json.dumps(config_of(columns, **config), sort_keys=True).encode()
    offsets = [4 + 4 * (len(samples) + 1) + len(text)]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    return struct.pack(f"<I{len(offsets)}I", len(samples), *offsets) + text + b"".join(bodies)


def config_of(columns: dict[str, str], **config: Any) -> dict[str, Any]:
    names = sorted(columns)
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": [size_of(columns[name]) for name in names],
        **config,
    }


def write(
    folder: Path, columns: dict[str, str], shards: list[list[dict[str, bytes]]], *, hashes: tuple[str, ...] = ()
) -> Path:
    """A folder of uncompressed shards; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, samples in enumerate(shards):
        config = {"hashes": list(hashes)}
        data = shard_bytes(columns, samples, **config)
        name = f"shard.{number:05d}.mds"
        (folder / name).write_bytes(data)
        digests = {one: hashlib.new(one, data).hexdigest() for one in hashes}
        entries.append(
            {
                **config_of(columns, **config),
                "samples": len(samples),
                "raw_data": {"basename": name, "bytes": len(data), "hashes": digests},
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}, sort_keys=True))
    return folder


def arm(i: int) -> dict[str, bytes]:
    """The cells of one sample."""
    free = np.arange(i + 1, dtype="<u2")
    ragged = np.arange(6 * (i + 1), dtype="<f8").reshape(2, -1)
    return {
        "action": (np.arange(12, dtype="<f4") + i).tobytes(),
        "blob": bytes(range(i)),
        "free": bytes([16, 1 << 2 | 0, i + 1]) + free.tobytes(),
        "goal": (np.arange(7, dtype="<i2") - i).tobytes(),
        "image": (np.arange(30) + i).astype("u1").tobytes(),
        "label": struct.pack("<q", -(10**i)),
        "name": f"ärm {i}".encode(),
        "ragged": bytes([2 << 2 | 0, 2, 3 * (i + 1)]) + ragged.tobytes(),
        "score": struct.pack("<f", i / 3),
    }


def lines(folder: Path, kind: str, columns: dict[str, str], shards: list[list[bytes]], *, header: bytes = b"") -> Path:
    """A folder of shards of lines: `kind` is csv, tsv, xsv or json; each sample is its line with the newline."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, samples in enumerate(shards):
        config = {"version": 2, "format": kind, "compression": None, "hashes": [], "size_limit": None, "newline": "\n"}
        if kind == "json":
            config["columns"] = columns
        else:
            config |= {"column_names": sorted(columns), "column_encodings": [columns[n] for n in sorted(columns)]}
        if kind == "xsv":
            config["separator"] = "||"
        offsets = [len(header)]
        for sample in samples:
            offsets.append(offsets[-1] + len(sample))
        data = header + b"".join(samples)
        meta = struct.pack(f"<I{len(offsets)}I", len(samples), *offsets) + json.dumps(config, sort_keys=True).encode()
        name = f"shard.{number:05d}.{kind}"
        (folder / name).write_bytes(data)
        (folder / f"{name}.meta").write_bytes(meta)
        files = {
            "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
            "raw_meta": {"basename": f"{name}.meta", "bytes": len(meta), "hashes": {}},
            "zip_data": None,
            "zip_meta": None,
        }
        entries.append({**config, **files, "samples": len(samples)})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}, sort_keys=True))
    return folder

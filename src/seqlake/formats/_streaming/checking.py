"""Findings about a folder of samples that only its index and the heads of its shards can give."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, SeqlakeError
from seqlake.files.stores import open_store
from seqlake.formats._streaming import index as indexes
from seqlake.formats._streaming.compression import ALGORITHMS, Compression, digest
from seqlake.formats._streaming.records import OF_COLUMNS
from seqlake.formats._streaming.stored import read_whole
from seqlake.formats._streaming.writing import SETTINGS
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.formats._streaming.index import Config, IndexedFile, IndexedShard, SampleIndex
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Blob, Depth

_ZSTD = (0xFD2FB528).to_bytes(4, "little")


def check_folder(index: SampleIndex, place: ShardFolder, depth: Depth, /) -> Iterator[Finding]:
    """Findings of one folder; from depth `rows` on every file is read, decompressed and hashed."""
    yield from _of_index(index)
    yield from _of_files(index, place)
    if depth != "metadata":
        for entry in index.entries:
            yield from _of_shard(entry, place)


def _found(code: str, severity: Any, message: str, location: str = indexes.NAME, column: str = "") -> Finding:
    return Finding(code=f"streaming-{code}", severity=severity, message=message, location=location, column=column)


def _of_index(index: SampleIndex) -> Iterator[Finding]:
    for number, key in index.unknown:
        yield _found("unknown-key", "warning", f"shard {number} has the key {key!r}, which MosaicML Streaming refuses")
    names = Counter(file.name for entry in index.entries for file in entry.stored)
    for name in (name for name, count in names.items() if count > 1):
        yield _found("twice", "error", f"{name} is named by {names[name]} shards", name)
    for config in dict.fromkeys(entry.config for entry in index.entries):
        yield from _of_config(config)
    for entry in index.entries:
        if not entry.samples:
            yield _found("empty", "note", "the shard has no samples", entry.raw.name)


def _of_config(config: Config) -> Iterator[Finding]:
    try:
        Compression.of(config.compression or "zstd")
    except ValueError as error:
        yield _found("compression", "error", str(error))
    for name in config.hashes:
        if name not in ALGORITHMS:
            yield _found("hash-name", "warning", f"no hash is called {name!r}: it is not compared")
    for column, encoding in config.columns:
        if config.format == "mds" and encoding == "pkl":
            text = "pickles can run any code when they are read; LocalDataset of MosaicML Streaming does not ask"
            yield _found("pickle", "warning", text, column=column)
    if config.columns != tuple(sorted(config.columns)) and config.format != "json":
        yield _found("order", "warning", "the columns are not sorted by name, as every official writer does")


def _of_files(index: SampleIndex, place: ShardFolder) -> Iterator[Finding]:
    """Files that are missing, of another size, or not named by the index."""
    store: Any = open_store(place.root, storage=place.storage)
    try:
        there = dict(store.list())
    except (OSError, SeqlakeError):
        return  # the web cannot be listed
    if SETTINGS in there:
        yield _found("unfinished", "warning", "a run that writes here was interrupted, or is under way", SETTINGS)
    named = set()
    for entry in index.entries:
        # A cache of the official reader keeps what it decompressed instead of what it fetched.
        for kept, raw in ((entry.zipped, entry.raw), (entry.zipped_meta, entry.raw_meta)):
            named |= {file.name for file in (kept, raw) if file is not None}
            file = next((one for one in (kept, raw) if one is not None and one.name in there), None)
            if file is None and raw is not None:
                yield _found("missing", "error", "the file is not there", (kept or raw).name)
            elif file is not None and there[file.name] != file.size:
                text = f"it has {there[file.name]} bytes, the index says {file.size}"
                yield _found("size", "error", text, file.name)
    for name in sorted(there.keys() - named):
        if name.rpartition("/")[2].startswith("shard."):
            yield _found("stray", "note", "the index does not name this file", name)


def _of_shard(entry: IndexedShard, place: ShardFolder) -> Iterator[Finding]:
    pairs = [(entry.raw, entry.zipped), (entry.raw_meta, entry.zipped_meta)]
    heads: dict[str, bytes] = {}
    for raw, zipped in pairs:
        if raw is None:
            continue
        try:
            blob = place.unverified(raw, zipped, entry.config.compression)
            data = read_whole(blob)
        except DatasetNotFoundError:
            return  # said already
        except (SeqlakeError, OSError) as error:
            yield _found("unreadable", "error", str(error), (zipped or raw).name)
            return
        yield from _hashes(raw, data)
        heads[raw.name] = bytes(data[: _head_size(entry, raw)])
    for _, zipped in pairs:
        if zipped is not None:
            yield from _of_zipped(zipped, place)
    yield from _of_head(entry, heads)


def _head_size(entry: IndexedShard, file: IndexedFile) -> int:
    """All of a second file; of MDS the count, the offsets and, as it turns out, the configuration."""
    return file.size if file is entry.raw_meta else 4 * (entry.samples + 2) + (1 << 20)


def _of_zipped(zipped: IndexedFile, place: ShardFolder) -> Iterator[Finding]:
    try:
        blob: Blob = place.unverified(zipped, None, None)
        data = read_whole(blob)
    except (SeqlakeError, OSError):
        return  # only the raw file is there, or it was said already
    yield from _hashes(zipped, data)
    # The frame's second part says in its two highest bits, and one more, whether the content's size follows.
    if data[:4] == _ZSTD and len(data) > 4 and not data[4] >> 6 and not data[4] & 0x20:
        text = "the zstd frame does not say its content's size: MosaicML Streaming cannot read it"
        yield _found("zstd-size", "warning", text, zipped.name)


def _hashes(file: IndexedFile, data: bytes | memoryview) -> Iterator[Finding]:
    for name, expected in file.hashes.items():
        if name in ALGORITHMS and (actual := digest(data, name)) != expected.lower():
            yield _found("hash", "error", f"{name} is {actual}, the index says {expected}", file.name)


def _of_head(entry: IndexedShard, heads: Mapping[str, bytes]) -> Iterator[Finding]:
    """The shard's own copy of its configuration; no reader looks at it, but it says when a file is of another set."""
    file = entry.raw_meta or entry.raw
    head, start = heads[file.name], 4 * (entry.samples + 2)
    if len(head) < start:
        return  # opening it says so
    first = int(np.frombuffer(head, "<u4", 1, 4)[0]) if entry.raw_meta is None else len(head)
    try:
        config = json.loads(head[start:first])
    except ValueError:
        yield _found("head", "error", "its own configuration is no JSON", file.name)
        return
    if config != entry.config.to_json():
        keys = [key for key in entry.config.to_json() if not isinstance(config, dict) or _differs(config, entry, key)]
        severity = "error" if set(keys) & OF_COLUMNS else "warning"  # the first are compared when a shard is opened
        yield _found("head", severity, f"its own configuration differs from the index: {', '.join(keys)}", file.name)


def _differs(config: Mapping[str, Any], entry: IndexedShard, key: str) -> bool:
    return bool(config.get(key) != entry.config.to_json()[key])

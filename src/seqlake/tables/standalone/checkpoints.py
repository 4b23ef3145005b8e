"""A checkpoint: the state at one version as an Arrow file, so that opening does not read the whole log.

Its digest is that of the whole file with the digest's own digits, which stand in the schema metadata, set to zero.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.files.arrow_ipc import decoded_bytes
from seqlake.tables.standalone.records import ShardEntry, count, encode_side, parse_schema, parse_side, parse_tags
from seqlake.tables.standalone.state import State
from seqlake.versions import names
from seqlake.versions.format import (
    FORMAT,
    UNSEALED,
    damaged,
    parse_time,
    refuse_requirements,
    refuse_unknown_format,
    stamp,
)

if TYPE_CHECKING:
    from seqlake.versions.state import SideEntry

EVERY_VERSIONS = 64
EVERY_ENTRIES = 10_000
_KEY = b"seqlake"
_BLANK = b"0" * 64
_HEAD = 8  # bytes before the messages of an Arrow file
_LEAST, _MOST = 64 << 20, 100  # bytes that any checkpoint may take, and times its size
# What pyarrow, json and wrong types raise on bytes of somebody else.
_DAMAGE = (
    *(pa.ArrowException, OSError, KeyError, TypeError, ValueError, AttributeError),
    *(RecursionError, OverflowError, MemoryError),
)
_COLUMNS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("transaction", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("columns", pa.string()),
        pa.field("statistics", pa.string()),
    ]
)


def due(state: State) -> bool:
    """Whether enough has happened since the checkpoint that this state was read from."""
    return state.version - state.checkpoint >= EVERY_VERSIONS or state.entries >= EVERY_ENTRIES


def encode(state: State, *, index: str) -> bytes:
    """The bytes of the checkpoint of this state; `index` names its index file."""
    here = secrets.token_hex(32)  # where the digest will stand: digits that stand nowhere else
    rest = {
        "format": FORMAT,
        "version": state.version,
        "transaction": state.transaction,
        "time": stamp(state.time),
        "operation": state.operation,
        "schema": base64.b64encode(state.schema).decode("ascii"),
        "mixtrain": dict(state.mixtrain),
        "known": sorted(state.known),
        "oldest": state.oldest,
        **({"tags": dict(state.tags)} if state.tags else {}),
        "side": [encode_side(side) for beside in state.sides.values() for side in beside],
        "index": index,
        "requires": sorted(state.requires),
        "record": [state.format, state.digest],
        "digest": here,
    }
    entries = list(state.shards.values())
    batch = pa.record_batch(
        [
            pa.array([entry.name for entry in entries], pa.string()),
            pa.array([entry.transaction for entry in entries], pa.string()),
            pa.array([entry.rows for entry in entries], pa.int64()),
            pa.array([entry.nbytes for entry in entries], pa.int64()),
            pa.array([entry.columns or None for entry in entries], pa.string()),
            pa.array([entry.statistics or None for entry in entries], pa.string()),
        ],
        schema=_COLUMNS.with_metadata({_KEY: json.dumps(rest, ensure_ascii=False).encode()}),
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    data = bytes(memoryview(sink.getvalue()))
    return data.replace(here.encode(), _digest(data, here).encode())


def _digest(data: bytes, digits: str) -> str:
    return hashlib.sha256(data.replace(digits.encode(), _BLANK)).hexdigest()


def decode(data: bytes | memoryview, /, *, version: int, path: str) -> State:
    """The state back.

    Args:
        data: The bytes of the file.
        version: The number in its name, which it must repeat.
        path: Where it lies, for messages.

    Raises:
        UnsupportedVersionError: A `format`, or something it requires, that this package does not know.
        DamagedTableError: Anything else than a checkpoint of ours, or one without a digest, as older releases wrote
            them: readers go on without it.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        rest = json.loads((reader.schema.metadata or {})[_KEY])
    except _DAMAGE as error:
        raise damaged(path, f"it is not a checkpoint ({error})") from error
    if not isinstance(rest, dict):
        raise damaged(path, "it is not a checkpoint")
    if refuse_unknown_format(rest.get("format"), path=path) == UNSEALED:
        raise damaged(path, "it is of a release whose checkpoints had no digest")
    _compare(data, rest.get("digest"), path=path)  # before anything is decompressed
    refuse_requirements(rest.get("requires", []), path=path)
    try:
        if decoded_bytes(memoryview(data)[_HEAD:]) > max(_LEAST, _MOST * len(data)):
            raise ValueError("it would take more memory than any checkpoint of its size")
        return _state(reader.read_all(), rest, version)
    except _DAMAGE as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def is_unsealed(data: bytes | memoryview, /) -> bool:
    """Whether this is a checkpoint of a release whose checkpoints had no digest; nobody reads it any more."""
    try:
        rest = json.loads((pa.ipc.open_file(pa.py_buffer(data)).schema.metadata or {})[_KEY])
        return bool(rest["format"] == UNSEALED)
    except _DAMAGE:
        return False


def _compare(data: bytes | memoryview, digest: object, *, path: str) -> None:
    if not isinstance(digest, str) or len(digest) != len(_BLANK) or _digest(bytes(data), digest) != digest:
        raise damaged(path, "its bytes are not those that its digest was made of")


def _state(table: pa.Table, rest: dict[str, Any], version: int) -> State:
    if rest["version"] != version or count(rest["oldest"]) > version:
        raise ValueError(f"it says version {rest['version']}, and {rest['oldest']} for the oldest")
    if not names.is_merged_index(rest["index"]) and rest["index"]:
        raise ValueError(f"an index file was expected, found {rest['index']!r}")
    columns = (table.column(name).to_pylist() for name in _COLUMNS.names)
    shards = {
        name: ShardEntry(
            name=name,
            transaction=transaction,
            rows=count(rows),
            nbytes=count(nbytes),
            columns=mapping or "",
            statistics=statistics or "",
        )
        for name, transaction, rows, nbytes, mapping, statistics in zip(*columns, strict=True)
    }
    for entry in shards.values():
        if not names.is_shard_name(entry.name) or not names.is_transaction(entry.transaction):
            raise ValueError(f"a shard was expected, found {entry!r}")
    if len(shards) != table.num_rows:
        raise ValueError("a shard stands there twice")
    record = rest["record"]
    sides: dict[str, tuple[SideEntry, ...]] = {}
    for item in rest["side"]:
        side = parse_side(item)
        sides[side.of] = (*sides.get(side.of, ()), side)
    return State(
        version=version,
        transaction=rest["transaction"],
        time=parse_time(rest["time"]),
        operation=rest["operation"],
        shards=shards,
        sides=sides,
        schema=parse_schema(rest["schema"]) if rest["schema"] else b"",
        mixtrain=rest["mixtrain"],
        known=frozenset(rest["known"]),
        oldest=rest["oldest"],
        tags=parse_tags(rest.get("tags", {})),
        rows=sum(entry.rows for entry in shards.values()),
        digest=record[1],
        format=record[0],
        requires=frozenset(rest.get("requires", ())),
        checkpoint=version,
        index=rest["index"],
    )

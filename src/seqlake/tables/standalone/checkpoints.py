"""A checkpoint: the state at one version as an Arrow file, so that opening does not read the whole log."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.tables.standalone import names
from seqlake.tables.standalone.records import (
    FORMAT,
    Entry,
    damaged,
    encode_side,
    parse_side,
    parse_time,
    refuse_unknown_format,
    stamp,
)
from seqlake.tables.standalone.state import State

if TYPE_CHECKING:
    from seqlake.tables.standalone.records import SideEntry

EVERY_VERSIONS = 64
EVERY_ENTRIES = 10_000
_KEY = b"seqlake"
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
        "side": [encode_side(side) for beside in state.sides.values() for side in beside],
        "index": index,
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
    return bytes(memoryview(sink.getvalue()))


def decode(data: bytes | memoryview, /, *, version: int, path: str) -> State:
    """The state back.

    Args:
        data: The bytes of the file.
        version: The number in its name, which it must repeat.
        path: Where it lies, for messages.

    Raises:
        UnsupportedVersionError: A `format` that this package does not know.
        DamagedTableError: Anything else than a checkpoint of ours; readers go on without it.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            table = reader.read_all()
        rest = json.loads((reader.schema.metadata or {})[_KEY])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise damaged(path, f"it is not a checkpoint ({error})") from error
    refuse_unknown_format(rest.get("format") if isinstance(rest, dict) else None, path=path)
    try:
        return _state(table, rest, version)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def _state(table: pa.Table, rest: dict[str, Any], version: int) -> State:
    if rest["version"] != version:
        raise ValueError(f"it says version {rest['version']}")
    if not names.is_merged_index(rest["index"]) and rest["index"]:
        raise ValueError(f"an index file was expected, found {rest['index']!r}")
    columns = (table.column(name).to_pylist() for name in _COLUMNS.names)
    shards = {
        name: Entry(
            name=name,
            transaction=transaction,
            rows=rows,
            nbytes=nbytes,
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
        schema=base64.b64decode(rest["schema"], validate=True),
        mixtrain=rest["mixtrain"],
        known=frozenset(rest["known"]),
        oldest=rest["oldest"],
        rows=sum(entry.rows for entry in shards.values()),
        checkpoint=version,
        index=rest["index"],
    )

"""What an exported recording says of the row that it was: so it is read back as the same columns and values."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.formats.mcap.columns import TopicColumn, TopicStream
from seqlake.spec.column_types import ColumnType
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_binary, is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from seqlake.formats.mcap.recordings import LoggedRun

NOTE = "seqlake"
"""The name of the metadata record."""

FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The dataset that recordings were written from.

    Attributes:
        schema: Its columns.
        columns: Those whose steps are messages.
    """

    schema: Schema
    columns: Sequence[TopicColumn]


def restored(recordings: Sequence[LoggedRun], /) -> Kept | None:
    """The dataset that all of these were written from; None where one was not, or another one was."""
    notes = [_note(one) for one in recordings]
    first = notes[0] if notes else None
    if first is None or any(note is None or note.get("schema") != first["schema"] for note in notes):
        return None
    try:
        described = json.loads(first["schema"])
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described["arrow"], validate=True)))
        types = {name: ColumnType.from_json(value) for name, value in described["types"].items()}
        listed = {f.name: Column(f.name, f.type, types.get(f.name), nullable=f.nullable) for f in arrow}
        schema = Schema(listed, metadata=Metadata(extra=described.get("extra") or {}))
        columns = [_column(schema, name, one) for name, one in described["topics"].items()]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException, SeqlakeError):
        return None  # whoever wrote it, it is read as any recording is
    return Kept(schema=schema, columns=columns)


def _note(recording: LoggedRun) -> Mapping[str, str] | None:
    note = recording.logs[0].notes.get(NOTE) if len(recording.logs) == 1 else None
    return note if note is not None and note.get("format") == FORMAT and {"schema", "row"} <= note.keys() else None


def _column(schema: Schema, name: str, described: Mapping[str, object]) -> TopicColumn:
    role: Any = described["role"]
    paths = described["paths"]
    if role not in {"signal", "values", "image", "video"} or not isinstance(paths, list):
        raise ValueError(role)
    column = schema[name]
    fits = {
        "signal": column.category == "temporal" and not column.deep,
        "values": is_list(column.arrow) and is_text(column.arrow.value_type),
        "image": column.category == "frames",
        "video": column.medium == "video" and is_binary(column.arrow),
    }
    if not fits[role]:
        raise ValueError(f"{name} is no {role}")
    topic = str(described["topic"])
    return TopicColumn(
        name=name,
        source=topic,
        stream=TopicStream(topic=topic),
        role=role,
        paths=tuple(map(str, paths)),
        column=column,
    )


def nulls_of(recording: LoggedRun, /) -> frozenset[str]:
    """The columns whose cell is null, though their topic is there."""
    note = _note(recording) or {}
    try:
        listed = json.loads(note.get("null", "[]"))
    except (ValueError, RecursionError):
        listed = []
    return frozenset(map(str, listed)) if isinstance(listed, list) else frozenset()


def known_of(recording: LoggedRun, schema: Schema, messages: Collection[str], /) -> pa.Table:
    """The one row of a recording: all columns but those whose cells are messages.

    Raises:
        CorruptFileError: It cannot be read.
    """
    note = _note(recording)
    assert note is not None
    try:
        with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(note["row"], validate=True))) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (ValueError, binascii.Error, pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{recording.path}: its row cannot be read: {error}", path=recording.path) from None
    wrong = [f.name for f in table.schema if f.name not in schema.names or schema.arrow.field(f.name).type != f.type]
    missing = {*schema.names} - {*table.column_names} - {*messages}
    named = table.num_rows == 1 and ID in table.column_names and table[ID][0].as_py()
    if wrong or missing or not named:
        raise CorruptFileError(f"{recording.path}: its row is not of the columns that it names.", path=recording.path)
    return table

"""Writes datasets as MCAP: one file a sequence, signals and pictures as messages that Foxglove's tools show."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from seqlake.arguments import Kind, takes
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.locations import absolute, join
from seqlake.formats._recordings import FilePerSequence, StepTimes, rate_of
from seqlake.formats.mcap import movies, protos
from seqlake.formats.mcap.columns import TEXT
from seqlake.formats.mcap.ours import FORMAT, NOTE
from seqlake.formats.mcap.schemas import message_class
from seqlake.media import format_of
from seqlake.plugins import require
from seqlake.spec.column_types import Video
from seqlake.spec.schema import is_binary, is_text
from seqlake.windows.sources import MediaFiles, place_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from fractions import Fraction
    from pathlib import Path

    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column, Schema

_RATE = Kind("steps per second", lambda value: 0 < value < 1e6)
_COMPRESSIONS = {"zstd": "ZSTD", "lz4": "LZ4", "none": "NONE"}
_COMPRESSION = Kind("'zstd', 'lz4' or 'none'", lambda value: value in _COMPRESSIONS)
_CHUNK = 4 << 20


def takes_files(schema: Schema, /) -> Collection[str]:
    """Columns of videos and pictures, whose packets and bytes are written."""
    return [name for name, column in schema.items() if (kind := _channel(column)) and kind.role in {"video", "image"}]


@takes(fps=_RATE.or_none(), compression=_COMPRESSION)
def create(
    location: str,
    schema: Schema,
    /,
    *,
    fps: float | Fraction | None = None,
    compression: str = "zstd",
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
) -> McapSink:
    """Where `convert(..., to="mcap")` writes: a file for every sequence, `<id>.mcap`.

    Args:
        location: A new or empty folder, as a path or URI.
        schema: The columns.
        fps: Steps per second, where neither the columns nor their times say it.
        compression: Of chunks: `zstd`, `lz4` or `none`.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.

    Raises:
        SchemaMismatchError: Rows without ids; or nothing says the rate of a column.
        MissingDependencyError: A package of `seqlake[mcap]` is not installed.

    Example:
        ```python
        sl.convert("data/arm", "export/arm", to="mcap")
        ```
    """
    require("mcap.writer", extra="mcap")
    if schema.id is None:
        raise SchemaMismatchError("MCAP files are named after their sequences, and these rows have no ids.")
    sink = McapSink(
        location=absolute(location),
        schema=schema,
        fps=fps,
        compression=compression,
        storage=storage,
        source_storage=source_storage,
    )
    for column in sink.channels().values():
        sink.rate(column.column)
    return sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One column as messages.

    Attributes:
        column: Its types.
        role: `signal`, `values`, `image` or `video`.
        kind: The name of the messages.
        schema: Their schema.
        paths: The fields that make a step.
    """

    column: Column
    role: str
    kind: str
    schema: bytes = field(repr=False)
    paths: tuple[str, ...]

    @property
    def topic(self) -> str:
        """The column's name as a topic."""
        return f"/{self.column.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class McapSink(FilePerSequence):
    """A `Sink`; picklable.

    Attributes:
        compression: Of chunks.
    """

    compression: str
    ending: ClassVar[str] = ".mcap"

    def channels(self) -> dict[str, Channel]:
        """The columns that become messages."""
        turned = ((name, _channel(column)) for name, column in self.schema.items())
        return {name: one for name, one in turned if one is not None and not self._is_timeless(one)}

    def _is_timeless(self, channel: Channel) -> bool:
        """Texts that nothing says the time of: a list of the row."""
        return (
            channel.role == "values"
            and channel.column.timestamps not in self.schema
            and rate_of(channel.column, self.schema, self.fps) is None
        )

    def rate(self, column: Column, /) -> Fraction | None:
        """Steps per second of a column; None where a column says the time of each, or the video does.

        Raises:
            SchemaMismatchError: Nothing says it.
        """
        if column.timestamps in self.schema or column.name in self.schema.stamp_columns or column.medium == "video":
            return None
        known = rate_of(column, self.schema, self.fps)
        if known is None:
            raise SchemaMismatchError(
                f"Column {column.name!r}: expected a rate, so that its messages have times; nothing says it.",
                hint="Give the steps per second, as in fps=30.",
            )
        return known

    def save(self, row: pa.RecordBatch, key: str, named: MediaFiles, path: Path) -> None:  # noqa: ARG002 - within the row
        """Write one row; a time before 1970 cannot be."""
        RowWriter(self, row, named).write(path)


def _channel(column: Column) -> Channel | None:
    """How a column is messages; None where it stays a value of the row."""
    if column.category == "temporal" and not column.deep:
        assert column.dtype is not None
        named = column.type.get("names") if column.type is not None else None
        names = (
            named
            if isinstance(named, list) and column.dim == len(named) and all(isinstance(n, str) for n in named)
            else None
        )
        kind, schema, paths = protos.signal_schema(column.name, column.dtype.name, names if column.nested else None)
        return Channel(
            column=column, role="signal", kind=kind, schema=schema, paths=paths if column.nested else ("values[0]",)
        )
    if column.category == "frames" and is_binary(column.arrow.value_type) and column.type is not None:
        return Channel(
            column=column, role="image", kind=protos.IMAGE, schema=protos.picture_schema(protos.IMAGE), paths=("",)
        )
    if column.medium == "video":
        return Channel(
            column=column, role="video", kind=protos.VIDEO, schema=protos.picture_schema(protos.VIDEO), paths=("",)
        )
    kind = column.logical
    plain = column.type is None or column.type.type == TEXT
    if pa.types.is_list(kind) and is_text(kind.value_type) and plain:
        name, schema, _ = protos.signal_schema(column.name, "text", None)
        return Channel(column=column, role="values", kind=name, schema=schema, paths=("values[0]",))
    return None


class RowWriter:
    """Writes one row as a file.

    Args:
        sink: What is written, and how.
        row: The one row.
        named: How files are opened that it names.
    """

    def __init__(self, sink: McapSink, row: pa.RecordBatch, named: MediaFiles, /) -> None:
        self._sink, self._row, self._named = sink, row, named
        self._schema = sink.schema
        self._channels = sink.channels()
        self._steps = StepTimes(self._schema, row, fps=sink.fps, least=0)

    def write(self, path: Path, /) -> None:
        """The file, replaced if it is there."""
        library = require("mcap.writer", extra="mcap")
        compression = getattr(library.CompressionType, _COMPRESSIONS[self._sink.compression])
        with path.open("wb") as file:
            writer = library.Writer(file, chunk_size=_CHUNK, compression=compression)
            writer.start(library="seqlake")
            writer.add_metadata(NOTE, self._note())
            for name, channel in self._channels.items():
                number = writer.register_schema(channel.kind, "protobuf", channel.schema)
                place = writer.register_channel(channel.topic, "protobuf", number)
                if self._row.column(name)[0].is_valid:
                    for step, (time, data) in enumerate(self._messages(name, channel)):
                        writer.add_message(place, time, data, time, sequence=step)
            writer.finish()

    def _messages(self, name: str, channel: Channel) -> Iterator[tuple[int, bytes]]:
        if channel.role == "video":
            yield from self._movie(name, channel)
            return
        cell = self._row.column(name)[0]
        count = len(cell.values)
        times = self._times(channel.column, count)
        make = {"signal": _signal, "values": _texts, "image": _images}[channel.role]
        for time, message in zip(times.tolist(), make(channel, cell), strict=True):
            yield time, protos.stamped(message, time).SerializeToString()

    def _movie(self, name: str, channel: Channel) -> Iterator[tuple[int, bytes]]:
        """Packets in the order in which they are decoded, logged in the order of the frames' times."""
        cell = self._row.column(name)[0].as_py()
        packets = list(self._packets(cell, channel.column))
        pts = np.array([one.pts for one in packets], np.int64)
        order = np.argsort(pts, kind="stable")
        if channel.column.timestamps in self._schema:
            times = np.empty(len(packets), np.int64)
            times[order] = self._times(channel.column, len(packets))
        else:
            times = pts + self._steps.begin
        logged = np.sort(times)
        for number, one in enumerate(packets):
            message = _new(channel)(data=one.data, format=one.format)
            yield int(logged[number]), protos.stamped(message, int(times[number])).SerializeToString()

    def _packets(self, cell: Any, column: Column) -> Iterator[movies.MoviePacket]:
        place = place_of(cell)
        assert place is not None
        assert column.type is not None
        if isinstance(place.data, bytes):
            blob: Any = MemoryBlob(place.data)
        else:
            blob = self._named.blob(place.reference)
        yield from movies.packets_of(blob, column.type, first=place.first, count=place.count)

    def _times(self, column: Column, count: int) -> Ints:
        """[count] nanoseconds of the steps of a column."""
        times = self._steps.of(column, count)
        if times is None:
            raise ValidationError(f"column {column.name!r} has no times in this row.", hint="Give fps.")
        return times

    def _note(self) -> dict[str, str]:
        """What the row was, for whoever reads it back, and its values as text, for people."""
        names = [name for name in self._schema if name not in self._channels]
        kept = pa.table(
            [self._kept(name) for name in names], schema=pa.schema([self._schema.arrow.field(n) for n in names])
        )
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, kept.schema) as stream:
            stream.write_table(kept)
        null = [name for name in self._channels if not self._row.column(name)[0].is_valid]
        texts = {f"row.{n}": str(kept[n][0].as_py())[:1000] for n in names if self._schema[n].category == "scalar"}
        row = base64.b64encode(buffer.getvalue()).decode()
        return {"format": FORMAT, "schema": self._described(), "row": row, "null": json.dumps(null), **texts}

    def _kept(self, name: str) -> pa.Array:
        """A cell whose relative references are absolute: elsewhere they mean nothing."""
        array, column = self._row.column(name), self._schema[name]
        if column.category != "file" or not is_text(column.logical):
            return array
        return pa.array([None if one is None else join(self._named.root, one) for one in array.to_pylist()], array.type)

    def _described(self) -> str:
        fields, types = [], {}
        for one in self._schema.arrow:
            column = self._schema[one.name]
            kind = column.type
            if one.name in self._channels and column.medium == "video" and kind is not None:
                said = {k: v for k, v in kind.to_json().items() if k not in {"type", "stream", "inline"}}
                fields.append(pa.field(one.name, pa.binary(), one.nullable))
                kind = Video(inline=True, **said)
            else:
                fields.append(one)
            if kind is not None:
                types[one.name] = {k: v for k, v in kind.to_json().items() if k != "encoding" or v != "raw"}
        topics = {n: {"topic": c.topic, "role": c.role, "paths": list(c.paths)} for n, c in self._channels.items()}
        arrow = base64.b64encode(pa.schema([one.remove_metadata() for one in fields]).serialize()).decode()
        return json.dumps({"arrow": arrow, "types": types, "topics": topics}, sort_keys=False)


def _new(channel: Channel) -> Any:
    return message_class(channel.kind, channel.schema)


def _signal(channel: Channel, cell: Any) -> Iterator[Any]:
    new, column = _new(channel), channel.column
    kind = cell.type.value_type
    nested = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    for step in cell.values.to_pylist():
        values = step if nested else [step]
        if step is None or None in values:
            raise ValidationError(f"column {column.name!r} has a step without a number.")
        if channel.paths[0] in {protos.VALUES, "values[0]"}:
            yield new(values=values)
        else:
            yield new(**dict(zip(channel.paths, values, strict=True)))


def _texts(channel: Channel, cell: Any) -> Iterator[Any]:
    new = _new(channel)
    for text in cell.values.to_pylist():
        yield new(values=[] if text is None else [text])


def _images(channel: Channel, cell: Any) -> Iterator[Any]:
    new = _new(channel)
    for picture in cell.values:
        data = picture.as_py() or b""
        yield new(data=data, format=format_of(data[:64]) or "")


__all__ = ["Channel", "McapSink", "create"]

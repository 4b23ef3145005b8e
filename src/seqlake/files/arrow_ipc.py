"""How much memory an Arrow IPC stream will take: read from its own headers, before any is taken.

A compressed buffer begins with the size that it will have; a few kilobytes may say gigabytes. Format: "Encapsulated
message format" and "Compression" of the Arrow columnar specification; the headers are FlatBuffers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2  # `MessageHeader`


def decoded_bytes(data: bytes | memoryview, /) -> int:
    """Bytes that all buffers of a stream take once they are decompressed; nothing is.

    Raises:
        ValueError: It is no stream of Arrow; so is every error of pyarrow that comes out of here.

    Example:
        >>> sink, batch = pa.BufferOutputStream(), pa.record_batch({"x": pa.array([0] * 1000, pa.int64())})
        >>> options = pa.ipc.IpcWriteOptions(compression="zstd")
        >>> with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        ...     stream.write_batch(batch)
        >>> sink.getvalue().size < 500, decoded_bytes(sink.getvalue())
        (True, 8000)
    """
    total = 0
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return total
        try:
            total += sum(_sizes(memoryview(message.metadata), memoryview(message.body or b"")))
        except (struct.error, IndexError) as error:
            raise ValueError(f"an Arrow message whose header cannot be read ({error})") from None


def _sizes(head: memoryview, body: memoryview) -> Iterator[int]:
    """The sizes of a message's buffers."""
    message = _table(head, 0)
    kind = _field(head, message, 1)
    header = _field(head, message, 2)
    if not kind or not header:
        return
    batch = header + _unsigned(head, header)
    if head[kind] == _DICTIONARY_BATCH:
        inner = _field(head, batch, 1)
        if not inner:
            return
        batch = inner + _unsigned(head, inner)
    elif head[kind] != _RECORD_BATCH:
        return
    buffers, compressed = _field(head, batch, 2), _field(head, batch, 3)
    if not buffers:
        return
    vector = buffers + _unsigned(head, buffers)
    count = _unsigned(head, vector)
    for start, length in struct.iter_unpack("<qq", head[vector + 4 : vector + 4 + 16 * count]):
        unpacked = struct.unpack_from("<q", body, start)[0] if compressed and length >= 8 and start >= 0 else -1
        yield max(length, unpacked, 0)


def _table(head: memoryview, at: int) -> int:
    return at + _unsigned(head, at)


def _field(head: memoryview, table: int, number: int) -> int:
    """Where a field of a table lies; 0 where it has none."""
    entries = table - struct.unpack_from("<i", head, table)[0]
    if entries < 0:
        raise IndexError("a table without its fields")
    (size,) = struct.unpack_from("<H", head, entries)
    if 4 + 2 * number + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", head, entries + 4 + 2 * number)
    return table + offset if offset else 0


def _unsigned(head: memoryview, at: int) -> int:
    value: int = struct.unpack_from("<I", head, at)[0]
    return value

"""A log of messages by topic and time, whatever file holds it: what all kinds say of themselves, and how they are read.

A log is cut into spans: chunks that are unpacked one at a time, so that memory holds one of them, whatever the file's
size. A span says the time it covers and the channels in it where the file has an index; else it is looked at.
"""

from __future__ import annotations

import bz2
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from seqlake.errors import CorruptFileError, in_line
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from seqlake.protocols import Blob
    from seqlake.spec.findings import Finding

MOST_CHUNK = 1 << 30
"""Bytes of a chunk as it is unpacked: writers make chunks of some megabytes."""

LAST = (1 << 63) - 1
"""The last nanosecond that a column of times holds."""

_PART = 1 << 20
_AHEAD = 4 << 20  # bytes fetched at once where a file can only be read by ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic of a log.

    Attributes:
        name: As in `/joint_states`.
        type: The type of its messages, as `sensor_msgs/msg/JointState`.
        encoding: Of messages: `json`, `protobuf`, `ros1`, `cdr`.
        form: Of the schema: `jsonschema`, `protobuf`, `ros1msg`, `ros2msg`, `ros2idl`.
        schema: The schema as it is stored.
    """

    name: str
    type: str
    encoding: str
    form: str
    schema: bytes = field(repr=False)


class LogMessage(NamedTuple):
    """One message: its topic, when it was logged in nanoseconds, its number, and its bytes."""

    topic: str
    time: int
    sequence: int
    data: memoryview


class LogSpan(NamedTuple):
    """A part of a log: bytes `start` to `stop` of the file, the times in it, and its channels where they are known."""

    start: int
    stop: int
    first: int = 0
    last: int = LAST
    channels: frozenset[int] | None = None
    bare: bool = False


class MessageLog(Protocol):
    """One file of messages; picklable."""

    @property
    def blob(self) -> Blob:
        """The file it is in."""

    @property
    def topics(self) -> Sequence[Topic]:
        """In the order of the file."""

    @property
    def span(self) -> tuple[int, int] | None:
        """Times of the first and the last message; None where there is none."""

    @property
    def spans(self) -> Sequence[LogSpan]:
        """Its chunks, in the order of the file; none where it has none."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages by topic, where the file says so."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What is wrong with it, as far as one look tells."""

    @property
    def notes(self) -> Mapping[str, Mapping[str, str]]:
        """Metadata beside the messages, by name."""

    def messages(
        self, topics: Collection[str] | None = None, /, *, start: int = 0, stop: int = LAST + 1
    ) -> Iterator[LogMessage]:
        """Messages from `start` to before `stop`, in the order of the file; CorruptFileError."""

    def check(self) -> Iterator[str]:
        """What is wrong with its bytes, all of which are read."""


class FileBytes:
    """The bytes of a file by range: of its memory where it is mapped, else of a window that is fetched ahead.

    Args:
        blob: The file.
    """

    def __init__(self, blob: Blob, /) -> None:
        self._blob, self._view = blob, blob.view()
        self._from, self._held = 0, memoryview(b"")

    def between(self, start: int, stop: int, /) -> memoryview:
        """Bytes `start` to `stop`, or to the end of the file."""
        stop = min(stop, self._blob.size)
        if start >= stop:
            return memoryview(b"")
        if self._view is not None:
            return self._view[start:stop]
        if not (self._from <= start and stop <= self._from + len(self._held)):
            ahead = max(stop, min(start + _AHEAD, self._blob.size))
            [self._held] = self._blob.ranges(np.array([start], np.int64), np.array([ahead], np.int64))
            self._from = start
        return self._held[start - self._from : stop - self._from]


class Record:
    """The numbers and texts of one record, never beyond its end.

    Args:
        data: Its bytes.
        what: What messages call it.
    """

    def __init__(self, data: memoryview, what: str, /) -> None:
        self._data, self._what, self._at = data, what, 0

    def take(self, size: int, /) -> memoryview:
        """The next bytes; CorruptFileError where they are not there."""
        if size > len(self._data) - self._at:
            raise CorruptFileError(f"{self._what} says {size} bytes where {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, code: str, /) -> int:
        """The next number, in a code of `struct`."""
        form = struct.Struct(f"<{code}")
        return int(form.unpack(self.take(form.size))[0])

    def octets(self, code: str = "I", /) -> memoryview:
        """Bytes behind their length."""
        return self.take(self.number(code))

    def text(self) -> str:
        """Text behind its length."""
        try:
            return str(self.octets(), "utf-8")
        except UnicodeDecodeError:
            raise CorruptFileError(f"{self._what} has a name that is not UTF-8") from None

    def texts(self) -> dict[str, str]:
        """A map of texts."""
        inner, pairs = Record(self.octets(), self._what), {}
        while inner.left:
            key = inner.text()
            pairs[key] = inner.text()
        return pairs

    @property
    def left(self) -> int:
        """Bytes behind what was taken."""
        return len(self._data) - self._at


def messages_of(
    blob: Blob,
    spans: Sequence[LogSpan],
    names: Mapping[int, str],
    inside: Callable[[FileBytes, LogSpan], Iterable[tuple[int, int, int, memoryview]]],
    /,
    *,
    topics: Collection[str] | None,
    start: int,
    stop: int,
) -> Iterator[LogMessage]:
    """Messages of some topics from `start` to before `stop`, of a file that is cut into spans.

    Args:
        blob: The file.
        spans: Its chunks, in the order of the file; those that have nothing of this are not unpacked.
        names: Number of a channel -> its topic.
        inside: Gives (channel, sequence, log time, bytes) of each message of a span.
        topics: Those that are wanted; None for all.
        start: Nanoseconds.
        stop: Nanoseconds.

    Raises:
        CorruptFileError: A chunk that is needed is damaged.
    """
    wanted = {number: name for number, name in names.items() if topics is None or name in topics}
    file = FileBytes(blob)
    for span in spans:
        elsewhere = span.channels is not None and not span.channels & wanted.keys()
        if span.first >= stop or span.last < start or elsewhere:
            continue
        try:
            for channel, sequence, time, data in inside(file, span):
                if channel in wanted and start <= time < stop:
                    yield LogMessage(wanted[channel], time, sequence, data)
        except CorruptFileError as error:
            raise damaged(blob, error.message) from None


def unpacked(data: memoryview, compression: str, size: int, /) -> memoryview:
    """The content of a chunk, which must be as long as it says.

    Args:
        data: As it is stored.
        compression: `zstd`, `lz4`, `bz2`, `none` or nothing.
        size: Its length as the file says.

    Raises:
        CorruptFileError: It is longer, shorter, larger than any chunk, or damaged.
    """
    if compression in {"", "none"}:
        if len(data) != size:
            raise CorruptFileError(f"a chunk says {size:,} bytes and has {len(data):,}")
        return data
    if size > MOST_CHUNK:
        raise CorruptFileError(f"a chunk says {size:,} bytes; more than {MOST_CHUNK:,} are not unpacked")
    if compression == "zstd":
        content = _zstd(data, size)
    elif compression == "lz4":
        content = _stepwise(require("lz4.frame", extra="mcap").LZ4FrameDecompressor(), data, size)
    elif compression == "bz2":
        content = _stepwise(bz2.BZ2Decompressor(), data, size)
    else:
        raise CorruptFileError(f"a chunk is compressed by {compression!r:.40}; zstd, lz4 and bz2 are read")
    if len(content) != size:
        raise CorruptFileError(f"a chunk says {size:,} bytes and unpacks to {len(content):,}")
    return memoryview(content)


def unpacked_message(data: memoryview, /) -> memoryview:
    """A message that ROS 2 packed by itself.

    Raises:
        CorruptFileError: It is no zstd, or larger than any message.
    """
    content = _zstd(data, MOST_CHUNK)
    if len(content) > MOST_CHUNK:
        raise CorruptFileError(f"a message unpacks to more than {MOST_CHUNK:,} bytes")
    return memoryview(content)


def _zstd(data: memoryview, size: int) -> bytes:
    zstandard = require("zstandard", extra="mcap")
    parts, held = [], 0
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(data)
        while held <= size and (part := reader.read(min(_PART, size + 1 - held))):
            parts.append(part)
            held += len(part)
    except zstandard.ZstdError as error:
        raise CorruptFileError(f"a chunk is no zstd: {error}") from None
    return b"".join(parts)


def _stepwise(machine: Any, data: memoryview, size: int) -> bytes:
    """At most one byte more than there ought to be."""
    parts, held, given = [], 0, bytes(data)
    try:
        while held <= size and not machine.eof:
            part = machine.decompress(given, max_length=min(_PART, size + 1 - held))
            given = b""
            if not part and machine.needs_input:
                break
            parts.append(part)
            held += len(part)
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        raise CorruptFileError(f"a chunk cannot be unpacked: {error}") from None
    return b"".join(parts)


def damaged(blob: Blob, text: str, /) -> CorruptFileError:
    """The error of a recording that cannot be read."""
    return CorruptFileError(
        in_line(f"{blob.location}: {text}."),
        path=blob.location,
        hint="Fetch the file again; `seqlake validate --depth rows` lists all that is wrong with it.",
    )

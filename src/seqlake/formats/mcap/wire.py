"""MCAP off the wire: the summary where there is one, else the records one after another.

```text
89 4D 43 41 50 30 0D 0A   records: opcode u8, length u64, content   summary   footer   the magic again
```

Specification: https://mcap.dev/spec. Offsets and lengths count where the bytes are there; a summary that does not fit
its file is passed over, and the file is read from its beginning.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError, in_line
from seqlake.formats.mcap.logs import (
    LAST,
    FileBytes,
    LogMessage,
    LogSpan,
    Record,
    Topic,
    damaged,
    messages_of,
    unpacked,
)
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Blob

MAGIC = b"\x89MCAP0\r\n"
_HEAD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_FOOTER, _SCHEMA, _CHANNEL, _DATA, _CHUNK, _CHUNK_INDEX = 0x02, 0x03, 0x04, 0x05, 0x06, 0x08
_STATISTICS, _METADATA, _METADATA_INDEX, _END = 0x0B, 0x0C, 0x0D, 0x0F
_TAIL = _HEAD.size + 20 + len(MAGIC)
_BARE = 4 << 20  # bytes of messages outside chunks that are read at once
_MOST_NOTES = 64 << 20  # bytes of metadata records


@dataclass(frozen=True, kw_only=True, eq=False)
class McapLog:
    """An MCAP file after one look: a `Log`, picklable.

    Attributes:
        blob: The file.
        topics: In the order of their channels.
        channels: Number -> the place of its topic; those that are not read are absent.
        spans: Its chunks, in the order of the file.
        span: Times of its first and last message; None where there is none.
        counts: Messages by topic, where they were counted.
        findings: What is wrong with it.
        notes: Its metadata records.
    """

    blob: Blob
    topics: Sequence[Topic]
    channels: Mapping[int, int]
    spans: Sequence[LogSpan]
    span: tuple[int, int] | None
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def messages(
        self, topics: Collection[str] | None = None, /, *, start: int = 0, stop: int = LAST + 1
    ) -> Iterator[LogMessage]:
        """Messages of some topics from `start` to before `stop` (nanoseconds), in the order of the file.

        Raises:
            CorruptFileError: A chunk that is needed is damaged.
        """
        names = {number: self.topics[place].name for number, place in self.channels.items()}

        def inside(file: FileBytes, span: LogSpan) -> Iterator[tuple[int, int, int, memoryview]]:
            return _messages_in(_content(file, span))

        yield from messages_of(self.blob, self.spans, names, inside, topics=topics, start=start, stop=stop)

    def check(self) -> Iterator[str]:
        """What is wrong with its chunks, all of which are unpacked."""
        file = FileBytes(self.blob)
        for span in self.spans:
            try:
                for channel, _, time, _ in _messages_in(_content(file, span)):
                    if not span.first <= time <= span.last:
                        yield f"the chunk at byte {span.start} has a message of time {time}, outside its own times"
                        break
                    if channel not in self.channels and span.channels is None:
                        yield f"the chunk at byte {span.start} has a message of channel {channel}, which is not read"
                        break
            except CorruptFileError as error:
                yield error.message


def read(blob: Blob, /) -> McapLog:
    """Look at a file.

    Raises:
        CorruptFileError: It is no MCAP.
    """
    file = FileBytes(blob)
    if file.between(0, len(MAGIC)) != MAGIC:
        raise damaged(blob, "it does not begin as MCAP files do")
    try:
        return _summarized(blob, file)
    except CorruptFileError as error:
        return _walked(blob, file, error.message)


@dataclass(slots=True)
class _Gathered:
    """What records say, one after another."""

    schemas: dict[int, tuple[str, str, bytes]] = field(default_factory=dict)
    channels: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    spans: list[LogSpan] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    first: int = LAST + 1
    last: int = -1
    chunks: int | None = None
    messages: int | None = None
    notes: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def see(self, code: int, content: memoryview) -> None:
        """A record of the kinds that stand in a summary and beside messages."""
        record = Record(content, "a record of the file")
        if code == _SCHEMA:
            number = record.number("H")
            name, form = record.text(), record.text()
            self.schemas.setdefault(number, (name, form, bytes(record.octets())))
        elif code == _CHANNEL:
            number, schema = record.number("H"), record.number("H")
            self.channels.setdefault(number, (schema, record.text(), record.text()))
        elif code == _STATISTICS:
            self.messages = record.number("Q")
            record.take(2 + 4 + 4 + 4)
            self.chunks = record.number("I")
            first, last = record.number("Q"), record.number("Q")
            counts = Record(record.octets(), "the statistics")
            while counts.left:
                channel = counts.number("H")
                self.counts[channel] = counts.number("Q")
            if self.messages:
                self.first, self.last = min(self.first, first), max(self.last, last)
        elif code == _METADATA:
            name = record.text()
            self.notes[name] = record.texts()

    def see_chunk_index(self, content: memoryview, end: int) -> None:
        record = Record(content, "an index of a chunk")
        first, last = record.number("Q"), record.number("Q")
        start, length = record.number("Q"), record.number("Q")
        offsets = Record(record.octets(), "an index of a chunk")
        channels = set()
        while offsets.left:
            channels.add(offsets.number("H"))
            offsets.take(8)
        if start + length > end or length < _HEAD.size:
            raise CorruptFileError(f"its summary has a chunk at byte {start} of {length} bytes, outside the file")
        self.spans.append(LogSpan(start, start + length, first, last, frozenset(channels) or None))

    def log(self, blob: Blob, findings: list[Finding]) -> McapLog:
        """The file as it is read."""
        topics: dict[str, Topic] = {}
        places: dict[int, int] = {}
        for number, (schema, name, encoding) in sorted(self.channels.items()):
            kind, form, data = self.schemas.get(schema, ("", "", b""))
            topic = Topic(name=name, type=kind, encoding=encoding, form=form, schema=data)
            if topics.setdefault(name, topic) == topic:
                places[number] = list(topics).index(name)
            else:
                self.problems.append(
                    f"the topic {name!r} has messages of {topics[name].type!r} and of another schema, {kind!r}: "
                    "the first are read"
                )
        if self.last > LAST:
            raise damaged(blob, f"it has times beyond {LAST} nanoseconds, which no clock says")
        findings += [_finding("mcap-file", "warning", text, blob) for text in self.problems]
        counts: dict[str, int] = {}
        for number, place in places.items():
            if number in self.counts:
                name = list(topics)[place]
                counts[name] = counts.get(name, 0) + self.counts[number]
        spans = tuple(self.spans)
        span = (self.first, self.last) if self.last >= self.first else None
        return McapLog(
            blob=blob,
            topics=tuple(topics.values()),
            channels=places,
            spans=spans,
            span=span,
            counts=counts,
            findings=tuple(findings),
            notes=self.notes,
        )


def _finding(code: str, severity: Any, text: str, blob: Blob) -> Finding:
    return Finding(code=code, severity=severity, message=in_line(text), location=blob.location)


def _summarized(blob: Blob, file: FileBytes) -> McapLog:
    """By the summary; CorruptFileError where there is none, or one that does not fit."""
    end = blob.size - _TAIL
    if end < len(MAGIC) or file.between(blob.size - len(MAGIC), blob.size) != MAGIC:
        raise CorruptFileError("it does not end as MCAP files do: its recording was not finished, or it is cut off")
    footer = file.between(end, end + _HEAD.size + 20)
    code, length = _HEAD.unpack_from(footer)
    start, offsets, crc = struct.unpack_from("<QQI", footer, _HEAD.size)
    if (code, length) != (_FOOTER, 20) or not (start == 0 or len(MAGIC) < start <= end):
        raise CorruptFileError("its footer does not lead to a summary")
    if start == 0:
        raise CorruptFileError("it has no summary")
    section = file.between(start, end + _HEAD.size + 16)
    if crc and zlib.crc32(section) != crc:
        raise CorruptFileError("its summary does not match its checksum")
    gathered, notes = _Gathered(), list[tuple[int, int]]()
    at, stop = 0, min(end, offsets or end) - start
    while at < stop:
        code, content, at = _record(section[:stop], at)
        if code == _CHUNK_INDEX:
            gathered.see_chunk_index(content, end)
        elif code == _METADATA_INDEX:
            record = Record(content, "an index of metadata")
            notes.append((record.number("Q"), record.number("Q")))
        else:
            gathered.see(code, content)
    unread = gathered.messages is None or (gathered.messages > 0 and not gathered.channels)
    if unread or len(gathered.spans) != (gathered.chunks or 0) or (gathered.messages and not gathered.chunks):
        raise CorruptFileError("its summary does not list its channels, chunks or statistics")
    gathered.spans.sort()
    if any(two.start < one.stop for one, two in pairwise(gathered.spans)):
        raise CorruptFileError("its summary has chunks that overlap")
    _notes(file, gathered, notes, end)
    return gathered.log(blob, [])


def _notes(file: FileBytes, gathered: _Gathered, places: list[tuple[int, int]], end: int) -> None:
    left = _MOST_NOTES
    for start, length in places:
        left -= length
        if start + length > end or length < _HEAD.size or left < 0:
            raise CorruptFileError(f"its summary has metadata at byte {start} of {length} bytes, outside the file")
        code, content, _ = _record(file.between(start, start + length), 0)
        if code != _METADATA:
            raise CorruptFileError(f"its summary says metadata at byte {start}, where there is none")
        gathered.see(code, content)


def _record(data: memoryview, at: int) -> tuple[int, memoryview, int]:
    """(opcode, content, where the next one begins)."""
    if len(data) - at < _HEAD.size:
        raise CorruptFileError(f"a record is cut off: {len(data) - at} bytes are left")
    code, length = _HEAD.unpack_from(data, at)
    begin = at + _HEAD.size
    if length > len(data) - begin:
        raise CorruptFileError(f"a record says {length:,} bytes where {len(data) - begin:,} are left")
    return code, data[begin : begin + length], begin + length


def _walked(blob: Blob, file: FileBytes, why: str) -> McapLog:
    """From the beginning, chunk after chunk, as far as the file goes."""
    walk = _Walk(blob, file, [_finding("mcap-no-summary", "warning", f"read from its beginning: {why}", blob)])
    at = len(MAGIC)
    while at < blob.size:
        head = file.between(at, at + _HEAD.size)
        code, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, blob.size)
        stop = at + _HEAD.size + length
        if stop > blob.size:
            text = f"it ends within a record at byte {at}: what follows is lost"
            walk.findings.append(_finding("mcap-cut-off", "error", text, blob))
            break
        if code in {_END, _FOOTER}:
            break
        walk.pass_over(code, at, stop)
        at = stop
    walk.settle(at)
    return walk.gathered.log(blob, walk.findings)


@dataclass(slots=True)
class _Walk:
    """One pass over a file."""

    blob: Blob
    file: FileBytes
    findings: list[Finding]
    gathered: _Gathered = field(default_factory=_Gathered)
    bare: int = -1  # where messages outside chunks begin
    left: int = _MOST_NOTES

    def pass_over(self, code: int, at: int, stop: int) -> None:
        if code == _DATA:
            self.bare = at if self.bare < 0 else self.bare
            if stop - self.bare > _BARE:
                self.settle(stop)
            return
        self.settle(at)
        if code == _CHUNK:
            _look(self.file, self.gathered, LogSpan(at, stop), self.findings, self.blob)
        elif code in {_SCHEMA, _CHANNEL, _METADATA}:
            self.left -= stop - at if code == _METADATA else 0
            if self.left >= 0:
                _see(self.gathered, code, self.file.between(at + _HEAD.size, stop), self.findings, self.blob)

    def settle(self, stop: int) -> None:
        """Messages outside chunks that were passed over are a span of their own."""
        if self.bare >= 0:
            _look(self.file, self.gathered, LogSpan(self.bare, stop, bare=True), self.findings, self.blob)
        self.bare = -1


def _see(gathered: _Gathered, code: int, content: memoryview, findings: list[Finding], blob: Blob) -> None:
    try:
        gathered.see(code, content)
    except CorruptFileError as error:
        findings.append(_finding("mcap-record", "error", error.message, blob))


def _look(file: FileBytes, gathered: _Gathered, span: LogSpan, findings: list[Finding], blob: Blob) -> None:
    """What a part of the file holds; a part that cannot be read is left out, and said."""
    first, last, counts = LAST + 1, -1, dict[int, int]()
    at = before = 0
    try:
        content = _content(file, span)
        while at < len(content):
            before = at
            code, data, at = _record(content, at)
            if code == _DATA:
                channel, _, time = _head_of(data)
                counts[channel] = counts.get(channel, 0) + 1
                first, last = min(first, time), max(last, time)
            elif code in {_SCHEMA, _CHANNEL}:
                gathered.see(code, data)
    except CorruptFileError as error:
        findings.append(
            _finding("mcap-chunk", "error", f"the chunk at byte {span.start} is lost: {error.message}", blob)
        )
        if not span.bare:
            return
        span = span._replace(stop=span.start + before)  # messages outside chunks count up to where they are damaged
    if counts:
        gathered.spans.append(span._replace(first=first, last=last, channels=frozenset(counts)))
        for channel, count in counts.items():
            gathered.counts[channel] = gathered.counts.get(channel, 0) + count
        gathered.first, gathered.last = min(gathered.first, first), max(gathered.last, last)


def _content(file: FileBytes, span: LogSpan) -> memoryview:
    """The records in a part of the file, unpacked and compared with their checksum."""
    data = file.between(span.start, span.stop)
    if span.bare:
        return data
    code, content, _ = _record(data, 0)
    if code != _CHUNK:
        raise CorruptFileError(f"no chunk is at byte {span.start}, where one was expected")
    record = Record(content, f"the chunk at byte {span.start}")
    record.take(16)
    size, crc, compression = record.number("Q"), record.number("I"), record.text()
    records = unpacked(record.octets("Q"), compression, size)
    if crc and zlib.crc32(records) != crc:
        raise CorruptFileError(f"the chunk at byte {span.start} does not match its checksum")
    return records


def _messages_in(content: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """(channel, sequence, log time, bytes) of each message."""
    at = 0
    while at < len(content):
        code, data, at = _record(content, at)
        if code != _DATA:
            continue
        channel, sequence, time = _head_of(data)
        yield channel, sequence, time, data[_MESSAGE.size :]


def _head_of(data: memoryview) -> tuple[int, int, int]:
    """(channel, sequence, log time) of a message."""
    if len(data) < _MESSAGE.size:
        raise CorruptFileError("a message is shorter than what stands before its bytes")
    channel, sequence, time, _ = _MESSAGE.unpack_from(data)
    return channel, sequence, time

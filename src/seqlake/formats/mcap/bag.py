r"""ROS 1 bags of version 2.0: chunks of messages, with an index at the end where the recording was finished.

```text
#ROSBAG V2.0\n   records: header length u32, header, data length u32, data
```

A header is fields of `name=value`, each behind its length. Specification: http://wiki.ros.org/Bags/Format/2.0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

MAGIC = b"#ROSBAG V2.0\n"
_MESSAGE, _BAG, _INDEX, _CHUNK, _CHUNK_INFO, _CONNECTION = 2, 3, 4, 5, 6, 7
_MOST_HEADER = 16 << 20  # bytes of a record's header, or of a connection with its definition


@dataclass(frozen=True, kw_only=True, eq=False)
class BagLog:
    """A bag after one look: a `Log`, picklable.

    Attributes:
        blob: The file.
        topics: In the order of their connections.
        connections: Number -> the place of its topic; those that are not read are absent.
        spans: Its chunks, in the order of the file.
        span: Times of its first and last message; None where there is none.
        counts: Messages by topic.
        findings: What is wrong with it.
        notes: Bags have none.
    """

    blob: Blob
    topics: Sequence[Topic]
    connections: Mapping[int, int]
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
        names = {number: self.topics[place].name for number, place in self.connections.items()}

        def inside(file: FileBytes, span: LogSpan) -> Iterator[tuple[int, int, int, memoryview]]:
            return ((number, 0, time, data) for number, time, data in _messages_in(_content(file, span)))

        yield from messages_of(self.blob, self.spans, names, inside, topics=topics, start=start, stop=stop)

    def check(self) -> Iterator[str]:
        """What is wrong with its chunks, all of which are unpacked."""
        file = FileBytes(self.blob)
        for span in self.spans:
            try:
                for number, time, _ in _messages_in(_content(file, span)):
                    if not span.first <= time <= span.last or number not in self.connections:
                        text = f"the chunk at byte {span.start} has a message at {time} of connection {number}"
                        yield f"{text}, which its index does not say"
                        break
            except CorruptFileError as error:
                yield error.message


@dataclass(slots=True)
class _Gathered:
    connections: dict[int, Topic] = field(default_factory=dict)
    spans: list[LogSpan] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)

    def connect(self, header: Mapping[str, memoryview], data: memoryview) -> None:
        number, more = _number(header, "conn", "I"), _fields(data)
        self.connections.setdefault(
            number,
            Topic(
                name=_text(header, "topic"),
                type=_text(more, "type"),
                encoding="ros1",
                form="ros1msg",
                schema=bytes(more.get("message_definition", b"")),
            ),
        )

    def add(self, span: LogSpan, counts: Mapping[int, int]) -> None:
        self.spans.append(span._replace(channels=frozenset(counts)))
        for number, count in counts.items():
            self.counts[number] = self.counts.get(number, 0) + count

    def log(self, blob: Blob, findings: list[Finding]) -> BagLog:
        topics: dict[str, Topic] = {}
        places: dict[int, int] = {}
        for number, topic in sorted(self.connections.items()):
            if topics.setdefault(topic.name, topic) == topic:
                places[number] = list(topics).index(topic.name)
            else:
                first = topics[topic.name].type
                text = f"the topic {topic.name!r} has messages of {first!r} and of {topic.type!r}: the first are read"
                findings.append(_finding("warning", text, blob))
        counts: dict[str, int] = {}
        for number, place in places.items():
            name = list(topics)[place]
            counts[name] = counts.get(name, 0) + self.counts.get(number, 0)
        spans = sorted(self.spans)
        return BagLog(
            blob=blob,
            topics=tuple(topics.values()),
            connections=places,
            spans=tuple(spans),
            span=(min(one.first for one in spans), max(one.last for one in spans)) if spans else None,
            counts=counts,
            findings=tuple(findings),
        )


def _finding(severity: str, text: str, blob: Blob, code: str = "mcap-file") -> Finding:
    return Finding(
        code=code, severity="error" if severity == "error" else "warning", message=in_line(text), location=blob.location
    )


def read(blob: Blob, /) -> BagLog:
    """Look at a bag.

    Raises:
        CorruptFileError: It is no bag of version 2.0.
    """
    file = FileBytes(blob)
    if file.between(0, len(MAGIC)) != MAGIC:
        raise damaged(blob, "it does not begin as bags of version 2.0 do")
    try:
        return _indexed(blob, file)
    except CorruptFileError as error:
        return _walked(blob, file, error.message)


def _indexed(blob: Blob, file: FileBytes) -> BagLog:
    header, _, _ = _record(file, len(MAGIC), blob.size)
    start = _number(header, "index_pos", "Q")
    if _operation(header) != _BAG or not len(MAGIC) < start <= blob.size:
        raise CorruptFileError("it has no index: its recording was not finished")
    gathered, at, chunks = _Gathered(), start, 0
    while at < blob.size:
        header, place, stop = _record(file, at, blob.size)
        operation = _operation(header)
        data = file.between(place, stop) if stop - place <= _MOST_HEADER else memoryview(b"")
        if operation == _CONNECTION:
            gathered.connect(header, data)
        elif operation == _CHUNK_INFO:
            chunks += 1
            begin = _number(header, "chunk_pos", "Q")
            inner, _, end = _record(file, begin, blob.size)
            if _operation(inner) != _CHUNK:
                raise CorruptFileError(f"its index says a chunk at byte {begin}, where there is none")
            pairs = Record(data, "an index of a chunk")
            counts = {pairs.number("I"): pairs.number("I") for _ in range(_number(header, "count", "I")) if pairs.left}
            first, last = _time(header, "start_time"), _time(header, "end_time")
            gathered.add(LogSpan(begin, end, first, last), counts)
        at = stop
    header, _, _ = _record(file, len(MAGIC), blob.size)
    if chunks != _number(header, "chunk_count", "I") or len({span.start for span in gathered.spans}) != chunks:
        raise CorruptFileError(f"its index has {chunks} chunks, and not as many as it says")
    return gathered.log(blob, [])


def _walked(blob: Blob, file: FileBytes, why: str) -> BagLog:
    """From the beginning, as far as the file goes."""
    gathered = _Gathered()
    findings = [_finding("warning", f"read from its beginning: {why}", blob, "mcap-no-summary")]
    at = len(MAGIC)
    while at < blob.size:
        try:
            header, place, stop = _record(file, at, blob.size)
        except CorruptFileError as error:
            text = f"{error.message}: what follows is lost"
            findings.append(_finding("error", text, blob, "mcap-cut-off"))
            break
        try:
            if _operation(header) == _CHUNK:
                _look(file, gathered, LogSpan(at, stop))
            elif _operation(header) == _CONNECTION and stop - place <= _MOST_HEADER:
                gathered.connect(header, file.between(place, stop))
        except CorruptFileError as error:
            text = f"the record at byte {at} is lost: {error.message}"
            findings.append(_finding("error", text, blob, "mcap-chunk"))
        at = stop
    return gathered.log(blob, findings)


def _look(file: FileBytes, gathered: _Gathered, span: LogSpan) -> None:
    content = _content(file, span)
    counts: dict[int, int] = {}
    times = [LAST + 1, -1]
    for header, data in _records_in(content):
        operation = _operation(header)
        if operation == _CONNECTION:
            gathered.connect(header, data)
        elif operation == _MESSAGE:
            number, time = _number(header, "conn", "I"), _time(header, "time")
            counts[number] = counts.get(number, 0) + 1
            times = [min(times[0], time), max(times[1], time)]
    if counts:
        gathered.add(span._replace(first=times[0], last=times[1]), counts)


def _record(file: FileBytes, at: int, end: int) -> tuple[dict[str, memoryview], int, int]:
    """(header, where its data begin and end)."""
    sizes = file.between(at, at + 4)
    length = struct.unpack("<I", sizes)[0] if len(sizes) == 4 else end
    place = at + 4 + length
    if place + 4 > end or length > _MOST_HEADER:
        raise CorruptFileError(f"a record at byte {at} is cut off")
    header = _fields(file.between(at + 4, place))
    size = struct.unpack("<I", file.between(place, place + 4))[0]
    if place + 4 + size > end:
        raise CorruptFileError(f"the record at byte {at} says {size:,} bytes where {end - place - 4:,} are left")
    return header, place + 4, place + 4 + size


def _fields(data: memoryview) -> dict[str, memoryview]:
    record, fields = Record(data, "a header"), dict[str, memoryview]()
    while record.left:
        pair = record.octets()
        cut = bytes(pair[:256]).find(b"=")
        if cut < 0:
            raise CorruptFileError("a header has a field without a name")
        fields[bytes(pair[:cut]).decode("latin-1")] = pair[cut + 1 :]
    return fields


def _number(header: Mapping[str, memoryview], name: str, code: str) -> int:
    return Record(header.get(name, memoryview(b"")), f"the field {name!r}").number(code)


def _operation(header: Mapping[str, memoryview]) -> int:
    return _number(header, "op", "B")


def _time(header: Mapping[str, memoryview], name: str) -> int:
    record = Record(header.get(name, memoryview(b"")), f"the field {name!r}")
    return record.number("I") * 1_000_000_000 + record.number("I")


def _text(header: Mapping[str, memoryview], name: str) -> str:
    return bytes(header.get(name, b"")).decode("utf-8", "replace")


def _content(file: FileBytes, span: LogSpan) -> memoryview:
    header, place, stop = _record(file, span.start, span.stop)
    if _operation(header) != _CHUNK:
        raise CorruptFileError(f"no chunk is at byte {span.start}, where one was expected")
    return unpacked(file.between(place, stop), _text(header, "compression"), _number(header, "size", "I"))


def _records_in(content: memoryview) -> Iterator[tuple[dict[str, memoryview], memoryview]]:
    record = Record(content, "a chunk")
    while record.left:
        header = _fields(record.octets())
        yield header, record.octets()


def _messages_in(content: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """(connection, time, bytes) of each message."""
    for header, data in _records_in(content):
        if _operation(header) == _MESSAGE:
            yield _number(header, "conn", "I"), _time(header, "time"), data

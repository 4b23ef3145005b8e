"""ROS 2 bags in SQLite, as rosbag2 writes them by default up to ROS 2 Humble: `topics` and `messages`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.files.locations import is_local, local_path
from seqlake.formats.mcap.logs import LAST, LogMessage, Topic, damaged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.formats.mcap.logs import LogSpan
    from seqlake.protocols import Blob
    from seqlake.spec.findings import Finding

MAGIC = b"SQLite format 3\0"
_MOST_MESSAGE = 1 << 30  # bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class SqliteLog:
    """A `.db3` file after one look: a `Log`, picklable.

    Attributes:
        blob: The file, of this machine.
        topics: In the order of their ids.
        ids: Id of a topic -> its name.
        span: Times of its first and last message; None where there is none.
        counts: Messages by topic.
        spans: None: SQLite has an index of times.
        findings: None are known without reading it.
        notes: Such bags have none.
    """

    blob: Blob
    topics: Sequence[Topic]
    ids: Mapping[int, str]
    span: tuple[int, int] | None
    counts: Mapping[str, int]
    spans: Sequence[LogSpan] = ()
    findings: Sequence[Finding] = ()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def messages(
        self, topics: Collection[str] | None = None, /, *, start: int = 0, stop: int = LAST + 1
    ) -> Iterator[LogMessage]:
        """Messages of some topics from `start` to before `stop` (nanoseconds), in the order of their ids.

        Raises:
            CorruptFileError: SQLite cannot read it.
        """
        wanted = [number for number, name in self.ids.items() if topics is None or name in topics]
        marks = ", ".join("?" * len(wanted))
        query = (
            f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) "
            "AND timestamp >= ? AND timestamp < ? ORDER BY id"
        )
        try:
            with closing(_connected(self.blob)) as database:
                for number, time, data in database.execute(query, [*wanted, start, min(stop, LAST)]):
                    if not isinstance(data, bytes):
                        raise damaged(
                            self.blob, f"a message at {time} is {type(data).__name__}, where bytes were expected"
                        )
                    yield LogMessage(self.ids[number], time, 0, memoryview(data))
        except sqlite3.Error as error:
            raise damaged(self.blob, f"SQLite cannot read it: {error}") from None

    def check(self) -> Iterator[str]:
        """What SQLite finds wrong with its pages."""
        try:
            with closing(_connected(self.blob)) as database:
                for (text,) in database.execute("PRAGMA quick_check(20)"):
                    if text != "ok":
                        yield str(text)
        except (sqlite3.Error, CorruptFileError) as error:
            yield f"SQLite cannot read it: {error}"


def _connected(blob: Blob) -> sqlite3.Connection:
    """The database, never written, whose schema runs no functions."""
    if not is_local(blob.location):
        raise SeqlakeError(
            f"{blob.location} is SQLite, which is read on a disk of this machine.", hint="Fetch it first."
        )
    path = local_path(blob.location).resolve()
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_MESSAGE)
    return database


def read(blob: Blob, /) -> SqliteLog:
    """Look at a bag.

    Raises:
        CorruptFileError: It is no SQLite, or has not the tables of rosbag2.
        SeqlakeError: It is not on this machine.
    """
    try:
        with closing(_connected(blob)) as database:
            return _looked_at(blob, database)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise damaged(blob, f"SQLite cannot read it: {error}") from None


def _looked_at(blob: Blob, database: sqlite3.Connection) -> SqliteLog:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"topics", "messages"} <= tables:
        raise damaged(blob, "it has no tables 'topics' and 'messages', as bags of ROS 2 have")
    definitions: dict[str, tuple[str, bytes]] = {}
    if "message_definitions" in tables:
        rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
        definitions = {str(name): (str(form), _octets(text)) for name, form, text in rows}
    topics, ids = [], {}
    for number, name, kind, encoding in database.execute(
        "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
    ):
        form, schema = definitions.get(str(kind), ("ros2msg", b""))
        topics.append(Topic(name=str(name), type=str(kind), encoding=str(encoding), form=form, schema=schema))
        ids[int(number)] = str(name)
    counts: dict[str, int] = {}
    for number, count in database.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id"):
        if number in ids:
            counts[ids[number]] = counts.get(ids[number], 0) + int(count)
    first, last = database.execute("SELECT min(timestamp), max(timestamp) FROM messages").fetchone()
    if first is not None and not (isinstance(first, int) and isinstance(last, int) and first >= 0):
        raise damaged(blob, f"its messages have times from {first!r} to {last!r}, where nanoseconds were expected")
    unique = {topic.name: topic for topic in reversed(topics)}
    return SqliteLog(
        blob=blob,
        topics=tuple(dict.fromkeys(unique[topic.name] for topic in topics)),
        ids=ids,
        span=None if first is None else (first, last),
        counts=counts,
    )


def _octets(text: Any) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text or b"")

"""Recordings as rows: looked at, mapped to columns, cut into rows, and checked."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.arguments import FLAG, SECONDS, TEXT, TEXTS, Kind, takes
from seqlake.errors import ColumnNotFoundError, CorruptFileError, InvalidMetadataError, SchemaMismatchError, in_line
from seqlake.files.allowed import OUTSIDE
from seqlake.files.credentials import Storage
from seqlake.formats import _mapping
from seqlake.formats.mcap import clock, columns, ours, segments
from seqlake.formats.mcap.clock import Grid
from seqlake.formats.mcap.columns import Looked, TopicColumn
from seqlake.formats.mcap.reading import Reading, RecordingReader
from seqlake.formats.mcap.recordings import looks_like_one, recordings_at, unique_ids
from seqlake.formats.mcap.ros import not_read
from seqlake.formats.mcap.schemas import decoder_of
from seqlake.shards.scanned import ScannedDataset, ScannedShard
from seqlake.spec.alignment import exact
from seqlake.spec.column_types import ColumnType
from seqlake.spec.findings import Finding
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from fractions import Fraction

    from seqlake.formats.mcap.kinds import MessageDecoder
    from seqlake.formats.mcap.logs import Topic
    from seqlake.formats.mcap.recordings import LoggedRun
    from seqlake.formats.mcap.segments import Segment
    from seqlake.protocols import Depth, Mapped

RECORDING, START, DURATION = "recording", "start_time", "duration_seconds"
_SAMPLED = 64  # recordings whose messages are looked at
_SAMPLES = 64  # messages of a topic
_SAMPLE_BYTES = 1 << 20  # of these
_STAMPS = Kind("'log' or 'header'", lambda value: value in {"log", "header"})
_GAPS = Kind("'drop', 'nan' or 'error'", lambda value: value in {"drop", "nan", "error"})
_HOW = Kind("'hold', 'nearest' or 'linear'", lambda value: value in {"hold", "nearest", "linear"})
_RATE = Kind("steps per second", lambda value: 0 < value < 1e6)


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a location is a `.mcap`, `.bag` or `.db3` file, or a folder of these that is no other dataset."""
    return looks_like_one(location, storage=storage)


@takes(
    topics=TEXTS.or_none(),
    without=TEXTS,
    gap=SECONDS,
    clock=TEXT.or_none(),
    fps=_RATE.or_none(),
    resample=_HOW,
    max_gap=SECONDS.or_none(),
    gaps=_GAPS,
    stamp=_STAMPS,
    keep_file=FLAG,
)
def scan(
    location: str,
    /,
    *,
    map: Mapping[str, Any] | str | os.PathLike[str] | None = None,  # noqa: A002 - as every format calls it
    topics: Collection[str] | None = None,
    without: Collection[str] = (),
    segment: float | str | None = None,
    gap: float = 10.0,
    clock: str | None = None,
    fps: float | Fraction | None = None,
    resample: Literal["hold", "nearest", "linear"] = "hold",
    max_gap: float | None = None,
    gaps: Literal["drop", "nan", "error"] = "drop",
    stamp: Literal["log", "header"] = "log",
    keep_file: bool = False,
    storage: Mapping[str, str] | None = None,
) -> Recordings:
    """Look at recordings: MCAP files, bags of ROS 1 and ROS 2, or a folder of them; nothing is converted.

    What is read now are the indexes of the files and some messages of each topic. One recording is one row, unless
    `segment` cuts it; each topic keeps its rate, with a column of its times, unless `clock` or `fps` give one.

    Args:
        location: A file, the folder of a ROS 2 bag, or a folder of recordings: a path or URI.
        map: Column -> source, as in `{"state": "/joint_states.position"}`, or -> a dict with `source`, the column
            type's fields, and `fields`, `names`, `frame`, `resample`; or a JSON or TOML file of this. None: every field
            that can be a column is one.
        topics: The topics to read, without a mapping; None for all.
        without: Topics to leave out.
        segment: Seconds of a row; or `"gaps"`; or a topic, each message of which begins a row (of flags: true begins
            one, false ends it).
        gap: With `segment="gaps"`: so many seconds without a message end a row.
        clock: The topic whose messages are the steps of all columns.
        fps: Or the rate of these steps, per second.
        resample: What stands at a step: the latest sample (`hold`), the `nearest`, or one in between (`linear`).
        max_gap: Seconds that a sample may be away from its step; with `linear`, that two may be apart.
        gaps: Steps without a sample: `drop` cuts them off at both ends and fills those between with NaN; `nan` fills
            all; `error` refuses.
        stamp: A message's time: when it was logged, or the stamp in its header.
        keep_file: Add a column that refers to the recording itself.
        storage: Options of the object store.

    Returns:
        A `Readable` with `check` and `mapping`.

    Raises:
        DatasetNotFoundError: No recording is there.
        CorruptFileError: A file is none of these formats at all.
        InvalidMetadataError: The mapping names what is not there.
        MissingDependencyError: A package of `seqlake[mcap]` is not installed.

    Example:
        ```python
        sl.scan("drive.mcap", fps=30, map={"state": "/joint_states.position", "cam": "/camera/image/compressed"})
        ```
    """
    segments.checked(segment)
    root, recordings = recordings_at(location, storage=storage)
    survey = Survey.of(recordings, topics=topics, without=without)
    kept = ours.restored(recordings) if map is None and topics is None and not without and segment is None else None
    if kept is not None and clock is None and fps is None:
        plan = survey.ours(kept)
    else:
        grid = _grid(clock, fps, max_gap, gaps, survey)
        plan = survey.plan(map, grid=grid, resample=resample, stamp=stamp)
    plan = replace(plan, keep="mcap" if keep_file else None)
    parts = _Parts(root=root, recordings=recordings, survey=survey, plan=plan, cut=(segment, gap))
    shards = list(parts.shards())
    return Recordings(
        root=root,
        schema=parts.schema,
        parts=shards,
        recordings=recordings,
        survey=replace(survey, topics={name: replace(one, samples=()) for name, one in survey.topics.items()}),
        plan=plan,
        given=storage,
        outside=storage is not None and Storage(storage).allows(OUTSIDE),
    )


def _grid(topic: str | None, fps: Any, max_gap: float | None, gaps: Any, survey: Survey) -> Grid | None:
    if topic is not None and fps is not None:
        raise ValueError(f"Give clock or fps, found clock={topic!r} and fps={fps!r}.")
    if topic is None and fps is None:
        return None
    if topic is not None and topic not in survey.topics:
        known = ", ".join(sorted(survey.topics)) or "none"
        raise InvalidMetadataError(in_line(f"No topic {topic!r} can be the clock; there are {known}."))
    most = None if max_gap is None else round(max_gap * 1_000_000_000)
    return Grid(topic=topic or "", rate=None if fps is None else exact(fps), most=most, gaps=gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What becomes of the topics.

    Attributes:
        reading: How messages become cells.
        reasons: Topic -> why it, or some of it, is no column.
        declared: The columns of the dataset that was exported, where these files are ours.
        keep: The column that refers to the recording; None for none.
    """

    reading: Reading
    reasons: Mapping[str, str]
    declared: Schema | None = None
    keep: str | None = None

    @property
    def schema(self) -> Schema:
        """All columns; those of times stand before those of their topic."""
        if self.declared is not None:
            return self._kept(dict(self.declared.items()), self.declared.metadata)
        listed: dict[str, Column] = {
            RECORDING: Column(RECORDING, pa.string(), nullable=False),
            START: Column(START, pa.timestamp("ns", tz="UTC")),
            DURATION: Column(DURATION, pa.float64()),
        }
        if self.reading.grid is not None:
            listed[clock.TIMES] = Column(clock.TIMES, pa.list_(pa.int64()), ColumnType("trajectory"))
        streams = self.reading.streams()
        for one in self.reading.columns:
            times = one.stream.times
            if times in streams and times not in listed:
                listed[times] = Column(times, pa.list_(pa.int64()), ColumnType("trajectory"))
            listed[one.name] = one.column
        return self._kept(listed, Metadata(extra={"source": {"format": "mcap"}}))

    def _kept(self, listed: dict[str, Column], metadata: Metadata) -> Schema:
        if self.keep is not None:
            name = self.keep
            while name in listed:
                name += "_"
            listed[name] = Column(name, pa.string(), ColumnType("mcap"))
        return Schema(listed, metadata=metadata)


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What a look at all recordings told.

    Attributes:
        topics: Topic -> what is known of its messages, of those that can be read.
        decoders: [recordings] topic -> its decoder.
        reasons: Topic -> why it cannot be read.
        order: All topics, left-out ones too.
        findings: What is wrong with the files.
    """

    topics: Mapping[str, Looked]
    decoders: Sequence[Mapping[str, MessageDecoder]]
    reasons: Mapping[str, str]
    order: Sequence[str]
    findings: Sequence[Finding]

    @staticmethod
    def of(recordings: Sequence[LoggedRun], *, topics: Collection[str] | None, without: Collection[str]) -> Survey:
        """Look at some messages of each topic."""
        order = list(dict.fromkeys(name for one in recordings for name in one.topics))
        for name in (*(topics or ()), *without):
            if name not in order:
                raise ColumnNotFoundError(
                    in_line(f"No topic {name!r} is recorded; there are {', '.join(sorted(order))}.")
                )
        wanted = [name for name in order if (topics is None or name in topics) and name not in without]
        reasons = {name: "left out as asked" for name in order if name not in wanted}
        looked: dict[str, Looked] = {}
        known: dict[tuple[str, Topic], MessageDecoder | str] = {}
        decoders: list[dict[str, MessageDecoder]] = []
        findings = [finding for one in recordings for finding in (*one.findings, *_of_logs(one))]
        for number, recording in enumerate(recordings):
            of_recording: dict[str, MessageDecoder] = {}
            for name, topic in recording.topics.items():
                if name not in wanted:
                    continue
                decoder, samples = _looked_at(recording, topic, known, sampled=number < _SAMPLED)
                if isinstance(decoder, CorruptFileError):
                    text, place = f"the topic {name!r} is lost: {decoder.message}", recording.path
                    findings.append(Finding(code="mcap-chunk", severity="error", message=text, location=place))
                if isinstance(decoder, str | CorruptFileError):
                    reasons[name] = decoder if isinstance(decoder, str) else decoder.message
                    continue
                of_recording[name] = decoder
                before = looked.get(name)
                held = [] if before is None else list(before.samples)
                kind = decoder.kind if before is None or not before.samples else before.kind
                looked[name] = Looked(name=name, kind=kind, samples=[*held, *samples])
            decoders.append(of_recording)
        return Survey(topics=looked, decoders=decoders, reasons=reasons, order=order, findings=findings)

    def plan(self, given: Any, *, grid: Grid | None, resample: str, stamp: Any) -> TopicPlan:
        """The columns, as a mapping says or by default."""
        reasons = dict(self.reasons)
        taken = [ID, RECORDING, START, DURATION, *([] if grid is None else [clock.TIMES])]
        if given is not None:
            wanted = _mapping.wanted(given, options=columns.OPTIONS)
            planned = [
                replace(one, resample=_how_of(wanted[one.name], resample))
                for one in columns.by_map(wanted, self.topics)
            ]
            clash = [one.name for one in planned if one.name in taken]
            if clash:
                raise InvalidMetadataError(f"The mapping has a column {clash[0]!r}, which recordings have already.")
        else:
            planned = []
            for topic in self.topics.values():
                of_topic, why = columns.by_default(topic)
                planned += [replace(one, resample=_default_how(one, resample)) for one in of_topic]
                if why:
                    reasons[topic.name] = why
            planned = columns.named(planned, taken)
        if not planned:
            said = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:5])
            text = in_line(f"No topic of these recordings can be a column. {said}")
            if any(finding.severity == "error" for finding in self.findings):
                raise CorruptFileError(text, hint="Fetch the files again.")
            raise SchemaMismatchError(text)
        return TopicPlan(
            reading=Reading(columns=_clocked(planned, taken, grid), stamp=stamp, grid=grid), reasons=reasons
        )

    def ours(self, kept: ours.Kept) -> TopicPlan:
        """The columns of the dataset that these recordings were written from."""
        planned = list(kept.columns)
        return TopicPlan(
            reading=Reading(columns=planned, stamp="step"), reasons=dict(self.reasons), declared=kept.schema
        )


def _how_of(wanted: Any, resample: str) -> str:
    return str(wanted.options.get("resample", resample))


def _default_how(one: TopicColumn, resample: str) -> str:
    """Between two texts, pictures or whole numbers there is nothing."""
    inner = one.column.logical
    while pa.types.is_list(inner) or pa.types.is_fixed_size_list(inner):
        inner = inner.value_type
    smooth = (
        one.role == "signal" and pa.types.is_floating(inner) and one.column.dim is not None
    ) or not one.column.nested
    return resample if resample != "linear" or (smooth and pa.types.is_floating(inner)) else "hold"


def _clocked(planned: Sequence[TopicColumn], taken: Sequence[str], grid: Grid | None) -> list[TopicColumn]:
    """Each column with what says its times."""
    timed = columns.timed(planned, taken)
    movies = any(one.role == "video" for one in timed)
    result = []
    for one in timed:
        if grid is None or one.role == "video":
            result.append(columns.with_fields(one, timestamps=one.stream.times))
        elif grid.rate is not None and not movies:
            rate = grid.rate
            result.append(columns.with_fields(one, fps=int(rate) if rate.denominator == 1 else float(rate)))
        else:
            result.append(columns.with_fields(one, timestamps=clock.TIMES))
    return result


def _of_logs(recording: LoggedRun) -> Iterator[Finding]:
    for log in recording.logs:
        yield from log.findings


def _looked_at(
    recording: LoggedRun, topic: Topic, known: dict[tuple[str, Topic], MessageDecoder | str], *, sampled: bool
) -> tuple[MessageDecoder | str | CorruptFileError, list[dict[str, Any]]]:
    """The decoder of a topic (or why there is none), and some messages."""
    key = (topic.name, topic)
    decoder = known.get(key)
    if decoder is not None and (isinstance(decoder, str) or not sampled):
        return decoder, []
    try:
        messages = _some(recording, topic.name)
    except CorruptFileError as error:
        return error, []
    if decoder is None:
        decoder = _decoder(topic, messages)
        if messages or topic.encoding != "json":  # else another recording may have a message to learn from
            known[key] = decoder
    if isinstance(decoder, str):
        return decoder, []
    samples = _decoded(decoder, messages)
    if messages and not samples and topic.encoding == "cdr" and (why := not_read(messages[0])):
        return f"messages are encoded as {why}", []
    if messages and not samples and topic.encoding == "json":  # of other fields than in the recordings before
        alone = _decoder(topic, messages)
        return (decoder, []) if isinstance(alone, str) else (alone, _decoded(alone, messages))
    return decoder, samples


def _decoder(topic: Topic, messages: Sequence[memoryview]) -> MessageDecoder | str:
    try:
        return decoder_of(topic, messages[0] if messages else None)
    except InvalidMetadataError as error:
        return error.message


def _decoded(decoder: MessageDecoder, messages: Sequence[memoryview]) -> list[dict[str, Any]]:
    samples = []
    for data in messages:
        try:
            samples.append(decoder.decode(data))
        except CorruptFileError:
            continue  # who reads it meets the error
    return samples


def _some(recording: LoggedRun, topic: str) -> list[memoryview]:
    """The first messages of a topic, not many bytes of them; CorruptFileError where not even one can be read."""
    some = list[memoryview]()
    try:
        for message in islice(recording.messages({topic}), _SAMPLES):
            some.append(message.data)
            if sum(map(len, some)) > _SAMPLE_BYTES:
                break
    except CorruptFileError:
        if not some:
            raise
    return some


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """Puts recordings into shards."""

    root: str
    recordings: Sequence[LoggedRun]
    survey: Survey
    plan: TopicPlan
    cut: tuple[float | str | None, float]

    @property
    def schema(self) -> Schema:
        return self.plan.schema

    def shards(self) -> Iterator[ScannedShard]:
        """One for each recording that has rows."""
        ids = unique_ids(self.recordings)
        schema = self.schema
        seen: set[str] = set()
        for number, recording in enumerate(self.recordings):
            parts = self._segments(number)
            if not parts:
                continue
            known = self._known(number, ids[number], parts, schema, seen)
            absent = frozenset(one.name for one in self.plan.reading.columns if self._is_absent(one, number))
            yield self._shard(recording, number, known, absent, parts, schema)

    def _segments(self, number: int) -> list[Segment]:
        segment, gap = self.cut
        recording, marker = self.recordings[number], None
        if isinstance(segment, str) and segment != "gaps":
            if segment not in self.survey.order:
                raise InvalidMetadataError(in_line(f"segment={segment!r}: no such topic is recorded."))
            topic = recording.topics.get(segment)  # which need be no column
            decoder = None if topic is None else _decoder(topic, _some(recording, segment))
            marker = None if isinstance(decoder, str) else decoder
        return segments.segments_of(recording, segment, gap, marker)

    def _is_absent(self, one: TopicColumn, number: int) -> bool:
        decoder = self.survey.decoders[number].get(one.stream.topic)
        if decoder is None or (self.plan.declared is not None and one.name in ours.nulls_of(self.recordings[number])):
            return True
        return not columns.fits(one, decoder.kind)

    def _known(self, number: int, name: str, parts: Sequence[Segment], schema: Schema, seen: set[str]) -> pa.Table:
        recording = self.recordings[number]
        if self.plan.declared is not None:
            table = self._kept(recording)
        else:
            first, last = recording.span or (0, 0)
            starts = [max(part.start, first) if recording.span else None for part in parts]
            stops = [min(part.stop, last) for part in parts]
            lasting = [None if a is None else max(b - a, 0) / 1e9 for a, b in zip(starts, stops, strict=True)]
            table = pa.table(
                {
                    ID: [name if part.number < 0 else f"{name}-{part.number:05d}" for part in parts],
                    RECORDING: [recording.path] * len(parts),
                    START: pa.array(starts, pa.int64()).cast(pa.timestamp("ns", tz="UTC")),
                    DURATION: pa.array(lasting, pa.float64()),
                }
            )
        ids = table[ID].to_pylist()
        again = next((one for one in ids if one in seen), None)
        if again is not None or len(set(ids)) < len(ids):
            raise InvalidMetadataError(
                in_line(f"Two rows would be called {again or ids[0]!r}: {recording.path} and another.")
            )
        seen.update(ids)
        if self.plan.keep is not None:
            table = table.append_column(
                schema.names[-1],
                pa.array([recording.logs[0].blob.location.removeprefix(f"{self.root}/")] * len(parts), pa.string()),
            )
        return table

    def _kept(self, recording: LoggedRun) -> pa.Table:
        """The row that a file of ours was."""
        assert self.plan.declared is not None
        return ours.known_of(recording, self.plan.declared, [one.name for one in self.plan.reading.columns])

    def _shard(
        self,
        recording: LoggedRun,
        number: int,
        known: pa.Table,
        absent: frozenset[str],
        parts: Sequence[Segment],
        schema: Schema,
    ) -> ScannedShard:
        reading = self.plan.reading
        tokens = [[log.blob.location, log.blob.size, log.blob.token] for log in recording.logs]
        described = [str(schema.arrow), repr(reading), sorted(absent), parts, known.to_pylist()]
        digest = hashlib.sha256(json.dumps([tokens, described], default=str).encode()).hexdigest()[:16]
        decoders = dict(self.survey.decoders[number])
        reader = partial(RecordingReader, schema.arrow, known, recording, decoders, absent, reading, tuple(parts))
        return ScannedShard(key=f"{recording.path}#{digest}", rows=len(parts), nbytes=recording.nbytes, reader=reader)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Recordings(ScannedDataset):
    """Scanned recordings: a `Readable`, `Checked`, `SaysMapping`, `HasStorage` and picklable.

    Attributes:
        recordings: The files.
        survey: What was learned of them.
        plan: What becomes of the topics.
        given: Options of their store; never printed.
        outside: Whether references may leave the root.
    """

    recordings: Sequence[LoggedRun]
    survey: Survey
    plan: TopicPlan
    given: Mapping[str, str] | None = field(default=None, repr=False)
    outside: bool = False

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of their store; never printed."""
        return self.given

    @property
    def allow_outside(self) -> bool:
        """Whether references may leave the root."""
        return self.outside

    def mapping(self) -> Sequence[Mapped]:
        """What became of each topic."""
        return columns.mapped(self.plan.reading.columns, self.survey.order, self.plan.reasons)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: files that were not finished, topics that are no columns.

        From depth `rows` on, all bytes are read: chunks that are damaged, messages that are not what their schema says,
        times that go back.
        """
        yield from self.survey.findings
        yield from self._check_topics()
        cut = {shard.key.rpartition("#")[0] for shard in self.parts}
        for path in [one.path for one in self.recordings if one.path not in cut]:
            text = "no row begins in it: the topic that cuts recordings has no message here, or there is none at all"
            yield Finding(code="mcap-no-rows", severity="warning", message=text, location=path)
        if depth == "metadata":
            return
        for recording in self.recordings:
            for log in recording.logs:
                for text in log.check():
                    yield Finding(code="mcap-chunk", severity="error", message=text, location=log.blob.location)
        for shard in self.parts:
            with closing(shard.open()) as reader:
                assert isinstance(reader, RecordingReader)
                for code, column, text in reader.check():
                    severity: Any = "error" if code == "mcap-message" else "warning"
                    yield Finding(code=code, severity=severity, message=text, location=reader.location, column=column)

    def _check_topics(self) -> Iterator[Finding]:
        for mapped in self.mapping():
            if mapped.column is None and mapped.how != "left out as asked":
                text = f"the topic {mapped.source!r}: {mapped.how}"
                yield Finding(code="mcap-topic", severity="note", message=in_line(text), location=self.root)
        for number, recording in enumerate(self.recordings):
            for one in self.plan.reading.columns:
                decoder = self.survey.decoders[number].get(one.stream.topic)
                if decoder is not None and not columns.fits(one, decoder.kind):
                    text = f"{one.stream.topic} has another schema than in the first recording: the cells are null"
                    name, place = one.name, recording.path
                    yield Finding(code="mcap-schema", severity="warning", message=text, location=place, column=name)


__all__ = ["Recordings", "matches", "scan"]

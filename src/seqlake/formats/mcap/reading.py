"""Cells of recordings: messages of some topics between two times, decoded once and put side by side."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, ValidationError, in_line
from seqlake.formats.mcap import clock, pictures
from seqlake.formats.mcap.columns import TopicColumn, TopicStream, stamp_path
from seqlake.formats.mcap.kinds import MISFITS, value_at
from seqlake.shards.scanned import ScannedReader
from seqlake.spec.schema import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats.mcap.clock import Grid, Picked
    from seqlake.formats.mcap.kinds import MessageDecoder
    from seqlake.formats.mcap.logs import LogMessage
    from seqlake.formats.mcap.recordings import LoggedRun
    from seqlake.formats.mcap.segments import Segment
    from seqlake.protocols import Ints

_MOST_CELL = (1 << 31) - 1  # bytes, or numbers, of a list of Arrow's
_KEPT: OrderedDict[tuple[tuple[str, str], ...], dict[str, Ints]] = OrderedDict()  # times by topic, of a few recordings
_MOST_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How messages become cells; picklable.

    Attributes:
        columns: All that are made of messages.
        stamp: Whether a message's time is when it was logged, or what its header says; `step`: steps are numbered, in
            files of ours.
        grid: The clock that all but videos are brought to; None: each topic keeps its own times.
    """

    columns: Sequence[TopicColumn]
    stamp: Literal["log", "header", "step"] = "log"
    grid: Grid | None = None

    def streams(self) -> dict[str, TopicStream]:
        """The columns of times, and whose they are."""
        on_clock = {} if self.grid is None else {one.name for one in self.columns if one.role != "video"}
        return {one.stream.times: one.stream for one in self.columns if one.name not in on_clock}


@dataclass(slots=True)
class _Track:
    """The samples of one stream in one row."""

    times: list[int] = field(default_factory=list)
    stamped_at: list[int] = field(default_factory=list)  # what packets of video say themselves
    codec: str = ""
    values: dict[str, list[Any]] = field(default_factory=dict)


class RecordingReader(ScannedReader):
    """Reads the rows of one recording.

    Args:
        types: The logical Arrow schema.
        known: [rows] columns that need no message.
        recording: Its files.
        decoders: Topic -> its decoder.
        absent: Columns that this recording has not, whose cells are null.
        reading: How cells are made.
        segments: [rows] their times.
    """

    def __init__(
        self,
        types: pa.Schema,
        known: pa.Table,
        recording: LoggedRun,
        decoders: Mapping[str, MessageDecoder],
        absent: frozenset[str],
        reading: Reading,
        segments: Sequence[Segment],
        /,
    ) -> None:
        share = recording.nbytes // max(len(segments), 1)
        sizes = np.full(len(segments), share, np.int64)
        super().__init__(types, len(segments), location=recording.path, sizes=sizes)
        self._known = known
        self._recording = recording
        self._decoders = decoders
        self._absent = absent
        self._reading = reading
        self._segments = segments
        self._columns = {one.name: one for one in reading.columns}
        self._streams = reading.streams()
        self._stamps = {topic: stamp_path(decoder.kind) for topic, decoder in decoders.items()}

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T where times alone say it; None where messages must be decoded."""
        one = self._columns.get(column)
        stream = self._streams.get(column) if one is None else one.stream
        if stream is None or stream.pick or self._reading.grid is not None or column in self._absent:
            return None
        if any(other.role == "video" for other in self._reading.columns if other.stream == stream):
            return None
        if self._reading.stamp != "log" or stream.topic not in self._decoders:
            return None
        times = self._times().get(stream.topic, np.empty(0, np.int64))
        bounds = np.array([[part.start, min(part.stop, (1 << 63) - 1)] for part in self._segments], np.int64).reshape(
            -1, 2
        )
        return np.diff(np.searchsorted(times, bounds), axis=1)[:, 0].astype(np.int64)

    def _times(self) -> dict[str, Ints]:
        key = tuple((log.blob.location, log.blob.token) for log in self._recording.logs)
        if key not in _KEPT:
            listed: dict[str, list[int]] = {}
            for message in self._recording.messages(set(self._decoders)):
                listed.setdefault(message.topic, []).append(message.time)
            _KEPT[key] = {topic: np.sort(np.array(times, np.int64)) for topic, times in listed.items()}
            while len(_KEPT) > _MOST_KEPT:
                _KEPT.popitem(last=False)
        return _KEPT[key]

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some rows.

        Raises:
            CorruptFileError: A message cannot be read, or is not what its column holds.
            ValidationError: A step of the clock has no sample, and `gaps` does not say what then.
        """
        made_of_messages = [name for name in schema.names if name not in self._known.column_names]
        cells: dict[str, list[pa.Array]] = {name: [] for name in made_of_messages}
        if made_of_messages:
            for row in rows.tolist():
                for name, cell in self._row(row, made_of_messages, schema).items():
                    cells[name].append(cell)
        picked = pa.array(rows)
        return [
            _joined(cells[one.name], one.type) if one.name in cells else _whole(self._known[one.name].take(picked))
            for one in schema
        ]

    def _row(self, row: int, names: Sequence[str], schema: pa.Schema) -> dict[str, pa.Array]:
        grid = self._reading.grid
        tracks = self._gathered(self._segments[row], names)
        cells: dict[str, pa.Array] = {}
        on_clock = [name for name in names if name == clock.TIMES or (grid and self._is_on_clock(name))]
        if grid is not None and on_clock:
            cells |= self._resampled(grid, tracks, on_clock, schema, row)
        for name in names:
            if name not in cells:
                cells[name] = self._cell(name, tracks, schema.field(name).type)
        return cells

    def _is_on_clock(self, name: str) -> bool:
        return name in self._columns and self._columns[name].role != "video"

    def _gathered(self, part: Segment, names: Sequence[str]) -> dict[TopicStream, _Track]:
        """The samples of the streams that these columns are made of, each in the order of its times."""
        wanted = {name for name in names if name in self._columns and name not in self._absent}
        streams = {self._columns[name].stream for name in wanted} | {
            self._streams[n] for n in names if n in self._streams
        }
        if self._reading.grid is not None and any(name == clock.TIMES or self._is_on_clock(name) for name in names):
            streams |= {one.stream for one in self._reading.columns if one.role != "video"}
        columns: dict[TopicStream, list[TopicColumn]] = {stream: [] for stream in streams}
        for one in self._reading.columns:
            if one.stream in streams and (one.name in wanted or one.role == "video") and one.name not in self._absent:
                columns[one.stream].append(one)
        tracks = {stream: _Track(values={one.name: [] for one in columns[stream]}) for stream in streams}
        by_topic: dict[str, list[TopicStream]] = {}
        for stream in sorted(streams, key=lambda stream: (stream.topic, stream.names)):
            by_topic.setdefault(stream.topic, []).append(stream)
        grid_topic = self._reading.grid.topic if self._reading.grid is not None else ""
        if grid_topic:
            clock_stream = TopicStream(topic=grid_topic)
            tracks.setdefault(clock_stream, _Track())
            by_topic.setdefault(grid_topic, []).append(clock_stream)
            columns.setdefault(clock_stream, [])
        topics = set(by_topic) & self._decoders.keys()
        for message in self._recording.messages(topics, start=part.start, stop=part.stop):
            try:
                self._add(message, by_topic[message.topic], columns, tracks)
            except CorruptFileError as error:
                raise self._damaged(message, error) from None
        for stream, track in tracks.items():
            _in_order(track, video=any(one.role == "video" for one in columns[stream]))
        return tracks

    def _damaged(self, message: LogMessage, error: CorruptFileError) -> CorruptFileError:
        return CorruptFileError(
            in_line(f"{self.location}: topic {message.topic}, message at {message.time} ns: {error.message}."),
            path=self.location,
            hint=error.hint or f"Leave the topic out: scan(..., without=[{message.topic!r}]); or map what can be read.",
        )

    def _add(
        self,
        message: LogMessage,
        streams: Sequence[TopicStream],
        columns: Mapping[TopicStream, Sequence[TopicColumn]],
        tracks: Mapping[TopicStream, _Track],
    ) -> None:
        decoder = self._decoders[message.topic]
        header = self._reading.stamp == "header"
        plain = all(not columns[stream] and not stream.pick for stream in streams)
        decoded = {} if plain and not header else decoder.decode(message.data)
        stamp = self._stamps[message.topic] if header or decoded else None
        for stream in streams:
            try:
                chosen = stream.chosen(decoded)
                steps = [] if chosen is None else [_step(one, chosen, decoder) for one in columns[stream]]
            except MISFITS as error:
                raise CorruptFileError(f"it is not what {decoder.kind.name} is: {error}") from None
            if chosen is None:
                continue
            where = chosen if stream.pick == "frame" else decoded
            track = tracks[stream]
            stamped_at = _stamp_in(where, stamp, stream) if stamp or stream.pick == "frame" else None
            moment = stamped_at if header and stamped_at is not None else message.time
            track.times.append(message.sequence if self._reading.stamp == "step" else moment)
            for one, step in zip(columns[stream], steps, strict=True):
                track.values[one.name].append(step)
                if one.role == "video":
                    track.stamped_at.append(message.time if stamped_at is None else stamped_at)
                    track.codec = pictures.codec_of(chosen)

    def _cell(self, name: str, tracks: Mapping[TopicStream, _Track], kind: pa.DataType) -> pa.Array:
        """One cell with the times that its topic has."""
        if name in self._streams:
            stream = self._streams[name]
            if self._is_absent(stream):
                return pa.nulls(1, kind)
            track = tracks[stream]
            times = track.times
            for one in self._reading.columns:
                if one.stream == stream and one.role == "video" and one.name in track.values:
                    times = sorted(time for time, _ in self._packets(one, track))
            return _list(pa.array(np.array(times, np.int64)), kind)
        one = self._columns[name]
        if name in self._absent or one.stream.topic not in self._decoders:
            return pa.nulls(1, kind)
        track = tracks[one.stream]
        if one.role == "video":
            return self._movie(one, track)
        return _cell(one, track.values[name], kind, self.location)

    def _packets(self, one: TopicColumn, track: _Track) -> list[tuple[int, bytes]]:
        """(time, bytes) of the packets from the first keyframe on, in the order in which they are decoded."""
        # Stamps that go back while the log goes on are those of frames that are shown in another order.
        turned = any(two < before for before, two in pairwise(track.stamped_at))
        places = np.argsort(np.array(track.times, np.int64), kind="stable").tolist()
        times = track.stamped_at if turned or self._reading.stamp == "step" else track.times
        packets = [(times[place], track.values[one.name][place]) for place in places]
        first = next((n for n, (_, data) in enumerate(packets) if pictures.is_key(track.codec, data)), len(packets))
        return packets[first:]

    def _is_absent(self, stream: TopicStream) -> bool:
        of_stream = [one for one in self._reading.columns if one.stream == stream]
        return stream.topic not in self._decoders or all(one.name in self._absent for one in of_stream)

    def _movie(self, one: TopicColumn, track: _Track) -> pa.Array:
        packets = self._packets(one, track)
        try:
            movie = pictures.movie_of(packets, track.codec) if packets else None
        except CorruptFileError as error:
            raise CorruptFileError(
                f"{self.location}: topic {one.stream.topic}: {error.message}.", path=self.location
            ) from None
        return pa.array([None if movie is None else movie[0]], pa.binary())

    def _resampled(
        self, grid: Grid, tracks: Mapping[TopicStream, _Track], names: Sequence[str], schema: pa.Schema, row: int
    ) -> dict[str, pa.Array]:
        """The cells that stand on the clock."""
        on_clock = [one for one in self._reading.columns if one.role != "video" and not self._is_absent(one.stream)]
        times = {stream: np.array(track.times, np.int64) for stream, track in tracks.items()}
        stamped_at = times.get(TopicStream(topic=grid.topic)) if grid.topic else None
        steps = grid.steps(stamped_at, [times[one.stream] for one in on_clock])
        picked = {one.name: clock.pick(times[one.stream], steps, one.resample, grid.most) for one in on_clock}
        stay = clock.kept([one.valid for one in picked.values()], grid.gaps, len(steps))
        cells = {}
        for name in names:
            if name == clock.TIMES:
                cells[name] = _list(pa.array(steps[stay]), schema.field(name).type)
                continue
            one = self._columns[name]
            if name in self._absent or name not in picked:
                cells[name] = pa.nulls(1, schema.field(name).type)
                continue
            part = _part(picked[name], stay)
            self._refuse_gaps(one, part, steps[stay], grid, row)
            cells[name] = _on_clock(one, tracks[one.stream].values[name], part, schema.field(name).type, self.location)
        return cells

    def _refuse_gaps(self, one: TopicColumn, part: Picked, steps: Ints, grid: Grid, row: int) -> None:
        floats = one.role == "signal" and pa.types.is_floating(_number_type(one.column.logical))
        empty_able = floats or one.role in {"values", "image"}
        if part.valid.all() or (grid.gaps != "error" and empty_able):
            return
        step = int(np.flatnonzero(~part.valid)[0])
        raise ValidationError(
            f"{self.location}, row {row}: column {one.name!r} has no sample for step {step}, at {steps[step]} ns.",
            hint="Give a larger max_gap, gaps='drop' or 'nan', or leave the column out.",
        )

    def check(self) -> Iterator[tuple[str, str, str]]:
        """(code, column, what is wrong) of rows that cannot be read, and of times that do not rise."""
        for stream in sorted({one.stream for one in self._reading.columns}, key=lambda stream: stream.times):
            if stream.topic in self._decoders:
                yield from self._check_times(stream)
        for number in range(len(self._segments)):
            yield from self._check_row(np.array([number], np.int64))
            yield from self._check_keyframes(self._segments[number])

    def _check_keyframes(self, part: Segment) -> Iterator[tuple[str, str, str]]:
        for one in self._reading.columns:
            if one.role != "video" or one.name in self._absent:
                continue
            try:
                track = self._gathered(part, [one.name])[one.stream]
            except CorruptFileError:
                continue  # said where the row is read
            lost = len(track.times) - len(self._packets(one, track))
            if lost:
                text = f"{lost} of {len(track.times)} packets come before the first keyframe: they are left out"
                yield "mcap-keyframe", one.name, text

    def _check_row(self, row: Ints) -> Iterator[tuple[str, str, str]]:
        try:
            self.arrays(self.types, row)
        except (CorruptFileError, ValidationError):  # which columns are they?
            for one in self._reading.columns:
                try:
                    self.arrays(pa.schema([self.types.field(one.name)]), row)
                except (CorruptFileError, ValidationError) as error:
                    yield "mcap-message", one.name, error.message

    def _check_times(self, stream: TopicStream) -> Iterator[tuple[str, str, str]]:
        decoder = self._decoders[stream.topic]
        path = stamp_path(decoder.kind)
        before, turned, count = -1, 0, 0
        try:
            for message in self._recording.messages({stream.topic}):
                time: int | None = message.time
                if self._reading.stamp == "header" or stream.pick:
                    decoded = decoder.decode(message.data)
                    chosen = stream.chosen(decoded)
                    if chosen is None:
                        continue
                    stamped_at = _stamp_in(chosen if stream.pick == "frame" else decoded, path, stream)
                    time = stamped_at if self._reading.stamp == "header" and stamped_at is not None else message.time
                assert time is not None
                turned += time < before
                before, count = max(before, time), count + 1
        except CorruptFileError:
            return  # said where the column is read
        if turned:
            text = (
                f"{turned} of {count} messages of {stream.topic} have earlier times than the one before: put in order"
            )
            yield "mcap-times", stream.times, text


def _stamp_in(message: dict[str, Any], path: str | None, stream: TopicStream) -> int | None:
    if stream.pick == "frame":
        header = message.get("header") or {}
        value = header.get("stamp", message.get("timestamp"))
    else:
        value = value_at(message, path) if path else None
    if value is not None and not 0 <= value < 1 << 63:
        raise CorruptFileError(f"a stamp of {value} nanoseconds")
    return None if value is None else int(value)


def _in_order(track: _Track, *, video: bool) -> None:
    """Samples by their times; packets of a video stay in the order in which they came."""
    if video:
        return
    times = np.array(track.times, np.int64)
    if len(times) > 1 and (np.diff(times) < 0).any():
        order = np.argsort(times, kind="stable").tolist()
        track.times = [track.times[place] for place in order]
        track.values = {name: [values[place] for place in order] for name, values in track.values.items()}


def _step(one: TopicColumn, message: dict[str, Any], decoder: MessageDecoder) -> Any:
    """What one message is in a column."""
    if one.role == "image":
        return pictures.picture_of(decoder.kind, message) or None
    if one.role == "video":
        data = message["data"]
        return data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    if one.role == "cloud":
        assert one.column.type is not None
        return pictures.points_of(decoder.kind, message, one.column.type)
    if one.role == "list":
        if len(one.paths) == 1:
            return np.asarray(value_at(message, one.paths[0])).reshape(-1, 1)
        listed = value_at(message, one.paths[0]) or []
        return np.array([[value_at(item, path) for path in one.paths[1:]] for item in listed], np.float64)
    if one.stream.pick == "joints":
        return _of_joints(one, message)
    values = [value_at(message, path) for path in one.paths]
    return values[0] if one.role == "values" else _signal_step(one, values)


def _of_joints(one: TopicColumn, message: dict[str, Any]) -> Any:
    """The values of the joints that the column has, wherever they stand in the message."""
    names, values = message["name"], value_at(message, one.paths[0])
    if values is None or len(values) != len(names):
        count = 0 if values is None else len(values)
        raise CorruptFileError(f"{len(names)} joints have {count} values of {one.paths[0]}")
    if tuple(names) == one.stream.names:
        return values
    places = {name: place for place, name in enumerate(names)}
    return [values[places[name]] for name in one.stream.names]


def _signal_step(one: TopicColumn, values: list[Any]) -> Any:
    nested = pa.types.is_list(one.column.logical.value_type) or pa.types.is_fixed_size_list(
        one.column.logical.value_type
    )
    flat = [values[0]] if len(values) == 1 else values
    if not nested:
        return _number_or_nan(one, flat[0])
    if len(flat) == 1 and isinstance(flat[0], np.ndarray):
        return flat[0]
    return [
        item
        for value in flat
        for item in (value.tolist() if isinstance(value, np.ndarray) else [_number_or_nan(one, value)])
    ]


def _number_or_nan(one: TopicColumn, value: Any) -> Any:
    if value is not None:
        return value
    if pa.types.is_floating(_number_type(one.column.logical)):
        return np.nan
    raise CorruptFileError(f"the field of column {one.name!r} is absent, where a whole number was expected")


def _number_type(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _cell(one: TopicColumn, values: list[Any], kind: pa.DataType, location: str) -> pa.Array:
    """One cell of all its steps."""
    if one.role == "signal":
        return _signal(one, values, kind, location)
    if one.role in {"cloud", "list"}:
        return _list(_points(values, kind.value_type, location), kind)
    total = sum(len(value) for value in values if isinstance(value, bytes))
    if total > _MOST_CELL:
        raise _too_large(one, total, location)
    try:
        return _list(pa.array(values, kind.value_type), kind)
    except (pa.ArrowException, *MISFITS) as error:
        raise CorruptFileError(f"{location}: column {one.name!r}: {error}.", path=location) from None


def _too_large(one: TopicColumn, total: int, location: str) -> CorruptFileError:
    return CorruptFileError(
        f"{location}: column {one.name!r} has {total:,} bytes in one row, and Arrow holds 2 GiB.",
        path=location,
        hint="Cut the recording into rows: scan(..., segment=60).",
    )


def _signal(one: TopicColumn, values: list[Any], kind: pa.DataType, location: str) -> pa.Array:
    inner = kind.value_type
    number = _number_type(kind)
    dtype = dtype_of(number)
    if inner == number:
        return _list(pa.array(_numbers(values, dtype, one, location), number), kind)
    lengths = np.fromiter((len(value) for value in values), np.int64, len(values))
    if pa.types.is_fixed_size_list(inner):
        if len(lengths) and not (lengths == inner.list_size).all():
            wrong = int(lengths[lengths != inner.list_size][0])
            mapping = {one.name: {"source": one.source, "type": "trajectory"}}
            raise CorruptFileError(
                f"{location}: column {one.name!r} has a message of {wrong} numbers, others have {inner.list_size}.",
                path=location,
                hint=f"Map it without a dimension: map={mapping!r}.",
            )
        flat = _numbers(values, dtype, one, location).reshape(-1)
        return _list(pa.FixedSizeListArray.from_arrays(pa.array(flat, number), type=inner), kind)
    flat = np.concatenate([np.asarray(value, dtype) for value in values]) if values else np.empty(0, dtype)
    return _list(pa.ListArray.from_arrays(_offsets(lengths, location), pa.array(flat, number), type=inner), kind)


def _numbers(values: list[Any], dtype: np.dtype[Any], one: TopicColumn, location: str) -> Any:
    try:
        return np.array(values, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptFileError(f"{location}: column {one.name!r}: {error}.", path=location) from None


def _points(values: list[Any], inner: pa.DataType, location: str) -> pa.Array:
    """[T] lists of points, each a list of numbers."""
    number = _number_type(inner)
    dtype = dtype_of(number)
    lengths = np.fromiter((len(value) for value in values), np.int64, len(values))
    width = next((value.shape[1] for value in values if value.ndim == 2), 0)
    flat = [value.reshape(-1).astype(dtype) for value in values]
    points = pa.array(np.concatenate(flat) if flat else np.empty(0, dtype), number)
    sizes = np.full(int(lengths.sum()), width, np.int64)
    each = pa.ListArray.from_arrays(_offsets(sizes, location), points, type=inner.value_type)
    return pa.ListArray.from_arrays(_offsets(lengths, location), each, type=inner)


def _offsets(lengths: Ints, location: str) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > _MOST_CELL:
        raise CorruptFileError(
            f"{location}: {offsets[-1]:,} numbers are more than an Arrow list holds.",
            path=location,
            hint="Cut the recording into rows: scan(..., segment=60).",
        )
    return pa.array(offsets.astype(np.int32))


def _list(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values.cast(kind.value_type), type=kind)


def _part(picked: Picked, stay: slice) -> Picked:
    weight = None if picked.weight is None else picked.weight[stay]
    return clock.Picked(before=picked.before[stay], after=picked.after[stay], weight=weight, valid=picked.valid[stay])


def _on_clock(one: TopicColumn, values: list[Any], picked: Picked, kind: pa.DataType, location: str) -> pa.Array:
    if one.role != "signal" or not pa.types.is_floating(_number_type(kind)) or _is_ragged(kind):
        taken = [
            values[place] if there else None
            for place, there in zip(picked.before.tolist(), picked.valid.tolist(), strict=True)
        ]
        return _cell(one, taken, kind, location)
    cell = _cell(one, values, kind, location)
    number = _number_type(kind)
    dtype = dtype_of(number)
    inner = kind.value_type
    flat = np.asarray((cell.values.flatten() if inner != number else cell.values).to_numpy(zero_copy_only=False), dtype)
    width = (len(values), inner.list_size) if inner != number else (len(values),)
    sampled = (
        clock.between(flat.reshape(width), picked)
        if values
        else np.full((len(picked.valid), *width[1:]), np.nan, dtype)
    )
    steps = pa.array(np.ascontiguousarray(sampled).reshape(-1), number)
    if inner != number:
        steps = pa.FixedSizeListArray.from_arrays(steps, type=inner)
    return _list(steps, kind)


def _is_ragged(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind.value_type))


def _joined(cells: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(cells) if cells else pa.array([], kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)

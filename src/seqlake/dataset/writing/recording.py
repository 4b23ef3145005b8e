"""Recording: a sequence that comes step by step, kept whole or not at all.

Each take has a transaction of its own. Signals are held in memory, frames are encoded by a thread for each camera
while the robot moves, and the row appears with one commit when the take ends. A process killed in mid-take leaves
nothing but what the next collection removes.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.writing import conforming
from seqlake.dataset.writing.conforming import too_large
from seqlake.dataset.writing.encoding import cell_of, encoded, is_video
from seqlake.dataset.writing.ingest import RowBuffer, prepare
from seqlake.dataset.writing.staging import ShardShape, Staging, clear_errors
from seqlake.dataset.writing.values import as_array, cell
from seqlake.dataset.writing.waiting import IN_MEMORY, OnFull, Spill, WaitingFrames
from seqlake.errors import BacklogFullError, DuplicateSequenceError, SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.spec.alignment import clock_of, on_clock
from seqlake.spec.rules.signals import LARGEST_CELL
from seqlake.versions.messages import saying

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from seqlake.dataset.writing.encoding import Encodings, FramesCell
    from seqlake.dataset.writing.ingest import KnownIds, Widths
    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.protocols import Version
    from seqlake.spec.schema import Column, Schema

_JOINED = 1024


class RecordedColumn:
    """One column of a take."""

    def check(self, value: object, where: str, /, *, time: object = None) -> Any:
        """A step as `add` takes it, or an error that says what was expected; keeps nothing.

        Args:
            value: One step.
            where: Sequence, step and column, for messages.
            time: When it was taken, of a column that names `timestamps`.
        """
        raise NotImplementedError

    def has_room(self, value: Any, /) -> bool:  # noqa: ARG002 - what is held in memory has
        """Whether a checked step can be kept at once."""
        return True

    def add(self, value: Any, /) -> None:
        """Keep a checked step."""
        raise NotImplementedError

    def finish(self) -> object:
        """The value of the cell."""
        raise NotImplementedError

    def stop(self) -> None:
        """Begin to give up; does not wait."""

    def abort(self) -> None:
        """Give up, after `stop`; what was made is removed."""

    def raise_error(self) -> None:
        """Raise what went wrong in the background."""


class Signal(RecordedColumn):
    """Steps of numbers, each checked as it comes."""

    def __init__(self, column: Column, logical: pa.DataType, width: int | None) -> None:
        self._column = column
        self._logical = logical
        self._width = width
        self._nbytes = 0
        self._joined: list[pa.Array] = []
        self._fresh: list[pa.Array] = []

    def check(self, value: object, where: str, /, *, time: object = None) -> pa.Array:  # noqa: ARG002 - it stands in its own column
        """One step, as an Arrow array of one element."""
        column = self._column
        step = None if value is None else as_array(value, where=where)
        wanted = column.shape or ("D",) if column.nested else ()
        if step is None or step.dtype.kind == "O":
            raise SchemaMismatchError(
                f"{where}: expected numbers of shape {_of(wanted)}, found {type(value).__name__}."
            )
        if (
            not column.deep
            and step.shape != wanted
            and not (  # of deep ones `cell` says what is wrong
                column.nested and step.ndim == 1 and column.dim in {None, step.size}
            )
        ):
            raise SchemaMismatchError(f"{where}: expected one step of shape {_of(wanted)}, found {_of(step.shape)}.")
        if column.nested and not column.deep and self._width not in {None, step.size}:
            raise SchemaMismatchError(f"{where}: expected {self._width} numbers as before, found {step.size}.")
        numbers = cell(step[None], column, self._logical, where=where).flatten()
        size = self._nbytes + numbers.nbytes
        if size > LARGEST_CELL:
            raise ValidationError(too_large(where, size))
        return numbers

    def add(self, value: pa.Array, /) -> None:
        """Keep one more step."""
        numbers = value.flatten() if self._column.nested else value
        self._width = len(numbers)
        self._nbytes += numbers.nbytes
        self._fresh.append(value)
        if len(self._fresh) >= _JOINED:  # an Arrow array of one step is mostly overhead
            self._joined.append(pa.concat_arrays(self._fresh))
            self._fresh = []

    def finish(self) -> pa.Array:
        """All steps as one cell."""
        return pa.concat_arrays([*self._joined, *self._fresh])


def _of(shape: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


class Camera(RecordedColumn):
    """Frames of one column, encoded by a thread of its own; `add` waits while no more may wait."""

    def __init__(self, name: str, frames: FramesCell, *, table: Any, spill: Spill) -> None:
        self._frames = frames
        self._table = table
        self._waiting = WaitingFrames(spill)
        self._changed = threading.Condition()
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"seqlake-encode-{name}", daemon=True)

    def check(self, value: object, where: str, /, *, time: object = None) -> Any:
        """A frame that can be encoded."""
        self.raise_error()
        return self._frames.check(value, where=where, time=time)

    def has_room(self, value: Any, /) -> bool:
        """Whether it can wait for the thread."""
        with self._changed:
            return self._waiting.has_room(value)

    def add(self, value: Any, /) -> None:
        """Hand a copy of it to the thread; waits while there is no room."""
        self._frames.settle(value)
        if self._thread.ident is None:
            atexit.register(self._leave)  # a thread that came back from FFmpeg after the end would take Python down
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting.has_room(value) or self._error is not None)
            with clear_errors(self._table):
                self._waiting.put(value)
            self._changed.notify_all()
        self.raise_error()

    def finish(self) -> object:
        """Wait for the thread and finish the file."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self._leave)
        self.raise_error()
        with clear_errors(self._table):
            return self._frames.close()

    def stop(self) -> None:
        """Let the thread end after the frame at hand."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def abort(self) -> None:
        """Wait for the thread and remove what it made."""
        if self._thread.ident is not None:
            self._thread.join()
        atexit.unregister(self._leave)
        self._waiting.clear()
        with suppress(OSError):  # what cannot be removed is swept with the transaction
            self._frames.abort()

    def raise_error(self) -> None:
        """Raise the thread's error here."""
        if self._error is not None:
            raise self._error

    def _leave(self) -> None:
        self.stop()
        self._thread.join()

    def _next(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended or self._stopped)
            frame = self._waiting.get() if self._waiting else None
            self._changed.notify_all()
            return frame

    def _run(self) -> None:
        try:
            with clear_errors(self._table):
                while (frame := self._next()) is not None:
                    self._frames.write(frame)
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()


class Recording:
    """One take; made by `Writer.record`, used in a `with` block.

    At the end of the block the row is written and committed. An exception, Ctrl-C among them, or `discard` drops the
    take whole: no row, no file, no thread is left.

    Frames that come faster than they are encoded wait, in memory and then on disk, so that `add` does not. What happens
    when no more may wait is said by `on_full` of `Dataset.writer`.

    Attributes:
        steps: How many steps were added.
        dropped: How many frames of each camera were dropped, with `on_full="drop"`; empty where none was.
        spilled: Bytes of frames that waited on disk at a time, at most.
        version: The version that has the take; None before its end, and when it was discarded.

    Example:
        ```python
        with ds.writer() as writer, writer.record("ep_002", task="pick") as take:
            for action, frame in robot:
                take.add(action=action, video_cam_high=frame)
            take.set(success=True)
        ```
    """

    def __init__(
        self,
        dataset: OpenDataset,
        ids: KnownIds,
        widths: Widths,
        sequence_id: object,
        columns: Mapping[str, object],
        *,
        shape: ShardShape,
        encoding: Encodings,
        on_full: OnFull,
        spill_bytes: int,
        message: str | None = None,
    ) -> None:
        self._dataset = dataset
        self._schema: Schema = dataset.schema
        self._ids = ids
        self._widths = widths
        self._key = ids.check(sequence_id)
        self._row: dict[str, pa.Array] = {}
        self._given = dict(columns)
        self._encoding = encoding
        self._on_full = on_full
        self._staging = Staging(dataset.table, self._schema, shape=shape)
        self._spill = Spill(spill_bytes, self._staging.scratch)
        self._paces = _Paces(self._schema)
        self._tracks: dict[str, RecordedColumn] = {}
        self._state = "new"
        self.dropped: dict[str, int] = {}
        self._message = message
        self.version: Version | None = None

    def __enter__(self) -> Self:
        if self._state != "new":
            raise SeqlakeError(f"The take {self._key!r} was used already.", hint="Record each take anew.")
        dataset = self._dataset
        if dataset.version.id != -1 and Excerpt.of(dataset).find_ids([self._key])[0] >= 0:
            raise DuplicateSequenceError(
                f"The sequence_id {self._key!r} is in the dataset already.", hint="Give each take an id of its own."
            )
        self._staging.begin()
        self._state = "open"
        try:
            self.set(**self._given)
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state == "discarded":
            return
        try:
            if kind is None:
                self._check_open()
                self._commit()
        finally:
            if self.version is None:
                self.discard()

    def __repr__(self) -> str:
        lost = "".join(f", {count} frames of {name} dropped" for name, count in self.dropped.items())
        return f"<Recording {self._key!r} to {self._dataset.location}: {self._state}, {self.steps} steps{lost}>"

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return self._paces.steps

    @property
    def spilled(self) -> int:
        """Bytes of frames that waited on disk at a time, at most."""
        return self._spill.most

    def add(self, **columns: object) -> None:
        """Add one step.

        The columns on the dataset's clock make a step: the first names them, and every later one must give the same.
        A column with an `fps` of its own, or with time stamps, is given whenever it has a sample; it may come alone,
        and then is no step. Values are copied. Does not wait for an encoder, but with `on_full="wait"`.

        Args:
            **columns: One step of signals, [D] (or the column's shape) or a number; one frame, uint8 [H, W, 3] RGB, of
                videos and images.

        Raises:
            SchemaMismatchError: A column is missing or new, or a value has another shape or kind. Nothing of the step
                is kept, and the take may go on.
            ValidationError: A value does not fit the column's type.
            BacklogFullError: No more frames may wait. Nothing of the step is kept, and the take may go on.
            SeqlakeError, OSError: A frame given before could not be encoded or written; the take is lost.
        """
        self._check_open()
        unknown = conforming.unknown(columns, self._schema)
        where = f"Sequence {self._key!r}, step {self.steps}"
        if unknown:
            raise SchemaMismatchError(f"{where}:\n" + "\n".join(unknown))
        groups = self._paces.check(columns, where)
        if self._on_full == "drop":
            self._paces.check_droppable(groups, where)
        tracks = {name: self._track(name) for name in columns}
        times = {n: columns.get(stamps) for n in columns if (stamps := self._schema[n].timestamps)}
        checked = {n: tracks[n].check(v, f"{where}, column {n!r}", time=times.get(n)) for n, v in columns.items()}
        full = [name for name, value in checked.items() if not tracks[name].has_room(value)]
        if full and self._on_full == "error":
            raise _full(where, full, self._spill)
        if full and self._on_full == "drop":
            groups = {pace: names for pace, names in groups.items() if not names & set(full)}
            checked = {name: checked[name] for names in groups.values() for name in names}
            self.dropped |= {name: self.dropped.get(name, 0) + 1 for name in full}
        self._staging.renew_if_due()
        self._state = "broken"  # until the step is there whole: Ctrl-C may come in between
        self._tracks.update(tracks)
        for name, value in checked.items():
            tracks[name].add(value)
        self._paces.count(groups)
        self._state = "open"

    def set(self, **columns: object) -> None:
        """Set cells that hold for the whole take, as what is known only at its end: a reward, a label.

        Raises:
            SchemaMismatchError: Unknown columns, or values of another kind; nothing is set.
            ValidationError: A value does not fit.
        """
        self._check_open()
        taken = [name for name in columns if name in self._tracks]
        if taken:
            raise SchemaMismatchError(f"Sequence {self._key!r}: {', '.join(taken)} comes step by step already.")
        missing = conforming.unknown(columns, self._schema)
        if missing:
            raise SchemaMismatchError(f"Sequence {self._key!r} does not fit the schema:\n" + "\n".join(missing))
        part = self._schema.select([n for n in self._schema.names if n == self._schema.id or n in columns])
        staging = self._staging
        # A mistake is told now, not when the take has been made.
        with encoded(self._schema, self._key, columns, encoding=self._encoding, scratch=staging.scratch) as cells:
            given = {name: cells[name] for name in columns}
            row = prepare(part, self._key, given, copy=staging.take_in)
            self._widths.check(row, f"Sequence {self._key!r}")
            self._row.update(row)

    def discard(self) -> None:
        """Drop the take; the rest of the `with` block must not add to it."""
        if self.version is not None:
            raise SeqlakeError(f"The take {self._key!r} is committed already.", hint="Delete it with ds.delete().")
        self._state = "discarded"
        for track in self._tracks.values():
            track.stop()
        try:
            for track in self._tracks.values():
                track.abort()
        finally:
            self._tracks = {}
            self._staging.discard()

    def _commit(self) -> None:
        self._state = "broken"
        self._paces.finish(f"Sequence {self._key!r}")
        schema, staging = self._schema, self._staging
        cells: dict[str, object] = {name: track.finish() for name, track in self._tracks.items()}
        if "length" in schema and pa.types.is_integer(schema["length"].arrow) and self.steps:
            cells["length"] = self.steps
        rest = schema.select([n for n in schema.names if n == schema.id or n not in self._row])
        cells = {name: value for name, value in cells.items() if name in rest}
        row = {**self._row, **prepare(rest, self._key, cells, copy=staging.take_in)}
        self._widths.check(row, f"Sequence {self._key!r}")
        buffer = RowBuffer(schema)
        buffer.add({name: row[name] for name in schema.names})
        staging.write(buffer.flush())
        with saying(self._message):
            self.version = staging.commit("append")
        self._state = "committed"
        self._ids.add(self._key)
        self._dataset.refresh()

    def _check_open(self) -> None:
        if self._state == "new":
            raise SeqlakeError("A take begins with `with`.", hint="with writer.record(...) as take: take.add(...)")
        if self._state != "open":
            for track in self._tracks.values():
                track.raise_error()
            raise SeqlakeError(f"The take {self._key!r} is {self._state}.", hint="Record a new one.")

    def _track(self, name: str) -> RecordedColumn:
        if name in self._tracks:
            return self._tracks[name]
        column, staging = self._schema[name], self._staging
        if name in self._row:
            raise SchemaMismatchError(f"Sequence {self._key!r}: {name} was set for the whole take already.")
        if column.category == "temporal":
            return Signal(column, self._schema.arrow.field(name).type, self._widths.of(name))
        if not is_video(column) and column.category != "frames":
            raise SchemaMismatchError(
                f"Sequence {self._key!r}: column {name!r} ({column.category}) has no steps.",
                hint=f"Give it to writer.record(..., {name}=...), or to take.set().",
            )
        frames = cell_of(
            self._schema,
            name,
            encoding=self._encoding.of(name),
            scratch=staging.scratch,
            keep=lambda file: staging.take_in(name, self._key, file),
        )
        return Camera(name, frames, table=self._dataset.table, spill=self._spill)


def _full(where: str, columns: Sequence[str], spill: Spill) -> BacklogFullError:
    return BacklogFullError(
        f"{where}: frames of {', '.join(columns)} come faster than they are encoded; {IN_MEMORY} wait in memory and "
        f"{spill.most / 1e6:.0f} MB on disk, and there is no room for more.",
        hint='A faster encoding, as sl.Encoding(options={"preset": "ultrafast"}) or codec="auto"; more room, as '
        'ds.writer(spill_bytes=...); or on_full="wait" or "drop".',
    )


class _Paces:
    """Which columns come together: those on the clock at every step, the others when they have a sample."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        rate = clock_of(schema).rate
        self._of = {name: self._pace(name, on_clock=on_clock(schema, name, rate)) for name in schema}
        self._seen: dict[str, set[str]] = {}
        self._counts: dict[str, int] = {}

    @property
    def steps(self) -> int:
        return self._counts.get("", 0)

    def check(self, names: Iterable[str], where: str) -> dict[str, set[str]]:
        """The columns of one call by pace, each as complete as before."""
        groups: dict[str, set[str]] = {}
        for name in names:
            groups.setdefault(self._of[name], set()).add(name)
        if not groups:
            raise SchemaMismatchError(f"{where}: expected the columns of a step, found none.")
        for pace, columns_given in groups.items():
            expected = self._seen.get(pace) or columns_given | self._required(pace)
            if columns_given != expected:
                wanted, given = (", ".join(n for n in self._schema if n in some) for some in (expected, columns_given))
                raise SchemaMismatchError(
                    f"{where}: expected the columns {wanted}, found {given}.",
                    hint="Each step of a take has the same columns; one that has a rate of its own declares its fps.",
                )
        return groups

    def check_droppable(self, groups: Mapping[str, set[str]], where: str) -> None:
        """A frame can only be left out where the others keep their times, and no signal goes with it."""
        for pace, names in groups.items():
            cameras = [n for n in names if is_video(self._schema[n]) or self._schema[n].category == "frames"]
            signals = [n for n in names if n not in cameras and n != pace]
            if cameras and (pace not in self._schema or signals):
                shared = pace in self._schema
                problem = f"shares its times with {', '.join(signals)}" if shared else "has no times of its own"
                raise SchemaMismatchError(
                    f"{where}: on_full='drop' would move the later frames of {cameras[0]!r}, which {problem}.",
                    hint=f"Give it a column of times, as in sl.Video(timestamps='{cameras[0]}_times').",
                )

    def count(self, groups: Mapping[str, set[str]]) -> None:
        """The columns of one call were taken."""
        for pace, columns_given in groups.items():
            self._seen[pace] = columns_given
            self._counts[pace] = self._counts.get(pace, 0) + 1

    def finish(self, where: str) -> None:
        """A take has steps."""
        if not self._counts:
            raise ValidationError(f"{where}: expected at least one step, found none.")

    def _required(self, pace: str) -> set[str]:
        columns = (self._schema[name] for name in self._schema if self._of[name] == pace)
        required = {c.name for c in columns if not c.nullable and (c.category in {"temporal", "frames"} or is_video(c))}
        return required | ({pace} if pace in self._schema else set())

    def _pace(self, name: str, *, on_clock: bool) -> str:
        """Nothing for the clock; the column of its times, or its own name."""
        return self._schema[name].timestamps or ("" if on_clock else name)

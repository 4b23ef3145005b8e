"""New datasets of parts of sequences: trimmed to some steps, or cut into pieces; files are cut with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import KeepsFiles, ability
from seqlake.arguments import DATASET, takes
from seqlake.dataset import progress
from seqlake.dataset.reading import streaming
from seqlake.dataset.reading.cells import BatchRow
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reshaping.merging import whole
from seqlake.dataset.reshaping.slicing import Piece, Spans, changes, rate_advice, refuse_counts, sliced, steps_in
from seqlake.dataset.writing.carrying import Carrier
from seqlake.dataset.writing.ingest import Encoded
from seqlake.dataset.writing.parts import RowsPart, rows_of, rows_parts, write_parts
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.errors import DecodeError, SchemaMismatchError, ValidationError
from seqlake.executors import executor_if_asked
from seqlake.files.locations import absolute
from seqlake.media import cut_sound
from seqlake.media.video import cutting
from seqlake.shards.cells import revalued
from seqlake.shares import begun
from seqlake.spec.alignment import on_clock, samples_of
from seqlake.spec.column_types import ColumnType
from seqlake.spec.rules.references import names_its_file
from seqlake.windows.clock import dataset_clock
from seqlake.windows.timestamps import times_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.reading.sequence import SequenceView
    from seqlake.dataset.selection import Selection
    from seqlake.executors import Executor
    from seqlake.spec.alignment import Clock
    from seqlake.spec.schema import Schema

    Borders = Callable[[BatchRow, int], Sequence[tuple[int, int]]]
    from seqlake.dataset.reading.views import MediaView


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """What became of one video or sound of one piece.

    Attributes:
        sequence_id: Of the piece.
        column: The column.
        frames: How many frames (samples) it has; 0: the file ended before the piece began, and the cell is null.
        encoded: How many frames were encoded again; the packets of all others were copied.
        note: Why all of them were, where they were.
    """

    sequence_id: str
    column: str
    frames: int
    encoded: int = 0
    note: str = ""


def cut_columns(schema: Schema, /) -> list[str]:
    """The columns whose files are cut: videos and sounds."""
    return [*videos(schema), *_files(schema, "audio")]


def videos(schema: Schema, /) -> list[str]:
    """The columns of videos."""
    return _files(schema, "video")


def _files(schema: Schema, kind: str) -> list[str]:
    return [name for name in schema if schema[name].medium == kind]


def of_pieces(schema: Schema, /) -> Schema:
    """The schema of pieces: a cut file has one stream, whichever it was in the file before."""
    changed = {}
    for name in cut_columns(schema):
        kind = schema[name].type
        if kind is not None and kind.get("stream") is not None:
            fields = {key: value for key, value in kind.to_json().items() if key != "stream"}
            changed[name] = replace(schema[name], type=ColumnType.from_json(fields))
    return schema.with_columns(changed) if changed else schema


class Cutter:
    """Cuts the files of pieces into a transaction that has begun; several threads may share it.

    Args:
        schema: Of the sequences.
        spans: Which samples belong to which steps.
        staging: Where the clips go.
        storage: Options of the store that the files lie in.
    """

    def __init__(
        self, schema: Schema, spans: Spans, staging: Staging, /, *, storage: Mapping[str, str] | None = None
    ) -> None:
        self._schema = schema
        self._spans = spans
        self._staging = staging
        self._storage = storage

    def cell(self, view: SequenceView, name: str, piece: Piece, /, *, cell: object) -> tuple[object, CutFile | None]:
        """The piece's cell of a column of files, which names a clip of its own, and what became of the file.

        Args:
            view: The sequence.
            name: The column.
            piece: Which steps.
            cell: What the sequence has there: a reference, or a struct with `url`.

        Raises:
            ValidationError: The file is not there, or cannot be cut; the message names sequence and column.
        """
        file: MediaView | None = view[name]
        if file is None:
            return None, None
        where = f"Sequence {view.id!r}, column {name!r}"
        try:
            if file.inline:
                return self._inline(name, file, piece, view, cell=cell)
            reference, cut = self._cut(name, file, piece, view)
        except FileNotFoundError as error:
            raise ValidationError(
                f"{where}: the file {file.reference!r} is not there.",
                hint="Run validate(depth='files') to list all that are missing; leave the rows or the column out.",
            ) from error
        except DecodeError as error:
            raise ValidationError(f"{where}: {error}") from error
        if isinstance(cell, dict) and names_its_file(cell):
            return None if reference is None else {**cell, "path": reference}, cut
        if isinstance(cell, dict) and reference is not None:
            whole = {"url": reference, "first_frame": 0, "num_frames": cut.frames}
            return {**cell, **{key: whole[key] for key in whole if key in cell}}, cut
        return reference, cut

    def _inline(
        self, name: str, file: MediaView, piece: Piece, view: SequenceView, *, cell: object
    ) -> tuple[object, CutFile]:
        """The same where the row holds the file: so does the piece."""
        if piece.whole and (file.column is None or "stream" not in file.column.fields):
            return cell, CutFile(sequence_id=piece.id, column=name, frames=len(file))
        clip, cut = self._clip(name, file, piece, view)
        if clip is None:
            return None, cut
        path = Path(clip.path)
        try:
            data = path.read_bytes()
        finally:
            path.unlink(missing_ok=True)
        return {**cell, "bytes": data} if isinstance(cell, dict) else data, cut

    def _cut(self, name: str, file: MediaView, piece: Piece, view: SequenceView) -> tuple[str | None, CutFile]:
        """The reference of the piece's own file, and what became of it."""
        source, there = file.source(), len(file)
        shared = (
            file.first > 0 or file.count is not None or (file.column is not None and "stream" in file.column.fields)
        )
        if piece.whole and not shared:
            reference = self._staging.copy_in(
                name,
                piece.id,
                file.location,
                storage=self._storage,
                packets=source.index if isinstance(source.index, Mapping) else None,
            )
            return reference, CutFile(sequence_id=piece.id, column=name, frames=there)
        clip, cut = self._clip(name, file, piece, view)
        if clip is None:
            return None, cut
        try:
            return self._staging.take_in(name, piece.id, clip), cut
        finally:
            Path(clip.path).unlink(missing_ok=True)

    def _clip(self, name: str, file: MediaView, piece: Piece, view: SequenceView) -> tuple[Encoded | None, CutFile]:
        """A new file with the piece's own samples, and what became of it."""
        there, sound = len(file), name not in videos(self._schema)
        first, stop = self._samples(name, file, piece) if sound else self._frames(name, file, piece, view)
        first, stop = min(first, there), min(stop, there)
        if first >= stop:
            note = "the file ends before the piece"
            return None, CutFile(sequence_id=piece.id, column=name, frames=0, note=note)
        path = self._staging.scratch()
        try:
            clip = (cut_sound if sound else cutting.cut)(file.source(), path, start=first, stop=stop)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        cut = CutFile(sequence_id=piece.id, column=name, frames=clip.frames, encoded=clip.encoded, note=clip.note)
        return Encoded(path, suffix=clip.suffix, packets=clip.index), cut

    def _frames(self, name: str, file: MediaView, piece: Piece, view: SequenceView) -> tuple[int, int]:
        """At the clock's rate by count; at another, or by time stamps, by the times at which frames are shown."""
        if piece.whole:
            return 0, len(file)
        if self._spans.stamps_of(name) is not None:
            return self._spans.span(name, piece, len(file), view.get)
        if on_clock(self._schema, name, self._spans.clock.rate):
            return piece.start, piece.stop
        rate = self._spans.rate(name)
        first = int(file.numbers_at([piece.start / rate])[0])
        lasting = (piece.stop - piece.start) / rate / file.time_base
        ticks = file.pts - file.pts[first]
        return first, int(np.searchsorted(ticks, -(-lasting.numerator // lasting.denominator), side="left"))

    def _samples(self, name: str, file: MediaView, piece: Piece) -> tuple[int, int]:
        """The samples of a sound within the steps."""
        if piece.whole:
            return 0, len(file)
        clock, rate = self._spans.rate(name), 1 / file.time_base
        return (
            samples_of(piece.start, clock=clock, rate=rate).start,
            samples_of(piece.stop, clock=clock, rate=rate).start,
        )


SOURCE, START = "source_id", "source_start"
"""The columns that say what a piece was cut from: the sequence, and the first of its steps."""

_FINEST = 1_000_000  # seconds are read as the fractions they mean
_THREADS = 8  # that cut files
_DIGITS = 3  # of a piece's number, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """What was made.

    Attributes:
        dataset: The new dataset.
        left_out: Ids of sequences of which nothing is left.
        files: What became of each video and sound.
    """

    dataset: Dataset
    left_out: tuple[str, ...]
    files: tuple[CutFile, ...]

    @property
    def encoded(self) -> int:
        """Frames that had to be encoded again."""
        return sum(file.encoded for file in self.files)

    @property
    def frames(self) -> int:
        """Frames and samples of all files."""
        return sum(file.frames for file in self.files)


@takes(selection=DATASET)
def trim(
    selection: Selection,
    out: str | os.PathLike[str],
    /,
    *,
    start: int | None = None,
    stop: int | None = None,
    seconds: tuple[float | None, float | None] | None = None,
    storage: Mapping[str, str] | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Cuts:
    """Write every sequence cut down to some of its steps, as a dataset of its own.

    Signals are cut exactly. Videos are cut without encoding them where that is possible: packets are copied, and only
    the frames between a cut and the next key frame are encoded again (for H.264; other codecs: the whole clip, where no
    key frame is at the cut). Sounds must be PCM or FLAC. Files of other kinds come along whole.

    Args:
        selection: The sequences; `sequence_id` among its columns.
        out: A new or empty folder or URI.
        start: First step of the clock; negative ones count from the end.
        stop: One past the last; negative ones count from the end.
        seconds: From when to when, in place of steps.
        storage: Options of the new dataset's store.
        on: What writes: `"processes"`, `"ray"` or an `Executor`, each task at most about one shard; by default this
            process alone. `Resumable` and `Share` keep what is finished.
        workers: Tasks at a time of what `on` names.

    Returns:
        The dataset, with the sequences that had no such steps and were left out.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: No id column, or nothing says how many steps a sequence has or how long they are.
        ValidationError: A file is missing, or of a kind that cannot be cut.

    Example:
        ```python
        trim(ds, "data/without-homing", start=40, stop=-20).dataset
        trim(ds.where("task = 'pick'"), "data/first-two-seconds", seconds=(0, 2))
        ```
    """
    if seconds is not None and (start is not None or stop is not None):
        raise ValueError("Give steps (start, stop) or seconds, not both.")
    refuse_counts(selection.schema, "trim")
    clock = dataset_clock(selection)
    if seconds is not None:
        start, stop = (None if one is None else _step(one, clock.rate, selection) for one in seconds)

    borders = _Trimmed(start, stop)
    return _write(
        selection, out, borders, numbered=False, storage=storage, executor=executor_if_asked(on, workers=workers)
    )


@takes(selection=DATASET)
def segment(
    selection: Selection,
    out: str | os.PathLike[str],
    /,
    *,
    by: str | None = None,
    length: int | None = None,
    at: Sequence[int] | None = None,
    seconds: Sequence[float] | None = None,
    min_length: int = 1,
    storage: Mapping[str, str] | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Cuts:
    """Write every sequence as several, one row for each piece; for what happens to files see `trim`.

    Pieces are called `<id>/000`, `<id>/001`, ...; the columns `source_id` and `source_start` say what they were cut
    from. Pieces of pieces name the sequence that was cut first.

    Args:
        selection: The sequences; `sequence_id` among its columns.
        out: A new or empty folder or URI.
        by: Cut where this signal changes: a label of every step, as in `"subtask"`.
        length: Cut into pieces of so many steps; the last may be shorter.
        at: Cut before these steps of the clock.
        seconds: Cut at these times.
        min_length: Leave out pieces of fewer steps.
        storage: Options of the new dataset's store.
        on: What writes: `"processes"`, `"ray"` or an `Executor`, each task at most about one shard; by default this
            process alone. `Resumable` and `Share` keep what is finished.
        workers: Tasks at a time of what `on` names.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: No id column, no such signal, or nothing says how many steps a sequence has.
        ValidationError: A file is missing, or of a kind that cannot be cut.

    Example:
        ```python
        segment(ds, "data/subtasks", by="subtask", min_length=10).dataset
        ```
    """
    if sum(one is not None for one in (by, length, at, seconds)) != 1:
        raise ValueError("Say how to cut by one of by, length, at and seconds.")
    if (length is not None and length < 1) or min_length < 1:
        raise ValueError("A piece has at least one step.")
    refuse_counts(selection.schema, "segment")
    clock = dataset_clock(selection)
    if by is not None:
        _check_label(selection.schema, by, clock.rate)
    fixed = at if seconds is None else [_step(one, clock.rate, selection) for one in seconds]

    borders = _Segmented(by, length, None if fixed is None else tuple(fixed), min_length)
    return _write(
        selection, out, borders, numbered=True, storage=storage, executor=executor_if_asked(on, workers=workers)
    )


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """One piece of each sequence."""

    start: int | None
    stop: int | None

    def __call__(self, _: BatchRow, steps: int, /) -> list[tuple[int, int]]:
        first, last, _step = slice(self.start, self.stop).indices(steps)
        return [(first, last)] if first < last else []


@dataclass(frozen=True, slots=True)
class _Segmented:
    """Pieces by label, of a length, or at steps."""

    by: str | None
    length: int | None
    at: tuple[int, ...] | None
    min_length: int

    def __call__(self, row: BatchRow, steps: int, /) -> list[tuple[int, int]]:
        if self.length is not None:
            inner = list(range(self.length, steps, self.length))
        elif self.by is not None:
            labels = row.value(self.by)
            inner = [] if labels is None else changes(np.asarray(labels))
        else:
            inner = sorted({step + steps if step < 0 else step for step in self.at or ()})
        edges = [0, *(step for step in inner if 0 < step < steps), steps]
        return [(a, b) for a, b in pairwise(edges) if b - a >= self.min_length]


def _step(seconds: float, rate: Fraction | None, source: Selection) -> int:
    """The first step at or after a time."""
    if rate is None:
        raise SchemaMismatchError(
            "Times need a clock, and nothing says how long a step is.",
            hint=f"Give steps, or {rate_advice(source)}",
        )
    at = Fraction(str(seconds)).limit_denominator(_FINEST) * rate
    return -(-at.numerator // at.denominator)


def _check_label(schema: Schema, by: str, rate: Fraction | None) -> None:
    if schema[by].category != "temporal" or not on_clock(schema, by, rate):
        signals = [n for n in schema if schema[n].category == "temporal" and on_clock(schema, n, rate)]
        raise SchemaMismatchError(
            f"Sequences are cut where a signal changes that has one value a step of the clock; {by!r} is none. "
            f"There are {', '.join(signals) or 'none'}.",
            hint="at= cuts at steps, length= into equal pieces.",
        )


def _write(
    selection: Selection,
    out: str | os.PathLike[str],
    borders: Borders,
    *,
    numbered: bool,
    storage: Mapping[str, str] | None,
    executor: Executor | None,
) -> Cuts:
    """The new dataset, or nothing of it."""
    source = Excerpt.of(selection)
    schema = _schema_of_pieces(source.schema, numbered=numbered)
    write = _Cutting(source, schema, borders, dataset_clock(source), numbered)
    identity = {"source": lambda: source.fingerprint, "out": absolute(out), "borders": repr(borders)}
    with (
        begun(executor, "segment" if numbered else "trim", identity) as run,
        whole(out, schema, shape=ShardShape(), storage=storage, run=run) as (dataset, staging),
    ):
        if run is None:
            said = [write.rows(source, staging)]
        else:
            parts = rows_parts(source, staging.shape, files=bool(cut_columns(source.schema)))
            said = write_parts(run, parts, write, staging=staging, table=dataset.table, schema=schema, what="cut")
    left_out = tuple(one for some, _ in said for one in some)
    return Cuts(dataset=dataset, left_out=left_out, files=tuple(one for _, some in said for one in some))


@dataclass(frozen=True, slots=True)
class _Cutting:
    """Writes the pieces of sequences; says which were left out, and what became of files."""

    source: Excerpt
    schema: Schema
    borders: Borders
    clock: Clock
    numbered: bool

    def __call__(self, part: RowsPart, staging: Staging, /) -> tuple[list[str], list[CutFile]]:
        return self.rows(rows_of(self.source, part), staging)

    def rows(self, source: Excerpt, staging: Staging) -> tuple[list[str], list[CutFile]]:
        pieces = _Pieces(source, self.schema, staging, self.borders, clock=self.clock, numbered=self.numbered)
        pieces.write()
        return pieces.left_out, pieces.files


def _schema_of_pieces(schema: Schema, *, numbered: bool) -> Schema:
    pieces = of_pieces(schema)
    if not numbered:
        return pieces
    for name, kind, fits in ((SOURCE, pa.string(), pa.types.is_string), (START, pa.int64(), pa.types.is_integer)):
        if name not in pieces:
            pieces = pieces.with_columns({name: kind})
        elif not fits(pieces[name].arrow):
            raise SchemaMismatchError(
                f"Pieces say in {name!r} what they were cut from; found a column of that name of {pieces[name].arrow}.",
                hint="Rename it first: ds.rename_column(...).",
            )
    return pieces


class _Pieces:
    """Writes the pieces of all sequences, in order."""

    def __init__(
        self,
        source: Excerpt,
        schema: Schema,
        staging: Staging,
        borders: Borders,
        /,
        *,
        clock: Clock,
        numbered: bool,
    ) -> None:
        self._source = source
        self._schema = schema
        self._staging = staging
        self._borders = borders
        self._numbered = numbered
        self._clock = clock
        self._spans = Spans(source, self._clock)
        self._cut = cut_columns(source.schema)
        self._cutter = Cutter(source.schema, self._spans, staging, storage=source.storage)
        self._carrier = Carrier(
            source.schema.without(self._cut),
            root=source.root,
            staging=staging,
            mode="copy",
            storage=source.storage,
            known=ability(source, KeepsFiles),
        )
        self.left_out: list[str] = []
        self.files: list[CutFile] = []

    def write(self) -> None:
        """Write the pieces of every sequence."""
        place = 0
        for shard in progress.over(self._source.shards(), "cut"):
            for batch in streaming.for_writing(shard, self._source.schema.names):
                views = [self._source[place + row] for row in range(batch.num_rows)]
                place += batch.num_rows
                sources = [BatchRow(batch=batch, row=row, schema=self._source.schema) for row in range(len(views))]
                pieces = [
                    piece for row, view in zip(sources, views, strict=True) for piece in self._pieces_of(row, view)
                ]
                rows, start = self._rows(batch, pieces, sources), 0
                for part in self._staging.parts(rows):
                    mine = pieces[start : start + part.num_rows]
                    start += part.num_rows
                    self._staging.write(self._carrier.carry(self._with_files(part, mine, views, batch)))

    def _pieces_of(self, row: BatchRow, view: SequenceView) -> Iterator[Piece]:
        steps = steps_in(row, view, self._clock)
        borders = self._borders(row, steps)
        if not borders:
            self.left_out.append(view.id)
        digits = max(_DIGITS, len(str(len(borders) - 1)))
        for number, (start, stop) in enumerate(borders):
            name = f"{view.id}/{number:0{digits}}" if self._numbered else view.id
            yield Piece(row=row.row, start=start, stop=stop, steps=steps, id=name)

    def _rows(self, batch: pa.RecordBatch, pieces: Sequence[Piece], sources: Sequence[BatchRow]) -> pa.RecordBatch:
        """One row for each piece; files are still those of the sequences."""
        schema, of_rows = self._source.schema, pa.array([piece.row for piece in pieces], pa.int64())
        columns: dict[str, Any] = {}
        for name in schema:
            cells = batch.column(name)
            stamps = self._spans.stamps_of(name) == name  # which need not be a signal
            if schema[name].category in {"temporal", "frames"} or stamps:
                columns[name] = sliced(cells, pieces, self._spans_of(name, pieces, sources))
                columns[name] = self._restamped(name, columns[name], pieces, sources)
            elif schema[name].inline and name in self._cut:
                columns[name] = pa.nulls(len(pieces), cells.type)  # the bytes of each piece are cut later
            else:
                columns[name] = self._spans.later(name, cells.take(of_rows), pieces)
        columns[str(schema.id)] = pa.array([piece.id for piece in pieces], schema.arrow.field(schema.id).type)
        columns |= self._measures(columns, pieces)
        if self._numbered:
            columns |= self._provenance(batch, pieces)
        arrow = self._schema.arrow
        return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in arrow], schema=arrow)

    def _spans_of(self, name: str, pieces: Sequence[Piece], sources: Sequence[BatchRow]) -> list[tuple[int, int]]:
        there = [row.length(name) or 0 for row in sources]
        return [self._spans.span(name, piece, there[piece.row], sources[piece.row].times) for piece in pieces]

    def _restamped(self, name: str, cells: pa.Array, pieces: Sequence[Piece], sources: Sequence[BatchRow]) -> pa.Array:
        """Cells of pieces; those of time stamps count from where the pieces begin."""
        if self._spans.stamps_of(name) != name or not len(cells):
            return cells
        parts = []
        for place, piece in enumerate(pieces):
            stamps = times_in(cells[place])
            if stamps is not None:
                parts.append(self._spans.restamped(name, stamps, piece, sources[piece.row].times))
        return revalued(cells, np.concatenate(parts)) if parts else cells

    def _measures(self, columns: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, pa.Array]:
        """`length` and `duration_seconds` of the pieces, where the sequences say theirs."""
        measured = {}
        steps, seconds = columns.get("length"), columns.get("duration_seconds")
        if steps is not None and pa.types.is_integer(steps.type):
            lengths = pa.array([piece.stop - piece.start for piece in pieces], steps.type)
            measured["length"] = pc.if_else(steps.is_valid(), lengths, pa.scalar(None, steps.type))
        if seconds is not None and pa.types.is_floating(seconds.type):
            lasting = [
                None if old is None else self._lasting(piece, old)
                for piece, old in zip(pieces, seconds.to_pylist(), strict=True)
            ]
            measured["duration_seconds"] = pa.array(lasting, seconds.type)
        return measured

    def _lasting(self, piece: Piece, seconds: float) -> float:
        if piece.whole:
            return seconds
        steps, rate = piece.stop - piece.start, self._clock.rate
        return float(steps / rate) if rate is not None else seconds * steps / piece.steps

    def _provenance(self, batch: pa.RecordBatch, pieces: Sequence[Piece]) -> dict[str, pa.Array]:
        """What each piece was cut from; a piece of a piece names the sequence that was cut first."""
        begun: list[tuple[str, int]] = [(one, 0) for one in batch.column(self._source.schema.id).to_pylist()]
        if SOURCE in batch.schema.names and START in batch.schema.names:
            older = zip(batch.column(SOURCE).to_pylist(), batch.column(START).to_pylist(), begun, strict=True)
            begun = [here if first is None or start is None else (first, start) for first, start, here in older]
        return {
            SOURCE: pa.array([begun[piece.row][0] for piece in pieces], pa.string()),
            START: pa.array([begun[piece.row][1] + piece.start for piece in pieces], pa.int64()),
        }

    def _with_files(
        self, rows: pa.RecordBatch, pieces: Sequence[Piece], views: Sequence[SequenceView], batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        """The rows with clips of their own, which several threads make."""
        if not self._cut or not pieces:
            return rows
        _ = self._staging.transaction  # begun once, and by one thread

        def cut(name: str, piece: Piece) -> tuple[object, CutFile | None]:
            return self._cutter.cell(views[piece.row], name, piece, cell=batch.column(name)[piece.row].as_py())

        pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="seqlake-cut")
        try:
            for name in self._cut:
                cut_cells = list(pool.map(partial(cut, name), pieces))
                self.files += [file for _, file in cut_cells if file is not None]
                field = rows.schema.field(name)
                cells = pa.array([cell for cell, _ in cut_cells], field.type)
                rows = rows.set_column(rows.schema.get_field_index(name), field, cells)
        finally:
            pool.shutdown(cancel_futures=True)  # after an error: let what runs end, and begin nothing more
        return rows

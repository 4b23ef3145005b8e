"""What a worker does with one task: read some rows, call the function, make cells and files of what it gives."""

from __future__ import annotations

import inspect
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.dataset.writing.copying import whole_file
from seqlake.dataset.writing.encoding import Encodings, encoded, is_video
from seqlake.dataset.writing.ingest import Encoded, File, RowBuffer, prepare
from seqlake.errors import ValidationError
from seqlake.resting import at_rest
from seqlake.training.bad_data.damage import is_passing
from seqlake.training.loader import Loader

if TYPE_CHECKING:
    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Schema

Batch = Mapping[str, Any]
Answers = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """Rows of the selection that are computed together: a task.

    Attributes:
        number: Its receipt's.
        rows: [n] places in the selection.
    """

    number: int
    rows: Ints


@dataclass(frozen=True, slots=True)
class Answered:
    """The results of one task.

    Attributes:
        ids: Of its rows.
        table: Ids and results, an Arrow table as a stream; a cell of files has their names in `files`.
        files: Bytes of new files by name.
        failures: (id, error) of rows without a result.
    """

    ids: list[str]
    table: bytes
    files: Mapping[str, bytes]
    failures: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a worker does with each task; picklable.

    Attributes:
        run: A name of its own: a worker keeps what it set up for one run.
        source: The chosen rows.
        function: Of a batch, or a class of such.
        setup: What is made once in each worker.
        schema: All columns of the dataset, those that are computed among them.
        results: The id and the columns to fill.
        read: Columns that are read, without a window.
        window: As the loader takes it.
        batch_size: Of one call.
        encoding: How videos are encoded.
        skip: Failures are listed.
    """

    run: str
    source: Excerpt
    function: Any
    setup: Callable[[], Any] | None
    schema: Schema
    results: Schema
    read: tuple[str, ...]
    window: Any
    batch_size: int
    encoding: Encodings
    skip: bool

    def __call__(self, task: TaskRows, /) -> Answered:
        """The results of some rows."""
        chosen = self._cut(task.rows)
        ids = [text for batch in chosen.batches([str(self.results.id)]) for text in batch.column(0).to_pylist()]
        call = _function_of(self)
        failures: list[tuple[str, str]] = []
        with tempfile.TemporaryDirectory(prefix="seqlake-compute-") as folder:
            cells = _Cells(self, Path(folder))
            # Windows of a sequence come in many batches, batches of whole sequences are done one by one.
            step = len(ids) if self.window is not None else self.batch_size
            for start in range(0, len(ids), max(1, step)):
                some = slice(start, start + step)
                try:
                    cells.take(self._answers(task.rows[some], call))
                except Exception as error:
                    if not self.skip or is_passing(error):
                        stop = min(start + step, len(ids)) - 1
                        error.add_note(f"While computing sequences {ids[start]!r} to {ids[stop]!r}.")
                        raise
                    failures += self._one_by_one(ids[some], task.rows[some], call, cells)
            return Answered(ids, cells.stream(), cells.files, failures)

    def _one_by_one(
        self, ids: Sequence[str], rows: Ints, call: Callable[[Batch], Answers], cells: _Cells
    ) -> list[tuple[str, str]]:
        """What failed of some rows that failed together; those with a result already are left alone."""
        failures = []
        for place, key in enumerate(ids):
            if key in cells.done:
                continue
            try:
                cells.take(self._answers(rows[place : place + 1], call))
            except Exception as failure:
                if is_passing(failure):
                    failure.add_note(f"While computing sequence {key!r}.")
                    raise
                failures.append((key, f"{type(failure).__name__}: {failure}"))
        return failures

    def _cut(self, rows: Ints) -> Excerpt:
        return self.source.cut(rows=rows if self.source.rows is None else self.source.rows[rows])

    def _answers(self, rows: Ints, call: Callable[[Batch], Answers]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(id, values by column) of each row as it is complete."""
        chosen = self._cut(rows)
        return self._sequences(chosen, call) if self.window is None else self._windows(chosen, call)

    def _sequences(self, chosen: Excerpt, call: Callable[[Batch], Answers]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of whole sequences, in one call."""
        views = [chosen[row] for row in range(len(chosen))]
        ids = [str(view.id) for view in views]
        batch = {"sequence_id": ids, **{name: [view[name] for view in views] for name in self.read}}
        answers = self._checked(call(batch), len(ids), "sequences")
        for number, key in enumerate(ids):
            yield key, {name: answers[name][number] for name in answers}

    def _windows(self, chosen: Excerpt, call: Callable[[Batch], Answers]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of windows, which come in the order of the sequences: a step a window, or the value of the only one."""
        under_way, values = "", dict[str, list[Any]]()
        for batch in Loader(chosen, window=self.window, batch_size=self.batch_size, shuffle=False):
            valid = np.asarray(batch.get("valid", np.ones(len(batch["sequence_id"]), bool)))
            answers = self._checked(call(batch), len(valid), "windows")
            for number in np.flatnonzero(valid).tolist():
                key = str(batch["sequence_id"][number])
                if values and key != under_way:
                    yield under_way, self._whole(under_way, values)
                    values = {}
                under_way = key
                for name, some in answers.items():
                    values.setdefault(name, []).append(some[number])
        if values:
            yield under_way, self._whole(under_way, values)

    def _whole(self, key: str, values: Mapping[str, list[Any]]) -> dict[str, Any]:
        """The values of a sequence's windows as its cells."""
        cells: dict[str, Any] = {}
        for name, steps in values.items():
            column = self.results[name]
            if column.category == "temporal":
                cells[name] = np.stack([np.asarray(one).ravel() for one in steps])
            elif column.category == "frames" or is_video(column):
                cells[name] = steps
            elif len(steps) == 1:
                cells[name] = steps[0]
            else:
                raise ValidationError(
                    f"Sequence {key!r}, column {name!r}: expected one window a sequence for a "
                    f"{column.category}, found {len(steps)}.",
                    hint="Make the column a trajectory, or leave window out and read whole sequences.",
                )
        return cells

    def _checked(self, answers: Any, count: int, what: str) -> dict[str, Sequence[Any]]:
        """What the function gave, if it is one value for each."""
        names = [name for name in self.results.names if name != self.results.id]
        if not isinstance(answers, Mapping) or {*answers} != {*names}:
            raise ValidationError(
                f"Expected a mapping with {', '.join(map(repr, names))} from the function, found "
                f"{', '.join(map(repr, answers)) if isinstance(answers, Mapping) else type(answers).__name__}."
            )
        for name in names:
            values = answers[name]
            size = len(values) if isinstance(values, Sized) else type(values).__name__
            if size != count:
                raise ValidationError(f"{name!r}: expected {count} values for as many {what}, found {size}.")
        return {name: _plain(answers[name]) for name in names}


@dataclass(slots=True)
class _Cells:
    """The results of a task as they come.

    Attributes:
        run: Whose.
        folder: Where videos are encoded.
        files: Bytes of new files by name.
        done: Ids of the rows that have a result.
    """

    run: Run
    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _buffer: RowBuffer | None = None

    def take(self, answers: Iterator[tuple[str, dict[str, Any]]]) -> None:
        """Make cells of values, one row after the other; rows before one that fails stay."""
        if self._buffer is None:
            self._buffer = RowBuffer(self.run.results)
        for key, values in answers:
            files: dict[str, bytes] = {}
            row = self._row(key, values, files)
            self.files |= files
            self.done.add(key)
            if self._buffer.add(row):
                self._batches.append(self._buffer.flush())

    def _row(self, key: str, values: Mapping[str, Any], files: dict[str, bytes]) -> dict[str, pa.Array]:
        def keep(column: str, _: str, file: File) -> str:
            suffix = file.suffix if isinstance(file, Encoded) else PurePosixPath(file.location.partition("?")[0]).suffix
            name = f"file-{secrets.token_hex(12)}{suffix}"
            files[name] = whole_file(file.location, where=f"Sequence {key!r}, column {column!r}")
            return name

        with encoded(
            self.run.schema,
            key,
            {**values, **self._times(key, values)},
            encoding=self.run.encoding,
            scratch=lambda: self.folder / secrets.token_hex(8),
        ) as cells:
            return prepare(self.run.results, key, {name: cells[name] for name in values}, copy=keep)

    def _times(self, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """When the frames of new videos were taken, where the dataset says it."""
        videos = [column for name, column in self.run.results.items() if name in values and is_video(column)]
        stamps = {str(column.timestamps) for column in videos if column.timestamps} - values.keys()
        if not stamps:
            return {}
        source = self.run.source
        view = source[int(source.find_ids([key])[0])]
        return {name: view[name] for name in stamps if name in source.schema}

    def stream(self) -> bytes:
        """All of them as an Arrow stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.run.results.arrow) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
            if self._buffer is not None and self._buffer.rows:
                stream.write_batch(self._buffer.flush())
        data: bytes = sink.getvalue().to_pybytes()
        return data


_set_up: dict[str, Callable[[Batch], Answers]] = {}  # run -> what this worker calls; of the last run only
at_rest(_set_up.clear)


def _function_of(run: Run) -> Callable[[Batch], Answers]:
    """The function, with what was set up for it once in this process."""
    if run.run not in _set_up:
        function: Any = run.function() if inspect.isclass(run.function) else run.function
        if run.setup is not None:
            function = partial(_with, function, run.setup())
        _set_up.clear()
        _set_up[run.run] = function
    return _set_up[run.run]


def _with(function: Any, state: Any, batch: Batch) -> Answers:
    answers: Answers = function(batch, state)
    return answers


def _plain(values: Any) -> Any:
    """Tensors as arrays: what a model gives needs no call of the user's."""
    if hasattr(values, "detach"):
        values = values.detach()
    if hasattr(values, "cpu"):
        values = values.cpu()
    return np.asarray(values) if hasattr(values, "__array__") else values

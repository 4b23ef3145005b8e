"""`compute`: a function over the sequences of a dataset, on many processes or machines; its results become columns."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.arguments import DATASET, takes
from seqlake.dataset.changing import evolving
from seqlake.dataset.progress import counting, enabled
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import quoted
from seqlake.dataset.writing.values import cell
from seqlake.errors import SchemaMismatchError, ValidationError, in_line
from seqlake.executors import executor_of
from seqlake.receipts import WorkFolder
from seqlake.shares import begun
from seqlake.training.loader import Loader
from seqlake.versions.messages import saying
from seqlake.windows.spec import Window, as_window

if TYPE_CHECKING:
    import os

    from seqlake.dataset.dataset import Dataset
    from seqlake.executors import Executor
    from seqlake.protocols import Ints, Version
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Schema

_log = logging.getLogger(__name__)

Batch = Mapping[str, Any]
Answers = Mapping[str, Sequence[Any]]

ROWS_PER_TASK = 64
"""Sequences of one task: what is lost at most when a worker is."""

_FEW = 5  # failures that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One sequence that has no result.

    Attributes:
        sequence_id: Its id.
        error: What went wrong, with the class of the error.
    """

    sequence_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What `compute` did; prints itself.

    Attributes:
        version: The version with the results.
        rows: Sequences with a result.
        failures: Those without, where `on_error="skip"`.
    """

    version: Version
    rows: int
    failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.rows} sequences computed, version {self.version.id}."]
        lines += [f"  {in_line(one.sequence_id)}: {in_line(one.error)}" for one in self.failures[:_FEW]]
        if len(self.failures) > _FEW:
            lines.append(f"  and {len(self.failures) - _FEW} failures more")
        return "\n".join(lines)


@takes(dataset=DATASET)
def compute(
    dataset: Dataset,
    function: Callable[..., Answers],
    /,
    columns: Mapping[str, ColumnType | pa.DataType],
    *,
    read: Sequence[str] = (),
    where: str | None = None,
    only: Literal["all", "missing"] = "all",
    window: Window | Mapping[str, Any] | None = None,
    batch_size: int = 32,
    setup: Callable[[], Any] | None = None,
    on: str | Executor = "processes",
    workers: int | None = None,
    num_gpus: float = 0,
    work: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    message: str | None = None,
    progress: bool | None = None,
) -> Computed:
    """Run a function over sequences, or over their windows, and keep what it gives as columns, in one commit.

    Without `window` the function gets batches of whole sequences: a dict with `sequence_id` and each column of `read`,
    a list of as many values (arrays [T, D], scalars, views of media that decode what is asked of them). It gives for
    each new column one value a sequence.

    With `window` it gets batches as `Loader` makes them, in order: arrays [B, W, D], frames uint8 [B, W, H, W, 3],
    masks, `sequence_id`, `start`. It gives one value a window. Of a column that is a trajectory the values of a
    sequence's windows become its steps; any other column takes one window a sequence.

    Scalars and embeddings lie beside the shards, which stay as they are; shards with new trajectories are written anew.
    Sequences that came meanwhile read null: run it again with `only="missing"`.

    Args:
        dataset: Changed in its newest version, which it then shows.
        function: A function of a batch, or a class whose instances are; of a class, each worker makes one. With more
            than one worker it must be importable.
        columns: Name -> column type or Arrow type of scalars, vectors or trajectories; new ones, or of that type.
        read: Columns that the function wants, without a window.
        where: Only of these rows, as in `Selection.where`.
        only: `"missing"`: only of rows where one of the columns is null.
        window: As for `Loader`.
        batch_size: Sequences, or windows, of one batch.
        setup: Called once in each worker; what it gives is the function's second argument.
        on: `"processes"`, `"ray"` or an `Executor`.
        workers: Tasks at a time; as many as there is room for by default.
        num_gpus: GPUs that one task needs, on Ray.
        work: A local folder where results are kept until they are committed: the same call after an interruption
            computes only the rest; functions are told apart by their names. None: a temporary one.
        on_error: `"raise"`, or `"skip"`: sequences that fail have no result and are listed.
        message: What the commit is for.
        progress: Show a bar on stderr; None: where stderr is a terminal.

    Raises:
        SchemaMismatchError: A column that is there has another type, or what is read is not there.
        ValidationError: The function gave something else than one value a sequence (window) for each column.
        SeqlakeError: The work folder is of another run.

    Example:
        ```python
        columns = {"embedding": sl.Embedding(dim=768)}
        sl.compute(ds, embed, columns, read=["cam"], setup=load_model, on="ray", num_gpus=1)
        ```
    """
    if only not in {"all", "missing"} or on_error not in {"raise", "skip"}:
        raise ValueError(f"only is 'all' or 'missing', on_error 'raise' or 'skip'; found {only!r} and {on_error!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, found {batch_size}.")
    dataset.refresh()
    results = _result_schema(dataset, columns, windowed=window is not None)
    asked = None if window is None else as_window(window)
    reads = list(read)
    for name in reads:
        dataset.schema[name]
    chosen = Excerpt.of(_chosen(dataset, list(columns), where, only)).with_id()
    executor = executor_of(on, workers=workers, gpus=num_gpus or None)
    run = _Run(
        run=uuid.uuid4().hex,
        source=chosen,
        function=function,
        setup=setup,
        results=results,
        read=tuple(reads),
        window=asked,
        batch_size=batch_size,
        skip=on_error == "skip",
    )
    temporary = nullcontext(work) if work is not None else tempfile.TemporaryDirectory(prefix="seqlake-compute-")
    with enabled(progress), temporary as place, saying(message):
        folder = WorkFolder(Path(place))
        with folder.locked():
            identity = _identity(run)
            folder.begin(identity)
            with begun(executor, "compute", identity) as by:
                tables, failures = _computed(run, folder, by)
                table = pa.concat_tables([results.arrow.empty_table(), *tables])
                version = evolving.fill(dataset, {name: results[name] for name in columns}, table)
            _clear(folder)
    return Computed(version=version, rows=len(table), failures=tuple(failures))


def _result_schema(dataset: Dataset, columns: Mapping[str, Any], *, windowed: bool) -> Schema:
    """The id and the columns that are computed."""
    key = dataset.schema.id
    if not columns:
        raise ValueError("columns: expected at least one, as in {'success': pa.bool_()}.")
    whole = dataset.schema.with_columns(dict(columns))
    results = whole.select([str(key), *columns])
    for name in columns:
        column = results[name]
        if name in dataset.schema and dataset.schema[name].logical != column.logical:
            raise SchemaMismatchError(
                f"Column {name!r} is there as {dataset.schema[name].logical}; expected {column.logical}.",
                hint="Give the type that it has, or another name.",
            )
        if column.category not in {"scalar", "vector", "temporal"} or column.medium is not None:
            raise SchemaMismatchError(
                f"Column {name!r}: expected a scalar, a vector or a trajectory, found {column}.",
                hint="Files are written by upsert, which takes frames as arrays.",
            )
        if windowed and column.category == "temporal" and column.deep:
            raise SchemaMismatchError(f"Column {name!r}: windows give steps of [D] numbers, found {column}.")
    return results


def _chosen(dataset: Dataset, columns: Sequence[str], where: str | None, only: str) -> Any:
    chosen: Any = dataset if where is None else dataset.where(where)
    there = [name for name in columns if name in dataset.schema]
    if only == "missing" and len(there) == len(columns):
        chosen = chosen.where(" OR ".join(f"{quoted(name)} IS NULL" for name in there))
    return chosen


def _identity(run: _Run) -> dict[str, Any]:
    """What must be equal for results of an earlier run to count."""
    return {
        "format": 1,
        "source": run.source.fingerprint,
        "function": _called(run.function),
        "setup": None if run.setup is None else _called(run.setup),
        "columns": json.dumps(run.results.to_json(), sort_keys=True),
        "read": list(run.read),
        "window": repr(run.window),
        "batch_size": run.batch_size,
        "skip": run.skip,
    }


def _called(function: Any) -> str:
    """A function by its name, with the arguments that were bound to it; its code may change unnoticed."""
    if isinstance(function, partial):
        return f"{_called(function.func)}({function.args!r}, {sorted(function.keywords.items())!r})"
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    return f"{named.__module__}.{named.__qualname__}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Neighbouring rows of the selection: a task."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Answered:
    """The results of one task: an Arrow table as a stream, and what failed."""

    table: bytes
    failures: list[tuple[str, str]]


def _computed(run: _Run, folder: WorkFolder, executor: Executor) -> tuple[list[pa.Table], list[Failure]]:
    """The results of all tasks, those of an earlier run among them, in the order of the rows."""
    count = sum(shard.rows for shard in run.source.shards())
    tasks = [
        _Rows(number, start, min(start + ROWS_PER_TASK, count))
        for number, start in enumerate(range(0, count, ROWS_PER_TASK))
    ]
    receipts = folder.receipts()
    tables = {task.number: _kept(folder, task.number, receipts) for task in tasks}
    left = [task for task in tasks if tables[task.number] is None]
    with counting(count, "compute", unit="sequences") as step:
        step(count - sum(task.stop - task.start for task in left))

        def done(task: _Rows, answered: _Answered) -> None:
            (folder.folder / _name(task.number)).write_bytes(answered.table)
            digest = hashlib.sha256(answered.table).hexdigest()
            folder.keep(task.number, {"sha256": digest, "failures": answered.failures})
            step(task.stop - task.start)

        if left:
            executor.run(run, left, done=done, tick=lambda: None)
    receipts = folder.receipts()
    tables |= {task.number: _kept(folder, task.number, receipts) for task in left}
    failures = [
        Failure(sequence_id=key, error=text) for task in tasks for key, text in receipts[task.number]["failures"]
    ]
    return [table for table in tables.values() if table is not None], failures


def _name(number: int) -> str:
    return f"result-{number:05d}.arrow"


def _kept(folder: WorkFolder, number: int, receipts: Mapping[int, Any]) -> pa.Table | None:
    """The results of a task as they were written, mapped, so that they need no memory; None: it is to be done."""
    if number not in receipts:
        return None
    try:
        data = pa.memory_map(str(folder.folder / _name(number))).read_buffer()
    except (FileNotFoundError, pa.ArrowInvalid):  # none, or empty
        return None
    if hashlib.sha256(data).hexdigest() != receipts[number]["sha256"]:
        return None  # torn by a loss of power
    return pa.ipc.open_stream(data).read_all()


def _clear(folder: WorkFolder) -> None:
    for place in folder.folder.glob("result-*.arrow"):
        place.unlink(missing_ok=True)
    folder.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a worker does with each task; picklable.

    Attributes:
        run: A name of its own: a worker keeps what it set up for one run.
        source: The chosen rows.
        function: Of a batch, or a class of such.
        setup: What is made once in each worker.
        results: The id and the columns to fill.
        read: Columns that are read, without a window.
        window: As the loader takes it.
        batch_size: Of one call.
        skip: Failures are listed.
    """

    run: str
    source: Excerpt
    function: Any
    setup: Callable[[], Any] | None
    results: Schema
    read: tuple[str, ...]
    window: Any
    batch_size: int
    skip: bool

    def __call__(self, task: _Rows, /) -> _Answered:
        """The results of some rows."""
        rows = np.arange(task.start, task.stop, dtype=np.int64)
        call = _function_of(self)
        failures: list[tuple[str, str]] = []
        try:
            table = self._answers(rows, call)
        except Exception as error:
            if not self.skip:
                error.add_note(f"While computing sequences {task.start} to {task.stop - 1} of those chosen.")
                raise
            tables = [self.results.arrow.empty_table()]
            for row in rows:
                try:
                    tables.append(self._answers(rows[row - task.start :][:1], call))
                except Exception as failure:  # noqa: BLE001 - whatever a function raises is listed
                    name = self._cut(rows[row - task.start :][:1])[0].id
                    failures.append((str(name), f"{type(failure).__name__}: {failure}"))
            table = pa.concat_tables(tables)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return _Answered(sink.getvalue().to_pybytes(), failures)

    def _cut(self, rows: Ints) -> Excerpt:
        return self.source.cut(rows=rows if self.source.rows is None else self.source.rows[rows])

    def _answers(self, rows: Ints, call: Callable[[Batch], Answers]) -> pa.Table:
        """The id and the results of some rows, as cells of their columns."""
        chosen = self._cut(rows)
        given = self._sequences(chosen, call) if self.window is None else self._windows(chosen, call)
        key, arrow = str(self.results.id), self.results.arrow
        cells = {key: pa.array(list(given), arrow.field(key).type)}
        for name in self.results.names:
            if name == key:
                continue
            kind = arrow.field(name).type
            column = [
                cell(values[name], self.results[name], kind, where=f"Sequence {of!r}, column {name!r}")
                for of, values in given.items()
            ]
            cells[name] = pa.concat_arrays(column) if column else pa.nulls(0, kind)
        return pa.table(cells, schema=arrow)

    def _sequences(self, chosen: Excerpt, call: Callable[[Batch], Answers]) -> dict[str, dict[str, Any]]:
        """Id -> column -> value, of whole sequences."""
        given: dict[str, dict[str, Any]] = {}
        count = sum(shard.rows for shard in chosen.shards())
        for start in range(0, count, self.batch_size):
            views = [chosen[row] for row in range(start, min(start + self.batch_size, count))]
            ids = [str(view.id) for view in views]
            batch = {"sequence_id": ids, **{name: [view[name] for view in views] for name in self.read}}
            answers = self._checked(call(batch), len(ids), "sequences")
            for number, key in enumerate(ids):
                given[key] = {name: answers[name][number] for name in answers}
        return given

    def _windows(self, chosen: Excerpt, call: Callable[[Batch], Answers]) -> dict[str, dict[str, Any]]:
        """Id -> column -> value: a step a window, or the value of the only one."""
        each: dict[str, dict[str, list[Any]]] = {}
        for batch in Loader(chosen, window=self.window, batch_size=self.batch_size, shuffle=False):
            valid = np.asarray(batch.get("valid", np.ones(len(batch["sequence_id"]), bool)))
            answers = self._checked(call(batch), len(valid), "windows")
            for number in np.flatnonzero(valid).tolist():
                key = str(batch["sequence_id"][number])
                for name, values in answers.items():
                    each.setdefault(key, {}).setdefault(name, []).append(values[number])
        return {key: {name: self._whole(key, name, some) for name, some in of.items()} for key, of in each.items()}

    def _whole(self, key: str, name: str, values: list[Any]) -> Any:
        if self.results[name].category == "temporal":
            return np.stack([np.asarray(one).ravel() for one in values])
        if len(values) != 1:
            raise ValidationError(
                f"Sequence {key!r}, column {name!r}: expected one window a sequence for a "
                f"{self.results[name].category}, found {len(values)}.",
                hint="Make the column a trajectory, or leave window out and read whole sequences.",
            )
        return values[0]

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


_set_up: dict[str, Callable[[Batch], Answers]] = {}  # run -> what this worker calls; of the last run only


def _function_of(run: _Run) -> Callable[[Batch], Answers]:
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

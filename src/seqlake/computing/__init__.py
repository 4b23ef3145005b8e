"""`compute`: a function over the sequences of a dataset, on many processes or machines; its results become columns.

```text
working     what a worker does with one task: rows read, the function called, cells and files made of what it gives
keeping     results in the work folder until the commit, and which of them still count after a rival's
```
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import tempfile
import uuid
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.arguments import DATASET, takes
from seqlake.computing.keeping import Results, base_of, owners_of
from seqlake.computing.working import Run, TaskRows
from seqlake.dataset.changing import evolving
from seqlake.dataset.progress import counting, enabled
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import quoted
from seqlake.dataset.writing.encoding import Encodings, takes_frames
from seqlake.dataset.writing.references import refers
from seqlake.errors import BadDataError, SchemaMismatchError, in_line
from seqlake.executors import executor_of, expect
from seqlake.receipts import WorkFolder
from seqlake.shares import RecordedRun, Resumable, begun, inner_of
from seqlake.spec.stamps import origin_of
from seqlake.training.bad_data.damage import OnError
from seqlake.versions.messages import saying
from seqlake.windows.clock import dataset_clock
from seqlake.windows.spec import Whole, Window, as_window

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from seqlake.computing.keeping import KeptTask
    from seqlake.computing.working import Answered, Answers
    from seqlake.dataset.dataset import Dataset
    from seqlake.executors import Executor
    from seqlake.media import Encoding
    from seqlake.protocols import Ints, Version
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Schema

_log = logging.getLogger(__name__)

ROWS_PER_TASK = 64
"""Sequences of one task at most: what is lost when a worker is."""

ROWS_WITH_FILES = 8
"""The same where new files are made, whose bytes go home with the results."""

# Workers end at about the same time: few sequences are cut into so many tasks, as far as each has a whole batch, and
# the last two batches of any run into parts, the very last into more of them.
_TASKS, _PARTS, _LAST_PARTS = 32, 4, 8
_FEW = 5  # failures that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One sequence that has no result: an entry of the ledger.

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
        failures: The ledger: those without, where `on_error="skip"`.
    """

    version: Version
    rows: int
    failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.rows} sequences computed, version {self.version.id}."]
        if self.failures:
            alike = Counter(in_line(one.error) for one in self.failures)
            first = {in_line(one.error): one.sequence_id for one in reversed(self.failures)}
            lines.append(f"{len(self.failures)} have no result:")
            lines += [f"  {n} times, first {in_line(first[text])}: {text}" for text, n in alike.most_common(_FEW)]
            lines += ["  ..."] if len(alike) > _FEW else []
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
    encoding: Encoding | Mapping[str, Encoding] | None = None,
    on: str | Executor = "processes",
    workers: int | None = None,
    num_gpus: float = 0,
    work: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    budget: float | None = None,
    message: str | None = None,
    progress: bool | None = None,
) -> Computed:
    """Run a function over sequences, or over their windows, and keep what it gives as columns, in one commit.

    Without `window` the function gets batches of whole sequences: a dict with `sequence_id` and each column of `read`,
    a list of as many values (arrays [T, D], scalars, views of media that decode what is asked of them). It gives for
    each new column one value a sequence: what `Writer.add` takes, so that frames [T, H, W, 3], or an iterator of them,
    become a video, and `sl.File(path)` is a file that is copied in.

    With `window` it gets batches as `Loader` makes them, in order: arrays [B, W, D], frames uint8 [B, W, H, W, 3],
    masks, `sequence_id`, `start`. It gives one value a window. Of a trajectory the values of a sequence's windows
    become its steps, of a video and of images one a step its frames; any other column takes one window a sequence.

    Scalars and embeddings lie beside the shards, which stay as they are; shards with new trajectories or files are
    written anew. Sequences that came meanwhile read null: run it again with `only="missing"`.

    Args:
        dataset: Changed in its newest version, which it then shows.
        function: A function of a batch, or a class whose instances are; of a class, each worker makes one. With more
            than one worker it must be importable.
        columns: Name -> column type or Arrow type; new ones, or of that type.
        read: Columns that the function wants, without a window.
        where: Only of these rows, as in `Selection.where`.
        only: `"missing"`: only of rows where one of the columns is null.
        window: As for `Loader`.
        batch_size: Sequences, or windows, of one batch at most.
        setup: Called once in each worker; what it gives is the function's second argument.
        encoding: How new videos are encoded, as for `Dataset.writer`.
        on: `"processes"`, `"ray"` or an `Executor`.
        workers: Tasks at a time; as many as there is room for by default.
        num_gpus: GPUs that one task needs, on Ray.
        work: A local folder where results are kept until they are committed: the same call after an interruption
            computes only the rest; functions are told apart by their names. Results of rows that another commit changed
            meanwhile, in what the function reads, are computed again, those of all others count. None: a temporary one.
        on_error: `"raise"`, or `"skip"`: sequences that fail have no result and stand in the ledger, `failures` of what
            is returned. Broken connections, time-outs, refused access and want of memory raise all the same: they say
            nothing about a sequence.
        budget: Failures that are tolerated with `"skip"`: a count, a fraction of the sequences, or None for any number.
        message: What the commit is for.
        progress: Show a bar on stderr; None: where stderr is a terminal.

    Raises:
        SchemaMismatchError: A column that is there has another type, or what is read is not there.
        ValidationError: The function gave something else than one value a sequence (window) for each column.
        BadDataError: More sequences failed than the budget allows; nothing was committed.
        SeqlakeError: The work folder is of another run.

    Example:
        ```python
        columns = {"embedding": sl.Embedding(dim=768)}
        sl.compute(ds, embed, columns, read=["cam"], setup=load_model, on="ray", num_gpus=1)
        ```
    """
    tolerated = _checked(only, on_error, budget, batch_size)
    dataset.refresh()
    results = _result_schema(dataset, columns, windowed=window is not None)
    reads = list(read)
    for name in reads:
        dataset.schema[name]
    asked = None if window is None else as_window(window)
    executor = executor_of(on, workers=workers, gpus=num_gpus or None)
    if isinstance(executor, Resumable):
        work, executor = executor.folder, inner_of(executor)
    run = Run(
        run=uuid.uuid4().hex,
        source=Excerpt.of(_chosen(dataset, list(columns), where, only)).with_id(),
        function=function,
        setup=setup,
        schema=dataset.schema.with_columns(dict(columns)),
        results=results,
        read=tuple(reads),
        window=_on_clock(asked, dataset),
        batch_size=batch_size,
        encoding=Encodings.given(encoding, results),
        skip=tolerated.tolerant,
    )
    temporary = nullcontext(work) if work is not None else tempfile.TemporaryDirectory(prefix="seqlake-compute-")
    with enabled(progress), temporary as place, saying(message):
        folder = WorkFolder(Path(place))
        with folder.locked():
            held, rows_asked = Results(folder), [where, only]
            folder.begin(_identity(run, asked, dataset))
            over = held.ended()
            if over is not None:
                held.clear()
            if over is not None and over["asked"] == rows_asked:
                failures = [Failure(sequence_id=name, error=error) for name, error in over["failures"]]
                return Computed(version=over["version"], rows=over["rows"], failures=tuple(failures))
            folder.begin(_identity(run, asked, dataset))  # again where that was another run's
            rows = {"source": run.source.fingerprint, "asked": rows_asked}
            with begun(executor, "compute", _identity(run, asked, dataset) | rows) as by:
                tables, files, failures = _computed(run, dataset, held, by, tolerated)
                table = pa.concat_tables([results.arrow.empty_table(), *tables])
                paths = {name: folder.folder.absolute() / name for name in files}
                version = evolving.fill(dataset, {name: results[name] for name in columns}, table, files=paths)
            ledger = [(one.sequence_id, one.error) for one in failures]
            held.end({"version": version, "rows": len(table), "failures": ledger, "asked": rows_asked})
            held.clear()
    return Computed(version=version, rows=len(table), failures=tuple(failures))


def _checked(only: str, on_error: str, budget: float | None, batch_size: int) -> OnError:
    """What is done about failures, where the arguments can be meant."""
    if only not in {"all", "missing"} or on_error not in {"raise", "skip"}:
        raise ValueError(f"only is 'all' or 'missing', on_error 'raise' or 'skip'; found {only!r} and {on_error!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, found {batch_size}.")
    if budget is not None and on_error != "skip":
        raise ValueError("budget: has a meaning with on_error='skip' alone.")
    tolerated = OnError(policy="mask" if on_error == "skip" else "raise", budget=budget)
    tolerated.check()
    return tolerated


def _result_schema(dataset: Dataset, columns: Mapping[str, Any], *, windowed: bool) -> Schema:
    """The id and the columns that are computed."""
    key = dataset.schema.id
    if not columns:
        raise ValueError("columns: expected at least one, as in {'success': pa.bool_()}.")
    if key in columns:
        raise SchemaMismatchError(f"{key!r} is the id of the rows and cannot be computed.")
    whole = dataset.schema.with_columns(dict(columns))
    results = whole.select([str(key), *columns])
    for name in columns:
        column = results[name]
        if name in dataset.schema and dataset.schema[name].logical != column.logical:
            raise SchemaMismatchError(
                f"Column {name!r} is there as {dataset.schema[name].logical}; expected {column.logical}.",
                hint="Give the type that it has, or another name.",
            )
        if column.category == "other":
            raise SchemaMismatchError(
                f"Column {name!r}: expected a scalar, a vector, a trajectory or files, found {column}."
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


def _on_clock(window: Window | Whole | None, dataset: Dataset) -> Window | Whole | None:
    """A window with the clock of the dataset: the first rows of one task might tell another."""
    if not isinstance(window, Window) or window.clock is not None:
        return window
    rate = dataset_clock(dataset, window=window).rate
    return window if rate is None else replace(window, clock=rate)


def _identity(run: Run, window: Window | Whole | None, dataset: Dataset) -> dict[str, Any]:
    """What must be equal for results of an earlier run to count, whatever became of the rows."""
    return {
        "format": 2,
        "dataset": hashlib.sha256(str(dataset.location).encode()).hexdigest(),
        "function": _called(run.function),
        "setup": None if run.setup is None else _called(run.setup),
        "columns": json.dumps(run.results.to_json(), sort_keys=True),
        "read": list(run.read),
        "window": repr(window),
        "batch_size": run.batch_size,
        "encoding": repr(run.encoding),
        "skip": run.skip,
    }


def _inputs(run: Run) -> list[str]:
    """The columns that results depend on, those that say when steps were taken among them.

    Not those that are computed: what they held before the commit is gone after it, and that must not count as a change.
    """
    schema = run.source.source.schema
    names = {*run.read, *(run.window.columns if run.window is not None else ())}
    names = {*schema} if "*" in names else names
    for name in [one for one in names if schema[one].timestamps is not None]:
        origin = origin_of(schema, name)
        names |= {str(schema[name].timestamps), *(origin if isinstance(origin, tuple) else ())}
    if run.window is not None:
        names |= {"length", "duration_seconds"}  # which may tell the clock
    return [name for name in schema if name in names and name not in run.results]


def _called(function: Any) -> str:
    """A function by its name, with the arguments that were bound to it; its code may change unnoticed."""
    if isinstance(function, partial):
        return f"{_called(function.func)}({function.args!r}, {sorted(function.keywords.items())!r})"
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _computed(
    run: Run, dataset: Dataset, held: Results, executor: Executor, tolerated: OnError
) -> tuple[list[pa.Table], list[str], list[Failure]]:
    """The results of all tasks, those of earlier runs among them: tables, the names of new files, the ledger."""
    key = str(run.results.id)
    expect(executor, len(_tasks(np.arange(len(run.source)), run, first=0)))
    ids: list[str] = [text for batch in run.source.batches([key]) for text in batch.column(0).to_pylist()]
    before = list(held.all())
    owners = owners_of(before, dataset, _inputs(run), computed=run.results.names)
    left = np.array([row for row, name in enumerate(ids) if name not in owners], np.int64)
    tasks = _tasks(left, run, first=max(held.numbers(), default=-1) + 1)
    base = base_of(dataset)
    tally = _Tally(tolerated, len(ids))
    tally.add((one.sequence_id, one.error) for one in _ledger(before, owners, set(ids)))
    with counting(len(ids), "compute", unit="sequences") as step:
        step(len(ids) - len(left))

        def done(task: TaskRows, answered: Answered) -> None:
            held.keep(task, answered, base)
            step(len(task.rows))
            tally.add(answered.failures)

        if tasks or isinstance(executor, RecordedRun):
            executor.run(run, tasks, done=done, tick=lambda: None)
    mine = {task.number for task in tasks}
    that_count = mine | {*owners.values()}
    kept = [one for one in held.all(proven=False) if one.number in that_count]
    wanted = {name: owners[name] for name in ids if name in owners}
    wanted |= {name: one.number for one in kept if one.number in mine for name in one.ids}
    files = [name for one in kept for name in one.files]
    return [one.of(wanted) for one in kept], files, _ledger(kept, wanted, set(ids))


@dataclass(slots=True)
class _Tally:
    """Failures so far, against the budget."""

    tolerated: OnError
    sequences: int
    failures: dict[str, str] = field(default_factory=dict)
    over: bool = False

    def add(self, failures: Iterable[tuple[str, str]]) -> None:
        """Enter some; raises once: what is under way then ends, and is kept as well."""
        self.failures.update(failures)
        allowed = self.tolerated.allowed(self.sequences)
        if len(self.failures) <= allowed or self.over:
            return
        self.over = True
        last, error = list(self.failures.items())[-1]
        raise BadDataError(
            f"{len(self.failures)} of {self.sequences} sequences failed so far; budget={self.tolerated.budget!r} "
            f"tolerates {allowed:g}. The last is {last!r}: {error}. Nothing was committed.",
            hint="Mend what is wrong with them, or allow more. With a work folder what is finished is kept.",
        )


def _tasks(left: Ints, run: Run, *, first: int) -> list[TaskRows]:
    """Some rows, in order, a few of them a task."""
    key = run.results.id
    files = any(takes_frames(column) or refers(column) for name, column in run.results.items() if name != key)
    batch = run.batch_size if run.window is None else 1
    most = min(ROWS_WITH_FILES if files else ROWS_PER_TASK, max(batch, -(-len(left) // _TASKS)))
    batch = min(batch, most)
    whole = batch * max(0, len(left) // batch - 2)
    last = min(whole + batch, len(left))
    starts = [*range(0, whole, most), *range(whole, last, -(-batch // _PARTS))]
    starts += range(last, len(left), -(-batch // _LAST_PARTS))
    return [TaskRows(first + n, left[a:b]) for n, (a, b) in enumerate(pairwise([*starts, len(left)]))]


def _ledger(kept: Sequence[KeptTask], owners: Mapping[str, int], ids: Collection[str]) -> list[Failure]:
    """What failed of these rows."""
    return [
        Failure(sequence_id=name, error=error)
        for one in kept
        for name, error in one.failures
        if name in ids and owners.get(name) == one.number
    ]

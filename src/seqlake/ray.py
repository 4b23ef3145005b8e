"""Ray Data: sequences or windows as a `ray.data.Dataset`, and one written as a Mixtrain dataset, by one commit."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.abilities import ability
from seqlake.conversion.parts import conformed
from seqlake.dataset.opening import create, nothing_left
from seqlake.dataset.opening import open as open_dataset
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.writing.sink import TableSink
from seqlake.dataset.writing.values import cell
from seqlake.errors import CommitUnknownError, DatasetNotFoundError, SchemaMismatchError, SeqlakeError
from seqlake.files.locations import absolute
from seqlake.plugins import require
from seqlake.protocols import Ints, Snapshot
from seqlake.shards.rows import Rows
from seqlake.spec.schema import Schema
from seqlake.training.loader import Loader
from seqlake.training.survey import survey
from seqlake.windows.spec import Whole, Window, as_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Readable, Shard
    from seqlake.spec.schema import Column
    from seqlake.training.survey import WindowSurvey

BYTES_PER_TASK = 128 << 20
"""Bytes in memory of the rows or windows that one task of Ray reads, about."""

_LEAST = 1 << 20  # smaller tasks are not made, whatever Ray asks for
_ENOUGH = 16 << 20  # what costs Ray no more to schedule than to read
_TASKS_PER_CORE = 4
_SMALL = 16  # bytes of a small cell
_FRAME = 1 << 20  # bytes of a frame whose size nothing declares
_ROW = "__seqlake_row__"
_STUB = "__bsp_stub"  # Ray's own name for a column of rows that are only counted: without any it sees none
_RENEWED = 1200.0  # seconds between two signs of life of a write


def read(
    source: Readable,
    /,
    *,
    columns: Sequence[str] | None = None,
    window: Window | Mapping[str, Any] | None = None,
    batch_size: int = 64,
) -> Any:
    """Rows, or windows, of a dataset as a `ray.data.Dataset`.

    Rows are Arrow tables in the schema's logical types, a block at most some 32 MiB. Columns that Ray does not need are
    not read, and of rows that its filters (`filter(expr=...)`) leave out only the columns that these name. Filter
    before where you can: `ds.where(...)` leaves out whole shards by their bounds. Windows come in the order of the
    source; shuffle them with Ray's own means, or train with `Loader`, whose order does not depend on the machines.

    A task reads neighbouring rows, or the windows of these, of 16 to 128 MiB in memory, so far as the index and the
    schema tell it: some tasks for each core. How many rows there are is known before anything is read.

    Args:
        source: A dataset, a selection, a scanned format.
        columns: Names; all by default.
        window: As for `Loader`: each row is a window, arrays [W, D] and frames, with `sequence_id` and `start`.
        batch_size: Windows of one block, at most; fewer where they would have more than 128 MiB.

    Returns:
        A `ray.data.Dataset`, which has read nothing yet.

    Raises:
        MissingDependencyError: Ray is not installed.
        SchemaMismatchError: No such column.

    Example:
        ```python
        seqlake.ray.read(ds.where("task = 'pick'"), columns=["sequence_id", "action"]).map_batches(norms).to_pandas()
        ```
    """
    data = require("ray.data", extra="ray")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, found {batch_size}.")
    names = [columns] if isinstance(columns, str) else columns
    for name in names or ():
        source.schema[name]
    excerpt = Excerpt.of(source)
    excerpt = excerpt if names is None else excerpt.cut(columns=list(names))
    if window is None:
        return _planned_read(data, _Rows(excerpt))
    chosen = excerpt.with_id()
    asked = as_window(window)
    if isinstance(asked, Whole):
        if asked.packed:
            raise ValueError("A block of Ray has rows, so sequences cannot lie end to end; leave packed=True out.")
        asked = asked.of(list(excerpt.schema.names))
    return _planned_read(data, _Windows(chosen, survey(chosen, asked), batch_size))


def _planned_read(data: Any, content: _Rows | _Windows) -> Any:
    """With so many tasks that each has enough to do: left to itself Ray makes some of each megabyte.

    It also cuts the blocks of fewer tasks than it wants in pieces, which takes longer than to read them.
    """
    source = _source(data, content)
    sizes = content.nbytes(content.names)
    each = min(max(int(sizes.sum()) // _tasks_at_least(), _ENOUGH), BYTES_PER_TASK)
    tasks = min(-(-int(sizes.sum()) // each), len(_ranges(sizes, each)))
    return data.read_datasource(source, override_num_blocks=max(1, tasks))


def _tasks_at_least() -> int:
    """Some for each core that there is, so that none waits long for the last."""
    ray = require("ray", extra="ray")
    cores = ray.cluster_resources().get("CPU", 1) if ray.is_initialized() else os.cpu_count() or 1
    return _TASKS_PER_CORE * max(1, int(cores))


def write(
    rows: Any,
    location: str | os.PathLike[str],
    schema: Schema | Mapping[str, Any] | None = None,
    /,
    *,
    root: str | os.PathLike[str] | None = None,
    storage: Mapping[str, str] | None = None,
) -> Dataset:
    """Write the rows of a `ray.data.Dataset`: each task stages shards, one commit shows them all.

    Args:
        rows: With the column `sequence_id` and those of the schema; others are left out.
        location: A dataset, which is appended to; or a new place.
        schema: Of a new dataset.
        root: What relative file references of the rows resolve against, as the root of the dataset that they were read
            of; by default the folder that this process is in. The files are copied in.
        storage: Options of its store.

    Returns:
        The dataset with the new rows. After a failure there are none, and no dataset that was not there before.

    Raises:
        SchemaMismatchError: No schema for a new dataset, or a column is missing.
        ValidationError: A value does not fit its column.

    Example:
        ```python
        seqlake.ray.write(ray_dataset, "data/clips", {"action": sl.Trajectory(dim=7), "task": pa.string()})
        ```
    """
    data = require("ray.data", extra="ray")
    new = not _is_there(location, storage)
    if new and schema is None:
        raise SchemaMismatchError("A new dataset needs its columns: write(rows, location, schema).")
    with nothing_left(location, storage=storage) if new else nullcontext():
        if new:
            columns = schema if isinstance(schema, Schema) else Schema(dict(schema or {}))
            dataset = create(location, columns, storage=storage)
        else:
            dataset = open_dataset(location, storage=storage)
        sink = TableSink(table=dataset.table, schema=dataset.schema, transaction=dataset.table.begin(), guarded=True)
        try:
            with _alive(sink):
                rows.write_datasink(_sink(data, sink, absolute(os.getcwd() if root is None else root)))  # noqa: PTH109 - a text
        except CommitUnknownError:
            raise  # it may have been made
        except BaseException:
            sink.discard()
            raise
    dataset.refresh()
    return dataset


def _is_there(location: str | os.PathLike[str], storage: Mapping[str, str] | None) -> bool:
    try:
        open_dataset(location, storage=storage)
    except DatasetNotFoundError:
        return False
    return True


def _ranges(nbytes: Ints, most: int) -> list[tuple[int, int]]:
    """Neighbouring rows of at most so many bytes, one row at least: the tasks."""
    ends = np.cumsum(nbytes)
    ranges, start = list[tuple[int, int]](), 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        ranges.append((start, stop))
        start = stop
    return ranges


def _cell_bytes(column: Column) -> int | None:
    """Bytes of one step, or of the only value, in memory; None where nothing declares them."""
    if column.category == "temporal":
        return None if column.shape is None or column.dtype is None else prod(column.shape) * column.dtype.itemsize
    if column.category == "vector":
        return None if column.dim is None or column.dtype is None else column.dim * column.dtype.itemsize
    return _SMALL if column.category in {"scalar", "file"} and not column.inline else None


@dataclass(frozen=True)
class _Rows:
    """Rows as Arrow tables."""

    excerpt: Excerpt

    @property
    def names(self) -> list[str]:
        return list(self.excerpt.schema.names)

    @cached_property
    def shards(self) -> Sequence[Shard]:
        return self.excerpt.shards()

    @cached_property
    def starts(self) -> Ints:
        """[shards + 1] the first row of each, then the number of rows."""
        return np.cumsum([0, *(shard.rows for shard in self.shards)], dtype=np.int64)

    def counts(self) -> Ints:
        """[rows] what each gives: itself."""
        return np.ones(len(self.excerpt), np.int64)

    def nbytes(self, columns: Sequence[str]) -> Ints:
        """[rows] memory of these columns, about: by the index where there is one, else as the shards are stored."""
        excerpt, shards = self.excerpt, self.shards
        each_stored = np.array([shard.nbytes // max(1, shard.rows) for shard in shards], np.int64)
        stored = np.repeat(each_stored, np.diff(self.starts))
        indexed = ability(excerpt.source, Snapshot) is not None
        total = np.zeros(len(excerpt), np.int64)
        for name in columns:
            column = excerpt.schema[name]
            each = _cell_bytes(column)
            steps = column.category == "temporal"
            if each is None or (steps and not indexed):
                return np.asarray(np.maximum(total, stored), np.int64)
            total += each * np.maximum(excerpt.lengths(name), 0) if steps else each
        return total

    def arrow(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.excerpt.schema.arrow.field(name) for name in columns])

    def task(
        self, start: int, stop: int, columns: Sequence[str], predicate: Any, _: list[Any]
    ) -> Callable[[], Iterator[Any]]:
        shards, starts = self.shards, self.starts
        first, last = np.searchsorted(starts, [start, stop - 1], side="right") - 1
        pieces = [
            (shards[n], max(start - int(starts[n]), 0), min(stop - int(starts[n]), shards[n].rows))
            for n in range(int(first), int(last) + 1)
            if shards[n].rows
        ]
        return partial(_tables, pieces, list(columns), predicate)


def _tables(pieces: Sequence[tuple[Shard, int, int]], columns: Sequence[str], predicate: Any) -> Iterator[pa.Table]:
    """Some rows of some shards; of rows that a predicate leaves out only the columns that it names are read."""
    condition = None if predicate is None else predicate.to_pyarrow()
    for shard, start, stop in pieces:
        some = shard if stop - start == shard.rows else Rows(shard, np.arange(start, stop, dtype=np.int64))
        if condition is not None:
            rows = _kept(some, sorted(_named(predicate)), condition)
            some = some if len(rows) == some.rows else Rows(some, rows)
        if some.rows:
            yield from _read(some, columns)


def _kept(shard: Shard, tested: Sequence[str], condition: Any) -> Ints:
    """The rows of a shard that a condition lets pass."""
    kept, first = [np.empty(0, np.int64)], 0
    for table in _read(shard, tested):
        numbers = pa.array(np.arange(first, first + len(table), dtype=np.int64))
        kept.append(table.append_column(_ROW, numbers).filter(condition).column(_ROW).to_numpy())
        first += len(table)
    return np.concatenate(kept)


def _read(shard: Shard, columns: Sequence[str]) -> Iterator[pa.Table]:
    if not columns:
        yield pa.table({_STUB: pa.nulls(shard.rows)})
        return
    for batch in one_shard(shard, columns):
        yield pa.Table.from_batches([batch])


def _named(expression: Any) -> set[str]:
    """The columns that an expression of Ray names, whatever it is made of."""
    if type(expression).__name__ == "ColumnExpr":
        return {str(expression.name)}
    parts = expression if isinstance(expression, list | tuple) else ()
    if is_dataclass(expression):
        parts = list(vars(expression).values())
    return {name for one in parts for name in _named(one)}


@dataclass(frozen=True)
class _Windows:
    """Windows as a loader makes them; a row may have many, or none."""

    excerpt: Excerpt
    survey: WindowSurvey
    batch_size: int

    names: Sequence[str] = ()

    @property
    def window_bytes(self) -> int:
        """Of one window, about: frames of no declared size are taken for such of a megabyte."""
        survey = self.survey
        unknown = [track for track in survey.framed if not survey.step_bytes.get(track.column)]
        return max(_SMALL, survey.sample_bytes + sum(track.width for track in unknown) * _FRAME)

    def counts(self) -> Ints:
        """[rows] windows of each."""
        return self.survey.axis.row_windows.astype(np.int64)

    def nbytes(self, _: Sequence[str]) -> Ints:
        """[rows] of the windows of each."""
        if isinstance(self.survey.window, Window):
            return self.counts() * self.window_bytes
        return _Rows(self.excerpt).nbytes([name for name in self.survey.window.columns if name in self.excerpt.schema])

    def arrow(self, _: Sequence[str]) -> None:
        """Ray asks the first batch."""

    def task(
        self, start: int, stop: int, _: Sequence[str], predicate: Any, shared: list[Any]
    ) -> Callable[[], Iterator[Any]]:
        import ray

        assert predicate is None, "windows are filtered by Ray"
        if not shared:  # the whole snapshot, once for the cluster and not once a task
            shared.append(ray.put(self.excerpt))
        most = self.batch_size
        if isinstance(self.survey.window, Window):
            most = min(most, max(1, BYTES_PER_TASK // self.window_bytes))
        return partial(_batches, start, stop, self.window, most, shared[0])

    @property
    def window(self) -> Window | Whole:
        """With the clock of all rows: those of one task might tell another."""
        window, rate = self.survey.window, self.survey.clock.rate
        return replace(window, clock=rate) if isinstance(window, Window) and rate is not None else window


def _batches(start: int, stop: int, window: Window | Whole, batch_size: int, excerpt: Any) -> Iterator[Any]:
    import ray
    from ray.data.block import BlockAccessor

    whole = ray.get(excerpt)
    rows = np.arange(start, stop, dtype=np.int64)
    chosen = whole.cut(rows=rows if whole.rows is None else whole.rows[rows])
    for batch in Loader(chosen, window=window, batch_size=batch_size, shuffle=False):
        valid = batch.pop("valid", slice(None))  # samples of formats have neither this nor an id
        yield BlockAccessor.batch_to_block({name: np.asarray(values)[valid] for name, values in batch.items()})


def _source(data: Any, content: _Rows | _Windows) -> Any:
    """A `Datasource` of rows or windows."""
    rows = isinstance(content, _Rows)

    class Sequences(data.Datasource):  # type: ignore[misc]
        """Rows, or windows, of a dataset."""

        def __init__(self) -> None:
            super().__init__()
            self._projection_map = None  # the base class reads it and does not set it
            self._sizes: dict[tuple[str, ...], Ints] = {}
            self._shared: list[Any] = []

        def supports_projection_pushdown(self) -> bool:
            return rows

        def supports_predicate_pushdown(self) -> bool:
            return rows

        def estimate_inmemory_data_size(self) -> int:
            return int(self._nbytes(self._columns()).sum())

        def get_read_tasks(
            self,
            parallelism: int,
            per_task_row_limit: int | None = None,
            data_context: Any = None,  # noqa: ARG002 - as Ray calls it
        ) -> list[Any]:
            columns, predicate = self._columns(), self.get_current_predicate()
            planned = _planned(content, self._nbytes(columns), parallelism)
            return [
                data.ReadTask(
                    content.task(start, stop, columns, predicate, self._shared),
                    _metadata(count if predicate is None else None, size),  # Ray believes a count
                    schema=content.arrow(columns),
                    per_task_row_limit=per_task_row_limit,
                )
                for start, stop, count, size in planned
            ]

        def _columns(self) -> list[str]:
            wanted = self._get_data_columns()
            return [name for name in content.names if wanted is None or name in set(wanted)]

        def _nbytes(self, columns: Sequence[str]) -> Ints:
            if tuple(columns) not in self._sizes:  # Ray asks several times
                self._sizes[tuple(columns)] = content.nbytes(columns)
            return self._sizes[tuple(columns)]

    return Sequences()


def _planned(content: _Rows | _Windows, sizes: Ints, parallelism: int) -> list[tuple[int, int, int, int]]:
    """First and last row, count and bytes of each task."""
    counts = content.counts()
    most = min(BYTES_PER_TASK, max(int(sizes.sum()) // max(1, parallelism), _LEAST))
    return [
        (start, stop, int(counts[start:stop].sum()), int(sizes[start:stop].sum()))
        for start, stop in _ranges(sizes, most)
    ]


def _metadata(count: int | None, nbytes: int) -> Any:
    from ray.data.block import BlockMetadata

    return BlockMetadata(num_rows=count, size_bytes=nbytes, exec_stats=None, input_files=None)


def _sink(data: Any, sink: TableSink, root: str) -> Any:
    """A `Datasink` whose tasks stage parts."""

    class Sequences(data.Datasink):  # type: ignore[misc]
        """Rows that become shards of one commit."""

        def write(self, blocks: Iterable[Any], ctx: Any) -> dict[str, Any]:
            return sink.write(ctx.task_idx, _conformed(blocks, sink.schema), root=root)

        def on_write_complete(self, write_result: Any) -> None:
            receipts = sorted(write_result.write_returns, key=lambda receipt: int(receipt["part"]))
            sink.commit([{**receipt, "part": number} for number, receipt in enumerate(receipts)])

    return Sequences()


@contextmanager
def _alive(sink: TableSink) -> Iterator[None]:
    """Within the block the transaction is renewed: a write of hours is many tasks, none of which lasts one."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWED):
            with suppress(OSError, SeqlakeError):  # the next one may succeed; a commit that comes too late says so
                sink.renew()

    thread = threading.Thread(target=renew, name="seqlake-renew", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _conformed(blocks: Iterable[Any], schema: Schema) -> Iterator[pa.RecordBatch]:
    from ray.data.block import BlockAccessor

    for block in blocks:
        table = BlockAccessor.for_block(block).to_arrow()
        missing = [name for name in schema.names if name not in table.column_names and not schema[name].nullable]
        if missing:
            raise SchemaMismatchError(f"Expected the columns {', '.join(schema.names)}; {missing[0]!r} is missing.")
        arrays = [
            _plain(table.column(name), schema[name], schema.arrow.field(name).type)
            if name in table.column_names
            else pa.nulls(len(table), schema[name].logical)
            for name in schema.names
        ]
        for batch in pa.table(arrays, names=list(schema.names)).combine_chunks().to_batches():
            yield conformed(batch, schema)


def _plain(values: pa.ChunkedArray, column: Column, logical: pa.DataType) -> pa.ChunkedArray:
    """Ray's tensors as cells of a column."""
    if not isinstance(values.type, pa.ExtensionType):
        return values
    cells = [one for chunk in values.chunks for one in chunk.to_numpy(zero_copy_only=False)]
    where = f"Column {column.name!r}"
    return pa.chunked_array([cell(one, column, logical, where=where) for one in cells], logical)

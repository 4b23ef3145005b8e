"""Ray Data: sequences or windows as a `ray.data.Dataset`, and one written as a Mixtrain dataset, by one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from seqlake.conversion.parts import conformed
from seqlake.dataset.opening import create, nothing_left
from seqlake.dataset.opening import open as open_dataset
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.writing.sink import TableSink
from seqlake.errors import CommitUnknownError, DatasetNotFoundError, SchemaMismatchError
from seqlake.files.locations import absolute
from seqlake.plugins import require
from seqlake.shards.rows import Rows
from seqlake.spec.schema import Schema
from seqlake.training.loader import Loader
from seqlake.windows.spec import as_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.windows.spec import Window

BYTES_PER_TASK = 128 << 20
"""Stored bytes of the rows that one task of Ray reads; a shard is cut where it has more."""


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
    not read. Filter before: `ds.where(...)` leaves out shards by their bounds, a filter of Ray's reads all of them.
    Windows come in the order of the source; shuffle them with Ray's own means, or train with `Loader`, whose order does
    not depend on the machines.

    Args:
        source: A dataset, a selection, a scanned format.
        columns: Names; all by default.
        window: As for `Loader`: each row is a window, arrays [W, D] and frames, with `sequence_id` and `start`.
        batch_size: Windows of one block.

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
    excerpt = Excerpt.of(source)
    excerpt = excerpt if columns is None else excerpt.cut(columns=list(columns))
    for name in columns or ():
        source.schema[name]
    tasks = _rows(excerpt) if window is None else _windows(excerpt, as_window(window), batch_size)
    return data.read_datasource(_source(data, excerpt, tasks, projected=window is None))


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
        sink = TableSink(table=dataset.table, schema=dataset.schema, transaction=dataset.table.begin())
        try:
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


_Task: TypeAlias = tuple[Callable[[Sequence[str]], Iterator[Any]], int | None, int]
"""What reads some rows, given the names of columns; how many, where it is known; their stored bytes."""


def _rows(excerpt: Excerpt) -> list[_Task]:
    tasks = list[_Task]()
    for shard in excerpt.shards():
        each = max(1, shard.nbytes // max(1, shard.rows))
        most = max(1, BYTES_PER_TASK // each)
        for start in range(0, shard.rows, most):
            stop = min(start + most, shard.rows)
            tasks.append((partial(_tables, shard, start, stop), stop - start, (stop - start) * each))
    return tasks


def _tables(shard: Shard, start: int, stop: int, columns: Sequence[str]) -> Iterator[pa.Table]:
    some = shard if stop - start == shard.rows else Rows(shard, np.arange(start, stop, dtype=np.int64))
    for batch in one_shard(some, list(columns)):
        yield pa.Table.from_batches([batch])


def _windows(excerpt: Excerpt, window: Any, batch_size: int) -> list[_Task]:
    tasks, first = list[_Task](), 0
    for shard in excerpt.shards():
        rows = np.arange(first, first + shard.rows, dtype=np.int64)
        first += shard.rows
        if shard.rows:
            tasks.append((partial(_batches, excerpt, rows, window, batch_size), None, shard.nbytes))
    return tasks


def _batches(excerpt: Excerpt, rows: Ints, window: Any, batch_size: int, _columns: Sequence[str]) -> Iterator[Any]:
    from ray.data.block import BlockAccessor

    chosen = excerpt.cut(rows=rows if excerpt.rows is None else excerpt.rows[rows])
    for batch in Loader(chosen, window=window, batch_size=batch_size, shuffle=False):
        valid = np.asarray(batch.pop("valid", np.ones(len(batch["sequence_id"]), bool)))
        whole = {name: np.asarray(values)[valid] for name, values in batch.items()}
        yield BlockAccessor.batch_to_block(whole)


def _source(data: Any, excerpt: Excerpt, tasks: Sequence[_Task], *, projected: bool) -> Any:
    """A `Datasource` of these tasks."""
    from ray.data.block import BlockMetadata

    names = list(excerpt.schema.names)
    arrow = excerpt.schema.arrow

    class Sequences(data.Datasource):  # type: ignore[misc]
        """Rows, or windows, of a dataset."""

        def __init__(self) -> None:
            super().__init__()
            self._projection_map = None  # the base class reads it and does not set it

        def supports_projection_pushdown(self) -> bool:
            return projected

        def estimate_inmemory_data_size(self) -> int:
            return sum(nbytes for _, _, nbytes in tasks)

        def get_read_tasks(
            self,
            parallelism: int,  # noqa: ARG002 - Ray splits what a task gives by itself
            per_task_row_limit: int | None = None,
            data_context: Any = None,  # noqa: ARG002 - as Ray calls it
        ) -> list[Any]:
            wanted = self._get_data_columns() if projected else None
            columns = names if wanted is None else [name for name in names if name in set(wanted)]
            schema = pa.schema([arrow.field(name) for name in columns]) if projected else None
            return [
                data.ReadTask(
                    partial(run, columns),
                    BlockMetadata(num_rows=rows, size_bytes=nbytes, exec_stats=None, input_files=None),
                    schema=schema,
                    per_task_row_limit=per_task_row_limit,
                )
                for run, rows, nbytes in tasks
            ]

    return Sequences()


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


def _conformed(blocks: Iterable[Any], schema: Schema) -> Iterator[pa.RecordBatch]:
    from ray.data.block import BlockAccessor

    for block in blocks:
        table = BlockAccessor.for_block(block).to_arrow()
        missing = [name for name in schema.names if name not in table.column_names and not schema[name].nullable]
        if missing:
            raise SchemaMismatchError(f"Expected the columns {', '.join(schema.names)}; {missing[0]!r} is missing.")
        arrays = [
            _plain(table.column(name)) if name in table.column_names else pa.nulls(len(table), schema[name].logical)
            for name in schema.names
        ]
        for batch in pa.table(arrays, names=list(schema.names)).combine_chunks().to_batches():
            yield conformed(batch, schema)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Ray's tensors as lists."""
    if not isinstance(column.type, pa.ExtensionType):
        return column
    cells = [cell for chunk in column.chunks for cell in chunk.to_numpy(zero_copy_only=False)]
    return pa.chunked_array([pa.array([np.asarray(cell).tolist() for cell in cells])])

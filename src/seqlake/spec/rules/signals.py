"""Rules of signals, vectors and frames (R304 to R306, R309 to R312, R315 to R317): what one cell holds."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from seqlake.spec.rules._rule import rule
from seqlake.spec.rules.facts import step_width
from seqlake.spec.schema import is_list
from seqlake.spec.stamps import stamps_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.spec.findings import Finding
    from seqlake.spec.rules.facts import Batch, Gathered, SeenIds
    from seqlake.spec.schema import Column

TEMPORAL = "Temporal Sequence Columns"
LARGEST_CELL = 1 << 30
"""Bytes that one temporal cell may hold; longer sequences are cut into several."""


def check_cells(batch: Batch, ids: SeenIds, /) -> Iterator[Finding]:
    """All rules over single cells."""
    for name in batch.columns("temporal", "vector"):
        yield from r304_nulls(batch, name)  # a null among pictures or clouds is a step without one
        yield from r309_finite(batch, name)
        yield from r310_size(batch, name)
    for name in batch.columns("temporal"):
        yield from chain.from_iterable(check(batch, name) for check in SIGNAL_RULES)
        yield from r306_same_dimension(batch, name, ids)
    for name in batch.columns("file", "frames"):
        yield from r312_timestamps(batch, name)
    for name in batch.columns("vector"):
        yield from r316_vector(batch, name)


@rule("R304", "error", "No step and no number inside a signal is null.", section=TEMPORAL)
def r304_nulls(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """A null cell means that the sequence has no such signal; nulls inside have no meaning, NaN may stand there."""
    column, cells = batch.held(name), batch.rows.column(name)
    if column.raw or not _holds_null(cells):
        return
    for row in range(len(cells)):
        if cells[row].is_valid and _holds_null(cells.slice(row, 1)):
            values = cells[row].as_py()
            step = next(i for i, value in enumerate(values) if _has_none(value))
            place = batch.place(row, name, None if column.category == "vector" else step)
            yield {**place, "message": "null inside a cell; use NaN for a missing number"}


def _holds_null(cells: pa.Array) -> bool:
    inner = cells.flatten()
    return bool(inner.null_count) or (is_list(inner.type) and _holds_null(inner))


def _has_none(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_none, value)))


@rule("R305", "error", "Every step of a signal has the same dimension, the declared one.", section=TEMPORAL)
def r305_dimension(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """[T, D] is never ragged, and D is what `dim` says."""
    column, cells = batch.held(name), batch.rows.column(name)
    if column.raw or not column.nested or column.deep or _one_dim(cells) in {None, column.dim}:
        return
    for row in range(len(cells)):
        sizes = pc.list_value_length(cells.slice(row, 1).flatten()).to_pylist()
        expected = column.dim if column.dim is not None else next((n for n in sizes if n is not None), None)
        step = next((i for i, n in enumerate(sizes) if n is not None and n != expected), None)
        if step is not None:
            said = "declared" if column.dim is not None else "in the steps before"
            yield {**batch.place(row, name, step), "message": f"{sizes[step]} numbers, {expected} {said}"}


@rule("R306", "error", "A signal has the same dimension in every sequence.", section=TEMPORAL)
def r306_same_dimension(batch: Batch, name: str, ids: SeenIds, /) -> Iterator[dict[str, Any]]:
    """Where `dim` is not declared, the first sequence says it."""
    column, cells = batch.held(name), batch.rows.column(name)
    if column.raw or not column.nested or column.deep or column.dim is not None:
        return
    if _one_dim(cells) in {None, ids.dims.get(name)}:
        return
    for row in range(len(cells)):
        dim = _one_dim(cells.slice(row, 1))
        if dim is None or dim < 0:
            continue
        if dim != ids.dims.setdefault(name, dim):
            yield {**batch.place(row, name), "message": f"{dim} numbers a step, {ids.dims[name]} in sequences before"}


def _one_dim(cells: pa.Array) -> int | None:
    """D of all steps of some cells; -1 where they differ, None where there is no step."""
    sizes = pc.min_max(pc.list_value_length(cells.flatten())).as_py()
    return -1 if sizes["min"] != sizes["max"] else sizes["min"]


@rule("R309", "warning", "Numbers are finite.", section=TEMPORAL)
def r309_finite(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """One NaN or infinity in a batch ruins the training step that meets it."""
    import numpy as np

    column, cells = batch.held(name), batch.rows.column(name)
    if not pa.types.is_floating(column.value_type):
        return
    if not column.raw and not _not_finite(_numbers(cells)).any():
        return
    for row in range(len(cells)):
        if not cells[row].is_valid:
            continue
        cell = cells.slice(row, 1)
        bad = np.flatnonzero(_not_finite(_raw_numbers(cell, column) if column.raw else _numbers(cell)))
        if bad.size:
            place = batch.place(row, name, _step_of_number(int(bad[0]), cell, column))
            yield {**place, "message": f"{bad.size} numbers are NaN or infinite"}


def _not_finite(values: pa.Array) -> Any:
    import numpy as np

    numbers = values.to_numpy(zero_copy_only=False)
    # A null comes out as NaN; R304 is about those.
    return ~np.isfinite(numbers) & (values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else True)


def _step_of_number(number: int, cell: pa.Array, column: Column) -> int | None:
    import numpy as np

    if column.category == "vector":
        return None
    if column.raw:
        assert column.dim is not None
        return number // column.dim
    if not column.nested:
        return number
    if column.deep:
        return next(i for i, step in enumerate(cell.flatten()) if (number := number - len(_numbers(step.values))) < 0)
    sizes = pc.list_value_length(cell.flatten()).fill_null(0).to_numpy()
    return int(np.searchsorted(np.cumsum(sizes), number, side="right"))


def _numbers(cells: pa.Array) -> pa.Array:
    values = cells.flatten()
    while is_list(values.type):
        values = values.flatten()
    return values


def _raw_numbers(cell: pa.Array, column: Column) -> pa.Array:
    """The numbers of one raw cell; bytes beyond the last whole one are left to R311."""
    assert column.value_type is not None
    data = cell[0].as_buffer()
    return pa.Array.from_buffers(column.value_type, data.size * 8 // column.value_type.bit_width, [None, data])


@rule("R310", "error", "A cell holds at most 1 GiB.", section="Tradeoffs & Limitations")
def r310_size(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """Longer sequences are cut into segments: a Parquet page ends at 2 GiB."""
    column, cells = batch.held(name), batch.rows.column(name)
    if cells.nbytes <= LARGEST_CELL:
        return
    for row in range(len(cells)):
        cell = cells.slice(row, 1)
        if column.raw:
            size = pc.binary_length(cell)[0].as_py() or 0
        else:
            values = _numbers(cell)
            size = len(values) * values.type.bit_width // 8
        if size > LARGEST_CELL:
            yield {**batch.place(row, name), "message": f"{size} bytes in one cell; cut the sequence into several"}


@rule("R311", "error", "The bytes of a raw cell are whole steps.", section="Implementation Notes")
def r311_raw(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """A multiple of `dim` times the size of a number."""
    column = batch.held(name)
    if not column.raw:
        return
    width = step_width(column)
    for row, size in enumerate(pc.binary_length(batch.rows.column(name)).to_pylist()):
        if size is not None and size % width:
            yield {**batch.place(row, name), "message": f"{size} bytes are no whole number of steps of {width} bytes"}


@rule("R312", "error", "Timestamps are sorted times, one per step.", section="Synchronization")
def r312_timestamps(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """Of the column that `timestamps` names: without them its steps have no time. Seconds since 1970 need float64."""
    times = batch.schema[name].timestamps
    if times is None:
        return
    if (cells := times_of(batch, times)) is None:
        return
    signal = batch.schema[name].category == "temporal"
    counts = batch.steps(name) if signal else [-1 if one is None else len(one) for one in cells]
    for row, steps in enumerate(counts):
        stamps = cells[row]
        count = 0 if stamps is None else len(stamps)
        if steps >= 0 and count != steps:
            yield {**batch.place(row, times), "message": f"{count} timestamps for {steps} steps of {name}"}
        elif stamps is not None and steps > 0 and (fault := stamps_fault(stamps)) is not None:
            yield {**batch.place(row, times, fault[0]), "message": fault[1]}


def times_of(batch: Batch, name: str, /) -> list[NDArray[Any] | None] | None:
    """[T] time stamps of each row, of a column of lists or raw cells; None where it holds none that can be read."""
    if name not in batch.schema or name not in batch.rows.schema.names:
        return None
    cells, column = batch.rows.column(name), batch.held(name)
    if not (is_list(cells.type) or (column.raw and name in batch.columns("temporal"))):
        return None
    stamps: list[NDArray[Any] | None] = []
    for row in range(len(cells)):
        cell = cells.slice(row, 1)
        values = None if cell.null_count else _raw_numbers(cell, column) if column.raw else _numbers(cell)
        stamps.append(None if values is None else values.drop_null().to_numpy(zero_copy_only=False))
    return stamps


@rule("R315", "note", "A sequence has steps.", section=TEMPORAL)
def r315_empty(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """T = 0 is allowed and gives no windows."""
    for row, steps in enumerate(batch.steps(name)):
        if steps == 0:
            yield {**batch.place(row, name), "message": "no steps"}


@rule("R316", "error", "A vector has the declared dimension.", section="Dataset-Level Metadata")
def r316_vector(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """This holds for embeddings."""
    dim = batch.held(name).dim
    for row, size in enumerate(pc.list_value_length(batch.rows.column(name)).to_pylist()):
        if dim is not None and size is not None and size != dim:
            yield {**batch.place(row, name), "message": f"{size} numbers, {dim} declared"}


@rule("R317", "note", "A signal changes.", section=TEMPORAL)
def r317_moves(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """All steps of a sequence are equal, as when a sensor is not plugged in."""
    yield from notes.findings_of("R317")


def gather_constant(batch: Batch, notes: Gathered, /) -> None:
    """Look for signals whose steps are all equal; `r317_moves` tells them."""
    for name in batch.columns("temporal"):
        for row, constant in _constant(batch, name):
            notes.note("R317", batch.place(row, name), "all steps are equal", holds=constant)


def _constant(batch: Batch, name: str) -> Iterator[tuple[int, bool]]:
    """Each cell of at least two steps, and whether they are all equal."""
    import numpy as np

    column, cells = batch.held(name), batch.rows.column(name)
    steps = np.array(batch.steps(name), np.int64)
    if column.raw:
        for row in np.flatnonzero(steps > 1).tolist():
            data = cells[row].as_buffer()
            one = step_width(column)
            whole = memoryview(data)[: int(steps[row]) * one]
            yield row, whole[one:] == whole[:-one]
        return
    if column.deep:
        for row in np.flatnonzero(steps > 1).tolist():
            each = cells[row].values
            yield row, each[1:].equals(each[:-1])
        return
    values = _numbers(cells).to_numpy(zero_copy_only=False)
    ends = np.cumsum(np.maximum(steps, 0))
    total = int(ends[-1]) if len(ends) else 0
    if not total or (column.nested and _one_dim(cells) in {None, -1}) or len(values) % total:
        return
    table = values.reshape(total, -1)
    rows = np.flatnonzero(steps > 1)
    alike = (table[ends[rows] - steps[rows]] == table[ends[rows] - 1]).all(1)
    for row, same in zip(rows.tolist(), alike.tolist(), strict=True):
        # First and last differ in nearly all signals, so that few are looked at whole.
        part = table[ends[row] - steps[row] : ends[row]] if same else None
        yield row, part is not None and bool((part == part[:1]).all())


SIGNAL_RULES = (r305_dimension, r311_raw, r312_timestamps, r315_empty)

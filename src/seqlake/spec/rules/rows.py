"""Rules of rows (R3..): what the cells of some rows hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from seqlake.spec.alignment import Clock, own_rate
from seqlake.spec.rules._rule import rule
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Column, Schema

SCALARS, TEMPORAL = "Scalar Metadata Columns", "Temporal Sequence Columns"
LARGEST_CELL = 1 << 30
"""Bytes that one temporal cell may hold; longer sequences are cut with `segment`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows as they are stored, and what is known of them."""

    rows: pa.RecordBatch
    schema: Schema
    location: str = ""
    clock: Clock = field(default_factory=lambda: Clock(rate=None, rule="not asked"))

    def columns(self, *categories: str) -> list[str]:
        """The columns of these categories that the rows have."""
        return [n for n, c in self.schema.items() if c.category in categories and n in self.rows.schema.names]

    def place(self, row: int, column: str = "", step: int | None = None) -> dict[str, Any]:
        """Where a finding is."""
        name = ""
        if self.schema.id is not None and self.schema.id in self.rows.schema.names:
            name = str(self.rows.column(self.schema.id)[row].as_py() or f"row {row}")
        return {"location": self.location, "sequence_id": name, "column": column, "step": step}


@dataclass(slots=True)
class Ids:
    """The ids seen so far, over all batches, with the first place of each."""

    first: dict[str, str] = field(default_factory=dict)


def check_rows(batch: Batch, ids: Ids, /) -> Iterator[Finding]:
    """All rules over some rows but those of references."""
    yield from r301_null_id(batch)
    yield from r302_empty_id(batch)
    yield from r303_unique_id(batch, ids)
    for name in batch.columns("temporal"):
        yield from chain.from_iterable(check(batch, name) for check in COLUMN_RULES)
    for name in batch.columns("vector"):
        yield from r316_vector(batch, name)
    yield from r307_equal_steps(batch)
    yield from r308_length(batch)
    yield from r314_duration(batch)


def steps_of(cells: pa.Array, column: Column, /) -> list[int]:
    """T of each cell; -1 for null."""
    if column.raw:
        width = _width(column)
        sizes = pc.binary_length(cells)
        return [-1 if n is None else n // width for n in sizes.to_pylist()]
    return [-1 if n is None else n for n in pc.list_value_length(cells).to_pylist()]


def _width(column: Column) -> int:
    kind = column.value_type
    assert kind is not None
    return max((column.dim or 1) * int(kind.bit_width) // 8, 1)


def _steps(batch: Batch, name: str) -> list[int]:
    return steps_of(batch.rows.column(name), batch.schema[name])


def _ids(batch: Batch) -> list[str | None]:
    if batch.schema.id is None or batch.schema.id not in batch.rows.schema.names:
        return []
    found: list[str | None] = batch.rows.column(batch.schema.id).to_pylist()
    return found


@rule("R301", "error", "`sequence_id` is not null.", section=SCALARS)
def r301_null_id(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Required in every row."""
    for row, name in enumerate(_ids(batch)):
        if name is None:
            yield {**batch.place(row, batch.schema.id or ""), "message": "the id is null"}


@rule("R302", "error", "`sequence_id` is not empty.", section=SCALARS)
def r302_empty_id(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """An empty string names nothing."""
    for row, name in enumerate(_ids(batch)):
        if name == "":
            yield {**batch.place(row, batch.schema.id or ""), "message": "the id is empty"}


@rule("R303", "error", "`sequence_id` is unique.", section=SCALARS)
def r303_unique_id(batch: Batch, ids: Ids, /) -> Iterator[dict[str, Any]]:
    """Over the whole dataset."""
    for row, name in enumerate(_ids(batch)):
        if name:
            here = f"{batch.location} row {row}" if batch.location else f"row {row}"
            if name in ids.first:
                message = f"the id is there already, in {ids.first[name]}"
                yield {**batch.place(row, batch.schema.id or ""), "message": message}
            ids.first.setdefault(name, here)


@rule("R304", "error", "No step and no number inside a signal is null.", section=TEMPORAL)
def r304_nulls(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """A null cell means that the sequence has no such signal; nulls inside have no meaning."""
    column = batch.schema[name]
    if column.raw:
        return
    for row, cell in _suspicious(batch, name, lambda values: bool(values.null_count)):
        for step, value in enumerate(cell):
            if value is None or (isinstance(value, list) and None in value):
                yield {**batch.place(row, name, step), "message": "null inside a signal; use NaN for missing numbers"}
                break


def _suspicious(batch: Batch, name: str, bad: Callable[[pa.Array], bool]) -> Iterator[tuple[int, list[Any]]]:
    """Rows whose steps or numbers look bad, as Python lists; the whole column is asked first, for speed."""
    cells = batch.rows.column(name)

    def any_bad(part: pa.Array) -> bool:
        inner = part.flatten()
        deeper = inner.flatten() if is_list(inner.type) else inner
        return bad(inner) or bad(deeper)

    if not any_bad(cells):
        return
    for row in range(len(cells)):
        if cells[row].is_valid and any_bad(cells.slice(row, 1)):
            yield row, cells[row].as_py()


@rule("R305", "error", "Every step of a signal has the same dimension, the declared one.", section=TEMPORAL)
def r305_dimension(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """[T, D]: not ragged, and D as `dim` says."""
    column, cells = batch.schema[name], batch.rows.column(name)
    if column.raw or not is_list(cells.type.value_type) or pa.types.is_fixed_size_list(cells.type.value_type):
        return
    found = pc.min_max(pc.list_value_length(cells.flatten())).as_py()
    wanted = column.dim if column.dim is not None else found["min"]
    if found["min"] is None or found["min"] == found["max"] == wanted:
        return
    for row in range(len(cells)):
        sizes = pc.list_value_length(cells.slice(row, 1).flatten()).to_pylist()
        expected = column.dim if column.dim is not None else next((n for n in sizes if n is not None), None)
        for step, size in enumerate(sizes):
            if size is not None and size != expected:
                said = "declared" if column.dim is not None else "in the steps before"
                yield {**batch.place(row, name, step), "message": f"{size} numbers, {expected} {said}"}
                break


@rule("R309", "warning", "Numbers are finite.", section=TEMPORAL)
def r309_finite(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """NaN and infinity poison training."""
    import numpy as np

    column = batch.schema[name]
    kind = column.value_type
    if kind is None or not pa.types.is_floating(kind):
        return
    cells = batch.rows.column(name)
    for row in range(len(cells)):
        if not cells[row].is_valid:
            continue
        if column.raw:
            data = cells[row].as_buffer()
            whole = len(data) // (kind.bit_width // 8)
            numbers = np.frombuffer(data, f"<f{kind.bit_width // 8}", count=whole)
        else:
            numbers = _numbers(cells.slice(row, 1))
        bad = np.flatnonzero(~np.isfinite(numbers))
        if bad.size:
            step = int(bad[0]) // max(column.dim or 1, 1)
            yield {**batch.place(row, name, step), "message": f"{bad.size} numbers are NaN or infinite"}


def _numbers(cell: pa.Array) -> Any:
    values = cell.flatten()
    while is_list(values.type):
        values = values.flatten()
    return values.drop_null().to_numpy(zero_copy_only=False)


@rule("R310", "error", "A cell holds less than 1 GiB.", section="Tradeoffs & Limitations")
def r310_size(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """Longer sequences are cut into segments."""
    width = _width(batch.schema[name])
    for row, steps in enumerate(_steps(batch, name)):
        if steps * width > LARGEST_CELL:
            yield {**batch.place(row, name), "message": f"{steps * width} bytes in one cell; cut it with segment"}


@rule("R311", "error", "The bytes of a raw cell are whole steps.", section="Implementation Notes")
def r311_raw(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """A multiple of `dim` times the size of a number."""
    column = batch.schema[name]
    if not column.raw:
        return
    for row, size in enumerate(pc.binary_length(batch.rows.column(name)).to_pylist()):
        if size is not None and size % _width(column):
            message = f"{size} bytes are no whole number of steps of {_width(column)} bytes"
            yield {**batch.place(row, name), "message": message}


@rule("R312", "error", "Timestamps are sorted, one per step.", section="Synchronization")
def r312_timestamps(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """Of the column that `timestamps` names."""
    import numpy as np

    declared = batch.schema[name].type
    times = declared.get("timestamps") if declared is not None else None
    if not isinstance(times, str) or times not in batch.rows.schema.names or not is_list(batch.schema[times].arrow):
        return
    cells = batch.rows.column(times)
    for row, steps in enumerate(_steps(batch, name)):
        if not cells[row].is_valid or steps < 0:
            continue
        stamps = _numbers(cells.slice(row, 1))
        if len(stamps) != steps:
            yield {**batch.place(row, times), "message": f"{len(stamps)} timestamps for {steps} steps of {name}"}
        elif len(stamps) > 1 and bool(
            (np.diff(stamps.astype("int64" if stamps.dtype.kind == "M" else None)) < 0).any()
        ):
            step = int(np.flatnonzero(np.diff(stamps) < np.zeros(1, np.diff(stamps).dtype))[0]) + 1
            yield {**batch.place(row, times, step), "message": "a timestamp is earlier than the one before it"}


@rule("R315", "note", "A sequence has steps.", section=TEMPORAL)
def r315_empty(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """T = 0 is allowed and gives no windows."""
    for row, steps in enumerate(_steps(batch, name)):
        if steps == 0:
            yield {**batch.place(row, name), "message": "no steps"}


@rule("R316", "error", "A vector has the declared dimension.", section="Dataset-Level Metadata")
def r316_vector(batch: Batch, name: str, /) -> Iterator[dict[str, Any]]:
    """Of embeddings."""
    dim = batch.schema[name].dim
    for row, size in enumerate(pc.list_value_length(batch.rows.column(name)).to_pylist()):
        if dim is not None and size is not None and size != dim:
            yield {**batch.place(row, name), "message": f"{size} numbers, {dim} declared"}


@rule("R307", "warning", "Signals at one rate have equally many steps.", section="Synchronization")
def r307_equal_steps(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Missing steps are edges of windows; the first column counts."""
    same = [n for n in batch.columns("temporal", "frames") if _on_clock(batch, n)]
    counts = {name: _steps(batch, name) for name in same}
    for row in range(batch.rows.num_rows):
        present = [name for name in same if counts[name][row] >= 0]
        for name in present[1:]:
            if counts[name][row] != counts[present[0]][row]:
                message = f"{counts[name][row]} steps, {present[0]} has {counts[present[0]][row]}"
                yield {**batch.place(row, name), "message": message}


def _on_clock(batch: Batch, name: str) -> bool:
    column = batch.schema[name]
    if column.type is not None and column.type.get("timestamps"):
        return False
    stamped = {c.type.get("timestamps") for c in batch.schema.values() if c.type is not None}
    rate = own_rate(column)
    return name not in stamped and (rate is None or batch.clock.rate is None or rate == batch.clock.rate)


@rule("R308", "error", "`length` is the number of steps.", section=SCALARS)
def r308_length(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """T wins over what is written."""
    first = next((n for n in batch.columns("temporal", "frames") if _on_clock(batch, n)), None)
    if (
        first is None
        or "length" not in batch.rows.schema.names
        or not pa.types.is_integer(batch.schema["length"].arrow)
    ):
        return
    counts = _steps(batch, first)
    for row, length in enumerate(batch.rows.column("length").to_pylist()):
        if length is not None and counts[row] >= 0 and length != counts[row]:
            message = f"length {length}, but {first} has {counts[row]} steps"
            yield {**batch.place(row, "length"), "message": message}


@rule("R314", "warning", "`duration_seconds` agrees with the steps and the clock.", section=SCALARS)
def r314_duration(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Within half a step."""
    rate = batch.clock.rate
    first = next((n for n in batch.columns("temporal", "frames") if _on_clock(batch, n)), None)
    if rate is None or first is None or "duration_seconds" not in batch.rows.schema.names:
        return
    counts = _steps(batch, first)
    for row, seconds in enumerate(batch.rows.column("duration_seconds").to_pylist()):
        if seconds is None or counts[row] < 0 or not 0 <= seconds < float("inf"):
            continue
        # A duration may be counted to the last step or past it.
        away = min(abs(Fraction(seconds) * rate - n) for n in (counts[row], counts[row] - 1))
        if away > Fraction(1, 2):
            message = f"{seconds} s at {float(rate):g} steps per second is not {counts[row]} steps"
            yield {**batch.place(row, "duration_seconds"), "message": message}


COLUMN_RULES = (
    r304_nulls,
    r305_dimension,
    r309_finite,
    r310_size,
    r311_raw,
    r312_timestamps,
    r315_empty,
)

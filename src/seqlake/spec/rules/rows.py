"""Rules of rows (R301 to R303, R307, R308, R313, R314, R318, R319): ids, and columns beside each other."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.spec.alignment import on_clock
from seqlake.spec.rules._rule import rule
from seqlake.spec.rules.signals import check_cells, times_of
from seqlake.spec.schema import is_list, is_number
from seqlake.spec.stamps import apart, called_a_clock, clock_fault, moment, origin_of, stamps_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.spec.findings import Finding
    from seqlake.spec.rules.facts import Batch, SeenIds
    from seqlake.spec.stamps import Origin

SCALARS, SYNCHRONIZATION = "Scalar Metadata Columns", "Synchronization"


def check_rows(batch: Batch, ids: SeenIds, /) -> Iterator[Finding]:
    """All rules over some rows but those of references.

    Args:
        batch: The rows.
        ids: One for the whole dataset, the same for every batch.
    """
    yield from r301_null_id(batch)
    yield from r302_empty_id(batch)
    yield from r303_unique_id(batch, ids)
    yield from check_cells(batch, ids)
    yield from r307_equal_steps(batch)
    yield from r308_length(batch)
    yield from r313_possible(batch)
    yield from r314_duration(batch)
    yield from r318_one_clock(batch)
    yield from r319_steady_clock(batch)


def _ids(batch: Batch) -> list[str | None]:
    if batch.schema.id is None or batch.schema.id not in batch.rows.schema.names:
        return []
    ids: list[str | None] = batch.rows.column(batch.schema.id).to_pylist()
    return ids


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
def r303_unique_id(batch: Batch, ids: SeenIds, /) -> Iterator[dict[str, Any]]:
    """Over the whole dataset."""
    for row, name in enumerate(_ids(batch)):
        if name:
            here = f"{batch.location} row {batch.start + row}".strip()
            if name in ids.first:
                message = f"the id is there already, in {ids.first[name]}"
                yield {**batch.place(row, batch.schema.id or ""), "message": message}
            ids.first.setdefault(name, here)


@rule("R307", "warning", "Signals at one rate have equally many steps.", section=SYNCHRONIZATION)
def r307_equal_steps(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Missing steps are edges of windows; the first column counts."""
    same = _signals_on_clock(batch)
    counts = {name: batch.steps(name) for name in same}
    for row in range(batch.rows.num_rows):
        present = [name for name in same if counts[name][row] >= 0]
        for name in present[1:]:
            if counts[name][row] != counts[present[0]][row]:
                message = f"{counts[name][row]} steps, {present[0]} has {counts[present[0]][row]}"
                yield {**batch.place(row, name), "message": message}


def _signals_on_clock(batch: Batch) -> list[str]:
    return [n for n in batch.columns("temporal", "frames") if on_clock(batch.schema, n, batch.clock.rate)]


@rule("R308", "error", "`length` is the number of steps.", section=SCALARS)
def r308_length(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """The steps that are there win over what is written."""
    lengths = _scalars(batch, "length")
    for row, first, steps in _steps_on_clock(batch) if lengths else ():
        if lengths[row] is not None and lengths[row] != steps:
            message = f"length {lengths[row]}, but {first} has {steps} steps"
            yield {**batch.place(row, "length"), "message": message}


def _scalars(batch: Batch, name: str) -> list[Any]:
    """The numbers of a scalar column; none where there is no such column."""
    there = name in batch.schema and name in batch.rows.schema.names
    if not there or not (is_number(batch.held(name).arrow) or pa.types.is_decimal(batch.held(name).arrow)):
        return []
    numbers: list[Any] = batch.rows.column(name).to_pylist()
    return numbers


def _steps_on_clock(batch: Batch) -> Iterator[tuple[int, str, int]]:
    """(row, column, T) of the first signal at the clock's rate, for the rows that have it."""
    for first in _signals_on_clock(batch)[:1]:
        yield from ((row, first, steps) for row, steps in enumerate(batch.steps(first)) if steps >= 0)


@rule("R313", "error", "`length` and `duration_seconds` are possible.", section=SCALARS)
def r313_possible(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Neither negative nor infinite; null says that they are not known."""
    for name in ("length", "duration_seconds"):
        for row, value in enumerate(_scalars(batch, name)):
            if value is not None and not 0 <= value < float("inf"):
                yield {**batch.place(row, name), "message": f"{value} cannot be"}


@rule("R314", "warning", "`duration_seconds` agrees with the steps and the clock.", section=SCALARS)
def r314_duration(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """T steps last T / rate seconds, give or take half a step."""
    rate, durations = batch.clock.rate, _scalars(batch, "duration_seconds")
    for row, first, steps in _steps_on_clock(batch) if durations and rate is not None else ():
        assert rate is not None
        seconds = durations[row]
        if seconds is None or not 0 <= seconds < float("inf"):
            continue
        # Half a step, and what 32 bits round away.
        if abs(Fraction(seconds) * rate - steps) > Fraction(1, 2) + Fraction(steps, 1_000_000):
            last = float(steps / rate)
            message = f"{seconds:g} s, but {steps} steps of {first} at {float(rate):g} a second last {last:g} s"
            yield {**batch.place(row, "duration_seconds"), "message": message}


@rule("R318", "warning", "Time stamps that count from one origin are of one clock.", section=SYNCHRONIZATION)
def r318_one_clock(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Between two columns lies more time than all of them last. A sensor with a clock of its own declares `origin`."""
    groups: dict[Origin, set[str]] = {}
    for name, column in batch.schema.items():
        times = column.timestamps
        if times is not None:
            groups.setdefault(origin_of(batch.schema, name), set()).add(times)
    counts = {row: (name, count) for row, name, count in _steps_on_clock(batch)} if groups else {}
    for origin, names in groups.items():
        named = origin if isinstance(origin, tuple) else ()
        spans = {name: _spans(batch, name) for name in {*names, *named} if name in batch.schema}
        for row in range(batch.rows.num_rows):
            moments = {name: spans[name][row] for name in spans if row in spans[name]}
            begins = [moments[name][0] for name in named if name in moments]
            if not isinstance(origin, tuple):
                begins = [origin * 1e9 if isinstance(origin, float) else origin]
                moments["the origin"] = (begins[0], begins[0])
            if row in counts and batch.clock.rate is not None and begins:
                first, count = counts[row]
                moments[first] = (min(begins), min(begins) + float(count / batch.clock.rate) * 1e9)
            if (gap := apart(moments)) is not None:
                early, late, lasting = gap
                of = late if late in names else early
                message = (
                    f"{late} begins {lasting / 1e9:g} s after {early} ends: `origin` says what other clocks count from"
                )
                yield {**batch.place(row, of), "message": message}


@rule("R319", "warning", "No clock is set while a sequence is recorded.", section=SYNCHRONIZATION)
def r319_steady_clock(batch: Batch, /) -> Iterator[dict[str, Any]]:
    """Columns of time stamps, declared or called so, go on, and never by ten times as much as all the rest takes."""
    declared = {column.timestamps for column in batch.schema.values()}
    for name in batch.schema:
        if name not in declared and not called_a_clock(name):
            continue
        counts = batch.steps(name) if name in batch.rows.schema.names and _is_sequence(batch, name) else []
        for row, stamps in enumerate(times_of(batch, name) or () if counts else ()):
            if stamps is None or len(stamps) != counts[row]:
                continue
            fault = clock_fault(stamps)
            if fault is not None and not (name in declared and stamps_fault(stamps) is not None):  # R312 says so
                yield {**batch.place(row, name, fault[0]), "message": fault[1]}


def _is_sequence(batch: Batch, name: str) -> bool:
    return is_list(batch.rows.schema.field(name).type) or batch.held(name).raw


def _spans(batch: Batch, name: str) -> dict[int, tuple[float, float]]:
    """The first and the last moment of a column of times, or of one time a row, by rows that have some."""
    stamps_by_row = times_of(batch, name)
    if stamps_by_row is None and batch.schema[name].category == "scalar" and name in batch.rows.schema.names:
        cells = batch.rows.column(name)
        timed = is_number(cells.type) or pa.types.is_timestamp(cells.type) or pa.types.is_duration(cells.type)
        rows = range(len(cells) * timed)
        stamps_by_row = [cells.slice(row, 1).drop_null().to_numpy(zero_copy_only=False) for row in rows]
    return {
        row: (moment(stamps[0]), moment(stamps[-1]))
        for row, stamps in enumerate(stamps_by_row or ())
        if stamps is not None and len(stamps) and stamps_fault(stamps) is None
    }

"""Rules of what files give when they are counted and decoded (F421, F422, F431 to F435): frames, sound, notes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from seqlake.spec.alignment import on_clock, own_rate
from seqlake.spec.rules._rule import rule
from seqlake.spec.rules.files import DECLARED_RULES
from seqlake.spec.rules.signals import r317_moves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.spec.alignment import Clock
    from seqlake.spec.findings import Finding
    from seqlake.spec.rules.facts import CellFacts, Gathered, RowFacts
    from seqlake.spec.schema import Column

FILES, SYNCHRONIZATION = "File Reference Columns", "Synchronization"
_SLACK = Fraction(1, 10)  # seconds by which sound may begin late, end early, or be padded


def check_row(row: RowFacts, clock: Clock, /) -> Iterator[Finding]:
    """All rules over what the files of one row say of each other and of its steps."""
    yield from f421_frames(row, clock)
    yield from f422_sound(row, clock)


def check_decoded(cell: CellFacts, column: Column, place: dict[str, Any], notes: Gathered, /) -> Iterator[Finding]:
    """All rules over a cell whose files were decoded; what is worth a note is gathered."""
    yield from f431_decodes(cell, column, place)
    kind = "" if column.type is None else column.type.type
    if cell.looked:
        notes.note("F432", place, "every frame is black", holds=cell.black)
        notes.note("F433", place, "all frames look the same", holds=cell.frozen and not cell.black)
        notes.note("F434", place, "every sample is zero", holds=cell.silent)
    why = f"frames cannot be read: {cell.unread}" if cell.unread else ""
    why = why or f"not decoded: nothing here decodes this kind of {kind}"
    notes.note("F435", place, why, holds=cell.undecoded or bool(cell.unread))


def check_notes(notes: Gathered, /) -> Iterator[Finding]:
    """What was gathered, once all rows were looked at."""
    for check in (r317_moves, *DECLARED_RULES, f432_black, f433_frozen, f434_silent, f435_undecoded):
        yield from check(notes)


@rule("F421", "warning", "A video has a frame for every step.", section=SYNCHRONIZATION)
def f421_frames(row: RowFacts, clock: Clock, /) -> Iterator[dict[str, Any]]:
    """At the clock's rate as many as steps; at another rate as many as fit in their time, give or take one; with
    `timestamps` as many as times. Missing frames are edges of windows.
    """
    for name, count in row.observed.frames.items():
        expected, why = _expected(row, name, clock)
        if expected is None:
            continue
        if abs(count - expected) > (0 if why.startswith("=") else 1):
            said = why.removeprefix("=")
            yield {**row.places[name], "message": f"{count} frames, expected {_count(expected)}: {said}"}


def _count(expected: Fraction) -> str:
    return str(expected) if expected.denominator == 1 else f"about {float(expected):.1f}"


def _expected(row: RowFacts, name: str, clock: Clock) -> tuple[Fraction | None, str]:
    """How many frames a video should have, and why; `=` before the reason where it is exact."""
    column = row.schema[name]
    stamps = column.type.get("timestamps") if column.type is not None else None
    if isinstance(stamps, str):
        times = row.observed.steps.get(stamps, -1)
        return (Fraction(times), f"={stamps} has so many times") if times >= 0 else (None, "")
    rate = own_rate(column)
    steps, of = _steps(row, clock)
    if steps is not None:
        if rate is None or clock.rate is None or rate == clock.rate:
            return Fraction(steps), f"={of} has {steps} steps"
        return steps * rate / clock.rate, f"{of} has {steps} steps at {float(clock.rate):g} a second"
    for other, count in row.observed.frames.items():
        theirs = own_rate(row.schema[other])
        if other == name:
            break  # the first that can be compared is what others are compared with
        if theirs is not None and rate is not None:
            exact = "=" if theirs == rate else ""
            return count * rate / theirs, f"{exact}{other} has {count} at {float(theirs):g} a second"
    return None, ""


def _steps(row: RowFacts, clock: Clock) -> tuple[int | None, str]:
    """The row's steps and the column that says so."""
    for name, count in row.observed.steps.items():
        if count >= 0 and on_clock(row.schema, name, clock.rate):
            return count, name
    return row.observed.length, "length"


@rule("F422", "warning", "Sound lasts as long as the sequence.", section=SYNCHRONIZATION)
def f422_sound(row: RowFacts, clock: Clock, /) -> Iterator[dict[str, Any]]:
    """Give or take a step, or a tenth of a second where that is more."""
    steps, of = _steps(row, clock)
    if steps is None or clock.rate is None:
        return
    lasts = steps / clock.rate
    for name, cell in row.cells.items():
        for _, file in cell.files:
            if file.seconds is not None and abs(Fraction(file.seconds) - lasts) > max(_SLACK, 1 / clock.rate):
                message = f"{file.name}: {file.seconds:.3f} s of sound, {steps} steps of {of} last {float(lasts):g} s"
                yield {**row.places[name], "message": message}


@rule("F431", "error", "Every frame, picture and sample decodes.", section=FILES)
def f431_decodes(cell: CellFacts, column: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: damage that FFmpeg reports, packets that are not those of the kept index."""
    noun = "sample" if column.type is not None and column.type.type == "audio" else "frame"
    for damage in cell.damage:
        which = f"{noun} {damage.first}" if damage.first == damage.last else f"{noun}s {damage.first} to {damage.last}"
        yield {**place, "step": damage.first, "message": f"{cell.name}{which}: {damage.why}"}


@rule("F432", "note", "A video shows something.", section=FILES)
def f432_black(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: every frame is black."""
    yield from notes.told("F432")


@rule("F433", "note", "A video moves.", section=FILES)
def f433_frozen(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: all frames look the same, as when a camera hangs or nothing moves before it."""
    yield from notes.told("F433")


@rule("F434", "note", "Sound can be heard.", section=FILES)
def f434_silent(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: every sample is zero."""
    yield from notes.told("F434")


@rule("F435", "note", "There is a decoder for the file, and what it decodes can be read.", section=FILES)
def f435_undecoded(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: files of other kinds are not looked into. Pixels of more than 8 bits are decoded, but frames
    are not given from them.
    """
    yield from notes.told("F435")

"""The dataset's clock, and each column's samples on it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.spec.alignment import LOOKED_AT, Clock, Observed, clock_of, exact, own_rate
from seqlake.spec.stamps import origin_of
from seqlake.windows.frames import count_first_rows, framed
from seqlake.windows.sounds import SoundSpan, sounding
from seqlake.windows.sources import MediaFiles
from seqlake.windows.spec import Seconds
from seqlake.windows.tracks import Track

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.protocols import Readable
    from seqlake.spec.schema import Column, Schema
    from seqlake.windows.spec import Rate, Window

_TELL_DURATION = ("length", "duration_seconds")


def windowed(window: Window, schema: Schema) -> list[str]:
    """The columns that a window has offsets for, in schema order: temporal ones, and those that have frames or sound.

    Raises:
        SchemaMismatchError: A column is not in the schema, or not one whose steps can be windowed.
    """
    _check_known(window.columns, schema)
    asked = {name: column for name, column in schema.items() if window.columns.get(name) is not None}
    for name, column in asked.items():
        if column.category != "temporal" and not framed(column) and not sounding(column):
            raise SchemaMismatchError(
                f"Column {name!r} ({_kind(column)}) has no steps that a window can take.",
                hint="Offsets are for temporal columns, videos, columns of images and sound; ask for one value a "
                "sample with None.",
            )
    return list(asked)


def singles(window: Window, schema: Schema) -> list[str]:
    """The columns that a window asks one value a sample of, in schema order; never the id, which is always there.

    Raises:
        SchemaMismatchError: A column is not in the schema, or has steps and no single value.
    """
    _check_known(window.columns, schema)
    names = [name for name in schema if name in window.columns and window.columns[name] is None and name != schema.id]
    for name in names:
        if schema[name].category not in ("scalar", "vector", "file") and not schema[name].timeless:
            raise SchemaMismatchError(
                f"Column {name!r} ({_kind(schema[name])}) has no single value a sample.",
                hint="Give it offsets, as in range(16), or leave it out.",
            )
    return names


def check_columns(names: Iterable[str], schema: Schema, *, categories: tuple[str, ...] | None) -> None:
    """Raise `SchemaMismatchError` unless every column is there and of one of the categories (None: any)."""
    names = list(names)
    _check_known(names, schema)
    for name in names:
        if categories is not None and schema[name].category not in categories:
            raise SchemaMismatchError(f"Column {name!r} ({_kind(schema[name])}) cannot be delivered in batches.")


def _check_known(names: Iterable[str], schema: Schema) -> None:
    for name in names:
        schema[name]


def _kind(column: Column) -> str:
    return f"{column.category}, {column.arrow}"


def declared_clock(schema: Schema, window: Window, /) -> Clock:
    """The clock from the window and the schema alone, without a look at any row."""
    given = None if window.clock is None else exact(window.clock)
    return clock_of(schema, given=given)


def dataset_clock(
    source: Readable, /, *, given: Rate | None = None, window: Window | None = None, files: MediaFiles | None = None
) -> Clock:
    """The clock of a dataset.

    Where the schema declares no rate of a signal, the first rows are asked: for the frames of videos, which are opened
    only where the window depends on the clock and the answer is not clear without; then for `length` and
    `duration_seconds`.

    Args:
        source: The dataset.
        given: Steps per second that the caller insists on, as `Window(..., clock=)` does.
        window: What the clock is for; without it no video is opened.
        files: How videos are opened; by default as the dataset says.
    """
    schema = source.schema
    signals = (column for column in schema.values() if column.category in {"temporal", "frames"})
    if given is not None or any(own_rate(column) is not None for column in signals):
        return clock_of(schema, given=given)
    has_durations = all(name in schema and schema[name].category == "scalar" for name in _TELL_DURATION)
    counted: list[Observed] = []
    failed = ""
    if window is not None and depends(window, schema) and _unclear(schema, has_durations=has_durations):
        counted, failed = count_first_rows(source, files or MediaFiles.of(source))
    clock = clock_of(schema, observed=[*counted, *(_first_rows(source) if has_durations else ())])
    return replace(clock, rule=f"{clock.rule}; {failed}") if failed else clock


def depends(window: Window, schema: Schema) -> bool:
    """Whether it depends on the clock which samples a window takes."""
    for name in windowed(window, schema):
        column = schema[name]
        rated = own_rate(column) is not None or column.timestamps is not None
        if rated or sounding(column) or isinstance(window.columns[name], Seconds):
            return True
    return False


def _unclear(schema: Schema, *, has_durations: bool) -> bool:
    """Whether counting the frames of videos could find another rate than the highest that is declared."""
    rates = {own_rate(column) for column in schema.values() if framed(column)} - {None}
    signals = any(column.category == "temporal" for column in schema.values())
    return signals and (len(rates) > 1 or (has_durations and bool(rates)))


def _first_rows(source: Readable) -> list[Observed]:
    observed: list[Observed] = []
    for shard in source.shards():
        wanted = min(shard.rows, LOOKED_AT - len(observed))
        if wanted <= 0:
            break
        with closing(shard.open()) as reader:
            for batch in reader.batches(_TELL_DURATION, rows=np.arange(wanted)):
                observed.extend(
                    Observed(length=row["length"], duration_seconds=row["duration_seconds"])
                    for row in batch.to_pylist()
                )
    return observed


def deciding(tracks: list[Track], schema: Schema, /) -> list[Track]:
    """Those that say how many steps a sequence has: not the points of clouds, unless there is nothing else."""
    return [track for track in tracks if not schema[track.column].timeless] or tracks


def tracks(window: Window, schema: Schema, clock: Clock) -> tuple[list[Track], list[Track]]:
    """The window's temporal columns on the clock, and its videos and columns of images; both in schema order.

    Raises:
        SchemaMismatchError: A column cannot be windowed.
        ValueError: Offsets in seconds, or time stamps, without a clock.
    """
    steps: list[Track] = []
    frames: list[Track] = []
    for name in windowed(window, schema):
        if sounding(schema[name]):
            continue
        kind = steps if schema[name].category == "temporal" else frames
        kind.append(_track(name, window, schema, clock))
    return steps, frames


def spans(window: Window, schema: Schema, clock: Clock) -> list[SoundSpan]:
    """The window's columns of sound on the clock, in schema order.

    Raises:
        SchemaMismatchError: A column cannot be windowed.
        ValueError: There is no clock.
    """
    names = [name for name in windowed(window, schema) if sounding(schema[name])]
    return [SoundSpan.of(schema[name], window.columns[name], clock.rate) for name in names]


def _track(name: str, window: Window, schema: Schema, clock: Clock) -> Track:
    offsets, column = window.columns[name], schema[name]
    assert offsets is not None
    stamps = column.timestamps
    if stamps is not None and stamps not in schema:
        raise SchemaMismatchError(
            f"Column {name!r} has its times in {stamps!r}, and there is no such column here.",
            hint="Select that column, too; or mend the field `timestamps` of the column's type.",
        )
    rate = own_rate(column)
    return Track.of(
        name,
        offsets if isinstance(offsets, Seconds) else list(offsets),
        ratio=Fraction(1) if rate is None or clock.rate is None or stamps else rate / clock.rate,
        timestamps=stamps,
        origin=origin_of(schema, name) if stamps else (),
        clock=clock.rate,
    )

"""Frames of videos counted, where nothing else says how long a sequence is or what its clock is."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.errors import SeqlakeError
from seqlake.spec.alignment import LOOKED_AT, Observed, own_rate
from seqlake.windows.frames import Shown, by_time
from seqlake.windows.sources import cells_of, place_of, told

if TYPE_CHECKING:
    from fractions import Fraction

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Column
    from seqlake.windows.sources import Files, Place
    from seqlake.windows.tracks import Track


def count_frames(source: Readable, files: Files, track: Track, rows: Ints, /) -> list[Shown | None]:
    """What some rows of a video column show, opening each file once; says what it does if it takes long.

    Args:
        source: The dataset.
        files: How its files are opened.
        track: The column on the clock.
        rows: [n] row numbers, ascending.

    Returns:
        [n] None where the cell is null.

    Raises:
        DamagedTableError: A file is not there.
        DecodeError: It cannot be read; the message names the sequence and the column.
    """
    column = source.schema[track.column]
    places = [place_of(cell) for cell in cells_of(source, column.name, rows)]
    timed = by_time(track, column)
    found = {place: Shown(count=place.count) for place in places if place is not None and place.count is not None}
    wanted = {place.reference: row for place, row in zip(places, rows.tolist(), strict=True) if place and timed}
    wanted |= {p.reference: r for p, r in zip(places, rows.tolist(), strict=True) if p and p.count is None}
    known = dict(zip(wanted, _opened(source, files, column, wanted), strict=True))
    return [
        None
        if place is None
        else _shown(place, *known[place.reference], track, timed=timed)
        if place.reference in known
        else found[place]
        for place in places
    ]


def _shown(place: Place, pts: Ints, time_base: Fraction, track: Track, *, timed: bool) -> Shown:
    own = pts[place.first :][: place.count]
    return Shown.timed(own, time_base, track) if timed else Shown(count=len(own))


def _opened(source: Readable, files: Files, column: Column, wanted: dict[str, int]) -> list[tuple[Ints, Fraction]]:
    """When the frames of each file are shown."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
        monitor_interval = 0  # no thread of its own

    assert column.type is not None
    kind = column.type

    def look(reference: str) -> tuple[Ints, Fraction]:
        try:
            decoder = media.open(files.source(reference, kind))
        except (SeqlakeError, OSError) as error:
            raise told(error, f"{_name(source, wanted[reference])}, column {column.name!r}, {reference}") from error
        made = decoder.pts, decoder.time_base
        decoder.close()
        return made

    what = f"counting the frames of {column.name!r}"
    if len(wanted) < 2:
        return [look(reference) for reference in wanted]
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="seqlake-counting") as pool:
        return list(Bar(pool.map(look, wanted), what, len(wanted), unit=" videos", delay=1, leave=False, disable=None))


def _name(source: Readable, row: int) -> str:
    name = source.schema.id
    return f"row {row}" if name is None else f"sequence {cells_of(source, name, np.array([row]))[0]!r}"


def count_first_rows(source: Readable, files: Files, /) -> tuple[list[Observed], str]:
    """What the first rows that have a signal and a video show: T of each signal, and the frames of each video.

    Returns:
        Up to `LOOKED_AT` rows, and why a video could not be counted, "" where all could.
    """
    from seqlake.windows.tracks import Track

    schema = source.schema
    stamps = {column.type.get("timestamps") for column in schema.values() if column.type is not None}
    signals = [name for name in schema if schema[name].category == "temporal" and name not in stamps]
    steps = {name: source.lengths(name) for name in signals}
    rows = np.flatnonzero(np.maximum.reduce(list(steps.values())) > 0)[:LOOKED_AT] if steps else np.zeros(0, np.int64)
    seen = [Observed(steps={name: int(own[row]) for name, own in steps.items()}) for row in rows.tolist()]
    failed = ""
    for name in (name for name in schema if _is_video(schema[name])):
        try:
            counts = count_frames(source, files, Track(column=name, offsets=(0,)), rows)
        except (SeqlakeError, OSError) as error:
            failed = failed or f"frames were not counted: {error}"
            continue
        for number, shown in enumerate(counts):
            frames: dict[str, Any] = {} if shown is None else {name: shown.count}
            seen[number] = replace(seen[number], frames={**seen[number].frames, **frames})
    return seen, failed


def _is_video(column: Column) -> bool:
    video = column.category == "file" and column.type is not None and column.type.type == "video"
    return video and own_rate(column) is not None

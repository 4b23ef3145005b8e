"""Where sequences begin whose samples have time stamps: the first moment at which a column has a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.windows.timestamps import Stamps, origin_at, times_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from seqlake.protocols import Ints, Readable
    from seqlake.training.opened import Opened
    from seqlake.windows.tracks import Track

_NEVER = 1 << 40  # clock steps


def times_of(tracks: Sequence[Track], /) -> list[str]:
    """The columns of time stamps of some columns, and those that say what they count from."""
    names: dict[str, None] = {}
    for track in tracks:
        if track.timestamps is not None:
            named = track.origin if isinstance(track.origin, tuple) else ()
            names |= dict.fromkeys((track.timestamps, *named))
    return list(names)


def row_of(opened: Opened, row: int, /) -> Callable[[str], Any]:
    """Gives an open row's cells of time stamps and of what they count from; None where they are null."""

    def cell(name: str) -> Any:
        if name in opened.cells:
            return opened.cell(name, row)
        single = opened.values.get(name) or opened.beside[name]
        return single.values[row] if single.values is not None and single.present[row] else None

    return cell


def first_moments(source: Readable, tracks: Sequence[Track], /) -> Mapping[str, Ints]:
    """For each column with time stamps, [rows] the first moment that has a sample, in 1/denominator clock steps.

    Reads all time stamps of the dataset.

    Raises:
        DamagedTableError: Stamps do not say a time.
    """
    names = times_of(tracks)
    found: dict[str, list[int]] = {track.column: [] for track in tracks}
    for shard in source.shards() if names else ():
        reader = shard.open()
        try:
            for batch in reader.batches(names):
                for row in range(batch.num_rows):
                    cells = {name: times_in(batch.column(name)[row]) for name in names}
                    for track in tracks:
                        found[track.column].append(_first(track, cells))
        finally:
            reader.close()
    return {name: np.array(rows, np.int64) for name, rows in found.items()}


def _first(track: Track, cells: Mapping[str, Any]) -> int:
    assert track.timestamps is not None
    stamps = Stamps.of(cells[track.timestamps], column=track.timestamps)
    if not len(stamps.own):
        return _NEVER
    return track.begins(int(stamps.own[0]) - origin_at(track.origin, cells.__getitem__) - stamps.slack)

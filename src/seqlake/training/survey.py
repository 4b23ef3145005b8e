"""What is known about a dataset before any value is read: clock, lengths, anchors, and the axis of all windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DamagedTableError
from seqlake.spec.alignment import Clock
from seqlake.training.order import Axis
from seqlake.windows.assemble import step_dtype
from seqlake.windows.clock import check_columns, dataset_clock, deciding, singles, spans, tracks
from seqlake.windows.edges import anchors, check_alike, sequence_steps
from seqlake.windows.frames import Shown, by_time, count_frames, is_clouds, steps_shown
from seqlake.windows.frames import framed as has_frames
from seqlake.windows.sounds import SoundSpan, count_sounds
from seqlake.windows.sources import MediaFiles
from seqlake.windows.spec import Whole, Window
from seqlake.windows.timestamps import Stamps, origin_at, times_in
from seqlake.windows.tracks import Track

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.spec.schema import Column

_NEVER = 1 << 40  # clock steps


def times_of(tracks: Sequence[Track], /) -> list[str]:
    """The columns of time stamps of some columns, and those that say what they count from."""
    names: dict[str, None] = {}
    for track in tracks:
        if track.timestamps is not None:
            named = track.origin if isinstance(track.origin, tuple) else ()
            names |= dict.fromkeys((track.timestamps, *named))
    return list(names)


def first_moments(source: Readable, tracks: Sequence[Track], /) -> Mapping[str, Ints]:
    """For each column with time stamps, [rows] the first moment that has a sample, in 1/denominator clock steps.

    Reads all time stamps of the dataset.

    Raises:
        DamagedTableError: Stamps do not say a time.
    """
    names = times_of(tracks)
    firsts: dict[str, list[int]] = {track.column: [] for track in tracks}
    for shard in source.shards() if names else ():
        reader = shard.open()
        try:
            for batch in reader.batches(names):
                for row in range(batch.num_rows):
                    cells = {name: times_in(batch.column(name)[row]) for name in names}
                    for track in tracks:
                        firsts[track.column].append(_first(track, cells))
        finally:
            reader.close()
    return {name: np.array(rows, np.int64) for name, rows in firsts.items()}


def _first(track: Track, cells: Mapping[str, Any]) -> int:
    assert track.timestamps is not None
    stamps = Stamps.of(cells[track.timestamps], column=track.timestamps)
    if not len(stamps.times):
        return _NEVER
    return track.begins(int(stamps.times[0]) - origin_at(track.origin, cells.__getitem__) - stamps.slack)


_WHOLE = ("temporal", "frames", "scalar", "vector", "file")


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowSurvey:
    """A dataset seen through one window.

    Attributes:
        shards: The dataset's shards.
        first_rows: [shards + 1] number of the first row of each shard, then the number of rows.
        window: The window or `Whole`.
        clock: The dataset's clock.
        tracks: The temporal columns of the window; none for `Whole`.
        framed: Its videos, columns of images and of clouds.
        clouds: Those of clouds among them.
        sounds: Its columns of sound.
        cells: Temporal columns wanted whole.
        singles: Columns with one value a sample.
        steps: [rows] N of each sequence; None for samples, whose lengths are never asked for.
        first: The first anchor of every sequence; [rows] where they begin differently.
        axis: All windows.
        counts: For each temporal column and each column of images, [rows] T; empty for samples.
        step_bytes: Bytes of one step of each column, where its shape (of frames: the resolution) is declared.
        by_row: Rows are samples and are delivered whole.
    """

    shards: Sequence[Shard]
    first_rows: Ints
    window: Window | Whole
    clock: Clock
    tracks: Sequence[Track]
    framed: Sequence[Track]
    cells: Sequence[str]
    singles: Sequence[str]
    steps: Ints | None
    first: int | Ints
    axis: Axis
    counts: Mapping[str, Ints] = field(default_factory=dict)
    step_bytes: Mapping[str, int] = field(default_factory=dict)
    by_row: bool = False
    clouds: Sequence[str] = ()
    sounds: Sequence[SoundSpan] = ()

    @property
    def rows(self) -> int:
        """Rows of the dataset."""
        return int(self.first_rows[-1])

    def shards_of(self, rows: Ints, /) -> Ints:
        """The shards that some rows are in, ascending."""
        return np.unique(np.searchsorted(self.first_rows, rows, side="right") - 1)

    @property
    def times(self) -> list[str]:
        """Columns that say when samples of the window's columns were taken: time stamps, and what they count from."""
        return times_of((*self.tracks, *self.framed))

    def anchors(self, rows: Ints, index: Ints) -> Ints:
        """[n] rows, and which of its windows -> the anchor of each, in clock steps."""
        return index * self.stride + (self.first if isinstance(self.first, int) else self.first[rows])

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample's windows, as far as shapes are declared; 0 for whole sequences."""
        wanted = (*self.tracks, *self.framed) if isinstance(self.window, Window) else ()
        return sum(self.step_bytes.get(track.column, 0) * track.width for track in wanted)

    def unplanned(self, shard: int, column: str, steps: Ints, /) -> NDArray[np.bool_]:
        """[rows of the shard] whether a cell has another number of steps than windows were planned with."""
        planned = self.counts.get(column)
        if planned is None:
            return np.zeros(len(steps), np.bool_)
        start, stop = self.first_rows[shard : shard + 2]
        other: NDArray[np.bool_] = np.maximum(planned[start:stop], 0) != np.maximum(steps, 0)
        return other

    def check_counts(self, shard: int, column: str, steps: Ints, /) -> None:
        """Windows were planned with what an index said, without a look at the shard: the shard must say the same.

        Raises:
            DamagedTableError: It does not: some windows would hold steps that are not there.
        """
        other = np.flatnonzero(self.unplanned(shard, column, steps))
        if len(other):
            row = int(other[0])
            planned = int(self.counts[column][self.first_rows[shard] + row])
            name = self.shards[shard].key.rpartition("#")[0]
            raise DamagedTableError(
                f"Column {column!r} of {name}: an index says {max(planned, 0)} steps in row {row}, the shard has "
                f"{max(int(steps[row]), 0)} ({len(other)} rows differ).",
                path=name,
                hint="`seqlake validate --depth rows` says more; `seqlake repack` writes shards and index anew.",
            )

    def describe(self) -> tuple[str, ...]:
        """One line for each column with steps or frames: how many of them a window holds, and at which rate."""
        lines = []
        if isinstance(self.window, Whole):
            return tuple(f"{name}: whole" for name in (*self.cells, *(track.column for track in self.framed)))
        for track in (*self.tracks, *self.framed):
            rate = "the clock's rate" if track.ratio == 1 else f"{track.ratio} samples a clock step"
            rate = f"time stamps in {track.timestamps!r}" if track.timestamps else rate
            what = "steps" if track in self.tracks else "frames"
            lines.append(f"{track.column}: {track.width} {what}, {rate}")
        lines += [f"{span.column}: {float(span.seconds):g} s of sound" for span in self.sounds]
        return tuple(lines)

    @property
    def stride(self) -> int:
        """Clock steps between two anchors of a sequence."""
        return self.window.stride if isinstance(self.window, Window) else 1


def survey(source: Readable, window: Window | Whole, /) -> WindowSurvey:
    """Look at a dataset through a window; opens a data file only where no index holds the lengths.

    Videos are opened where nothing else says how long a sequence is, and with edges="drop".

    Raises:
        SchemaMismatchError: The window asks for columns that are not there or cannot be delivered, or for several
            columns of unlike lengths where no clock relates them.
        ValueError: Offsets in seconds without a clock.
        DecodeError: A video that must be counted cannot be.
    """
    shards = source.shards()
    shard_rows = np.array([shard.rows for shard in shards], dtype=np.int64)
    first_rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard_rows)])
    rows = int(first_rows[-1])
    schema = source.schema
    wanted: list[Track] = []
    framed: list[Track] = []
    sounds: list[SoundSpan] = []
    if isinstance(window, Whole):
        by_row = schema.id is None
        check_columns(window.columns, schema, categories=None if by_row else _WHOLE)
        cells = [name for name in window.columns if schema[name].category == "temporal" and not by_row]
        clock = Clock(rate=None, rule="whole sequences need no clock")
        have_frames = {name for name in schema if has_frames(schema[name]) and not by_row}
        framed = [Track.of(name, [0]) for name in schema if name in window.columns and name in have_frames]
        values = [name for name in window.columns if not (name in cells or name == schema.id or name in have_frames)]
    else:
        cells, values = [], singles(window, schema)
        clock = dataset_clock(source, given=window.clock, window=window)
        wanted, framed = tracks(window, schema, clock)
        sounds = spans(window, schema, clock)
    steps, windows = None, np.ones(rows, dtype=np.int64)
    first: int | Ints = 0
    lengths = Lengths(source, wanted, framed if isinstance(window, Window) else (), rows, sounds)
    if isinstance(window, Window) and (wanted or framed or sounds) and schema.id is not None:
        known = deciding(wanted, schema)
        clouds = {track.column for track in wanted} - {track.column for track in known}
        if clock.rate is None:
            check_alike({name: counts for name, counts in lengths.all_counts().items() if name not in clouds})
        declared = _declared(source) if _needs_length(source, wanted, lengths.counts) else None
        steps = sequence_steps(
            known,
            counts=lengths.counts,
            declared=declared,
            framed=framed,
            steps_of=lengths.steps_with_frames,
            sounds=sounds,
            rows=rows,
        )
        first, windows = lengths.anchors(window, steps)
    return WindowSurvey(
        shards=shards,
        first_rows=first_rows,
        window=window,
        clock=clock,
        tracks=wanted,
        framed=framed,
        cells=cells,
        singles=values,
        steps=None if steps is None else _narrow(steps),
        first=first,
        axis=Axis.of(windows, shard_rows=shard_rows),
        counts={name: _narrow(counts) for name, counts in lengths.counts.items()},
        step_bytes={track.column: _step_bytes(schema[track.column]) for track in (*wanted, *framed)},
        by_row=isinstance(window, Whole) and schema.id is None,
        clouds=[track.column for track in framed if is_clouds(schema[track.column])],
        sounds=sounds,
    )


def _narrow(counts: Ints) -> Ints:
    """The same numbers in half the memory, where they fit: every rank has them of every row."""
    return counts.astype(np.int32) if counts.max(initial=0) < 1 << 31 else counts


def _step_bytes(column: Column) -> int:
    """Bytes of one step as batches hold it; 0 where nothing declares its shape."""
    if column.category == "temporal":
        return 0 if column.shape is None else prod(column.shape) * step_dtype(column).itemsize
    declared = column.type.get("resolution") if column.type is not None else None
    if isinstance(declared, (list, tuple)) and len(declared) == 2 and all(isinstance(one, int) for one in declared):
        return 3 * prod(declared)
    return 0


class Lengths:
    """How many steps and frames each row has; asked of an index, or counted when that is needed.

    Attributes:
        counts: Column -> [rows] T; -1 null.
        ends: Video column whose own times decide, and sound -> [rows] how many moments have a frame (how long it
            lasts), in 1/denominator clock steps.
    """

    def __init__(
        self,
        source: Readable,
        tracks: Sequence[Track],
        framed: Sequence[Track],
        rows: int,
        sounds: Sequence[SoundSpan] = (),
    ) -> None:
        self._source = source
        self._sounds = sounds
        self._rows = rows
        self._all = [*tracks, *framed]
        self._videos = [track for track in framed if source.schema[track.column].medium is not None]
        lists = [track for track in framed if track not in self._videos]
        wanted = (*tracks, *lists) if source.schema.id is not None else ()
        self.counts: dict[str, Ints] = {track.column: source.lengths(track.column) for track in wanted}
        self.ends: dict[str, Ints] = {}

    def steps_with_frames(self, track: Track | SoundSpan, rows: Ints) -> Ints:
        """[n] clock steps of some rows that have a frame, or sound, of this column; -1 where it has none."""
        if isinstance(track, SoundSpan):
            heard = count_sounds(self._source, MediaFiles.of(self._source), track, rows)
            return np.array([-1 if one is None else track.steps(*one) for one in heard], dtype=np.int64)
        frames: list[Shown | None]
        if track in self._videos:
            frames = count_frames(self._source, MediaFiles.of(self._source), track, rows)
        else:
            frames = [None if count < 0 else Shown(count=count) for count in self.counts[track.column][rows].tolist()]
        return np.array([-1 if one is None else steps_shown(track, one) for one in frames], dtype=np.int64)

    def anchors(self, window: Window, steps: Ints) -> tuple[int | Ints, Ints]:
        """The first anchor of every sequence ([rows] where they differ), and [rows] how many each sequence has.

        Args:
            window: With its stride and edges.
            steps: [rows] N.
        """
        begins: Mapping[str, Ints] = {}
        if window.edges == "drop":
            self._count_all()
            self._count_sounds()
            begins = first_moments(self._source, [track for track in self._all if track.timestamps is not None])
        return anchors(
            [*self._all, *self._sounds],
            steps=steps,
            counts=self.counts,
            stride=window.stride,
            edges=window.edges,
            ends=self.ends,
            begins=begins,
        )

    def all_counts(self) -> Mapping[str, Ints]:
        """Column -> [rows] T, with the frames of videos where others stand beside them; -1 null."""
        if len(self._all) > 1:
            self._count_all()
        return self.counts

    def _count_sounds(self) -> None:
        for span in self._sounds:
            sounds = count_sounds(self._source, MediaFiles.of(self._source), span, np.arange(self._rows))
            self.counts[span.column] = np.array([-1 if one is None else one[0] for one in sounds], dtype=np.int64)
            ends = [0 if one is None else span.moments(*one) for one in sounds]
            self.ends[span.column] = np.array(ends, dtype=np.int64)

    def _count_all(self) -> None:
        """Count the frames of every video, once."""
        for track in self._videos:
            if track.column in self.counts:
                continue
            frames = count_frames(self._source, MediaFiles.of(self._source), track, np.arange(self._rows))
            self.counts[track.column] = np.array([-1 if one is None else one.count for one in frames], dtype=np.int64)
            if by_time(track, self._source.schema[track.column]):
                ends = [0 if one is None else one.moments(track.denominator) for one in frames]
                self.ends[track.column] = np.array(ends, dtype=np.int64)


def _needs_length(source: Readable, wanted: Sequence[Track], counts: Mapping[str, Ints]) -> bool:
    """Whether some row has no column at the clock's rate to count, and a `length` that says it."""
    if "length" not in source.schema or source.schema["length"].category != "scalar":
        return False
    at_the_clock = [counts[track.column] for track in wanted if track.ratio == 1 and track.timestamps is None]
    return not at_the_clock or bool((np.maximum.reduce(at_the_clock) < 0).any())


def _declared(source: Readable) -> Ints:
    """The `length` column; -1 null."""
    parts: list[pa.Array] = []
    for shard in source.shards():
        reader = shard.open()
        try:
            parts.extend(batch.column(0) for batch in reader.batches(["length"]))
        finally:
            reader.close()
    filled = [part.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False) for part in parts]
    return np.concatenate(filled) if filled else np.zeros(0, np.int64)

"""What is known about a dataset before any value is read: clock, lengths, anchors, and the axis of all windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.spec.alignment import Clock
from seqlake.training.order import Axis
from seqlake.windows.assemble import step_dtype
from seqlake.windows.clock import check_columns, dataset_clock, singles, tracks
from seqlake.windows.edges import anchors, sequence_steps
from seqlake.windows.spec import Whole, Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.windows.tracks import Track

_WHOLE = ("temporal", "scalar", "vector", "file")


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """A dataset seen through one window.

    Attributes:
        shards: The dataset's shards.
        first_rows: [shards + 1] number of the first row of each shard, then the number of rows.
        window: The window or `Whole`.
        clock: The dataset's clock.
        tracks: The temporal columns of the window; none for `Whole`.
        cells: Temporal columns wanted whole.
        singles: Columns with one value a sample.
        steps: [rows] N of each sequence; None for samples, whose lengths are never asked for.
        first: The first anchor of every sequence.
        axis: All windows.
        counts: For each track's column, [rows] T; empty for samples.
        step_bytes: Bytes of one step of each track's column, where its shape is declared.
    """

    shards: Sequence[Shard]
    first_rows: Ints
    window: Window | Whole
    clock: Clock
    tracks: Sequence[Track]
    cells: Sequence[str]
    singles: Sequence[str]
    steps: Ints | None
    first: int
    axis: Axis
    counts: Mapping[str, Ints] = field(default_factory=dict)
    step_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of the dataset."""
        return int(self.first_rows[-1])

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample's windows, as far as shapes are declared."""
        sizes = (self.step_bytes.get(track.column, 0) * track.width for track in self.tracks)
        return sum(sizes)

    def describe(self) -> tuple[str, ...]:
        """One line for each temporal column: how many steps a window holds, and at which rate."""
        lines = []
        for track in self.tracks:
            rate = "the clock's rate" if track.ratio == 1 else f"{track.ratio} samples a clock step"
            rate = f"time stamps in {track.timestamps!r}" if track.timestamps else rate
            lines.append(f"{track.column}: {track.width} steps, {rate}")
        return tuple(lines)

    @property
    def stride(self) -> int:
        """Clock steps between two anchors of a sequence."""
        return self.window.stride if isinstance(self.window, Window) else 1


def survey(source: Readable, window: Window | Whole, /) -> Survey:
    """Look at a dataset through a window; opens a data file only where no index holds the lengths.

    Raises:
        SchemaMismatchError: The window asks for columns that are not there or cannot be delivered, or for several
            columns of unlike lengths where no clock relates them.
        ValueError: Offsets in seconds without a clock.
    """
    shards = source.shards()
    shard_rows = np.array([shard.rows for shard in shards], dtype=np.int64)
    first_rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard_rows)])
    rows = int(first_rows[-1])
    schema = source.schema
    if isinstance(window, Whole):
        check_columns(window.columns, schema, categories=_WHOLE)
        cells = [name for name in window.columns if schema[name].category == "temporal"]
        clock = Clock(rate=None, rule="whole sequences need no clock")
        wanted: list[Track] = []
        values = [name for name in window.columns if name not in cells and name != schema.id]
    else:
        cells, values = [], singles(window, schema)
        clock = dataset_clock(source, given=window.clock)
        wanted = tracks(window, schema, clock)
    counts: dict[str, Ints] = {}
    steps, first, windows = None, 0, np.ones(rows, dtype=np.int64)
    if wanted and schema.id is not None:
        assert isinstance(window, Window)
        counts = {track.column: source.lengths(track.column) for track in wanted}
        if clock.rate is None:
            _check_alike(counts)
        declared = _declared(source) if _needs_length(source, wanted, counts) else None
        steps = sequence_steps(wanted, counts=counts, declared=declared)
        first, windows = anchors(wanted, steps=steps, counts=counts, stride=window.stride, edges=window.edges)
    return Survey(
        shards=shards,
        first_rows=first_rows,
        window=window,
        clock=clock,
        tracks=wanted,
        cells=cells,
        singles=values,
        steps=steps,
        first=first,
        axis=Axis.of(windows, shard_rows=shard_rows),
        counts=counts,
        step_bytes={
            track.column: prod(shape) * step_dtype(schema[track.column]).itemsize
            for track in wanted
            if (shape := schema[track.column].shape) is not None
        },
    )


def _check_alike(counts: Mapping[str, Ints]) -> None:
    """Without a clock, columns share steps only where they have equally many in every row."""
    (first, own), *others = counts.items()
    for name, other in others:
        unlike = np.flatnonzero((own != other) & (own >= 0) & (other >= 0))
        if len(unlike):
            row = int(unlike[0])
            raise SchemaMismatchError(
                f"Columns {first!r} and {name!r} have {own[row]} and {other[row]} steps in row {row}, and no clock "
                f"relates them ({len(unlike)} rows differ).",
                hint="Declare fps on the columns, or window them one at a time.",
            )


def _needs_length(source: Readable, wanted: Sequence[Track], counts: Mapping[str, Ints]) -> bool:
    """Whether some row has no column at the clock's rate to count, and a `length` that says it."""
    if "length" not in source.schema or source.schema["length"].category != "scalar":
        return False
    own = [counts[track.column] for track in wanted if track.ratio == 1 and track.timestamps is None]
    return not own or bool((np.maximum.reduce(own) < 0).any())


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

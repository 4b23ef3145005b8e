"""Pieces of sequences: which samples of each column lie between two steps of the clock, and cells cut to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import HasVersion, ability
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.errors import SchemaMismatchError
from seqlake.shards.cells import listed
from seqlake.spec.alignment import Clock, Observed, on_clock, own_rate, sample_at, steps_of_row
from seqlake.spec.stamps import origin_of
from seqlake.windows.timestamps import Stamps, nanoseconds, origin_at
from seqlake.windows.tracks import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.dataset.reading.cells import BatchRow
    from seqlake.dataset.reading.sequence import SequenceView
    from seqlake.protocols import Readable
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some consecutive steps of one sequence.

    Attributes:
        row: Which sequence, by its place in the batch at hand.
        start: First step of the clock.
        stop: One past the last.
        steps: All steps that the sequence has.
        id: What the piece is called.
    """

    row: int
    start: int
    stop: int
    steps: int
    id: str

    @property
    def whole(self) -> bool:
        """Whether it is the sequence as it was."""
        return self.start == 0 and self.stop == self.steps


def rate_advice(source: Readable, name: str | None = None, /) -> str:
    """What to do where nothing says a rate, as half a sentence: who may declare it, how, and at which signal.

    Args:
        source: The rows.
        name: The signal; by default the first one that stands on the clock.
    """
    schema = source.schema
    signals = (one for one in schema if schema[one].category == "temporal" and schema[one].timestamps is None)
    name = next(signals, "action") if name is None else name
    declared = schema[name].type if name in schema else None
    dim = None if declared is None else declared.to_json().get("dim")
    kind = "sl.ColumnType('trajectory', fps=20)" if dim is None else f"sl.Trajectory(dim={dim}, fps=20)"
    if ability(Excerpt.of(source).source, HasVersion) is not None:
        return f"declare it, as in ds.set_type({name!r}, {kind})."
    return f"convert it and declare it there: sl.convert(source, out).set_type({name!r}, {kind})."


def refuse_counts(schema: Schema, verb: str, /) -> None:
    """Refuse columns that count, for each step, samples of others: these are cut by times, and the counts fit no more.

    A format names them in its notes in the metadata, under `counts`.

    Raises:
        SchemaMismatchError: There are some.
    """
    notes = [one.get("counts") for one in schema.metadata.extra.values() if isinstance(one, dict)]
    named = [name for one in notes if isinstance(one, list) for name in one]
    counts = [name for name in named if isinstance(name, str) and name in schema]
    if counts:
        raise SchemaMismatchError(
            f"Expected to {verb} rows whose columns go by steps or times; found {', '.join(counts)}, which count for "
            "each step samples of other columns, and would fit them no more.",
            hint=f"Leave them out: ds.select(*[name for name in ds.schema if name not in {counts}]). Or {verb} another "
            "view of the source: of L5Kit, its path or its tracks.",
        )


class Spans:
    """Which samples of a column belong to a piece.

    A column at the clock's rate gives its steps; one at another rate, or with times of its own, begins with the latest
    sample at or before the piece's first moment, as windows do, and has as many as the piece lasts.

    Args:
        source: The rows.
        clock: Of the dataset.
    """

    def __init__(self, source: Readable, clock: Clock, /) -> None:
        self._source = source
        self._schema = schema = source.schema
        self.clock = clock
        self._times = {name: schema[name].timestamps for name in schema}
        self._origins = {str(self._times[n]): origin_of(schema, n) for n in self._times if self.stamps_of(n)}
        # A column of times is cut by itself.
        self._times |= {stamps: stamps for stamps in self._times.values() if stamps is not None and stamps in schema}

    def stamps_of(self, name: str, /) -> str | None:
        """The column that holds the times of this one's samples."""
        times = self._times.get(name)
        return times if times in self._schema else None

    def span(self, name: str, piece: Piece, there: int, cell_of: Callable[[str], Any] | None = None) -> tuple[int, int]:
        """First sample, and one past the last.

        Args:
            name: The column.
            piece: Which steps.
            there: How many samples the sequence has of it.
            cell_of: Gives the sequence's cell of a column, for the times of samples, where the column has some.

        Raises:
            SchemaMismatchError: Samples have times, and nothing says how long a step is.
        """
        if piece.whole:
            return 0, there
        if cell_of is not None and self.stamps_of(name) is not None:
            first, stop = self._timed(name, piece, cell_of)
        elif on_clock(self._schema, name, self.clock.rate):
            first, stop = piece.start, piece.stop
        else:
            first, stop = self._at_rate(piece, own_rate(self._schema[name]) or self.rate(name))
        first = min(max(0, first), there)
        return first, min(max(first, stop), there)

    def rate(self, name: str, /) -> Fraction:
        """Steps per second.

        Raises:
            SchemaMismatchError: Nothing says it.
        """
        if self.clock.rate is None:
            raise SchemaMismatchError(
                f"Column {name!r} has its own times, and nothing says how long a step of the clock is.",
                hint=f"First {rate_advice(self._source)}",
            )
        return self.clock.rate

    def _at_rate(self, piece: Piece, rate: Fraction) -> tuple[int, int]:
        clock = self.rate("")
        first = sample_at(piece.start, clock=clock, rate=rate)
        lasting = (piece.stop - piece.start) * rate / clock
        return first, first + -(-lasting.numerator // lasting.denominator)

    def _timed(self, name: str, piece: Piece, cell_of: Callable[[str], Any]) -> tuple[int, int]:
        times = str(self.stamps_of(name))
        cell = cell_of(times)
        stamps = Stamps.of(None if cell is None else np.asarray(cell), column=times)
        origin = origin_at(self._origins[times], cell_of)
        begin, end = (self._after(name, step) for step in (piece.start, piece.stop))
        first = max(0, int(stamps.latest(np.array([begin]), origin=origin)[0]))
        # One that stands at the end belongs to what follows.
        return first, int(np.searchsorted(stamps.times - origin, end - stamps.slack, side="left"))

    def _after(self, name: str, step: int) -> int:
        """Nanoseconds from the start of a sequence to a step, rounded up as windows do."""
        rate = self.rate(name)
        return -(-step * NANOSECONDS * rate.denominator // rate.numerator)

    def later(self, name: str, cells: pa.Array, pieces: Sequence[Piece]) -> pa.Array:
        """One time a row from which stamps of other columns count, moved to where each piece begins."""
        if (name,) not in self._origins.values():
            return cells
        after = [self._after(name, piece.start) for piece in pieces]
        if pa.types.is_floating(cells.type):
            more = pa.array([one / NANOSECONDS for one in after], pa.float64())
        else:
            more = pa.array(after, pa.int64() if pa.types.is_integer(cells.type) else pa.duration("ns"))
        return pc.add(cells, more).cast(cells.type, safe=False)

    def restamped(self, times: str, stamps: NDArray[Any], piece: Piece, cell_of: Callable[[str], Any]) -> NDArray[Any]:
        """[T] the time stamps of a piece, so that its clock stands at 0 where the piece begins.

        The sample that stood at the cut was taken before it; it is stamped with the cut. Where stamps count from a
        number, they count from it again.

        Args:
            times: The column of time stamps.
            stamps: [T] those of the piece, as the sequence has them.
            piece: Which steps.
            cell_of: Gives the sequence's cell of a column.
        """
        if piece.start == 0 or not len(stamps):
            return stamps
        declared, after = self._origins[times], self._after(times, piece.start)
        origin = origin_at(declared, cell_of)
        # Those before the cut move to it, and all of them back to a number, if it is one that they count from.
        cut, back = origin + after, 0 if isinstance(declared, tuple) else after
        if stamps.dtype.kind == "f":
            moved = np.maximum(stamps, cut / NANOSECONDS) - back / NANOSECONDS
        else:
            moved = np.maximum(nanoseconds(stamps), cut) - back
        if stamps.dtype.kind in "mM":
            moved = moved.astype(f"{stamps.dtype.kind}8[ns]")
        stored: NDArray[Any] = moved.astype(stamps.dtype)
        return stored


def steps_in(row: BatchRow, view: SequenceView, clock: Clock, /) -> int:
    """N, the steps of the clock that a sequence has: of its first signal, else `length`, else a video's frames.

    Args:
        row: The sequence, as it is written anew.
        view: The same, for the frames of its files.
        clock: Of the dataset.

    Raises:
        SchemaMismatchError: Nothing says it.
    """
    schema = row.schema
    frames = {}
    there = {name: row.length(name) for name in schema if schema[name].category == "temporal"}
    steps = {name: -1 if count is None else count for name, count in there.items()}
    length = row.value("length") if "length" in schema and schema["length"].category == "scalar" else None
    observed = Observed(steps=steps, length=int(length) if isinstance(length, int) else None)
    counted = steps_of_row(observed, schema, clock, list(schema))
    if counted is not None:
        return counted
    for name in schema:
        column = schema[name]
        if (
            (column.medium == "video" or column.category == "frames")
            and on_clock(schema, name, clock.rate)
            and view[name] is not None
        ):
            frames[name] = len(view[name])
    if not frames:
        raise SchemaMismatchError(f"{row.where()}: nothing says how many steps it has.")
    return next(iter(frames.values()))


def sliced(cells: pa.Array, pieces: Sequence[Piece], spans: Sequence[tuple[int, int]], /) -> pa.Array:
    """List cells cut to some of their elements, one for each piece; null where the cell was.

    Args:
        cells: [rows] lists.
        pieces: Say of which rows.
        spans: First element and one past the last, for each piece.

    Example:
        >>> sliced(pa.array([[1, 2, 3]]), [Piece(row=0, start=1, stop=3, steps=3, id="a")], [(1, 3)]).to_pylist()
        [[2, 3]]
    """
    whole = [cells[piece.row].values for piece in pieces]
    parts = [None if one is None else one.slice(a, b - a) for one, (a, b) in zip(whole, spans, strict=True)]
    values = [one for one in parts if one is not None]
    lengths = np.array([-1 if one is None else len(one) for one in parts], np.int64)
    return listed(lengths, pa.concat_arrays(values) if values else pa.nulls(0, cells.type.value_type), cells.type)


def changes(values: NDArray[Any], /) -> list[int]:
    """Steps at which a signal has another value than before.

    Args:
        values: [T] or [T, D]; NaN is like NaN.

    Example:
        >>> changes(np.array([0, 0, 1, 1, 0]))
        [2, 4]
    """
    if not len(values):
        return []
    flat = values.reshape(len(values), -1)
    same = flat[1:] == flat[:-1]
    if flat.dtype.kind == "f":
        same |= np.isnan(flat[1:]) & np.isnan(flat[:-1])
    return [int(step) + 1 for step in np.flatnonzero(~same.all(1))]

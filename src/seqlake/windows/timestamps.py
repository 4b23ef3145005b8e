"""Samples that carry their own times: which one stands at a given moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import DamagedTableError
from seqlake.spec.alignment import exact
from seqlake.spec.stamps import stamps_fault
from seqlake.windows.tracks import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.stamps import Origin
    from seqlake.windows.tracks import Track

_SLOWEST, _FASTEST = 0.01, 10_000.0
_UNEVEN = 0.01  # of a rate: recorders of 10 Hz are late and early by some parts of a millisecond
_TICKS = {"s": NANOSECONDS, "ms": 1_000_000, "us": 1000, "ns": 1}


def nanoseconds(stamps: NDArray[Any]) -> Ints:
    """Time stamps as whole nanoseconds.

    Args:
        stamps: [T] whole numbers (nanoseconds), finite floating-point numbers (seconds), or numpy times.
    """
    if stamps.dtype.kind in "mM":
        return stamps.astype(f"{stamps.dtype.kind}8[ns]").astype(np.int64)
    if stamps.dtype.kind == "f":
        exact = stamps.astype(np.float64)
        whole = np.floor(exact)  # apart, because seconds since 1970 times 1e9 are no float64 any more
        rest: Ints = np.rint((exact - whole) * NANOSECONDS).astype(np.int64)
        return whole.astype(np.int64) * NANOSECONDS + rest
    return stamps.astype(np.int64)


def usual_rate(times: NDArray[Any], /) -> float | None:
    """Samples per second, from the middle one of the gaps between their times; None where none makes sense.

    Args:
        times: [n] nanoseconds; of several sequences too, since what lies between two of them is one gap of many.

    Example:
        >>> usual_rate(np.array([0, 99_700_000, 199_900_000, 300_300_000]))
        10
    """
    if times.dtype.kind not in "iu" or times.ndim != 1:
        return None
    gaps = np.diff(times.astype(np.int64))
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return None
    measured = NANOSECONDS / float(np.median(gaps))
    if not _SLOWEST <= measured <= _FASTEST:
        return None
    whole = round(measured)
    return whole if abs(measured - whole) <= _UNEVEN * whole else float(exact(measured))


@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """When the samples of one column of one sequence were taken.

    Attributes:
        times: [T] ascending, in whole nanoseconds; what they count from, the sequence's origin says.
        slack: Nanoseconds by which rounding to a floating-point number may have moved a stamp and the origin.
    """

    times: Ints
    slack: int = 0

    @classmethod
    def of(cls, cell: NDArray[Any] | None, /, *, column: str) -> Stamps:
        """Of a cell; a null one has none.

        Args:
            cell: [T] or [T, 1] time stamps.
            column: Where they stand, for messages.

        Raises:
            DamagedTableError: They do not say when: not ascending, not finite, or a float32 too coarse for them.
        """
        if cell is None or not len(cell):
            return cls(np.zeros(0, np.int64))
        flat = _flat(cell)
        fault = stamps_fault(flat)
        if fault is not None:
            raise DamagedTableError(
                f"Column {column!r} cannot say when samples were taken: {fault[1]}.",
                hint="`seqlake validate` names all such rows.",
            )
        slack = 0
        if flat.dtype.kind == "f":
            coarse = float(np.spacing(np.abs(flat[[0, -1]]).max()))
            slack = int(coarse * NANOSECONDS) + 1 if coarse * NANOSECONDS >= 1 else 0
        return cls(nanoseconds(flat), slack)

    def latest(self, times: Ints, /, *, origin: int) -> Ints:
        """The latest sample at or before each time; -1 where there is none.

        Args:
            times: Nanoseconds after the sequence's start, of any shape.
            origin: The start, as the stamps count.
        """
        if not len(self.times):
            return np.full(times.shape, -1, dtype=np.int64)
        return np.searchsorted(self.times - origin, times + self.slack, side="right") - 1


def origin_at(origin: Origin, cell_of: Callable[[str], Any], /) -> int:
    """The start of one sequence as its time stamps count, in nanoseconds; 0 where nothing tells it.

    Args:
        origin: What is said about it: see `spec.stamps.origin_of`.
        cell_of: Gives the row's cell of a column: [T] or [T, 1] time stamps, or one time; None where it is null.
    """
    if not isinstance(origin, tuple):
        return int(nanoseconds(np.asarray([origin]))[0])
    cells = {name: cell for name in origin if (cell := cell_of(name)) is not None}
    return min([time for name, cell in cells.items() for time in nanoseconds(_flat(cell)[:1]).tolist()], default=0)


def _flat(cell: Any) -> NDArray[Any]:
    """[T] times; those that came as Python's own as numpy's."""
    flat = np.asarray(cell).reshape(-1)
    if flat.dtype.kind != "O":
        return flat
    if not any(isinstance(one, datetime) for one in flat):
        return flat.astype(np.float64)  # numbers, and None for those that are missing
    naive = [one.astimezone(UTC).replace(tzinfo=None) if one is not None and one.tzinfo else one for one in flat]
    return np.array(naive, "M8[ns]")


def samples_at(track: Track, anchors: Ints, cell_of: Callable[[str], Any], /) -> Ints:
    """[n, W] the latest sample of a column at or before each moment of windows of one row; -1 where there is none.

    Args:
        track: A column that has time stamps, on the clock.
        anchors: [n] clock steps.
        cell_of: Gives the row's cell of a column: an array, or one time; None where it is null.

    Raises:
        DamagedTableError: The stamps do not say a time.
    """
    assert track.timestamps is not None
    cell = cell_of(track.timestamps)
    stamps = Stamps.of(None if cell is None else np.asarray(cell), column=track.timestamps)
    return stamps.latest(track.nanoseconds(anchors), origin=origin_at(track.origin, cell_of))


def times_in(cell: pa.Scalar, /) -> Any:
    """What an Arrow cell holds, as `samples_at` takes it: [T] numbers of a list, one value, None where it is null."""
    if not cell.is_valid:
        return None
    values = getattr(cell, "values", None)
    if values is None:
        kind = cell.type
        timed = kind.id == pa.timestamp("ns").id or kind.id == pa.duration("ns").id
        return cell.cast(pa.int64()).as_py() * _TICKS[kind.unit] if timed else cell.as_py()
    while hasattr(values, "flatten") and values.type.num_fields:
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False)

"""Intervals of scenes and frames: which rows of another array each names, and what is refused of them everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import InvalidMetadataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

_OFTEN = 100  # times that all rows of an array may be named, on average
_FEW = 1_000_000  # rows that may be named as often as one likes


def expect_fields(dtype: np.dtype[Any], names: Sequence[str], /, *, array: str, path: str = "") -> None:
    """See that rows have the fields that somebody asks for by name.

    Raises:
        InvalidMetadataError: One is missing.
    """
    missing = [name for name in names if name not in (dtype.names or ())]
    if missing:
        raise InvalidMetadataError(
            f"{path or 'The store'}: {array} has no field {missing[0]!r}; it has {', '.join(dtype.names or ())}.",
            path=path or None,
        )


def in_range(intervals: NDArray[Any], size: int, /, *, what: str, array: str, path: str = "") -> Ints:
    """[n, 2] the intervals as whole numbers: the first row, and the one after the last.

    Args:
        intervals: [n, 2] of scenes or frames.
        size: Rows of the array that they name.
        what: Whose they are, for messages.
        array: The name of the array.
        path: The store.

    Raises:
        InvalidMetadataError: One ends before it begins, or leaves the array.
    """
    pairs = intervals.astype(np.int64)
    # Unsigned numbers above 2^63 come out negative, which is refused as well.
    wrong = np.flatnonzero((pairs[:, 0] < 0) | (pairs[:, 1] < pairs[:, 0]) | (pairs[:, 1] > size))
    if len(wrong):
        row = int(wrong[0])
        first, last = pairs[row].tolist()
        raise InvalidMetadataError(
            f"{path or 'The store'}: {what} {row} names the rows {first} to {last} of {array}, which has {size}.",
            path=path or None,
            hint="The store is cut off, or its arrays are of different stores.",
        )
    return pairs


def span(intervals: Ints, /, *, array: str, path: str = "") -> slice:
    """Rows from the first of the first interval to the last of the last one, as l5kit takes those of a scene.

    Raises:
        InvalidMetadataError: An interval between them names rows outside of that.
    """
    if not len(intervals):
        return slice(0, 0)
    rows = slice(int(intervals[0, 0]), int(intervals[-1, 1]))
    named = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(named) and (int(named[:, 0].min()) < rows.start or int(named[:, 1].max()) > rows.stop):
        raise InvalidMetadataError(
            f"{path or 'The store'}: the frames of a scene name rows of {array} outside of {rows.start} to "
            f"{rows.stop}, where its first frame begins and its last one ends.",
            path=path or None,
            hint="sl.scan reads such stores as they are.",
        )
    return rows


def refuse_overlap(named: int, size: int, /, *, array: str, path: str) -> None:
    """See that intervals do not name the same rows again and again, before memory is taken for them.

    Raises:
        InvalidMetadataError: They do.
    """
    if named > _FEW + _OFTEN * size:
        raise InvalidMetadataError(
            f"{path}: the intervals of all scenes together name {named} rows of {array}, which has {size}.", path=path
        )

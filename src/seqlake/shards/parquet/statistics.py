"""Least and greatest value and number of nulls of scalar columns, gathered while writing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST = 64  # characters of a text bound; longer ones say nothing


class Statistics:
    """Bounds of the scalar columns of a shard.

    A bound is None where it is not known: no value, NaN among the values (engines disagree where it sorts), long
    text, or a type without an order.
    """

    def __init__(self, columns: Sequence[str], /) -> None:
        self._nulls = dict.fromkeys(columns, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unknown: set[str] = set()

    def add(self, table: pa.Table, /) -> None:
        """Take over the rows of one row group."""
        for name in self._nulls:
            column = table[name]
            self._nulls[name] += column.null_count
            if name in self._unknown or column.null_count == len(column):
                continue
            low, high = _bounds(column)
            if low is None or high is None:
                self._unknown.add(name)
                self._bounds.pop(name, None)
            elif name in self._bounds:
                self._bounds[name] = (min(low, self._bounds[name][0]), max(high, self._bounds[name][1]))
            else:
                self._bounds[name] = (low, high)

    def result(self) -> Mapping[str, tuple[object, object, int]]:
        """Column -> (least, greatest, nulls)."""
        return {name: (*self._bounds.get(name, (None, None)), nulls) for name, nulls in self._nulls.items()}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    try:
        found = pc.min_max(column).as_py()
    except pa.ArrowNotImplementedError:
        return None, None
    low, high = found["min"], found["max"]
    if isinstance(low, (str, bytes)) and max(len(low), len(high)) > _LONGEST:
        return None, None
    return low, high

"""Samples of texts and numbers, which is all that lines of text hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.formats._streaming.cells import CellError, absent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_KINDS: dict[str, type] = {"str": str, "int": int, "float": float}


class Plain:
    """Columns whose values are texts, integers and floats.

    Args:
        columns: Pairs of (name, encoding).

    Raises:
        ValueError: Another encoding.
    """

    def __init__(self, columns: Iterable[tuple[str, str]], /) -> None:
        self._kinds: list[tuple[str, type]] = []
        for name, encoding in columns:
            if encoding not in _KINDS:
                raise ValueError(f"Column {name!r}: expected {', '.join(_KINDS)}, found {encoding!r}.")
            self._kinds.append((name, _KINDS[encoding]))

    def values(self, sample: Mapping[str, Any], /) -> Iterator[tuple[str, Any]]:
        """(name, value) of each column of a sample.

        Raises:
            CellError: A value of another type, or none at all; names the column.
        """
        for name, kind in self._kinds:
            if name not in sample:
                raise CellError(absent(name, sample))
            value = sample[name]
            if not isinstance(value, kind):
                raise CellError(f"column {name!r}: expected {kind.__name__}, found {type(value).__name__}")
            yield name, value

"""Tables of numbers in text, as PCD and PLY have them: a line for each point, blank ones between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_BLOCK = 1 << 20  # bytes whose numbers are Python's for a while, at forty bytes each
_LONGEST = 64  # characters of a number; numpy gives all of a column the room of the longest


def table(data: memoryview, kinds: Sequence[np.dtype[Any]], rows: int, /) -> list[NDArray[Any]]:
    """The first lines of a text, column by column.

    Args:
        data: From the first number on.
        kinds: The type of each column.
        rows: How many lines.

    Returns:
        For each column an array [rows].

    Raises:
        ValueError: Lines are missing, have other numbers of values, or hold what is no number of its type.
    """
    if rows * 2 * len(kinds) > len(data) + 1:  # a digit and what parts it from the next
        raise ValueError(f"{rows:,} lines of {len(kinds)} numbers are declared, and {len(data):,} bytes are there")
    columns = [np.empty(rows, kind) for kind in kinds]
    start = 0
    for block in _lines(data):
        lines = block[: rows - start]
        for line in lines:
            if len(line) != len(kinds):
                raise ValueError(f"expected {len(kinds)} numbers in each line, found {len(line)}")
        stop = start + len(lines)
        for column, values in zip(columns, zip(*lines, strict=True), strict=bool(lines)):
            column[start:stop] = _numbers(values, column.dtype)
        start = stop
        if start == rows:
            return columns
    if start < rows:
        raise ValueError(f"expected {rows:,} lines, found {start:,}")
    return columns


def _lines(data: memoryview) -> Iterator[list[list[bytes]]]:
    """Lines that are not blank, in values, about a block of them at a time."""
    rest = b""
    for at in range(0, len(data), _BLOCK):
        whole, newline, rest = (rest + data[at : at + _BLOCK]).rpartition(b"\n")
        if len(rest) > _BLOCK:
            raise ValueError("a line is longer than a million characters")
        yield [values for line in whole.split(b"\n") if (values := line.split())] if newline else []
    yield [values] if (values := rest.split()) else []


def _numbers(values: Sequence[bytes], kind: np.dtype[Any]) -> NDArray[Any]:
    if (longest := max(values, key=len)) and len(longest) > _LONGEST:
        raise ValueError(f"expected a number, found {longest[:20]!r}...")
    text = np.array(values)
    if kind.kind == "f":
        with np.errstate(over="ignore"):  # beyond the type is infinite, as in C
            return text.astype(kind)
    whole = text.astype(np.uint64 if kind == np.uint64 else np.int64)
    limits = np.iinfo(kind)
    if whole.min() < limits.min or whole.max() > limits.max:
        raise ValueError(f"expected values of {kind}, found {whole.min()} to {whole.max()}")
    return whole.astype(kind)

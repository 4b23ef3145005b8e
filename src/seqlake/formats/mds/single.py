"""Single samples of a mapped shard, fast: the layout becomes one function, made when the shard is opened.

Reading one sample is a few microseconds of Python, so each step counts: no sample or cell is looked at as an object of
its own, and what cannot be is found out by failing. Whoever calls reads a sample that failed again, slowly, to say why.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.formats._streaming.encodings import Encoding
    from seqlake.formats.mds.arrays import Array

_INT = struct.Struct("<q").unpack_from
_PAIR = struct.Struct("<2I").unpack_from


def reader(
    view: memoryview, columns: Sequence[tuple[str, int | None, Callable[[memoryview, int, int], Any]]], /
) -> Callable[[int], dict[str, Any]]:
    """A function from the number of a sample to its values.

    Args:
        view: The shard, whose offsets were looked at.
        columns: Name, size (None: the sample says) and decoder of each, in order.

    Returns:
        The function. Any exception of it means that the sample is damaged.
    """
    heads = struct.Struct(f"<{sum(size is None for _, size, _ in columns)}I")
    lengths_of, head = heads.unpack_from, heads.size
    if all(size is not None for _, size, _ in columns):
        places, at = [], 0
        for name, size, decode in columns:
            places.append((name, at, at := at + (size or 0), decode))
        whole = at

        def fixed(row: int) -> dict[str, Any]:
            start, stop = _PAIR(view, 4 + 4 * row)
            if stop - start != whole:
                raise ValueError(row)
            return {name: decode(view, start + first, start + end) for name, first, end, decode in places}

        return fixed

    return _unrolled(view, columns, lengths_of, head)


def _unrolled(
    view: memoryview, columns: Sequence[tuple[str, int | None, Any]], lengths_of: Callable[..., Any], head: int
) -> Callable[[int], dict[str, Any]]:
    """The loop over columns written out, as in `packing`; names, decoders and sizes are the function's globals."""
    known: dict[str, Any] = {"view": view, "pair": _PAIR, "lengths_of": lengths_of}
    lengths, steps, cells = [], [f"at0 = start + {head}"], []
    for number, (name, size, decode) in enumerate(columns):
        known |= {f"name{number}": name, f"decode{number}": decode}
        if size is None:
            lengths.append(f"length{number}")
        steps.append(f"at{number + 1} = at{number} + {f'length{number}' if size is None else size}")
        cells.append(f"name{number}: decode{number}(view, at{number}, at{number + 1})")
    lines = [
        "def read(row):",
        " start, stop = pair(view, 4 + 4 * row)",
        f" {', '.join(lengths)}, = lengths_of(view, start)",
        *(f" {step}" for step in steps),
        f" if at{len(columns)} != stop:",
        "  raise ValueError(row)",
        f" return {{{', '.join(cells)}}}",
    ]
    exec("\n".join(lines), known)  # noqa: S102 - made of numbers alone
    made: Callable[[int], dict[str, Any]] = known["read"]
    return made


def decoder(name: str, encoding: Encoding, array: Array | None, /) -> Callable[[memoryview, int, int], Any]:
    """How a cell is read from a shard's bytes.

    Args:
        name: Of the encoding, if it is none of the user's.
        encoding: What reads a cell that stands alone.
        array: Of a column whose cells are arrays of one shape.
    """
    if array is not None:
        return _array(tuple(array.shape or ()), np.dtype(array.dtype))
    known = {"bytes": _bytes, "str": _text, "int": _int}.get(name)
    if known is not None:
        return known
    if name in _NUMBERS:
        return _number(np.dtype(name))
    decode = encoding.decode
    return lambda view, start, stop: decode(view[start:stop])


_NUMBERS = {"uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}


def _bytes(view: memoryview, start: int, stop: int) -> bytes:
    return view[start:stop].tobytes()


def _text(view: memoryview, start: int, stop: int) -> str:
    return str(view[start:stop], "utf-8")


def _int(view: memoryview, start: int, stop: int) -> int:  # noqa: ARG001 - as every decoder
    found: int = _INT(view, start)[0]
    return found


def _number(dtype: np.dtype[Any]) -> Callable[[memoryview, int, int], Any]:
    little = dtype.newbyteorder("<")

    def number(view: memoryview, start: int, stop: int) -> Any:  # noqa: ARG001 - as every decoder
        return np.ndarray((), little, view, start)[()]

    return number


def _array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[memoryview, int, int], Any]:
    little = dtype.newbyteorder("<")

    def array(view: memoryview, start: int, stop: int) -> Any:  # noqa: ARG001 - as every decoder
        return np.ndarray(shape, little, view, start)

    return array

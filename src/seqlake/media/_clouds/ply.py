"""PLY: the vertices with all their properties, in text and binary of either byte order.

Scans with intensity, ring and time, and the Gaussians of splats, are vertices with more properties. Faces are read by
trimesh (`spatial.load`). Read by numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqlake.errors import DecodeError
from seqlake.media._clouds import numbers_in_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.spec.column_types import ColumnType

_HEADER = 1 << 16  # bytes in which it ends
_KINDS = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip
_ORDERS: dict[str, Literal["=", "<", ">"]] = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}


@dataclass(slots=True)
class _Element:
    """What a header says of one kind of element.

    Attributes:
        name: As in `vertex`.
        count: How many there are.
        fields: Of numbers.
        lists: The types of the lengths of its lists.
    """

    name: str
    count: int
    fields: list[tuple[str, str]]
    lists: list[str]

    def least(self, *, text: bool) -> int:
        """The fewest bytes that it can take."""
        if text:
            return self.count * 2 * max(1, len(self.fields) + len(self.lists))
        return self.count * sum(np.dtype(kind).itemsize for kind in [*(kind for _, kind in self.fields), *self.lists])


def check(data: memoryview, hold: Callable[[int], None], /) -> None:
    """Compare what a file says of itself with its bytes.

    Raises:
        ValueError: It has more elements than bytes for them.
    """
    text, elements, start = _header(data)
    _compare(elements, len(data) - start, text=text == "ascii")
    hold(sum(one.count for one in elements))


def read(data: memoryview, column: ColumnType, hold: Callable[[int], None], /) -> NDArray[Any]:  # noqa: ARG001 - as all
    """[points] structured: the numbers of each vertex, in this machine's byte order."""
    form, elements, start = _header(data)
    at = next((number for number, one in enumerate(elements) if one.name == "vertex"), None)
    if at is None:
        raise ValueError("it has no element called vertex")
    vertex, before = elements[at], elements[:at]
    _compare(elements, len(data) - start, text=form == "ascii")
    hold(vertex.count)
    if vertex.lists or (form != "ascii" and any(one.lists for one in before)):
        raise DecodeError(
            "lists in or before the vertices of a PLY file are not read as points; write vertices first, as numbers."
        )
    names = [name for name, _ in vertex.fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected properties of vertices, each once, found {' '.join(names)[:200]!r}")
    kinds = [np.dtype(kind) for _, kind in vertex.fields]
    cloud = np.empty(vertex.count, list(zip(names, kinds, strict=True)))
    if form == "ascii":
        rows = _after(data[start:], sum(one.count for one in before))
        for name, values in zip(names, numbers_in_text.table(rows, kinds, vertex.count), strict=True):
            cloud[name] = values
        return cloud
    stored = np.dtype([(name, kind.newbyteorder(_ORDERS[form])) for name, kind in zip(names, kinds, strict=True)])
    cloud[:] = np.frombuffer(data, stored, vertex.count, start + sum(one.least(text=False) for one in before))
    return cloud


def _header(data: memoryview) -> tuple[str, list[_Element], int]:
    """The form, the elements, and where the first of them begins."""
    text = bytes(data[:_HEADER])
    end = text.find(b"end_header")
    newline = text.find(b"\n", end)
    if text[:3] != b"ply" or end < 0 or newline < 0:
        raise ValueError("expected a header from 'ply' to 'end_header'")
    form, elements = "", list[_Element]()
    for line in text[:end].decode("ascii", "replace").splitlines()[1:]:
        match line.split():
            case ["format", name, *_] if name in _ORDERS:
                form = name
            case ["element", name, count]:
                elements.append(_Element(name, int(count), [], []))
            case ["property", "list", length, inner, _] if elements and {length, inner} <= _KINDS.keys():
                elements[-1].lists.append(_KINDS[length])
            case ["property", kind, name] if elements and kind in _KINDS:
                elements[-1].fields.append((name, _KINDS[kind]))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise ValueError(f"its header has a line {line[:60]!r}")
    if not form:
        raise ValueError(f"expected a format among {', '.join(_ORDERS)}")
    return form, elements, newline + 1


def _compare(elements: list[_Element], there: int, *, text: bool) -> None:
    least = sum(one.least(text=text) for one in elements)
    if any(one.count < 0 for one in elements) or least > there + text:  # a last line need not end
        raise ValueError(f"its elements take {least:,} bytes at least, and {there:,} bytes are there")


def _after(data: memoryview, lines: int) -> memoryview:
    """What follows so many lines that are not blank."""
    at, text = 0, bytes(data) if lines else b""
    while lines:
        end = text.find(b"\n", at)
        if end < 0:
            raise ValueError("its elements are fewer than it says")
        lines -= bool(text[at:end].strip())
        at = end + 1
    return data[at:]

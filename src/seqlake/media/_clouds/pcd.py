"""PCD, the point clouds of PCL and ROS: in text, binary, and binary compressed by LZF.

Read by numpy, LZF by the package `lzf` (extra `spatial`). `_` names bytes that only fill; they are left out.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.media._clouds import numbers_in_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from seqlake.spec.column_types import ColumnType

_HEADER = 1 << 16  # bytes in which it ends
_WIDEST = 1 << 16  # bytes of one point
_LZF = 88  # the most bytes that one can stand for: 264 for three
_KINDS = {"F": "f", "I": "i", "U": "u"}

_Field = tuple[str, np.dtype[Any], int]


def read(data: memoryview, column: ColumnType, hold: Callable[[int], None], /) -> NDArray[Any]:  # noqa: ARG001 - as all
    """[points] structured, the fields of the header; one with a count is an array in each point."""
    head, start = _header(data)
    fields = _fields(head)
    points = int(head["POINTS"][0]) if "POINTS" in head else int(head["WIDTH"][0]) * int(head["HEIGHT"][0])
    if points < 0 or ("WIDTH" in head and points != int(head["WIDTH"][0]) * int(head.get("HEIGHT", ["1"])[0])):
        raise ValueError(f"{points} points are not width x height")
    stored = np.dtype([(f"_{number}", kind, (count,)) for number, (_, kind, count) in enumerate(fields)])
    read_as = {"ascii": _text, "binary": _binary, "binary_compressed": _compressed}
    kind = " ".join(head["DATA"])
    if kind not in read_as:
        raise ValueError(f"expected DATA ascii, binary or binary_compressed, found {kind!r}")
    least = {"ascii": 2 * sum(count for *_, count in fields) * points - 1, "binary": stored.itemsize * points}
    if least.get(kind, stored.itemsize * points // _LZF) > len(data) - start:
        raise ValueError(
            f"{points:,} points of {stored.itemsize} bytes are declared, and {len(data) - start:,} bytes are there"
        )
    hold(points)
    columns = read_as[kind](data[start:], stored, points)
    cloud = np.empty(
        points, [(name, kind) if count == 1 else (name, kind, (count,)) for name, kind, count in fields if name != "_"]
    )
    for (name, _, count), values in zip(fields, columns, strict=True):
        if name != "_":
            cloud[name] = values[:, 0] if count == 1 else values
    return cloud


def write(cloud: NDArray[Any], /) -> bytes:
    """A cloud as a binary PCD file.

    Args:
        cloud: [points] structured: numbers of 8 to 64 bits, or arrays of them in each point.

    Raises:
        ValueError: A field that PCD has no type for.
    """
    named: Mapping[str, Any] = cloud.dtype.fields or {}
    kinds = {
        name: (kind.base.newbyteorder("<"), int(np.prod(kind.shape, dtype=np.int64)))
        for name, (kind, *_) in named.items()
    }
    for name, (base, _) in kinds.items():
        if (
            base.kind not in "fiu"
            or base.itemsize > 8
            or base == np.float16
            or name != "".join(name.split())
            or name == "_"
        ):
            raise ValueError(
                f"a PCD file holds numbers of 8 to 64 bits (no float16) under names without spaces, found {base} "
                f"in field {name!r}"
            )
    letters = {kind: letter for letter, kind in _KINDS.items()}
    lines = [
        "# .PCD v0.7 - Point Cloud Data file format",
        "VERSION 0.7",
        "FIELDS " + " ".join(kinds),
        "SIZE " + " ".join(str(base.itemsize) for base, _ in kinds.values()),
        "TYPE " + " ".join(letters[base.kind] for base, _ in kinds.values()),
        "COUNT " + " ".join(str(count) for _, count in kinds.values()),
        f"WIDTH {len(cloud)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(cloud)}\nDATA binary\n",
    ]
    packed = np.empty(len(cloud), [(name, base, (count,)) for name, (base, count) in kinds.items()])
    for name, (_, count) in kinds.items():
        packed[name] = cloud[name].reshape(len(cloud), count)
    return "\n".join(lines).encode("ascii") + packed.tobytes()


def _header(data: memoryview) -> tuple[dict[str, list[str]], int]:
    """Its lines by their first words, and where the points begin."""
    head: dict[str, list[str]] = {}
    start, text = 0, bytes(data[:_HEADER])
    while "DATA" not in head:
        end = text.find(b"\n", start)
        if end < 0:
            raise ValueError("its header has no line that begins with DATA")
        words, start = text[start:end].decode("ascii", "replace").split(), end + 1
        if words and not words[0].startswith("#"):
            head[words[0].upper()] = words[1:]
    for name in ("SIZE", "TYPE", "DATA", *(() if "POINTS" in head else ("WIDTH", "HEIGHT"))):
        if not head.get(name):
            raise ValueError(f"its header has no {name}")
    return head, start


def _fields(head: dict[str, list[str]]) -> list[_Field]:
    names = head.get("FIELDS") or head.get("COLUMNS") or []
    counts = [int(one) for one in head.get("COUNT", ["1"] * len(names))]
    if not names or not len(names) == len(head["SIZE"]) == len(head["TYPE"]) == len(counts):
        raise ValueError("FIELDS, SIZE, TYPE and COUNT are not equally long")
    named = [name for name in names if name != "_"]
    if len(set(named)) < len(named) or not named:
        raise ValueError(f"expected names of fields, each once, found {' '.join(names)[:200]}")
    sizes = [int(one) for one in head["SIZE"]]
    if min(counts) < 1 or min(sizes) < 1 or sum(c * s for c, s in zip(counts, sizes, strict=True)) > _WIDEST:
        raise ValueError(f"expected points of 1 to {_WIDEST:,} bytes")
    kinds = [np.dtype(f"<{_KINDS[kind]}{size}") for kind, size in zip(head["TYPE"], sizes, strict=True)]
    if any(kind == np.float16 for kind in kinds):
        raise ValueError("expected numbers of 4 or 8 bytes for TYPE F, found 2")
    return list(zip(names, kinds, counts, strict=True))


def _text(data: memoryview, stored: np.dtype[Any], points: int) -> list[NDArray[Any]]:
    bases = [(kind.base, _count(kind)) for kind, *_ in (stored.fields or {}).values()]
    flat = numbers_in_text.table(data, [base for base, count in bases for _ in range(count)], points)
    ends = np.cumsum([0, *(count for _, count in bases)]).tolist()
    return [np.stack(flat[a:b], axis=-1) for a, b in pairwise(ends)]


def _binary(data: memoryview, stored: np.dtype[Any], points: int) -> list[NDArray[Any]]:
    cloud = np.frombuffer(data, stored, points)
    return [cloud[name].reshape(points, _count(stored[name])) for name in stored.names or ()]


def _compressed(data: memoryview, stored: np.dtype[Any], points: int) -> list[NDArray[Any]]:
    """Field after field, each of all points."""
    packed, size = struct.unpack_from("<II", data)
    if packed > len(data) - 8 or size != points * stored.itemsize or size > _LZF * packed:
        raise ValueError(
            f"{points:,} points of {stored.itemsize} bytes are declared, {size:,} bytes in {packed:,}, and "
            f"{len(data) - 8:,} bytes are there"
        )
    lzf = plugins.require("lzf", extra="spatial")
    buffer = lzf.decompress(bytes(data[8 : 8 + packed]), size) if size else b""
    if buffer is None or len(buffer) != size:
        raise ValueError(f"its compressed bytes do not make {size:,}")
    columns, start = [], 0
    for kind, *_ in (stored.fields or {}).values():
        values = np.frombuffer(buffer, kind.base, points * _count(kind), start)
        columns.append(values.reshape(points, _count(kind)))
        start += points * kind.itemsize
    return columns


def _count(kind: np.dtype[Any]) -> int:
    """Numbers of a field."""
    return kind.shape[0] if kind.shape else 1

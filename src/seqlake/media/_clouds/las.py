"""LAS and LAZ, the scans of surveys: coordinates as float64 in the file's units, then every other dimension.

Read by laspy, LAZ with lazrs (extra `spatial`). What they would believe of a file is compared with its bytes first.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.spec.column_types import ColumnType

_LEAST = 227  # bytes of the shortest header
_RECORD = 54  # bytes of the header of a record
_EXTENDED = 60  # likewise, of one behind the points
_POINT = 64  # bytes of a point that counts as one
_PACKED = 1 << 12  # bytes of points that one of a compressed file may stand for


def read(data: memoryview, column: ColumnType, hold: Callable[[int], None], /) -> NDArray[Any]:  # noqa: ARG001 - as all
    """[points] structured: `x`, `y` and `z` scaled and moved as the header says, then what the point format has."""
    laspy = plugins.require("laspy", extra="spatial")
    is_packed = _check(data, hold)
    if is_packed:
        plugins.require("lazrs", extra="spatial")
    with laspy.open(io.BytesIO(data), laz_backend=[laspy.LazBackend.Lazrs] if is_packed else None) as reader:
        scan = reader.read()
    others = [name for name in scan.point_format.dimension_names if name not in {"X", "Y", "Z"}]
    columns = {name: np.asarray(scan[name]) for name in ("x", "y", "z", *others)}
    cloud = np.empty(
        len(scan.points), [(name, one.dtype.newbyteorder("="), one.shape[1:]) for name, one in columns.items()]
    )
    for name, values in columns.items():
        cloud[name] = values
    return cloud


def _check(data: memoryview, hold: Callable[[int], None]) -> bool:
    """Compare the header with the bytes; whether the points are compressed."""
    if len(data) < _LEAST or bytes(data[:4]) != b"LASF":
        raise ValueError("expected a header that begins with LASF")
    minor = data[25]
    size, start, records, form, width, points = struct.unpack_from("<HIIBHI", data, 94)
    if minor >= 4 and len(data) >= 375:
        tail, tails, points = struct.unpack_from("<QIQ", data, 235)
        if tails and (tail > len(data) or tails * _EXTENDED > len(data) - tail):
            raise ValueError(f"{tails:,} records behind the points are declared, and {len(data):,} bytes are there")
    if not size <= start <= len(data) or records * _RECORD > start - size or not width:
        raise ValueError(
            f"its points begin at byte {start:,} behind {records:,} records, and {len(data):,} bytes are there"
        )
    is_packed = bool(form & 0x80)
    there = len(data) - start
    if points * width > there * (_PACKED if is_packed else 1):
        raise ValueError(f"{points:,} points of {width} bytes are declared, and {there:,} bytes are there")
    hold(points * -(-width // _POINT))
    if is_packed and points:
        _check_chunks(data, start, width)
    return is_packed


def _check_chunks(data: memoryview, start: int, width: int) -> None:
    """The table of chunks: as many entries as can have a point each, since room is made for all of them."""
    (place,) = struct.unpack_from("<q", data, start)
    if place == -1:  # written to what could not be wound back
        (place,) = struct.unpack_from("<q", data, len(data) - 8)
    if not start + 8 <= place <= len(data) - 8:
        raise ValueError(f"its table of chunks is said to be at byte {place:,}, and {len(data):,} bytes are there")
    (chunks,) = struct.unpack_from("<I", data, place + 4)
    if chunks * width > place - start:
        raise ValueError(f"{chunks:,} chunks are declared in {place - start:,} bytes")

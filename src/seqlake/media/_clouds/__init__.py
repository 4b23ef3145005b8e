"""Point clouds as structured arrays: every field of a file under the name and in the type that it has there.

One reader for each format. A reader is given the bytes, the column's type and what holds the limit; it compares what a
file says of itself with the bytes that are there before it takes memory, and raises ValueError for what is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.media._clouds import las, pcd, ply, raw, spz

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from seqlake.spec.column_types import ColumnType

    Hold = Callable[[int], None]
    Reader = Callable[[memoryview, ColumnType, Hold], NDArray[Any]]

READERS: dict[str, Reader] = {
    "bin": raw.read,
    "kitti": raw.read,
    "las": las.read,
    "laz": las.read,
    "nuscenes": raw.read,
    "pcd": pcd.read,
    "ply": ply.read,
    "spz": spz.read,
}
"""Format -> what reads it."""

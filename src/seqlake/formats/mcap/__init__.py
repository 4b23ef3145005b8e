"""MCAP, bags of ROS 1 and ROS 2: recordings as rows, read in place by topic and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.formats.mcap.scan import matches, scan
from seqlake.formats.mcap.writing import create, takes_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats.mcap.scan import Recordings

__all__ = ["create", "matches", "open", "scan", "takes_files"]


def open(location: str, /, *, storage: Mapping[str, str] | None = None) -> Recordings:  # noqa: A001 - as sl.open asks
    """All topics of all recordings, for `sl.open`; `scan` takes options.

    Args:
        location: A file, the folder of a ROS 2 bag, or a folder of recordings: a path or URI.
        storage: Options of the object store.

    Example:
        ```python
        sl.open("drive.mcap").statistics("imu_angular_velocity")
        ```
    """
    return scan(location, storage=storage)

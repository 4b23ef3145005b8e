"""LeRobot: folders as lerobot records them, v2.0, v2.1 and v3.0; read in place and written, without that package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.formats.lerobot.exporting import create, dropped, takes_files
from seqlake.formats.lerobot.scan import matches, scan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats.lerobot.scan import LeRobotFolder

__all__ = ["create", "dropped", "matches", "open", "scan", "takes_files"]


def open(location: str, /, *, storage: Mapping[str, str] | None = None) -> LeRobotFolder:  # noqa: A001 - as sl.open asks
    """All episodes of a folder, for `sl.open`; `scan` takes options.

    Args:
        location: The folder of `meta/info.json`: a path or URI.
        storage: Options of the object store.

    Example:
        ```python
        sl.open("lerobot/pusht").statistics("action")
        ```
    """
    return scan(location, storage=storage)

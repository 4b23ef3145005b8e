"""LeRobot: folders as lerobot records them, v2.0, v2.1 and v3.0; read in place, without that package."""

from __future__ import annotations

from seqlake.formats.lerobot.scan import matches, scan

__all__ = ["matches", "scan"]

"""L5Kit: recorded drives as l5kit writes them, in zarr folders; read and written without zarr and without l5kit."""

from __future__ import annotations

from seqlake.formats.l5kit.scan import matches, scan
from seqlake.formats.l5kit.sink import create, dropped
from seqlake.moved import keep_old_paths

__all__ = ["create", "dropped", "matches", "scan"]

keep_old_paths(__name__)

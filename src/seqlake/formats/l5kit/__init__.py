"""L5Kit: recorded drives as l5kit writes them, in zarr folders; read and written without zarr and without l5kit."""

from __future__ import annotations

from seqlake.formats.l5kit.scan import matches, scan
from seqlake.formats.l5kit.sink import create, dropped

__all__ = ["create", "dropped", "matches", "scan"]

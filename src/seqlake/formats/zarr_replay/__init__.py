"""Replay buffers of diffusion policy and UMI: zarr stores with all episodes one after the other; without zarr."""

from __future__ import annotations

from seqlake.formats.zarr_replay.scan import matches, scan
from seqlake.formats.zarr_replay.sink import create, dropped, takes_files

__all__ = ["create", "dropped", "matches", "scan", "takes_files"]

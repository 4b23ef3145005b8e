"""WebDataset: tar shards whose files with one basename are one sample; read and written without its package."""

from __future__ import annotations

from seqlake.formats.webdataset.scan import matches, scan
from seqlake.formats.webdataset.sink import create, dropped, takes_files

__all__ = ["create", "dropped", "matches", "scan", "takes_files"]

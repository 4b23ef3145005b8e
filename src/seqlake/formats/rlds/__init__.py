"""RLDS: episodes as tfds has them, in TFRecord files with a `features.json`; read and written without TensorFlow."""

from __future__ import annotations

from seqlake.formats.rlds.scan import matches, scan
from seqlake.formats.rlds.sink import create, dropped, takes_files

__all__ = ["create", "dropped", "matches", "scan", "takes_files"]

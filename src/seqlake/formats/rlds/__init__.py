"""RLDS: episodes as tfds writes them, in TFRecord files with a `features.json`; read without TensorFlow."""

from __future__ import annotations

from seqlake.formats.rlds.scan import matches, scan

__all__ = ["matches", "scan"]

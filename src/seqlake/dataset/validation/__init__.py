"""Checks a dataset against the format: metadata, rows, the files that rows name, and every frame in them."""

from __future__ import annotations

from seqlake.dataset.validation.at_locations import validate
from seqlake.dataset.validation.checking import DEPTHS

__all__ = ["DEPTHS", "validate"]

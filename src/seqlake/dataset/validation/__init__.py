"""Checks a dataset against the format: metadata, rows, the files that rows name, and every frame in them."""

from __future__ import annotations

from seqlake.dataset.validation.checking import DEPTHS, validate

__all__ = ["DEPTHS", "validate"]

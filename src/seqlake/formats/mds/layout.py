"""What the shared reader asks of MDS."""

from __future__ import annotations

from seqlake.formats.mds.columns import columns, learn
from seqlake.formats.mds.records import Records

__all__ = ["Records", "columns", "learn"]

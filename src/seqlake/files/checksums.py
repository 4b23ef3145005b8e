"""CRC-32 as Parquet, zlib and PNG use it: of the quickest library that is there, all of which give the same numbers."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32  # uses the processor's carry-less multiplication
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]

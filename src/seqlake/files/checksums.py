"""CRC-32 as Parquet, zlib and PNG use it, of the quickest library that is there; and digests of copied-in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from seqlake.protocols import Copied

try:
    from isal.isal_zlib import crc32  # uses the processor's carry-less multiplication
except ImportError:
    from zlib import crc32

__all__ = ["crc32", "refuse_another"]


def refuse_another(location: str, size: int, sha256: str, known: Copied, /) -> None:
    """Raise `CorruptFileError` unless a file is the one that was copied in.

    Args:
        location: Where it lies.
        size: Its bytes.
        sha256: Of them, in hex.
        known: What was committed of it.
    """
    if (size, sha256) != (known.size, known.sha256):
        raise CorruptFileError(
            f"{location}: expected the {known.size} bytes that were copied in, found {size} bytes that are not those.",
            path=location,
            hint="The file is damaged: restore it from a copy, or delete the rows that name it.",
        )

"""CRC-32 as Parquet, zlib and PNG use it, of the quickest library that is there; and digests of copied-in files.

JSON objects prove themselves whole: their last key is a digest of all bytes before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

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


_LAST = re.compile(rb', "digest": "([0-9a-f]{64})"\}\n\Z')


def seal(document: Mapping[str, Any], /) -> bytes:
    """A JSON object, UTF-8, with `digest` as its last key: the SHA-256 of the bytes before `, "digest"`.

    Example:
        >>> seal({"a": 1})[:10]
        b'{"a": 1, "'
    """
    body = json.dumps(dict(document), ensure_ascii=False, separators=(", ", ": "))[:-1].encode()
    return body + f', "digest": "{hashlib.sha256(body).hexdigest()}"}}\n'.encode()


def digest_of(data: bytes | memoryview, /) -> str | None:
    """The digest that sealed bytes end with; None where they end with none, or with that of other bytes."""
    match = _LAST.search(data, max(0, len(data) - 128))
    if match is None or hashlib.sha256(data[: match.start()]).hexdigest().encode() != match[1]:
        return None
    return match[1].decode()

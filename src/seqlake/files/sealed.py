"""JSON objects that prove themselves whole: their last key is a digest of all bytes before it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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

"""Puffin files: blobs with a footer that says where each lies. Specification: Apache Iceberg, "Puffin file format".

pyiceberg reads them and cannot write them. The table's metadata name our file with an empty list of blobs: a blob type
that pyiceberg does not know would make the whole table unreadable for it, so blobs are found in the file's own footer.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAGIC = b"PFA1"
_TAIL = 12  # length of the footer, flags, magic


@dataclass(frozen=True, slots=True, kw_only=True)
class PuffinBlob:
    """One blob.

    Attributes:
        type: What it holds.
        data: Its bytes as they lie, compressed if the metadata say so.
        snapshot: The snapshot it was made for.
        sequence: That snapshot's sequence number.
        fields: The columns it is about.
        codec: How it is compressed; empty: not at all.
        properties: Anything else.
    """

    type: str
    data: bytes
    snapshot: int
    sequence: int
    fields: tuple[int, ...] = ()
    codec: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def encode(blobs: Iterable[PuffinBlob], /, *, properties: Mapping[str, str]) -> tuple[bytes, int]:
    """The bytes of a Puffin file, and how many of them are its footer."""
    out, listed = bytearray(MAGIC), []
    for blob in blobs:
        document: dict[str, Any] = {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": blob.snapshot,
            "sequence-number": blob.sequence,
            "offset": len(out),
            "length": len(blob.data),
            "properties": dict(blob.properties),
        }
        if blob.codec:
            document["compression-codec"] = blob.codec
        listed.append(document)
        out += blob.data
    footer = json.dumps({"blobs": listed, "properties": dict(properties)}).encode()
    start = len(out)
    out += MAGIC + footer + struct.pack("<i", len(footer)) + bytes(4) + MAGIC
    return bytes(out), len(out) - start


def decode(data: bytes | memoryview, /, *, path: str) -> list[PuffinBlob]:
    """The blobs of a Puffin file.

    Raises:
        CorruptFileError: It is none, or its footer is compressed.
    """
    whole = bytes(data)
    plain = len(whole) >= 2 * _TAIL and whole[:4] == MAGIC and whole[-4:] == MAGIC and whole[-8] == 0
    try:
        length = struct.unpack("<i", whole[-_TAIL : -_TAIL + 4])[0] if plain else -1
        listed = json.loads(whole[-_TAIL - length : -_TAIL] if length >= 0 else b"")["blobs"]
        return [
            PuffinBlob(
                type=one["type"],
                data=whole[one["offset"] : one["offset"] + one["length"]],
                snapshot=one["snapshot-id"],
                sequence=one["sequence-number"],
                fields=tuple(one.get("fields", ())),
                codec=one.get("compression-codec", ""),
                properties=one.get("properties", {}),
            )
            for one in listed
        ]
    except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise CorruptFileError(f"Expected a Puffin file at {path}, found something else ({error}).") from None

"""Xet storage on loopback, as far as `hf_xet` uploads to it: chunks in xorbs, and shards that say how files are made.

Specification: https://huggingface.co/docs/xet. What is uploaded is put together here from those bytes alone, so that a
commit of the Hub gets the files that the shards describe.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

import pyarrow as pa

_HASH = 32
_ENTRY = 48  # bytes of every record of a shard
_LAST = b"\xff" * _HASH
_VERIFIED, _METADATA = 1 << 31, 1 << 30
_PLAIN, _LZ4, _GROUPED = 0, 1, 2


def named(raw: bytes) -> str:
    """A hash as addresses have it: eight bytes at a time, turned around."""
    return b"".join(raw[at : at + 8][::-1] for at in range(0, _HASH, 8)).hex()


def chunks(xorb: bytes) -> list[bytes]:
    """The chunks of a xorb: each behind its version, packed size, compression and size."""
    held, at = [], 0
    while at + 8 <= len(xorb) and xorb[at] == 0:
        packed, kind = int.from_bytes(xorb[at + 1 : at + 4], "little"), xorb[at + 4]
        size = int.from_bytes(xorb[at + 5 : at + 8], "little")
        data = xorb[at + 8 : at + 8 + packed]
        held.append(data if kind == _PLAIN else _unpacked(data, size, grouped=kind == _GROUPED))
        at += 8 + packed
    return held


def _unpacked(data: bytes, size: int, *, grouped: bool) -> bytes:
    plain = pa.decompress(data, size, codec="lz4", asbytes=True)
    if not grouped:
        return plain
    out, at = bytearray(size), 0
    for group in range(4):  # every fourth byte lies together
        count = len(range(group, size, 4))
        out[group::4] = plain[at : at + count]
        at += count
    return bytes(out)


@dataclass
class XetStorage:
    """What was uploaded.

    Attributes:
        xorbs: Name -> chunks.
        files: SHA-256 -> bytes.
    """

    xorbs: dict[str, list[bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def add_xorb(self, name: str, data: bytes) -> None:
        self.xorbs[name] = chunks(data)

    def add_shard(self, data: bytes) -> None:
        """Put the files together that a shard describes."""
        at = _ENTRY  # behind its header
        while data[at : at + _HASH] != _LAST:
            flags, count = struct.unpack_from("<II", data, at + _HASH)
            at += _ENTRY
            whole = b""
            for _ in range(count):
                _, size, first, stop = struct.unpack_from("<IIII", data, at + _HASH)
                part = b"".join(self.xorbs[named(data[at : at + _HASH])][first:stop])
                assert len(part) == size
                whole += part
                at += _ENTRY
            at += _ENTRY * count if flags & _VERIFIED else 0
            digest = hashlib.sha256(whole).hexdigest()
            if flags & _METADATA:
                assert named(data[at : at + _HASH]) == digest or data[at : at + _HASH].hex() == digest
                at += _ENTRY
            self.files[digest] = whole

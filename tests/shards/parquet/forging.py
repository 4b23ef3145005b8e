"""Makes files that lie and whose seals hold all the same: whoever writes a file can compute its hashes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from seqlake.files.blobs import MemoryBlob
from seqlake.shards.parquet import footer, index
from seqlake.shards.parquet.footer import read_footer


def own_index(data):
    """The offset index of a file of ours."""
    return read_footer(MemoryBlob(data)).index()


def resealed(data, encoded):
    """The same file with other index bytes, and with a pointer and a seal that fit them."""
    length = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - length
    tail = data[start:-8]
    match = re.search(rb"seqlake\.offsets\x18(.)(1 \d+ \d+ [0-9a-f]{16})", tail, re.DOTALL)
    pointer = index.pointer(encoded, offset=start).encode()
    assert len(pointer) < 128  # the length of a Thrift string in one byte
    tail = tail[: match.start(1)] + bytes([len(pointer)]) + pointer + tail[match.end(2) :]
    at = footer.seal_position(tail)
    tail = tail[:at] + footer.BLANK.encode() + tail[at + 16 :]
    _, digits = footer.seal(tail)
    tail = tail[:at] + digits + tail[at + 16 :]
    return data[:start] + encoded + tail + len(tail).to_bytes(4, "little") + b"PAR1"


def lying(told, column, **changes):
    """An index, encoded, that says something else of one column."""
    entry = replace(told.columns[column], **changes)
    return index.encode(replace(told, columns={**told.columns, column: entry}))


def shifted(steps):
    """The same lengths with one step moved from a row to its neighbour, where both have some."""
    pair = int(np.flatnonzero((steps[:-1] > 1) & (steps[1:] > 1))[0])
    found = steps.copy()
    found[pair] -= 1
    found[pair + 1] += 1
    return found

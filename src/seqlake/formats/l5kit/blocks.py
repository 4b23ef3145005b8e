"""Parts of a Blosc chunk: its blocks are compressed one by one, so that a few rows need not cost a whole chunk.

numcodecs decodes chunks only whole. Here the blocks wanted are put together as a chunk of their own, which it decodes.
The header is 16 bytes: format, codec's format, flags, element size, then bytes decoded, bytes of a block and bytes of
the chunk as uint32; behind it stands the place of each block, in whichever order they were written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.formats.l5kit.decoding import blosc_head, decoded_into

if TYPE_CHECKING:
    from seqlake.protocols import Ints

_HEADER = struct.Struct("<BBBBIII")
_PLAIN = 0x2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Where the blocks of a chunk are.

    Attributes:
        data: The chunk.
        head: Its first four bytes.
        nbytes: Bytes decoded.
        size: Bytes decoded of a block; the last one may be shorter.
        starts: [blocks] the first byte of each in the chunk.
        stops: [blocks] the byte after its last.
    """

    data: memoryview
    head: tuple[int, int, int, int]
    nbytes: int
    size: int
    starts: Ints
    stops: Ints

    def span(self, start: int, stop: int, /) -> tuple[int, int]:
        """The decoded bytes of the blocks that hold `start` to before `stop`: first, and after the last."""
        first, last = start // self.size * self.size, min(-(-stop // self.size) * self.size, self.nbytes)
        # Blosc refuses a chunk that is shorter than its blocks: a short last block comes with the one before.
        return (first - self.size if first and last - first < self.size else first), last

    def decode(self, start: int, stop: int, out: Any, /) -> None:
        """Decode the blocks from byte `start` to before `stop`, both as `span` gives them, into `out`.

        Raises:
            ValueError: They cannot be decoded.
        """
        if (start, stop) == (0, self.nbytes):
            decoded_into("numcodecs.blosc", self.data, out)
            return
        first, last = start // self.size, -(-stop // self.size)
        starts, stops = self.starts[first:last], self.stops[first:last]
        sizes = stops - starts
        head = _HEADER.size + 4 * len(sizes)
        moved = head + np.cumsum(sizes) - sizes
        whole = head + int(sizes.sum())
        parts = [_HEADER.pack(*self.head, stop - start, self.size, whole), moved.astype("<i4").tobytes()]
        parts += [self.data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        decoded_into("numcodecs.blosc", b"".join(parts), out)


def blocks_of(data: memoryview, expected: int, /) -> Blocks | None:
    """The blocks of a Blosc chunk; None where only the whole of it can be decoded.

    Args:
        data: The chunk.
        expected: Bytes that it should have, decoded.

    Raises:
        ValueError: Its header claims what is not there.
    """
    head, size = blosc_head(data, expected)
    if head[2] & _PLAIN or not expected:
        return None
    count = -(-expected // size)
    starts = np.frombuffer(data, "<i4", count, _HEADER.size).astype(np.int64)
    edges = np.append(np.sort(starts), len(data))
    stops = edges[np.searchsorted(edges, starts, side="right")]
    return Blocks(data=data, head=head, nbytes=expected, size=size, starts=starts, stops=stops)

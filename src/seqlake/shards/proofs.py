"""Comparing a file piece by piece with what was written, each piece once in a process: what `protocols.Proof` promises.

A format of shards says where its pieces lie and how one is compared; which of them were stands here.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from seqlake.files.blobs import MemoryBlob

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints

_MOST = 1 << 16  # columns of files that a process remembers

# Which pieces were compared, by file and column: readers come and go. Single operations of a dict are atomic, so there
# is no lock that a fork could leave taken; a piece that two threads compare at a time is compared twice.
_PROVEN: dict[bytes, NDArray[np.bool_]] = {}


def proven(blob: Blob, of: str, count: int, /, *facts: bytes) -> NDArray[np.bool_]:
    """[count] the pieces of a file that were compared in this process; whoever compares one says so in it.

    Args:
        blob: The file.
        of: What of it is in pieces: a column.
        count: How many pieces there are.
        facts: What else they depend on: where they lie, what they are compared with.
    """
    fresh = np.zeros(count, np.bool_)
    if isinstance(blob, MemoryBlob):  # nobody else's
        return fresh
    state = blake2b(f"{blob.location}\0{blob.token}\0{of}\0{count}\0".encode(), digest_size=16)
    for fact in facts:
        state.update(fact)
    while len(_PROVEN) >= _MOST:
        _PROVEN.pop(next(iter(list(_PROVEN)), b""), None)
    return _PROVEN.setdefault(state.digest(), fresh)


class PieceProof:
    """Of the pieces of one flat column; inherit it, and say where they lie and how one is compared.

    Attributes:
        blob: The file.
    """

    blob: Blob

    def _proven_pieces(self) -> NDArray[np.bool_]:
        """[pieces] what `proven` says of them."""
        raise NotImplementedError

    def _first_values(self) -> Ints:
        """[pieces] the byte where the values of each begin."""
        raise NotImplementedError

    def _extent(self, pieces: Ints) -> tuple[Ints, Ints]:
        """The first byte that is compared of each of these, and the one after its last."""
        raise NotImplementedError

    def _compare(self, piece: int, data: memoryview) -> None:
        """CorruptFileError unless these bytes of `_extent` are what was written."""
        raise NotImplementedError

    @cached_property
    def _proven(self) -> NDArray[np.bool_]:
        return self._proven_pieces()

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        """The pieces by their places in the file, and these places: row groups need not lie one after the other."""
        first = self._first_values()
        order = np.argsort(first, kind="stable")
        return order, first[order]

    @property
    def done(self) -> bool:
        """Whether every piece was compared in this process."""
        return bool(self._proven.all())

    def pages(self, places: Ints, /) -> Ints:
        """[n] the piece that holds each byte."""
        order, starts = self._order
        numbers: Ints = order[np.maximum(np.searchsorted(starts, places, side="right") - 1, 0)]
        return numbers

    def touch(self, places: Ints, /) -> None:
        """Compare the pieces that hold these bytes, where that was not done; CorruptFileError."""
        pieces = self.pages(places)
        wanted = np.unique(pieces[~self._proven[pieces]])
        if not wanted.size:
            return
        view = self.blob.view()
        assert view is not None
        for piece, start, stop in zip(wanted.tolist(), *self._extent(wanted), strict=True):
            self._compare(piece, view[start:stop])
            self._proven[piece] = True

    def fetch(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Read the pieces that hold these parts whole, compare them, and cut the parts out; CorruptFileError."""
        pieces = self.pages(starts)
        whole = np.unique(pieces)
        parts = dict(zip(whole.tolist(), self.blob.ranges(*self._extent(whole)), strict=True))
        for piece, part in parts.items():
            self._compare(piece, part)
        before = self._extent(pieces)[0]
        cuts = zip(pieces.tolist(), (starts - before).tolist(), (stops - before).tolist(), strict=True)
        return [parts[piece][start:stop] for piece, start, stop in cuts]

"""Pages of a flat column held against their checksums and levels, each once a process, when it is first touched.

Where a column is read in place nobody looks at whole pages: that is what makes windows cheap. With a proof, the page
under a window is read once, from its header to its last byte: its CRC-32, and row by row the lengths its levels say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.files.checksums import crc32
from seqlake.files.memory import MemoryBlob
from seqlake.shards.parquet.building import page_steps
from seqlake.shards.parquet.flatness import claims_of
from seqlake.shards.parquet.pages import read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.shards.parquet.flatness import Claims
    from seqlake.shards.parquet.footer import Footer
    from seqlake.shards.parquet.index import ColumnIndex

_MOST = 1 << 16  # columns of files that a process remembers

# Which pages were compared, by file and column: readers come and go. Single operations of a dict are atomic, so no lock
# that a fork could leave taken; a page that two threads compare at a time is compared twice.
_PROVEN: dict[bytes, NDArray[np.bool_]] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class PageProof:
    """Of one flat column of one file; see `protocols.Proof`.

    Attributes:
        footer: Of the file.
        column: Its name.
        entry: What the offset index says of it.
    """

    footer: Footer
    column: str
    entry: ColumnIndex

    @cached_property
    def _claims(self) -> Claims:
        found = claims_of(self.footer, self.column, self.entry)
        assert found is not None  # the column is flat
        return found

    @cached_property
    def _proven(self) -> NDArray[np.bool_]:
        """[pages] those that were compared in this process."""
        blob, entry = self.footer.blob, self.entry
        fresh = np.zeros(len(entry.page_start), np.bool_)
        if isinstance(blob, MemoryBlob):  # nobody else's
            return fresh
        told = blake2b(f"{blob.location}\0{blob.token}\0{self.column}".encode(), digest_size=16)
        told.update(entry.page_start.tobytes() + entry.page_row.tobytes() + entry.steps.tobytes())
        while len(_PROVEN) >= _MOST:
            _PROVEN.pop(next(iter(list(_PROVEN)), b""), None)
        return _PROVEN.setdefault(told.digest(), fresh)

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        """The pages by their places in the file, and these places."""
        order = np.argsort(self.entry.page_start, kind="stable")
        return order, self.entry.page_start[order]

    @property
    def done(self) -> bool:
        """Whether every page was compared."""
        return bool(self._proven.all())

    def pages(self, places: Ints, /) -> Ints:
        """[n] the page that holds each byte."""
        order, starts = self._order  # other writers need not put row groups one after the other
        found: Ints = order[np.maximum(np.searchsorted(starts, places, side="right") - 1, 0)]
        return found

    def rows(self, page: int, /) -> slice:
        """The rows of a page, counted in the file."""
        first = self.entry.page_row
        return slice(int(first[page]), int(first[page + 1]) if page + 1 < len(first) else self.entry.steps.size)

    def touch(self, places: Ints, /) -> None:
        """See `protocols.Proof`."""
        pages = self.pages(places)
        view = None
        for page in np.unique(pages[~self._proven[pages]]).tolist():
            view = self.footer.blob.view() if view is None else view
            assert view is not None
            self._compare(page, view[self._claims.header[page] : self._claims.stop[page]])
            self._proven[page] = True

    def fetch(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """See `protocols.Proof`."""
        pages = self.pages(starts)
        whole = np.unique(pages)
        first = self._claims.header[whole]
        parts = dict(zip(whole.tolist(), self.footer.blob.ranges(first, self._claims.stop[whole]), strict=True))
        for page, part in parts.items():
            self._compare(page, part)
        before = self._claims.header[pages]
        cuts = zip(pages.tolist(), (starts - before).tolist(), (stops - before).tolist(), strict=True)
        return [parts[page][start:stop] for page, start, stop in cuts]

    def _compare(self, number: int, data: memoryview) -> None:
        page = read_header(data, 0)
        if page.crc is not None and page.crc != crc32(data[page.body : page.stop]):
            raise self._damaged(number, f"checksum {page.crc:08x}", "another: its values changed after writing")
        rows = self.rows(number)
        steps = page_steps(self.footer, self.column, self.entry, data, page)
        if steps is None or not np.array_equal(steps, self.entry.steps[rows]):
            raise self._damaged(number, f"the lengths of rows {rows.start} to {rows.stop - 1} in the index", "others")

    def _damaged(self, page: int, expected: str, found: str) -> CorruptFileError:
        blob = self.footer.blob
        return CorruptFileError(
            f"Column {self.column!r} of {blob.location}: expected {expected} in the page at byte "
            f"{self._claims.header[page]}, found {found}.",
            path=blob.location,
            hint="Restore the file from a copy, or delete its rows; `seqlake validate --depth rows` says more.",
        )

"""Some rows of a shard, in any order, as a shard: selections, deletes, deletion vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import HasLengths, HoldsFiles, StepReader, Verbatim, ability
from seqlake.shards.reading import rows_asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.abilities import Kind
    from seqlake.protocols import Blob, Flat, Ints, Shard, ShardReader


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows `keep` of a shard; flat columns stay flat.

    Args:
        shard: Where the rows lie.
        keep: Row numbers in it, in the order wanted.

    Example:
        >>> kept = Rows(shard, np.flatnonzero(rewards > 40))
        >>> kept.rows
        4
    """

    shard: Shard
    keep: Ints

    @property
    def key(self) -> str:
        """The shard's name with a hash of its key and of the rows."""
        state = blake2b(self.shard.key.encode(), digest_size=8)
        state.update(np.asarray(self.keep, "<i8").tobytes())
        return f"{self.shard.key.rpartition('#')[0]}#{state.hexdigest()}"

    @property
    def rows(self) -> int:
        """How many rows are kept."""
        return len(self.keep)

    @property
    def nbytes(self) -> int:
        """The shard's bytes, in proportion to the rows kept."""
        return self.shard.nbytes * len(self.keep) // max(self.shard.rows, 1)

    def open(self) -> RowsReader:
        """A reader of the kept rows."""
        return RowsReader(self.shard.open(), np.asarray(self.keep, np.int64))

    def __repr__(self) -> str:
        return f"Rows({self.shard!r}, {self.rows} of {self.shard.rows})"


class RowsReader:
    """Reads one open `Rows`."""

    def __init__(self, inner: ShardReader, keep: Ints, /) -> None:
        self.inner = inner
        self._keep = keep
        self._flats: dict[str, Flat | None] = {}

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the shard below can, this can; of what a file says of its columns, that one is asked."""
        inner = ability(self.inner, kind)
        return self if inner is not None and isinstance(self, kind) else inner

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of the kept rows; `rows` counts among them.

        Raises:
            IndexError: A row that is not there.
        """
        kept = self._keep if rows is None else self._keep[rows_asked(rows, len(self._keep))]
        return self.inner.batches(columns, rows=kept)

    def flat(self, column: str, /) -> Flat | None:
        """The column without decoding, of the kept rows."""
        if column not in self._flats:
            flat = self.inner.flat(column)
            self._flats[column] = (
                None if flat is None else replace(flat, start=flat.start[self._keep], steps=flat.steps[self._keep])
            )
        return self._flats[column]

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T from an index below, where there is one."""
        known = ability(self.inner, HasLengths)
        lengths = None if known is None else known.lengths(column)
        return None if lengths is None else lengths[self._keep]

    def slice(self, column: str, row: int, start: int, stop: int, /) -> NDArray[Any]:
        """Some steps of one cell, where the shard below reads them so; `row` counts among the kept."""
        able = ability(self.inner, StepReader)
        assert able is not None  # or `ability` would not have said that this can
        return able.slice(column, int(self._keep[rows_asked(np.array([row]), len(self._keep))][0]), start, stop)

    def verbatim(self, column: str, rows: Ints, /) -> list[memoryview] | None:
        """Cells that are bytes, where they lie, if the shard below gives them so; `rows` counts among the kept."""
        given = ability(self.inner, Verbatim)
        return None if given is None else given.verbatim(column, self._keep[rows])

    def held(self, column: str, rows: Ints, /) -> list[tuple[str, Blob] | None] | None:
        """Files in cells, where they lie, if the shard below gives them so; `rows` counts among the kept."""
        given = ability(self.inner, HoldsFiles)
        return None if given is None else given.held(column, self._keep[rows_asked(rows, len(self._keep))])

    def close(self) -> None:
        """Close the shard below."""
        self.inner.close()

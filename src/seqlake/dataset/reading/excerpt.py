"""What a selection shows: some rows and columns of a source, for good."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import (
    Checked,
    DecodedOnce,
    KeepsDerived,
    KeepsFiles,
    LengthsByShard,
    OpensFiles,
    SaysMapping,
    ShardSizes,
    ability,
)
from seqlake.dataset.reading import streaming
from seqlake.dataset.reading.access import Access
from seqlake.dataset.reading.sequence import SequenceView
from seqlake.shards.files import verified_source
from seqlake.shards.scanned import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from seqlake.abilities import Kind
    from seqlake.protocols import Depth, Ints, Readable, Shard
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Schema


class Excerpt:
    """Rows and columns of a source, in order: a `Readable` with ids, checks and single cells.

    A `Selection` shows one. A `Dataset` shows another one after each commit; an excerpt itself never changes, so what
    reads for long (a loader, a conversion, the view of a sequence) takes it, by `ability` or `Excerpt.of`.

    Args:
        source: What the rows are of.
        columns: Names, in this order; all of them by default.
        rows: Row numbers of the source, each at most once; all of them by default.
        storage: Options of the store that file references are read from.
        allow_outside: References that leave the root may be opened.
        access: Point access to the source, where somebody has it already.
    """

    def __init__(
        self,
        source: Readable,
        *,
        columns: Sequence[str] | None = None,
        rows: Ints | None = None,
        storage: Mapping[str, str] | None = None,
        allow_outside: bool = False,
        access: Access | None = None,
    ) -> None:
        self.source = source
        self.columns: tuple[str, ...] | None = None if columns is None else tuple(columns)
        self.rows = rows
        self.storage = storage
        self.allow_outside = allow_outside
        self.access: Access = Access(source) if access is None else access

    @classmethod
    def of(cls, readable: Readable, /) -> Excerpt:
        """What a selection shows just now; of any other readable, all of it."""
        shows = ability(readable, Excerpt)
        return cls(readable) if shows is None else shows

    def cut(self, *, columns: Sequence[str] | None = None, rows: Ints | None = None) -> Excerpt:
        """Other columns or rows of the same source; open readers and known ids serve both."""
        return Excerpt(
            self.source,
            columns=self.columns if columns is None else columns,
            rows=self.rows if rows is None else rows,
            storage=self.storage,
            allow_outside=self.allow_outside,
            access=self.access,
        )

    def verified(self) -> Excerpt:
        """The same with each page compared with its checksum: for what is written anew, with new checksums."""
        return Excerpt(
            verified_source(self.source, "first"),
            columns=self.columns,
            rows=self.rows,
            storage=self.storage,
            allow_outside=self.allow_outside,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(
            Excerpt, columns=self.columns, rows=self.rows, storage=self.storage, allow_outside=self.allow_outside
        )
        return again, (self.source,)

    @property
    def schema(self) -> Schema:
        """The columns that were selected."""
        schema = self.source.schema
        return schema if self.columns is None else schema.select(self.columns)

    @property
    def root(self) -> str:
        """What relative file references resolve against."""
        return self.source.root

    @property
    def fingerprint(self) -> str:
        """Changes with any selected row, the order, the schema or the bytes."""
        if self.columns is None and self._is_everything():
            return self.source.fingerprint
        return fingerprint(self.schema, self.shards())  # shards without selected rows are not named

    def _is_everything(self) -> bool:
        rows = self.rows
        return rows is None or (len(rows) == self.access.starts[-1] and bool((np.diff(rows) > 0).all()))

    def is_of_every_shard(self) -> bool:
        """Whether every shard has selected rows, so that reading all of them opens no file in vain."""
        if self.rows is None:
            return True
        starts = np.array(self.access.starts, np.int64)
        chosen = np.zeros(len(starts) - 1, bool)
        chosen[np.searchsorted(starts, self.rows, side="right") - 1] = True
        return bool((chosen | (np.diff(starts) == 0)).all())

    def shards(self) -> Sequence[Shard]:
        """The shards that have selected rows, cut down to these; opens no data file."""
        return self.access.shards if self.rows is None else self.access.cut(self.rows)

    def lengths(self, column: str, /) -> Ints:
        """[rows] the steps of each cell; -1 null. Shards without selected rows are not looked at."""
        known = None if self.rows is None else ability(self.source, LengthsByShard)
        if self.rows is None or known is None:
            lengths = self.source.lengths(column)
            return lengths if self.rows is None else lengths[self.rows]
        starts = np.array(self.access.starts, np.int64)
        shards, which = np.unique(np.searchsorted(starts, self.rows, side="right") - 1, return_inverse=True)
        firsts = np.cumsum(np.diff(starts)[shards]) - np.diff(starts)[shards]
        places: Ints = firsts[which] + self.rows - starts[shards][which]
        return np.take(known.lengths_of(shards.tolist(), column), places)

    def batches(self, columns: Sequence[str] | None = None, /) -> Iterator[pa.RecordBatch]:
        """The rows of some columns, in order."""
        names = self.schema.names if columns is None else columns
        if self.rows is None:
            return streaming.read(self.source, names)
        many = 4 * len(self.rows) > self.access.starts[-1]
        if many and streaming.is_narrow(self.schema, names) and self.is_of_every_shard():
            return streaming.picked(self.source, names, self.rows)
        return streaming.read(self, names)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the source knows to be wrong with it (`Checked`), whatever is selected."""
        checked = ability(self.source, Checked)
        if checked is not None:
            yield from checked.check(depth)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """See `abilities.ability`: what the source keeps serves its excerpts, but no other shards than its own."""
        if kind in {KeepsFiles, KeepsDerived, ShardSizes, DecodedOnce, OpensFiles, SaysMapping}:
            return ability(self.source, kind)
        return self if isinstance(self, kind) else None

    def with_id(self) -> Excerpt:
        """The same rows with the column that names them, even if it was not selected (`Pinnable`)."""
        name = self.source.schema.id
        return self if name is None or name in self.schema else self.cut(columns=[name, *self.schema])

    # ---- single rows

    def find_ids(self, ids: Sequence[str], /) -> Ints:
        """[ids] place of each sequence; -1 where it is not here (`HasIds`)."""
        rows = self.access.rows_of(ids)
        return rows if self.rows is None else self._places(rows)

    def index_of(self, row: int, /) -> int:
        """Where a row of the source stands here; -1 where it does not."""
        return row if self.rows is None else int(self._places(np.array([row], np.int64))[0])

    def _places(self, rows: Ints) -> Ints:
        order, ascending = self._sorted
        if not len(order):
            return np.full(len(rows), -1, np.int64)
        places = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
        return np.where(ascending[places] == rows, order[places], -1)

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """(places, row numbers) of the selected rows, by row number."""
        rows = np.arange(len(self), dtype=np.int64) if self.rows is None else self.rows
        order = np.argsort(rows, kind="stable")
        return order, rows[order]

    def __len__(self) -> int:
        return self.access.starts[-1] if self.rows is None else len(self.rows)

    def __getitem__(self, place: int, /) -> SequenceView:
        return SequenceView(self, place if self.rows is None else int(self.rows[place]))

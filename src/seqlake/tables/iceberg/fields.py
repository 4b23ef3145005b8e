"""A data file under a table's schema, its columns found by field id, or by name where the file gives no ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from seqlake.shards.columns import Columns, Constant, Stored
from seqlake.tables.iceberg.schemas import stored_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from seqlake.protocols import Flat, Ints, Shard, ShardReader
    from seqlake.shards.columns import ColumnsReader
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ById:
    """A shard whose columns are found when its footer is read: renames, drops and additions touch no file.

    Attributes:
        shard: The file, with or without deleted rows.
        schema: The columns to show.
        ids: Column -> field id.
        names: Column -> what files without field ids may call it.
        constants: Column -> the value in every row of a file that lacks it.
    """

    shard: Shard
    schema: Schema
    ids: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The file's name with a hash of its key, the columns and where they come from."""
        state = blake2b(self.shard.key.encode(), digest_size=8)
        for name in self.schema:
            column = self.schema[name]
            told = (self.ids.get(name), self.names.get(name), self.constants.get(name))
            state.update(f"\0{name}\0{column.logical}\0{column.shape}\0{told!r}".encode())
        return f"{self.shard.key.rpartition('#')[0]}#{state.hexdigest()}"

    @property
    def rows(self) -> int:
        """Live rows."""
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.shard.nbytes

    def open(self) -> ByIdReader:
        """A reader that shows the schema's columns."""
        return ByIdReader(self)


class ByIdReader:
    """One open `ById`; the footer is read when it is first asked."""

    def __init__(self, shown: ById, /) -> None:
        self._shown = shown

    @cached_property
    def _columns(self) -> ColumnsReader:
        inner = self._shown.shard.open()
        physical: pa.Schema = inner.schema  # type: ignore[attr-defined]  # readers of files have one
        return Columns(_Opened(self._shown.shard, inner), self._shown.schema, self._mapping(physical)).open()

    def _mapping(self, physical: pa.Schema) -> dict[str, Stored | Constant]:
        shown = self._shown
        by_id = {number: one.name for one in physical if (number := stored_id(one)) is not None}
        found: dict[str, Stored | Constant] = {}
        for name in shown.schema:
            if by_id:
                stored = by_id.get(shown.ids[name])
            else:
                stored = next((one for one in shown.names.get(name, ()) if one in physical.names), None)
            found[name] = Constant(shown.constants.get(name)) if stored is None else Stored(stored)
        return found

    @property
    def schema(self) -> pa.Schema:
        """The logical Arrow schema."""
        return self._shown.schema.arrow

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, in this order, with logical types."""
        return self._columns.batches(columns, rows=rows)

    def flat(self, column: str, /) -> Flat | None:
        """The column without decoding; None: use `batches`."""
        return self._columns.flat(column)

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T from an index, where there is one."""
        return self._columns.lengths(column)

    def close(self) -> None:
        """Close the file."""
        if "_columns" in self.__dict__:
            self._columns.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A shard that is open already, so that its footer is read once."""

    shard: Shard
    reader: ShardReader

    @property
    def key(self) -> str:
        return self.shard.key

    @property
    def rows(self) -> int:
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        return self.shard.nbytes

    def open(self) -> ShardReader:
        return self.reader

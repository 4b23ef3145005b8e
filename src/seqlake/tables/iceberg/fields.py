"""A data file under a table's schema, its columns found by field id, or by name where the file gives no ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from seqlake.shards.columns import Columns, ColumnsReader, Constant, From, Stored
from seqlake.tables.iceberg.schemas import stored_id

if TYPE_CHECKING:
    import pyarrow as pa

    from seqlake.protocols import Shard, ShardReader


class Numbered(Mapping[str, From]):
    """Column -> where it lies in a file, known once the file's footer was read; listing shards reads none.

    Args:
        shard: The file.
        ids: Column -> field id.
        names: Column -> what files without field ids may call it.
        only: Column -> every name it ever had, where no other column ever had one of them.
        constants: Column -> the value in every row of a file that lacks it.
    """

    def __init__(
        self,
        shard: Shard,
        /,
        *,
        ids: Mapping[str, int],
        names: Mapping[str, tuple[str, ...]],
        only: Mapping[str, tuple[str, ...]],
        constants: Mapping[str, object],
    ) -> None:
        self._shard = shard
        self._ids = ids
        self._names = names
        self._only = only
        self._constants = constants
        self._found: dict[str, From] | None = None

    def told(self, column: str, /) -> object:
        """What tells this column's place from another's, without the footer."""
        return self._ids.get(column), self._names.get(column), self._constants.get(column)

    def known(self, column: str, reader: ShardReader, /) -> str | None:
        """What the file calls a column, where its reader is sure without the footer and a name says all."""
        holds = getattr(reader, "holds", None)
        if holds is None or self._found is not None:
            return None
        return next((name for name in self._only.get(column, ()) if holds(name)), None)

    def settle(self, reader: ShardReader | None = None, /) -> Mapping[str, From]:
        """Find the columns in the footer that a reader has, or that is read now."""
        if self._found is None:
            opened: Any = self._shard.open() if reader is None else reader
            self._found = self._find(opened.schema)
            if reader is None:
                opened.close()
        return self._found

    def _find(self, physical: pa.Schema) -> dict[str, From]:
        by_id = {number: one.name for one in physical if (number := stored_id(one)) is not None}
        found: dict[str, From] = {}
        for column, number in self._ids.items():
            if by_id:
                stored = by_id.get(number)
            else:
                stored = next((one for one in self._names.get(column, ()) if one in physical.names), None)
            found[column] = Constant(self._constants.get(column)) if stored is None else Stored(stored)
        return found

    def __getitem__(self, column: str) -> From:
        return self.settle()[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


@dataclass(frozen=True, slots=True, eq=False)
class ById(Columns):
    """A shard whose columns are found when its footer is read: renames, drops and additions touch no file."""

    mapping: Numbered

    @property
    def key(self) -> str:
        """The file's name with a hash of its key, the columns and where they come from."""
        state = blake2b(self.shard.key.encode(), digest_size=8)
        for name in self.schema:
            column = self.schema[name]
            state.update(f"\0{name}\0{column.logical}\0{column.shape}\0{self.mapping.told(name)!r}".encode())
        return f"{self.shard.key.rpartition('#')[0]}#{state.hexdigest()}"

    def open(self) -> ByIdReader:
        """A reader that shows the schema's columns."""
        return ByIdReader(self)


class ByIdReader(ColumnsReader):
    """One open `ById`; the footer that is read to find the columns is the one that reads them."""

    def __init__(self, shown: ById, /) -> None:
        super().__init__(shown)
        self._numbered = shown.mapping

    def _source(self, name: str) -> tuple[ShardReader, str] | Constant:
        known = self._numbered.known(name, self.inner)
        if known is not None:
            return self.inner, known
        self._numbered.settle(self.inner)
        return super()._source(name)

"""A data file under a table's schema, its columns found by field id, or by name where the file gives no ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import KnowsColumns, Physical, ability
from seqlake.shards.columns import Columns, ColumnsReader, Constant, From, Stored
from seqlake.spec.schema import is_list
from seqlake.tables.iceberg.schemas import stored_id

if TYPE_CHECKING:
    from seqlake.protocols import Shard, ShardReader


class Numbered(Mapping[str, From]):
    """Column -> where it lies in a file, known once the file's footer was read; listing shards reads none.

    Args:
        shard: The file.
        ids: Column -> field id.
        paths: Dotted path -> field id, of all that lies inside columns too.
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
        paths: Mapping[str, int],
        names: Mapping[str, tuple[str, ...]],
        only: Mapping[str, tuple[str, ...]],
        constants: Mapping[str, object],
    ) -> None:
        self._shard = shard
        self._ids = ids
        self.paths = paths
        self._names = names
        self._only = only
        self._constants = constants
        self._found: dict[str, From] | None = None

    def origin(self, column: str, /) -> object:
        """What tells this column's place from another's, without the footer."""
        return self._ids.get(column), self._names.get(column), self._constants.get(column)

    def known(self, column: str, reader: ShardReader, /) -> str | None:
        """What the file calls a column, where its reader is sure without the footer and a name says all."""
        sure = ability(reader, KnowsColumns)
        if sure is None or self._found is not None:
            return None
        return next((name for name in self._only.get(column, ()) if sure.holds(name)), None)

    def settle(self, reader: ShardReader | None = None, /) -> Mapping[str, From]:
        """Find the columns in the footer that a reader has, or that is read now."""
        if self._found is None:
            opened = self._shard.open() if reader is None else reader
            file = ability(opened, Physical)
            assert file is not None  # a file of Parquet, or some rows of one
            self._found = self._find(file.schema)
            if reader is None:
                opened.close()
        return self._found

    def _find(self, physical: pa.Schema) -> dict[str, From]:
        by_id = {number: one.name for one in physical if (number := stored_id(one)) is not None}
        mapping: dict[str, From] = {}
        for column, number in self._ids.items():
            if by_id:
                stored = by_id.get(number)
            else:
                stored = next((one for one in self._names.get(column, ()) if one in physical.names), None)
            mapping[column] = Constant(self._constants.get(column)) if stored is None else Stored(stored)
        return mapping

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
            state.update(f"\0{name}\0{column.logical}\0{column.shape}\0{self.mapping.origin(name)!r}".encode())
        return f"{self.shard.key.rpartition('#')[0]}#{state.hexdigest()}"

    def open(self) -> ByIdReader:
        """A reader that shows the schema's columns."""
        return ByIdReader(self)


class ByIdReader(ColumnsReader):
    """One open `ById`; the footer that is read to find the columns is the one that reads them."""

    def __init__(self, shard: ById, /) -> None:
        super().__init__(shard)
        self._numbered = shard.mapping

    def _source(self, name: str) -> tuple[ShardReader, str] | Constant:
        known = self._numbered.known(name, self.inner)
        if known is not None:
            return self.inner, known
        self._numbered.settle(self.inner)
        return super()._source(name)

    def _cells_as(self, cells: pa.Array, field: pa.Field) -> pa.Array:
        if holds_structs(field.type):
            place = self._numbered.settle(self.inner)[field.name]
            stored: Any = self.inner
            if isinstance(place, Stored):
                cells = nested(cells, stored.schema.field(place.name), field.type, field.name, self._numbered.paths)
        return super()._cells_as(cells, field)


def holds_structs(kind: pa.DataType, /) -> bool:
    """Whether names inside a column could have changed."""
    if is_list(kind):
        return holds_structs(kind.value_type)
    return bool(pa.types.is_struct(kind))


def nested(cells: pa.Array, held: pa.Field, wanted: pa.DataType, path: str, ids: Mapping[str, int], /) -> pa.Array:
    """Cells of structs with the fields that a schema shows, found by the ids that the file gives them.

    Args:
        cells: As the file holds them.
        held: What the file says of them.
        wanted: The type to show; fields that the file lacks are null.
        path: Where in the schema this is.
        ids: Dotted path -> field id.
    """
    kind = held.type
    if is_list(kind) and is_list(wanted):
        inner = nested(cells.flatten(), kind.value_field, wanted.value_type, f"{path}.element", ids)
        lengths = pc.fill_null(pc.list_value_length(cells), 0)
        offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), inner, mask=_mask(cells))
    if not (pa.types.is_struct(kind) and pa.types.is_struct(wanted)):
        return cells
    by_id = {number: one for one in kind if (number := stored_id(one)) is not None}
    arrays = []
    for field in wanted:
        inner_path = f"{path}.{field.name}"
        by_name = kind.field(field.name) if field.name in _names(kind) else None
        source = by_id.get(ids.get(inner_path, -1)) if by_id else by_name
        if source is None:
            arrays.append(pa.nulls(len(cells), field.type))
            continue
        child = pc.struct_field(cells, kind.get_field_index(source.name))
        arrays.append(nested(child, source, field.type, inner_path, ids))
    fields = [pa.field(one.name, array.type, one.nullable) for one, array in zip(wanted, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(cells))


def _names(kind: pa.DataType) -> list[str]:
    return [one.name for one in kind]


def _mask(cells: pa.Array) -> pa.Array | None:
    return cells.is_null() if cells.null_count else None

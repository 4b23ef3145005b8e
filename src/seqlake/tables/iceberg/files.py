"""A data file of a snapshot, as the other lakes' files are described, with what Iceberg knows beyond that.

Its columns are found by field id, or by name where the file gives no ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import KnowsColumns, Physical, ability
from seqlake.shards.columns import Columns, ColumnsReader, Constant, From, Stored
from seqlake.spec.schema import is_list
from seqlake.tables.iceberg.schemas import field_ids, stored_id
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.metadata import TableMetadata

    from seqlake.protocols import Shard, ShardReader
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Naming:
    """What the columns of a schema are called in files.

    Attributes:
        ids: Column -> field id.
        paths: Dotted path -> field id, of all that lies inside columns too.
        names: Column -> what a file without field ids may call it.
        only: Column -> every name it ever had, where no other column ever had one of them.
    """

    ids: Mapping[str, int]
    paths: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IcebergFile(TableFile):
    """A data file whose columns are found by field id.

    Attributes:
        naming: Of the snapshot's schema; one object for all its files.
        defaults: Column -> the value in every row if the file lacks it, which only its footer tells.
    """

    naming: Naming
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """One line that changes when the rows of the file, or what they are taken for, may have."""
        # Zero-argument super() does not work in a class with slots.
        line = f"{TableFile.identity.fget(self)}\0{sorted(self.naming.ids.items())}"  # type: ignore[attr-defined]
        return f"{line}\0{sorted(map(repr, self.defaults.items()))}" if self.defaults else line

    def view(self, shard: Shard, schema: Schema, /) -> Shard:
        """The file as the version shows it."""
        ids = {name: self.naming.ids[name] for name in schema.names}
        known = self.naming
        same = {**self.defaults, **self.constants}
        numbered = Numbered(shard, ids=ids, paths=known.paths, names=known.names, only=known.only, constants=same)
        return ById(shard, schema, numbered)

    def stored_names(self, column: str, /) -> Sequence[str]:
        """What the file may call a column, where a name says all: nothing else was ever called so."""
        return self.naming.only.get(column, ())


def naming(metadata: TableMetadata, schema: IcebergSchema, /) -> Naming:
    """How files may call the columns of one of a table's schemas."""
    ids = {one.name: one.field_id for one in schema.fields}
    ever: dict[int, set[str]] = {number: {name} for name, number in ids.items()}
    taken: dict[str, set[int]] = {}
    for old in metadata.schemas:
        for one in old.fields:
            ever.setdefault(one.field_id, set()).add(one.name)
            taken.setdefault(one.name, set()).add(one.field_id)
    whole = _remembers_all(metadata)
    mapping = metadata.name_mapping()
    mapped = None if mapping is None else {one.field_id: tuple(one.names) for one in mapping.root}
    return Naming(
        ids=ids,
        paths=field_ids(schema),
        names={name: (name,) if mapped is None else mapped.get(number, ()) for name, number in ids.items()},
        only={
            name: tuple(sorted(ever[number]))
            for name, number in ids.items()
            if whole and all(len(taken.get(one, ())) <= 1 for one in ever[number])
        },
    )


def _remembers_all(metadata: TableMetadata) -> bool:
    """Whether no schema was forgotten, as expiry may do: else nobody knows what columns were called before."""
    fields = {number for one in metadata.schemas for number in one.field_ids}
    schemas = {one.schema_id for one in metadata.schemas}
    return fields.issuperset(range(1, metadata.last_column_id + 1)) and schemas.issuperset(range(max(schemas)))


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
    for one in wanted:
        inner_path = f"{path}.{one.name}"
        by_name = kind.field(one.name) if one.name in _names(kind) else None
        source = by_id.get(ids.get(inner_path, -1)) if by_id else by_name
        if source is None:
            arrays.append(pa.nulls(len(cells), one.type))
            continue
        child = pc.struct_field(cells, kind.get_field_index(source.name))
        arrays.append(nested(child, source, one.type, inner_path, ids))
    fields = [pa.field(one.name, array.type, one.nullable) for one, array in zip(wanted, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(cells))


def _names(kind: pa.DataType) -> list[str]:
    return [one.name for one in kind]


def _mask(cells: pa.Array) -> pa.Array | None:
    return cells.is_null() if cells.null_count else None

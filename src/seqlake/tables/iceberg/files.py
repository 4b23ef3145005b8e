"""A data file of a snapshot, as the other lakes' files are described, with what Iceberg knows beyond that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seqlake.tables.iceberg.fields import ById, Numbered
from seqlake.tables.iceberg.schemas import field_ids
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.metadata import TableMetadata

    from seqlake.protocols import Shard
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

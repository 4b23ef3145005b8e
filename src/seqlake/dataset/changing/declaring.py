"""What columns mean and what the metadata say, set for a dataset that is there: one commit that writes no shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqlake.abilities import Checked, ability
from seqlake.arguments import MAPPING, takes
from seqlake.dataset.changing.evolving import replayed
from seqlake.dataset.selection import Selection
from seqlake.dataset.validation.checking import report
from seqlake.dataset.writing import conforming
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.errors import InvalidMetadataError, SchemaMismatchError, ValidationError
from seqlake.spec.column_types import ColumnType
from seqlake.spec.metadata import NAME, Metadata
from seqlake.spec.schema import Column, Schema
from seqlake.spec.unfolded import KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.abilities import Kind
    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.protocols import Depth, Ints, Readable, Shard, Version

_RESERVED = {
    NAME: "It is the version of the format.",
    "column_types": "Set the types of columns with `set_type`.",
    KEY: "seqlake writes it.",
}


@takes(types=MAPPING.or_none(), metadata=MAPPING.or_none())
def declare(
    dataset: OpenDataset,
    /,
    *,
    types: Mapping[str, ColumnType | Mapping[str, Any] | None] | None = None,
    metadata: Mapping[str, Any] | None = None,
    depth: Depth = "rows",
    dry_run: bool = False,
) -> Version:
    """Set column types and metadata in one commit; what `Dataset.declare` does."""

    def change() -> Version:
        old = dataset.schema
        schema = _with_metadata(_with_types(old, types or {}), metadata or {})
        changed = [name for name in types or {} if schema[name].type != old[name].type]
        if depth != "metadata" and changed:
            _refuse_misfits(dataset, schema, changed, depth)
        if dry_run or schema == old:
            return dataset.version
        staging = Staging(dataset.table, schema, shape=ShardShape())
        staging.begin(dataset.version)
        return staging.commit("metadata", schema=schema)

    return replayed(dataset, change)


def _with_types(schema: Schema, types: Mapping[str, ColumnType | Mapping[str, Any] | None]) -> Schema:
    columns = {}
    for name, given in types.items():
        known = schema[name]
        kind = ColumnType.from_json(dict(given)) if isinstance(given, Mapping) else given
        if kind is not None and not isinstance(kind, ColumnType):
            raise TypeError(f"A column type such as sl.Video(fps=30) was expected for {name!r}, found {kind!r}.")
        if name == schema.id:
            raise SchemaMismatchError(f"{name!r} is the id of the rows and has no column type.")
        columns[name] = Column(name, known.arrow, kind, nullable=known.nullable)
    changed = schema.with_columns(columns)
    for name in columns:
        conforming.refuse_broken(changed, column=name)
    return changed


def _with_metadata(schema: Schema, values: Mapping[str, Any]) -> Schema:
    for key in values:
        if key in _RESERVED:
            raise InvalidMetadataError(f"The key {key!r} of the metadata cannot be set.", hint=_RESERVED[key])
    if not values:
        return schema
    extra = {key: value for key, value in {**schema.metadata.extra, **values}.items() if value is not None}
    metadata = Metadata.parse(replace(schema.metadata, extra=extra).to_json())
    return Schema({name: schema[name] for name in schema.names}, metadata=metadata, id=schema.id)


def _refuse_misfits(dataset: OpenDataset, schema: Schema, names: Sequence[str], depth: Depth) -> None:
    """Raise ValidationError unless the cells are what the types say."""
    key = [] if schema.id is None else [schema.id]
    signals = [name for name in schema.names if schema[name].category == "temporal"] if depth != "rows" else []
    columns = dict.fromkeys([*key, *names, *signals])
    everything = Selection(
        _Retyped(dataset.source, schema), storage=dataset.storage, allow_outside=dataset.allow_outside
    )
    try:
        report(everything.select(*columns), depth=depth).raise_for_errors()
    except ValidationError as error:
        message = f"Nothing was changed: {', '.join(names)} would not mean what is there, {error.message}"
        raise ValidationError(message, findings=error.findings) from None


class _Retyped:
    """A version with other column types, for checking: no table says anything of it yet.

    Args:
        source: The version.
        schema: What its columns are to mean.
    """

    def __init__(self, source: Readable, schema: Schema, /) -> None:
        self._source = source
        self.schema = schema

    @property
    def root(self) -> str:
        """That of the version."""
        return self._source.root

    @property
    def fingerprint(self) -> str:
        """That of the version."""
        return self._source.fingerprint

    def shards(self) -> Sequence[Shard]:
        """Those of the version; whoever checks them shows their cells as they are stored."""
        return self._source.shards()

    def lengths(self, column: str, /) -> Ints:
        """Those of the version."""
        return self._source.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """Those of the version; but the table is not checked again."""
        return None if kind is Checked else ability(self._source, kind)

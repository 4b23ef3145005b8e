"""The columns of a folder: those of all its shards, as they were before an export where the index says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import SchemaMismatchError
from seqlake.formats._streaming.restoring import declared
from seqlake.formats._streaming.shard import layout_of
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Column, Schema

if TYPE_CHECKING:
    from seqlake.formats._streaming.index import Config, Index
    from seqlake.formats._streaming.options import Options


def schema_of(index: Index, options: Options, /, *, root: str) -> tuple[Schema, dict[str, Column]]:
    """The schema, and the columns in it that are made again what they were.

    Raises:
        SchemaMismatchError: Shards disagree about a column.
        InvalidMetadataError: An encoding that is not known, or a description of ours that cannot be used.
    """
    stored = _stored(index, options, root)
    source = {"format": index.entries[0].config.format if index.entries else "mds"}
    was = declared(index.extension)
    if was is None:
        return Schema(stored, id=None, metadata=Metadata(extra={"source": source})), {}
    # What the user reads otherwise stays as the user reads it.
    given = {name for config in _configs(index) for name, kind in config.columns if options.given(name, kind) != kind}
    again = {name: was[name] for name in was.names if name in stored and name not in given}
    columns = {name: again.get(name, stored[name]) for name in [*again, *(n for n in stored if n not in again)]}
    key = was.id if was.id in again else None
    return Schema(columns, id=key, metadata=replace(was.metadata, column_types={})), again


def _configs(index: Index) -> list[Config]:
    """The kinds of shards, each once: an index has few."""
    return list({id(entry.config): entry.config for entry in index.entries}.values())


def _stored(index: Index, options: Options, root: str) -> dict[str, Column]:
    configs = _configs(index)
    found: dict[str, tuple[Column, Config]] = {}
    for config in configs:
        for name, column in layout_of(config.format).columns(config, options).items():
            first, where = found.setdefault(name, (column, config))
            if first.logical != column.logical:
                here, there = (dict(kind.columns)[name] for kind in (where, config))
                raise SchemaMismatchError(
                    f"Column {name!r} is {first.logical} ({here}) in one shard, {column.logical} ({there}) in another.",
                    path=root,
                    hint=f"Give both one reading: encodings={{{name!r}: ...}}.",
                )
    everywhere = set(found).intersection(*(config.names for config in configs))
    return {
        name: replace(column, nullable=column.nullable or name not in everywhere) for name, (column, _) in found.items()
    }

"""Files made to say what the dataset says: labels, renames and drops written into the shards, as one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.abilities import Folds, Physical, ability
from seqlake.dataset.changing.rewriting import keep_only
from seqlake.dataset.writing.staging import ShardShape, Staging, open_for_changes
from seqlake.shards.columns import Columns
from seqlake.shards.rows import Rows
from seqlake.spec.schema import innermost, is_number

if TYPE_CHECKING:
    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.protocols import Shard, Version
    from seqlake.spec.schema import Schema


def fold(dataset: OpenDataset, /) -> Version:
    """Write shards anew that say otherwise than the dataset; what `Dataset.fold` does."""
    open_for_changes(dataset)
    shards = due(dataset)
    if not shards and not dataset.unfolded:
        return dataset.version
    staging = Staging(dataset.table, dataset.schema, shape=ShardShape())
    try:
        staging.begin(dataset.version)
        for shard in shards:
            keep_only(staging, shard, dataset.schema)
    except BaseException:
        staging.discard()
        raise
    # In a lake the columns are its own log's business, and only rows are folded.
    operation = "rewrite" if ability(dataset.source, Folds) is None else "fold"
    version = staging.commit(operation, remove=[shard.key for shard in shards])
    dataset.refresh()
    return version


def due(dataset: OpenDataset, /) -> list[Shard]:
    """The shards that `fold` would write anew, in order; opens the footer of each other one.

    In a lake only those with deleted rows: names and types of columns stand in its log, which all its clients read.
    """
    known = ability(dataset.source, Folds)
    if known is None:
        return [shard for shard in dataset.source.shards() if has_deletes(shard)]
    lagging = {shard.key for shard in known.lagging()}
    return [s for s in dataset.source.shards() if s.key in lagging or _differs(s, dataset.schema)]


def has_deletes(shard: Shard, /) -> bool:
    """Whether rows of its file were deleted without the file being written anew."""
    while isinstance(shard, Columns):
        shard = shard.shard
    return isinstance(shard, Rows)


def _differs(shard: Shard, schema: Schema) -> bool:
    """Whether its file has other columns than the dataset, or narrower numbers."""
    bare = shard.shard if isinstance(shard, Columns) else shard
    reader = bare.open()
    try:
        file = ability(reader, Physical)
        if file is None:
            return False
        kinds = {field.name: innermost(field.type) for field in file.schema}
    finally:
        reader.close()
    wanted = {name: innermost(schema[name].stored()) for name in schema.names}
    if kinds.keys() != wanted.keys():
        return True
    return any(is_number(kind) and kinds[name] != kind for name, kind in wanted.items())

"""What a version's `mixtrain.json` says of files that lag behind it; every commit makes sure that it is true.

A rename, a drop or a label rewrites no shard, so that readers of the files alone would see other columns than the
metadata speak of. Pure: computed from the fold of the log, and written into the record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.spec.unfolded import Unfolded, meant, published
from seqlake.tables.standalone.state import columns_of, fold, unfolded

if TYPE_CHECKING:
    from seqlake.tables.standalone.records import VersionRecord
    from seqlake.tables.standalone.state import State


def declared(state: State, record: VersionRecord, /) -> VersionRecord:
    """The record, with metadata that do not contradict the files of its version.

    Args:
        state: The version before.
        record: The one to be made. Version 0 stays as it is: it takes a folder in as others left it.
    """
    if state.version < 0:
        return record
    after = fold(state, [record])
    columns = columns_of(after.schema)
    said = published(meant(after.mixtrain, columns), unfolded(after, added=_added(state, record, after)))
    return record if said == dict(after.mixtrain) else replace(record, mixtrain=said)


def _added(state: State, record: VersionRecord, after: State) -> list[str]:
    """Columns that came when there were files; which files lack them, only their footers tell."""
    columns = columns_of(after.schema)
    stay = after.shards.keys() - {entry.name for entry in record.add}
    if record.operation == "rollback":
        candidates = list(Unfolded.of(after.mixtrain).added)
    elif record.operation == "fold" or (not stay and record.operation != "adopt"):
        candidates = []  # every file was written with all columns
    else:
        before = columns_of(state.schema)
        known = {*before, *record.renamed.values()}
        there = [record.renamed.get(name, name) for name in Unfolded.of(state.mixtrain).added]
        candidates = [*there, *(name for name in columns if name not in known)]
    beside = [{column for side in after.sides.get(name, ()) for column in side.columns} for name in after.shards]
    return [name for name in dict.fromkeys(candidates) if name in columns and not all(name in one for one in beside)]

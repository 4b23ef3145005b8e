"""A change on its way to the log: made durable, checked for ids that are there already, turned into a record."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake.spec.schema import ID
from seqlake.spec.unfolded import meant
from seqlake.tables.standalone.conflicts import check_change, check_fold, check_rewritten, check_sides
from seqlake.tables.standalone.records import ShardEntry, VersionRecord, encode_mapping
from seqlake.tables.standalone.state import (
    Renaming,
    columns_of,
    decode_schema,
    encode_columns,
    files_of,
    fingerprint,
    logged_file,
)
from seqlake.versions import indexes, markers, names, staging
from seqlake.versions.format import refuse_strange_renames, refuse_unknown_operation, writer_name
from seqlake.versions.names import of_key
from seqlake.versions.references import carried_files
from seqlake.versions.small_files import in_parallel
from seqlake.versions.state import SideEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from seqlake.protocols import Change, Copied, Side, Store, Written
    from seqlake.tables.standalone.context import LogContext
    from seqlake.tables.standalone.state import State
    from seqlake.versions.ids import Identity

_LONGEST_STATISTIC = 256


@dataclass(kw_only=True)
class Proposal:
    """A `Change` whose shards are staged: what each round of a commit makes its record from.

    Attributes:
        transaction: Whose.
        parent: The state that the change was made on.
        operation: What the record will call it.
        add: The new shards, columns as they lie in the files.
        packed: The packed id hashes of each new shard.
        side: The new side shards.
        remove: Names of shards that leave.
        schema: The new logical schema, as IPC bytes; None leaves it.
        mixtrain: The new metadata; None leaves them.
        renamed: Columns that the new schema only calls otherwise.
        ids: Checks those of new rows; None where nothing is added.
    """

    transaction: str
    parent: State
    operation: str
    path: str
    add: Sequence[ShardEntry] = ()
    packed: Sequence[bytes] = ()
    side: Sequence[SideEntry] = ()
    remove: Sequence[str] = ()
    schema: bytes | None = None
    mixtrain: Mapping[str, Any] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    ids: Identity | None = None

    def _turns_every_row(self) -> bool:
        """Whether the columns stay and all rows were written anew: then their cells mean something else now."""
        new = self.parent.schema if self.schema is None else self.schema
        same = not self.renamed and sorted(columns_of(new)) == sorted(columns_of(self.parent.schema))
        return same and bool(self.remove) and set(self.remove) == self.parent.shards.keys()

    def __call__(self, state: State, since: Sequence[VersionRecord]) -> VersionRecord:
        """The record for the version after `state`; raises on conflict or a duplicate id."""
        changes_schema = self.schema is not None or self.mixtrain is not None
        new = {entry.name for entry in self.add}
        needed = [*self.remove, *(side.of for side in self.side if side.of not in new)]
        check_change(state, since, needed=needed, changes_schema=changes_schema, path=self.path)
        beside = [(side.of, column) for side in self.side for column in side.columns]
        check_sides(since, removed=self.remove, beside=beside, path=self.path)
        if self.operation == "fold":
            check_fold(since, path=self.path)
        if changes_schema and self._turns_every_row():
            check_rewritten(state, since, removed=self.remove, path=self.path)
        if self.ids is not None and ID in columns_of(state.schema):
            added = list(zip(map(logged_file, self.add), self.packed, strict=True))
            self.ids.check(files_of(state), files_of(self.parent), added=added, removed=self.remove)
        add, side = list(self.add), list(self.side)
        schema = self.parent.schema
        for record in since:
            if record.schema is not None:
                renaming = Renaming.between(schema, record.schema, record.renamed)
                add = [renaming.entry(entry) for entry in add]
                side = [now for old in side if (now := renaming.side(old)) is not None]
                schema = record.schema
        gone = sum(state.shards[name].rows for name in self.remove)
        return VersionRecord(
            version=state.version + 1,
            transaction=self.transaction,
            time=markers.now(),
            operation=self.operation,
            writer=writer_name(),
            rows=state.rows - gone + sum(entry.rows for entry in add),
            add=tuple(add),
            remove=tuple(self.remove),
            schema=self.schema,
            mixtrain=self.mixtrain,
            renamed=self.renamed if self.schema is not None else {},
            side=tuple(side),
        )


def propose(context: LogContext, change: Change, /, *, transaction: str, parent: State) -> Proposal:
    """Make everything of a change durable that is not yet, its index file too; nothing is visible afterwards.

    Raises:
        ValueError: The change contradicts itself.
        OSError: It could not be made durable.
    """
    refuse_unknown_operation(change.operation)
    store = context.store
    written = in_parallel(store, lambda one: staging.stage(store, transaction, one), change.add)
    sides = [_staged_side(store, transaction, side) for side in change.side]
    remove = list(dict.fromkeys(of_key(key) for key in change.remove))
    schema, mixtrain, renamed = _new_schema(change, parent)
    entries = [_entry(one, transaction) for one in written]
    carried: Mapping[str, Sequence[Copied]] = {}
    if remove:  # only rows that were there before name files of earlier commits
        files = files_of(parent)
        carried = carried_files(
            context,
            [files.named(name) for name in remove if name in parent.shards],
            map(logged_file, entries),
            schema=decode_schema(schema or parent.schema, mixtrain or parent.mixtrain),
        )
    rows = [
        indexes.IndexRow.of(entry.name, one, carried=carried.get(entry.name, ()))
        for entry, one in zip(entries, written, strict=True)
    ]
    write_index(store, transaction, rows)
    _sync(store, [file.path for one in written for file in one.files], sides=bool(sides))
    return Proposal(
        transaction=transaction,
        parent=parent,
        operation=change.operation,
        path=context.root,
        add=entries,
        packed=[bytes(row.ids) for row in rows],
        side=sides,
        remove=remove,
        schema=schema,
        mixtrain=mixtrain,
        renamed=renamed,
        ids=context.ids if entries else None,
    )


def write_index(store: Store, transaction: str, rows: Sequence[indexes.IndexRow], /) -> None:
    """Write the index file of a transaction's shards, and the packet indexes of its videos."""
    if not rows:
        return
    # Only the writer of T ever writes these names; what a commit that failed half way left of them is replaced.
    store.put(names.index(transaction), indexes.encode(rows), temporary=names.temporary(transaction))
    files = (file for row in rows for file in row.files)
    media = indexes.encode_media(file for file in files if names.copied_owner(file.path) == transaction)
    if media is not None:
        store.put(names.media(transaction), media, temporary=names.temporary(transaction))
        store.sync(names.MEDIA, names.OURS)


def _sync(store: Store, files: Iterable[str], *, sides: bool) -> None:
    staging.sync_folders(store, files)
    store.sync(names.STAGED, names.INDEX)
    if sides:
        store.sync(names.SIDE, names.OURS)


def _staged_side(store: Store, transaction: str, side: Side) -> SideEntry:
    with Path(side.location).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    path = staging.bring(
        store, side.location, transaction, target=lambda name: f"{names.SIDE}/{name}", owner=names.side_owner
    )
    return SideEntry(
        name=path.rpartition("/")[2],
        of=of_key(side.shard),
        columns={column: column for column in side.columns},
        nbytes=side.nbytes,
        sha256=sha256,
    )


def _entry(written: Written, transaction: str) -> ShardEntry:
    return ShardEntry(
        name=names.of_bare(written.location.rpartition("/")[2]),
        transaction=transaction,
        rows=written.rows,
        nbytes=written.nbytes,
        columns=encode_mapping({}),
        statistics=encode_statistics(written.statistics),
    )


def _new_schema(change: Change, parent: State) -> tuple[bytes | None, Mapping[str, Any] | None, Mapping[str, str]]:
    if change.schema is None:
        return None, None, {}
    schema, mixtrain = encode_schema(change.schema)
    before = columns_of(parent.schema)
    refuse_strange_renames(change.renamed, before, columns_of(schema))
    same_schema = schema == parent.schema and not change.renamed
    same_metadata = fingerprint(mixtrain) == fingerprint(meant(parent.mixtrain, before))
    return None if same_schema else schema, None if same_metadata else mixtrain, dict(change.renamed)


def encode_schema(schema: Any, /) -> tuple[bytes, Mapping[str, Any]]:
    """A `Schema` as records have it: Arrow IPC bytes and the object of `mixtrain.json`."""
    return encode_columns(schema), meant(json.loads(schema.metadata.to_json()), schema.names)


def encode_statistics(statistics: Mapping[str, tuple[object, object, int]], /) -> str:
    """Statistics as JSON text; columns whose values JSON cannot hold faithfully are left out."""
    plain = {}
    for column, (low, high, nulls) in statistics.items():
        bounds = [_plain(low), _plain(high)]
        if None not in bounds or (low is None and high is None):
            plain[column] = [*bounds, int(nulls)]
    return json.dumps(plain, ensure_ascii=False) if plain else ""


def _plain(value: object) -> object:
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and len(value) <= _LONGEST_STATISTIC:
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return None

"""The state of a table at a version: the fold of its records, pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import DamagedTableError
from seqlake.protocols import Version
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema, is_number, is_text
from seqlake.spec.unfolded import KEY, Unfolded, meant, published
from seqlake.tables.standalone.records import ShardEntry, VersionRecord, encode_mapping
from seqlake.versions import names
from seqlake.versions.format import UNSEALED
from seqlake.versions.state import FileList, SideEntry, TableFile, TableState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BEGINNING = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a version consists of.

    Attributes:
        version: Its number; -1 before version 0.
        transaction: The one that made it.
        time: The writer's clock.
        operation: What that writer did.
        shards: By name, in order of addition.
        sides: By name of the shard they stand beside.
        schema: The logical Arrow schema as IPC bytes.
        mixtrain: The metadata, as in `mixtrain.json`; what they mean for the dataset, `meant` tells.
        known: `fingerprint` of each `mixtrain` so far, and of what it meant.
        oldest: The oldest version that can still be read without a tag.
        tags: The names of versions, which can be read for as long as they have one.
        rows: Of all shards.
        digest: Of the record of this version, which the next one must name.
        format: Of that record; it never goes back.
        requires: All that the records so far ask of their readers.
        checkpoint: The version of the newest checkpoint that was used to get here; -1 for none.
        index: The name of that checkpoint's index file.
        entries: How many shards the records since that checkpoint added or removed.
    """

    version: int = -1
    transaction: str = ""
    time: datetime = _BEGINNING
    operation: str = ""
    shards: Mapping[str, ShardEntry] = field(default_factory=dict)
    sides: Mapping[str, tuple[SideEntry, ...]] = field(default_factory=dict)
    schema: bytes = b""
    mixtrain: Mapping[str, Any] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    oldest: int = 0
    tags: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    digest: str = ""
    format: int = 0
    requires: frozenset[str] = frozenset()
    checkpoint: int = -1
    index: str = ""
    entries: int = 0

    def is_readable(self, version: int, /) -> bool:
        """Whether a version is there and did not expire. One that did never comes back: it can get no name."""
        return self.oldest <= version <= self.version or version in self.tags.values()

    def kept(self, oldest: int | None = None, /) -> list[int]:
        """The versions that would have expired but for their names, oldest first.

        Args:
            oldest: As a vacuum is about to set it; None for what it is.
        """
        limit = self.oldest if oldest is None else oldest
        return sorted({version for version in self.tags.values() if version < limit})

    def same_table(self, other: State) -> bool:
        """Whether both are the same version, however each was arrived at."""
        return _without_origin(self) == _without_origin(other) and list(self.shards) == list(other.shards)


def _without_origin(state: State) -> State:
    return replace(state, checkpoint=-1, index="", entries=0)


EMPTY = State()


def fingerprint(mixtrain: Mapping[str, Any]) -> str:
    """16 hex digits that tell one metadata object from another, however it is spaced or ordered."""
    text = json.dumps(dict(mixtrain), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _fingerprints(mixtrain: Mapping[str, Any], schema: bytes) -> frozenset[str]:
    """Of metadata as they stand, and of what they mean: who changes only what `x_seqlake` says has edited nothing."""
    whole = frozenset({fingerprint(mixtrain)})
    return whole | {fingerprint(meant(mixtrain, columns_of(schema)))} if KEY in mixtrain else whole


def encode_columns(schema: Schema) -> bytes:
    """A schema as records carry it: each column in the type it was declared by.

    Not in its logical type, which does not say whether cells are raw, or what the files said of inner lists.
    """
    fields = [pa.field(column.name, column.arrow, column.nullable) for column in schema.values()]
    return bytes(pa.schema(fields).serialize())


def decode_schema(schema: bytes, mixtrain: Mapping[str, Any], /) -> Schema:
    """The `Schema` that a state carries."""
    arrow = pa.ipc.read_schema(pa.py_buffer(schema)) if schema else pa.schema([])
    metadata = Metadata.parse(json.dumps(meant(mixtrain, arrow.names)))
    return Schema.from_arrow(arrow, metadata=metadata, id=ID if ID in arrow.names else None)


def columns_of(schema: bytes) -> list[str]:
    """The column names of a schema as records carry it."""
    return pa.ipc.read_schema(pa.py_buffer(schema)).names if schema else []


def fold(state: State, records: Iterable[VersionRecord], /) -> State:
    """The state after these records, which must follow it without a hole.

    Raises:
        DamagedTableError: A hole, or a record that contradicts the ones before it.
    """
    shards, sides = dict(state.shards), dict(state.sides)
    for record in records:
        _refuse_unlinked(state, record)
        rows = state.rows - sum(shards[name].rows for name in record.remove if name in shards)
        rows += sum(entry.rows for entry in record.add)
        _leave(record, shards, sides)
        _refuse_strange_renames(state, record)
        if record.schema is not None and shards:
            _remap(shards, sides, Renaming.between(state.schema, record.schema, record.renamed))
        for entry in record.add:
            if entry.name in shards:
                raise DamagedTableError(f"Version {record.version} adds {entry.name}, which is there already.")
            shards[entry.name] = entry
        for side in record.side:
            if side.of not in shards:
                raise DamagedTableError(f"Version {record.version} puts columns beside {side.of}, which is not there.")
            sides[side.of] = _beside(sides.get(side.of, ()), side)
        if rows != record.rows:
            raise DamagedTableError(f"Version {record.version} says {record.rows} rows, its shards have {rows}.")
        schema = state.schema if record.schema is None else record.schema
        known = state.known if record.mixtrain is None else state.known | _fingerprints(record.mixtrain, schema)
        state = replace(
            state,
            version=record.version,
            transaction=record.transaction,
            time=record.time,
            operation=record.operation,
            schema=schema,
            mixtrain=state.mixtrain if record.mixtrain is None else record.mixtrain,
            known=known,
            oldest=state.oldest if record.oldest is None else max(state.oldest, record.oldest),
            tags=_tagged(state, record),
            rows=record.rows,
            digest=record.digest,
            format=record.format,
            requires=state.requires.union(record.requires),
            entries=state.entries + len(record.add) + len(record.remove),
        )
    return replace(state, shards=shards, sides=sides)


def _refuse_unlinked(state: State, record: VersionRecord) -> None:
    """A record must follow the one before it, and name its digest."""
    if record.version != state.version + 1:
        raise DamagedTableError(f"The log has version {record.version} after version {state.version}.")
    if record.format == UNSEALED and state.format <= UNSEALED:
        return
    if record.format < state.format or record.previous != state.digest:
        raise DamagedTableError(
            f"Version {record.version} was committed after another version {state.version} than the one that is there.",
            hint="One of the two files of the log was replaced or changed; restore it from a copy.",
        )


def _refuse_strange_renames(state: State, record: VersionRecord) -> None:
    """A column that was not there cannot have got a new name: what has it now would read null."""
    if not record.renamed:
        return
    before, after = columns_of(state.schema), columns_of(record.schema or b"")
    if not (record.renamed.keys() <= set(before) and set(record.renamed.values()) <= set(after)):
        listed = ", ".join(f"{old!r} to {new!r}" for old, new in record.renamed.items())
        raise DamagedTableError(
            f"Version {record.version} renames {listed}, from {', '.join(before)} to {', '.join(after) or 'nothing'}."
        )


def _tagged(state: State, record: VersionRecord) -> Mapping[str, int]:
    """The names of versions after a record; null takes one away."""
    if not record.tags:
        return state.tags
    for name, version in record.tags.items():
        if version is not None and not state.is_readable(version):
            raise DamagedTableError(f"Version {record.version} names version {version} {name!r}, which expired.")
    tags = {**state.tags, **record.tags}
    return {name: version for name, version in tags.items() if version is not None}


def _leave(record: VersionRecord, shards: dict[str, ShardEntry], sides: dict[str, tuple[SideEntry, ...]]) -> None:
    for name in record.remove:
        if shards.pop(name, None) is None:
            raise DamagedTableError(f"Version {record.version} removes {name}, which is not there.")
        sides.pop(name, None)


def _beside(old: tuple[SideEntry, ...], new: SideEntry) -> tuple[SideEntry, ...]:
    """A later side of the same column replaces it."""
    kept = []
    for side in old:
        columns = {logical: stored for logical, stored in side.columns.items() if logical not in new.columns}
        if columns:
            kept.append(replace(side, columns=columns))
    return (*kept, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """What a new schema means for the columns of shards that are there already."""

    renamed: Mapping[str, str]
    vanished: frozenset[str]

    @classmethod
    def between(cls, old: bytes, new: bytes, renamed: Mapping[str, str]) -> Renaming:
        """From the schemas before and after, and the columns that only changed their name."""
        before, after = columns_of(old), frozenset(columns_of(new))
        kept = frozenset(name for name in before if name in after and name not in set(renamed.values()))
        return cls(renamed=dict(renamed), vanished=frozenset(before) - kept - frozenset(renamed))

    def __bool__(self) -> bool:
        return bool(self.renamed or self.vanished)

    def logical(self, column: str) -> str | None:
        """What a logical column is called now; None when it is gone."""
        return None if column in self.vanished else self.renamed.get(column, column)

    def entry(self, entry: ShardEntry) -> ShardEntry:
        """The shard under the new schema."""
        mapping = entry.mapping
        mapped: dict[str, str | None] = {}
        for physical, logical in mapping.items():
            mapped[physical] = None if logical is None else self.logical(logical)
        for column in (*self.vanished, *self.renamed):
            # A column that no other column stands for is found under its own name, so that must be said no more.
            if column not in mapping and column not in mapping.values():
                mapped[column] = self.logical(column)
        return replace(entry, columns=encode_mapping({p: c for p, c in mapped.items() if p != c}))

    def side(self, side: SideEntry) -> SideEntry | None:
        """The side shard under the new schema; None when no column of it is left."""
        columns = {now: stored for logical, stored in side.columns.items() if (now := self.logical(logical))}
        return replace(side, columns=columns) if columns else None


def _remap(shards: dict[str, ShardEntry], sides: dict[str, tuple[SideEntry, ...]], renaming: Renaming) -> None:
    if not renaming:
        return
    for name, entry in shards.items():
        shards[name] = renaming.entry(entry)
    for name, beside in list(sides.items()):
        left = tuple(side for old in beside if (side := renaming.side(old)))
        if left:
            sides[name] = left
        else:
            del sides[name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedFile(TableFile):
    """A shard of a standalone table.

    Attributes:
        mapping: Physical to logical column name where they differ, None for dropped ones.
        logged: Its statistics as the log has them, JSON text.
    """

    mapping: Mapping[str, str | None] = field(default_factory=dict)
    logged: str = field(default="", repr=False)

    def bounds(self, column: str, kind: pa.DataType, /) -> tuple[object, object] | None:
        """The least and the most that a column has in the shard; None where the log does not say, or in other words.

        Args:
            column: As the version calls it.
            kind: Its type: numbers, texts and dates stand in the log as they compare, times do not.
        """
        plain = is_text(kind) or is_number(kind) or pa.types.is_boolean(kind)
        if not (self.logged and (plain or pa.types.is_date32(kind))):
            return None
        if any(column in side.columns for side in self.beside):
            return None  # its cells lie elsewhere
        try:
            low, high, _ = json.loads(self.logged)[self.stored_names(column)[0]]
            if low is None or high is None:
                return None
            return (low, high) if plain else (date.fromisoformat(low), date.fromisoformat(high))
        except (IndexError, KeyError, TypeError, ValueError):
            return None  # nobody said, or a foreign writer said something else

    @property
    def identity(self) -> str:
        """One line that changes when the shard's bytes or what it is taken for may have."""
        beside = [[side.name, sorted(side.columns.items())] for side in self.beside]
        return json.dumps([self.name, self.nbytes, self.rows, self.mapping, beside], sort_keys=True)


def logged_file(entry: ShardEntry, /, *, beside: tuple[SideEntry, ...] = (), merged: str = "") -> LoggedFile:
    """A shard as a value that all kinds of tables share.

    Args:
        entry: As the log has it.
        beside: Its side shards.
        merged: The name of the checkpoint's index file that may know it.
    """
    mapping = entry.mapping
    indexed_in = () if entry.transaction == names.NOBODY else (names.index(entry.transaction),)
    return LoggedFile(
        name=entry.name,
        rows=entry.rows,
        nbytes=entry.nbytes,
        columns={logical: stored for stored, logical in mapping.items() if logical is not None},
        absent=frozenset(mapping) - frozenset(mapping.values()),
        transaction=entry.transaction,
        beside=beside,
        indexed_in=(f"{names.INDEX}/{merged}", *indexed_in) if merged else indexed_in,
        mapping=mapping,
        logged=entry.statistics,
    )


def files_of(state: State, /) -> FileList:
    """The shards of a version, each described when it is asked for."""
    return FileList(list(state.shards), partial(_file_of, state))


def _file_of(state: State, name: str) -> TableFile:
    return logged_file(state.shards[name], beside=state.sides.get(name, ()), merged=state.index)


def version_of(state: State, /) -> Version:
    """A state's version, as callers see it."""
    return Version(id=state.version, time=state.time, operation=state.operation, rows=state.rows)


def table_state(state: State, /) -> TableState:
    """A version as the value that all kinds of tables share."""
    schema = pa.ipc.read_schema(pa.py_buffer(state.schema)) if state.schema else pa.schema([])
    return TableState(
        version=version_of(state),
        schema=schema,
        mixtrain=json.dumps(meant(state.mixtrain, schema.names)),
        files=files_of(state),
        unfolded=unfolded(state, added=Unfolded.of(state.mixtrain).added) if state.version >= 0 else Unfolded(),
    )


def unfolded(state: State, /, *, added: Iterable[str]) -> Unfolded:
    """What the files of a version hold otherwise than it shows them, as far as the log says.

    Args:
        state: The version.
        added: Columns that came later than some of its files, which the log does not remember.
    """
    mappings = {entry.columns for entry in state.shards.values()} - {""}
    if not mappings and not state.sides:
        return Unfolded(added=tuple(added))
    live = set(columns_of(state.schema))
    means: dict[str, set[str | None]] = {}
    for text in mappings:
        for physical, logical in json.loads(text).items():
            means.setdefault(physical, set()).add(logical)
    reused = {name for name, columns in means.items() if name in live or len(columns) > 1}
    only = {name: next(iter(columns)) for name, columns in sorted(means.items()) if name not in reused}
    return Unfolded(
        renamed={name: column for name, column in only.items() if column is not None},
        dropped=tuple(name for name, column in only.items() if column is None),
        beside=tuple(sorted({column for sides in state.sides.values() for side in sides for column in side.columns})),
        added=tuple(added),
        reused=tuple(sorted(reused)),
    )


# ---- what `mixtrain.json` says of files that lag behind the version: every commit makes sure that it is true
def declared(state: State, record: VersionRecord, /) -> VersionRecord:
    """The record, with metadata that do not contradict the files of its version.

    A rename, a drop or a label rewrites no shard, so that readers of the files alone would see other columns than the
    metadata speak of.

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
    if not candidates:
        return []
    beside = [{column for side in after.sides.get(name, ()) for column in side.columns} for name in after.shards]
    return [name for name in dict.fromkeys(candidates) if name in columns and not all(name in one for one in beside)]

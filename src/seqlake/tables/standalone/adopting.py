"""Adoption: what others put beside our log, or had before there was one, is taken in by a commit; nothing moves."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import DatasetExistsError, ReadOnlyError, ShardChangedError, ValidationError
from seqlake.shards.ids import pack
from seqlake.shards.parquet.building import index_bytes
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID
from seqlake.tables.standalone import plain
from seqlake.tables.standalone.changes import Proposal, encode_schema, write_index
from seqlake.tables.standalone.committing import all_or_nothing, begin, commit_version
from seqlake.tables.standalone.context import bare_shard, placed_blob
from seqlake.tables.standalone.publishing import metadata_is_edited, publish_or_warn
from seqlake.tables.standalone.records import ShardEntry, VersionRecord
from seqlake.tables.standalone.state import columns_of, decode_schema, logged_file
from seqlake.versions import folders, indexes, markers, names, shard_formats
from seqlake.versions.format import writer_name
from seqlake.versions.markers import announce, end
from seqlake.versions.small_files import read, remove

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.abilities import MapsTasks
    from seqlake.protocols import Store
    from seqlake.spec.schema import Schema
    from seqlake.tables.standalone.context import LogContext
    from seqlake.tables.standalone.log import Log
    from seqlake.tables.standalone.state import State
    from seqlake.versions.state import TableFile

_FILES_PER_TASK = 64
_BYTES_PER_TASK = 64 << 20
_NONE = pa.schema([])


def _first_version(log: Log, make: Callable[[str], VersionRecord]) -> VersionRecord:
    """Make version 0; of two that try at once one wins, and its record is returned to both.

    Args:
        log: A log without versions.
        make: From the transaction, the record; stages what it needs.
    """
    store = log.store
    log.refuse_holes()
    transaction = announce(store, -1)
    try:
        with all_or_nothing(log, transaction):
            record = make(transaction)
            store.sync(names.OURS, "")  # the folders made on the way are names, too
            record = commit_version(
                log, transaction, parent=-1, propose=lambda state, _: _only_first(log, state, record)
            )
    except DatasetExistsError:
        return log.record(0)
    if publish_or_warn(log, transaction, first=0):
        end(store, transaction)
    return record


def _only_first(log: Log, state: State, record: VersionRecord) -> VersionRecord:
    if state.version >= 0:
        raise DatasetExistsError(f"{log.root} has versions already.", path=log.root)
    return record


def create(log: Log, schema: Schema, /) -> VersionRecord:
    """Version 0 of a new, empty table.

    Raises:
        DatasetExistsError: Something is there already.
        ReadOnlyError: The place cannot be written.
    """
    _refuse_if_there(log)
    encoded, mixtrain = encode_schema(schema)

    def make(transaction: str) -> VersionRecord:
        return _first_record(transaction, "create", (), encoded, dict(mixtrain))

    record = _first_version(log, make)
    if record.operation != "create" or record.schema != encoded:
        raise DatasetExistsError(
            f"{log.root} was made by another process at the same moment.", path=log.root, hint="Open it with sl.open."
        )
    return record


def _refuse_if_there(log: Log) -> None:
    if (
        log.newest().version >= 0
        or any(folders.is_data(path) for path, _ in log.store.list())
        or _has_metadata(log.store)
    ):
        raise DatasetExistsError(
            f"{log.root} holds a dataset or Parquet files already.",
            path=log.root,
            hint="Open it with sl.open, choose another folder, or make it a dataset with `seqlake init`.",
        )


def _has_metadata(store: Store) -> bool:
    return read(store, names.METADATA) is not None


def adopt_folder(context: LogContext, /, *, move: bool = False, mapped: MapsTasks | None = None) -> VersionRecord:
    """Version 0 of a folder that had no log: its `data/*.parquet` by their names, and its `mixtrain.json`.

    Args:
        context: A log without versions.
        move: Files that lie directly in the root are given names in `data/`: linked or copied there, committed, and
            only then removed from where they were.
        mapped: What has the files looked at; this thread by default, within the transaction.

    Raises:
        DatasetNotFoundError: No `mixtrain.json`.
        ReadOnlyError: Its files lie elsewhere.
    """
    log, store = context.log, context.store
    mixtrain = plain.read_metadata(store)
    paths, at_root = _adoptable(store, move=move)
    files = plain.describe(store, paths)
    schema = plain.encode(plain.unified(files), mixtrain)
    looks = None if mapped is None else _looked(_Look(context, schema, mixtrain), files, mapped)

    def make(transaction: str) -> VersionRecord:
        renamed = (
            {path: names.part(transaction, str(at), shard_formats.name_of(path)) for at, path in enumerate(paths)}
            if at_root
            else {}
        )
        for path, name in renamed.items():
            store.copy(path, names.staged(name))
        if renamed:
            store.sync(names.STAGED)
        taken = [replace(file, path=renamed.get(file.path, file.path)) for file in files]
        entries = _entries(taken, transaction)
        write_rows(context, transaction, entries, schema, mixtrain, looks=looks)
        return _first_record(transaction, "adopt", entries, schema, mixtrain)

    record = _first_version(log, make)
    if at_root and _is_in_data(store, record):
        remove(store, paths)
    return record


def _adoptable(store: Store, *, move: bool) -> tuple[list[str], bool]:
    """The data files of a plain folder that may become a table's, and whether they lie in its root."""
    paths = folders.data_files(store)
    at_root = bool(paths) and not any("/" in path for path in paths)
    if not (at_root and move):
        _refuse_elsewhere(store.root, paths, at_root=at_root)
    _refuse_links(store, paths if at_root else ())
    return paths, at_root


def would_adopt(log: Log, /) -> list[str]:
    """Paths of the shards that an adoption would take in now; writes nothing.

    Raises:
        ReadOnlyError: It would be refused, because files lie elsewhere.
    """
    state = log.newest()
    if state.version < 0:
        return _adoptable(log.store, move=True)[0]
    others = strangers(log, state)
    _refuse_nested(log.root, others)
    return [names.data(name) for name in others if names.is_shard_name(name)]


def _refuse_elsewhere(root: str, paths: Sequence[str], *, at_root: bool) -> None:
    deeper = next((path for path in paths if path.rpartition("/")[0] != names.DATA), None)
    if deeper is not None:
        advice = (
            f"`seqlake adopt {root}` moves them there" if at_root else "`seqlake repack` writes them into a new one"
        )
        raise ReadOnlyError(
            f"{root}: the Parquet files of a dataset that is written lie directly in data/, found {deeper}.",
            path=root,
            hint=f"{advice}, `seqlake convert` into a lake, which may have partitions; opening this one for reading "
            "works.",
        )


def _refuse_links(store: Store, paths: Sequence[str]) -> None:
    for path in paths:
        local = store.local(path)
        if local is not None and local.is_symlink():
            raise ReadOnlyError(
                f"{store.root}/{path} is a link, which cannot move into data/.",
                path=store.root,
                hint="Put the file itself there, or write a new dataset with `seqlake repack`.",
            )


def _is_in_data(store: Store, record: VersionRecord) -> bool:
    """Whether all that a version added is where glob readers look: it was published."""
    there = dict(store.list(names.DATA))
    return all(there.get(names.data(entry.name)) == entry.nbytes for entry in record.add)


def _first_record(
    transaction: str, operation: str, add: Sequence[ShardEntry], schema: bytes, mixtrain: dict[str, Any]
) -> VersionRecord:
    return VersionRecord(
        version=0,
        transaction=transaction,
        time=markers.now(),
        operation=operation,
        writer=writer_name(),
        rows=sum(entry.rows for entry in add),
        add=tuple(add),
        schema=schema,
        mixtrain=mixtrain,
    )


def _entries(files: Sequence[plain.PlainFile], transaction: str) -> list[ShardEntry]:
    return [
        ShardEntry(
            name=file.path.removeprefix(f"{names.DATA}/"), transaction=transaction, rows=file.rows, nbytes=file.nbytes
        )
        for file in files
    ]


@dataclass(frozen=True, slots=True)
class _Look:
    """What the index of a table says of files that others wrote: ids, and where the steps of each row lie.

    Attributes:
        context: Of the table.
        schema: Its columns, encoded.
        mixtrain: Its metadata.
    """

    context: LogContext
    schema: bytes
    mixtrain: dict[str, Any]

    def __call__(self, task: Sequence[plain.PlainFile], /) -> list[tuple[bytes, bytes]]:
        """Packed ids and offset index of each; for files of a plain folder."""
        for file in task:
            if self.context.store.blob(file.path).token != file.token:
                raise ShardChangedError(
                    f"{self.context.root}/{file.path} changed while it was indexed.",
                    path=self.context.root,
                    hint="Begin anew once nobody writes to the folder any more.",
                )
        return self.of([_as_it_lies(file) for file in task])

    def of(self, files: Sequence[TableFile], /) -> list[tuple[bytes, bytes]]:
        """The same, wherever they lie."""
        declared, named = decode_schema(self.schema, self.mixtrain), ID in columns_of(self.schema)
        return [(_ids(self.context, one) if named else b"", _offsets(self.context, one, declared)) for one in files]


def _as_it_lies(file: plain.PlainFile) -> TableFile:
    """A file of a folder that has no log."""
    entry = ShardEntry(name=file.path, transaction=names.NOBODY, rows=file.rows, nbytes=file.nbytes)
    return logged_file(entry)


def _looked(look: _Look, files: Sequence[plain.PlainFile], mapped: MapsTasks) -> list[tuple[bytes, bytes]]:
    """The same of all files, some neighbours a task; their schemas stay at home."""
    tasks: list[list[plain.PlainFile]] = []
    room = 0
    for file in (replace(one, schema=_NONE) for one in files):
        if not tasks or room < file.nbytes or len(tasks[-1]) == _FILES_PER_TASK:
            tasks.append([])
            room = _BYTES_PER_TASK
        tasks[-1].append(file)
        room -= file.nbytes
    return [one for some in mapped(look, tasks) for one in some]


def write_rows(
    context: LogContext,
    transaction: str,
    entries: Sequence[ShardEntry],
    schema: bytes,
    mixtrain: dict[str, Any],
    /,
    *,
    looks: Sequence[tuple[bytes, bytes]] | None = None,
) -> list[bytes]:
    """Write the index file of shards that lie in `data/` already, their ids read once; checks that each is there once.

    Args:
        context: Of the table.
        transaction: That takes them in.
        entries: The shards.
        schema: The columns, encoded.
        mixtrain: The metadata.
        looks: Packed ids and offset index of each, where somebody has looked already.

    Returns:
        The packed ids of each.

    Raises:
        ValidationError: An id is null or empty, or stands twice.
    """
    files = [logged_file(entry) for entry in entries]
    if looks is None:
        looks = _Look(context, schema, mixtrain).of(files)
    packed = [ids for ids, _ in looks]
    rows = [
        indexes.IndexRow(shard=file.name, rows=file.rows, nbytes=file.nbytes, ids=ids, index=index)
        for file, (ids, index) in zip(files, looks, strict=True)
    ]
    context.ids.check_new(list(zip(files, packed, strict=True)))
    write_index(context.store, transaction, rows)
    context.store.sync(names.STAGED, names.INDEX)
    return packed


def _ids(context: LogContext, file: TableFile) -> bytes:
    reader = bare_shard(context.store, file, version=-1).open()
    try:
        # Other writers store ids as large strings, views or dictionaries.
        batches = [batch.column(0).cast(pa.string()) for batch in reader.batches([ID])]
    finally:
        reader.close()
    ids = pa.chunked_array(batches, pa.string()) if batches else pa.chunked_array([[]], pa.string())
    if ids.null_count or "" in set(ids.to_pylist()):
        raise ValidationError(
            f"Expected an id in every row of {_path(file)}, found {ids.null_count} nulls or empty ones.",
            path=context.root,
            hint="`seqlake validate` names the rows; give each an id of its own first.",
        )
    return pack(ids.combine_chunks())


def _path(file: TableFile) -> str:
    return file.name if file.transaction == names.NOBODY else names.data(file.name)


def _offsets(context: LogContext, file: TableFile, schema: Schema) -> bytes:
    if shard_formats.name_of(file.name) != shard_formats.PARQUET:
        return b""
    blob = placed_blob(context.store, file, version=-1)
    # A file of another writer has no index; where it is plain and uncompressed, one is kept beside it.
    return index_bytes(blob, schema=schema)


def strangers(log: Log, state: State, /) -> list[str]:
    """Names below `data/` that the log never had, sorted."""
    paths = (path.removeprefix(f"{names.DATA}/") for path, _ in log.store.list(names.DATA))
    unknown = sorted(name for name in paths if name not in state.shards)
    if not unknown:
        return []
    # Ours on their way in or out are no strangers; neither are adopted ones that left.
    ever = {entry.name for record in log.records(0, state.version) for entry in record.add}
    return [name for name in unknown if name not in ever and names.owner(name) is None]


def _refuse_nested(root: str, paths: Sequence[str]) -> None:
    """A table's shards lie directly in `data/`; those of others that lie deeper cannot become its own."""
    nested = [path for path in map(names.data, paths) if path.count("/") > 1 and folders.is_data(path)]
    if nested:
        raise ReadOnlyError(
            f"{root}: shards lie directly in data/, found {', '.join(nested[:3])}{', ...' if nested[3:] else ''}.",
            path=root,
            hint="Move them up, or away: a column that a folder is named for belongs into the file. "
            "ds.append(sl.scan(folder)) takes their rows in with it.",
        )


def adopt_changes(context: LogContext, /) -> VersionRecord | None:
    """Commit strangers in `data/` and a `mixtrain.json` edited by hand; None where there is neither.

    Raises:
        ValidationError: Ids that are there already, or missing.
        SchemaMismatchError: Columns that do not fit the table.
        ReadOnlyError: Files that lie deeper than directly in `data/`.
        InvalidMetadataError: A `mixtrain.json` that cannot be used.
    """
    log, store = context.log, context.store
    transaction = begin(log).id
    with all_or_nothing(log, transaction):
        state = log.newest()
        paths = would_adopt(log)
        edited = metadata_is_edited(store, state)
        if not paths and not edited:
            end(store, transaction)
            return None
        proposal = _proposal(context, state, transaction, paths, edited=edited)
        record = commit_version(log, transaction, parent=state.version, propose=proposal)
    if publish_or_warn(log, transaction, first=record.version):
        end(store, transaction)
    return record


def _proposal(context: LogContext, state: State, transaction: str, paths: list[str], *, edited: bool) -> Proposal:
    mixtrain = plain.read_metadata(context.store) if edited else dict(state.mixtrain)
    Metadata.parse(json.dumps(mixtrain))
    files = plain.describe(context.store, paths)
    ours = plain.PlainFile(path="the table", rows=0, nbytes=0, schema=pa.ipc.read_schema(pa.py_buffer(state.schema)))
    arrow = ours.schema
    new = [file for file in files if not set(file.schema.names) <= set(arrow.names)]
    if new:
        extra = plain.unified(new)
        arrow = pa.schema([*arrow, *(field for field in extra if field.name not in arrow.names)])
    schema = plain.encode(arrow, mixtrain)
    entries = _entries(files, transaction)
    packed = write_rows(context, transaction, entries, schema, mixtrain)
    return Proposal(
        transaction=transaction,
        parent=state,
        operation="adopt" if entries else "metadata",
        path=context.root,
        add=entries,
        packed=packed,
        schema=None if schema == state.schema else schema,
        mixtrain=mixtrain if edited else None,
        ids=context.ids if entries else None,
    )

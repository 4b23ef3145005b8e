"""One commit to an Iceberg table: columns, property, data files and index at once, on top of exactly one snapshot.

A shard that our writer made is described as Iceberg's manifests do, so its layout and its offset index survive.
"""

from __future__ import annotations

from copy import copy
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from seqlake.errors import CommitConflictError, CommitUnknownError, SchemaMismatchError
from seqlake.files.room import without_room
from seqlake.shards.parquet.footer import read_footer
from seqlake.tables._lakes import paths
from seqlake.tables._lakes.engine import RivalError
from seqlake.tables._lakes.types import PROPERTY
from seqlake.tables.iceberg import history, offsets, schemas
from seqlake.tables.iceberg.listing import relative_to
from seqlake.tables.iceberg.schemas import names_of
from seqlake.tables.iceberg.undoing import settled, undone
from seqlake.versions import names
from seqlake.versions.messages import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.typedef import Record

    from seqlake.protocols import Version
    from seqlake.tables._lakes.engine import Added, LakeProposal
    from seqlake.tables.iceberg.opening import OpenTable
    from seqlake.tables.iceberg.undoing import WrittenFiles
    from seqlake.versions.state import TableFile, TableState

_PRODUCERS = "_snapshot_producers"  # private in pyiceberg: what its own retries would make anew


def commit(engine: OpenTable, proposal: LakeProposal, /) -> Version:
    """Make a proposal the next snapshot; `IcebergEngine.commit` says what it raises."""
    # What changes the columns or the property is looked at once more: no requirement of a commit guards the property.
    anew = proposal.schema is not None or proposal.mixtrain is not None
    with undone(engine) as written:
        table = _on_top_of(engine, proposal.base, written, anew=anew)
        return _commit(engine, proposal, table, written)


def _commit(engine: OpenTable, proposal: LakeProposal, table: Table, written: WrittenFiles) -> Version:
    pending = _transaction(table)
    if proposal.schema is not None:
        with pending.update_schema() as update:
            schemas.evolve(update, table.metadata.schema(), proposal.schema, proposal.renamed)
        _keep_names(table, pending)
        _refuse_other_ids(engine, proposal, schemas.field_ids(pending.table_metadata.schema()))
    _set_properties(pending, proposal)
    produce = _producer(pending, proposal)
    metadata = pending.table_metadata
    for one in proposal.add:
        produce.append_data_file(data_file(one, _location(table, one.path), metadata))
    for gone in _leaving(engine, table, proposal.remove):
        produce.delete_data_file(gone)
    live = _live(proposal)
    produce.commit()
    _write_index(engine, table, pending, produce, proposal.transaction.id, live)
    return _finish(engine, pending, produce, written)


def rollback(engine: OpenTable, version: int | str, base: TableState, /) -> Version:
    """A new snapshot with the manifests of an old one; `IcebergEngine.rollback` says what it raises."""
    with undone(engine) as written:
        table = _on_top_of(engine, base, written, anew=True)
        old = history.find(table.metadata, version)
        transaction = names.new_transaction()
        pending = _transaction(table)
        produce = _restoring(pending, old, table.io, _summary(transaction, "rollback"))
        live = engine.state(version).files
        produce.commit()
        _write_index(engine, table, pending, produce, transaction, live)
        return _finish(engine, pending, produce, written)


def _transaction(table: Table) -> Transaction:
    """A transaction that works out the metadata to come once for each step; pyiceberg's does for each look at them."""
    from pyiceberg.table import Transaction as Plain

    class Remembering(Plain):  # type: ignore[misc, unused-ignore]  # Any where pyiceberg is not installed
        _seen: tuple[Any, Any] | None = None

        @property
        def table_metadata(self) -> TableMetadata:
            if self._seen is None or self._seen[0] is not self._updates:
                self._seen = (self._updates, super().table_metadata)
            known: TableMetadata = self._seen[1]
            return known

    return Remembering(table)


def _on_top_of(engine: OpenTable, base: TableState, written: WrittenFiles, *, anew: bool) -> Table:
    """The table, if it still is what everything was checked against; a copy, which no other thread loads anew."""
    table = copy(engine.load() if anew else engine.table)
    table.io = written.noted_by(table.io)
    metadata = table.metadata
    now = history.version_of(metadata.current_snapshot()).id
    if now != base.version.id or history.property_of(metadata, None) != base.mixtrain:
        raise RivalError
    if not schemas.arrow_schema(metadata.schema()).equals(base.schema):
        raise RivalError
    return table


def _set_properties(pending: Transaction, proposal: LakeProposal) -> None:
    if proposal.mixtrain is not None:
        pending.set_properties({PROPERTY: proposal.mixtrain})


def _keep_names(table: Table, pending: Transaction) -> None:
    """A name that is used again goes on meaning its first column in files without ids.

    pyiceberg hands it to the new column, and old files would fill that with the cells of the one that was dropped.
    """
    from pyiceberg.table.name_mapping import NameMapping

    old, new = table.metadata.name_mapping(), pending.table_metadata.name_mapping()
    if old is None or new is None:
        return
    after = {one.field_id: one for one in new.root}
    taken = {name for one in old.root for name in one.names}
    fields = []
    for one in old.root:
        now = after.pop(one.field_id, one)
        names_now = [*now.names, *(name for name in one.names if name not in now.names)]
        fields.append(_mapped(one.field_id, names_now, now.fields))
    for one in after.values():
        free = [name for name in one.names if name not in taken]
        fields.append(_mapped(one.field_id, free, one.fields))
    wanted = NameMapping(fields).model_dump_json()
    if wanted != new.model_dump_json():
        pending.set_properties({"schema.name-mapping.default": wanted})


def _mapped(number: int | None, names: Sequence[str], fields: Sequence[MappedField]) -> MappedField:
    from pyiceberg.table.name_mapping import MappedField

    entry: dict[str, Any] = {"field-id": number, "names": list(names), "fields": list(fields)}
    return MappedField(**entry)


def _refuse_other_ids(engine: OpenTable, proposal: LakeProposal, ids: Mapping[str, int]) -> None:
    """Refuse files that number their columns otherwise: every client would take one column for another.

    Files of our own are numbered when they are written, so a rival's new column can make their numbers wrong.
    """
    for one in proposal.add:
        footer = read_footer(paths.blob_at(engine.store, one.path, storage=engine.storage))
        stored = {field.name: number for field in footer.schema if (number := schemas.stored_id(field)) is not None}
        other = [name for name, number in stored.items() if ids.get(name) != number]
        if other:
            error = CommitConflictError(
                f"Not committed: {one.path} numbers {', '.join(other[:3])} otherwise than the table does.",
                path=engine.root,
                hint="Make the change again.",
            )
            error.replay = True
            raise error


def _summary(transaction: str, operation: str) -> dict[str, str]:
    said = message()
    kept = {} if said is None else {history.MESSAGE: said}
    return {history.OPERATION: operation, history.TRANSACTION: transaction, **kept}


def _producer(pending: Transaction, proposal: LakeProposal) -> Any:
    said = _summary(proposal.transaction.id, proposal.operation)
    if proposal.mixtrain is not None:
        said[PROPERTY] = proposal.mixtrain
    update = pending.update_snapshot(snapshot_properties=said)
    return update.overwrite() if proposal.remove else update.merge_append()


def _restoring(pending: Transaction, old: Any, io: Any, said: Mapping[str, str]) -> Any:
    """A producer that lists the manifests of an old snapshot, whose files and deletes keep their sequence numbers."""
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _SnapshotProducer

    class Restore(_SnapshotProducer):  # type: ignore[type-arg]  # generic in itself
        def _existing_manifests(self) -> list[Any]:
            return [] if old is None else list(old.manifests(io))

        def _deleted_entries(self) -> list[Any]:
            return []

        def _validate_concurrency(self) -> None:
            """Nothing is added or removed that could be in conflict; the branch must be where it was."""

        def _summary(self, snapshot_properties: Mapping[str, str] = said) -> Summary:
            properties = {} if old is None or old.summary is None else old.summary.additional_properties
            totals = {name: value for name, value in properties.items() if name.startswith("total-")}
            return Summary(operation=Operation.OVERWRITE, **totals, **snapshot_properties)

    return Restore(Operation.OVERWRITE, pending, io, snapshot_properties=dict(said))


def _location(table: Table, path: str) -> str:
    """A data file as manifests name it."""
    return path if paths.is_outside(path) else f"{table.location().rstrip('/')}/{path}"


def _leaving(engine: OpenTable, table: Table, remove: Sequence[TableFile]) -> list[DataFile]:
    wanted = {file.name for file in remove}
    if not wanted:
        return []
    location = table.metadata.location
    return [
        entry.data_file for entry in engine.entries(table) if relative_to(location, entry.data_file.file_path) in wanted
    ]


def _live(proposal: LakeProposal) -> list[TableFile]:
    """The files of the version to come that were there before."""
    gone = {file.name for file in proposal.remove}
    return [file for file in proposal.base.files if file.name not in gone]


def _finish(engine: OpenTable, pending: Transaction, produce: Any, written: WrittenFiles) -> Version:
    """Send it; the version that it made."""
    _send(engine, pending, produce, written)
    number = produce.snapshot_id
    # Where the answer to the commit was lost, the engine has just seen it.
    table = pending._table  # noqa: SLF001 - the copy that it was made on
    return history.version_of(table.metadata.snapshot_by_id(number) or engine.metadata().snapshot_by_id(number))


def _write_index(
    engine: OpenTable, table: Table, pending: Transaction, produce: Any, transaction: str, live: Sequence[TableFile]
) -> None:
    """Put the index beside the snapshot."""
    rows, ground = engine.offsets.next(transaction, live) if engine.offsets is not None else ([], "")
    number = produce.snapshot_id
    snapshot = pending.table_metadata.snapshot_by_id(number)
    sequence = 0 if snapshot is None else snapshot.sequence_number or 0
    file = offsets.put(table, transaction, rows, ground, snapshot=number, sequence=sequence)
    with pending.update_statistics() as update:
        update.set_statistics(file)


def _send(engine: OpenTable, pending: Transaction, produce: Any, written: WrittenFiles) -> None:
    """Commit once: a retry must be checked against what the rival did, which pyiceberg's own retries do not."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    setattr(pending, _PRODUCERS, [])
    written.asked = True
    try:
        pending.commit_transaction()
    except (CommitFailedException, ValidationException):
        written.asked = False
        raise RivalError from None
    except Exception as error:
        if _is_there(engine, produce.snapshot_id):
            return
        if _was_locked(error):
            written.asked = False
            raise RivalError from None
        if without_room(error) is not None and settled(engine, written):
            raise
        raise CommitUnknownError(
            f"The catalog gave no answer to a commit of {engine.root}: {type(error).__name__}: {error}.",
            path=engine.root,
            hint=f"If a snapshot {produce.snapshot_id} is there, it was made; else make the change again.",
        ) from error


def _is_there(engine: OpenTable, snapshot: int) -> bool:
    """Whether a snapshot was committed after all, as far as the catalog answers."""
    try:
        return engine.load().metadata.snapshot_by_id(snapshot) is not None
    except Exception:  # noqa: BLE001 - whatever fails here, the fate of the commit stays unknown
        return False


def _was_locked(error: Exception) -> bool:
    """SQLite waited for its lock in vain: nothing was changed."""
    return "database is locked" in str(error)


_LONGEST_BOUND = 16  # characters: what other clients keep of a text's bounds


def data_file(written: Added, location: str, metadata: TableMetadata, /) -> DataFile:
    """What the manifest will say of a shard; the shard itself is not opened.

    Args:
        written: The shard, with the values of its partition.
        location: Where it lies, absolute.
        metadata: Of the table that it is added to.
    """
    from pyiceberg.manifest import DataFile as Made
    from pyiceberg.manifest import DataFileContent, FileFormat

    schema, spec = metadata.schema(), metadata.spec()
    nulls, low, high = _statistics(written, schema)
    return Made.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition_record(written.partition, spec),
        record_count=written.rows,
        file_size_in_bytes=written.nbytes,
        column_sizes={},
        value_counts=dict.fromkeys(nulls, written.rows),
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=low,
        upper_bounds=high,
        split_offsets=None,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def partition_record(partition: Mapping[str, object], spec: PartitionSpec, /) -> Record:
    """The values of a partition in the order of its fields.

    Raises:
        SchemaMismatchError: One is missing.
    """
    from pyiceberg.typedef import Record

    missing = [one.name for one in spec.fields if one.name not in partition]
    if missing:
        raise SchemaMismatchError(
            f"The table is partitioned by {', '.join(one.name for one in spec.fields)}; a shard gives no value for "
            f"{', '.join(missing)}.",
            hint="Split the rows by partition before they are written.",
        )
    return Record(*(_physical(partition[one.name]) for one in spec.fields))


def partitions(batch: pa.RecordBatch, schema: IcebergSchema, spec: PartitionSpec, /) -> Iterator[tuple[object, ...]]:
    """The partition of each row of a batch, hidden transforms applied."""
    columns = []
    for part in spec.fields:
        source = schema.find_field(part.source_id)
        apply: Any = part.transform.pyarrow_transform(source.field_type)
        columns.append([_physical(value) for value in apply(batch.column(source.name)).to_pylist()])
    return zip(*columns, strict=True)


def _physical(value: object) -> object:
    """A value as manifests hold it: days and microseconds for dates and times."""
    from pyiceberg.utils import datetime as convert

    if isinstance(value, datetime):
        return convert.datetime_to_micros(value)
    if isinstance(value, date):
        return convert.date_to_days(value)
    return convert.time_to_micros(value) if isinstance(value, time) else value


def _statistics(written: Added, schema: IcebergSchema) -> tuple[dict[int, int], dict[int, bytes], dict[int, bytes]]:
    nulls: dict[int, int] = {}
    low: dict[int, bytes] = {}
    high: dict[int, bytes] = {}
    columns = names_of(schema)
    for name, (least, greatest, missing) in written.statistics.items():
        if name not in columns:
            continue
        field = schema.find_field(name)
        nulls[field.field_id] = missing
        bounds = _bound(field.field_type, least, up=False), _bound(field.field_type, greatest, up=True)
        if bounds[0] is not None and bounds[1] is not None:
            low[field.field_id], high[field.field_id] = bounds[0], bounds[1]
    return nulls, low, high


def _bound(kind: Any, value: object, *, up: bool) -> bytes | None:
    """A bound as manifests hold it; long texts are cut so that they still bound. None: nothing is known."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.types import BinaryType, FixedType, StringType
    from pyiceberg.utils.truncate import truncate_upper_bound_text_string

    if value is None or isinstance(kind, BinaryType | FixedType):
        return None
    if isinstance(kind, StringType):
        text = str(value)
        if len(text) > _LONGEST_BOUND:
            cut = truncate_upper_bound_text_string(text, _LONGEST_BOUND) if up else text[:_LONGEST_BOUND]
            if cut is None:
                return None
            text = cut
        return text.encode()
    try:
        return bytes(to_bytes(kind, value))  # type: ignore[arg-type]  # a value of the column's own type
    except (TypeError, ValueError, AttributeError):
        return None

"""A change as the actions of one Delta commit, and what a table's protocol asks of a writer.

A table that asks for more than we do is refused, never damaged.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from seqlake.errors import DamagedTableError, ReadOnlyError, UnsupportedVersionError
from seqlake.tables.delta import listing, schemas
from seqlake.tables.delta.log import MESSAGE, OPERATION, TRANSACTION, checkpoint_adds
from seqlake.versions.format import writer_name
from seqlake.versions.messages import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.tables._lakes.engine import Added, LakeProposal
    from seqlake.tables.delta.log import DeltaLog
    from seqlake.versions.state import TableFile

__all__ = ["OPERATION", "lines", "partition_text"]

_CALLED = {"append": "WRITE", "rewrite": "OPTIMIZE", "delete": "DELETE", "upsert": "MERGE", "adopt": "WRITE"}
_LONGEST = 256


def lines(table: Any, proposal: LakeProposal, /, *, log: DeltaLog) -> list[dict[str, Any]]:
    """The actions of a commit, one for each line of its file.

    Args:
        table: deltalake's table at the version that is committed on top of.
        proposal: The change.
        log: The log, for what only the file of an older version says.
    """
    now = int(datetime.now(UTC).timestamp() * 1000)
    # Later than the version before it, so that a time names one version.
    time = max(now, int(proposal.base.version.time.timestamp() * 1000) + 1)
    data_change = proposal.operation != "rewrite"
    actions: list[dict[str, Any]] = [{"commitInfo": _info(proposal, time)}]
    metadata = schemas.metadata_action(table, proposal)
    if metadata is not None:
        actions.append({"metaData": metadata})
    mapped = schemas.physical(schemas.fields_of(table))
    # A removal repeats the path of its add letter by letter: other writers encode other letters than we do.
    written = {unquote(path): path for path in listing.raw_paths(table)} if proposal.remove else {}
    for file in proposal.remove:
        removed = _remove(file, proposal, time=time, data_change=data_change, log=log)
        actions.append({"remove": {**removed, "path": written.get(file.name, removed["path"])}})
    for at, one in enumerate(proposal.add, 1 - len(proposal.add)):
        # Files are listed by these times, so that the shards of a commit keep their order.
        actions.append({"add": _add(one, proposal, mapped, time=time + at, data_change=data_change)})
    return actions


def _info(proposal: LakeProposal, time: int) -> dict[str, Any]:
    said = message()
    return {
        "timestamp": time,
        "operation": _CALLED.get(proposal.operation, "SET TBLPROPERTIES" if proposal.schema is None else "ADD COLUMN"),
        "operationParameters": {"mode": "Append"} if proposal.operation == "append" else {},
        "engineInfo": writer_name(),
        "isBlindAppend": False,
        "readVersion": int(proposal.base.version.id),
        TRANSACTION: proposal.transaction.id,
        OPERATION: proposal.operation,
        **({} if said is None else {MESSAGE: said}),
    }


def _add(
    one: Added, proposal: LakeProposal, mapped: Mapping[str, str], *, time: int, data_change: bool
) -> dict[str, Any]:
    values = {mapped.get(c, c): partition_text(one.partition.get(c)) for c in proposal.base.partition_by}
    return {
        "path": _encoded(one.path),
        "partitionValues": values,
        "size": one.nbytes,
        "modificationTime": time,
        "dataChange": data_change,
        "stats": json.dumps(_statistics(one, proposal), ensure_ascii=False, separators=(",", ":")),
    }


def _remove(file: TableFile, proposal: LakeProposal, *, time: int, data_change: bool, log: DeltaLog) -> dict[str, Any]:
    action: dict[str, Any] = {
        "path": _encoded(file.name),
        "deletionTimestamp": time,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {c: partition_text(file.constants.get(c)) for c in proposal.base.partition_by},
        "size": file.nbytes,
    }
    if file.deleted is not None:
        action["deletionVector"] = _vector_of(file, int(proposal.base.version.id), log)
    return action


def _vector_of(file: TableFile, version: int, log: DeltaLog) -> Any:
    """The descriptor of a file's deletion vector, as the log has it: a removal repeats it."""
    for number in range(version, -1, -1):
        actions = log.actions(number)
        if actions is None:
            break
        for action in actions:
            add = action.get("add")
            if add is not None and unquote(add["path"]) == file.name and add.get("deletionVector"):
                return add["deletionVector"]
    return _from_checkpoint(file, log)


def _from_checkpoint(file: TableFile, log: DeltaLog) -> Any:
    for add in checkpoint_adds(log.store):
        if unquote(add["path"]) == file.name and add.get("deletionVector"):
            return {key: value for key, value in add["deletionVector"].items() if value is not None}
    raise DamagedTableError(
        f"{log.root}: the log does not have the deletion vector of {file.name} any more.",
        path=log.root,
        hint="Restore its newest checkpoint from a copy.",
    )


def _statistics(one: Added, proposal: LakeProposal) -> dict[str, Any]:
    """As the protocol has them; columns whose bounds JSON cannot hold faithfully are left out."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column, (least, most, missing) in one.statistics.items():
        if column in proposal.base.partition_by:
            continue
        nulls[column] = int(missing)
        bounds = _bound(least), _bound(most)
        if None not in bounds:
            low[column], high[column] = bounds
    return {"numRecords": one.rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bound(value: object) -> Any:
    if isinstance(value, bool):
        return None  # the protocol has no bounds of booleans
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and len(value) <= _LONGEST:
        return value
    if isinstance(value, datetime):
        # Cut off to milliseconds the upper bound would be too low, so these are told only where they are whole.
        return None if value.microsecond % 1000 else _moment(value)
    if isinstance(value, date):
        return value.isoformat()
    return None


def _moment(value: datetime) -> str:
    text = value.astimezone(UTC) if value.tzinfo else value
    return text.strftime("%Y-%m-%dT%H:%M:%S.") + f"{text.microsecond // 1000:03d}" + ("Z" if value.tzinfo else "")


def partition_text(value: object, /) -> str | None:
    """A partition value as the protocol writes it; None and empty text are null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal | int | float | str):
        return str(value)
    raise ValueError(f"A partition value is a scalar, found {type(value).__name__}.")


def _encoded(path: str) -> str:
    """A path as the log has it: a relative URI."""
    return path if "://" in path else quote(path, safe="/=-_.~!$&'()*+,;:@")


_READ = {
    "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening",
    "typeWidening-preview",
}  # fmt: skip
_WRITTEN = {
    *_READ, "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns",
    "domainMetadata",
}  # fmt: skip
_MOST_READER, _MOST_WRITER = 3, 7
_CHECKPOINT = "delta.checkpointInterval"


def refuse_to_read(protocol: Any, /, *, root: str) -> None:
    """Raise `UnsupportedVersionError` for a table whose rows we would not read right."""
    unknown = sorted(set(protocol.reader_features or ()) - _READ)
    if unknown or protocol.min_reader_version > _MOST_READER:
        raise UnsupportedVersionError(
            f"{root} has Delta reader version {protocol.min_reader_version}"
            f"{' with ' + ', '.join(unknown) if unknown else ''}, which seqlake does not read.",
            path=root,
            hint="Write it with an engine that knows the feature into a table without it.",
        )


def refuse_inner_names(columns: Sequence[str], /, *, root: str) -> None:
    """Raise `UnsupportedVersionError` for structs whose fields have other names in the files: they would be null."""
    if columns:
        raise UnsupportedVersionError(
            f"{root} has column mapping inside {', '.join(columns)}, which seqlake does not read.",
            path=root,
            hint="Write the table with an engine that knows column mapping into one without it.",
        )


def refuse_to_write(table: Any, proposal: LakeProposal, /, *, root: str) -> None:
    """Raise `ReadOnlyError` for a change that the table's features forbid, or ask more for than we do."""
    reasons = list(_reasons(table, proposal))
    if reasons:
        raise ReadOnlyError(
            f"{root} cannot be changed by seqlake: {'; '.join(reasons)}. This change was not committed.",
            path=root,
            hint="Make this change with deltalake or Spark; seqlake reads the table all the same.",
        )


def _reasons(table: Any, proposal: LakeProposal) -> Iterator[str]:
    protocol, configuration = table.protocol(), table.metadata().configuration
    unknown = sorted(set(protocol.writer_features or ()) - _WRITTEN)
    if unknown or protocol.min_writer_version > _MOST_WRITER:
        yield f"it asks writers for {', '.join(unknown) or f'version {protocol.min_writer_version}'}"
    yield from _asked(configuration, proposal)
    noted = {key for field in schemas.fields_of(table) for key in field.get("metadata", {})}
    for key, what in (
        ("delta.invariants", "an invariant"),
        ("delta.generationExpression", "a generated column"),
        ("delta.identity.start", "an identity column"),
    ):
        if key in noted and proposal.add:
            yield f"{what} must be checked for every row"
    if proposal.add and schemas.is_mapped(table):
        yield "its files have names of columns of their own (column mapping)"


def _asked(configuration: Mapping[str, str], proposal: LakeProposal) -> Iterator[str]:
    """What the table's properties forbid."""
    if _yes(configuration.get("delta.appendOnly")) and proposal.remove:
        yield "delta.appendOnly lets no row leave"
    if _yes(configuration.get("delta.enableChangeDataFeed")) and proposal.add and proposal.remove:
        yield "its change data feed must list every changed row"
    if proposal.add and (named := sorted(key for key in configuration if key.startswith("delta.constraints."))):
        yield f"{', '.join(named)} must be checked for every row"
    for key in ("delta.enableRowTracking", "delta.enableInCommitTimestamps"):
        if _yes(configuration.get(key)):
            yield f"{key} must be kept up"


def checkpoint_is_due(table: Any, number: int, /) -> bool:
    """Whether a checkpoint belongs after this version: every 100 where the table does not say."""
    interval = table.metadata().configuration.get(_CHECKPOINT) or "100"
    return number > 0 and number % max(int(interval) if interval.isdecimal() else 100, 1) == 0


def _yes(value: str | None) -> bool:
    return (value or "").lower() == "true"

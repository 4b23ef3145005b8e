"""The versions of a table: what was the newest when, by snapshot, time, tag or branch, and what it meant then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from seqlake.errors import VersionNotFoundError
from seqlake.protocols import Version
from seqlake.tables._lakes.types import PROPERTY
from seqlake.tables.iceberg.schemas import renamed_property

if TYPE_CHECKING:
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

OPERATION = "mixtrain.operation"
TRANSACTION = "mixtrain.transaction"
MESSAGE = "mixtrain.message"
NO_SNAPSHOT = 0

_BEGINNING = datetime.fromtimestamp(0, UTC)


def versions(metadata: TableMetadata, /) -> list[Version]:
    """Everything that was once the newest and can still be read, oldest first."""
    listed = []
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    seen: set[int] = set()
    for entry in metadata.snapshot_log:
        snapshot = snapshots.get(entry.snapshot_id)
        if snapshot is not None:
            listed.append(version_of(snapshot, time=entry.timestamp_ms, again=entry.snapshot_id in seen))
            seen.add(entry.snapshot_id)
    return listed


def version_of(snapshot: Snapshot | None, /, *, time: int | None = None, again: bool = False) -> Version:
    """A snapshot as a version.

    Args:
        snapshot: None for a table that has none yet.
        time: When it became the newest, in milliseconds.
        again: Whether it had been the newest before.
    """
    if snapshot is None:
        return Version(id=NO_SNAPSHOT, time=_BEGINNING, operation="create", rows=0)
    summary = snapshot.summary
    said = None if summary is None else summary[OPERATION] or summary.operation.value
    counted = {} if summary is None else summary.additional_properties
    rows = int(counted.get("total-records", 0)) - int(counted.get("total-position-deletes", 0))
    return Version(
        id=snapshot.snapshot_id,
        time=_BEGINNING + timedelta(milliseconds=snapshot.timestamp_ms if time is None else time),
        operation="rollback" if again else said or "unknown",
        rows=max(rows, 0),
        message=None if summary is None or again else summary[MESSAGE],
    )


def find(metadata: TableMetadata, version: int | str | datetime | None, /) -> Snapshot | None:
    """The snapshot that is meant.

    Args:
        metadata: Of the table.
        version: Its id, the name of a tag or branch, a time (the last that is not later); None for the newest.

    Raises:
        VersionNotFoundError: It expired, or was never there.
    """
    if version is None or (version == NO_SNAPSHOT and not metadata.snapshots):
        return metadata.current_snapshot()
    snapshot = None
    if isinstance(version, datetime):
        moment = (version - _BEGINNING) // timedelta(milliseconds=1)
        before = [one.snapshot_id for one in metadata.snapshot_log if one.timestamp_ms <= moment]
        snapshot = metadata.snapshot_by_id(before[-1]) if before else None
    elif isinstance(version, int):
        snapshot = metadata.snapshot_by_id(version)
    elif version in metadata.refs:
        snapshot = metadata.snapshot_by_name(version)
    if snapshot is None:
        raise _not_found(metadata, version)
    return snapshot


def _not_found(metadata: TableMetadata, version: object) -> VersionNotFoundError:
    known = [one.snapshot_id for one in metadata.snapshot_log]
    names = sorted(metadata.refs)
    return VersionNotFoundError(
        f"{metadata.location} has no version {version}; it has {len(known)} snapshots"
        + (f" from {known[0]} to {known[-1]}" if known else "")
        + (f", and the tags and branches {', '.join(names)}." if names else "."),
        path=metadata.location,
        hint="It expired, or was never there; ds.versions() lists what can be read.",
    )


def schema_of(metadata: TableMetadata, snapshot: Snapshot | None, /) -> IcebergSchema:
    """The columns of a snapshot: today's for the newest, else those it was made with."""
    current = metadata.current_snapshot()
    if snapshot is None or current is None or snapshot.snapshot_id == current.snapshot_id:
        return metadata.schema()
    return next((one for one in metadata.schemas if one.schema_id == snapshot.schema_id), metadata.schema())


def property_of(metadata: TableMetadata, snapshot: Snapshot | None, /) -> str:
    """The property as it was at a snapshot; "" where the table has none.

    The table has it once, for the newest version. A commit that changes it says so in its snapshot's summary too, so
    that it is found for older ones; where those summaries expired it is today's, for the columns' names of then.
    """
    text = str(metadata.properties.get(PROPERTY, ""))
    current = metadata.current_snapshot()
    if snapshot is None or current is None or snapshot.snapshot_id == current.snapshot_id:
        return text
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    at: Snapshot | None = snapshot
    while at is not None:
        if at.summary is not None and (said := at.summary[PROPERTY]):
            return str(said)
        at = None if at.parent_snapshot_id is None else snapshots.get(at.parent_snapshot_id)
    return renamed_property(text, metadata.schema(), schema_of(metadata, snapshot)) if text else ""

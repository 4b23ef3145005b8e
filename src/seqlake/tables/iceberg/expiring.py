"""Snapshot expiry: snapshots are forgotten, and what only they named is removed; nothing a readable one names is."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from seqlake.files.checksums import digest_of, seal
from seqlake.files.locations import is_local, join
from seqlake.files.stores import list_without_links
from seqlake.tables._lakes import paths
from seqlake.tables._lakes.engine import Expired, RivalError
from seqlake.tables.iceberg import offsets
from seqlake.tables.iceberg.listing import reachable, relative_to
from seqlake.tables.iceberg.undoing import undone
from seqlake.versions import names
from seqlake.versions.small_files import read
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from seqlake.tables.iceberg.opening import OpenTable

_UNDER_WAY = timedelta(hours=2)  # an index file may lie there before the commit that names it
_TRIES = 20
_PROMISED = f"{names.OURS}/expiring.json"


def expire(engine: OpenTable, limit: datetime, /, *, dry_run: bool) -> Expired:
    """Forget what was replaced before `limit`, but the heads of branches and tags.

    Args:
        engine: The table.
        limit: What was the newest at any time since then stays readable.
        dry_run: Only say what would be removed.
    """
    table = engine.load()
    keep = _retained(table.metadata, limit)
    gone = [one for one in table.metadata.snapshots if one.snapshot_id not in keep]
    before = reachable(table.io, gone) | _indexes(engine, table.metadata, {one.snapshot_id for one in gone})
    before |= _promised(engine, table)
    if gone and not dry_run:
        _promise(engine, table, before)
        table = _forget(engine, [one.snapshot_id for one in gone])
        # What another client wrote meanwhile may name anything, so what is left is asked, not what was planned.
        keep = {one.snapshot_id for one in table.metadata.snapshots}
    left = [one for one in table.metadata.snapshots if one.snapshot_id in keep]
    indexes = _indexes(engine, table.metadata, keep)
    superfluous = (before | _orphans(engine, table)) - reachable(table.io, left) - indexes
    location = table.metadata.location
    removed = paths.removable(engine.store, [relative_to(location, one) for one in superfluous])
    if not dry_run:
        for path in removed:
            with suppress(FileNotFoundError):
                engine.store.delete([path])
        with suppress(FileNotFoundError):
            engine.store.delete([_PROMISED])
    return Expired(removed=removed, retained=_files(engine, table, left))


def _retained(metadata: TableMetadata, limit: datetime) -> set[int]:
    """What was the newest since `limit`, what branches and tags name, and what lies on no branch but is younger."""
    moment = int(limit.timestamp() * 1000)
    log = metadata.snapshot_log
    keep = {ref.snapshot_id for ref in metadata.refs.values()}
    for entry, after in zip(log, [*log[1:], None], strict=True):
        if after is None or after.timestamp_ms >= moment:
            keep.add(entry.snapshot_id)
    on_main = {entry.snapshot_id for entry in log}
    keep |= {s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in on_main and s.timestamp_ms >= moment}
    return keep


def _forget(engine: OpenTable, snapshots: list[int]) -> Table:
    """Remove snapshots from the table's metadata; the heads of branches and tags that are new are left alone."""
    from pyiceberg.exceptions import CommitFailedException

    for _ in range(_TRIES):
        table = engine.load()
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        there = {one.snapshot_id for one in table.metadata.snapshots}
        wanted = [one for one in snapshots if one in there and one not in heads]
        if not wanted:
            return table
        try:
            with undone(engine, asked=True):
                table.maintenance.expire_snapshots().by_ids(wanted).commit()
        except CommitFailedException:
            continue
        return engine.load()
    raise RivalError


def _indexes(engine: OpenTable, metadata: TableMetadata, keep: set[int]) -> set[str]:
    """The index files of these snapshots, with the grounds below them."""
    named = {one.statistics_path for one in metadata.statistics if one.snapshot_id in keep}
    sidecar = engine.offsets
    return named | (set() if sidecar is None else {ground for path in named if (ground := sidecar.ground_of(path))})


def _orphans(engine: OpenTable, table: Table) -> set[str]:
    """Index files of ours that no snapshot names: of commits that were not made, or expired by another client."""
    folder = relative_to(table.metadata.location, table.location_provider().new_metadata_location("x"))
    folder = folder.rpartition("/")[0]
    if paths.is_outside(folder):
        return set()
    youngest = datetime.now(UTC) - _UNDER_WAY
    named = {one.statistics_path for one in table.metadata.statistics}
    orphans = set()
    for path, _ in list_without_links(engine.store, folder):
        transaction = path.rpartition("/")[2].partition("-")[0]
        if path.endswith(offsets.SUFFIX) and _born(transaction) < youngest:
            orphans.add(_located(table.metadata.location, path))
    return orphans - named


def _promise(engine: OpenTable, table: Table, files: set[str]) -> None:
    """Note what is about to be forgotten: afterwards nobody could tell which files it named."""
    places = sorted(relative_to(table.metadata.location, one) for one in files)
    engine.store.put(_PROMISED, seal({"files": places}), temporary=names.temporary(names.new_transaction()))


def _promised(engine: OpenTable, table: Table) -> set[str]:
    """What an expiry that did not come to its end had still to remove; what is named again by now stays."""
    kept = read(engine.store, _PROMISED)
    if kept is None or digest_of(kept) is None:
        return set()
    places = json.loads(kept)["files"]
    return {_located(table.metadata.location, one) for one in places if not paths.is_outside(one)}


def _located(location: str, path: str) -> str:
    return f"{location.rstrip('/')}/{path}" if not is_local(location) or "://" in location else join(location, path)


def _born(transaction: str) -> datetime:
    """When a transaction began: the first 48 bits of its id are milliseconds."""
    try:
        return datetime.fromtimestamp(int(transaction[:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.now(UTC)


def _files(engine: OpenTable, table: Table, snapshots: list[Snapshot]) -> list[TableFile]:
    """Every data file of these snapshots, once, whole; files of deletes are no shards."""
    from pyiceberg.manifest import DataFileContent

    files: dict[str, TableFile] = {}
    for snapshot in snapshots:
        for entry in engine.manifests.entries(table.io, snapshot):
            file = entry.data_file
            path = relative_to(table.metadata.location, file.file_path)
            if path not in files and file.content == DataFileContent.DATA:
                files[path] = TableFile(name=path, rows=file.record_count, nbytes=file.file_size_in_bytes)
    return list(files.values())

"""An Iceberg table as a lake: which files a snapshot has, one commit, and names for versions.

The names are Iceberg's own tags, which every client reads and every expiry honours. An expiry
forgets snapshots and removes what only they named; nothing that a readable one names.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError, SchemaMismatchError, TagExistsError, VersionNotFoundError
from seqlake.files.checksums import digest_of, seal
from seqlake.files.locations import is_local, join
from seqlake.files.stores import list_without_links
from seqlake.tables._lakes import paths
from seqlake.tables._lakes.engine import Expired, LakeEngine, RivalError
from seqlake.tables._lakes.table import refuse_to_write
from seqlake.tables.iceberg import committing, history, offsets, schemas
from seqlake.tables.iceberg.history import find
from seqlake.tables.iceberg.listing import reachable, relative_to
from seqlake.tables.iceberg.offsets import PuffinSidecar
from seqlake.tables.iceberg.opening import OpenTable
from seqlake.tables.iceberg.undoing import undone
from seqlake.versions import names
from seqlake.versions.small_files import read
from seqlake.versions.state import TableFile
from seqlake.versions.tags import check_free, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import ManageSnapshots

    from seqlake.protocols import Store, Version
    from seqlake.tables._lakes.engine import LakeProposal
    from seqlake.versions.state import TableState

_NEWEST_FORMAT = 2  # that pyiceberg can write


class IcebergEngine(OpenTable, LakeEngine):
    """One Iceberg table; picklable, every process has a catalog of its own.

    Args:
        address: Where it is.
        table: It, where somebody opened it already; in this process its catalog is used.
    """

    # ---- what a lake offers
    def sidecar(self, store: Store, /) -> PuffinSidecar:
        """What is known of its shards: Puffin files that its snapshots name."""
        sidecar = PuffinSidecar(store, self)
        self.indexed.append(sidecar)
        return sidecar

    def versions(self) -> Sequence[Version]:
        """What was once the newest and can still be read, oldest first."""
        return history.versions(self.load().metadata)

    def partition_values(self, batch: pa.RecordBatch, by: Sequence[str], /) -> Iterable[tuple[object, ...]]:  # noqa: ARG002 - its spec names them
        """The partition of each row, hidden transforms applied."""
        metadata = self.metadata()
        return committing.partitions(batch, metadata.schema(), metadata.spec())

    def field_ids(self, schema: pa.Schema, /) -> dict[str, int]:
        """The field id of every column and element that a file with these columns must carry.

        Args:
            schema: The table's columns, or those that the commit at hand will give it.
        """
        table = self.table
        known = schemas.field_ids(table.metadata.schema())
        anew = schemas.replaced(table.metadata.schema(), schema, {})
        if not anew and all(name in known for name in schema.names):
            return known
        if any(name not in schema.names for name in schemas.names_of(table.schema())):
            return {}  # a new name for an old column, or a new column: only the commit knows, and names do as well
        after = table.transaction()
        with after.update_schema() as update:
            schemas.evolve(update, table.metadata.schema(), schema, {})
        return schemas.field_ids(after.table_metadata.schema())

    def data_path(self, name: str, partition: Mapping[str, object], /) -> str:
        """Where, below the root, a data file of this name is put."""
        del partition  # the manifest says it; a folder's name would have to be escaped
        return f"data/{name}"

    def check(self, proposal: LakeProposal, /) -> None:
        """Refuse what this table cannot do, before anything is staged.

        Raises:
            SchemaMismatchError: A change of columns that Iceberg has not.
            ReadOnlyError: A version of the table format that pyiceberg cannot write.
        """
        table = self.table
        if table.metadata.format_version > _NEWEST_FORMAT:
            raise refuse_to_write(
                self.root,
                f"it is in version {table.metadata.format_version} of the format, and pyiceberg writes 1 and 2",
                "Write it with the engine that made it.",
            )
        for one in proposal.add:
            committing.partition_record(one.partition, table.metadata.spec())
        if proposal.schema is not None:
            if not proposal.replaces_all:
                schemas.refuse_replaced(table.metadata.schema(), proposal.schema, proposal.renamed)
            from pyiceberg.exceptions import ValidationError

            pending = table.transaction()
            try:
                with pending.update_schema() as update:
                    schemas.evolve(update, table.metadata.schema(), proposal.schema, proposal.renamed)
                pending.table_metadata  # noqa: B018 - worked out here, it says what a partition still needs
            except (ValueError, ValidationError) as error:
                raise SchemaMismatchError(f"{self.root}: {error}", path=self.root) from None

    def commit(self, proposal: LakeProposal, /) -> Version:
        """All of it on top of `proposal.base`, in one Iceberg commit.

        Raises:
            RivalError: Another commit came between.
            CommitUnknownError: The catalog gave no answer.
        """
        return committing.commit(self, proposal)

    def rollback(self, version: int | str, /, *, base: TableState) -> Version:
        """A new snapshot with exactly the manifests of an old one.

        Raises:
            RivalError: Another commit came between.
        """
        return committing.rollback(self, version, base)

    def names(self, store: Store, /) -> OwnTags:  # noqa: ARG002 - they are in the table itself
        """Tags of Iceberg's own, in the table itself."""
        return OwnTags(self)

    def expire(
        self,
        limit: datetime,
        /,
        *,
        dry_run: bool,
        keep: Callable[[], Collection[int | str]] = tuple,  # noqa: ARG002 - the table itself says it
    ) -> Expired:
        """Forget snapshots that were replaced before `limit`, and remove what only they named; tags keep theirs."""
        return expire(self, limit, dry_run=dry_run)

    def drop(self) -> None:
        """Remove the table from its catalog, with every file that it names: it was just made."""
        store, table = self.store, self.load()
        metadata = table.metadata
        # Files of a table that was dropped here before, without a purge, are somebody's last copy.
        log = {one.metadata_file for one in metadata.metadata_log}
        named = reachable(table.io, metadata.snapshots) | {one.statistics_path for one in metadata.statistics}
        # What nobody reads first: on a full disk a catalog in SQLite has no room to forget anything.
        store.delete(_inside(metadata.location, log))
        table.catalog.drop_table(table.name())
        store.delete(_inside(metadata.location, {*named, table.metadata_location}))
        self._table = None


def _inside(root: str, named: Iterable[str]) -> list[str]:
    """The files below a table's location, as paths there."""
    return [path for one in named if not paths.is_outside(path := relative_to(root, one))]


_TRIES = 20


class OwnTags:
    """The tags of an Iceberg table.

    Args:
        engine: The table.
    """

    def __init__(self, engine: OpenTable, /) -> None:
        self._engine = engine

    def tags(self) -> dict[str, int | str]:
        """Name -> snapshot, by name."""
        return _tags(self._engine.load().metadata)

    def find(self, name: str, /) -> int | str | None:  # noqa: ARG002 - as others of its kind
        """None: the table's history knows its tags, and branches besides."""
        return None

    def put(self, name: str, version: int | str, /, *, move: bool) -> None:
        """Give a snapshot a name, on top of whatever others commit meanwhile."""

        def change(table: Table) -> ManageSnapshots | None:
            snapshot = find(table.metadata, version)
            root = table.metadata.location
            ref = table.metadata.refs.get(name)
            if ref is not None and name not in _tags(table.metadata):
                raise TagExistsError(
                    f"{root}: {name!r} is a branch of the table.", path=root, hint="Take another name."
                )
            if snapshot is None:
                raise VersionNotFoundError(
                    f"{root} has no snapshot yet, so there is nothing to name.", path=root, hint="Append rows first."
                )
            check_free(_tags(table.metadata), name, snapshot.snapshot_id, move=move, path=root)
            if ref is not None and ref.snapshot_id == snapshot.snapshot_id:
                return None
            return table.manage_snapshots().create_tag(snapshot.snapshot_id, name)

        self._commit(change)

    def remove(self, name: str, /) -> None:
        """Take a name away."""

        def change(table: Table) -> ManageSnapshots:
            if name not in _tags(table.metadata):
                raise unknown(_tags(table.metadata), name, path=table.metadata.location)
            return table.manage_snapshots().remove_tag(name)

        self._commit(change)

    def _commit(self, change: Callable[[Table], ManageSnapshots | None]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_TRIES):
            pending = change(self._engine.load())
            if pending is None:
                return
            try:
                with undone(self._engine, asked=True):
                    pending.commit()
            except CommitFailedException:
                continue
            return
        raise CommitConflictError(
            f"Not committed: other writers were faster {_TRIES} times.",
            path=self._engine.root,
            hint="Try again when fewer write at once.",
        )


def _tags(metadata: TableMetadata) -> dict[str, int | str]:
    from pyiceberg.table.refs import SnapshotRefType

    refs = sorted(metadata.refs.items())
    return {name: ref.snapshot_id for name, ref in refs if ref.snapshot_ref_type == SnapshotRefType.TAG}


_UNDER_WAY = timedelta(hours=2)  # an index file may lie there before the commit that names it
_EXPIRY_TRIES = 20
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

    for _ in range(_EXPIRY_TRIES):
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

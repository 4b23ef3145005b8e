"""An Iceberg table as a lake: which files a snapshot has, one commit, and names for versions.

The names are Iceberg's own tags, which every client reads and every expiry honours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError, SchemaMismatchError, TagExistsError, VersionNotFoundError
from seqlake.tables._lakes import paths
from seqlake.tables._lakes.engine import LakeEngine
from seqlake.tables._lakes.table import refuse_to_write
from seqlake.tables.iceberg import committing, datafiles, expiring, history, schemas
from seqlake.tables.iceberg.history import find
from seqlake.tables.iceberg.listing import reachable, relative_to
from seqlake.tables.iceberg.offsets import PuffinSidecar
from seqlake.tables.iceberg.opening import OpenTable
from seqlake.tables.iceberg.undoing import undone
from seqlake.versions.tags import check_free, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update.snapshot import ManageSnapshots

    from seqlake.protocols import Store, Version
    from seqlake.tables._lakes.engine import Expired, LakeProposal
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
        return datafiles.partitions(batch, metadata.schema(), metadata.spec())

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
            datafiles.partition_record(one.partition, table.metadata.spec())
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
        return expiring.expire(self, limit, dry_run=dry_run)

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

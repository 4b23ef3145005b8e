"""An Iceberg table as a lake: which files a snapshot has, and one commit."""

from __future__ import annotations

import os
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import DatasetNotFoundError, SchemaMismatchError
from seqlake.files.stores import open_store
from seqlake.tables._lakes import paths, types
from seqlake.tables._lakes.engine import Engine, LakeState
from seqlake.tables._lakes.table import refuse_to_write
from seqlake.tables.iceberg import committing, datafiles, expiring, history, schemas
from seqlake.tables.iceberg.addresses import file_options
from seqlake.tables.iceberg.fenced import FencedIO, place_of, refuse_elsewhere
from seqlake.tables.iceberg.listing import Manifests, below, live_files, reachable
from seqlake.tables.iceberg.offsets import PuffinSidecar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from seqlake.protocols import Store, Version
    from seqlake.tables._lakes.engine import Expired, Proposal
    from seqlake.tables.iceberg.addresses import Address
    from seqlake.tables.iceberg.files import IcebergFile

# Small and unsigned integers become the next type that holds every value of them.
_WIDER = {
    pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.uint8(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.float16(): pa.float32(), pa.date64(): pa.date32(),
}  # fmt: skip
_NEWEST_FORMAT = 2  # that pyiceberg can write


class IcebergEngine(Engine):
    """One Iceberg table; picklable, every process has a catalog of its own.

    Args:
        address: Where it is.
        table: It, where somebody opened it already; in this process its catalog is used.
    """

    _table: Any
    _pid: int

    def __init__(self, address: Address, /, *, table: Table | None = None) -> None:
        self.address = address
        self._forget()
        if table is not None:
            # A copy: what its owner sees is refreshed when they say so.
            self._table, self._pid = copy(table), os.getpid()

    def _forget(self) -> None:
        self._pid = 0
        self.__dict__.pop("store", None)
        self._table = None
        self.manifests = Manifests()
        self._last: tuple[Any, Sequence[IcebergFile]] | None = None
        self._sidecars: list[PuffinSidecar] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.address = state["address"]
        self._forget()

    def __repr__(self) -> str:
        return f"IcebergEngine({self.address.name!r})"

    # ---- the table, as pyiceberg has it
    def load(self) -> Table:
        """The table as it is now.

        Raises:
            DatasetNotFoundError: The catalog has no such table.
            UnsafeReferenceError: It lies away from a catalog in a local file, and `allow_outside` was not given.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            if self._table is None or self._pid != os.getpid():
                # A catalog's connections do not survive a fork.
                self._table, self._pid = self.address.open_catalog().load_table(self.address.identifier), os.getpid()
            else:
                self._table.refresh()
        except (NoSuchTableError, NoSuchNamespaceError):
            raise DatasetNotFoundError(
                f"The catalog {self.address.catalog!r} has no table {'.'.join(self.address.identifier)}.",
                path=self.address.name,
                hint="Create it with sl.create(address, schema).",
            ) from None
        table: Table = self._table
        if not self.address.storage.allows("allow_outside"):
            root = place_of(table.location())
            refuse_elsewhere(self.address.properties, self.address.name, root)
            table.io = FencedIO(table.io, root)  # type: ignore[assignment]  # what is asked of one
        return table

    @property
    def table(self) -> Table:
        """The table as it was last loaded."""
        return self.load() if self._table is None or self._pid != os.getpid() else self._table

    def metadata(self) -> TableMetadata:
        """Its metadata as they were last loaded."""
        return self.table.metadata

    @cached_property
    def store(self) -> Store:
        """The store of its location."""
        return open_store(self.root, storage=self.storage)

    def entries(self, table: Table, /) -> list[ManifestEntry]:
        """What the newest snapshot lists, as it was last loaded."""
        return list(self.manifests.entries(table.io, table.metadata.current_snapshot()))

    # ---- what a lake offers
    @property
    def root(self) -> str:
        """The table's location: what relative references resolve against."""
        return place_of(self.table.location())

    @property
    def named_by(self) -> str | None:
        """The warehouse, where it is a place: the table's metadata may name another."""
        warehouse = self.address.properties.get("warehouse", "")
        return warehouse if "://" in warehouse else None

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of obstore for its files; never printed."""
        return file_options(self.address, self.table)

    def sidecar(self, store: Store, /) -> PuffinSidecar:
        """What is known of its shards: Puffin files that its snapshots name."""
        made = PuffinSidecar(store, self)
        self._sidecars.append(made)
        return made

    def state(self, version: int | str | datetime | None = None, /) -> LakeState:
        """A version by snapshot id, tag, branch or time; None: the newest, read anew.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        table = self.load()
        metadata = table.metadata
        snapshot = history.find(metadata, version)
        schema = history.schema_of(metadata, snapshot)
        return LakeState(
            version=history.version_of(snapshot),
            schema=schemas.arrow_schema(schema),
            mixtrain=history.property_of(metadata, snapshot),
            files=self._files(snapshot, schema),
            partition_by=[part.name for part in metadata.spec().fields],
        )

    def _files(self, snapshot: Snapshot | None, schema: IcebergSchema) -> Sequence[IcebergFile]:
        """The files of a snapshot; those of the last one that was asked for are remembered."""
        table = self.table
        # Every name that a column ever had counts, so any change of the columns asks anew.
        known = (
            snapshot and snapshot.snapshot_id,
            schema.schema_id,
            table.metadata.current_schema_id,
            table.properties,
        )
        last = self._last  # other threads may replace it
        if last is None or last[0] != known:
            last = self._last = (known, live_files(self.manifests, table.metadata, table.io, snapshot, schema))
        return last[1]

    def versions(self) -> Sequence[Version]:
        """What was once the newest and can still be read, oldest first."""
        return history.versions(self.load().metadata)

    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """The nearest type that Iceberg has.

        Raises:
            SchemaMismatchError: None holds every value.
        """
        return types.lake_type(kind, column=column, wider=_WIDER, lake="Iceberg")

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
        found = schemas.field_ids(table.metadata.schema())
        if all(name in found for name in schema.names):
            return found
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

    def check(self, proposal: Proposal, /) -> None:
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
            from pyiceberg.exceptions import ValidationError

            made = table.transaction()
            try:
                with made.update_schema() as update:
                    schemas.evolve(update, table.metadata.schema(), proposal.schema, proposal.renamed)
                made.table_metadata  # noqa: B018 - worked out here, it says what a partition still needs
            except (ValueError, ValidationError) as error:
                raise SchemaMismatchError(f"{self.root}: {error}", path=self.root) from None

    def commit(self, proposal: Proposal, /) -> Version:
        """All of it on top of `proposal.base`, in one Iceberg commit.

        Raises:
            RivalError: Another commit came between.
            CommitUnknownError: The catalog gave no answer.
        """
        return committing.commit(self, proposal)

    def rollback(self, version: int | str, /, *, base: LakeState) -> Version:
        """A new snapshot with exactly the manifests of an old one.

        Raises:
            RivalError: Another commit came between.
        """
        return committing.rollback(self, version, base)

    def expire(self, limit: datetime, /, *, dry_run: bool) -> Expired:
        """Forget snapshots that were replaced before `limit`, and remove what only they named."""
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

    @property
    def offsets(self) -> PuffinSidecar | None:
        """The sidecar of the table that this engine belongs to."""
        return self._sidecars[0] if self._sidecars else None


def _inside(root: str, named: Iterable[str]) -> list[str]:
    """The files below a table's location, as paths there."""
    return [path for one in named if not paths.is_outside(path := below(root, one))]

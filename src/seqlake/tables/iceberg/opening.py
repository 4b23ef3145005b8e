"""An Iceberg table as pyiceberg has it: loaded, fenced, and a version of it as a value."""

from __future__ import annotations

import os
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from seqlake.errors import DatasetNotFoundError
from seqlake.files.stores import open_store
from seqlake.tables._lakes import types
from seqlake.tables._lakes.damage import replaced
from seqlake.tables.iceberg import history, schemas
from seqlake.tables.iceberg.addresses import FencedIO, file_options, place_of, refuse_elsewhere
from seqlake.tables.iceberg.listing import Manifests, live_files
from seqlake.versions.state import FileList, TableState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from seqlake.protocols import Store
    from seqlake.tables.iceberg.addresses import IcebergAddress
    from seqlake.tables.iceberg.files import IcebergFile
    from seqlake.versions.indexes import IndexRow
    from seqlake.versions.state import TableFile

# Small and unsigned integers become the next type that holds every value of them.
_WIDER = {
    pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.uint8(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.float16(): pa.float32(), pa.date64(): pa.date32(),
}  # fmt: skip


class KnowsOffsets(Protocol):
    """The index files that snapshots name, as a commit and an expiry ask for them."""

    def next(self, transaction: str, live: Sequence[TableFile], /) -> tuple[list[IndexRow], str]:
        """The rows of the index of the commit at hand, and the path of its ground."""

    def ground_of(self, path: str, /) -> str:
        """The path of the file below an index; empty where there is none."""


class OpenTable:
    """One Iceberg table as pyiceberg has it; picklable, every process has a catalog of its own.

    Args:
        address: Where it is.
        table: It, where somebody opened it already; in this process its catalog is used.
    """

    _table: Any
    _pid: int

    def __init__(self, address: IcebergAddress, /, *, table: Table | None = None) -> None:
        self.address: IcebergAddress = address
        self._uuid: Any = None
        self._forget()
        if table is not None:
            # A copy: what its owner sees is refreshed when they say so.
            self._table, self._pid = copy(table), os.getpid()
            self._uuid = table.metadata.table_uuid

    def _forget(self) -> None:
        self._pid = 0
        self.__dict__.pop("store", None)
        self._table = None
        self.manifests: Manifests = Manifests()
        self._last: tuple[Any, Sequence[IcebergFile]] | None = None
        self.indexed: list[KnowsOffsets] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "uuid": self._uuid}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.address, self._uuid = state["address"], state["uuid"]
        self._forget()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.name!r})"

    def load(self) -> Table:
        """The table as it is now.

        Raises:
            DatasetNotFoundError: The catalog has no such table, or another one under the name of the one first loaded.
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
        except ValueError:  # what a refresh makes of another table's metadata, among others
            there = self.address.open_catalog().load_table(self.address.identifier)
            if self._uuid in {None, there.metadata.table_uuid}:
                raise
            raise replaced(self.address.name) from None
        table: Table = self._table
        self._uuid = self._uuid or table.metadata.table_uuid
        if table.metadata.table_uuid != self._uuid:
            raise replaced(self.address.name)
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

    def state(self, version: int | str | datetime | None = None, /) -> TableState:
        """A version by snapshot id, tag, branch or time; None: the newest, read anew.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        table = self.load()
        metadata = table.metadata
        snapshot = history.find(metadata, version)
        schema = history.schema_of(metadata, snapshot)
        return TableState(
            version=history.version_of(snapshot),
            schema=schemas.arrow_schema(schema),
            mixtrain=history.property_of(metadata, snapshot),
            files=FileList.of(self._files(snapshot, schema)),
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

    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """The nearest type that Iceberg has.

        Raises:
            SchemaMismatchError: None holds every value.
        """
        return types.lake_type(kind, column=column, wider=_WIDER, lake="Iceberg")

    @property
    def offsets(self) -> KnowsOffsets | None:
        """The sidecar of the table that this belongs to."""
        return self.indexed[0] if self.indexed else None

    @property
    def is_local_catalog(self) -> bool:
        """Whether the catalog is a file of this machine, whose answers stay true."""
        return bool(self.address.properties.get("uri", "").startswith("sqlite:///"))

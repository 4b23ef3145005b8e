"""One table of a DuckLake: what the catalog says of a version, and commits as transactions of the catalog."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from seqlake.errors import SchemaMismatchError, VersionNotFoundError
from seqlake.files.credentials import Storage
from seqlake.files.stores import list_without_links, open_store
from seqlake.shards.memory import ArrowShard
from seqlake.spec.schema import comparable
from seqlake.tables._lakes.damage import replaced
from seqlake.tables._lakes.engine import Expired, LakeEngine, RivalError
from seqlake.tables._lakes.naming import TagFiles
from seqlake.tables.ducklake import evolving, expiring, history, reading, restoring, texts, types, writing
from seqlake.tables.ducklake.address import refuse_elsewhere, refuse_unnamed
from seqlake.tables.ducklake.catalogs import catalog, retried
from seqlake.tables.ducklake.creating import here
from seqlake.tables.ducklake.files import DataFiles
from seqlake.tables.ducklake.statistics import DuckLakeBounds
from seqlake.versions import markers
from seqlake.versions.state import FileList, TableFile, TableState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Store, Version
    from seqlake.tables._lakes.engine import LakeProposal
    from seqlake.tables._lakes.naming import VersionNames
    from seqlake.tables.ducklake.address import DuckLakeAddress
    from seqlake.tables.ducklake.catalogs import Session
    from seqlake.tables.ducklake.reading import CatalogTable, Facts


class DuckLakeEngine(LakeEngine):
    """A table of a DuckLake, by its address; picklable, the catalog is opened for each question.

    Args:
        address: Where it is.
        data_path: Where the lake's data files lie, absolute.
        storage: obstore's options for them; never printed.
    """

    swept: frozenset[str] = frozenset({".parquet", ".puffin"})
    """What `ducklake_delete_orphaned_files` takes for data files, wherever below the data path they lie."""

    def __init__(
        self, address: DuckLakeAddress, data_path: str, /, *, storage: Mapping[str, str] | None = None
    ) -> None:
        self.address = address
        self._root = data_path
        self._storage = None if storage is None else Storage(storage)
        self._files: DataFiles | None = None
        self._folder: str | None = None
        self._uuid: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "root": self._root, "storage": self._storage, "uuid": self._uuid}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["address"], state["root"], storage=state["storage"])  # type: ignore[misc]  # the rest is derived
        self._uuid = state["uuid"]

    def __repr__(self) -> str:
        return f"DuckLakeEngine({str(self.address)!r})"

    @classmethod
    def opened(cls, address: DuckLakeAddress, /, *, storage: Mapping[str, str] | None) -> DuckLakeEngine:
        """Of a table that is there.

        Raises:
            DatasetNotFoundError: There is none.
            UnsafeReferenceError: Its data lie elsewhere on this machine, and only the catalog says so.
        """
        with catalog(address).reading() as session:
            place = reading.find(session, address)
        root = address.data_path or here(place.data_path, address)
        refuse_elsewhere(address, root, storage=storage)
        engine = cls(address, root, storage=storage)
        engine._uuid = place.uuid
        return engine

    @property
    def named_by(self) -> str | None:
        """The catalog's file, which says where the data are; None where whoever opened it said so."""
        return None if self.address.data_path is not None else self.address.default_data_path

    @property
    def root(self) -> str:
        """The lake's data path: what relative references resolve against, for all its tables."""
        return self._root

    @property
    def label(self) -> str:
        """What tells the sidecar of this table from those of the lake's other tables."""
        return blake2b(f"{self.address.schema}.{self.address.table}".encode(), digest_size=4).hexdigest()

    def names(self, store: Store, /) -> VersionNames:
        """Beside the table, below its UUID: a table that is renamed keeps them, one of the same name later has none."""
        with self._reading() as (_, place):
            return TagFiles(store, label=str(place.uuid), confirm=self.confirm)

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Obstore's options; never printed."""
        return self._storage

    # ---- reading
    def state(self, version: int | str | datetime | None = None, /) -> TableState:
        """A version, by its snapshot or a time; None for the newest.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        with self._reading() as (session, place):
            number = self._number(session, place, version)
            facts = reading.read(session, place, number)
            listed = history.version_at(session, place, number)
        return self._state(facts, listed)

    def versions(self) -> Sequence[Version]:
        """The versions that can be read, oldest first."""
        with self._reading() as (session, place):
            return history.versions(session, place, self.files)

    # ---- writing
    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """The nearest type that DuckLake has."""
        return types.field_of(column, kind, first=1).arrow

    def data_path(self, name: str, partition: Mapping[str, object], /) -> str:
        """The table's folder, and one for each partition value, as DuckDB names them."""
        if self._folder is None:  # it never changes, whatever the table is called
            with self._reading() as (_, place):
                self._folder = place.path.removeprefix(place.data_path)
        return self._folder + "/".join([*(f"{column}={_hive(value)}" for column, value in partition.items()), name])

    def check(self, proposal: LakeProposal, /) -> None:
        """Refuse columns that DuckLake cannot have, and partitions that it computes."""
        with self._reading() as (session, place):
            now = reading.columns(session, place, int(proposal.base.version.id))
            computed = session.rows(
                "SELECT c.transform FROM ducklake_partition_column c JOIN ducklake_partition_info i "
                "ON i.partition_id = c.partition_id AND i.table_id = c.table_id "
                "WHERE c.table_id = ? AND i.end_snapshot IS NULL AND c.transform <> 'identity'",
                place.id,
            )
        if proposal.schema is not None:
            evolving.evolve(now, proposal.schema, renamed=proposal.renamed, first=1 << 20, anew=proposal.replaces_all)
        if computed and proposal.add:
            raise SchemaMismatchError(
                f"{self.address} is partitioned by {', '.join(text for (text,) in computed)}, which seqlake does not "
                "compute; DuckDB would not find rows without it.",
                hint="Append with DuckDB, or ALTER TABLE ... SET PARTITIONED BY plain columns.",
            )

    def commit(self, proposal: LakeProposal, /) -> Version:
        """One snapshot on top of `proposal.base`.

        Raises:
            RivalError: Another snapshot changed the table.
        """
        with self._writing(int(proposal.base.version.id)) as (session, place, counters):
            changes = []
            columns: Sequence[types.Field] = reading.columns(session, place, counters.snapshot - 1)
            seen = reading.columns(session, place, int(proposal.transaction.parent.id)) or columns
            if proposal.schema is not None:
                columns = writing.change_columns(
                    session, place, counters, proposal.schema, proposal.renamed, anew=proposal.replaces_all
                )
                seen = columns
            if proposal.mixtrain is not None:
                writing.set_property(session, place, counters, proposal.mixtrain)
                counters.schema_version += proposal.schema is None
            if proposal.add:
                held = {column.id: column.name for column in seen}
                writing.add_files(session, place, counters, proposal.add, held, columns)
                changes.append(f"inserted_into_table:{place.id}")
            if proposal.remove:
                self._remove(session, place, counters, proposal.remove)
                changes.append(f"deleted_from_table:{place.id}")
            if proposal.schema is not None or proposal.mixtrain is not None or not changes:
                changes.append(f"altered_table:{place.id}")
            writing.finish(session, counters, changes, proposal.operation, proposal.transaction.id)
            return history.version_at(session, place, counters.snapshot)

    def rollback(self, version: int | str, /, *, base: TableState) -> Version:
        """A new version on top of `base` with the rows of an old one; the newest schema stays."""
        with self._reading() as (session, place):
            old = reading.read(session, place, self._number(session, place, version))
            now = reading.read(session, place, int(base.version.id))
        plan = restoring.plan(old, now, (self.files.lake_files(old), self.files.lake_files(now)))
        store = open_store(self._root, storage=self._storage)
        transaction = markers.announce(store, 0)
        try:
            folder = place.path.removeprefix(place.data_path)
            copies = restoring.copy_files(store, folder, plan, transaction, storage=self._storage)
            with self._writing(int(base.version.id)) as (session, place, counters):
                changes = restoring.apply(session, place, counters, plan, copies, to=old.snapshot)
                writing.finish(session, counters, changes, "rollback", transaction)
                committed = history.version_at(session, place, counters.snapshot)
        finally:
            markers.end(store, transaction)
        return committed

    def confirm(self, version: int | str, /) -> None:
        """Refuse a version that no longer can be read; as a writer, so after an expiry that is under way."""

        def confirmed() -> None:
            with catalog(self.address).writing() as session:
                self._number(session, self._place(session), version)

        retried(confirmed)

    def expire(
        self, limit: datetime, /, *, dry_run: bool, keep: Callable[[], Collection[int | str]] = tuple
    ) -> Expired:
        """Forget versions that were replaced before `limit`, and remove the data files that only they named.

        Raises:
            UnsafeReferenceError: The catalog alone says where the data lie, and it is not beside it.
        """
        refuse_unnamed(self.address, self._root, storage=self._storage)
        store = open_store(self._root, storage=self._storage)
        there = dict(list_without_links(store, self.data_path("", {}).rstrip("/")))

        def planned(session: Session, place: CatalogTable) -> tuple[expiring.Doomed, list[str], list[TableFile]]:
            gone = expiring.doomed(session, place, limit, keep())
            paths = expiring.removable(session, place, gone, limit)
            return gone, paths, expiring.retained(session, place, but=gone)

        if dry_run:
            with self._reading() as (session, place):
                _, paths, kept = planned(session, place)
                return Expired(removed={path: there[path] for path in paths if path in there}, retained=kept)
        lake = catalog(self.address)

        def forgotten() -> tuple[list[str], list[TableFile]]:
            with lake.writing() as session:
                place = self._place(session)
                gone, paths, kept = planned(session, place)
                expiring.forget(session, place, gone, datetime.now(UTC))
                return paths, kept

        paths, kept = retried(forgotten)
        removed = {path: there[path] for path in paths if path in there}
        store.delete(removed)

        def unscheduled() -> None:
            with lake.writing() as session:
                expiring.unschedule(session, paths)

        retried(unscheduled)
        return Expired(removed=removed, retained=kept)

    def drop(self) -> None:
        """Drop the table, as `DROP TABLE` does: what older snapshots show of it stays until they expire."""

        def dropped() -> None:
            with catalog(self.address).writing() as session:
                counters = writing.Counters.next(session)
                changes = writing.drop_table(session, self._place(session), counters)
                writing.finish(session, counters, changes, "drop", "")

        retried(dropped)

    # ---- inside
    @property
    def files(self) -> DataFiles:
        """The data files, with what was read of them."""
        if self._files is None:
            self._files = DataFiles(open_store(self._root, storage=self._storage), storage=self._storage)
        return self._files

    def _place(self, session: Session) -> CatalogTable:
        """The table that was opened: one that has its name after it was dropped is another one."""
        place = reading.find(session, self.address)
        self._uuid = self._uuid or place.uuid
        if place.uuid != self._uuid:
            raise replaced(str(self.address))
        return place

    @contextmanager
    def _reading(self) -> Iterator[tuple[Session, CatalogTable]]:
        with catalog(self.address).reading() as session:
            yield session, self._place(session)

    @contextmanager
    def _writing(self, base: int) -> Iterator[tuple[Session, CatalogTable, writing.Counters]]:
        with catalog(self.address).writing() as session:
            place = self._place(session)
            if next(reading.touching(session, place)) != base:
                raise RivalError
            yield session, place, writing.Counters.next(session)

    def _number(self, session: Session, place: CatalogTable, version: int | str | datetime | None) -> int:
        """The snapshot that is meant."""
        if version is None:
            return next(reading.touching(session, place))
        if isinstance(version, datetime):
            times = [one for one in history.times(session, place) if one[1] <= version]
            if not times:
                raise self._unknown(str(version))
            return times[-1][0]
        if isinstance(version, int) and place.since <= version < 1 << 63:
            there = session.rows("SELECT 1 FROM ducklake_snapshot WHERE snapshot_id = ?", version)
            if there:
                return version
        raise self._unknown(str(version))

    def _unknown(self, version: str) -> VersionNotFoundError:
        return VersionNotFoundError(
            f"{self.address} has no version {version!r}: it expired, or was never there.",
            path=str(self.address),
            hint="`ds.versions()` lists those that can be read.",
        )

    def _state(self, facts: Facts, version: Version) -> TableState:
        names_ = {column.id: column.name for column in facts.columns}
        keys = facts.partitions.get(facts.partition_id, ()) if facts.partition_id is not None else ()
        arrow = pa.schema([pa.field(one.name, one.arrow, one.nullable) for one in facts.columns])
        held = [
            TableFile(
                name=_held_path(facts.place, one.table, table),
                rows=table.num_rows,
                nbytes=table.nbytes,
                held=table,
            )
            for one in facts.inlined
            if (table := texts.table_of(one, facts.columns))
        ]
        bounds = DuckLakeBounds(self.address, facts.place.id, facts.columns)
        return TableState(
            version=version,
            schema=comparable(arrow),
            mixtrain=facts.mixtrain,
            files=FileList.of([*self.files.lake_files(facts, bounds=bounds), *held]),
            partition_by=[names_[column] for column, transform in keys if transform == "identity"],
        )

    def _remove(
        self, session: Session, place: CatalogTable, counters: writing.Counters, files: Sequence[TableFile]
    ) -> None:
        numbers = {file.path: file.id for file in reading.read(session, place, counters.snapshot - 1).files}
        writing.end_files(session, place, counters, [numbers[file.name] for file in files if file.held is None])
        for file in files:
            if file.held is not None:
                writing.end_inlined(session, counters, file.name.rpartition("/")[2].partition("@")[0])


def _held_path(place: CatalogTable, name: str, table: pa.Table) -> str:
    """What stands for a path of rows in the catalog: another one as soon as any of them is another."""
    return f"{place.path.removeprefix(place.data_path)}{name}@{ArrowShard(table).key.rpartition('#')[2]}"


def _hive(value: object) -> str:
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    return quote(str(value).lower() if isinstance(value, bool) else str(value), safe=" -_.")

"""The standalone table: Parquet files in a folder or bucket, with versions and atomic commits, without a server."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import TYPE_CHECKING, Any

from seqlake.errors import DatasetNotFoundError, PublishPendingWarning, ReadOnlyError
from seqlake.protocols import Change, Transaction, Version
from seqlake.tables.standalone import adopting, changes, history
from seqlake.tables.standalone.committing import all_or_nothing, begin, commit_version, discard_undecided
from seqlake.tables.standalone.conflicts import check_fence
from seqlake.tables.standalone.context import LogContext
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.plain import plain_state
from seqlake.tables.standalone.publishing import metadata_is_edited, publish_or_warn
from seqlake.tables.standalone.snapshot import PlainSnapshot, StandaloneSnapshot
from seqlake.tables.standalone.state import table_state, version_of
from seqlake.tables.standalone.vacuuming import copied_files, vacuum, would_remove
from seqlake.versions import markers, names
from seqlake.versions.shard_formats import PARQUET
from seqlake.versions.small_files import can_list, write_derived
from seqlake.versions.staging import StagingTable
from seqlake.versions.tags import check_name, version_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from seqlake.abilities import MapsTasks, Need
    from seqlake.protocols import Store
    from seqlake.spec.schema import Schema
    from seqlake.tables.standalone.records import VersionRecord
    from seqlake.tables.standalone.state import State


class StandaloneTable(StagingTable):
    """A table in a folder or bucket; made by `open` and `create`.

    It reads without writing anything. `begin` is what opens it for writing: a plain folder is adopted then, and what
    earlier writers left half done is finished. Picklable: a copy reads the log anew.

    Example:
        ```python
        table = standalone.create("data/arm", schema)
        transaction = table.begin()
        path = table.place(transaction, {}, n="0")
        ...  # write the shard there
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
        ```
    """

    def __init__(self, store: Store, /) -> None:
        self.store: Store = store
        self._forget()

    @classmethod
    def created(cls, store: Store, schema: Schema, /) -> StandaloneTable:
        """A new, empty table; `create` says what it raises."""
        table = cls(store)
        adopting.create(table._log, schema)
        return table

    def _forget(self) -> None:
        self._log = Log(self.store)
        self._context = LogContext(self._log)
        self._last: tuple[State, StandaloneSnapshot] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.store = state["store"]
        self._forget()

    def __repr__(self) -> str:
        return f"StandaloneTable({self.root!r})"

    @property
    def kind(self) -> str:
        """What people call this kind of table: `standalone`."""
        return "standalone"

    @property
    def manifest_exists(self) -> bool:
        """Whether it has versions; a plain folder has none until it is opened for writing."""
        return self._log.newest().version >= 0

    # ---- reading
    def versions(self) -> Sequence[Version]:
        """The versions that can be read, oldest first; none for a plain folder."""
        newest = self._log.newest()
        named = [self._log.record(number) for number in newest.kept()]
        return [_version(record) for record in (*named, *self._log.each(newest.oldest, newest.version))]

    def snapshot(self, version: Version | int | str | datetime | None = None, /) -> StandaloneSnapshot:
        """One version, pinned.

        Args:
            version: A `Version`, its number, a tag, or a time (the last version that is not later); None: the newest.

        Raises:
            VersionNotFoundError: It expired, or was never there.
            DatasetNotFoundError: There is no dataset.
        """
        newest, wanted = self._log.newest(), version_id(version)
        if newest.version < 0:
            state = plain_state(self.store)
            if wanted not in {None, -1}:
                raise self._log.not_found(str(version), newest)
            return PlainSnapshot(self._context, state)
        if wanted is None:
            last = self._last
            if last is None or last[0] is not newest:  # what is known of a version serves all who look at it
                last = self._last = newest, StandaloneSnapshot(self._context, table_state(newest))
            return last[1]
        if isinstance(wanted, datetime):
            return StandaloneSnapshot(self._context, table_state(self._log.at_time(wanted)))
        number = _number(wanted, newest.tags)
        if number is None:
            raise self._log.not_found(str(version), newest)
        return StandaloneSnapshot(self._context, table_state(self._log.at(number)))

    def strangers(self) -> list[str]:
        """Paths in `data/` that the log never had; they are not read, and `adopt` adds them."""
        newest = self._log.newest()
        if newest.version < 0:
            return []
        return [f"{names.DATA}/{name}" for name in adopting.strangers(self._log, newest)]

    def copied_files(self) -> Sequence[tuple[str, int, Need]]:
        """(path, size, need) of the files below `files/`: `needed`, `staged`, `orphan` or `stranger`."""
        return list(copied_files(self._log)) if self.manifest_exists and can_list(self.store) else []

    def would_adopt(self) -> list[str]:
        """Paths of the shards that `adopt` would take in.

        Raises:
            ReadOnlyError: It would be refused, because files lie elsewhere.
        """
        return adopting.would_adopt(self._log)

    def metadata_edited(self) -> bool:
        """Whether `mixtrain.json` was edited by hand; it is not used until `adopt` takes it in."""
        newest = self._log.newest()
        return newest.version >= 0 and metadata_is_edited(self.store, newest)

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Keep bytes that can be computed again, in the table or in the user's cache; a plain folder stays as it is."""
        write_derived(self.store, name, data, inside=self.manifest_exists)

    # ---- writing
    def begin(self, parent: Version | None = None, /) -> Transaction:
        """Announce a commit and put right what earlier ones left; a plain folder is adopted first.

        Args:
            parent: The version that the change will be made on; None for the newest.

        Raises:
            ReadOnlyError: The place cannot be written.
        """
        newest = self._log.refuse_holes()
        if newest.version < 0:
            adopting.adopt_folder(self._context)
            newest = self._log.newest()
        return begin(self._log, parent=parent, newest=newest)

    def place(
        self,
        transaction: Transaction,
        partition: Mapping[str, object] | None = None,
        /,
        *,
        n: str,
        format: str = PARQUET,  # noqa: A002 - as users call it
    ) -> str:
        """As `StagingTable.place`; `partition` must be empty: standalone tables are not partitioned."""
        if partition:
            raise ValueError(f"A standalone table has no partitions, found {dict(partition)}; use `split` instead.")
        return super().place(transaction, n=n, format=format)

    def place_side(self, transaction: Transaction, /, *, n: str) -> str:
        """Where the side shard `n` of a transaction is written; as `place`."""
        return self.scratch.place(self.store, transaction.id, f"{names.SIDE}/{names.side(transaction.id, n)}")

    def commit(self, change: Change, /, *, transaction: Transaction) -> Version:
        """Make a change the next version: all of it or nothing.

        Raises:
            CommitConflictError: What came since the parent touches the same shards, or the schema; `CommitUnknownError`
                where the store gave no answer.
            DuplicateSequenceError: An id that was there already.
            ReadOnlyError: The place cannot be written.
        """
        log, parent = self._log, int(transaction.parent.id)
        with all_or_nothing(log, transaction.id):
            newest = log.newest()
            # What vacuum gave up it has removed, too; that is said better than that a file is missing.
            check_fence(transaction.id, log.records(parent + 1, newest.version), path=self.root)
            before = newest if parent == newest.version else log.at(parent)
            proposal = changes.propose(self._context, change, transaction=transaction.id, parent=before)
            if proposal.mixtrain is not None:
                self._refuse_edited()
            record = commit_version(log, transaction.id, parent=parent, propose=proposal)
        self._published(record)
        self.scratch.clear(transaction.id)
        return _version(record)

    def discard(self, transaction: Transaction, /) -> None:
        """Remove all that a transaction staged, unless it was, or may yet be, committed."""
        discard_undecided(self._log, transaction.id)
        self.scratch.clear(transaction.id)

    def publish(self) -> None:
        """Finish what interrupted publishes left, as every `begin` does."""
        if self.manifest_exists:
            markers.end(self.store, begin(self._log).id)

    def rollback(self, version: Version | int | str, /) -> Version:
        """A new version with the rows, schema and metadata of an old one.

        Raises:
            VersionNotFoundError: It expired, or was never there.
            CommitConflictError: Another writer committed meanwhile.
        """
        newest = self._log.newest()
        number = _number(version, newest.tags)
        if number is None or newest.version < 0:
            raise self._log.not_found(str(version), newest)
        return _version(history.rollback(self._context, number))

    def tags(self) -> Mapping[str, int]:
        """The versions that have names, by name."""
        return dict(sorted(self._log.newest().tags.items()))

    def tag(self, name: str, version: Version, /, *, move: bool = False) -> None:
        """Give a version a name, as a commit; it can be read for as long as it has one.

        Raises:
            TagExistsError: Another version has it, and it was not to be moved.
            VersionNotFoundError: That version expired, or was never there.
        """
        check_name(name)
        self._ensure_version()
        number = max(int(version.id), 0)  # -1 is what a plain folder was before it became version 0
        record = history.tag(self._log, name, number, move=move)
        if record is not None:
            self._published(record)

    def untag(self, name: str, /) -> None:
        """Take a name away, as a commit.

        Raises:
            VersionNotFoundError: No version has it.
        """
        self._published(history.untag(self._log, name))

    def adopt(self) -> Version:
        """Take in what others put there: a plain folder, files in `data/`, a `mixtrain.json` edited by hand.

        Of a plain folder whose files lie directly in its root, they move into `data/`.

        Returns:
            The version that has them; the newest where there was nothing to take in.

        Raises:
            ValidationError: Ids that are there already, or missing.
            SchemaMismatchError: Columns that do not fit.
            ReadOnlyError: Files that lie deeper than directly in `data/`.
        """
        if not self.manifest_exists:
            return _version(adopting.adopt_folder(self._context, move=True))
        record = adopting.adopt_changes(self._context)
        return version_of(self._log.newest()) if record is None else _version(record)

    def adopt_by(self, mapped: MapsTasks, /) -> Version:
        """Adopt a plain folder as `begin` does, its files looked at by others; nothing moves.

        Args:
            mapped: Runs the tasks, each some files.
        """
        if not self.manifest_exists:
            return _version(adopting.adopt_folder(self._context, mapped=mapped))
        return version_of(self._log.newest())

    def vacuum(self, *, older_than: timedelta, dry_run: bool = False) -> Sequence[str]:
        """Remove what seqlake wrote and no retained version names.

        Args:
            older_than: Versions that were the newest within this time stay readable; transactions not heard of for
                longer are given up.
            dry_run: Only say what would be removed.

        Returns:
            The paths, below the root.
        """
        if dry_run:
            return would_remove(self._log, older_than=older_than)
        self._ensure_version()
        return vacuum(self._log, older_than=older_than)

    # ---- inside
    def _ensure_version(self) -> None:
        if not self.manifest_exists:
            adopting.adopt_folder(self._context)

    def _published(self, record: VersionRecord) -> None:
        if publish_or_warn(self._log, record.transaction, first=record.version):
            try:
                markers.end(self.store, record.transaction)
            except OSError as error:
                warnings.warn(
                    f"{self.root}: version {record.version} is committed, but its marker could not be removed "
                    f"({error}); the next opening for writing does it.",
                    PublishPendingWarning,
                    stacklevel=3,
                )

    def _refuse_edited(self) -> None:
        if self.metadata_edited():
            raise ReadOnlyError(
                f"{self.root}/{names.METADATA} was edited by hand, so the metadata cannot be changed by a commit.",
                path=self.root,
                hint=f"`seqlake adopt {self.root}` takes the edited file in; or put the old one back.",
            )


def opened(store: Store, /) -> StandaloneTable:
    """The table here.

    Raises:
        DatasetNotFoundError: There is none.
    """
    table = StandaloneTable(store)
    if not table._log.is_there():  # noqa: SLF001 - it is made here
        root = store.root
        raise DatasetNotFoundError(
            f"Expected a dataset at {root}, found no {names.METADATA} and no {names.OURS}/.",
            path=root,
            hint=f"`seqlake init {root}` makes a folder of Parquet files one; sl.scan reads it as it is.",
        )
    return table


def _version(record: VersionRecord) -> Version:
    return Version(
        id=record.version, time=record.time, operation=record.operation, rows=record.rows, message=record.message
    )


def _number(version: Version | int | str | datetime, tags: Mapping[str, int]) -> int | None:
    wanted = version_id(version)
    if isinstance(wanted, str):
        return tags.get(wanted)
    return wanted if isinstance(wanted, int) else None

"""A lake table: the protocol of a table over an `LakeEngine`, the same for every lake; its versions, and its vacuum."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from seqlake.errors import (
    DamagedTableError,
    MissingFileError,
    ReadOnlyError,
    SeqlakeError,
    ShardChangedError,
    VersionNotFoundError,
)
from seqlake.files.stores import list_without_links
from seqlake.protocols import Transaction, Version
from seqlake.spec.findings import Finding
from seqlake.spec.rules import check_places
from seqlake.tables._lakes import committing, foreign, paths, sidecar, types
from seqlake.tables._lakes.context import LakeContext
from seqlake.tables._lakes.damage import as_damage
from seqlake.tables._lakes.naming import pinned
from seqlake.tables._lakes.paths import LakeBlob, bare_shard, blob_at
from seqlake.tables._lakes.staging import LakeStaging
from seqlake.versions import markers, names, references, shard_formats
from seqlake.versions.indexes import unknown_shards
from seqlake.versions.messages import message
from seqlake.versions.references import named_files
from seqlake.versions.shard_formats import PARQUET
from seqlake.versions.small_files import Removed, can_list, own_sizes, read
from seqlake.versions.snapshot import TableSnapshot
from seqlake.versions.staging import StagingTable
from seqlake.versions.tags import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from seqlake.protocols import Change, Depth, Store, Written
    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.engine import LakeEngine
    from seqlake.versions.state import TableFile, TableState


class LakeTable(StagingTable):
    """A table of a lake; made by a lake's `open` and `create`. Picklable: a copy reads the lake anew.

    Args:
        engine: What differs from lake to lake.

    Example:
        ```python
        table = delta.create("lake/arm", schema)
        transaction = table.begin()
        path = table.place(transaction, {}, n="0")
        ...  # write the shard there
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
        ```
    """

    copies: str = paths.FILES

    def __init__(self, engine: LakeEngine, /) -> None:
        self.engine: LakeEngine = engine
        self._forget()

    def _forget(self) -> None:
        self.context: LakeContext = LakeContext(self.engine)
        self.store: Store = self.context.store
        self._staging = LakeStaging(self.context)

    def __getstate__(self) -> dict[str, Any]:
        return {"engine": self.engine, "in_doubt": self._staging.in_doubt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.engine = state["engine"]
        self._forget()
        self._staging.in_doubt |= state["in_doubt"]

    def __repr__(self) -> str:
        return f"{type(self.engine).__name__}({self.root!r})"

    @property
    def kind(self) -> str:
        """Which lake it is of, as in `delta`."""
        return type(self.engine).__name__.removesuffix("Engine").lower()

    @property
    def plain_lists(self) -> bool:
        """Whether its files never say that inner lists have a fixed size."""
        return not self.engine.fixed_size_inner

    @property
    def shard_format(self) -> str:
        """The format that its data files have."""
        return self.engine.shard_format

    @property
    def root(self) -> str:
        """Where it lies: an absolute path or a URI."""
        return self.context.root

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns that new shards are partitioned by, as was last read; a commit looks whether that holds."""
        known = self.context.partition_by
        return self.state().partition_by if known is None else known

    @property
    def swept(self) -> frozenset[str]:
        """Endings of names that the lake's own cleanup removes wherever they lie, `_seqlake/` included."""
        return self.engine.swept

    def partition_values(self, batch: pa.RecordBatch, /) -> Iterable[tuple[object, ...]]:
        """The partition of each row of a batch, in the order of `partition_by`; some lakes compute it."""
        return self.engine.partition_values(batch, self.partition_by)

    # ---- reading
    def versions(self) -> Sequence[Version]:
        """The versions that can be read, oldest first."""
        with as_damage(self.root):
            return self.engine.versions()

    def snapshot(self, version: Version | int | str | datetime | None = None, /) -> LakeSnapshot:
        """One version, pinned.

        Args:
            version: A `Version`, its id, a name that the lake gives to one, or a time (the last version that is not
                later); None for the newest.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        return LakeSnapshot(self.context, self.state(version))

    def state(self, version: Version | int | str | datetime | None = None, /) -> TableState:
        """What a version consists of; every file with its rows and bytes. The newest is always read anew."""
        return self.context.state(self._numbered(version))

    def _numbered(self, version: Version | int | str | datetime | None) -> Version | int | str | datetime | None:
        """The version that has a name; what is no name of ours as it was."""
        named = self.engine.names(self.store).find(version) if isinstance(version, str) else None
        return version if named is None else named

    def tags(self) -> Mapping[str, int | str]:
        """The versions that have names, by name."""
        with as_damage(self.root):
            return self.engine.names(self.store).tags()

    def tag(self, name: str, version: Version, /, *, move: bool = False) -> None:
        """Give a version a name; it can be read for as long as it has one, if all vacuums are ours or the lake's.

        Raises:
            TagExistsError: Another version has it, and it was not to be moved.
            VersionNotFoundError: That version expired, or was never there.
            ValueError: A message was said: no version is made that could carry it.
        """
        check_name(name)
        self._refuse_message()
        with as_damage(self.root):
            self.engine.names(self.store).put(name, version.id, move=move)

    def untag(self, name: str, /) -> None:
        """Take a name away.

        Raises:
            VersionNotFoundError: No version has it.
            ValueError: As in `tag`.
        """
        self._refuse_message()
        with as_damage(self.root):
            self.engine.names(self.store).remove(name)

    def _refuse_message(self) -> None:
        if message() is not None:
            raise ValueError(f"A tag of a table of {self.kind} is no commit, so it has no message; leave it out.")

    def held(self, schema: Schema, /) -> Schema:
        """A schema as it comes back from the lake: some types become wider ones."""
        return types.in_lake_types(schema, self.engine.lake_schema(schema))

    # ---- writing
    def begin(self, parent: Version | None = None, /) -> Transaction:
        """Announce a commit.

        Args:
            parent: The version that the change will be made on; None for the newest.

        Raises:
            ReadOnlyError: The place cannot be written.
        """
        newest = self.state().version if parent is None else parent
        return Transaction(id=markers.announce(self.store, 0), parent=newest)

    def place(
        self,
        transaction: Transaction,
        partition: Mapping[str, object] | None = None,
        /,
        *,
        n: str,
        format: str = PARQUET,  # noqa: A002 - as users call it
    ) -> str:
        """As `StagingTable.place`; the lake says which format its files have."""
        if format != self.shard_format:
            raise ValueError(f"A table of {self.kind} has {self.shard_format} shards, found the format {format!r}.")
        return super().place(transaction, partition, n=n, format=format)

    def field_ids(self, schema: Schema, /) -> Mapping[str, int]:
        """The field ids that a file with these columns carries, by dotted path; none where the lake goes by names."""
        return self.engine.field_ids(self.engine.lake_schema(schema))

    def stage(self, transaction: Transaction, written: Written, /) -> Written:
        """Make a finished shard durable where nobody reads it yet; `commit` does it for those left."""
        return self._staging.stage(transaction, written)

    def commit(self, change: Change, /, *, transaction: Transaction) -> Version:
        """Make a change the next version: all of it or nothing.

        Raises:
            CommitConflictError: What came since the parent touches the same shards, or the schema; `CommitUnknownError`
                where the lake gave no answer.
            DuplicateSequenceError: An id that was there already.
            ReadOnlyError: The place cannot be written.
            SchemaMismatchError: The lake cannot have this schema, or not without rewriting.
        """
        try:
            version = committing.commit(self._staging, change, transaction)
        except FileNotFoundError as error:
            if isinstance(error, SeqlakeError):
                raise
            raise MissingFileError(
                f"{self.root}: a file that the table names is gone ({error}).",
                path=self.root,
                hint="Restore it from a copy.",
            ) from error
        with suppress(OSError):  # the commit stands
            self.scratch.clear(transaction.id)
        return version

    def discard(self, transaction: Transaction, /) -> None:
        """Remove all that a transaction staged, unless it was, or may yet be, committed."""
        self._staging.discard(transaction)
        self.scratch.clear(transaction.id)

    def rollback(self, version: Version | int | str, /) -> Version:
        """A new version with the rows of an old one.

        Raises:
            VersionNotFoundError: It expired, or was never there.
            CommitConflictError: Another writer committed meanwhile.
        """
        wanted = self._numbered(version.id if isinstance(version, Version) else version)
        if not isinstance(wanted, int | str):
            raise VersionNotFoundError(f"A version's id was expected, found {wanted!r}.", path=self.root)
        return committing.rollback(self.context, wanted)

    def adopt(self) -> Version:
        """Index the shards of other clients, so that ids and steps in them are found without reading them again.

        They are in the table already: nothing is committed.
        """
        state = self.state()
        foreign.merge(self.context, state, names.new_transaction())
        return state.version

    def vacuum(self, *, older_than: timedelta, dry_run: bool = False) -> Sequence[str]:
        """Remove what no version within `older_than` names: data files, copied-in files, dead writers' leftovers.

        Args:
            older_than: Versions that were the newest within this time stay readable.
            dry_run: Only say what would be removed.

        Returns:
            The paths, below the root.
        """
        self.context.forget()
        limit = markers.now() - older_than
        with as_damage(self.root):
            return vacuum(self.context, limit=limit, dry_run=dry_run)

    def drop(self) -> None:
        """Take back a table that was just made, with everything in it."""
        self.engine.drop()
        if not self.engine.label:  # tables of one root share the folder; what is of this one, `vacuum` removes
            self.store.delete([path for path, _ in list_without_links(self.store, names.OURS)])
        self.context.forget()


def refuse_to_write(root: str, why: str, hint: str, /) -> ReadOnlyError:
    """The error for a table that another client must write."""
    return ReadOnlyError(f"{root} is only read by seqlake: {why}.", path=root, hint=hint)


UNHEARD = timedelta(hours=2)
"""A transaction that was heard of within this time is never given up: no lake could refuse its commit afterwards."""


def vacuum(context: LakeContext, /, *, limit: datetime, dry_run: bool) -> Removed:
    """Remove what no version that was the newest since `limit` names.

    Args:
        context: The table.
        limit: The moment from which versions stay readable.
        dry_run: Only say what would be removed.

    Returns:
        Paths below the root.
    """
    store = context.store
    # Lists first, then markers, then the lake: whatever a list shows has a marker or a version by then.
    listed = _listed(context)
    staged = own_sizes(store, names.STAGED)
    alive, dead = _transactions(context, limit)
    if not dry_run:
        for transaction in dead:  # the fence: a commit looks for its marker
            with suppress(FileNotFoundError):
                store.delete([names.marker(transaction)])
    expired = context.engine.expire(limit, dry_run=dry_run, keep=partial(pinned, store))
    superfluous = sorted({*_unneeded(context, expired.retained, alive, listed), *_left(staged, alive)})
    superfluous = [path for path in superfluous if path not in expired.removed]
    if not dry_run:
        for path in superfluous:
            with suppress(FileNotFoundError):
                store.delete([path])
    return Removed(sorted({*expired.removed, *superfluous}), {**listed, **staged, **expired.removed})


def _listed(context: LakeContext) -> dict[str, int]:
    """What may be ours, with its size: in `_seqlake/` and the folder of data files, but for datasets in there."""
    listed = dict(list_without_links(context.store, names.OURS))
    folder = context.engine.data_path("", {}).rstrip("/")
    if not paths.is_outside(folder):
        data = dict(list_without_links(context.store, folder))
        others = paths.apart(data)
        listed.update((path, size) for path, size in data.items() if not path.startswith(others))
    return {path: size for path, size in listed.items() if _ours(path)}


def _ours(path: str) -> bool:
    return paths.owner(path) is not None or path.startswith((paths.FILES, names.MEDIA, names.INDEX, names.COPIES))


def _transactions(context: LakeContext, limit: datetime) -> tuple[set[str], set[str]]:
    oldest = min(limit, markers.now() - UNHEARD)
    marked = markers.read_all(context.store)
    dead = {marker.transaction for marker in marked if marker.time < oldest}
    return {marker.transaction for marker in marked} - dead, dead


def _left(staged: Iterable[str], alive: set[str]) -> Iterator[str]:
    """What dead transactions left in `staged/`."""
    for path in staged:
        owner = names.staged_owner(path.rpartition("/")[2])
        if owner is not None and owner not in alive:
            yield path


def _named(context: LakeContext, file: TableFile) -> set[str]:
    """Our copied-in files that a shard of another client names; none where a vacuum was faster: nobody reads it."""
    try:
        return {copied.path for copied in named_files(context, file)}
    except DamagedTableError as error:
        # What lies outside the table may be away for a while only.
        if paths.is_outside(file.name) or not isinstance(error.__cause__, FileNotFoundError):
            raise
        return set()


def _unneeded(
    context: LakeContext, retained: Sequence[TableFile], alive: set[str], listed: Iterable[str]
) -> Iterator[str]:
    """Our data files, copied-in files and their training copies, packet indexes and index files that nothing needs."""
    kept = {file.name for file in retained}
    adders = {owner for path in kept if (owner := paths.owner(path)) is not None}
    known = context.sidecar.find(retained)
    needed = {file.path for path, index in known.items() for file in index.files(path)}
    for file in retained:
        if file.name not in known:  # another client wrote it: its rows may name our files all the same
            needed |= _named(context, file)
    owners, keys = {names.copied_owner(path) for path in needed}, {names.copy_key(path) for path in needed}
    merged = {sidecar.split(read(context.store, path))[0] for path in listed if path.startswith(paths.MERGED)}
    for path in listed:
        if path.startswith(f"{paths.FILES}/"):
            gone = names.is_dead_copy(path, needed=needed, alive=alive)
        elif path.startswith(f"{names.COPIES}/"):
            gone = names.is_dead_training_copy(path, keys=keys, alive=alive)
        elif path.startswith(f"{names.MEDIA}/"):
            gone = names.is_dead_media(path, owners=owners, alive=alive)
        elif path.startswith(f"{names.INDEX}/"):
            gone = path not in merged and names.is_dead_index(path, adders=adders, alive=alive)
        else:
            ours = path.startswith(f"{names.OURS}/")
            gone = not ours and path not in kept and paths.owner(path) not in alive
        if gone:
            yield path


class LakeSnapshot(TableSnapshot):
    """One version of a lake table: `HasBounds` and `Checked` besides."""

    context: LakeContext

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns that the lake partitions by."""
        return self.state.partition_by

    @property
    def is_typed(self) -> bool:
        """Whether the table has the property that makes it a Mixtrain dataset."""
        return bool(self.state.mixtrain)

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the least and the most that a column has in each, as partition or by the lake's statistics.

        (None, None) where every cell is null; None where nothing is known.
        """
        return [_bounds(file, column) for file in self.state.files]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the table can know is wrong: missing, changed or torn shards, files that are gone."""
        return findings(self.context, self.state, depth)


def _bounds(file: TableFile, column: str) -> tuple[object, object] | None:
    if column in file.constants:
        return file.constants[column], file.constants[column]
    low, high, _ = file.statistics.get(column, (None, None, 0))
    return None if low is None or high is None else (low, high)


def findings(context: LakeContext, state: TableState, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and what lies beside the table."""
    beside = read(context.store, names.METADATA)
    texts = [(f"table property {types.PROPERTY}", state.mixtrain)]
    yield from check_places([*texts, (names.METADATA, beside.decode(errors="replace"))] if beside else texts)
    yield from _missing(context, state)
    if can_list(context.store):
        yield from markers.findings(context.store)
    yield from _indexes(context, state)
    if depth != "metadata":
        yield from _pages(context, state)
    if depth in {"files", "decode"}:
        yield from references.findings(context.store, context.sidecar.find(state.files))


def _missing(context: LakeContext, state: TableState) -> Iterator[Finding]:
    """T501, T502: shards that are gone or have another size."""
    for file in _in_files(state):
        try:
            size = blob_at(context.store, file.name, storage=context.storage).size
        except FileNotFoundError:
            message = f"version {state.version.id} needs this shard, and it is gone"
            yield Finding(code="T501", severity="error", message=message, location=file.name)
            continue
        if size != file.nbytes:
            message = f"expected {file.nbytes} bytes, as the table says, found {size}"
            yield Finding(code="T502", severity="error", message=message, location=file.name)


def _in_files(state: TableState) -> list[TableFile]:
    return [file for file in state.files if file.held is None]


def _indexes(context: LakeContext, state: TableState) -> Iterator[Finding]:
    """T509: shards of our own whose ids and lengths have to be read from the shard itself."""
    known = context.sidecar.find(state.files)
    yield from unknown_shards(
        file.name for file in state.files if file.name not in known and paths.owner(file.name) is not None
    )


def _pages(context: LakeContext, state: TableState) -> Iterator[Finding]:
    """P601 to P604: what the shards' own bytes say, page checksums among them, and the offset indexes of them."""
    from seqlake.shards.parquet import checking as parquet

    known = context.sidecar.find(state.files)
    for file in _in_files(state):
        kept = known[file.name].offsets(file.name) if file.name in known else None
        try:
            if shard_formats.name_of(file.name) != shard_formats.PARQUET:
                bare = bare_shard(context.store, file, storage=context.storage, index=None)
                yield from shard_formats.findings(bare, file.name)
                continue
            blob = LakeBlob(context.store, file.name, file.nbytes, storage=context.storage)
            for finding in parquet.check(blob, outside=kept):
                yield replace(finding, location=file.name)
        except (DamagedTableError, ShardChangedError, OSError):
            continue  # T501 and T502 say so

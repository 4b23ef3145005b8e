"""Vacuum: what no retained version names is removed, and transactions that died are given up."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from seqlake.errors import SeqlakeError, VersionNotFoundError
from seqlake.files.stores import list_without_links, refuse_links
from seqlake.tables.standalone.committing import all_or_nothing, begin, commit_version
from seqlake.tables.standalone.context import bare_shard
from seqlake.tables.standalone.publishing import move, recover
from seqlake.tables.standalone.records import VersionRecord
from seqlake.tables.standalone.state import logged_file
from seqlake.versions import markers, names
from seqlake.versions.format import writer_name
from seqlake.versions.indexes import ShardIndex
from seqlake.versions.markers import end
from seqlake.versions.references import own_texts
from seqlake.versions.small_files import Removed, in_parallel, own_sizes, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from seqlake.abilities import Need
    from seqlake.protocols import Store
    from seqlake.tables.standalone.log import Log
    from seqlake.tables.standalone.records import ShardEntry
    from seqlake.tables.standalone.state import State


def vacuum(log: Log, /, *, older_than: timedelta) -> Removed:
    """Give up transactions not heard of for so long, forget versions that were replaced before, and sweep.

    Args:
        log: The table's log.
        older_than: What was the newest version at any time since then stays readable.

    Returns:
        The paths that were removed.
    """
    transaction = begin(log).id
    limit = markers.now() - older_than
    with all_or_nothing(log, transaction):
        suspects = _suspects(log.store, limit, but=transaction)

        def propose(state: State, since: Sequence[VersionRecord]) -> VersionRecord:
            del since  # a vacuum follows anything
            return VersionRecord(
                version=state.version + 1,
                transaction=transaction,
                time=markers.now(),
                operation="collect",
                writer=writer_name(),
                rows=state.rows,
                aborted=tuple(_uncommitted(log, suspects, state)),
                oldest=_oldest(log, state, limit),
            )

        commit_version(log, transaction, parent=log.newest().version, propose=propose)
    recover(log, transaction, log.newest())
    removed = sweep(log)
    end(log.store, transaction)
    return removed


def would_remove(log: Log, /, *, older_than: timedelta) -> Removed:
    """What a vacuum would remove now; writes nothing."""
    state = log.newest()
    if state.version < 0:
        return Removed((), {})
    limit = markers.now() - older_than
    listing = _Listing.of(log.store)
    gone = set(_uncommitted(log, _suspects(log.store, limit, but=""), state))
    alive = {marker.transaction for marker in markers.read_all(log.store)} - gone
    oldest = _oldest(log, state, limit)
    superfluous = sorted(_superfluous(log, listing, alive, _Retained.of(log, oldest), moving=True))
    return Removed(superfluous, listing.sizes)


def _suspects(store: Store, limit: datetime, *, but: str) -> list[markers.Marker]:
    return [m for m in markers.read_all(store) if m.time < limit and m.transaction != but]


def _uncommitted(log: Log, suspects: Sequence[markers.Marker], state: State) -> list[str]:
    uncommitted = []
    for marker in suspects:
        since = log.records(max(marker.begin + 1, 0), state.version)
        if all(marker.transaction != record.transaction for record in since):
            uncommitted.append(marker.transaction)
    return uncommitted


def _oldest(log: Log, state: State, limit: datetime) -> int:
    """The version that was the newest at that moment; never one before those that are left."""
    try:
        return max(state.oldest, log.at_time(limit).version)
    except VersionNotFoundError:
        return state.oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What lay where, before markers and log were read."""

    names: Mapping[str, Sequence[str]]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, store: Store) -> _Listing:
        refuse_links(store, (*names.FOLDERS, names.COPIES))
        folders = (names.DATA, names.RETIRED, names.STAGED, names.INDEX, names.SIDE, names.MEDIA, names.CHECKPOINTS)
        sized = {folder: own_sizes(store, folder) for folder in folders}
        listed: dict[str, Sequence[str]] = {
            folder: [path[len(folder) + 1 :] for path in paths] for folder, paths in sized.items()
        }
        for folder in (names.FILES, names.COPIES):
            sized[folder] = dict(list_without_links(store, folder))
            listed[folder] = list(sized[folder])
        return cls(names=listed, sizes={path: size for paths in sized.values() for path, size in paths.items()})

    def __getitem__(self, folder: str) -> Sequence[str]:
        return self.names[folder]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Retained:
    """What versions from the oldest retained one on need, and those that have a name.

    Attributes:
        newest: The newest state.
        shards: All shards of those versions.
        sides: Names of their side shards.
    """

    newest: State
    shards: Mapping[str, ShardEntry]
    sides: frozenset[str]

    @classmethod
    def of(cls, log: Log, oldest: int | None = None) -> _Retained:
        newest = log.newest()
        first = log.at(newest.oldest if oldest is None else oldest)
        shards = dict(first.shards)
        sides = {side.name for beside in first.sides.values() for side in beside}
        for record in log.each(first.version + 1, newest.version):
            shards.update((entry.name, entry) for entry in record.add)
            sides.update(side.name for side in record.side)
        for number in newest.kept(first.version):
            with suppress(VersionNotFoundError):  # somebody took its name away meanwhile
                state = log.at(number)
                shards = {**state.shards, **shards}
                sides.update(side.name for beside in state.sides.values() for side in beside)
        return cls(newest=newest, shards=shards, sides=frozenset(sides))


def sweep(log: Log, /) -> Removed:
    """Remove what no retained version names and no marker protects; what it removed.

    Lists first, then markers, then the log: whatever a list shows has a marker or a record by then.
    """
    store = log.store
    listing = _Listing.of(store)
    alive = {marker.transaction for marker in markers.read_all(store)}
    retained = _Retained.of(log)
    _put_in_place(log, listing, retained)
    superfluous = sorted(_superfluous(log, listing, alive, retained, moving=False))
    remove(store, superfluous)
    return Removed(superfluous, listing.sizes)


def _put_in_place(log: Log, listing: _Listing, retained: _Retained) -> None:
    """Shards that an interrupted publish left behind: in first, then out, as in a publish."""
    store = log.store
    while True:
        newest = log.newest()
        staged = {names.of_bare(name) for name in listing[names.STAGED]} & newest.shards.keys()
        in_parallel(store, lambda name: move(store, names.staged(name), names.data(name)), sorted(staged))
        if staged:
            store.sync(names.DATA)
        late = [name for name in listing[names.DATA] if name in retained.shards and name not in newest.shards]
        in_parallel(store, lambda name: move(store, names.data(name), names.retired(name)), late)
        if late:
            store.sync(names.DATA)
        moved = staged | set(late)
        since = log.records(newest.version + 1, log.newest().version)
        if all(moved.isdisjoint(record.remove) for record in since):
            return


def _superfluous(log: Log, listing: _Listing, alive: set[str], retained: _Retained, *, moving: bool) -> Iterator[str]:
    """Paths of our form that nothing needs; `moving`: shards still in `data/` count as retired already."""

    def dead(transaction: str | None) -> bool:
        return transaction is not None and transaction not in alive

    ever = _Ever(log)
    for name in listing[names.DATA]:
        if name not in retained.shards and (dead(names.owner(name)) or (moving and name in ever)):
            yield names.data(name)
    for bare in listing[names.RETIRED]:
        name = names.of_bare(bare)
        owner = names.owner(name)
        if name not in retained.shards and (dead(owner) or (owner is None and name in ever)):
            yield names.retired(name)
    for bare in listing[names.STAGED]:
        ours = dead(names.staged_owner(bare)) and names.marker_owner(bare) is None
        if ours and names.of_bare(bare) not in retained.shards:
            yield f"{names.STAGED}/{bare}"
    for name in listing[names.SIDE]:
        if dead(names.side_owner(name)) and name not in retained.sides:
            yield f"{names.SIDE}/{name}"
    yield from _derived(log, listing, alive, retained)


def copied_files(log: Log, /) -> Iterator[tuple[str, int, Need]]:
    """(path, size, who needs it) of every file below `files/`, by path.

    `needed` by a version that is kept, `staged` by a transaction under way, `orphan` by nobody, so that a vacuum
    removes it. A `stranger` has a name that is not ours, and is never touched.
    """
    # Lists first, then markers, then the log: as a sweep does, and for its reasons.
    listed = list(list_without_links(log.store, names.FILES))
    alive = {marker.transaction for marker in markers.read_all(log.store)}
    needed = _named(log, _Retained.of(log))
    for path, size in listed:
        owner = names.copied_owner(path)
        if needed is not None and path in needed:
            yield path, size, "needed"
        elif owner is None:
            yield path, size, "stranger"
        elif owner in alive:
            yield path, size, "staged"
        else:
            yield path, size, "needed" if needed is None else "orphan"


def _named(log: Log, retained: _Retained) -> set[str] | None:
    """What retained shards name, every copied-in file among it; None where one cannot be asked: it may name any.

    From the index files; a shard whose row is gone, changed or without a checksum is read itself.
    """
    newest = retained.newest
    index, shards = ShardIndex(log.store), [logged_file(e, merged=newest.index) for e in retained.shards.values()]
    sound = index.find(shards)
    known = index.find(shards, unsealed=True)
    needed = {file.path for name, rows in known.items() for file in rows.files(name)}
    for shard in shards:
        if shard.name not in sound:
            try:
                needed |= own_texts(bare_shard(log.store, shard, version=newest.version))
            except (SeqlakeError, OSError):
                return None
    return needed


def _derived(log: Log, listing: _Listing, alive: set[str], retained: _Retained) -> Iterator[str]:
    """Index files, packet indexes, copied-in files and their training copies, checkpoints."""
    adders = {entry.transaction for entry in retained.shards.values()}
    needed = _named(log, retained)
    if needed is not None:
        owners = {names.copied_owner(path) for path in needed}
        yield from (path for path in listing[names.FILES] if names.is_dead_copy(path, needed=needed, alive=alive))
        keys = {names.copy_key(path) for path in needed}
        copies = listing[names.COPIES]
        yield from (path for path in copies if names.is_dead_training_copy(path, keys=keys, alive=alive))
        media = (f"{names.MEDIA}/{name}" for name in listing[names.MEDIA])
        yield from (path for path in media if names.is_dead_media(path, owners=owners, alive=alive))
    numbers = [number for number in log.checkpoint_numbers() if number <= log.newest().version]
    usable = next((number for number in reversed(numbers) if log.index_of_checkpoint(number) is not None), None)
    for number in numbers:
        if number != usable:
            yield names.checkpoint(number)
    kept = None if usable is None else log.index_of_checkpoint(usable)
    indexes = (f"{names.INDEX}/{name}" for name in listing[names.INDEX] if name != kept)
    yield from (path for path in indexes if names.is_dead_index(path, adders=adders, alive=alive))


class _Ever:
    """The names of all shards that the log ever had; it is read where a name of somebody else's is asked about."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @cached_property
    def _names(self) -> set[str]:
        log = self._log
        return {entry.name for record in log.each(0, log.newest().version) for entry in record.add}

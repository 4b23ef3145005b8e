"""Going back: a new version with the rows, schema and metadata of an old one; and names for versions.

The names stand in the log itself, so that a vacuum cannot miss one: see `docs/design/versions.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from seqlake.tables.standalone.changes import write_index
from seqlake.tables.standalone.committing import all_or_nothing, begin, commit_version
from seqlake.tables.standalone.conflicts import check_rollback
from seqlake.tables.standalone.context import placed_blob
from seqlake.tables.standalone.publishing import publish_or_warn
from seqlake.tables.standalone.records import ShardEntry, VersionRecord
from seqlake.tables.standalone.state import State, files_of, fingerprint, fold, logged_file
from seqlake.versions import markers, names
from seqlake.versions.format import TAGS, writer_name
from seqlake.versions.markers import end
from seqlake.versions.shard_formats import name_of
from seqlake.versions.tags import check_free, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.protocols import Store
    from seqlake.tables.standalone.context import LogContext
    from seqlake.tables.standalone.log import Log
    from seqlake.versions.state import SideEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a rollback changes: names that leave, and shards that return as new names."""

    remove: tuple[str, ...]
    returning: tuple[tuple[ShardEntry, ShardEntry], ...]  # (as it was, under its new name)
    side: tuple[SideEntry, ...]


def rollback(context: LogContext, version: int, /) -> VersionRecord:
    """Commit the rows, schema and metadata of an old version.

    A shard that the newest version lacks returns under a new name, as a second name for the same bytes: a slow
    publisher could destroy a name that returns.

    Raises:
        VersionNotFoundError: The version expired, or was never there.
        CommitConflictError: Anything but a vacuum came meanwhile.
    """
    log = context.log
    log.at(version)  # refuse before anything is written
    transaction = begin(log)
    store, parent = log.store, log.newest()
    with all_or_nothing(log, transaction.id):
        target = log.at(version)
        plan = _plan(transaction.id, parent, target)
        _bring_back(store, plan, version)
        files = files_of(target)
        known = context.index.find([files.named(old.name) for old, _ in plan.returning])
        rows = [
            replace(known[old.name].row(old.name), shard=new.name) for old, new in plan.returning if old.name in known
        ]
        write_index(store, transaction.id, rows)
        store.sync(names.STAGED, names.INDEX)

        def propose(state: State, since: Sequence[VersionRecord]) -> VersionRecord:
            check_rollback(version, state, since, path=log.root)
            if not state.is_readable(version):
                raise log.not_found(version, state)
            return _record(transaction.id, state, target, plan)

        record = commit_version(log, transaction.id, parent=parent.version, propose=propose)
    if publish_or_warn(log, transaction.id, first=record.version):
        end(store, transaction.id)
    return record


def _plan(transaction: str, newest: State, target: State) -> _Plan:
    """A shard that both have stays only if the old schema alone makes it what it was."""
    bare = VersionRecord(
        version=newest.version + 1,
        transaction=transaction,
        time=markers.now(),
        operation="rollback",
        writer="",
        rows=newest.rows,
        previous=newest.digest,
        schema=target.schema if target.schema != newest.schema else None,
    )
    after = fold(newest, [bare])
    stay = {
        name
        for name, entry in target.shards.items()
        if after.shards.get(name) == entry and after.sides.get(name, ()) == target.sides.get(name, ())
    }
    back = [entry for name, entry in target.shards.items() if name not in stay]
    returning = tuple(
        (entry, replace(entry, name=names.part(transaction, str(number), name_of(entry.name)), transaction=transaction))
        for number, entry in enumerate(back)
    )
    side = tuple(replace(side, of=new.name) for old, new in returning for side in target.sides.get(old.name, ()))
    return _Plan(remove=tuple(name for name in newest.shards if name not in stay), returning=returning, side=side)


def _bring_back(store: Store, plan: _Plan, version: int) -> None:
    for old, new in plan.returning:
        blob = placed_blob(store, logged_file(old), version=version)
        # It may be retired between finding and naming it; names only move forward, so the second look is the last.
        for last in (False, False, True):
            try:
                store.copy(blob.place, names.staged(new.name))
                break
            except FileNotFoundError:
                if last:
                    raise
                blob.look_again()


def _record(transaction: str, state: State, target: State, plan: _Plan) -> VersionRecord:
    return VersionRecord(
        version=state.version + 1,
        transaction=transaction,
        time=markers.now(),
        operation="rollback",
        writer=writer_name(),
        rows=target.rows,
        add=tuple(new for _, new in plan.returning),
        remove=plan.remove,
        schema=target.schema if target.schema != state.schema else None,
        mixtrain=target.mixtrain if fingerprint(target.mixtrain) != fingerprint(state.mixtrain) else None,
        side=plan.side,
    )


def tag(log: Log, name: str, version: int, /, *, move: bool) -> VersionRecord | None:
    """Give a version a name; None where it has it already.

    Raises:
        TagExistsError: Another version has it, and it was not to be moved.
        VersionNotFoundError: The version expired, or was never there.
    """

    def check(state: State) -> None:
        if not state.is_readable(version):
            raise log.not_found(version, state)
        check_free(state.tags, name, version, move=move, path=log.root)

    newest = log.newest()
    check(newest)  # refuse before anything is written
    return None if newest.tags.get(name) == version else _commit(log, name, version, check)


def untag(log: Log, name: str, /) -> VersionRecord:
    """Take a name away.

    Raises:
        VersionNotFoundError: No version has it.
    """

    def check(state: State) -> None:
        if name not in state.tags:
            raise unknown(state.tags, name, path=log.root)

    check(log.newest())
    return _commit(log, name, None, check)


def _commit(log: Log, name: str, version: int | None, check: Callable[[State], None]) -> VersionRecord:
    """The caller publishes the record, and ends its transaction."""
    transaction = begin(log).id
    with all_or_nothing(log, transaction):

        def propose(state: State, since: Sequence[VersionRecord]) -> VersionRecord:
            del since  # what is in the way, the state itself says
            check(state)
            return VersionRecord(
                version=state.version + 1,
                transaction=transaction,
                time=markers.now(),
                operation="tag",
                writer=writer_name(),
                rows=state.rows,
                tags={name: version},
                requires=(TAGS,),
            )

        return commit_version(log, transaction, parent=log.newest().version, propose=propose)

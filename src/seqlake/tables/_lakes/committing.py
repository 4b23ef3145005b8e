"""The commit of a lake context: checked against the newest version, made on top of exactly that, or tried again."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    VersionNotFoundError,
)
from seqlake.spec.schema import ID
from seqlake.tables._lakes import foreign, paths, staging, types
from seqlake.tables._lakes.engine import Added, LakeProposal, RivalError
from seqlake.versions import indexes, names
from seqlake.versions.format import refuse_strange_renames, refuse_unknown_operation
from seqlake.versions.markers import given_up
from seqlake.versions.names import of_key
from seqlake.versions.references import carried_files
from seqlake.versions.small_files import read
from seqlake.versions.state import FileList, TableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.protocols import Change, Copied, Transaction, Version, Written
    from seqlake.tables._lakes.context import LakeContext
    from seqlake.tables._lakes.staging import LakeStaging
    from seqlake.versions.state import TableState

ROUNDS = 200
SECONDS = 120.0
_LONGEST_WAIT = 1.0
_Made = TypeVar("_Made")


def rounds(root: str, /) -> Iterator[int]:
    """Numbers of tries with growing random waits between them, until there were enough.

    Raises:
        CommitConflictError: Rivals were faster every time.
    """
    deadline = time.monotonic() + SECONDS
    for turn in range(ROUNDS):
        yield turn
        if time.monotonic() > deadline:
            break
        time.sleep(random.random() * min(_LONGEST_WAIT, 0.005 * 2 ** min(turn, 20)))  # noqa: S311 - spreads rivals
    raise CommitConflictError(
        f"Not committed: other writers were faster {turn + 1} times, or for {SECONDS:.0f} s.",
        path=root,
        hint="Try again when fewer writers commit at once, or commit more rows at a time.",
    )


def commit(staged: LakeStaging, change: Change, transaction: Transaction, /) -> Version:
    """Make a change the next version; on an error nothing of it is left behind.

    Raises:
        CommitConflictError: What came since the parent is in the way, or rivals were faster every time.
    """
    try:
        version, state = _commit(staged, change, transaction)
    except CommitUnknownError:
        staged.in_doubt.add(transaction.id)  # only the lake knows, so nothing may be removed
        raise
    except BaseException:
        with suppress(Exception):  # the error under way says more
            staged.discard(transaction)
        raise
    # The commit stands, whatever a lake's client raises now; what is left undone costs speed only.
    with suppress(Exception):
        _after(staged.context, transaction, state)
    return version


def _commit(staged: LakeStaging, change: Change, transaction: Transaction) -> tuple[Version, TableState]:
    refuse_unknown_operation(change.operation)
    if change.side:
        raise ValueError("A lake has no columns beside a shard; write the shards anew.")
    context = staged.context
    parent = _parent(context, change, transaction)
    schema, mixtrain = _new_schema(context, change, parent)
    draft = LakeProposal(
        transaction=transaction,
        operation=change.operation,
        base=parent,
        add=[_added(one, one.location) for one in change.add],
        remove=_removed(change.remove, parent, parent, context.root),
        schema=schema,
        mixtrain=mixtrain,
        renamed=dict(change.renamed),
    )
    context.engine.check(draft)
    written = [staged.stage(transaction, one) for one in change.add]
    written = staging.put_in_place(context.engine, context.store, written)
    staging.sync(context.store, [file.path for one in written for file in one.files])
    draft = replace(draft, add=[_added(one, one.location) for one in written])
    _keep_index(staged, transaction, written, draft)
    packed = [(_as_file(one), one.ids) for one in written]

    def propose(newest: TableState) -> LakeProposal:
        _check_fence(context, transaction)
        removed = _removed(change.remove, parent, newest, context.root)
        if draft.schema is not None or draft.mixtrain is not None:
            _check_schema(parent, newest, context.root)
            _check_rewritten(draft, removed, newest, context.root)
        if draft.add and list(newest.partition_by) != list(parent.partition_by):
            raise _other_partitions(parent, newest, context.root)
        if packed and ID in newest.schema.names:
            leaving = [file.name for file in removed]
            context.ids.check(newest.files, parent.files, added=packed, removed=leaving)
        return replace(draft, base=newest, remove=removed)

    def make(newest: TableState) -> tuple[Version, TableState]:
        proposal = propose(newest)
        gone, come = sum(file.live for file in proposal.remove), sum(one.rows for one in proposal.add)
        version = replace(context.engine.commit(proposal), rows=newest.version.rows - gone + come)
        left = {file.name for file in proposal.remove}
        files = [*(file for file in newest.files if file.name not in left), *map(_as_file, written)]
        return version, replace(newest, version=version, files=FileList.of(files))

    return attempt(context, make)


def _parent(context: LakeContext, change: Change, transaction: Transaction) -> TableState:
    """What the change was made on; rows that are only added fit the newest version as well, if that expired."""
    try:
        return context.state(transaction.parent)
    except VersionNotFoundError as error:
        if not change.remove and change.schema is None:
            return context.state()
        raise CommitConflictError(
            f"Not committed: version {transaction.parent.id}, which the change was made on, expired meanwhile.",
            path=context.root,
            hint="Open the newest version and make the change again.",
        ) from error


def attempt(context: LakeContext, make: Callable[[TableState], _Made], /) -> _Made:
    """Make a commit on the newest version, anew whenever a rival was faster.

    Args:
        context: The table.
        make: Checks and commits on top of exactly this version; RivalError when it is not the newest any more.

    Raises:
        CommitConflictError: Rivals were faster every time.
    """
    for _ in rounds(context.root):
        try:
            return make(context.state())
        except RivalError:
            continue
    raise AssertionError("the last round raises")


def rollback(context: LakeContext, version: int | str, /) -> Version:
    """A new version with the rows of an old one; anything that came meanwhile is a conflict."""
    target = context.state(version)  # refuses before anything is written
    base = context.state()
    try:
        committed = context.engine.rollback(target.version.id, base=base)
    except RivalError as error:
        raise CommitConflictError(
            f"Not committed: the table was to go back from version {base.version.id} to {version}, but "
            "another commit came meanwhile.",
            path=context.root,
            hint="Look at the new versions, then roll back again.",
        ) from error
    return replace(committed, rows=target.version.rows)


def _added(written: Written, path: str) -> Added:
    return Added(
        path=path,
        rows=written.rows,
        nbytes=written.nbytes,
        partition=dict(written.partition),
        statistics=dict(written.statistics),
    )


def _as_file(written: Written) -> TableFile:
    return TableFile(name=written.location, rows=written.rows, nbytes=written.nbytes, constants=dict(written.partition))


def _new_schema(context: LakeContext, change: Change, parent: TableState) -> tuple[Any, str | None]:
    if change.schema is None:
        return None, None
    schema = context.engine.lake_schema(change.schema)
    refuse_strange_renames(change.renamed, parent.schema.names, schema.names)
    mixtrain = types.encode_metadata(change.schema)
    same = types.encode_metadata(types.as_schema(parent.schema, parent.mixtrain, path=context.root)) == mixtrain
    if change.operation == "metadata":  # a table of another client becomes a dataset even if no column has a type
        return None, None if same and parent.mixtrain else mixtrain
    return (None if schema.equals(parent.schema) and not change.renamed else schema), (None if same else mixtrain)


def _removed(keys: Sequence[str], parent: TableState, newest: TableState, root: str) -> list[TableFile]:
    """The files that leave, as they are in the newest version; they must be what they were at the parent."""
    before = {file.name: file for file in parent.files}
    now = {file.name: file for file in newest.files}
    wanted = list(dict.fromkeys(of_key(key) for key in keys))
    changed = [p for p in wanted if p not in now or p not in before or now[p].identity != before[p].identity]
    if changed:
        raise CommitConflictError(
            f"Not committed: version {newest.version.id} ({newest.version.operation}) or one before it "
            f"replaced, removed or deleted rows of {len(changed)} of the shards that this change is about "
            f"({', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}).",
            path=root,
            hint="Open the newest version and make the change again.",
        )
    return [now[path] for path in wanted]


def _check_schema(parent: TableState, newest: TableState, root: str) -> None:
    if newest.mixtrain != parent.mixtrain or not newest.schema.equals(parent.schema):
        error = CommitConflictError(
            f"Not committed: a version up to {newest.version.id} changed the schema or the metadata meanwhile.",
            path=root,
            hint="Make the change again on the newest version.",
        )
        error.replay = True
        raise error


def _check_rewritten(draft: LakeProposal, removed: Sequence[TableFile], newest: TableState, root: str) -> None:
    """Refuse cells of all rows in another form, or of another meaning, where a rival added rows of the old one."""
    names_now = draft.base.schema.names if draft.schema is None else draft.schema.names
    same = not draft.renamed and sorted(names_now) == sorted(draft.base.schema.names)
    if same and removed and len(removed) == len(draft.base.files) and len(newest.files) > len(removed):
        error = CommitConflictError(
            f"Not committed: a version up to {newest.version.id} added rows while all others were turned.",
            path=root,
            hint="Make the change again on the newest version.",
        )
        error.replay = True
        raise error


def _other_partitions(parent: TableState, newest: TableState, root: str) -> CommitConflictError:
    return CommitConflictError(
        f"Not committed: the shards were written for a table that is partitioned by "
        f"{', '.join(parent.partition_by) or 'nothing'}, and in version {newest.version.id} it is by "
        f"{', '.join(newest.partition_by) or 'nothing'}.",
        path=root,
        hint="Open the newest version and write the rows again.",
    )


def _check_fence(context: LakeContext, transaction: Transaction) -> None:
    """A transaction whose marker is gone was given up by a vacuum, and what it staged with it."""
    if read(context.store, names.marker(transaction.id)) is None:
        raise given_up(transaction.id, "a vacuum", path=context.root)


def _keep_index(staged: LakeStaging, transaction: Transaction, written: Sequence[Written], draft: LakeProposal) -> None:
    carried = _carried(staged.context, written, draft)
    rows = [
        indexes.IndexRow.of(
            one.location, one, carried=carried.get(one.location, ()), texts=staged.texts_of(one.location)
        )
        for one in written
    ]
    staged.context.sidecar.write(transaction.id, rows)


def _carried(context: LakeContext, written: Sequence[Written], draft: LakeProposal) -> Mapping[str, list[Copied]]:
    """New shard -> the copied-in files of the shards that leave which its rows still name."""
    arrow = draft.schema if draft.schema is not None else draft.base.schema
    schema = types.as_schema(arrow, draft.mixtrain or draft.base.mixtrain, path=context.root)
    return carried_files(context, draft.remove, map(_as_file, written), schema=schema)


def _after(context: LakeContext, transaction: Transaction, state: TableState) -> None:
    """What a commit leaves to do: its marker goes, and many small index files become one."""
    store = context.store
    if any(paths.owner(file.name) == transaction.id for file in state.files) and context.sidecar.is_due(state.files):
        foreign.merge(context, state, transaction.id)
    with suppress(FileNotFoundError):
        store.delete([names.marker(transaction.id)])

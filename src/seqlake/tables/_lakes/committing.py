"""The commit of a lake table: checked against the newest version, made on top of exactly that, or tried again."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from seqlake.tables._lakes import foreign, paths, staging, types
from seqlake.tables._lakes.engine import Added, LakeFile, Proposal, RivalError
from seqlake.tables._lakes.shards import logical_shard
from seqlake.versions import indexes, names
from seqlake.versions.format import OPERATIONS
from seqlake.versions.names import of_key
from seqlake.versions.references import file_columns
from seqlake.versions.small_files import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.protocols import Change, Copied, Transaction, Version, Written
    from seqlake.tables._lakes.engine import LakeState
    from seqlake.tables._lakes.table import LakeTable

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


def commit(table: LakeTable, change: Change, transaction: Transaction, /) -> Version:
    """Make a change the next version; on an error nothing of it is left behind.

    Raises:
        CommitConflictError: What came since the parent is in the way, or rivals were faster every time.
    """
    try:
        version, made = _commit(table, change, transaction)
    except CommitUnknownError:
        table.in_doubt.add(transaction.id)  # only the lake knows, so nothing may be removed
        raise
    except BaseException:
        with suppress(Exception):  # the error under way says more
            table.discard(transaction)
        raise
    # The commit stands, whatever a lake's client raises now; what is left undone costs speed only.
    with suppress(Exception):
        _after(table, transaction, made)
    return version


def _commit(table: LakeTable, change: Change, transaction: Transaction) -> tuple[Version, LakeState]:
    if change.operation not in OPERATIONS:
        raise ValueError(f"An operation is one of {', '.join(OPERATIONS)}; found {change.operation!r}.")
    if change.side:
        raise ValueError("A lake has no columns beside a shard; write the shards anew.")
    parent = _parent(table, change, transaction)
    schema, mixtrain = _new_schema(table, change, parent)
    draft = Proposal(
        transaction=transaction,
        operation=change.operation,
        base=parent,
        add=[_added(one, one.location) for one in change.add],
        remove=_removed(change.remove, parent, parent, table.root),
        schema=schema,
        mixtrain=mixtrain,
        renamed=dict(change.renamed),
    )
    table.engine.check(draft)
    written = [table.stage(transaction, one) for one in change.add]
    written = staging.put_in_place(table.engine, table.store, written)
    staging.sync(table.store, [file.path for one in written for file in one.files])
    draft = replace(draft, add=[_added(one, one.location) for one in written])
    _keep_index(table, transaction, written, draft)
    packed = [(_as_file(one), one.ids) for one in written]

    def propose(newest: LakeState) -> Proposal:
        _check_fence(table, transaction)
        removed = _removed(change.remove, parent, newest, table.root)
        if draft.schema is not None or draft.mixtrain is not None:
            _check_schema(parent, newest, table.root)
        if draft.add and list(newest.partition_by) != list(parent.partition_by):
            raise _other_partitions(parent, newest, table.root)
        gone = [file.path for file in removed]
        table.shelf.ids.check(newest, parent, added=packed, removed=gone, root=table.root)
        return replace(draft, base=newest, remove=removed)

    def make(newest: LakeState) -> tuple[Version, LakeState]:
        proposal = propose(newest)
        gone, come = sum(file.live for file in proposal.remove), sum(one.rows for one in proposal.add)
        version = replace(table.engine.commit(proposal), rows=newest.version.rows - gone + come)
        left = {file.path for file in proposal.remove}
        files = [*(file for file in newest.files if file.path not in left), *map(_as_file, written)]
        return version, replace(newest, version=version, files=files)

    return attempt(table, make)


def _parent(table: LakeTable, change: Change, transaction: Transaction) -> LakeState:
    """What the change was made on; rows that are only added fit the newest version as well, if that expired."""
    try:
        return table.state(transaction.parent)
    except VersionNotFoundError as error:
        if not change.remove and change.schema is None:
            return table.state()
        raise CommitConflictError(
            f"Not committed: version {transaction.parent.id}, which the change was made on, expired meanwhile.",
            path=table.root,
            hint="Open the newest version and make the change again.",
        ) from error


def attempt(table: LakeTable, make: Callable[[LakeState], _Made], /) -> _Made:
    """Make a commit on the newest version, anew whenever a rival was faster.

    Args:
        table: The table.
        make: Checks and commits on top of exactly this version; RivalError when it is not the newest any more.

    Raises:
        CommitConflictError: Rivals were faster every time.
    """
    for _ in rounds(table.root):
        try:
            return make(table.state())
        except RivalError:
            continue
    raise AssertionError("the last round raises")


def rollback(table: LakeTable, version: int | str, /) -> Version:
    """A new version with the rows of an old one; anything that came meanwhile is a conflict."""
    target = table.state(version)  # refuses before anything is written
    base = table.state()
    try:
        made = table.engine.rollback(target.version.id, base=base)
    except RivalError as error:
        raise CommitConflictError(
            f"Not committed: the table was to go back from version {base.version.id} to {version}, but "
            "another commit came meanwhile.",
            path=table.root,
            hint="Look at the new versions, then roll back again.",
        ) from error
    return replace(made, rows=target.version.rows)


def _added(written: Written, path: str) -> Added:
    return Added(
        path=path,
        rows=written.rows,
        nbytes=written.nbytes,
        partition=dict(written.partition),
        statistics=dict(written.statistics),
    )


def _as_file(written: Written) -> LakeFile:
    return LakeFile(path=written.location, rows=written.rows, nbytes=written.nbytes, constants=dict(written.partition))


def _new_schema(table: LakeTable, change: Change, parent: LakeState) -> tuple[Any, str | None]:
    if change.schema is None:
        return None, None
    schema = types.lake_schema(change.schema, table.engine.lake_type)
    names_before = parent.schema.names
    for old, new in change.renamed.items():
        if old not in names_before or new not in schema.names:
            raise SchemaMismatchError(
                f"Expected to rename a column of the table to one of the new schema, found {old!r} to {new!r}."
            )
    mixtrain = types.encode_metadata(change.schema)
    same = types.encode_metadata(types.as_schema(parent.schema, parent.mixtrain, path=table.root)) == mixtrain
    return (None if schema.equals(parent.schema) and not change.renamed else schema), (None if same else mixtrain)


def _removed(keys: Sequence[str], parent: LakeState, newest: LakeState, root: str) -> list[LakeFile]:
    """The files that leave, as they are in the newest version; they must be what they were at the parent."""
    before = {file.path: file for file in parent.files}
    now = {file.path: file for file in newest.files}
    wanted = list(dict.fromkeys(of_key(key) for key in keys))
    changed = [p for p in wanted if p not in now or p not in before or now[p].told != before[p].told]
    if changed:
        raise CommitConflictError(
            f"Not committed: version {newest.version.id} ({newest.version.operation}) or one before it "
            f"replaced, removed or deleted rows of {len(changed)} of the shards that this change is about "
            f"({', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}).",
            path=root,
            hint="Open the newest version and make the change again.",
        )
    return [now[path] for path in wanted]


def _check_schema(parent: LakeState, newest: LakeState, root: str) -> None:
    if newest.mixtrain != parent.mixtrain or not newest.schema.equals(parent.schema):
        error = CommitConflictError(
            f"Not committed: a version up to {newest.version.id} changed the schema or the metadata meanwhile.",
            path=root,
            hint="Make the change again on the newest version.",
        )
        error.replay = True
        raise error


def _other_partitions(parent: LakeState, newest: LakeState, root: str) -> CommitConflictError:
    return CommitConflictError(
        f"Not committed: the shards were written for a table that is partitioned by "
        f"{', '.join(parent.partition_by) or 'nothing'}, and in version {newest.version.id} it is by "
        f"{', '.join(newest.partition_by) or 'nothing'}.",
        path=root,
        hint="Open the newest version and write the rows again.",
    )


def _check_fence(table: LakeTable, transaction: Transaction) -> None:
    """A transaction whose marker is gone was given up by a vacuum, and what it staged with it."""
    if read(table.store, names.marker(transaction.id)) is None:
        raise CommitConflictError(
            f"Not committed: a vacuum gave transaction {transaction.id} up, because it had not been heard "
            "of for longer than the limit of the vacuum.",
            path=table.root,
            hint="Write the rows again; a writer that lives longer must call `renew` at least hourly.",
        )


def _keep_index(table: LakeTable, transaction: Transaction, written: Sequence[Written], draft: Proposal) -> None:
    carried = _carried(table, written, draft)
    rows = [
        indexes.IndexRow(
            shard=one.location,
            rows=one.rows,
            nbytes=one.nbytes,
            ids=one.ids,
            index=one.index,
            files=tuple({f.path: f for f in (*carried.get(one.location, ()), *one.files)}.values()),
            references=tuple(one.references),
            texts=table.texts_of(one.location),
        )
        for one in written
    ]
    table.shelf.sidecar.write(transaction.id, rows)


def _carried(table: LakeTable, written: Sequence[Written], draft: Proposal) -> Mapping[str, list[Copied]]:
    """New shard -> the copied-in files of the shards that leave which its rows still name."""
    known = table.shelf.sidecar.find(draft.remove)
    files: dict[str, Copied] = {file.path: file for path, index in known.items() for file in index.files(path)}
    for leaves in draft.remove:
        if leaves.path not in known:  # another client wrote it: only its rows tell which files they name
            files |= {file.path: file for file in foreign.named_files(table.shelf, leaves)}
    if not files:
        return {}
    arrow = draft.schema if draft.schema is not None else draft.base.schema
    schema = types.as_schema(arrow, draft.mixtrain or draft.base.mixtrain, path=table.root)
    carried = {}
    for one in written:
        shard = logical_shard(table.store, _as_file(one), schema)
        texts = file_columns(shard, bytes(schema.arrow.serialize()))
        carried[one.location] = [files[text] for text in sorted(texts & files.keys())]
    return carried


def _after(table: LakeTable, transaction: Transaction, made: LakeState) -> None:
    """What a commit leaves to do: its marker goes, and many small index files become one."""
    store = table.store
    if any(paths.owner(file.path) == transaction.id for file in made.files) and table.shelf.sidecar.is_due(made.files):
        foreign.merge(table.shelf, made, transaction.id)
    with suppress(FileNotFoundError):
        store.delete([names.marker(transaction.id)])

"""Which commits may follow which: section by section the table of `docs/reference/commits.md`, pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError
from seqlake.versions.markers import given_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.tables.standalone.records import VersionRecord
    from seqlake.tables.standalone.state import State


def check_fence(transaction: str, records: Iterable[VersionRecord], /, *, path: str) -> None:
    """Refuse a transaction that `vacuum` gave up for dead.

    Raises:
        CommitConflictError: One of these versions aborts it.
    """
    for record in records:
        if transaction in record.aborted:
            raise given_up(transaction, f"version {record.version} (collect)", path=path)


def check_change(
    state: State, records: Sequence[VersionRecord], /, *, needed: Iterable[str], changes_schema: bool, path: str
) -> None:
    """Refuse a change that what came since its parent has made impossible.

    Args:
        state: The newest version.
        records: What came since the parent.
        needed: The shards that the change removes or puts columns beside.
        changes_schema: Whether it changes the schema or the metadata.
        path: The table's location, for messages.

    Raises:
        CommitConflictError: Names version, operation and shards in the way. Its `replay` is set where the same
            change can simply be made anew on the newest state.
    """
    gone = [name for name in needed if name not in state.shards]
    if gone:
        culprits = [record for record in records if set(gone) & set(record.remove)]
        raise CommitConflictError(
            f"Not committed: {_said(culprits or records)} replaced or removed {len(gone)} of the shards that "
            f"this change is about ({', '.join(gone[:3])}{', ...' if len(gone) > 3 else ''}).",
            path=path,
            hint="Open the newest version and make the change again.",
        )
    if changes_schema:
        rivals = [record for record in records if record.schema is not None or record.mixtrain is not None]
        if rivals:
            error = CommitConflictError(
                f"Not committed: {_said(rivals)} changed the schema or the metadata meanwhile.",
                path=path,
                hint="Make the change again on the newest version.",
            )
            error.replay = True
            raise error


def check_rewritten(state: State, records: Sequence[VersionRecord], /, *, removed: Iterable[str], path: str) -> None:
    """Refuse a change that turned the cells of every row where a rival added rows with cells of the old kind.

    Raises:
        CommitConflictError: Its `replay` is set: the same change can be made anew on the newest state.
    """
    if state.shards.keys() - set(removed):
        error = CommitConflictError(
            f"Not committed: {_said(records)} added rows while the cells of all others were changed.",
            path=path,
            hint="Make the change again on the newest version.",
        )
        error.replay = True
        raise error


def check_sides(
    records: Sequence[VersionRecord], /, *, removed: Iterable[str], beside: Iterable[tuple[str, str]], path: str
) -> None:
    """Refuse a change that would undo cells which a rival put beside a shard since the parent.

    Args:
        records: What came since the parent.
        removed: The shards that leave: what was beside them when they were read is in the new ones.
        beside: (shard, column) of the side shards of the change, which hold whole columns.
        path: The table's location, for messages.

    Raises:
        CommitConflictError: Names version and operation in the way.
    """
    gone, mine = set(removed), set(beside)
    for record in records:
        for side in record.side:
            if side.of in gone or any((side.of, column) in mine for column in side.columns):
                raise CommitConflictError(
                    f"Not committed: {_said([record])} changed {', '.join(side.columns)} of the same shard "
                    f"({side.of}) meanwhile.",
                    path=path,
                    hint="Open the newest version and make the change again.",
                )


def check_fold(records: Sequence[VersionRecord], /, *, path: str) -> None:
    """Refuse a fold when the columns changed since its parent: its files hold those that were.

    Raises:
        CommitConflictError: Names version and operation in the way.
    """
    rivals = [record for record in records if record.schema is not None]
    if rivals:
        raise CommitConflictError(
            f"Not committed: {_said(rivals)} changed the columns while the shards were folded.",
            path=path,
            hint="Fold again.",
        )


def check_rollback(target: int, state: State, records: Sequence[VersionRecord], /, *, path: str) -> None:
    """Refuse a rollback when anything but a vacuum or a tag came since its parent.

    Raises:
        CommitConflictError: Names what came.
    """
    rivals = [record for record in records if record.operation not in ("collect", "tag")]
    if rivals:
        raise CommitConflictError(
            f"Not committed: the table was to go back from version {rivals[0].version - 1} to {target}, but "
            f"{_said(rivals)} came meanwhile (the newest is {state.version}).",
            path=path,
            hint="Look at the new versions, then roll back again.",
        )


def _said(records: Sequence[VersionRecord]) -> str:
    if not records:
        return "an earlier version"
    listed = ", ".join(f"version {record.version} ({record.operation})" for record in records[:3])
    return listed if len(records) <= 3 else f"{listed} and {len(records) - 3} more"

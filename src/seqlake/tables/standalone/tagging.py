"""Names for versions, in the log itself, so that a vacuum cannot miss one: see `docs/design/versions.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.tables.standalone.committing import all_or_nothing, begin, commit_version
from seqlake.tables.standalone.records import VersionRecord
from seqlake.versions import markers
from seqlake.versions.format import TAGS, writer_name
from seqlake.versions.tags import check_free, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.tables.standalone.log import Log
    from seqlake.tables.standalone.state import State


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

"""Names for versions: Iceberg's own tags, which every client reads and every expiry honours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import CommitConflictError, TagExistsError, VersionNotFoundError
from seqlake.tables.iceberg.history import find
from seqlake.tables.iceberg.undoing import undone
from seqlake.versions.tags import check_free, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update.snapshot import ManageSnapshots

    from seqlake.tables.iceberg.opening import OpenTable

_TRIES = 20


class OwnTags:
    """The tags of an Iceberg table.

    Args:
        engine: The table.
    """

    def __init__(self, engine: OpenTable, /) -> None:
        self._engine = engine

    def tags(self) -> dict[str, int | str]:
        """Name -> snapshot, by name."""
        return _tags(self._engine.load().metadata)

    def find(self, name: str, /) -> int | str | None:  # noqa: ARG002 - as others of its kind
        """None: the table's history knows its tags, and branches besides."""
        return None

    def put(self, name: str, version: int | str, /, *, move: bool) -> None:
        """Give a snapshot a name, on top of whatever others commit meanwhile."""

        def change(table: Table) -> ManageSnapshots | None:
            snapshot = find(table.metadata, version)
            root = table.metadata.location
            ref = table.metadata.refs.get(name)
            if ref is not None and name not in _tags(table.metadata):
                raise TagExistsError(
                    f"{root}: {name!r} is a branch of the table.", path=root, hint="Take another name."
                )
            if snapshot is None:
                raise VersionNotFoundError(
                    f"{root} has no snapshot yet, so there is nothing to name.", path=root, hint="Append rows first."
                )
            check_free(_tags(table.metadata), name, snapshot.snapshot_id, move=move, path=root)
            if ref is not None and ref.snapshot_id == snapshot.snapshot_id:
                return None
            return table.manage_snapshots().create_tag(snapshot.snapshot_id, name)

        self._commit(change)

    def remove(self, name: str, /) -> None:
        """Take a name away."""

        def change(table: Table) -> ManageSnapshots:
            if name not in _tags(table.metadata):
                raise unknown(_tags(table.metadata), name, path=table.metadata.location)
            return table.manage_snapshots().remove_tag(name)

        self._commit(change)

    def _commit(self, change: Callable[[Table], ManageSnapshots | None]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_TRIES):
            pending = change(self._engine.load())
            if pending is None:
                return
            try:
                with undone(self._engine, asked=True):
                    pending.commit()
            except CommitFailedException:
                continue
            return
        raise CommitConflictError(
            f"Not committed: other writers were faster {_TRIES} times.",
            path=self._engine.root,
            hint="Try again when fewer write at once.",
        )


def _tags(metadata: TableMetadata) -> dict[str, int | str]:
    from pyiceberg.table.refs import SnapshotRefType

    refs = sorted(metadata.refs.items())
    return {name: ref.snapshot_id for name, ref in refs if ref.snapshot_ref_type == SnapshotRefType.TAG}

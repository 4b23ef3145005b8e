"""The three kinds of reader: manifest, glob, pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.errors import VersionNotFoundError
from seqlake.testing.oracle.reading import Bytes, OracleError, demand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.protocols import Store
    from seqlake.tables.standalone import StandaloneSnapshot


def read_ids(snapshot: StandaloneSnapshot, /) -> list[str]:
    """All ids of a snapshot, through the table: the manifest reader."""
    found: list[str] = []
    for shard in snapshot.shards():
        reader = shard.open()
        try:
            for batch in reader.batches(["sequence_id"]):
                found += batch.column(0).to_pylist()
        finally:
            reader.close()
    return found


def glob_ids(store: Store, /) -> list[str]:
    """All ids of `data/*.parquet`, as a tool that knows nothing of us reads them: the glob reader.

    A file may retire between listing and opening: then it lists again.
    """
    while True:
        try:
            found = Bytes(store)
            return [
                one
                for name in sorted(found.in_data())
                if name.endswith(".parquet")
                for one in found.ids(f"data/{name}")
            ]
        except (FileNotFoundError, OSError):
            continue


def check_pinned(snapshot: StandaloneSnapshot, ids: Iterable[str], /) -> None:
    """A snapshot that was opened earlier gives its rows, or its version expired: the pinned reader."""
    try:
        found = sorted(read_ids(snapshot))
    except VersionNotFoundError:
        oldest = Bytes(snapshot.store).oldest
        demand(
            int(snapshot.version.id) < oldest, f"3: pinned version {snapshot.version.id} is gone, oldest is {oldest}"
        )
        return
    demand(found == sorted(ids), f"3: pinned version {snapshot.version.id} gives other rows than it had")


class ReadOnly:
    """A store that refuses to write: shows that reading writes nothing.

    Args:
        store: What is read.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.root = store.root
        self.blob = store.blob
        self.list = store.list

    def _refuse(self, *args: object, **_: object) -> Any:
        raise OracleError(f"6: reading writes: {args}")

    put = local = copy = sync = move = delete = _refuse

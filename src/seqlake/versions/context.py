"""What is known of one table in a process, shared by its snapshots: its store, index files, ids, packet indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from seqlake.protocols import Shard, Store
    from seqlake.spec.schema import Schema
    from seqlake.versions.ids import Identity
    from seqlake.versions.indexes import IndexFiles, KeptPackets
    from seqlake.versions.state import TableFile, TableState


class TableContext(Protocol):
    """How the shards of one kind of table are opened and looked up; picklable, and read anew in another process."""

    @property
    def root(self) -> str:
        """What relative file references resolve against."""

    @property
    def store(self) -> Store:
        """The store of the root."""

    @property
    def index(self) -> IndexFiles:
        """What is known of shards without opening them."""

    @property
    def ids(self) -> Identity:
        """The ids of all its shards."""

    @property
    def packets(self) -> KeptPackets:
        """Packet indexes of its videos."""

    def schema(self, state: TableState, /) -> Schema:
        """What a dataset shows of a version's columns."""

    def fingerprint(self, state: TableState, schema: Schema, /) -> str:
        """32 hex digits from shards, schema and metadata of a version; not from where the table lies."""

    def bare(self, file: TableFile, /) -> Shard:
        """A shard with its own columns and all its rows."""

    def logical(
        self,
        file: TableFile,
        schema: Schema,
        /,
        *,
        version: int | str | None = None,
        index: bytes | None = None,
        trusted: bool = False,
    ) -> Shard:
        """A shard as a version shows it.

        Args:
            file: The shard.
            schema: The version's columns.
            version: Its id, for messages; None for the newest.
            index: An offset index that is kept outside the file.
            trusted: Whether what the index files say of it may be used without asking the file.
        """

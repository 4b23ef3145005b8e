"""What a lake must be able to do, and the values that describe one of its versions and one commit to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from seqlake.tables._lakes import types
from seqlake.tables._lakes.naming import TagFiles, VersionNames
from seqlake.tables._lakes.paths import bare_shard
from seqlake.tables._lakes.sidecar import Sidecar
from seqlake.versions.shard_formats import PARQUET

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from seqlake.protocols import Shard, Store, Transaction, Version
    from seqlake.spec.schema import Schema
    from seqlake.versions.state import TableFile, TableState


class RivalError(Exception):
    """Internal: another commit came between, nothing was made; the change is tried again on the newest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A data file that a commit adds; it lies at its path already, durable.

    Attributes:
        path: Below the root.
        rows: Its rows.
        nbytes: Its size.
        partition: The values of `partition_by` in all its rows.
        statistics: Scalar column -> (min, max, nulls).
    """

    path: str
    rows: int
    nbytes: int
    partition: Mapping[str, object] = field(default_factory=dict)
    statistics: Mapping[str, tuple[object, object, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeProposal:
    """One commit: exactly on top of `base`, or not at all.

    Attributes:
        transaction: Whose; its id stands in the names of the added files.
        operation: `append`, `rewrite`, `delete`, `upsert`, `evolve`, `metadata`, `adopt`.
        base: The newest version, which everything was checked against.
        add: New files.
        remove: Files of `base` that leave.
        schema: The new columns in the lake's types, in order; None leaves them.
        mixtrain: The new property; None leaves it.
        renamed: Old column name -> new one.
    """

    transaction: Transaction
    operation: str
    base: TableState
    add: Sequence[Added] = ()
    remove: Sequence[TableFile] = ()
    schema: pa.Schema | None = None
    mixtrain: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def replaces_all(self) -> bool:
        """Whether no file of `base` stays, so that no old cell is read under the new columns."""
        return len(self.remove) == len(self.base.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What an expiry removed (or would), and what is left.

    Attributes:
        removed: Paths below the root of the data files that no readable version names any more, with their sizes.
        retained: Every file of every version that can still be read, as in `TableFile.path`.
    """

    removed: Mapping[str, int] = field(default_factory=dict)
    retained: Sequence[TableFile] = ()


class LakeEngine(Protocol):
    """One table of one kind of lake: which files a version has, and one commit; picklable.

    A lake's engine inherits it, and so the answers that most lakes give.
    """

    swept: frozenset[str] = frozenset()
    """Endings of names that the lake's own cleanup removes wherever they lie, `_seqlake/` included."""

    shard_format: str = PARQUET
    """Of its data files."""

    fixed_size_inner: bool = False
    """Whether its files say that inner lists have a fixed size; some clients of most lakes could not read them."""

    @property
    def label(self) -> str:
        """What tells the sidecar of this table from those of other tables of the same root."""
        return ""

    @property
    def named_by(self) -> str | None:
        """Where the root was read, if nobody gave it: in a catalog that may be somebody else's."""
        return None

    def sidecar(self, store: Store, /) -> Sidecar:
        """What is known of its shards; picklable as a bound method."""
        return Sidecar(store, label=self.label)

    def names(self, store: Store, /) -> VersionNames:
        """Where the names of versions are kept: beside the table, or in a lake that has some of its own."""
        return TagFiles(store, label=self.label, confirm=self.confirm)

    def partition_values(self, batch: pa.RecordBatch, by: Sequence[str], /) -> Iterable[tuple[object, ...]]:
        """The partition of each row; `by`: the columns. Some lakes compute it."""
        return zip(*(batch.column(name).to_pylist() for name in by), strict=True)

    def field_ids(self, schema: pa.Schema, /) -> Mapping[str, int]:  # noqa: ARG002 - for lakes that number them
        """Dotted path -> the number that a file with these columns carries; empty where the lake goes by names."""
        return {}

    @property
    def root(self) -> str:
        """The table's folder as an absolute path or URI: what relative references resolve against."""

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Obstore's options for the files; never printed."""

    def state(self, version: int | str | datetime | None = None, /) -> TableState:
        """A version by id or time; None: the newest, read anew. VersionNotFoundError."""

    def versions(self) -> Sequence[Version]:
        """Those that can be read, oldest first."""

    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """The nearest type that the lake has; SchemaMismatchError. `types.lake_type` does most of it."""

    def lake_schema(self, schema: Schema, /) -> pa.Schema:
        """The columns of a dataset in the lake's types; SchemaMismatchError."""
        return types.lake_schema(schema, self.lake_type)

    def shard(self, store: Store, file: TableFile, /, *, index: bytes | None) -> Shard:
        """A file with its own columns and all its rows; `index` is kept outside the file."""
        return bare_shard(store, file, storage=self.storage, index=index)

    def data_path(self, name: str, partition: Mapping[str, object], /) -> str:
        """Where, below the root, a data file of this name is put."""

    def check(self, proposal: LakeProposal, /) -> None:
        """Refuse what this lake cannot do (SchemaMismatchError and the like), before anything is staged."""

    def commit(self, proposal: LakeProposal, /) -> Version:
        """All of it on top of `proposal.base`, else RivalError; CommitUnknownError where there was no answer."""

    def rollback(self, version: int | str, /, *, base: TableState) -> Version:
        """A new version on top of `base` with the rows of an old one, else RivalError."""

    def confirm(self, version: int | str, /) -> None:
        """VersionNotFoundError where a version expired: waits for, or sees, an expiry that did not see its name."""
        self.state(version)

    def expire(
        self, limit: datetime, /, *, dry_run: bool, keep: Callable[[], Collection[int | str]] = tuple
    ) -> Expired:
        """Forget versions that were replaced before `limit`, and remove the data files that only they named.

        Those that `keep` gives stay; it is asked anew whenever that may have changed.
        """

    def drop(self) -> None:
        """Remove the table and its data files: it was just made, and what was to fill it failed."""

"""What a lake must be able to do, and the values that describe one of its versions and one commit to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np

from seqlake.shards.columns import Columns, Constant, Stored
from seqlake.shards.memory import ArrowShard
from seqlake.tables._lakes.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from seqlake.protocols import Ints, Shard, Store, Transaction, Version
    from seqlake.shards.columns import From
    from seqlake.spec.schema import Schema


class RivalError(Exception):
    """Internal: another commit came between, nothing was made; the change is tried again on the newest version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LakeFile:
    """A data file of a version.

    Attributes:
        path: Below the table's root, decoded; an absolute path or URI where the lake names a file outside it.
        rows: All rows of the file, deleted ones too; -1 where the lake does not say.
        nbytes: Its size; -1 where the lake does not say.
        constants: Columns that the file does not hold and that have one value in all its rows: partition values.
        columns: Logical column -> its name in the file, where that differs.
        absent: Logical columns that the file does not hold, whatever its columns are called.
        deleted: Numbers of the rows that this version does not have, ascending; None for none.
        statistics: Scalar column -> (min, max, nulls), where the lake says so.
        held: The rows themselves, where the lake keeps them in its catalog and there is no file.
    """

    path: str
    rows: int
    nbytes: int
    constants: Mapping[str, object] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    deleted: Ints | None = None
    statistics: Mapping[str, tuple[object, object, int]] = field(default_factory=dict, repr=False)
    held: pa.Table | None = field(default=None, repr=False)

    @property
    def live(self) -> int:
        """Rows that the version has."""
        return self.rows - (0 if self.deleted is None else len(self.deleted))

    def shown(self, shard: Shard, schema: Schema, /) -> Shard:
        """The file, without its deleted rows, with the version's columns and types."""
        mapping: dict[str, From] = {}
        for column in schema.names if self.constants or self.absent or self.columns else ():
            if column in self.constants:
                mapping[column] = Constant(self.constants[column])
            elif column in self.absent:
                mapping[column] = Constant(None)
            elif column in self.columns:
                mapping[column] = Stored(self.columns[column])
        return Columns(shard, schema, mapping)

    def stored_names(self, column: str, /) -> Sequence[str]:
        """What the file may call a column; nothing where it does not hold it, or where only its footer can tell."""
        return [] if column in self.constants or column in self.absent else [self.columns.get(column, column)]

    @property
    def told(self) -> str:
        """One line that changes when the rows of the file, or what they are taken for, may have."""
        gone = b"" if self.deleted is None else np.asarray(self.deleted, "<i8").tobytes()
        digest = blake2b(gone, digest_size=8).hexdigest() if gone else ""
        mapped = [sorted(self.columns.items()), sorted(map(repr, self.constants.items())), sorted(self.absent)]
        held = "" if self.held is None else ArrowShard(self.held).key
        return f"{self.path}\0{self.rows}\0{self.nbytes}\0{digest}\0{mapped!r}{held}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LakeState:
    """One version of a lake table.

    Attributes:
        version: Its id, time, operation and rows.
        schema: The lake's Arrow schema, as `types.normalised` makes it.
        mixtrain: The JSON text of the property `mixtrain`; "" where there is none.
        files: The data files, in a fixed order.
        partition_by: The columns that new files are partitioned by.
    """

    version: Version
    schema: pa.Schema
    mixtrain: str
    files: Sequence[LakeFile]
    partition_by: Sequence[str] = ()


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
class Proposal:
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
    base: LakeState
    add: Sequence[Added] = ()
    remove: Sequence[LakeFile] = ()
    schema: pa.Schema | None = None
    mixtrain: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What an expiry removed (or would), and what is left.

    Attributes:
        removed: Paths below the root, or locations, of the data files that no readable version names any more.
        retained: Every file of every version that can still be read, as in `LakeFile.path`.
    """

    removed: Sequence[str] = ()
    retained: Sequence[LakeFile] = ()


class Engine(Protocol):
    """One table of one kind of lake: which files a version has, and one commit; picklable.

    A lake's engine inherits it, and so the answers that most lakes give.
    """

    swept: frozenset[str] = frozenset()
    """Endings of names that the lake's own cleanup removes wherever they lie, `_seqlake/` included."""

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

    def state(self, version: int | str | datetime | None = None, /) -> LakeState:
        """A version by id or time; None: the newest, read anew. VersionNotFoundError."""

    def versions(self) -> Sequence[Version]:
        """Those that can be read, oldest first."""

    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """The nearest type that the lake has; SchemaMismatchError. `types.lake_type` does most of it."""

    def data_path(self, name: str, partition: Mapping[str, object], /) -> str:
        """Where, below the root, a data file of this name is put."""

    def check(self, proposal: Proposal, /) -> None:
        """Refuse what this lake cannot do (SchemaMismatchError and the like), before anything is staged."""

    def commit(self, proposal: Proposal, /) -> Version:
        """All of it on top of `proposal.base`, else RivalError; CommitUnknownError where there was no answer."""

    def rollback(self, version: int | str, /, *, base: LakeState) -> Version:
        """A new version on top of `base` with the rows of an old one, else RivalError."""

    def expire(self, limit: datetime, /, *, dry_run: bool) -> Expired:
        """Forget versions that were replaced before `limit`, and remove the data files that only they named."""

    def drop(self) -> None:
        """Remove the table and its data files: it was just made, and what was to fill it failed."""

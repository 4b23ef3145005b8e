"""One version of a table as a value, whoever keeps its log: its columns, its metadata, its shards in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, overload

import numpy as np

from seqlake.shards.columns import Columns, Constant, Stored
from seqlake.shards.memory import ArrowShard
from seqlake.spec.unfolded import Unfolded
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from seqlake.protocols import Ints, Shard, Version
    from seqlake.shards.columns import From
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SideEntry:
    """Columns beside a shard, its rows in the shard's order.

    Attributes:
        name: Of the side shard, below `_seqlake/side/`.
        of: The shard's name.
        columns: Logical column -> the column of the side shard that holds it.
        nbytes: Its size; 0 where the record does not say.
        sha256: Of its bytes; "" where the record does not say.
    """

    name: str
    of: str
    columns: Mapping[str, str]
    nbytes: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFile:
    """A data file of a version.

    Attributes:
        name: What index files, keys and messages call it: its path below the root, decoded, or an absolute path or URI
            where a lake names a file outside it; in a standalone table, where files move, without its folder.
        rows: All rows of the file, deleted ones too; -1 where a lake does not say.
        nbytes: Its size; -1 where a lake does not say.
        constants: Columns that the file does not hold and that have one value in all its rows: partition values.
        columns: Logical column -> its name in the file, where that differs.
        absent: Logical columns that the file does not hold, whatever its columns are called.
        deleted: Numbers of the rows that this version does not have, ascending; None for none.
        statistics: Scalar column -> (min, max, nulls), where the table says so.
        transaction: The one that added it to the log; "" in lakes, whose names tell it.
        beside: Columns that were added later and lie beside the file.
        indexed_in: Paths of the index files that may know it, the best first; none where its owner tells.
        held: The rows themselves, where a lake keeps them in its catalog and there is no file.
    """

    name: str
    rows: int
    nbytes: int
    constants: Mapping[str, object] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    deleted: Ints | None = None
    statistics: Mapping[str, tuple[object, object, int]] = field(default_factory=dict, repr=False)
    transaction: str = ""
    beside: tuple[SideEntry, ...] = ()
    indexed_in: tuple[str, ...] = field(default=(), repr=False)
    held: pa.Table | None = field(default=None, repr=False)

    @property
    def live(self) -> int:
        """Rows that the version has."""
        return self.rows - (0 if self.deleted is None else len(self.deleted))

    @property
    def owner(self) -> str | None:
        """The transaction that wrote it, from its name; None where another client did."""
        return names.owner(self.name.rpartition("/")[2])

    @property
    def kept_rows(self) -> Ints | None:
        """[live rows] row number in the file of each; None where none is deleted."""
        if self.deleted is None or not len(self.deleted):
            return None
        return np.setdiff1d(np.arange(self.rows, dtype=np.int64), self.deleted)

    def is_live(self, row: int, /) -> bool:
        """Whether the version has this row of the file."""
        if self.deleted is None or not len(self.deleted):
            return True
        at = int(np.searchsorted(self.deleted, row))
        return at == len(self.deleted) or int(self.deleted[at]) != row

    def mapped(self, schema: Schema, /) -> dict[str, From]:
        """Where the columns of a version are that the file does not hold under their names."""
        mapping: dict[str, From] = {}
        for column in schema.names if self.constants or self.absent or self.columns else ():
            if column in self.constants:
                mapping[column] = Constant(self.constants[column])
            elif column in self.absent:
                mapping[column] = Constant(None)
            elif column in self.columns:
                mapping[column] = Stored(self.columns[column])
        return mapping

    def view(self, shard: Shard, schema: Schema, /) -> Shard:
        """The file, without its deleted rows, with the version's columns and types."""
        return Columns(shard, schema, self.mapped(schema))

    def stored_names(self, column: str, /) -> Sequence[str]:
        """What the file may call a column; nothing where it does not hold it, or where only its footer can tell."""
        return [] if column in self.constants or column in self.absent else [self.columns.get(column, column)]

    @property
    def identity(self) -> str:
        """One line that changes when the rows of the file, or what they are taken for, may have."""
        gone = b"" if self.deleted is None else np.asarray(self.deleted, "<i8").tobytes()
        digest = blake2b(gone, digest_size=8).hexdigest() if gone else ""
        mapped = [sorted(self.columns.items()), sorted(map(repr, self.constants.items())), sorted(self.absent)]
        held = "" if self.held is None else ArrowShard(self.held).key
        return f"{self.name}\0{self.rows}\0{self.nbytes}\0{digest}\0{mapped!r}{held}"


class FileList(Sequence[TableFile]):
    """The shards of a version in a fixed order, and by their names.

    Args:
        names: Of all shards, in order.
        describe: From a name, the shard; asked for when one is first used, since a table may have very many.

    Example:
        >>> FileList.of([TableFile(name="part-0.parquet", rows=2, nbytes=9)]).named("part-0.parquet").rows
        2
    """

    def __init__(self, names: Sequence[str], describe: Callable[[str], TableFile], /) -> None:
        self.names = names
        self._describe = describe
        self._described: dict[str, TableFile] = {}

    @classmethod
    def of(cls, files: Iterable[TableFile], /) -> FileList:
        """Files that are described already, however often a name stands: a lake's log may repeat one."""
        listed = list(files)
        return cls([file.name for file in listed], {file.name: file for file in listed}.__getitem__)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int, /) -> TableFile: ...
    @overload
    def __getitem__(self, at: slice, /) -> list[TableFile]: ...
    def __getitem__(self, at: int | slice, /) -> TableFile | list[TableFile]:
        return [self.named(name) for name in self.names[at]] if isinstance(at, slice) else self.named(self.names[at])

    def named(self, name: str, /) -> TableFile:
        """The shard of this name; KeyError where there is none."""
        if name not in self._described:
            self._described[name] = self._describe(name)
        return self._described[name]

    def get(self, name: str, /) -> TableFile | None:
        """The shard of this name; None where there is none."""
        try:
            return self.named(name)
        except KeyError:
            return None

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Name -> which shard it is, from 0."""
        return {name: number for number, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableState:
    """One version of a table.

    Attributes:
        version: Its id, time, operation and rows.
        schema: Its Arrow schema as the log or the lake has it; what a dataset shows of it is the table's to say.
        mixtrain: The metadata as JSON text, as in `mixtrain.json`; "" where there are none.
        files: The shards.
        partition_by: The columns that new files are partitioned by.
        unfolded: What the files hold otherwise than the version shows them, where nobody but us would know.
    """

    version: Version
    schema: pa.Schema
    mixtrain: str
    files: FileList
    partition_by: Sequence[str] = ()
    unfolded: Unfolded = field(default_factory=Unfolded)

"""Somebody else's dataset after one look at it: what every format repeats, so that a format says only what is its own.

A format gives its schema, its shards and what tells its bytes from others; a shard says how it is opened; and a reader
puts the cells of some rows together. Formats that need more inherit from these, those that need less do without.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqlake.arguments import TEXT, takes
from seqlake.errors import SchemaMismatchError, in_line
from seqlake.protocols import Mapped
from seqlake.shards.reading import lengths_of, read_in_parts, refuse_unknown, runs_of
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Ints, Shard, ShardReader
    from seqlake.spec.schema import Schema

    Sizes: TypeAlias = NDArray[np.integer[Any] | np.floating[Any]]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScannedDataset:
    """Rows of another format: a `Readable`, picklable if its shards are.

    Attributes:
        root: What relative file references resolve against.
        schema: Arrow and column types; `Schema(..., id=None)` where rows are samples.
        parts: The shards, in the order of the rows.
        state: Changes when any row, its order, schema or bytes may have; by default it follows from the schema and the
            keys of the shards.
        things: What of the source became which column; by default every column is one of the source.

    Example:
        ```python
        def scan(location, /, **options):
            schema = sl.Schema({"action": sl.Trajectory(dim=4)})
            return ScannedDataset(root=location, schema=schema, parts=[...])
        ```
    """

    root: str
    schema: Schema
    parts: Sequence[Shard]
    state: str = ""
    things: Sequence[Mapped] = ()

    @property
    def fingerprint(self) -> str:
        """What `state` says, or a hash of columns and shards."""
        return self.state or fingerprint(self.schema, self.parts)

    def mapping(self) -> Sequence[Mapped]:
        """What became of each thing of the source (`SaysMapping`)."""
        return self.things or [Mapped(source=name, column=name) for name in self.schema.names]

    def shards(self) -> Sequence[Shard]:
        """One for each part of the source, in the order of the rows."""
        return self.parts

    @takes(column=TEXT)
    def lengths(self, column: str, /) -> Ints:
        """[rows] T, -1 null: where readers know it without reading, else counted.

        Raises:
            SchemaMismatchError: No such column, or one without steps.
        """
        return lengths_in(self.parts, self.schema, column)

    def lengths_of(self, shards: Sequence[int], column: str, /) -> Ints:
        """[rows of these shards] T, -1 null; no other shard is looked at."""
        return lengths_in([self.parts[number] for number in shards], self.schema, column)

    def __repr__(self) -> str:
        rows, names = sum(shard.rows for shard in self.parts), in_line(", ".join(self.schema.names))
        return f"{type(self).__name__}({self.root!r}, {rows} rows, columns: {names})"


def fingerprint(schema: Schema, shards: Iterable[Shard], /) -> str:
    """A hash of columns and shards: a shard's key changes with its bytes, deletes, mapping and kept rows."""
    described = [schema.to_json(), *[[shard.key, shard.rows] for shard in shards]]
    return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()


def lengths_in(shards: Iterable[Shard], schema: Schema, column: str, /) -> Ints:
    """[all rows] T of a column in some shards; -1 null.

    Raises:
        SchemaMismatchError: No such column, or one without steps.
    """
    kind = schema[column].logical
    if not is_list(kind):
        raise SchemaMismatchError(f"Expected a column of steps, found {column!r} of type {kind}.")
    lengths = [np.empty(0, np.int64)]
    for shard in shards:
        with closing(shard.open()) as reader:
            lengths.append(lengths_of(reader, column))
    return np.concatenate(lengths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScannedShard:
    """Rows of another format that are read together: a `Shard`, picklable if its reader is.

    Attributes:
        key: `<name>#<hash>`: other bytes, other key.
        rows: How many there are.
        nbytes: Bytes of them, about.
        reader: Makes a reader for this process; `functools.partial` of a class pickles, a lambda does not.
    """

    key: str
    rows: int
    nbytes: int
    reader: Callable[[], ShardReader] = field(repr=False)

    def open(self) -> ShardReader:
        """A reader for this process."""
        return self.reader()


class ScannedReader:
    """Reads one shard of another format: inherit it and say in `arrays` how the cells of some rows are made.

    Give `sizes`, or override `parts`, where rows are large; override `flat` where steps lie at known bytes, and `close`
    where something is held open. A method `lengths` is the ability `HasLengths`.

    Args:
        types: The logical Arrow schema of all columns.
        count: Rows of the shard.
        location: What messages call it.
        sizes: [rows] bytes of each, about; None: they are so small that `most_rows` of them make a batch.
    """

    most_bytes = 32 << 20
    """Of a batch of more than one row, about."""

    most_rows: int | None = 1 << 16
    """Of a batch; None: any number."""

    def __init__(self, types: pa.Schema, count: int, /, *, location: str = "", sizes: Sizes | None = None) -> None:
        self.types = types
        self.count = count
        self.location = location
        self.sizes = sizes

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some rows, one array for each field of `schema`; at least one is asked for.

        Raises:
            CorruptFileError: A row that cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} says in `arrays` how cells are made.")

    def parts(self, rows: Ints, _columns: Sequence[str], /) -> Iterator[Ints]:
        """Cuts rows into runs that make one batch each."""
        sizes = np.zeros(len(rows), np.int64) if self.sizes is None else self.sizes[rows]
        return runs_of(rows, sizes, most_bytes=self.most_bytes, most_rows=self.most_rows)

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of at most `most_rows` rows and about `most_bytes`, in the order asked for.

        Args:
            columns: Names of the schema.
            rows: Row numbers, any order, repeats allowed; None for all.

        Raises:
            SchemaMismatchError: A column that is not there.
            IndexError: A row that is not there.
            CorruptFileError: A row that cannot be read.
        """
        return read_in_parts(
            columns,
            rows,
            types=self.types,
            count=self.count,
            parts=lambda wanted: self.parts(wanted, columns),
            arrays=self.arrays,
            path=self.location,
        )

    def type_of(self, column: str, /) -> pa.DataType:
        """The logical Arrow type of a column.

        Raises:
            SchemaMismatchError: There is none of that name.
        """
        refuse_unknown([column], self.types.names, path=self.location)
        return self.types.field(column).type

    def flat(self, column: str, /) -> Flat | None:
        """None: cells are made as they are read."""
        self.type_of(column)
        return None

    def close(self) -> None:
        """Nothing is held open."""

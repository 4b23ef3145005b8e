"""A shard under a table's schema: renames, constants, columns added later, side shards, casts to logical types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from seqlake.abilities import HasLengths, HoldsFiles, KnowsColumns, Physical, ability
from seqlake.errors import DamagedTableError
from seqlake.files.blobs import MemoryBlob
from seqlake.protocols import Flat
from seqlake.shards.cells import cast, flat_batches, is_shown, numpy_type
from seqlake.shards.kept import Kept
from seqlake.shards.reading import count_only, refuse_unknown, rows_asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Ints, Shard, ShardReader
    from seqlake.spec.schema import Column, Schema


@dataclass(frozen=True, slots=True)
class Stored:
    """A physical column of the shard; null in every row where the file lacks it."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every row; None is null."""

    value: object


@dataclass(frozen=True, slots=True)
class Beside:
    """A column of a side shard, whose rows stand in the shard's order; the file must have it."""

    shard: Shard
    name: str


From: TypeAlias = Stored | Constant | Beside


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A shard shown with a schema's columns and logical types; flat columns stay flat.

    Args:
        shard: Where the rows lie.
        schema: The columns to show.
        mapping: Column -> where it comes from; `Stored` under its own name where it says nothing.

    Example:
        >>> shown = Columns(shard, schema, {"obs_state": Stored("obs"), "task": Constant("pick")})
        >>> shown.open().flat("action") is not None
        True
    """

    shard: Shard
    schema: Schema
    mapping: Mapping[str, From]

    @property
    def key(self) -> str:
        """The shard's name with a hash of its key, the columns and where they come from."""
        state = blake2b(self.shard.key.encode(), digest_size=8)
        for name in self.schema:
            column, source = self.schema[name], self.mapping.get(name, Stored(name))
            origin = (source.shard.key, source.name) if isinstance(source, Beside) else source
            state.update(f"\0{name}\0{column.logical}\0{column.shape}\0{origin!r}".encode())
        return f"{self.shard.key.rpartition('#')[0]}#{state.hexdigest()}"

    @property
    def rows(self) -> int:
        """Rows of the shard."""
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the shard and of its side shards."""
        beside = {
            source.shard.key: source.shard.nbytes for source in self.mapping.values() if isinstance(source, Beside)
        }
        return self.shard.nbytes + sum(beside.values())

    def open(self) -> ColumnsReader:
        """A reader that shows the schema's columns."""
        return ColumnsReader(self)

    def __repr__(self) -> str:
        return f"Columns({self.shard!r}, {', '.join(self.schema)})"


class ColumnsReader:
    """One open `Columns`; side shards are opened when they are first asked."""

    def __init__(self, shard: Columns, /) -> None:
        self._shard = shard
        self._beside: dict[str, ShardReader] = {}
        self._flats: dict[str, Flat | None] = {}

    @Kept
    def inner(self) -> ShardReader:
        """The reader of the shard itself."""
        return self._shard.shard.open()

    @property
    def schema(self) -> pa.Schema:
        """The logical Arrow schema."""
        return self._shard.schema.arrow

    @property
    def rows(self) -> int:
        """Rows of the shard."""
        return self._shard.rows

    def _source(self, name: str) -> tuple[ShardReader, str] | Constant:
        """The reader and physical name behind a column, or its constant."""
        refuse_unknown([name], self._shard.schema.names)
        source = self._shard.mapping.get(name, Stored(name))
        if isinstance(source, Constant):
            return source
        reader = self._side(source.shard) if isinstance(source, Beside) else self.inner
        known = ability(reader, KnowsColumns)
        if known is not None and known.holds(source.name):
            return reader, source.name
        file = ability(reader, Physical)
        if file is None or source.name in file.schema.names:
            return reader, source.name
        if isinstance(source, Beside):
            raise DamagedTableError(
                f"Expected the column {source.name!r} in side shard {source.shard.key}, found {file.schema.names}.",
                hint="Its bytes are not those that were committed; restore the file from a copy.",
            )
        return Constant(None)

    def _side(self, shard: Shard) -> ShardReader:
        if shard.key not in self._beside:
            if shard.rows != self._shard.rows:
                raise DamagedTableError(
                    f"Expected {self._shard.rows} rows in side shard {shard.key}, found {shard.rows}: "
                    "it does not belong to this shard. Restore the table's files from a copy."
                )
            reader = shard.open()
            file = ability(reader, Physical)
            if file is not None and file.rows != shard.rows:
                raise DamagedTableError(
                    f"Expected {shard.rows} rows in side shard {shard.key}, found {file.rows}.",
                    hint="Its bytes are not those that were committed; restore the file from a copy.",
                )
            self._beside[shard.key] = reader
        return self._beside[shard.key]

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, in this order, with logical types.

        Args:
            columns: Names of the schema.
            rows: Row numbers, in the order wanted; None is all.

        Raises:
            SchemaMismatchError: No such column, or cells that do not fit the schema.
            IndexError: A row that the shard does not have.
        """
        refuse_unknown(columns, self._shard.schema.names)
        fields = [self.schema.field(name) for name in columns]
        flats = self._all_flat(fields)
        if flats:
            yield from flat_batches(flats, pa.schema(fields), rows_asked(rows, self._shard.rows))
            return
        sources = {name: self._source(name) for name in columns}
        wanted: dict[int, tuple[ShardReader, dict[str, None]]] = {id(self.inner): (self.inner, {})}
        for source in sources.values():
            if not isinstance(source, Constant):
                wanted.setdefault(id(source[0]), (source[0], {}))[1][source[1]] = None
        streams = {
            key: _Stream(self._there(reader.batches(list(names), rows=rows)))
            for key, (reader, names) in wanted.items()
            if names
        }
        total = self._shard.rows if rows is None else len(rows_asked(rows, self._shard.rows))
        lead = next(iter(streams.values()), None)  # the shard's own batches, where any are read
        counts = (batch.num_rows for batch in count_only(total)) if lead is None else lead.counts()
        for count in counts:
            taken = {key: stream.take(count) for key, stream in streams.items()}
            arrays = [
                pa.array([source.value], field.type).take(pa.array(np.zeros(count, np.int64)))
                if isinstance(source, Constant)
                else self._cells_as(taken[id(source[0])][source[1]], field)
                for field, source in zip(fields, sources.values(), strict=True)
            ]
            if fields:
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            else:
                yield from count_only(count)

    def _there(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of rows that the version says are there."""
        try:
            yield from batches
        except IndexError as error:
            raise DamagedTableError(
                f"Expected {self._shard.rows} rows in shard {self._shard.shard.key}, found fewer: {error}",
                hint="Its bytes are not those that were committed; restore the file from a copy.",
            ) from None

    def _all_flat(self, fields: Sequence[pa.Field]) -> list[Flat]:
        """The columns as `Flat`, if all are and no cell has to be made another; else nothing."""
        flats = []
        for field in fields:
            flat = self.flat(field.name) if self._shard.schema[field.name].category == "temporal" else None
            if flat is None or not is_shown(flat, field.type):
                return []
            flats.append(flat)
        return flats

    def _cells_as(self, cells: pa.Array, field: pa.Field) -> pa.Array:
        """Cells of the file as the schema shows them."""
        return cast(cells, field.type, column=field.name)

    def flat(self, column: str, /) -> Flat | None:
        """The column without decoding, as the schema shows it; None: use `batches`."""
        if column not in self._flats:
            source = self._source(column)
            declared = self._shard.schema[column]
            if isinstance(source, Constant):
                self._flats[column] = _all_null(declared, self._shard.rows) if source.value is None else None
            else:
                flat = source[0].flat(source[1])
                self._flats[column] = None if flat is None else _flat_as(flat, declared)
        return self._flats[column]

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T from an index below, where there is one."""
        source = self._source(column)
        if isinstance(source, Constant):
            return None if source.value is not None else np.full(self._shard.rows, -1, np.int64)
        known = ability(source[0], HasLengths)
        return None if known is None else known.lengths(source[1])

    def held(self, column: str, rows: Ints, /) -> list[tuple[str, Blob] | None] | None:
        """Files in cells, where they lie, if the file below that has them gives them so."""
        source = self._source(column)
        given = None if isinstance(source, Constant) else ability(source[0], HoldsFiles)
        return None if given is None or isinstance(source, Constant) else given.held(source[1], rows)

    def close(self) -> None:
        """Close the shard and its side shards."""
        for reader in [*self._beside.values(), *([self.inner] if "inner" in self.__dict__ else [])]:
            reader.close()


class _Stream:
    """Batches that are handed out again in portions of another size."""

    def __init__(self, batches: Iterator[pa.RecordBatch], /) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []

    def counts(self) -> Iterator[int]:
        """The sizes in which the batches come; each must be taken before the next."""
        for batch in self._batches:
            if batch.num_rows:
                self._held.append(batch)
                yield batch.num_rows

    def take(self, count: int) -> dict[str, pa.Array]:
        """The next `count` rows, column by column."""
        parts: list[pa.RecordBatch] = []
        while count:
            if not self._held:
                self._held.append(next(self._batches))
            batch = self._held.pop()
            if batch.num_rows > count:
                self._held.append(batch.slice(count))
                batch = batch.slice(0, count)
            parts.append(batch)
            count -= batch.num_rows
        if len(parts) == 1:
            return dict(zip(parts[0].schema.names, parts[0].columns, strict=True))
        return {
            name: pa.concat_arrays([part.column(i) for part in parts]) for i, name in enumerate(parts[0].schema.names)
        }


def _flat_as(flat: Flat, column: Column) -> Flat | None:
    """A flat column with the type and step shape that the schema shows."""
    kind = column.value_type if column.value_type is not None else column.arrow
    dtype: np.dtype[Any] | None = numpy_type(kind)
    if dtype is None or not (dtype == flat.dtype or np.can_cast(flat.dtype, dtype, "safe")):
        return None
    shape = column.shape if column.category == "temporal" else ()
    if shape is None:
        shape = flat.shape
    if int(np.prod(shape, dtype=np.int64)) != int(np.prod(flat.shape, dtype=np.int64)) or bool(shape) != bool(
        flat.shape
    ):
        if (flat.steps > 0).any():
            return None  # `batches` says what does not fit
        return replace(
            flat, dtype=dtype, shape=shape, stride=int(np.prod(shape, dtype=np.int64)) * flat.stored.itemsize
        )
    return replace(flat, dtype=dtype, shape=shape)


def _all_null(column: Column, rows: int) -> Flat | None:
    """A column that no row of the shard has: flat, and null everywhere."""
    dtype = None if column.value_type is None else numpy_type(column.value_type)
    if dtype is None:
        return None
    shape = column.shape if column.category == "temporal" else ()
    shape = (0,) if shape is None else shape
    return Flat(
        blob=MemoryBlob(bytes(8), location="no bytes: every cell is null"),
        start=np.zeros(rows, np.int64),
        steps=np.full(rows, -1, np.int64),
        stride=int(np.prod(shape, dtype=np.int64)) * dtype.itemsize,
        stored=dtype,
        dtype=dtype,
        shape=shape,
    )

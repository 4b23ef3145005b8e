"""Samples that are time steps, put together into sequences.

One pass over the id, the step and the columns of text decides everything: which samples make which sequence in which
order, and which texts are the same throughout every sequence. After that any worker makes its sequences from rows of
several shards.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import Checked, HasStorage, ability
from seqlake.conversion.samples import as_frames, is_image
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.shards.asked import count_only, refuse_unknown, rows_asked
from seqlake.shards.lengths import count_lengths
from seqlake.spec.column_types import Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.abilities import Kind
    from seqlake.protocols import Flat, Ints, Readable, Shard

_SHARD_BYTES = 64 << 20
_BATCH_BYTES = 32 << 20

Role = Literal["first", "number", "array", "list"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a column of sequences is made from one of samples.

    Attributes:
        column: Of the sequences.
        role: `first`: one value for all steps; `number`, `array`: a step of a signal; `list`: a list of the cells.
        size: Numbers of one step.
    """

    column: Column
    role: Role
    size: int = 1


def grouped(source: Readable, ids: pa.ChunkedArray, /, *, key: str, steps: str | None) -> GroupedSamples:
    """Sequences of the samples that share an id, in the order in which the ids first occur.

    Args:
        source: The samples.
        ids: [rows] the id of each.
        key: The column they came from; it becomes `sequence_id`.
        steps: The column that orders a sequence's samples; None for the order of the source.

    Raises:
        SchemaMismatchError: `steps` is no column of numbers or times.
        ValidationError: Two samples of a sequence have the same step, or one has none.
    """
    codes = np.asarray(ids.combine_chunks().dictionary_encode().indices).astype(np.int64)
    moments = np.arange(len(codes)) if steps is None else _moments(source, steps)
    order = np.lexsort((moments, codes))
    starts = np.searchsorted(codes[order], np.arange(int(codes.max(initial=-1)) + 2))
    _refuse_twins(codes[order], moments[order], ids, order)
    texts = {name for name in source.schema.names if is_text(source.schema[name].arrow) and name != key}
    constant = {name for name in texts if _is_constant(_codes_of(source, name)[order], starts)}
    made = {name: _made(source, name, constant) for name in source.schema.names if name != key}
    names = ids.take(pa.array(order[starts[:-1]])).to_pylist()
    return GroupedSamples(source, made, names, order, starts)


def _refuse_twins(codes: Ints, moments: NDArray[Any], ids: pa.ChunkedArray, order: Ints) -> None:
    twins = np.flatnonzero((np.diff(codes) == 0) & (moments[1:] == moments[:-1]))
    if len(twins):
        at = int(twins[0])
        raise ValidationError(
            f"Sequence {ids[int(order[at])].as_py()!r} has two samples of step {moments[at]!s}: "
            f"{int(order[at])} and {int(order[at + 1])}."
        )


def _moments(source: Readable, steps: str) -> NDArray[Any]:
    kind = source.schema[steps].arrow
    if not (is_number(kind) or pa.types.is_temporal(kind)):
        raise SchemaMismatchError(f"`steps` names a column of numbers or times; {steps!r} is {kind}.")
    found = pa.chunked_array([pa.array([], kind), *_cells(source, steps)], kind)
    if found.null_count:
        raise ValidationError(f"{found.null_count} samples have no {steps!r}.")
    values = np.asarray(found.to_numpy())
    if values.dtype.kind == "f" and bool(np.isnan(values).any()):
        raise ValidationError(f"{int(np.isnan(values).sum())} samples have NaN as {steps!r}.")
    return values


def _cells(source: Readable, column: str) -> Iterator[pa.Array]:
    for shard in source.shards():
        reader = shard.open()
        try:
            for batch in reader.batches([column]):
                yield batch.column(0)
        finally:
            reader.close()


def _codes_of(source: Readable, column: str) -> Ints:
    kind = source.schema[column].arrow
    cells = pa.chunked_array([pa.array([], kind), *_cells(source, column)], kind).combine_chunks()
    return np.asarray(pc.fill_null(cells.dictionary_encode().indices, -1)).astype(np.int64)


def _is_constant(codes: Ints, starts: Ints) -> bool:
    changes = np.flatnonzero(np.diff(codes)) + 1
    return bool(np.isin(changes, starts).all())


def _made(source: Readable, name: str, constant: set[str]) -> Made:
    column = source.schema[name]
    kind = column.arrow
    if name in constant:
        return Made(column=column, role="first")
    if is_number(kind) and not pa.types.is_boolean(kind):
        signal = Trajectory(dim=1, dtype=kind)
        return Made(column=Column(name, signal.arrow, signal), role="number")
    if is_image(column):
        return Made(column=as_frames(column), role="list")
    shape = _shape(source, column) if column.category in {"vector", "temporal"} else None
    if shape is None:
        return Made(column=Column(name, pa.list_(column.logical)), role="list")
    size = int(np.prod(shape))
    signal = Trajectory(dim=size, dtype=column.value_type, shape=list(shape) if len(shape) > 1 else None)
    return Made(column=Column(name, signal.arrow, signal), role="array", size=size)


def _shape(source: Readable, column: Column) -> tuple[int, ...] | None:
    """The shape that all cells of a column of arrays have; None if they differ."""
    step = () if column.category == "vector" or not column.nested else column.shape
    if step is None:
        return None
    lengths = [count_lengths(shard.open(), column.name) for shard in source.shards()]
    found = np.unique(np.concatenate([np.empty(0, np.int64), *lengths]))
    return (int(found[0]), *step) if len(found) == 1 and found[0] > 0 else None


class GroupedSamples:
    """Sequences made of samples: a `Readable`."""

    def __init__(self, source: Readable, made: dict[str, Made], ids: list[str], order: Ints, starts: Ints, /) -> None:
        self._source = source
        self._made = made
        self._ids = ids
        self._order = order
        self._starts = starts

    @property
    def schema(self) -> Schema:
        """`sequence_id`, then the samples' columns."""
        extra = self._source.schema.metadata.extra
        return Schema({name: made.column for name, made in self._made.items()}, metadata=Metadata(extra=extra))

    @property
    def root(self) -> str:
        """The source's."""
        return self._source.root

    @property
    def fingerprint(self) -> str:
        """Of the source and the grouping."""
        state = hashlib.sha256(self._source.fingerprint.encode())
        state.update(self._order.tobytes() + self._starts.tobytes())
        return state.hexdigest()[:32]

    def lengths(self, column: str, /) -> Ints:
        """[sequences] T, which all columns of steps share."""
        made = self._made[column]
        if made.role == "first":
            raise SchemaMismatchError(f"Expected a column of steps, found {column!r}.")
        return np.diff(self._starts)

    def shards(self) -> list[GroupedShard]:
        """Sequences of about 64 MiB each."""
        shards = self._source.shards()
        firsts = np.cumsum([0, *(shard.rows for shard in shards)])
        per_row = max(1.0, sum(shard.nbytes for shard in shards) / max(1, int(firsts[-1])))
        made, first, count = [], 0, len(self._ids)
        while first < count:
            limit = self._starts[first] + max(1, int(_SHARD_BYTES / per_row))
            stop = max(first + 1, int(np.searchsorted(self._starts, limit, side="right")) - 1)
            made.append(self._shard(shards, firsts, first, min(stop, count), per_row))
            first = stop
        return made

    def _shard(self, shards: Sequence[Shard], firsts: Ints, first: int, stop: int, per_row: float) -> GroupedShard:
        rows = self._order[self._starts[first] : self._starts[stop]]
        numbers = np.searchsorted(firsts, rows, side="right") - 1
        used, places = np.unique(numbers, return_inverse=True)
        return GroupedShard(
            sources=tuple(shards[int(number)] for number in used),
            places=places,
            numbers=rows - firsts[numbers],
            starts=self._starts[first : stop + 1] - self._starts[first],
            ids=tuple(self._ids[first:stop]),
            made=self._made,
            types=self.schema.arrow,
            name=f"sequences-{first}",
            per_row=per_row,
        )

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source's plug knows beyond the protocol: findings of its own, its storage options."""
        return ability(self._source, kind) if kind in {Checked, HasStorage} else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedShard:
    """Some sequences, with the rows that they are made of.

    Attributes:
        sources: The shards that hold the rows.
        places: [rows] which of them.
        numbers: [rows] the row in it.
        starts: [sequences + 1] the first row of each.
        ids: [sequences].
        made: How each column is made.
        types: The logical Arrow schema.
        name: Begins the key.
        per_row: Bytes of a row, about.
    """

    sources: Sequence[Shard]
    places: Ints
    numbers: Ints
    starts: Ints
    ids: Sequence[str]
    made: dict[str, Made]
    types: pa.Schema
    name: str
    per_row: float

    @property
    def key(self) -> str:
        """Of all rows and what becomes of them."""
        state = hashlib.sha256(repr([shard.key for shard in self.sources]).encode())
        state.update(self.places.tobytes() + self.numbers.tobytes() + self.starts.tobytes())
        state.update(repr([(name, made.role, str(made.column)) for name, made in self.made.items()]).encode())
        return f"{self.name}#{state.hexdigest()[:16]}"

    @property
    def rows(self) -> int:
        """Sequences."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Of the samples, about."""
        return int(self.per_row * len(self.numbers))

    def open(self) -> GroupedReader:
        """A reader of this process."""
        return GroupedReader(self)


class GroupedReader:
    """One open `GroupedShard`."""

    def __init__(self, shard: GroupedShard, /) -> None:
        self._shard = shard

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """As `ShardReader.batches`."""
        shard = self._shard
        refuse_unknown(columns, shard.types.names)
        wanted = rows_asked(rows, shard.rows)
        if not columns:
            yield from count_only(len(wanted))
            return
        schema = pa.schema([shard.types.field(name) for name in columns])
        held = np.cumsum(np.diff(shard.starts)[wanted] * shard.per_row)
        first = 0
        while first < len(wanted):
            before = float(held[first - 1]) if first else 0.0
            stop = max(first + 1, int(np.searchsorted(held, before + _BATCH_BYTES, side="right")))
            yield self._batch(schema, wanted[first:stop])
            first = stop

    def _batch(self, schema: pa.Schema, rows: Ints) -> pa.RecordBatch:
        shard = self._shard
        lengths = np.diff(shard.starts)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        samples = np.repeat(shard.starts[:-1][rows] - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        table = self._samples([name for name in schema.names if name != ID], samples)
        arrays = []
        for field in schema:
            if field.name == ID:
                arrays.append(pa.array([shard.ids[row] for row in rows.tolist()], pa.string()))
                continue
            arrays.append(_sequences(shard.made[field.name], table.column(field.name), offsets, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _samples(self, columns: list[str], samples: Ints) -> pa.Table:
        """The samples' own columns, in the order of the steps."""
        shard, parts, order = self._shard, [], []
        places = shard.places[samples]
        for place in np.unique(places):
            here = np.flatnonzero(places == place)
            reader = shard.sources[int(place)].open()
            try:
                parts += list(reader.batches(columns, rows=shard.numbers[samples[here]]))
            finally:
                reader.close()
            order.append(here)
        table = pa.Table.from_batches(parts).combine_chunks()
        back = np.empty(len(samples), np.int64)
        back[np.concatenate(order)] = np.arange(len(samples))
        return table if bool((np.diff(back) == 1).all()) else table.take(pa.array(back))

    def flat(self, column: str, /) -> Flat | None:
        """None: rows are put together as they are read."""
        refuse_unknown([column], self._shard.types.names)
        return None

    def close(self) -> None:
        """Nothing is held open."""


def _sequences(made: Made, cells: pa.ChunkedArray, offsets: Ints, kind: pa.DataType) -> pa.Array:
    array = cells.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise ValidationError(f"Column {made.column.name!r}: a batch of it is above 2 GiB.")
    if made.role == "first":
        return array.take(pa.array(offsets[:-1]))
    inner = array
    if made.role in {"number", "array"}:
        while is_list(inner.type):
            inner = inner.flatten()
        inner = pa.FixedSizeListArray.from_arrays(inner, made.size)
    found = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), inner)
    return found.cast(kind) if found.type != kind else found

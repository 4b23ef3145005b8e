"""Samples as sequences: one each with an id, or those of a sequence put together step by step.

Putting steps together takes one pass over the id, the step and the columns of text. It decides which samples make which
sequence in which order, and which texts are the same throughout every sequence. After that any worker makes its
sequences from rows of several shards.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import Checked, HasStorage, ability
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.shards.reading import count_lengths, read_in_parts, refuse_unknown, rows_asked, runs_of
from seqlake.spec.column_types import Image, Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_binary, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.abilities import Kind
    from seqlake.protocols import Flat, Ints, Readable, Shard, ShardReader

_SHARD_BYTES = 64 << 20
_BATCH_BYTES = 32 << 20

Role = Literal["first", "number", "array", "list"]
OPTIONS = frozenset({"sequence_id", "steps"})


def as_sequences(
    source: Readable, /, *, sequence_id: str | bool | None = None, steps: str | bool | None = None
) -> Readable:
    """Rows that are sequences, from rows that may be samples.

    Args:
        source: Sequences are given back as they are.
        sequence_id: The column that says which sequence a sample belongs to; True numbers the samples, and each
            becomes a sequence.
        steps: The column that orders the samples of a sequence, True for the order of the source; None: every sample
            is a sequence of its own.

    Raises:
        SchemaMismatchError: No such column, or one that cannot be an id.
        ValidationError: Ids that are missing or, without `steps`, not unique; two samples of one step.

    Example:
        ```python
        sl.convert("data/mds", "data/episodes", sequence_id="episode", steps="step")
        ```
    """
    if source.schema.id is not None:
        if sequence_id is not None or steps is not None:
            raise TypeError("The rows of this source are sequences already: leave sequence_id and steps out.")
        return source
    if steps is not None and not isinstance(sequence_id, str):
        raise TypeError("`steps` orders the samples of a sequence: say with sequence_id= which column names it.")
    if not sequence_id:
        return source
    if not isinstance(sequence_id, str):
        return NamedSamples(source)
    ids = read_ids(source, sequence_id)
    if steps is None:
        twice = [one for one, count in Counter(ids.to_pylist()).items() if count > 1]
        if twice:
            raise ValidationError(
                f"{len(twice)} values of {sequence_id!r} occur more than once, the first is {twice[0]!r}.",
                hint="If samples are time steps, say which column orders them: steps=... (or steps=True).",
            )
        return NamedSamples(source, key=sequence_id)
    return grouped(source, ids, key=sequence_id, steps=None if steps is True else str(steps))


def read_ids(source: Readable, column: str, /) -> pa.ChunkedArray:
    """[rows] the ids of all samples as texts.

    Raises:
        SchemaMismatchError: No such column, or one of another kind than text or integers.
        ValidationError: One that is null or empty.
    """
    kind = source.schema[column].arrow
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise SchemaMismatchError(f"An id is a text or an integer; {column!r} is {kind}.")
    if ID in source.schema and column != ID:
        raise SchemaMismatchError(f"The source has a column {ID!r} beside {column!r}.", hint="Select the others.")
    ids = pa.chunked_array([cells.cast(pa.string()) for cells in _cells(source, column)], pa.string())
    wrong = [row for row, one in enumerate(ids.to_pylist()) if not one]
    if wrong:
        raise ValidationError(f"{len(wrong)} samples have no {column!r}, the first is sample {wrong[0]}.")
    return ids


def as_frames(column: Column, /) -> Column:
    """A sample's own image is one frame: in a sequence, bytes of images are a list, one a step."""
    if not is_image(column):
        return column
    assert column.type is not None
    image = Image(frames="bytes", **{key: field for key, field in column.type.fields.items() if key != "frames"})
    return Column(column.name, pa.list_(pa.binary()), image)


def is_image(column: Column, /) -> bool:
    """Whether a cell is the bytes of one image."""
    return is_binary(column.arrow) and column.type is not None and column.type.type == "image"


class NamedSamples:
    """Samples as sequences, one each; a `Readable`.

    Args:
        source: The samples.
        key: The column of their ids, which becomes `sequence_id`; None numbers them.
    """

    def __init__(self, source: Readable, /, *, key: str | None = None) -> None:
        self._source = source
        self._key = key

    @property
    def schema(self) -> Schema:
        """The source's columns behind `sequence_id`."""
        columns = self._source.schema
        if self._key is None and ID in columns:
            raise SchemaMismatchError(f"The source has a column {ID!r} already.", hint=f"Use it: sequence_id={ID!r}.")
        kept = {name: as_frames(columns[name]) for name in columns.names if name != self._key}
        metadata = Metadata(version=columns.metadata.version, extra=columns.metadata.extra)
        return Schema(kept, metadata=metadata)

    @property
    def root(self) -> str:
        """What references resolve against, as in the source."""
        return self._source.root

    @property
    def fingerprint(self) -> str:
        """Of the source and the way ids are made."""
        return hashlib.sha256(f"named {self._key} {self._source.fingerprint}".encode()).hexdigest()[:32]

    def shards(self) -> list[NamedShard]:
        """One a shard of the source."""
        types, named, first = self.schema.arrow, [], 0
        shards = self._source.shards()
        width = len(str(sum(shard.rows for shard in shards)))
        for shard in shards:
            named.append(NamedShard(shard=shard, source_key=self._key, first=first, width=width, types=types))
            first += shard.rows
        return named

    def lengths(self, column: str, /) -> Ints:
        """The source's; an image is one frame."""
        if is_image(self._source.schema[column]):
            return np.ones(sum(shard.rows for shard in self._source.shards()), np.int64)
        return self._source.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source's plug knows beyond the protocol: findings of its own, its storage options."""
        return ability(self._source, kind) if kind in {Checked, HasStorage} else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedShard:
    """One shard of samples with ids."""

    shard: Shard
    source_key: str | None
    first: int
    width: int
    types: pa.Schema

    @property
    def key(self) -> str:
        """Of the source's shard and the ids."""
        name, _, tail = self.shard.key.rpartition("#")
        state = f"{tail} {self.source_key} {self.first} {self.width}"
        return f"{name}#{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    @property
    def rows(self) -> int:
        """Samples, each a row."""
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the source's shard."""
        return self.shard.nbytes

    def open(self) -> NamedReader:
        """A reader of this process."""
        return NamedReader(self, self.shard.open())


class NamedReader:
    """An open `NamedShard` of one process."""

    def __init__(self, shard: NamedShard, reader: ShardReader, /) -> None:
        self._shard = shard
        self._reader = reader

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """See `ShardReader.batches`: the columns asked for."""
        key = self._shard.source_key
        stored = [name for name in columns if name != ID]
        asked = [*stored, *([key] if ID in columns and key is not None else [])]
        numbers = rows_asked(rows, self._shard.rows)
        done = 0
        for batch in self._reader.batches(asked, rows=rows):
            arrays = {name: self._array(name, batch.column(name)) for name in stored}
            if ID in columns:
                here = numbers[done : done + batch.num_rows]
                arrays[ID] = batch.column(key).cast(pa.string()) if key is not None else self._numbered(here)
            done += batch.num_rows
            if not columns:
                yield batch
                continue
            schema = pa.schema([self._shard.types.field(name) for name in columns])
            yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)

    def _array(self, name: str, cells: pa.Array) -> pa.Array:
        kind = self._shard.types.field(name).type
        if cells.type == kind or not pa.types.is_binary(cells.type):
            return cells
        return pa.ListArray.from_arrays(pa.array(np.arange(len(cells) + 1), pa.int32()), cells).cast(kind)

    def _numbered(self, rows: Ints) -> pa.Array:
        shard = self._shard
        return pa.array([f"{shard.first + row:0{shard.width}d}" for row in rows.tolist()], pa.string())

    def flat(self, column: str, /) -> Flat | None:
        """See `ShardReader.flat`; ids have none."""
        return None if column == ID else self._reader.flat(column)

    def close(self) -> None:
        """Close the source's reader."""
        self._reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
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
    recipes = {name: _recipe(source, name, constant) for name in source.schema.names if name != key}
    names = ids.take(pa.array(order[starts[:-1]])).to_pylist()
    return GroupedSamples(source, recipes, names, order, starts)


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
    cells = pa.chunked_array([pa.array([], kind), *_cells(source, steps)], kind)
    if cells.null_count:
        raise ValidationError(f"{cells.null_count} samples have no {steps!r}.")
    values = np.asarray(cells.to_numpy())
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


def _recipe(source: Readable, name: str, constant: set[str]) -> Recipe:
    column = source.schema[name]
    kind = column.arrow
    if name in constant:
        return Recipe(column=column, role="first")
    if is_number(kind) and not pa.types.is_boolean(kind):
        signal = Trajectory(dim=1, dtype=kind)
        return Recipe(column=Column(name, signal.arrow, signal), role="number")
    if is_image(column):
        return Recipe(column=as_frames(column), role="list")
    shape = _shape(source, column) if column.category in {"vector", "temporal"} else None
    if shape is None:
        return Recipe(column=Column(name, pa.list_(column.logical)), role="list")
    size = int(np.prod(shape))
    signal = Trajectory(dim=size, dtype=column.value_type, shape=list(shape) if len(shape) > 1 else None)
    return Recipe(column=Column(name, signal.arrow, signal), role="array", size=size)


def _shape(source: Readable, column: Column) -> tuple[int, ...] | None:
    """The shape that all cells of a column of arrays have; None if they differ."""
    step = () if column.category == "vector" or not column.nested else column.shape
    if step is None:
        return None
    lengths = [count_lengths(shard.open(), column.name) for shard in source.shards()]
    sizes = np.unique(np.concatenate([np.empty(0, np.int64), *lengths]))
    return (int(sizes[0]), *step) if len(sizes) == 1 and sizes[0] > 0 else None


class GroupedSamples:
    """Sequences made of samples: a `Readable`."""

    def __init__(
        self, source: Readable, recipes: dict[str, Recipe], ids: list[str], order: Ints, starts: Ints, /
    ) -> None:
        self._source = source
        self._recipes = recipes
        self._ids = ids
        self._order = order
        self._starts = starts

    @property
    def schema(self) -> Schema:
        """`sequence_id`, then the samples' columns."""
        extra = self._source.schema.metadata.extra
        return Schema({name: recipe.column for name, recipe in self._recipes.items()}, metadata=Metadata(extra=extra))

    @property
    def root(self) -> str:
        """What references resolve against, as in the source."""
        return self._source.root

    @property
    def fingerprint(self) -> str:
        """Of the source and the grouping."""
        state = hashlib.sha256(self._source.fingerprint.encode())
        state.update(self._order.tobytes() + self._starts.tobytes())
        return state.hexdigest()[:32]

    def lengths(self, column: str, /) -> Ints:
        """[sequences] T, which all columns of steps share."""
        recipe = self._recipes[column]
        if recipe.role == "first":
            raise SchemaMismatchError(f"Expected a column of steps, found {column!r}.")
        return np.diff(self._starts)

    def shards(self) -> list[GroupedShard]:
        """Sequences of about 64 MiB each."""
        shards = self._source.shards()
        firsts = np.cumsum([0, *(shard.rows for shard in shards)])
        per_row = max(1.0, sum(shard.nbytes for shard in shards) / max(1, int(firsts[-1])))
        groups, first, count = [], 0, len(self._ids)
        while first < count:
            limit = self._starts[first] + max(1, int(_SHARD_BYTES / per_row))
            stop = max(first + 1, int(np.searchsorted(self._starts, limit, side="right")) - 1)
            groups.append(self._shard(shards, firsts, first, min(stop, count), per_row))
            first = stop
        return groups

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
            recipes=self._recipes,
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
        recipes: How each column is made.
        types: The logical Arrow schema.
        name: Begins the key.
        per_row: Bytes of a row, about.
    """

    sources: Sequence[Shard]
    places: Ints
    numbers: Ints
    starts: Ints
    ids: Sequence[str]
    recipes: dict[str, Recipe]
    types: pa.Schema
    name: str
    per_row: float

    @property
    def key(self) -> str:
        """Of all rows and what becomes of them."""
        state = hashlib.sha256(repr([shard.key for shard in self.sources]).encode())
        state.update(self.places.tobytes() + self.numbers.tobytes() + self.starts.tobytes())
        state.update(repr([(name, recipe.role, str(recipe.column)) for name, recipe in self.recipes.items()]).encode())
        return f"{self.name}#{state.hexdigest()[:16]}"

    @property
    def rows(self) -> int:
        """Sequences, each a row."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Of the samples, about."""
        return int(self.per_row * len(self.numbers))

    def open(self) -> GroupedReader:
        """A reader of this process."""
        return GroupedReader(self)


class GroupedReader:
    """An open `GroupedShard` of one process."""

    def __init__(self, shard: GroupedShard, /) -> None:
        self._shard = shard

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """See `ShardReader.batches`: the columns asked for."""
        shard = self._shard
        return read_in_parts(columns, rows, types=shard.types, count=shard.rows, parts=self._parts, arrays=self._arrays)

    def _parts(self, rows: Ints) -> Iterator[Ints]:
        steps = np.diff(self._shard.starts)[rows]
        return runs_of(rows, steps * self._shard.per_row, most_bytes=_BATCH_BYTES)

    def _arrays(self, schema: pa.Schema, rows: Ints) -> list[pa.Array]:
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
            arrays.append(_sequences(shard.recipes[field.name], table.column(field.name), offsets, field.type))
        return arrays

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


def _sequences(recipe: Recipe, cells: pa.ChunkedArray, offsets: Ints, kind: pa.DataType) -> pa.Array:
    array = cells.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise ValidationError(f"Column {recipe.column.name!r}: a batch of it is above 2 GiB.")
    if recipe.role == "first":
        return array.take(pa.array(offsets[:-1]))
    inner = array
    if recipe.role in {"number", "array"}:
        while is_list(inner.type):
            inner = inner.flatten()
        inner = pa.FixedSizeListArray.from_arrays(inner, recipe.size)
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), inner)
    return lists.cast(kind) if lists.type != kind else lists

"""Samples as sequences: one each with an id, or those of a sequence put together step by step.

Putting steps together takes one pass over the id, the step and the columns of text. It decides which samples make which
sequence in which order, and which texts are the same throughout every sequence. After that any worker makes its
sequences from rows of several shards.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import Checked, HasStorage, SaysMapping, ability
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.shards.reading import count_lengths, rows_asked
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.column_types import Image, Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_binary, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.abilities import Kind
    from seqlake.protocols import Flat, Ints, Readable, Shard

_SHARD_BYTES = 64 << 20

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
        return named(source)
    ids = read_ids(source, sequence_id)
    if steps is None:
        twice = [one for one, count in Counter(ids.to_pylist()).items() if count > 1]
        if twice:
            raise ValidationError(
                f"{len(twice)} values of {sequence_id!r} occur more than once, the first is {twice[0]!r}.",
                hint="If samples are time steps, say which column orders them: steps=... (or steps=True).",
            )
        return named(source, key=sequence_id)
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


def named(source: Readable, /, *, key: str | None = None) -> NamedSamples:
    """Samples as sequences, one each.

    Args:
        source: The samples.
        key: The column of their ids, which becomes `sequence_id`; None numbers them.

    Raises:
        SchemaMismatchError: None, and there is a column `sequence_id`.
    """
    columns = source.schema
    if key is None and ID in columns:
        raise SchemaMismatchError(f"The source has a column {ID!r} already.", hint=f"Use it: sequence_id={ID!r}.")
    kept = {name: as_frames(columns[name]) for name in columns.names if name != key}
    schema = Schema(kept, metadata=Metadata(version=columns.metadata.version, extra=columns.metadata.extra))
    shards, parts, first = source.shards(), [], 0
    width = len(str(sum(shard.rows for shard in shards)))
    for shard in shards:
        name, _, tail = shard.key.rpartition("#")
        digest = hashlib.sha256(f"{tail} {key} {first} {width}".encode()).hexdigest()[:16]
        reader = partial(NamedReader, shard, schema.arrow, key, first, width)
        parts.append(ScannedShard(key=f"{name}#{digest}", rows=shard.rows, nbytes=shard.nbytes, reader=reader))
        first += shard.rows
    state = hashlib.sha256(f"named {key} {source.fingerprint}".encode()).hexdigest()[:32]
    return NamedSamples(root=source.root, schema=schema, parts=parts, state=state, source=source)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FromSamples(ScannedDataset):
    """Sequences made of samples: a `Readable`.

    Attributes:
        source: The samples.
    """

    source: Readable

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source's plug knows beyond the protocol: its findings, storage options and mapping."""
        return ability(self.source, kind) if kind in {Checked, HasStorage, SaysMapping} else None


class NamedSamples(FromSamples):
    """Each sample is a sequence."""

    def lengths(self, column: str, /) -> Ints:
        """The source's; an image is one frame."""
        if is_image(self.source.schema[column]):
            return np.ones(sum(shard.rows for shard in self.parts), np.int64)
        return self.source.lengths(column)


class NamedReader(ScannedReader):
    """Samples with ids.

    Args:
        shard: The samples.
        types: The logical Arrow schema.
        key: The column of their ids; None numbers them.
        first: The number of the first.
        width: Digits of a number.
    """

    def __init__(self, shard: Shard, types: pa.Schema, key: str | None, first: int, width: int, /) -> None:
        super().__init__(types, shard.rows)
        self._key = key
        self._first = first
        self._width = width
        self._reader = shard.open()

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """See `ShardReader.batches`: the columns asked for, in the source's own batches."""
        key = self._key
        stored = [name for name in columns if name != ID]
        asked = [*stored, *([key] if ID in columns and key is not None else [])]
        numbers = rows_asked(rows, self.count)
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
            schema = pa.schema([self.types.field(name) for name in columns])
            yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)

    def _array(self, name: str, cells: pa.Array) -> pa.Array:
        kind = self.types.field(name).type
        if cells.type == kind or not pa.types.is_binary(cells.type):
            return cells
        return pa.ListArray.from_arrays(pa.array(np.arange(len(cells) + 1), pa.int32()), cells).cast(kind)

    def _numbered(self, rows: Ints) -> pa.Array:
        return pa.array([f"{self._first + row:0{self._width}d}" for row in rows.tolist()], pa.string())

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


def grouped(source: Readable, ids: pa.ChunkedArray, /, *, key: str, steps: str | None) -> FromSamples:
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
    extra = source.schema.metadata.extra
    schema = Schema({name: recipe.column for name, recipe in recipes.items()}, metadata=Metadata(extra=extra))
    state = hashlib.sha256(source.fingerprint.encode())
    state.update(order.tobytes() + starts.tobytes())
    return FromSamples(
        root=source.root,
        schema=schema,
        parts=list(_shards(source.shards(), recipes, names, order, starts, schema.arrow)),
        state=state.hexdigest()[:32],
        source=source,
    )


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
        with closing(shard.open()) as reader:
            for batch in reader.batches([column]):
                yield batch.column(0)


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleRows:
    """The rows that some sequences are made of.

    Attributes:
        sources: The shards that hold the rows.
        places: [rows] which of them.
        numbers: [rows] the row in it.
        starts: [sequences + 1] the first row of each.
        ids: [sequences].
    """

    sources: Sequence[Shard]
    places: Ints
    numbers: Ints
    starts: Ints
    ids: Sequence[str]

    def key(self, name: str, recipes: Mapping[str, Recipe], /) -> str:
        """Of all rows and what becomes of them."""
        state = hashlib.sha256(repr([shard.key for shard in self.sources]).encode())
        state.update(self.places.tobytes() + self.numbers.tobytes() + self.starts.tobytes())
        state.update(repr([(name, recipe.role, str(recipe.column)) for name, recipe in recipes.items()]).encode())
        return f"{name}#{state.hexdigest()[:16]}"


def _shards(
    shards: Sequence[Shard], recipes: dict[str, Recipe], ids: list[str], order: Ints, starts: Ints, types: pa.Schema
) -> Iterator[ScannedShard]:
    """Sequences of about 64 MiB each."""
    firsts = np.cumsum([0, *(shard.rows for shard in shards)])
    per_row = max(1.0, sum(shard.nbytes for shard in shards) / max(1, int(firsts[-1])))
    first, count = 0, len(ids)
    while first < count:
        limit = starts[first] + max(1, int(_SHARD_BYTES / per_row))
        stop = min(count, max(first + 1, int(np.searchsorted(starts, limit, side="right")) - 1))
        rows = order[starts[first] : starts[stop]]
        numbers = np.searchsorted(firsts, rows, side="right") - 1
        used, places = np.unique(numbers, return_inverse=True)
        samples = SampleRows(
            sources=tuple(shards[int(number)] for number in used),
            places=places,
            numbers=rows - firsts[numbers],
            starts=starts[first : stop + 1] - starts[first],
            ids=tuple(ids[first:stop]),
        )
        yield ScannedShard(
            key=samples.key(f"sequences-{first}", recipes),
            rows=stop - first,
            nbytes=int(per_row * len(rows)),
            reader=partial(GroupedReader, samples, recipes, types, per_row),
        )
        first = stop


class GroupedReader(ScannedReader):
    """Sequences that are put together of samples.

    Args:
        samples: The rows that they are made of.
        recipes: How each column is made.
        types: The logical Arrow schema.
        per_row: Bytes of a sample, about.
    """

    most_rows = None

    def __init__(self, samples: SampleRows, recipes: Mapping[str, Recipe], types: pa.Schema, per_row: float, /) -> None:
        super().__init__(types, len(samples.ids), sizes=np.diff(samples.starts) * per_row)
        self._rows = samples
        self._recipes = recipes

    def lengths(self, column: str, /) -> Ints | None:
        """[sequences] T, which all columns of steps share; None for others."""
        recipe = self._recipes.get(column)
        return None if recipe is None or recipe.role == "first" else np.diff(self._rows.starts)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some sequences."""
        starts = self._rows.starts
        lengths = np.diff(starts)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        samples = np.repeat(starts[:-1][rows] - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        table = self._samples([name for name in schema.names if name != ID], samples)
        arrays = []
        for field in schema:
            if field.name == ID:
                arrays.append(pa.array([self._rows.ids[row] for row in rows.tolist()], pa.string()))
                continue
            arrays.append(_sequences(self._recipes[field.name], table.column(field.name), offsets, field.type))
        return arrays

    def _samples(self, columns: list[str], samples: Ints) -> pa.Table:
        """The samples' own columns, in the order of the steps."""
        held, parts, order = self._rows, [], []
        places = held.places[samples]
        for place in np.unique(places):
            here = np.flatnonzero(places == place)
            with closing(held.sources[int(place)].open()) as reader:
                parts += list(reader.batches(columns, rows=held.numbers[samples[here]]))
            order.append(here)
        table = pa.Table.from_batches(parts).combine_chunks()
        back = np.empty(len(samples), np.int64)
        back[np.concatenate(order)] = np.arange(len(samples))
        return table if bool((np.diff(back) == 1).all()) else table.take(pa.array(back))


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

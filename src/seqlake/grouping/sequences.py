"""Rows that are steps, put together into sequences.

Putting steps together takes one pass over the ids, the steps and the columns of one value. It decides which rows make
which sequence in which order, and which values are the same throughout every sequence. After that any worker makes its
sequences from rows of several shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import Checked, ability, storage_of
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.files.locations import is_local, local_path
from seqlake.files.stores import open_store
from seqlake.grouping.naming import FromSamples, as_frames, is_image, mapping_through
from seqlake.grouping.surveying import surveyed
from seqlake.grouping.templates import NameTemplate
from seqlake.protocols import Mapped
from seqlake.shards.reading import count_lengths
from seqlake.shards.scanned import ScannedReader, ScannedShard
from seqlake.spec.column_types import Trajectory, Video
from seqlake.spec.findings import Finding
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from fractions import Fraction

    from seqlake.grouping.surveying import StepSurvey
    from seqlake.protocols import Depth, Ints, Readable, Shard
    from seqlake.spec.column_types import ColumnType

_SHARD_BYTES = 64 << 20
_DEFAULT_VIDEO = "video"

Role = Literal["first", "number", "array", "list", "path"]
_HOW = {
    "first": "one value: it never changes within a sequence",
    "number": "a signal, one number a row",
    "array": "a signal, one array a row",
    "list": "a list, one cell a row",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a column of sequences is made from one of samples.

    Attributes:
        column: Of the sequences.
        role: `first`: one value for all steps; `number`, `array`: a step of a signal; `list`: a list of the cells;
            `path`: a file's name, made of values of the sequence.
        size: Numbers of one step.
    """

    column: Column
    role: Role
    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How rows become sequences, as the user says it.

    Attributes:
        key: The column that says which sequence a row belongs to; it becomes `sequence_id`.
        steps: The column that orders a sequence's rows; None for the order of the source.
        videos: Column -> template of the path of a sequence's video.
        fps: Steps, and frames, per second.
        timestamps: The column that holds the time of each step, and of each frame.
        keep_constant: Columns that stay one value a step even if they never change; True for all, False for none.
        types: Column -> what it means, of the sequences.
    """

    key: str
    steps: str | None
    videos: Mapping[str, NameTemplate] = field(default_factory=dict)
    fps: float | Fraction | None = None
    timestamps: str | None = None
    keep_constant: Collection[str] | bool = False
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    def keeps(self, column: str, /) -> bool:
        """Whether a column that never changes is a signal all the same."""
        if column in {self.steps, self.timestamps}:
            return True
        return self.keep_constant if isinstance(self.keep_constant, bool) else column in self.keep_constant

    @property
    def clock(self) -> dict[str, Any]:
        """The fields of a column type that say when steps are."""
        fps = None if self.fps is None else float(self.fps)
        given = {"fps": int(fps) if fps is not None and fps.is_integer() else fps, "timestamps": self.timestamps}
        return {name: one for name, one in given.items() if one is not None}


def templates(videos: str | Mapping[str, str] | None, /) -> dict[str, NameTemplate]:
    """The templates that `videos` gives, by column.

    Raises:
        SchemaMismatchError: One that is none.
    """
    given = {_DEFAULT_VIDEO: videos} if isinstance(videos, str) else videos or {}
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for text in given.values()):
        raise SchemaMismatchError(
            f"videos: expected a path with names of columns in braces, as 'videos/{{episode}}.mp4', or a mapping of "
            f"columns to such paths; found {videos!r:.200}."
        )
    parsed = {str(name): NameTemplate(text, str(name)) for name, text in given.items()}
    for template in parsed.values():
        if not template.names:
            raise SchemaMismatchError(
                f"Column {template.column!r}: {template.text!r} names no column, so all sequences would share a file.",
                hint="Put the column that tells videos apart in braces, as 'videos/{episode}.mp4'.",
            )
    return parsed


def grouped(source: Readable, how: Grouping, /) -> StepsGrouped:
    """Sequences of the samples that share an id, in the order in which the ids first occur.

    Args:
        source: The samples.
        how: Which columns say what.

    Raises:
        SchemaMismatchError: A column that cannot be what it should be.
        ValidationError: Two samples of a sequence have the same step, or one has none.
        UnsafeReferenceError: A cell makes a path that leaves the folder.
    """
    _refuse_unknown(source, how)
    asked = {one for template in how.videos.values() for one in template.names if one not in {how.key, ID}}
    seen = surveyed(source, key=how.key, steps=how.steps, firsts=sorted(asked))
    order = np.lexsort((seen.moments, seen.codes))
    starts = np.searchsorted(seen.codes[order], np.arange(len(seen.ids) + 1))
    _refuse_twins(seen, order)
    paths = {name: _paths(template, seen, how.key) for name, template in how.videos.items()}
    recipes = {name: _recipe(source, name, seen, how) for name in source.schema.names if name != how.key}
    for name in how.videos:
        kind = Video(**how.clock)
        recipes[name] = Recipe(column=Column(name, kind.arrow, kind), role="path")
    for name, declared in how.types.items():
        if name not in recipes:
            raise SchemaMismatchError(f"column_types names {name!r}, and there are {', '.join(recipes)}.")
        recipes[name] = replace(recipes[name], column=replace(recipes[name].column, type=declared))
    extra = source.schema.metadata.extra
    schema = Schema({name: recipe.column for name, recipe in recipes.items()}, metadata=Metadata(extra=extra))
    state = hashlib.sha256(source.fingerprint.encode())
    state.update(order.tobytes() + starts.tobytes() + repr(sorted(paths.items())).encode())
    state.update(repr([(name, recipe.role, str(recipe.column)) for name, recipe in recipes.items()]).encode())
    return StepsGrouped(
        root=source.root,
        schema=schema,
        parts=list(_shards(source.shards(), recipes, seen.ids, order, starts, paths, schema.arrow)),
        state=state.hexdigest()[:32],
        source=source,
        how=how,
        recipes=recipes,
        paths=paths,
        ids=seen.ids,
    )


def _refuse_unknown(source: Readable, how: Grouping) -> None:
    schema = source.schema
    for template in how.videos.values():
        for name in template.names:
            if name != ID:
                schema[name]
        if template.column in schema.names or template.column == ID:
            raise SchemaMismatchError(
                f"videos: there is a column {template.column!r} already.",
                hint="Give the videos another name: videos={'camera': ...}.",
            )
    if not isinstance(how.keep_constant, bool):
        for name in how.keep_constant:
            schema[name]
    _refuse_no_clock(schema, how)


def _refuse_no_clock(schema: Schema, how: Grouping) -> None:
    if how.timestamps is not None:
        kind = schema[how.timestamps].arrow
        if not (is_number(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind)):
            raise SchemaMismatchError(f"`timestamps` names a column of times; {how.timestamps!r} is {kind}.")
    if how.fps is not None and not 0 < float(how.fps) < float("inf"):
        raise ValueError(f"fps: expected steps per second, above 0; found {how.fps!r}.")
    if how.fps is not None and how.timestamps is not None:
        raise TypeError("fps is a constant rate and timestamps names times of their own: give one of them.")


def _paths(template: NameTemplate, seen: StepSurvey, key: str) -> list[str]:
    """[sequences] the file of each."""
    others = [name for name in template.names if name not in {key, ID}]
    for name in others:
        if name not in seen.constant:
            raise ValidationError(
                f"Column {template.column!r}: {name!r} changes within a sequence, or is no single value, so it cannot "
                "be part of the name of its video."
            )
    cells = {key: seen.ids, ID: seen.ids, **{name: seen.firsts[name] for name in others}}
    paths = []
    for row, sequence in enumerate(seen.ids):
        try:
            paths.append(template.filled({name: cells[name][row] for name in template.names}))
        except ValidationError as error:
            error.message = f"Sequence {sequence!r}: {error.message}"
            error.args = (error.message,)
            raise
    return paths


def _refuse_twins(seen: StepSurvey, order: Ints) -> None:
    codes, moments = seen.codes[order], seen.moments[order]
    twins = np.flatnonzero((np.diff(codes) == 0) & (moments[1:] == moments[:-1]))
    if len(twins):
        at = int(twins[0])
        raise ValidationError(
            f"Sequence {seen.ids[int(codes[at])]!r} has two samples of step {moments[at]!s}: "
            f"{int(order[at])} and {int(order[at + 1])}.",
            hint="Remove one of them, or say what else tells steps apart; steps=True takes the order of the source.",
        )


def _recipe(source: Readable, name: str, seen: StepSurvey, how: Grouping) -> Recipe:
    column = source.schema[name]
    kind = column.arrow
    if name in seen.constant and (is_text(kind) or seen.has_steps) and not how.keeps(name):
        return Recipe(column=column, role="first")
    clock = {} if name == how.timestamps else how.clock
    if is_number(kind) and not pa.types.is_boolean(kind):
        lacking = name in seen.nullable and not pa.types.is_floating(kind)
        signal = Trajectory(dim=1, dtype=pa.float64() if lacking else kind, **clock)
        return Recipe(column=Column(name, signal.arrow, signal), role="number")
    if is_image(column):
        return Recipe(column=as_frames(column), role="list")
    shape = _shape(source, column) if column.category in {"vector", "temporal"} else None
    if shape is None:
        return Recipe(column=Column(name, pa.list_(column.logical)), role="list")
    size = int(np.prod(shape))
    said = {} if column.type is None else dict(column.type.fields)
    facts = {**clock, **{key: one for key, one in said.items() if key in _OF_SIGNALS}}
    signal = Trajectory(dim=size, dtype=column.value_type, shape=list(shape) if len(shape) > 1 else None, **facts)
    return Recipe(column=Column(name, signal.arrow, signal), role="array", size=size)


_OF_SIGNALS = frozenset({"units", "coordinate_frame", "fps", "timestamps", "origin", "names"})


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
        paths: Column -> [sequences] the files that it names.
    """

    sources: Sequence[Shard]
    places: Ints
    numbers: Ints
    starts: Ints
    ids: Sequence[str]
    paths: Mapping[str, Sequence[str]]

    def key(self, name: str, recipes: Mapping[str, Recipe], /) -> str:
        """Of all rows and what becomes of them."""
        state = hashlib.sha256(repr([shard.key for shard in self.sources]).encode())
        state.update(self.places.tobytes() + self.numbers.tobytes() + self.starts.tobytes())
        state.update(repr([list(self.ids), sorted(self.paths.items())]).encode())
        state.update(repr([(name, recipe.role, str(recipe.column)) for name, recipe in recipes.items()]).encode())
        return f"{name}#{state.hexdigest()[:16]}"


def _shards(
    shards: Sequence[Shard],
    recipes: dict[str, Recipe],
    ids: list[str],
    order: Ints,
    starts: Ints,
    paths: Mapping[str, Sequence[str]],
    types: pa.Schema,
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
            paths={name: tuple(named[first:stop]) for name, named in paths.items()},
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

    most_rows: int | None = None

    def __init__(self, samples: SampleRows, recipes: Mapping[str, Recipe], types: pa.Schema, per_row: float, /) -> None:
        super().__init__(types, len(samples.ids), sizes=np.diff(samples.starts) * per_row)
        self._rows = samples
        self._recipes = recipes

    def lengths(self, column: str, /) -> Ints | None:
        """[sequences] T, which all columns of steps share; None for others."""
        recipe = self._recipes.get(column)
        return None if recipe is None or recipe.role in {"first", "path"} else np.diff(self._rows.starts)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some sequences."""
        starts = self._rows.starts
        lengths = np.diff(starts)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        samples = np.repeat(starts[:-1][rows] - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        stored = [name for name in schema.names if name != ID and self._recipes[name].role != "path"]
        table = self._samples(stored, samples)
        arrays = []
        for name, kind in zip(schema.names, schema.types, strict=True):
            named = self._rows.ids if name == ID else self._rows.paths.get(name)
            if named is not None:
                arrays.append(pa.array([named[row] for row in rows.tolist()], kind))
                continue
            arrays.append(_sequences(self._recipes[name], table.column(name), offsets, kind))
        return arrays

    def _samples(self, columns: list[str], samples: Ints) -> pa.Table:
        """The samples' own columns, in the order of the steps."""
        if not columns:
            return pa.table({})
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
    if recipe.role == "number":
        inner = _numbers(array, kind.value_type.value_type)
    if recipe.role in {"number", "array"}:
        while is_list(inner.type):
            inner = inner.flatten()
        inner = pa.FixedSizeListArray.from_arrays(inner, recipe.size)
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), inner)
    return lists.cast(kind) if lists.type != kind else lists


def _numbers(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers of a signal, which has no nulls: NaN stands for what is missing."""
    cells = cells if cells.type == kind else cells.cast(kind, safe=False)
    return pc.fill_null(cells, pa.scalar(float("nan"), kind)) if cells.null_count else cells


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StepsGrouped(FromSamples):
    """Rows that are steps, as sequences: a `Readable` and `Checked`, which says what became of each column.

    Attributes:
        how: What the user said of them.
        recipes: How each column is made.
        paths: Column -> [sequences] the file of each.
        ids: [sequences].
    """

    how: Grouping
    recipes: Mapping[str, Recipe]
    paths: Mapping[str, Sequence[str]]
    ids: Sequence[str]

    def mapping(self) -> Sequence[Mapped]:
        """What became of each column of the rows, and of the videos beside them."""

        def now(name: str) -> tuple[str, str]:
            return (ID, "") if name == self.how.key else (name, _HOW[self.recipes[name].role])

        videos = [
            Mapped(source=template.text, column=name, how="a file for each sequence")
            for name, template in self.how.videos.items()
        ]
        return [*mapping_through(self.source, now), *videos]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What the rows' own format knows of them, and videos that are not there."""
        inner = ability(self.source, Checked)
        if inner is not None:
            yield from inner.check(depth)
        present = self._present() if self.paths else set()
        for name, paths in self.paths.items():
            for sequence, path in zip(self.ids, paths, strict=True):
                if path not in present:
                    text = f"{path} is not there, which {self.how.videos[name].text} names"
                    yield Finding(
                        code="table-missing-video",
                        severity="error",
                        message=text,
                        location=path,
                        sequence_id=sequence,
                        column=name,
                    )

    def _present(self) -> set[str]:
        """Those of the files that are there."""
        named = {path for paths in self.paths.values() for path in paths}
        if is_local(self.root):
            folder = local_path(self.root)
            return {path for path in named if (folder / path).is_file()}
        store = open_store(self.root, storage=storage_of(self.source))
        tops = {path.partition("/")[0] if "/" in path else "" for path in named}
        return named & {path for top in sorted(tops) for path, _ in store.list(top)}

"""Scenes that were converted, as the store that they were: Arrow cells become structured rows again, scene by scene.

Everything that takes a store takes such a dataset by it: samples, selections, tracks and windows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.arguments import COUNT, Kind, takes
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError, ValidationError
from seqlake.formats._zarr.caching import CACHE_BYTES, ChunkCache
from seqlake.formats.l5kit.arrays import RowArray, joined
from seqlake.formats.l5kit.columns import field_of
from seqlake.formats.l5kit.layout import CHILDREN
from seqlake.formats.l5kit.mapping import COUNTS, KEY, RUNS, SCENE, Mapping, kind_of
from seqlake.formats.l5kit.store import FACES, FRAME_INTERVAL, FRAMES, MASKS, SCENES, SceneArrays
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.formats._zarr.metadata import ArrayMetadata
    from seqlake.protocols import Ints, Readable, Shard, ShardReader
    from seqlake.spec.schema import Schema


_MOST_OPEN = 8  # readers of shards
ROWS = Kind(
    "a store as open_store gives it, or an open dataset that was converted from one",
    lambda value: isinstance(value, SceneArrays) or (callable(value.shards) and bool(value.schema)),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Which rows of a dataset hold the rows of an array, piece after piece without a gap.

    Attributes:
        first: [pieces] the first row of each in the array.
        stop: [pieces] the row after its last.
        row: [pieces] the dataset's row that holds it.
        offset: [pieces] where in its cells it begins.
    """

    first: Ints
    stop: Ints
    row: Ints
    offset: Ints


class ConvertedArray(RowArray):
    """Rows of an array that lie in the cells of scenes.

    Args:
        store: The dataset, as a store.
        name: The array's folder in a store.
        metadata: What its `.zarray` said, with the rows that there are.
        pieces: Which scenes hold them.
    """

    def __init__(self, store: ConvertedStore, name: str, metadata: ArrayMetadata, pieces: Pieces, /) -> None:
        super().__init__(name, metadata)
        self._store = store
        self._pieces = pieces

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first row, row after the last) of each scene."""
        return zip(self._pieces.first.tolist(), self._pieces.stop.tolist(), strict=True)

    def parts_of(self, numbers: Ints, /) -> Ints:
        """[n] the piece that holds each row."""
        return np.searchsorted(self._pieces.stop, numbers, side="right")

    def rows(self, start: int, stop: int, /) -> NDArray[Any]:
        """Rows from `start` to before `stop`; of one scene as they lie in memory already."""
        if start < 0 or stop > len(self):
            raise IndexError(f"{self.name} has {len(self)} rows; expected a part of them, found {start} to {stop}.")
        parts = list(self._parts(start, stop))
        return parts[0] if len(parts) == 1 else joined(parts, self.metadata)

    def read(self, start: int, stop: int, /) -> NDArray[Any]:
        """Rows from `start` to before `stop`, in memory of their own."""
        return joined(list(self._parts(start, stop)), self.metadata)

    def refuse_empty(self, *, each: int = 0) -> None:
        """Nothing is promised: rows are counted by the cells that hold them."""

    def _parts(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        pieces, at = self._pieces, start
        number = int(np.searchsorted(pieces.stop, start, side="right"))
        while at < stop:
            end = min(stop, int(pieces.stop[number]))
            moved = int(pieces.offset[number] - pieces.first[number])
            yield self._store.cells(self.name, int(pieces.row[number]))[at + moved : end + moved]
            at, number = end, number + 1


class ConvertedStore(SceneArrays[ConvertedArray]):
    """Rows of scenes as a store of l5kit, read only; it pickles. `as_store` makes it.

    Args:
        location: Where the dataset lies.
        mapping: How its columns were arrays.
        shards: Its shards.
        steps: By array, [rows] how many rows each scene holds.
        state: Changes with its rows.
        cache_bytes: Bytes of scenes that are kept, the last used ones.
    """

    def __init__(
        self,
        location: str,
        mapping: Mapping,
        shards: Sequence[Shard],
        steps: dict[str, Ints],
        state: str,
        /,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(location)
        self._mapping = mapping
        self._shards = shards
        self._steps = steps
        self._state = state
        self._cache = ChunkCache(cache_bytes)
        self._lock = Lock()
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()

    @property
    def has_faces(self) -> bool:
        """Whether the store had an array of traffic lights."""
        return FACES in self._mapping.arrays

    @property
    def attributes_text(self) -> str:
        """The text of `.zattrs`, as it was."""
        return self._mapping.attributes

    @property
    def state(self) -> str:
        """A hash of what changes when any row of the dataset may have."""
        return self._state

    def mask_names(self) -> list[str]:
        """The names of the masks that the store had."""
        return [name.partition("/")[2] for name in self._mapping.arrays if name.startswith(f"{MASKS}/")]

    def array(self, name: str, /) -> ConvertedArray:
        """One array by its folder in the store.

        Raises:
            DatasetNotFoundError: There was none.
            ValidationError: The rows do not hold all of it.
        """
        if name not in self._mapping.arrays:
            raise DatasetNotFoundError(f"{self.location} was made of a store without {name}.", path=self.location)
        pieces = self._pieces(name)
        metadata = self._mapping.arrays[name].resized(int(pieces.stop[-1]) if len(pieces.stop) else 0)
        return ConvertedArray(self, name, metadata, pieces)

    def heads(self, scenes: Sequence[int], /) -> list[tuple[str, int]]:
        """(id, number) of some scenes, as the dataset's rows have them."""
        ids, numbers = self._heads.column(ID), self._heads.column(SCENE)
        return [(ids[row].as_py(), numbers[row].as_py()) for row in self._order[list(scenes)].tolist()]

    def cells(self, array: str, row: int, /) -> NDArray[Any]:
        """The rows of one array that a row of the dataset holds; read-only, and shared with others."""
        return self._scenes if array == SCENES else self._cache.get((array, row), lambda: self._cells(array, row))

    def _cells(self, array: str, row: int) -> NDArray[Any]:
        counted = [COUNTS[child] for child in self._children] if array == FRAMES else []
        names = [one.name for one in self._mapping.fields if one.array == array]
        shard = int(np.searchsorted(self._ends, row, side="right"))
        before = int(self._ends[shard]) - self._shards[shard].rows
        batch = self._batch(shard, [*names, *counted], np.array([row - before], np.int64))
        rows = rows_in(batch, self._mapping, array)
        expected = int(self._steps[kind_of(array)][row])
        if len(rows) != expected:
            raise ValidationError(f"Column {names[0]!r} has {len(rows)} steps in row {row}, expected {expected}.")
        for child in counted and self._children:
            counts = np.asarray(field_of(batch.column(COUNTS[child]), np.dtype("<i4"), name=COUNTS[child]), np.int64)
            held = int(self._steps[child][row])
            if len(counts) != len(rows) or (counts < 0).any() or int(counts.sum()) != held:
                raise ValidationError(
                    f"Column {COUNTS[child]!r} does not count the {held} rows of {child} in row {row}."
                )
            rows[CHILDREN[child]] = _intervals(counts) + int(self._steps[child][:row].sum())
        rows.flags.writeable = False
        return rows

    def _batch(self, shard: int, columns: Sequence[str], rows: Ints | None = None, /) -> pa.RecordBatch:
        """Some rows of a shard in one batch. Opening costs more than a scene, so a few readers stay open."""
        with self._lock:  # a reader is for one thread at a time
            if shard not in self._readers:
                self._readers[shard] = self._shards[shard].open()
            self._readers.move_to_end(shard)
            [batch] = (
                pa.Table.from_batches(self._readers[shard].batches(columns, rows=rows)).combine_chunks().to_batches()
            )
            while len(self._readers) > _MOST_OPEN:
                self._readers.popitem(last=False)[1].close()
        return batch

    @property
    def _children(self) -> list[str]:
        """The arrays whose intervals lengths say."""
        return self._mapping.children if self._mapping.tiles else []

    @cached_property
    def _ends(self) -> Ints:
        """[shards] the row after the last of each."""
        return np.cumsum([shard.rows for shard in self._shards], dtype=np.int64)

    @cached_property
    def _heads(self) -> pa.RecordBatch:
        """What all rows have beside their steps: id, number, fields of scenes, and where they were in the store."""
        names = [ID, SCENE, *(one.name for one in self._mapping.fields if one.array == SCENES)]
        names += [] if self._mapping.tiles else _runs(self._mapping).values()
        parts = [self._batch(number, names) for number, shard in enumerate(self._shards) if shard.rows]
        types = self._mapping.schema().arrow
        empty = pa.RecordBatch.from_pylist([], pa.schema([types.field(name) for name in names]))
        return pa.concat_batches(parts) if parts else empty

    @cached_property
    def _order(self) -> Ints:
        """[scenes] the row of each."""
        if self._mapping.tiles:
            return np.arange(self._heads.num_rows, dtype=np.int64)
        numbers = np.asarray(field_of(self._heads.column(SCENE), np.dtype("<i8"), name=SCENE))
        rows = np.argsort(numbers, kind="stable")[int((numbers < 0).sum()) :]
        if (numbers[rows] != np.arange(len(rows))).any():
            raise self._lacks(SCENES)
        return rows

    @cached_property
    def _scenes(self) -> NDArray[Any]:
        rows = rows_in(self._heads, self._mapping, SCENES)[self._order]
        if self._mapping.tiles:
            rows[FRAME_INTERVAL] = _intervals(self._steps[FRAMES])
        rows.flags.writeable = False
        return rows

    def _pieces(self, array: str) -> Pieces:
        if array == SCENES:
            zero = np.zeros(1, np.int64)
            return Pieces(first=zero, stop=zero + len(self._order), row=zero, offset=zero)
        steps = self._steps[kind_of(array)]
        if self._mapping.tiles:
            ends = np.cumsum(steps)
            return Pieces(first=ends - steps, stop=ends, row=np.arange(len(steps)), offset=np.zeros_like(ends))
        return self._scattered(array, steps)

    def _scattered(self, array: str, steps: Ints) -> Pieces:
        """The pieces of an array whose rows may be held twice, or by no scene: each row by the first that holds it."""
        column, total = RUNS[kind_of(array)], self._mapping.arrays[array].shape[0]
        cells = self._heads.column(column)
        lengths, values = _lengths(cells), cells.flatten().to_numpy()
        if (lengths % 2).any() or cells.flatten().null_count:
            raise ValidationError(f"Column {column!r}: expected pairs of rows, first and after the last.")
        pairs, owner = values.reshape(-1, 2), np.repeat(np.arange(len(steps)), lengths // 2)
        sizes = pairs[:, 1] - pairs[:, 0]
        held = np.zeros(len(steps), np.int64)
        np.add.at(held, owner, sizes)
        if (sizes < 0).any() or (held != steps).any():
            raise ValidationError(f"Column {column!r} does not say where the rows of {array} were.")
        ends = np.cumsum(sizes)
        offset = ends - sizes - (np.cumsum(held) - held)[owner]
        pieces, at = [], 0
        for number in np.lexsort((-pairs[:, 1], pairs[:, 0])).tolist():
            first, stop = pairs[number].tolist()
            if first > at:
                break
            if stop > at:
                pieces.append((at, stop, int(owner[number]), int(offset[number]) + at - first))
                at = stop
        if at != total:
            raise self._lacks(array)
        parts = np.array(pieces, np.int64).reshape(-1, 4)
        return Pieces(first=parts[:, 0], stop=parts[:, 1], row=parts[:, 2], offset=parts[:, 3])

    def _lacks(self, array: str) -> ValidationError:
        return ValidationError(
            f"{self.location}: these rows do not hold all {array} of the store that they were.",
            path=self.location,
            hint="The intervals of this store do not tile, so all of its rows are needed together, those with "
            "scene_index -1 too.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        rows = (self.location, self._mapping, self._shards, self._steps, self._state)
        return (partial(ConvertedStore, cache_bytes=self._cache.limit), rows)


@takes(rows=ROWS, cache_bytes=COUNT)
def as_store(rows: SceneArrays[Any] | Readable, /, *, cache_bytes: int = CACHE_BYTES) -> SceneArrays[Any]:
    """Scenes that were converted, as the store that they were: arrays, masks and scenes by the names of l5kit.

    Nothing is converted back: rows are made of the scenes that are asked for.

    Args:
        rows: `sl.open` of what a store was converted to, or some of its scenes; a store stays what it is.
        cache_bytes: Bytes of scenes that are kept in memory.

    Raises:
        SchemaMismatchError: Rows that are no scenes of l5kit, or lack columns of them.

    Example:
        ```python
        store = as_store(sl.open("data/drives"))
        store.agents[:100]["centroid"], store.get_scene_dataset(0).frames
        ```
    """
    if isinstance(rows, SceneArrays):
        return rows
    schema = rows.schema
    mapping = mapping_of(schema)
    steps = {}
    for array in mapping.arrays:
        if array == kind_of(array) != SCENES:
            columns = [name for name, kind in mapping.stepped.items() if kind == array]
            steps[array] = rows.lengths(min(columns, key=lambda name: schema[name].category != "temporal"))
            if (steps[array] < 0).any():
                raise SchemaMismatchError(f"{rows.root}: a cell of {array} is null; l5kit has no nulls.")
    state = hashlib.sha256(rows.fingerprint.encode()).hexdigest()
    return ConvertedStore(rows.root, mapping, rows.shards(), steps, state, cache_bytes=cache_bytes)


def mapping_of(schema: Schema, /) -> Mapping:
    """How the columns of scenes were arrays.

    Raises:
        SchemaMismatchError: No scenes of l5kit, or not all of their columns.
    """
    value = schema.metadata.extra.get(KEY)
    if value is None:
        raise SchemaMismatchError(
            "Expected rows of scenes, whose metadata say by the key 'l5kit' how they were a store; found the columns "
            f"{', '.join(schema.names)}, and no usable key 'l5kit'.",
            hint='sl.convert("sample.zarr", "data/drives") makes such rows.',
        )
    mapping = Mapping.from_json(value)
    missing = [name for name in required(mapping) if name not in schema]
    if missing:
        raise SchemaMismatchError(
            f"A store of l5kit needs the columns {', '.join(missing)}, which these rows lack.",
            hint="Keep all columns that came from l5kit, under their names.",
        )
    return mapping


def required(mapping: Mapping, /) -> list[str]:
    """The columns without which a store cannot be written."""
    counts = [COUNTS[child] for child in mapping.children] if mapping.tiles else [SCENE, *_runs(mapping).values()]
    return [*(one.name for one in mapping.fields), *counts]


def _runs(mapping: Mapping) -> dict[str, str]:
    return {array: name for array, name in RUNS.items() if array in mapping.arrays}


def structured(
    batch: pa.RecordBatch, mapping: Mapping, /
) -> tuple[dict[str, NDArray[Any]], dict[str, list[list[int]]]]:
    """The rows of every array that some scenes hold, and where they lay in a store whose intervals do not tile.

    Args:
        batch: Rows of the view of scenes.
        mapping: How their columns were arrays.

    Returns:
        (rows by array; with intervals from 0 where they tile, as they were where not), ([first, after the last] of
        the original rows by array; empty where they tile).

    Raises:
        ValidationError: Cells of one scene that do not fit each other.
    """
    arrays = {name: rows_in(batch, mapping, name) for name in mapping.arrays}
    if mapping.tiles:
        _count(batch, mapping, arrays)
        return arrays, {}
    runs = {array: _pairs(batch.column(column)) for array, column in _runs(mapping).items()}
    scenes = batch.column(SCENE).to_numpy()
    arrays[SCENES] = arrays[SCENES][scenes >= 0]
    runs[SCENES] = [[int(scene), int(scene) + 1] for scene in scenes if scene >= 0]
    return arrays, runs


def rows_in(batch: pa.RecordBatch, mapping: Mapping, array: str, /) -> NDArray[Any]:
    """The rows of one array that some scenes hold; intervals that lengths say are zeros.

    Raises:
        ValidationError: Cells that do not fit each other.
    """
    fields, dtype = [one for one in mapping.fields if one.array == array], mapping.arrays[array].dtype
    values = {one.field: field_of(batch.column(one.name), one.dtype, name=one.name) for one in fields}
    if dtype.names is None:
        return values[""]
    steps = {one.name: len(values[one.field]) for one in fields}
    count = max(steps.values(), default=batch.num_rows)
    if uneven := [name for name, there in steps.items() if there != count]:
        longest = max(steps, key=steps.__getitem__)
        raise ValidationError(
            f"Expected columns {longest!r} and {uneven[0]!r} to have as many steps, found {count} and "
            f"{steps[uneven[0]]}."
        )
    rows = np.zeros(count, dtype)
    for name, cells in values.items():
        rows[name] = cells
    return rows


def _pairs(cells: pa.Array) -> list[list[int]]:
    return [[int(a), int(b)] for a, b in cells.flatten().to_numpy().reshape(-1, 2)]


def _count(batch: pa.RecordBatch, mapping: Mapping, arrays: dict[str, NDArray[Any]]) -> None:
    """Fill in the intervals from the lengths."""
    steps = {name: np.zeros(batch.num_rows, np.int64) for name in mapping.arrays}
    for one in mapping.fields:
        if one.array != SCENES:
            steps[one.array] = _lengths(batch.column(one.name))
            if not (steps[one.array] == steps[kind_of(one.array)]).all() and kind_of(one.array) != one.array:
                raise ValidationError(f"Column {one.name!r} has not as many steps as the agents.")
    arrays[SCENES][FRAME_INTERVAL] = _intervals(steps[FRAMES])
    owner = np.repeat(np.arange(batch.num_rows), steps[FRAMES])
    for child in mapping.children:
        column = batch.column(COUNTS[child])
        counts = np.asarray(field_of(column, np.dtype("<i4"), name=COUNTS[child]), np.int64)
        if len(counts) != len(owner) or (_lengths(column) != steps[FRAMES]).any():
            raise ValidationError(f"Column {COUNTS[child]!r} has not one number for each frame.")
        counted = np.bincount(owner, weights=counts, minlength=batch.num_rows).astype(np.int64)
        if (counted != steps[child]).any() or (counts < 0).any():
            row = int(np.argmax(counted != steps[child]))
            raise ValidationError(
                f"Column {COUNTS[child]!r} counts {counted[row]} rows in a scene that has {steps[child][row]} of "
                f"{child}."
            )
        arrays[FRAMES][CHILDREN[child]] = _intervals(counts)


def _lengths(cells: pa.Array) -> Ints:
    if cells.null_count:
        raise SchemaMismatchError("A cell is null; l5kit has no nulls.")
    lengths: Any = pa.compute.list_value_length(cells)
    return np.asarray(lengths, np.int64)


def _intervals(counts: Ints) -> Ints:
    ends = np.cumsum(counts)
    return np.stack([ends - counts, ends], axis=1)

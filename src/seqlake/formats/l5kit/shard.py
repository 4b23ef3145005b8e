"""Some scenes of a store as a shard: structured rows become Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.formats.l5kit.arrays import joined
from seqlake.formats.l5kit.columns import row_cells, step_cells
from seqlake.formats.l5kit.layout import CHILDREN, NO_RUNS, SceneRows
from seqlake.formats.l5kit.mapping import COUNTS, RUNS, SCENE, TIMES, FieldColumn, Mapping, kind_of
from seqlake.formats.l5kit.store import FACES, FRAMES, SCENES, Store
from seqlake.protocols import Flat
from seqlake.shards.reading import read_in_parts, refuse_unknown, runs_of
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

_BATCH_BYTES = 32 << 20


class SceneCells:
    """Columns of a few scenes; each array of the store is read once, when a column of it is asked for.

    Args:
        store: The store.
        mapping: How its arrays are columns.
        rows: The scenes.
        names: [rows] their ids.
        types: The logical Arrow schema.
    """

    def __init__(
        self, store: Store, mapping: Mapping, rows: Sequence[SceneRows], names: Sequence[str], types: pa.Schema, /
    ) -> None:
        self._store = store
        self._mapping = mapping
        self._rows = rows
        self._names = names
        self._types = types
        self._read: dict[str, NDArray[Any]] = {}

    def column(self, name: str, /) -> pa.Array:
        """[rows] the cells of a column."""
        kind = self._types.field(name).type
        if name == ID:
            return pa.array(list(self._names), pa.string())
        if name == SCENE:
            return pa.array([row.scene for row in self._rows], pa.int64())
        field = self._fields.get(name)
        if field is not None and field.array == SCENES:
            return row_cells(self._values(field), kind, name=name)
        if field is not None:
            return step_cells(self._values(field), self.offsets(kind_of(field.array)), kind, name=name)
        for array, column in RUNS.items():
            if name == column:
                cells = [row.runs.get(array, NO_RUNS).reshape(-1) for row in self._rows]
                offsets = np.cumsum([0, *map(len, cells)], dtype=np.int64)
                return step_cells(np.concatenate([np.zeros(0, np.int64), *cells]), offsets, kind, name=name)
        for array, column in COUNTS.items():
            if name == column:
                return step_cells(self.counts(array).astype(np.int32), self.offsets(FRAMES), kind, name=name)
        array = FACES if name.startswith("tl_faces") else "agents"
        return step_cells(self._times(array), self.offsets(array), kind, name=name)

    @cached_property
    def _fields(self) -> dict[str, FieldColumn]:
        return {one.name: one for one in self._mapping.fields}

    def _values(self, field: FieldColumn) -> NDArray[Any]:
        rows = self.array(field.array)
        return rows[field.field] if field.field else rows

    def array(self, name: str, /) -> NDArray[Any]:
        """The rows of one array that these scenes hold, end to end."""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> NDArray[Any]:
        array = self._store.arrays[name]
        if name == SCENES:
            out = np.zeros(len(self._rows), array.dtype)
            named = [at for at, row in enumerate(self._rows) if row.scene >= 0]
            out[named] = array[[self._rows[at].scene for at in named]]
            return out
        runs = np.concatenate([NO_RUNS, *(row.runs.get(kind_of(name), NO_RUNS) for row in self._rows)])
        runs = runs[runs[:, 1] > runs[:, 0]]
        if len(runs) and (runs[1:, 0] == runs[:-1, 1]).all():
            return array.rows(int(runs[0, 0]), int(runs[-1, 1]))
        return joined([array.rows(a, b) for a, b in runs.tolist()], array.metadata)

    def offsets(self, array: str, /) -> Ints:
        """[rows + 1] the first row of each scene among those that `array` gives."""
        return np.cumsum([0, *(row.count(array) for row in self._rows)], dtype=np.int64)

    def counts(self, array: str, /) -> Ints:
        """[frames] how many rows of an array each frame names."""
        intervals = self.array(FRAMES)[CHILDREN[array]].astype(np.int64)
        return intervals[:, 1] - intervals[:, 0]

    def _times(self, array: str) -> Ints:
        """[agents or lights] the time of the frame that names each; 0 for orphans."""
        total = int(self.offsets(array)[-1])
        frames, parts, at = self.array(FRAMES), [], 0
        if array not in self._mapping.children:
            return np.zeros(total, np.int64)
        counts = self.counts(array)
        for row in self._rows:
            inside = slice(at, at + row.count(FRAMES))
            at = inside.stop
            times = np.repeat(frames[TIMES][inside], counts[inside]).astype(np.int64)
            parts.append(np.concatenate([times, np.zeros(row.count(array) - len(times), np.int64)]))
        return np.concatenate([np.zeros(0, np.int64), *parts])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneShard:
    """Neighbouring scenes; picklable.

    Attributes:
        store: Where they lie.
        mapping: How its arrays are columns.
        scenes: The scenes.
        names: [rows] their ids.
        types: The logical Arrow schema.
        key: `<name>#<hash>`.
    """

    store: Store
    mapping: Mapping = field(repr=False)
    scenes: Sequence[SceneRows] = field(repr=False)
    names: Sequence[str] = field(repr=False)
    types: pa.Schema = field(repr=False)
    key: str

    @property
    def rows(self) -> int:
        """Scenes of the shard."""
        return len(self.scenes)

    @property
    def nbytes(self) -> int:
        """Bytes of their rows, decoded."""
        return sum(scene_bytes(scene, self.mapping) for scene in self.scenes)

    def open(self) -> SceneReader:
        """A reader for this process."""
        return SceneReader(self)


def scene_bytes(scene: SceneRows, mapping: Mapping, /) -> int:
    """Bytes of the rows that a scene holds, decoded."""
    arrays = mapping.arrays.items()
    return sum(metadata.row_bytes * (scene.count(kind_of(name)) if name != SCENES else 1) for name, metadata in arrays)


class SceneReader:
    """Reads one open `SceneShard`."""

    def __init__(self, shard: SceneShard, /) -> None:
        self._shard = shard
        self._columns = {one.name: one for one in shard.mapping.fields}

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of at most about 32 MiB.

        Args:
            columns: Names of the schema.
            rows: Row numbers, any order, repeats allowed; None for all.

        Raises:
            SchemaMismatchError: A column that is not there.
            IndexError: A row that is not there.
            CorruptFileError: A chunk that cannot be decoded.
        """
        return read_in_parts(
            columns,
            rows,
            types=self._shard.types,
            count=self._shard.rows,
            parts=self._parts,
            arrays=self._arrays,
            path=self._shard.store.location,
        )

    def flat(self, column: str, /) -> Flat | None:
        """Where the numbers of a column lie in the store: where one plain, mapped file holds all of the shard's."""
        refuse_unknown([column], self._shard.types.names, path=self._shard.store.location)
        field = self._columns.get(column)
        if field is None or field.array == SCENES or field.dtype.base.kind not in "iufb":
            return None
        array = self._shard.store.arrays[field.array]
        metadata = array.metadata
        if metadata.compressor is not None or not field.dtype.base.isnative:
            return None
        runs = [scene.runs.get(kind_of(field.array)) for scene in self._shard.scenes]
        edges = [(0, 0) if run is None or not len(run) else (int(run[0, 0]), int(run[-1, 1])) for run in runs]
        if any(run is not None and len(run) > 1 for run in runs):
            return None
        size = metadata.chunks[0]
        chunks = {number // size for a, b in edges if b > a for number in (a, b - 1)}
        blob = array.blob(next(iter(chunks))) if len(chunks) == 1 else None
        if blob is None or blob.view() is None:
            return None
        width, first = metadata.row_bytes, next(iter(chunks)) * size
        assert metadata.dtype.fields is not None or not field.field
        offset = metadata.dtype.fields[field.field][1] if field.field and metadata.dtype.fields else 0
        base = field.dtype.base if field.dtype.base.kind != "b" else np.dtype(np.uint8)
        return Flat(
            blob=blob,
            start=np.array([max(a - first, 0) * width + offset for a, _ in edges], np.int64),
            steps=np.array([b - a for a, b in edges], np.int64),
            stride=width,
            stored=base,
            dtype=base,
            shape=field.dtype.shape,
        )

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column of steps; None for others."""
        return lengths_of(self._shard.scenes, self._shard.mapping, column)

    def close(self) -> None:
        """Nothing is held open."""

    def _parts(self, rows: Ints) -> Iterator[Ints]:
        nbytes = [scene_bytes(self._shard.scenes[row], self._shard.mapping) for row in rows.tolist()]
        return runs_of(rows, np.array(nbytes, np.int64), most_bytes=_BATCH_BYTES)

    def _arrays(self, schema: pa.Schema, rows: Ints) -> list[pa.Array]:
        scenes = [self._shard.scenes[row] for row in rows.tolist()]
        ids = [self._shard.names[row] for row in rows.tolist()]
        cells = SceneCells(self._shard.store, self._shard.mapping, scenes, ids, self._shard.types)
        return [cells.column(name) for name in schema.names]


def lengths_of(scenes: Sequence[SceneRows], mapping: Mapping, column: str, /) -> Ints | None:
    """[scenes] T of a column of steps, from the intervals alone; None for columns without steps."""
    array = mapping.stepped.get(column)
    return None if array is None else np.array([scene.count(array) for scene in scenes], np.int64)

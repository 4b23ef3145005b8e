"""The view of scenes: a store as rows of scenes, and neighbours of them read as a shard: structured rows as columns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import InvalidMetadataError
from seqlake.formats._zarr.places import oddities
from seqlake.formats.l5kit.arrays import joined
from seqlake.formats.l5kit.columns import row_cells, step_cells
from seqlake.formats.l5kit.layout import CHILDREN, NO_RUNS, SceneRows, layout_of
from seqlake.formats.l5kit.mapping import COUNTS, RUNS, SCENE, TIMES, FieldColumn, Mapping, kind_of
from seqlake.formats.l5kit.store import (
    FACES,
    FRAMES,
    MASKS,
    SCENES,
    SceneArrays,
    Store,
    grouped,
    stem_of,
)
from seqlake.protocols import Flat
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.findings import Finding
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.formats.l5kit.layout import SceneLayout
    from seqlake.protocols import Depth, Ints
    from seqlake.spec.schema import Schema


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
        self,
        store: SceneArrays[Any],
        mapping: Mapping,
        rows: Sequence[SceneRows],
        names: Sequence[str],
        types: pa.Schema,
        /,
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
        values: NDArray[Any] = rows[field.field] if field.field else rows
        return values

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
            together: NDArray[Any] = array.rows(int(runs[0, 0]), int(runs[-1, 1]))
            return together
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


def scene_bytes(scene: SceneRows, mapping: Mapping, /) -> int:
    """Bytes of the rows that a scene holds, decoded."""
    arrays = mapping.arrays.items()
    return sum(metadata.row_bytes * (scene.count(kind_of(name)) if name != SCENES else 1) for name, metadata in arrays)


class SceneReader(ScannedReader):
    """Reads neighbouring scenes.

    Args:
        store: Where they lie.
        mapping: How its arrays are columns.
        scenes: The scenes.
        names: [rows] their ids.
        types: The logical Arrow schema.
        sizes: [rows] bytes of each, decoded.
    """

    def __init__(
        self,
        store: Store,
        mapping: Mapping,
        scenes: Sequence[SceneRows],
        names: Sequence[str],
        types: pa.Schema,
        sizes: Ints,
        /,
    ) -> None:
        super().__init__(types, len(scenes), location=store.location, sizes=sizes)
        self._store = store
        self._mapping = mapping
        self._scenes = scenes
        self._names = names
        self._columns = {one.name: one for one in mapping.fields}

    def flat(self, column: str, /) -> Flat | None:
        """Where the numbers of a column lie in the store: where one plain, mapped file holds all of the shard's."""
        self.type_of(column)
        field = self._columns.get(column)
        if field is None or field.array == SCENES or field.dtype.base.kind not in "iufb":
            return None
        array = self._store.arrays[field.array]
        metadata = array.metadata
        if metadata.compressor is not None or not field.dtype.base.isnative:
            return None
        runs = [scene.runs.get(kind_of(field.array)) for scene in self._scenes]
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
        """[rows] T of a column of steps, from the intervals alone; None for others."""
        array = self._mapping.stepped.get(column)
        return None if array is None else np.array([scene.count(array) for scene in self._scenes], np.int64)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some scenes; CorruptFileError for a chunk that cannot be decoded."""
        scenes, ids = ([one[row] for row in rows.tolist()] for one in (self._scenes, self._names))
        cells = SceneCells(self._store, self._mapping, scenes, ids, self.types)
        return [cells.column(name) for name in schema.names]


_EGO_FIELDS = ("timestamp", "ego_translation", "ego_rotation")


def scenes(store: Store, /, *, ego: bool = False) -> L5kitScenes:
    """The view of scenes.

    Args:
        store: An open store.
        ego: Only the columns of the car's own path.
    """
    for name, mask in store.masks.items():
        if len(mask) != len(store.agents):
            raise InvalidMetadataError(
                f"{store.location}: {MASKS}/{name} has {len(mask)} rows, there are {len(store.agents)} agents.",
                path=store.location,
                hint="Remove that mask: it belongs to another store.",
            )
    layout = layout_of(store)
    mapping = Mapping.of(store, tiles=layout.tiles, rated=ego)
    schema = mapping.schema()
    schema = schema.select(_ego_columns(schema)) if ego else schema
    state = store.state
    return L5kitScenes(
        root=store.location,
        schema=schema,
        parts=_shards(store, layout, mapping, schema, state),
        state=hashlib.sha256(repr([state, schema.names]).encode()).hexdigest()[:32],
        store=store,
        layout=layout,
        things=mapping.things(schema),
    )


def _shards(store: Store, layout: SceneLayout, mapping: Mapping, schema: Schema, state: str) -> list[ScannedShard]:
    """Neighbouring scenes, about 64 MiB of rows each."""
    stem, shards = stem_of(store.location), []
    sizes = np.array([scene_bytes(row, mapping) for row in layout.rows], np.int64)
    for start, stop in grouped(sizes.tolist()):
        digest = hashlib.sha256(repr([state, start, stop, schema.names]).encode()).hexdigest()[:16]
        rows = layout.rows[start:stop]
        names = [_name(stem, row.scene, number) for number, row in enumerate(rows, start)]
        shards.append(
            ScannedShard(
                key=f"{stem}-{start:06d}#{digest}",
                rows=stop - start,
                nbytes=int(sizes[start:stop].sum()),
                reader=partial(SceneReader, store, mapping, rows, names, schema.arrow, sizes[start:stop]),
            )
        )
    return shards


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class L5kitScenes(ScannedDataset):
    """A store as rows of scenes: a `Readable`, `Checked` and picklable.

    Attributes:
        store: The store.
        layout: Which of its rows belong to which scene.
    """

    store: Store
    layout: SceneLayout

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: intervals that do not tile; from depth `rows` on, chunks that are not there."""
        yield from oddities(self.store.place)
        if not self.layout.tiles:
            orphans = sum(row.scene < 0 for row in self.layout.rows)
            text = f"intervals do not tile the arrays; {orphans} rows hold what no scene names (scene_index is -1)"
            yield Finding(code="l5kit-intervals", severity="note", message=text, location=self.root)
        if depth == "metadata":
            return
        for name, array in self.store.arrays.items():
            for number in range(array.metadata.count):
                if array.blob(number) is None:
                    text = f"chunk {number} is not there: its rows read as zeros"
                    yield Finding(
                        code="l5kit-missing-chunk", severity="warning", message=text, location=f"{self.root}/{name}"
                    )


def _ego_columns(schema: Schema) -> list[str]:
    whole = [name for name in schema.names if schema[name].category == "scalar"]
    return [*whole, *(name for name in _EGO_FIELDS if name in schema)]


def _name(stem: str, scene: int, number: int) -> str:
    """The id of a row."""
    return f"{stem}-{scene:05d}" if scene >= 0 else f"{stem}-orphan-{number:05d}"

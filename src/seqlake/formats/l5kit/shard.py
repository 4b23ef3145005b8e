"""Some scenes of a store as a shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.formats.l5kit.cells import Cells
from seqlake.formats.l5kit.mapping import Mapping, kind_of
from seqlake.formats.l5kit.store import SCENES, Store
from seqlake.protocols import Flat
from seqlake.shards.asked import count_only, refuse_unknown, rows_asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.formats.l5kit.layout import SceneRows
    from seqlake.protocols import Ints

_BATCH_BYTES = 32 << 20


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
    """One open `SceneShard`."""

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
        refuse_unknown(columns, self._shard.types.names, path=self._shard.store.location)
        wanted = rows_asked(rows, self._shard.rows)
        names = list(columns)
        if not names:
            yield from count_only(len(wanted))
            return
        types = pa.schema([self._shard.types.field(name) for name in names])
        for part in self._parts(wanted):
            scenes = [self._shard.scenes[row] for row in part]
            ids = [self._shard.names[row] for row in part]
            cells = Cells(self._shard.store, self._shard.mapping, scenes, ids, self._shard.types)
            yield pa.RecordBatch.from_arrays([cells.column(name) for name in names], schema=types)

    def flat(self, column: str, /) -> Flat | None:
        """Where the numbers of a column lie in the store: where one plain, mapped file holds all of the shard's."""
        refuse_unknown([column], self._shard.types.names, path=self._shard.store.location)
        found = self._columns.get(column)
        if found is None or found.array == SCENES or found.dtype.base.kind not in "iufb":
            return None
        array = self._shard.store.arrays[found.array]
        metadata = array.metadata
        if metadata.compressor is not None or not found.dtype.base.isnative:
            return None
        runs = [scene.runs.get(kind_of(found.array)) for scene in self._shard.scenes]
        edges = [(0, 0) if run is None or not len(run) else (int(run[0, 0]), int(run[-1, 1])) for run in runs]
        if any(run is not None and len(run) > 1 for run in runs):
            return None
        size = metadata.chunks[0]
        chunks = {number // size for a, b in edges if b > a for number in (a, b - 1)}
        blob = array.blob(next(iter(chunks))) if len(chunks) == 1 else None
        if blob is None or blob.view() is None:
            return None
        width, first = metadata.row_bytes, next(iter(chunks)) * size
        assert metadata.dtype.fields is not None or not found.field
        offset = metadata.dtype.fields[found.field][1] if found.field and metadata.dtype.fields else 0
        base = found.dtype.base if found.dtype.base.kind != "b" else np.dtype(np.uint8)
        return Flat(
            blob=blob,
            start=np.array([max(a - first, 0) * width + offset for a, _ in edges], np.int64),
            steps=np.array([b - a for a, b in edges], np.int64),
            stride=width,
            stored=base,
            dtype=base,
            shape=found.dtype.shape,
        )

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column of steps; None for others."""
        return lengths_of(self._shard.scenes, self._shard.mapping, column)

    def close(self) -> None:
        """Nothing is held open."""

    def _parts(self, rows: Ints) -> Iterator[list[int]]:
        """Runs of rows that make one batch each."""
        part: list[int] = []
        held = 0
        for row in rows.tolist():
            size = scene_bytes(self._shard.scenes[row], self._shard.mapping)
            if part and held + size > _BATCH_BYTES:
                yield part
                part, held = [], 0
            part.append(row)
            held += size
        if part:
            yield part


def lengths_of(scenes: Sequence[SceneRows], mapping: Mapping, column: str, /) -> Ints | None:
    """[scenes] T of a column of steps, from the intervals alone; None for columns without steps."""
    array = mapping.stepped.get(column)
    return None if array is None else np.array([scene.count(array) for scene in scenes], np.int64)

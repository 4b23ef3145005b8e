"""The cells of some scenes: structured rows of a store as Arrow columns."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.formats.l5kit.arrays import joined
from seqlake.formats.l5kit.columns import row_cells, step_cells
from seqlake.formats.l5kit.layout import CHILDREN, NO_RUNS, SceneRows
from seqlake.formats.l5kit.mapping import COUNTS, RUNS, SCENE, TIMES, FieldColumn, Mapping, kind_of
from seqlake.formats.l5kit.store import FACES, FRAMES, SCENES
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.formats.l5kit.store import Store
    from seqlake.protocols import Ints


class Cells:
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
            own = [at for at, row in enumerate(self._rows) if row.scene >= 0]
            out[own] = array[[self._rows[at].scene for at in own]]
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
        found = self.array(FRAMES)[CHILDREN[array]].astype(np.int64)
        return found[:, 1] - found[:, 0]

    def _times(self, array: str) -> Ints:
        """[agents or lights] the time of the frame that names each; 0 for orphans."""
        total = int(self.offsets(array)[-1])
        frames, parts, at = self.array(FRAMES), [], 0
        if array not in self._mapping.children:
            return np.zeros(total, np.int64)
        counts = self.counts(array)
        for row in self._rows:
            own = slice(at, at + row.count(FRAMES))
            at = own.stop
            times = np.repeat(frames[TIMES][own], counts[own]).astype(np.int64)
            parts.append(np.concatenate([times, np.zeros(row.count(array) - len(times), np.int64)]))
        return np.concatenate([np.zeros(0, np.int64), *parts])

"""The columns of a scene, and what the metadata keep so that the store can be written again as it was."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.formats._zarr.metadata import ArrayMetadata
from seqlake.formats.l5kit.columns import row_column, step_column
from seqlake.formats.l5kit.layout import CHILDREN
from seqlake.formats.l5kit.store import AGENTS, FACES, FRAME_INTERVAL, FRAMES, MASKS, SCENES
from seqlake.protocols import Mapped
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema
from seqlake.windows.timestamps import usual_rate

if TYPE_CHECKING:
    from seqlake.formats.l5kit.store import SceneArrays

KEY = "l5kit"
VERSION = 1
SCENE, TIMES = "scene_index", "timestamp"
COUNTS = {AGENTS: "num_agents", FACES: "num_tl_faces"}
RUNS = {FRAMES: "frame_rows", AGENTS: "agent_rows", FACES: "tl_face_rows"}
"""Columns of stores whose intervals do not tile: [n, 2] the store's rows that a row's cells hold."""

_LOOKED_AT = 256  # frames whose times say the rate

_PREFIXES = {SCENES: "", FRAMES: "", AGENTS: "agents_", FACES: "tl_faces_"}
_SHORT = {"traffic_light_face_status": "status"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldColumn:
    """One column that holds one field (or a whole plain array, as masks are).

    Attributes:
        name: Of the column.
        array: The array in the store.
        field: The field; empty for a plain array.
        dtype: Of the field, with its shape.
    """

    name: str
    array: str
    field: str
    dtype: np.dtype[Any]


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """How the arrays of a store are columns.

    Attributes:
        arrays: What each `.zarray` says.
        tiles: Lengths alone say all intervals; else the intervals are columns too.
        attributes: The text of `.zattrs`.
        rate: Frames per second that columns of frames declare; None: they declare none.
    """

    arrays: dict[str, ArrayMetadata]
    tiles: bool
    attributes: str
    rate: float | None = None

    @cached_property
    def fields(self) -> tuple[FieldColumn, ...]:
        """The columns of fields, in the order of the schema."""
        columns: list[FieldColumn] = []
        taken = {ID, SCENE, *COUNTS.values(), *RUNS.values(), "agents_timestamp", "tl_faces_timestamp"}
        for array, metadata in self.arrays.items():
            names = metadata.dtype.names
            if names is None:
                inner = np_dtype(metadata)
                column = array.replace("/", "_").replace(".", "_")
                columns.append(FieldColumn(name=column, array=array, field="", dtype=inner))
                continue
            for name in names:
                if self.tiles and name in self._counted(array):
                    continue
                column = _PREFIXES.get(array, "") + _SHORT.get(name, name)
                while column in taken:
                    column = f"{array}_{column}" if not column.startswith(array) else f"{column}_"
                taken.add(column)
                columns.append(FieldColumn(name=column, array=array, field=name, dtype=metadata.dtype[name]))
        return tuple(columns)

    @cached_property
    def times(self) -> bool:
        """Whether frames have times."""
        return TIMES in (self.arrays[FRAMES].dtype.names or ())

    @cached_property
    def stepped(self) -> dict[str, str]:
        """The array whose rows are the steps of each column that has steps."""
        arrays = {one.name: kind_of(one.array) for one in self.fields if one.array != SCENES}
        arrays |= {COUNTS[child]: FRAMES for child in self.children}
        times = {name: self._facts(name).get("timestamps") for name in self.arrays}
        return arrays | {column: kind_of(name) for name, column in times.items() if column is not None}

    def schema(self) -> Schema:
        """The columns: id, the scene's number and fields, frames with their counts, agents, traffic lights, masks."""
        columns: dict[str, Column] = {SCENE: Column(SCENE, pa.int64(), None, nullable=False)}
        by_array: dict[str, list[FieldColumn]] = {}
        for one in self.fields:
            by_array.setdefault(one.array, []).append(one)
        for array, fields in by_array.items():
            facts = self._facts(array)
            for one in fields:
                columns[one.name] = (
                    row_column(one.name, one.dtype) if array == SCENES else step_column(one.name, one.dtype, **facts)
                )
            if array == FRAMES:
                for child in self.children:
                    columns[COUNTS[child]] = step_column(COUNTS[child], _INT32, **facts)
            elif "timestamps" in facts:
                columns[facts["timestamps"]] = step_column(facts["timestamps"], _INT64)
        if not self.tiles:
            for array, name in RUNS.items():
                if array in self.arrays:
                    columns[name] = Column(name, pa.list_(pa.int64()), None, nullable=False)
        return Schema(columns, metadata=Metadata(extra={KEY: self.to_json()}))

    def things(self, schema: Schema, /, *, array: str | None = None, other: str = "") -> list[Mapped]:
        """What became of each field of the store, in a view.

        Args:
            schema: Of the view.
            array: The array that its columns are made of; None: of all.
            other: What the view's own columns are made of.
        """
        things, named = [], set[str]()
        for one in self.fields:
            source = f"{one.array}/{one.field}" if one.field else one.array
            of_view = (array is None or one.array == array) and one.name not in named
            name = next((n for n in (one.name, one.field) if of_view and n in schema and n not in named), None)
            named |= set() if name is None else {name}
            things.append(Mapped(source=source, column=name, how="" if name else "this view has no place for it"))
        said = {column: f"{FRAMES}: how many {child}" for child, column in COUNTS.items()}
        said |= {ID: "name of the store, and number", SCENE: f"number in {SCENES}"}
        said |= {column: f"intervals of {one}" for one, column in RUNS.items()}
        for name in schema.names:
            if name not in named:
                times = f"{FRAMES}/{TIMES}" if name.endswith(TIMES) else other or FRAMES
                things.append(Mapped(source=said.get(name, times), column=name))
        return things

    @property
    def children(self) -> list[str]:
        """Agents and traffic lights, as far as frames name them."""
        fields = self.arrays[FRAMES].dtype.names or ()
        return [name for name, interval in CHILDREN.items() if name in self.arrays and interval in fields]

    def _counted(self, array: str) -> set[str]:
        """The intervals of an array that lengths say, where everything tiles."""
        if array == SCENES:
            return {FRAME_INTERVAL}
        return {CHILDREN[child] for child in self.children} if array == FRAMES else set()

    def _facts(self, array: str) -> dict[str, Any]:
        """The rate of frames; the times of agents, masks and traffic lights, which have steps of their own."""
        if array == FRAMES and self.rate is not None:
            return {"fps": self.rate}
        if not self.times or array in {SCENES, FRAMES}:
            return {}
        return {"timestamps": f"{_PREFIXES[FACES if array == FACES else AGENTS]}timestamp"}

    def to_json(self) -> dict[str, Any]:
        """What the dataset's metadata keep."""
        return {
            "mapping": VERSION,
            "tiles": self.tiles,
            "counts": [COUNTS[child] for child in self.children],
            "attributes": self.attributes,
            "arrays": {name: metadata.to_json() for name, metadata in self.arrays.items()},
        }

    @staticmethod
    def of(store: SceneArrays[Any], /, *, tiles: bool, rated: bool = False) -> Mapping:
        """The mapping of a store.

        Args:
            store: The store.
            tiles: As of the mapping.
            rated: Frames declare their rate. Beside their agents they must not: cutting by a rate takes frames by their
                number and agents by their times, and then the counts fit no more.
        """
        arrays = {name: array.metadata for name, array in store.arrays.items()}
        timed = rated and TIMES in (store.frames.dtype.names or ())
        rate = usual_rate(store.frames[:_LOOKED_AT][TIMES]) if timed else None
        return Mapping(arrays=arrays, tiles=tiles, attributes=store.attributes_text, rate=rate)

    @staticmethod
    def from_json(value: Any, /) -> Mapping:
        """Read what `to_json` wrote.

        Raises:
            SchemaMismatchError: Nothing of that kind, or of a newer version.
        """
        if not isinstance(value, dict) or value.get("mapping") != VERSION:
            raise SchemaMismatchError(
                "These rows do not say how they were a store of l5kit: the metadata have no usable key 'l5kit'.",
                hint="Datasets that were converted from l5kit do, as long as all their columns are kept.",
            )
        try:
            arrays = {name: ArrayMetadata.parse(text, location=name) for name, text in value["arrays"].items()}
            _ = arrays[SCENES], arrays[FRAMES], arrays[AGENTS]
            return Mapping(arrays=arrays, tiles=bool(value["tiles"]), attributes=str(value["attributes"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise SchemaMismatchError(
                f"The key 'l5kit' of the metadata does not say how rows were a store: {error!r}.",
                hint="Convert the store anew.",
            ) from error


def np_dtype(metadata: ArrayMetadata, /) -> np.dtype[Any]:
    """The dtype of one row of a plain array, its inner shape included."""
    return np.dtype((metadata.dtype, metadata.shape[1:])) if metadata.shape[1:] else metadata.dtype


def kind_of(array: str, /) -> str:
    """The array whose rows an array shares: masks have those of agents."""
    return AGENTS if array.startswith(f"{MASKS}/") else array


_INT32, _INT64 = np.dtype("<i4"), np.dtype("<i8")

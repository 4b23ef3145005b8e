"""Arrow rows of scenes as the structured rows of a store again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.formats.l5kit.columns import field_of
from seqlake.formats.l5kit.layout import CHILDREN
from seqlake.formats.l5kit.mapping import COUNTS, RUNS, SCENE, Mapping, kind_of
from seqlake.formats.l5kit.store import FRAME_INTERVAL, FRAMES, SCENES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints


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
    arrays = {name: np.zeros(0, metadata.dtype) for name, metadata in mapping.arrays.items()}
    for name, metadata in mapping.arrays.items():
        fields = [one for one in mapping.fields if one.array == name]
        values = {one.field: field_of(batch.column(one.name), one.dtype, name=one.name) for one in fields}
        if metadata.dtype.names is None:
            arrays[name] = values[""]
            continue
        rows = max(map(len, values.values()), default=batch.num_rows)
        if uneven := [one.name for one in fields if len(values[one.field]) != rows]:
            raise ValidationError(f"Columns {fields[0].name!r} and {uneven[0]!r} differ in their number of steps.")
        arrays[name] = np.zeros(rows, metadata.dtype)
        for field, found in values.items():
            arrays[name][field] = found
    if mapping.tiles:
        _count(batch, mapping, arrays)
        return arrays, {}
    runs = {array: _pairs(batch.column(column)) for array, column in _runs(mapping).items()}
    scenes = batch.column(SCENE).to_numpy()
    arrays[SCENES] = arrays[SCENES][scenes >= 0]
    runs[SCENES] = [[int(scene), int(scene) + 1] for scene in scenes if scene >= 0]
    return arrays, runs


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
        told = np.bincount(owner, weights=counts, minlength=batch.num_rows).astype(np.int64)
        if (told != steps[child]).any() or (counts < 0).any():
            row = int(np.argmax(told != steps[child]))
            raise ValidationError(
                f"Column {COUNTS[child]!r} counts {told[row]} rows in a scene that has {steps[child][row]} of {child}."
            )
        arrays[FRAMES][CHILDREN[child]] = _intervals(counts)


def _lengths(cells: pa.Array) -> Ints:
    if cells.null_count:
        raise SchemaMismatchError("A cell is null; l5kit has no nulls.")
    found: Any = pa.compute.list_value_length(cells)
    return np.asarray(found, np.int64)


def _intervals(counts: Ints) -> Ints:
    ends = np.cumsum(counts)
    return np.stack([ends - counts, ends], axis=1)

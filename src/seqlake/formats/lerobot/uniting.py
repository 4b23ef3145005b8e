"""Rows of several LeRobot folders in one dataset: their tasks get new numbers, since each folder counts its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import ValidationError
from seqlake.formats.lerobot.planning import came_from
from seqlake.formats.lerobot.tasks import TASK_INDEX
from seqlake.spec.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = "source"


def united(schema: Schema, parts: Sequence[Schema], /) -> tuple[Schema, list[dict[int, int]]]:
    """The schema of the rows of all, which says what numbers of tasks mean in all of them.

    Args:
        schema: Of the rows of all, as it is otherwise.
        parts: The schema of each.

    Returns:
        The schema, and for each part the new numbers of its tasks, by the old ones; empty where they stay.
    """
    if TASK_INDEX not in schema or not came_from(schema)[0]:
        return schema, [{} for _ in parts]
    known = [came_from(part) for part in parts]
    if any(not tasks for info, tasks in known):  # numbers that nobody can tell from others mean nothing any more
        return _saying(schema, {}, {}), [{} for _ in parts]
    places: dict[str, int] = {}
    renumbered = []
    for _, tasks in known:
        numbers = {number: places.setdefault(tasks[number], len(places)) for number in sorted(tasks)}
        renumbered.append({} if all(old == new for old, new in numbers.items()) else numbers)
    features: dict[str, Any] = {}
    for info, _ in reversed(known):
        features |= info.get("features", {})
    return _saying(schema, {number: text for text, number in places.items()}, features), renumbered


def _saying(schema: Schema, tasks: Mapping[int, str], features: Mapping[str, Any]) -> Schema:
    """The schema with these tasks; of the first folder's own numbers of episodes, which are of one alone, nothing."""
    source = dict(schema.metadata.extra[SOURCE])
    info = {key: value for key, value in source["info"].items() if not key.startswith("total_") and key != "splits"}
    if features:
        info["features"] = {**features, **info.get("features", {})}
    source |= {"info": info, "tasks": {str(number): text for number, text in tasks.items()}}
    metadata = replace(schema.metadata, extra={**schema.metadata.extra, SOURCE: source})
    return Schema(dict(schema.items()), metadata=metadata, id=schema.id)


def renumbered(batch: pa.RecordBatch, numbers: Mapping[int, int], /) -> pa.RecordBatch:
    """Rows with the new numbers of their tasks.

    Args:
        batch: Of one part.
        numbers: New by old.

    Raises:
        ValidationError: A number that no task of the part has.
    """
    column = TASK_INDEX
    cells = batch.column(column)
    values = cells.flatten()
    old = np.array(sorted(numbers), np.int64)
    places = np.searchsorted(old, values.to_numpy(zero_copy_only=False)).clip(0, len(old) - 1)
    if not np.array_equal(old[places], values.to_numpy(zero_copy_only=False)):
        raise ValidationError(f"Column {column!r} has numbers of tasks that the folder it came from does not name.")
    new = np.array([numbers[one] for one in old.tolist()], np.int64)[places]
    lengths = pc.list_value_length(cells).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = cells.is_null() if cells.null_count else None
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(new, values.type), type=cells.type, mask=mask)
    return batch.set_column(batch.schema.get_field_index(column), batch.schema.field(column), lists)

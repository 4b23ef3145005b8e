"""From features to columns: names, types and where each came from.

Names drop `steps/`, `observation/` and `episode_metadata/`; what is left of the path is joined by `_`. A per-step
reward is `reward_step`. Where two features would get one name, all but the one with the shortest path keep their
whole path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.spec.schema import Column as Declared

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from seqlake.formats.rlds.features import Feature
    from seqlake.formats.rlds.survey import Survey

_DROPPED = ("steps", "observation", "episode_metadata")
SPLIT = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column and how it is made from a record.

    Attributes:
        name: Its name in the schema.
        feature: What it is read from.
        role: `steps` for one value a step, `first` for the value that all steps share, `episode` for an episode's.
    """

    name: str
    feature: Feature
    role: Literal["steps", "first", "episode"]


def columns(survey: Survey, *, keep_constant: Collection[str] | bool) -> list[Column]:
    """The columns of a dataset in the order of their features, without the id and the split."""
    names = _names(survey.features)
    found = []
    for feature in survey.features:
        name = names[feature.path]
        kept = keep_constant if isinstance(keep_constant, bool) else {name, feature.path} & set(keep_constant)
        # One step proves nothing about a signal; a sentence is worth more as a scalar in any case.
        constant = feature.path in survey.constant and (survey.several or feature.kind == "text") and not kept
        role: Literal["steps", "first", "episode"] = "episode" if not feature.step else "first" if constant else "steps"
        found.append(Column(name=name, feature=feature, role=role))
    return found


def schema(found: Sequence[Column], survey: Survey, *, source: Mapping[str, object]) -> Schema:
    """The schema: id and split first, then a column for every feature.

    Args:
        found: What `columns` gave.
        survey: Says which texts are not UTF-8.
        source: What is known of the dataset; kept in the metadata as `source`, with each column's feature. Typed
            columns carry their feature as `source` themselves.
    """
    declared = {SPLIT: Declared(SPLIT, pa.string(), nullable=False)}
    for column in found:
        arrow, column_type = _type(column, binary=column.feature.path in survey.binary)
        declared[column.name] = Declared(column.name, arrow, column_type)
    sources = {column.name: column.feature.path for column in found}
    return Schema(declared, metadata=Metadata(extra={"source": {**source, "columns": sources}}))


def _names(features: Sequence[Feature]) -> dict[str, str]:
    names: dict[str, str] = {}
    taken = {ID, SPLIT}
    for path in sorted((feature.path for feature in features), key=lambda path: (path.count("/"), path)):
        name = _short(path)
        if name in taken:
            name = path.replace("/", "_")
        while name in taken:
            name += "_"
        taken.add(name)
        names[path] = name
    return names


def _short(path: str) -> str:
    parts = path.split("/")
    kept = [part for part in parts[:-1] if part not in _DROPPED] + parts[-1:]
    return "reward_step" if path == "steps/reward" else "_".join(kept)


def _type(column: Column, *, binary: bool) -> tuple[pa.DataType, ColumnType | None]:
    """The Arrow type of a column, and its column type where it needs one (a plain scalar does not)."""
    feature = column.feature
    details: dict[str, Any] = {"source": feature.path, **feature.details}
    if feature.kind == "text":
        text = pa.binary() if binary else pa.string()
        return (pa.list_(text), None) if column.role == "steps" or feature.many else (text, None)
    if feature.kind == "image":
        if column.role == "steps":
            return pa.list_(pa.binary()), Image(frames="bytes", **details)
        return (pa.list_(pa.binary()) if feature.many else pa.binary()), None
    number = pa.from_numpy_dtype(feature.dtype)
    if len(feature.shape) > 1:
        details["shape"] = list(feature.shape)
    if column.role == "steps":
        signal = Trajectory(dim=feature.size, dtype=number, **details)
        return pa.list_(pa.list_(number, feature.size)), signal
    if not feature.shape:
        number = pa.bool_() if feature.flag else number
        return (pa.list_(number), None) if feature.many else (number, None)
    if feature.many:
        return pa.list_(pa.list_(number, feature.size)), Trajectory(dim=feature.size, dtype=number, **details)
    return pa.list_(number), Embedding(dim=feature.size, dtype=number, **details)

"""Which column of a dataset becomes which feature of an RLDS record, and the `features.json` that says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.errors import InvalidMetadataError, SchemaMismatchError
from seqlake.formats._frames import has_frames, stored_pictures
from seqlake.formats.rlds.features import Feature, read
from seqlake.formats.rlds.survey import SPLIT
from seqlake.spec.column_types import number_name
from seqlake.spec.schema import is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.schema import Column, Schema

Role = Literal["steps", "repeated", "episode", "first", "last"]
_CLASS = "tensorflow_datasets.core.features."
_OF_STEPS = frozenset({"action", "reward", "discount", "is_first", "is_last", "is_terminal"})
_FLAGS = frozenset({"is_first", "is_last", "is_terminal"})
_REPEATED = ("language_instruction", "task")  # texts that are said again at every step, as Open X-Embodiment has them
_AS_BYTES = frozenset({"float64"})  # which records would hold as float32
_DTYPES = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
                     "float32", "float64"})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One feature of the records to be.

    Attributes:
        column: What it is made of; empty for flags that are counted.
        feature: As `features.json` will be read.
        node: Its part of `features.json`.
        role: `steps`: a value a step; `repeated`: one value, said at every step; `episode`: one value of the episode;
            `first`, `last`: flags of the first and the last step.
        checked: Pictures are compared with the size that is declared.
    """

    column: str
    feature: Feature
    node: Mapping[str, Any]
    role: Role
    checked: bool = False


def declarations(
    schema: Schema, /, *, paths: Mapping[str, str], images: str, episode_id: bool | None, flags: bool
) -> list[Declaration]:
    """All features, in the order of their paths.

    Args:
        schema: Of the rows.
        paths: Column -> path in the record, as `{"task": "steps/language_instruction"}`, of those that are chosen.
        images: The format of frames of videos: `jpeg` or `png`.
        episode_id: Whether ids of rows are written; None: unless the rows came from RLDS.
        flags: Whether `is_first` and `is_last` are written where no column is called so.

    Raises:
        ColumnNotFoundError: `paths` names a column that is not there.
        SchemaMismatchError: Two features of one path, or a path that cannot be one.
    """
    for name in paths:
        schema[name]
    known = _known(schema)
    chosen = [
        _declared(schema, name, paths.get(name), known, images)
        for name in schema.names
        if not refusal(schema[name]) and not (name == schema.id and not _writes_id(known, given=episode_id))
        if name != SPLIT
    ]
    have = {one.feature.path for one in chosen}
    for flag, role in (("is_first", "first"), ("is_last", "last")):
        if flags and not known and f"steps/{flag}" not in have:
            chosen.append(_made(f"steps/{flag}", _tensor((), "bool"), "", role))  # type: ignore[arg-type]  # both are roles
    twice = [path for path in have if sum(one.feature.path == path for one in chosen) > 1]
    if twice:
        raise SchemaMismatchError(
            f"Two columns would be the feature {min(twice)!r}.",
            hint="Say where one goes: paths={'name': 'steps/name'}.",
        )
    return sorted(chosen, key=lambda one: one.feature.path)


def refusal(column: Column, /) -> str:
    """Why a column has no place in a record; empty where it has."""
    kind = column.arrow
    if has_frames(column):
        depth = column.type is not None and column.type.is_depth and not stored_pictures(column)
        return "videos of depth are no pictures that tfds reads" if depth else ""
    if column.category in {"temporal", "vector"}:
        known = column.shape if column.category == "temporal" else column.dim
        return "" if known is not None and _dtype(column) in _DTYPES else "its numbers have no one shape and dtype"
    if is_list(kind) and is_text(kind.value_type):
        return ""
    plain = is_text(kind) or is_number(kind) or pa.types.is_binary(kind)
    return "" if plain and column.medium is None and not column.inline else f"records have no place for {kind}"


def _dtype(column: Column) -> str:
    kind = column.value_type if column.value_type is not None else column.arrow
    return number_name(kind)


def _writes_id(known: Mapping[str, Any], *, given: bool | None) -> bool:
    return not known if given is None else given


def _known(schema: Schema) -> dict[str, tuple[str, Feature, Mapping[str, Any]]]:
    """Column -> path, feature and node that it was read from, where the rows came from RLDS."""
    source = schema.metadata.extra.get("source")
    if not isinstance(source, dict) or source.get("format") != "rlds" or not isinstance(source.get("columns"), dict):
        return {}
    try:
        features = {one.path: one for one in read(json.dumps(source.get("features")).encode(), location="source")}
    except InvalidMetadataError:
        features = {}
    nodes = dict(_leaves(source.get("features"), ""))
    return {
        name: (path, features[path], nodes[path])
        for name, path in source["columns"].items()
        if path in features and path in nodes
    }


def _leaves(node: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(node, dict):
        return []
    if "featuresDict" in node:
        inner = (node["featuresDict"].get("features") or {}).items()
        return [leaf for name, one in inner for leaf in _leaves(one, f"{path}/{name}" if path else name)]
    if "sequence" in node and path == "steps":
        return _leaves(node["sequence"]["feature"], path)
    return [(path, node)]


def _declared(
    schema: Schema,
    name: str,
    path: str | None,
    known: Mapping[str, tuple[str, Feature, Mapping[str, Any]]],
    images: str,
) -> Declaration:
    column = schema[name]
    before = known.get(name)
    if before is not None and path is None and _still(column, before[1]):
        role: Role = "episode" if not before[1].step else "steps" if _of_steps(column) else "repeated"
        lossy = before[1].dtype in _AS_BYTES and before[1].encoding == "none"
        if not lossy:
            return Declaration(column=name, feature=before[1], node=before[2], role=role)
    path = path or (before[0] if before is not None else _usual(schema, name))
    if not path or not all(part.strip() for part in path.split("/")) or path == "steps":
        raise SchemaMismatchError(f"Column {name!r}: {path!r} is no path of a feature, as 'steps/observation/state'.")
    in_steps = path.startswith("steps/")
    if not in_steps and _of_steps(column) and not (is_list(column.arrow) and is_text(column.arrow.value_type)):
        raise SchemaMismatchError(f"Column {name!r} has steps, so its path begins with steps/; found {path!r}.")
    texts = is_list(column.arrow) and is_text(column.arrow.value_type) and not has_frames(column)
    role = "episode" if not in_steps else "steps" if _of_steps(column) or texts else "repeated"
    return _made(path, _node(column, path, images), name, role)


def _made(path: str, node: Mapping[str, Any], column: str, role: Role) -> Declaration:
    root = tree({path: node}) if path.startswith("steps/") else tree({path: node, "steps/_": _tensor((), "bool")})
    [feature] = [one for one in read(json.dumps(root).encode(), location=path) if one.path == path]
    return Declaration(column=column, feature=feature, node=node, role=role, checked=feature.kind == "image")


def _still(column: Column, feature: Feature) -> bool:
    """Whether a column can still be the feature that it was."""
    if feature.kind == "image":
        return has_frames(column)
    innermost = column.arrow
    while is_list(innermost):
        innermost = innermost.value_type
    if feature.kind == "text":
        return bool(is_text(innermost) or pa.types.is_binary(innermost)) and column.medium is None
    if column.category in {"temporal", "vector"} and column.dim != feature.size:
        return False
    flag = feature.flag and pa.types.is_boolean(innermost)
    return bool(is_number(innermost)) and (flag or number_name(innermost) == feature.dtype)


def _of_steps(column: Column) -> bool:
    """Whether a cell holds one value a step."""
    texts = is_list(column.arrow) and (is_text(column.arrow.value_type) or pa.types.is_binary(column.arrow.value_type))
    return has_frames(column) or column.category == "temporal" or texts


def _usual(schema: Schema, name: str) -> str:
    column = schema[name]
    if name == schema.id:
        return "episode_metadata/episode_id"
    short = "reward" if name == "reward_step" else name
    if column.category == "temporal" and short.removesuffix("_step") in _OF_STEPS:
        return f"steps/{short}"
    if has_frames(column) or column.category == "temporal":
        return f"steps/observation/{name.removeprefix('observation.').replace('/', '_')}"
    instruction = next((one for one in _REPEATED if one in schema and is_text(schema[one].arrow)), None)
    if name == instruction:
        return "steps/language_instruction"
    return f"episode_metadata/{name.replace('/', '_')}"


def _node(column: Column, path: str, images: str) -> dict[str, Any]:
    kind = column.arrow
    if has_frames(column):
        return _image(column, images)
    if column.category == "temporal":
        shape = column.shape or ()
        flag = path.rsplit("/", 1)[-1] in _FLAGS and shape in {(), (1,)} and pa.types.is_integer(column.value_type)
        return _tensor((), "bool") if flag else _tensor(shape, _dtype(column))
    if column.category == "vector":
        assert column.dim is not None
        declared = column.type.get("shape") if column.type is not None else None
        return _tensor(tuple(declared or (column.dim,)), _dtype(column))
    if is_list(kind):
        text = {"pythonClassName": f"{_CLASS}text_feature.Text", "text": {}}
        if path.startswith("steps/"):
            return text
        return {
            "pythonClassName": f"{_CLASS}sequence_feature.Sequence",
            "sequence": {"feature": text, "length": "-1"},
        }
    if is_number(kind):
        return _tensor((), number_name(kind))
    return {"pythonClassName": f"{_CLASS}text_feature.Text", "text": {}}


def _tensor(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    encoding = "bytes" if dtype in _AS_BYTES else "none"
    dimensions = {"dimensions": [str(size) for size in shape]} if shape else {}
    name = "tensor_feature.Tensor" if shape else "scalar.Scalar"
    return {
        "pythonClassName": _CLASS + name,
        "tensor": {"dtype": dtype, "encoding": encoding, "shape": dimensions},
    }


def _image(column: Column, images: str) -> dict[str, Any]:
    assert column.type is not None
    size = column.type.get("resolution")
    known = isinstance(size, list) and len(size) == 2 and all(type(one) is int and one > 0 for one in size)
    height, width = (size[1], size[0]) if known and isinstance(size, list) else (-1, -1)
    deep = column.type.is_depth
    channels = 1 if deep or column.type.get("channels") == 1 else 3
    declared = column.type.get("format") if stored_pictures(column) else images
    format_ = "png" if deep else declared if declared in {"jpeg", "png"} else images if declared else ""
    node: dict[str, Any] = {
        "dtype": "uint16" if deep else "uint8",
        "shape": {"dimensions": [str(height), str(width), str(channels)]},
    }
    if format_:
        node["encodingFormat"] = format_
    return {"image": node, "pythonClassName": f"{_CLASS}image_feature.Image"}


def tree(nodes: Mapping[str, Mapping[str, Any]], /) -> dict[str, Any]:
    """`features.json` of leaves by their paths; what lies below `steps` is a dataset of steps."""
    inside: dict[str, Any] = {}
    for path, node in nodes.items():
        place = inside
        *folders, last = path.split("/")
        for one in folders:
            place = place.setdefault(one, {})
            if "pythonClassName" in place:
                raise SchemaMismatchError(f"The feature {path!r} lies below another feature.")
        if last in place:
            raise SchemaMismatchError(f"The feature {path!r} is one and holds others.")
        place[last] = node
    return _dict(inside)


def _dict(inside: Mapping[str, Any]) -> dict[str, Any]:
    features = {}
    for name, one in sorted(inside.items()):
        if "pythonClassName" in one:
            features[name] = dict(one)
        elif name == "steps":
            steps = {"feature": _dict(one), "length": "-1"}
            features[name] = {"pythonClassName": f"{_CLASS}dataset_feature.Dataset", "sequence": steps}
        else:
            features[name] = _dict(one)
    return {"featuresDict": {"features": features}, "pythonClassName": f"{_CLASS}features_dict.FeaturesDict"}

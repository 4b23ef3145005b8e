"""Features, as `datasets` writes them into schema metadata, and what they are as columns; both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.spec.column_types import Audio, ColumnType, Image, Trajectory, Video
from seqlake.spec.schema import Column, is_binary, is_list, is_number, is_text, list_levels, plain_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.schema import Schema

KEY = b"huggingface"
CLASS = "class_label"
"""The column type of whole numbers that stand for names; the field `names` has them in their order."""

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How a file is held: its bytes, or where they are null the path of it."""

_LISTS = {"Sequence", "List", "LargeList"}
_MOST_METADATA = 64 << 20  # bytes of features

Form = Literal["same", "file", "files", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFeature:
    """A feature as a column.

    Attributes:
        column: What is shown.
        form: How cells become those of the column: as they are; a file's bytes for `{bytes, path}`; a list of them; or
            arrays of more than two axes as steps that are flat.
        how: The same in words.
        shape: Of one step, with `steps`.
    """

    column: Column
    form: Form = "same"
    how: str = ""
    shape: tuple[int, ...] = ()


def declared(metadata: Mapping[bytes, bytes] | None, /) -> dict[str, Any]:
    """Name -> feature, as the metadata of a schema have them; nothing where they cannot be used.

    Example:
        >>> declared({b"huggingface": b'{"info": {"features": {"image": {"_type": "Image"}}}}'})
        {'image': {'_type': 'Image'}}
    """
    text = (metadata or {}).get(KEY, b"")
    if not text or len(text) > _MOST_METADATA:
        return {}
    try:
        features = json.loads(text)["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {str(name): feature for name, feature in features.items()} if isinstance(features, dict) else {}


def as_column(name: str, stored: pa.DataType, feature: Any, /) -> ShownFeature:
    """The column that a feature becomes.

    Args:
        name: Its name.
        stored: The Arrow type of its cells.
        feature: As it is declared; None where it is not.
    """
    kind = plain_type(stored)
    tag = str(feature.get("_type")) if isinstance(feature, dict) else None
    if tag in {"Image", "Audio", "Video"} and (_holds_file(kind) or is_binary(kind) or is_text(kind)):
        return _file(name, kind, tag, feature)
    inner = _inner(feature)
    if isinstance(inner, dict) and inner.get("_type") == "Image" and is_list(kind) and _holds_file(kind.value_type):
        image = Image(frames="bytes")
        return ShownFeature(column=Column(name, pa.list_(pa.binary()), image), form="files", how="images, one a step")
    if tag == "ClassLabel" and pa.types.is_integer(kind):
        names = feature.get("names")
        fits = isinstance(names, list) and all(isinstance(one, str) for one in names)
        how = "numbers of the names in its column type"
        return ShownFeature(column=Column(name, kind, ColumnType(CLASS, names=names if fits else None)), how=how)
    return _numbers(name, kind, feature, inner)


def _inner(feature: Any) -> Any:
    """The feature of the cells of a list; None where it is no list."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and str(feature.get("_type")) in _LISTS:
        return feature.get("feature")
    return None


def _holds_file(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    return any(field.name == "bytes" and is_binary(field.type) for field in kind)


def _file(name: str, kind: pa.DataType, tag: str, feature: Mapping[str, Any]) -> ShownFeature:
    rate = feature.get("sampling_rate")
    rate = rate if type(rate) is int and rate > 0 else None
    if is_text(kind):
        types: dict[str, ColumnType] = {"Image": Image(), "Audio": Audio(sample_rate=rate), "Video": Video()}
        return ShownFeature(column=Column(name, kind, types[tag]), how="paths of files")
    if tag == "Image":
        form: Form = "same" if is_binary(kind) else "file"
        return ShownFeature(column=Column(name, pa.binary(), Image()), form=form, how="encoded images")
    held = Audio(sample_rate=rate) if tag == "Audio" else Video()
    return ShownFeature(column=Column(name, kind, held), how="files in the rows")


def _numbers(name: str, kind: pa.DataType, feature: Any, inner: Any) -> ShownFeature:
    """Arrays and lists of lists of numbers are signals; whatever is left is what its Arrow type says."""
    levels, number = list_levels(kind)
    if levels < 2 or not is_number(number):
        return ShownFeature(column=Column(name, kind))
    shape = feature.get("shape") if isinstance(feature, dict) else None
    sizes = list(shape[1:]) if isinstance(shape, (list, tuple)) and len(shape) == levels else []
    fits = bool(sizes) and all(type(one) is int and 0 < one < 1 << 31 for one in sizes)
    if levels == 2:
        length = inner.get("length", -1) if isinstance(inner, dict) else -1
        fixed = kind.value_type.list_size if pa.types.is_fixed_size_list(kind.value_type) else length
        dim = sizes[0] if fits else fixed if type(fixed) is int and fixed > 0 else None
        signal = Trajectory(dim=dim, dtype=number)
        return ShownFeature(column=Column(name, signal.arrow, signal), how="a signal, [T, D]")
    if not fits:
        return ShownFeature(column=Column(name, kind))
    size = 1
    for one in sizes:
        size *= one
    if size >= 1 << 31:
        return ShownFeature(column=Column(name, kind))
    signal = Trajectory(dim=size, dtype=number, shape=sizes)
    how = f"a signal, steps of {sizes} one number behind the other"
    return ShownFeature(column=Column(name, signal.arrow, signal), form="steps", how=how, shape=tuple(sizes))


def written(schema: Schema, /) -> dict[str, tuple[Column, pa.DataType, Any]]:
    """Name -> (column, the Arrow type in files, the feature), of what is written for `datasets`."""
    return {name: (column, *_as_feature(column)) for name, column in schema.items()}


def _as_feature(column: Column) -> tuple[pa.DataType, Any]:
    medium, kind = column.medium, column.logical
    if medium in {"image", "audio", "video"} and not (pa.types.is_struct(kind) and not column.inline):
        return FILE, _media_feature(str(medium), column)
    if column.category == "frames" and column.type is not None and column.type.type == "image":
        return pa.list_(FILE), {"feature": {"_type": "Image"}, "length": -1, "_type": "Sequence"}
    if column.type is not None and column.type.type == CLASS and isinstance(column.type.get("names"), list):
        return pa.int64(), {"names": list(column.type.get("names")), "_type": "ClassLabel"}
    return kind, feature_of(kind)


def _media_feature(medium: str, column: Column) -> dict[str, Any]:
    rate = column.type.get("sample_rate") if column.type is not None else None
    feature: dict[str, Any] = {"_type": medium.capitalize()}
    return {"sampling_rate": rate, **feature} if medium == "audio" and type(rate) is int else feature


def feature_of(kind: pa.DataType, /) -> Any:
    """The feature of an Arrow type, as `datasets` itself infers it.

    Example:
        >>> feature_of(pa.list_(pa.float32(), 3))
        {'feature': {'dtype': 'float32', '_type': 'Value'}, 'length': 3, '_type': 'Sequence'}
    """
    if is_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
        inner = feature_of(kind.value_type)
        if pa.types.is_struct(kind.value_type):  # `Sequence` of a dict means a dict of lists
            return [inner]
        return {"feature": inner, "length": length, "_type": "Sequence"}
    if pa.types.is_struct(kind):
        return {field.name: feature_of(field.type) for field in kind}
    return {"dtype": _named(kind), "_type": "Value"}


def _named(kind: pa.DataType) -> str:
    """The name that `datasets` has for an Arrow type."""
    special = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    special |= {pa.date32(): "date32", pa.date64(): "date64"}
    return special.get(kind, str(kind))

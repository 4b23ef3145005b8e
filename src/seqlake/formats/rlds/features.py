"""`features.json`, as tfds writes it: the features of an episode, flattened to the keys of its record."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from seqlake.errors import InvalidMetadataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


_DTYPES = {
    **{
        name: name
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32")
    },
    "float64": "float64",
    "bool": "uint8",  # flags are numbers: windows and statistics take them, and 0 and 1 stay what they are
    "bfloat16": "float32",  # records hold float32, and numpy has no bfloat16
    "string": "string",
    "object": "string",
    "str": "string",
}
_ENCODINGS: dict[str, Literal["none", "bytes", "zlib"]] = {"none": "none", "bytes": "bytes", "zlib": "zlib"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature that a record holds.

    Attributes:
        path: Its key in the record, as in `steps/observation/state`.
        kind: `text` for strings, `image` for encoded images, `tensor` for numbers.
        dtype: The numpy name of what is handed out; `string` for text, `bytes` for images.
        shape: Of one value: a step's for step features.
        encoding: How a tensor is stored: a list of numbers, or bytes for each value, perhaps zlib-compressed.
        step: It has one value a step.
        many: An episode feature with a list of values.
        flag: It is declared `bool`; numbers of it are 0 and 1 as uint8.
        details: More to keep with the column: `format`, `resolution`, `description`, `num_classes`.
    """

    path: str
    kind: Literal["text", "image", "tensor"]
    dtype: str
    shape: tuple[int, ...] = ()
    encoding: Literal["none", "bytes", "zlib"] = "none"
    step: bool = False
    many: bool = False
    flag: bool = False
    details: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Numbers in one value."""
        return math.prod(self.shape)


def read(text: bytes, /, *, location: str, without: Collection[str] = ()) -> list[Feature]:
    """The features of an episode, in the order of their keys.

    Args:
        text: The content of `features.json`.
        location: Where it lies, for messages.
        without: Paths of features to leave out, each with all below it.

    Raises:
        InvalidMetadataError: It is not an RLDS `features.json`, or holds a feature of a class that cannot be read;
            the message names it.
    """
    try:
        root = json.loads(text)
        features = list(_walk(root, "", _Place(location, frozenset(without))))
    except (ValueError, KeyError, OverflowError, RecursionError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidMetadataError):
            raise
        raise InvalidMetadataError(f"{location} is not the features.json of a tfds dataset: {error}") from error
    if not any(feature.step for feature in features):
        raise InvalidMetadataError(
            f"{location} has no feature 'steps' that is a dataset of steps; an RLDS dataset has one.",
            path=location,
            hint="Files of older tfds versions ('type' and 'content' keys) must be rewritten by tfds 4.6 or later.",
        )
    return sorted(features, key=lambda feature: feature.path)


@dataclass(frozen=True, slots=True)
class _Place:
    location: str
    without: frozenset[str]


def _walk(
    node: dict[str, Any], path: str, place: _Place, *, step: bool = False, many: bool = False
) -> Iterator[Feature]:
    if path in place.without:
        return
    if "featuresDict" in node:
        for name, child in (node["featuresDict"].get("features") or {}).items():
            yield from _walk(child, f"{path}/{name}" if path else name, place, step=step, many=many)
    elif "sequence" in node:
        if step or many:
            raise _unreadable(node, path, place, "a sequence inside a sequence")
        inside = {"step": True} if path == "steps" else {"many": True}
        yield from _walk(node["sequence"]["feature"], path, place, **inside)
    else:
        yield _leaf(node, path, place, step=step, many=many)


def _leaf(node: dict[str, Any], path: str, place: _Place, *, step: bool, many: bool) -> Feature:
    details: dict[str, Any] = {"description": node["description"]} if node.get("description") else {}
    if "text" in node:
        return Feature(path=path, kind="text", dtype="string", step=step, many=many, details=details)
    if "image" in node:
        image = node["image"]
        shape = _shape(image)
        if image.get("encodingFormat"):
            details["format"] = image["encodingFormat"]
        if len(shape) == 3 and None not in shape:
            details["resolution"] = [shape[1], shape[0]]
        return Feature(path=path, kind="image", dtype="bytes", step=step, many=many, details=details)
    if "classLabel" in node:
        count = node["classLabel"].get("numClasses")
        details |= {"num_classes": int(count)} if count else {}
        return Feature(path=path, kind="tensor", dtype="int64", step=step, many=many, details=details)
    if "tensor" not in node:
        raise _unreadable(node, path, place, "of a class")
    tensor, shape = node["tensor"], _shape(node["tensor"])
    dtype, encoding = _DTYPES.get(tensor.get("dtype", "")), _ENCODINGS.get(tensor.get("encoding") or "none")
    if dtype is None:
        raise _unreadable(node, path, place, f"of dtype {tensor.get('dtype')!r}")
    whole = tuple(size for size in shape if size is not None)
    usable = len(whole) == len(shape) and 0 < math.prod(whole) < 1 << 31 and not (dtype == "string" and shape)
    if encoding is None or not usable:
        raise _unreadable(node, path, place, f"of shape {list(shape)} and encoding {tensor.get('encoding')!r}")
    if encoding != "none" and tensor["dtype"] == "bfloat16":
        raise _unreadable(node, path, place, "of dtype bfloat16, stored as bytes")
    kind: Literal["text", "tensor"] = "text" if dtype == "string" else "tensor"
    return Feature(
        path=path,
        kind=kind,
        dtype=dtype,
        shape=whole,
        encoding=encoding,
        step=step,
        many=many,
        flag=tensor["dtype"] == "bool",
        details=details,
    )


def _shape(node: dict[str, Any]) -> tuple[int | None, ...]:
    sizes = [int(size) for size in (node.get("shape") or {}).get("dimensions") or ()]
    return tuple(size if size >= 0 else None for size in sizes)


def _unreadable(node: dict[str, Any], path: str, place: _Place, what: str) -> InvalidMetadataError:
    name = str(node.get("pythonClassName", "unknown")).rsplit(".", 1)[-1]
    return InvalidMetadataError(
        f"{place.location}: the feature {path!r} ({name}) is {what} that cannot be read.",
        path=place.location,
        hint=f"Leave it out with without=[{path!r}].",
    )

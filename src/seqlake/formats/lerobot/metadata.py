"""What `meta/info.json` says: version, rate, features, splits, and where files lie. All of it may be wrong."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqlake.errors import InvalidMetadataError, UnsupportedVersionError, in_line
from seqlake.formats.lerobot.layout import BOOKKEEPING, CHUNKS_SIZE, OLDEST_SHARED, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

Stored = Literal["numbers", "text", "image", "video", "language", "unknown"]

_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = frozenset({*_NUMBERS, "float16", "float32", "float64"})
"""Types of numbers, by numpy's names."""

_OTHERS: dict[str, Stored] = {"string": "text", "image": "image", "video": "video", "language": "language"}
DEEPEST = 5
"""Lists of numbers in a step, one in another."""

_LARGEST = (1 << 31) - 1  # numbers in a step
STORAGES = ("parquet", "lance")
"""What `storage_format` may say; the first where it says nothing."""

_VERSION = re.compile(r"v(\d{1,4})\.(\d{1,4})(\.\d{1,4})?")
_RANGE = re.compile(r"\s*(\d{1,18})\s*:\s*(\d{1,18})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotFeature:
    """One feature.

    Attributes:
        name: As in `observation.state`.
        dtype: As it is declared: numpy's name of a number, `string`, `image`, `video`, `language`.
        shape: Of one step.
        names: What the dimensions are called: null, a list, or a dict.
        info: More of it, as `video.codec`; whatever its key is called.
        stored: What it is, of what can be read.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    stored: Stored

    @property
    def size(self) -> int:
        """Numbers of a step."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What `info.json` says.

    Attributes:
        version: As in `v3.0`.
        shared: Files hold many episodes, as from v3.0 on.
        fps: Steps per second.
        features: By name, in their order; those of videos too.
        data_path: The template of data files.
        video_path: The template of videos.
        chunks_size: Episodes of a chunk (v2.x).
        fields: All of it, as it came.
    """

    version: str
    shared: bool
    fps: float
    features: Mapping[str, LeRobotFeature]
    data_path: str
    video_path: str
    chunks_size: int
    fields: Mapping[str, Any]

    @property
    def robot_type(self) -> str | None:
        """The robot; None where it is not named."""
        named = self.fields.get("robot_type")
        return named if isinstance(named, str) and named else None

    @property
    def in_lance(self) -> bool:
        """Steps and videos are in Lance tables, not in files of their own."""
        return self.fields.get("storage_format") == "lance"

    def total(self, name: str, /) -> int | None:
        """A counter, as `total_episodes`; None where there is none."""
        count = self.fields.get(f"total_{name}")
        return count if isinstance(count, int) and not isinstance(count, bool) else None

    def splits(self) -> dict[str, range | None]:
        """The episodes of each split; None where a range cannot be understood."""
        declared = self.fields.get("splits")
        if not isinstance(declared, dict):
            return {}
        matched = {name: _RANGE.fullmatch(text) if isinstance(text, str) else None for name, text in declared.items()}
        return {name: None if one is None else range(int(one[1]), int(one[2])) for name, one in matched.items()}


def parse(text: bytes, /, *, location: str) -> Info:
    """Read `info.json`.

    Raises:
        InvalidMetadataError: It is no JSON object, or lacks what no reader can do without.
        UnsupportedVersionError: Of a version that is not known.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMetadataError(f"{location} is not JSON: {error}.", path=location) from None
    if not isinstance(fields, dict):
        raise InvalidMetadataError(f"{location}: expected a JSON object, found {type(fields).__name__}.", path=location)
    version, shared = _version(fields, location)
    features = fields.get("features")
    if not isinstance(features, dict) or not features:
        raise InvalidMetadataError(
            f"{location}: expected 'features', a dtype and a shape for each name, found {features!r:.80}.",
            path=location,
        )
    templates = VERSIONS["v3.0" if shared else "v2.1"]
    return Info(
        version=version,
        shared=shared,
        fps=_rate(fields.get("fps"), location),
        features={name: _feature(name, value, location) for name, value in features.items()},
        data_path=_text(fields, "data_path", templates.data, location),
        video_path=_text(fields, "video_path", templates.video, location),
        chunks_size=_chunks_size(fields.get("chunks_size", CHUNKS_SIZE), location),
        fields=fields,
    )


def _version(fields: Mapping[str, Any], location: str) -> tuple[str, bool]:
    version = fields.get("codebase_version")
    matched = _VERSION.fullmatch(version) if isinstance(version, str) else None
    known = ", ".join(VERSIONS)
    if not isinstance(version, str) or matched is None:
        raise InvalidMetadataError(
            f"{location}: expected 'codebase_version', one of {known}, found {version!r}.", path=location
        )
    major = int(matched[1])
    if major not in {int(one[1]) for one in VERSIONS}:
        raise UnsupportedVersionError(
            f"{location}: the dataset is of version {version}; {known} can be read.",
            path=location,
            hint="Older ones are turned into v2.1 by the scripts of lerobot 0.3; newer ones need a newer seqlake.",
        )
    if fields.get("storage_format") not in {*STORAGES, None}:
        raise UnsupportedVersionError(
            f"{location}: the dataset is stored as {fields['storage_format']!r:.80}; {' and '.join(STORAGES)} can be "
            "read.",
            path=location,
        )
    return version, major >= OLDEST_SHARED


def _rate(fps: Any, location: str) -> float:
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps <= 1_000_000:
        raise InvalidMetadataError(f"{location}: expected 'fps', frames per second, found {fps!r}.", path=location)
    return fps


def _chunks_size(size: Any, location: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidMetadataError(f"{location}: expected 'chunks_size' of 1 or more, found {size!r}.", path=location)
    return size


def _text(fields: Mapping[str, Any], key: str, default: str, location: str) -> str:
    template = fields.get(key)
    if template is None:
        return default
    if not isinstance(template, str):
        raise InvalidMetadataError(f"{location}: expected {key!r} as text, found {template!r:.80}.", path=location)
    return template


def _feature(name: str, value: Any, location: str) -> LeRobotFeature:
    declared = value if isinstance(value, dict) else {}
    dtype, shape = declared.get("dtype"), declared.get("shape", [1])
    whole = isinstance(shape, (list, tuple)) and all(type(n) is int and n >= 0 for n in shape)
    if not name or "/" in name or "\0" in name or not isinstance(dtype, str) or not whole:
        raise InvalidMetadataError(
            f"{location}: feature {in_line(repr(name))}: expected a name without '/', and a dtype and a shape as in "
            f"{{'dtype': 'float32', 'shape': [7]}}, found {in_line(repr(value)):.120}.",
            path=location,
        )
    info: dict[str, Any] = {}
    for key in ("video_info", "info"):  # the first is how v2.0 spelt it
        more = declared.get(key)
        info |= more if isinstance(more, dict) else {}
    readable = len(shape) <= DEEPEST and 0 < math.prod(shape) <= _LARGEST
    numeric: Stored = "numbers" if dtype in NUMBERS and readable else "unknown"
    stored = _OTHERS.get(dtype, numeric)
    if name in BOOKKEEPING and stored != "numbers":
        raise InvalidMetadataError(
            f"{location}: expected {name!r} of dtype {BOOKKEEPING[name]}, found {dtype!r}.", path=location
        )
    return LeRobotFeature(
        name=name, dtype=dtype, shape=tuple(shape), names=declared.get("names"), info=info, stored=stored
    )


def numpy_type(feature: LeRobotFeature, /) -> np.dtype[Any]:
    """The numpy type of a feature of numbers."""
    return np.dtype(feature.dtype)

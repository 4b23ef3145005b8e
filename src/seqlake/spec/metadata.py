"""The dataset's metadata: `mixtrain.json`, or the table property `mixtrain`, both ways.

Specification: "Dataset-Level Metadata". Unknown keys and unknown types survive a round trip.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import isinf
from typing import TYPE_CHECKING, Any

from seqlake.errors import InvalidMetadataError, UnsupportedVersionError
from seqlake.spec.column_types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "mixtrain"
"""The key that marks a dataset and holds the version of the format; also the table property's name."""

VERSION = "1.0"
"""The version this package writes."""

MAJOR = 1

DEEPEST = 64
"""How deep values may be nested: what is read must also be writable, comparable and printable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What `mixtrain.json` says.

    Example:
        >>> Metadata.parse('{"mixtrain": "1.0"}').version
        '1.0'
    """

    version: str = VERSION
    """Version of the format; a minor above ours is kept."""

    column_types: Mapping[str, ColumnType] = field(default_factory=dict)
    """Column types by column, for columns that mean more than their Arrow type."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys this package does not know, as they came."""

    @staticmethod
    def parse(text: str | bytes, /) -> Metadata:
        """Read the JSON text.

        Raises:
            InvalidMetadataError: Not JSON, not an object, without the key `mixtrain`, or with wrong types.
            UnsupportedVersionError: A major version above 1.

        Example:
            >>> said = '{"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 7}}}'
            >>> Metadata.parse(said).column_types["action"]
            Trajectory(dim=7)
        """
        value = _loaded(text)
        if NAME not in value:
            raise InvalidMetadataError(
                f"No key {NAME!r}: it marks a Mixtrain dataset and holds its version, as in {{{NAME!r}: {VERSION!r}}}."
            )
        declared = value.get("column_types", {})
        if not isinstance(declared, dict):
            raise InvalidMetadataError(f"'column_types' must be an object, found {type(declared).__name__}.")
        types = {}
        for name, entry in declared.items():
            try:
                types[name] = ColumnType.from_json(entry)
            except InvalidMetadataError as error:
                raise InvalidMetadataError(f"column_types.{name}: {error.message}") from None
        extra = {key: entry for key, entry in value.items() if key not in {NAME, "column_types"}}
        return Metadata(version=_version(value[NAME]), column_types=types, extra=extra)

    def to_json(self) -> str:
        """The JSON text, indented, with a final newline.

        Raises:
            InvalidMetadataError: Something in it is not JSON, as a NaN is not.

        Example:
            >>> print(Metadata(extra={"robot": "arm"}).to_json(), end="")
            {
              "mixtrain": "1.0",
              "robot": "arm"
            }
        """
        value: dict[str, Any] = {NAME: self.version}
        if self.column_types:
            value["column_types"] = {name: kind.to_json() for name, kind in self.column_types.items()}
        value.update(self.extra)
        try:
            text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"The metadata cannot be written as JSON: {error}.") from None
        # Half of a surrogate pair is JSON as an escape, but has no UTF-8.
        lone = any("\ud800" <= letter <= "\udfff" for letter in text)
        return (json.dumps(value, indent=2) if lone else text) + "\n"


def _loaded(text: str | bytes) -> dict[str, Any]:
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(
            decoded, object_pairs_hook=_without_repeats, parse_constant=_refuse, parse_float=_representable
        )
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidMetadataError(f"The metadata must be a JSON object in UTF-8: {said}.") from None
    if not isinstance(value, dict):
        raise InvalidMetadataError(f"The metadata must be a JSON object, found {type(value).__name__}.")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _representable(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text} is larger than any number that can be held")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"nested too deeply, more than {DEEPEST} levels")


def _version(value: Any) -> str:
    # "1", 1 and 1.0 were written by others and mean the same version.
    text = f"{value}" if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    parts = text.split(".") if isinstance(text, str) else []
    if not 1 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InvalidMetadataError(f"{NAME!r} must be a version such as {VERSION!r}, found {value!r}.")
    if int(parts[0]) != MAJOR:
        raise UnsupportedVersionError(
            f"The dataset is in version {text} of the Mixtrain format; this package reads {MAJOR}.x.",
            hint="Upgrade seqlake: pip install --upgrade seqlake" if int(parts[0]) > MAJOR else None,
        )
    numbers = tuple(int(part) for part in parts[1:] if int(part))
    return text if numbers else VERSION

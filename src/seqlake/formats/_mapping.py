"""Declared mappings: what of a source becomes which column, as `map=` and `--map` say it, the same in every format."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake.arguments import Kind
from seqlake.errors import InvalidMetadataError, in_line
from seqlake.spec.column_types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Collection

_EXPECTED = "a source as in {'action': '/action'}, or {'cam': {'source': '/images/top', 'type': 'video', 'fps': 30}}"

MAP = Kind(
    "columns by their sources, as {'action': '/action'}, or the name of a JSON or TOML file of this",
    lambda value: isinstance(value, Mapping) or (isinstance(value, (str, os.PathLike)) and os.fspath(value) != ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One column of a declared mapping.

    Attributes:
        column: Its name.
        source: What it is made of, in the words of the format: a path in a file, a topic, a key.
        type: Its column type; None: the format's own guess.
        options: What the format takes besides.
    """

    column: str
    source: str
    type: ColumnType | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def wanted(given: Mapping[str, Any] | str | os.PathLike[str], /, *, options: Collection[str] = ()) -> dict[str, Wanted]:
    """Columns in the order in which they were declared.

    Args:
        given: Column -> source, or -> a mapping with the key `source`, the keys in `options`, and the fields of a
            column type; or a JSON or TOML file of this.
        options: What the format takes of each column besides.

    Raises:
        FileNotFoundError: No such file.
        InvalidMetadataError: It is no mapping of columns.
    """
    place = "" if isinstance(given, Mapping) else f" in {in_line(os.fspath(given))}"
    declared = given if isinstance(given, Mapping) else _in_file(Path(given))
    if not isinstance(declared, Mapping) or not declared:
        raise InvalidMetadataError(f"Expected a mapping of columns{place}, {_EXPECTED}; found {declared!r:.80}.")
    return {str(name): _one(str(name), value, options, place) for name, value in declared.items()}


def _in_file(path: Path) -> Any:
    text = path.read_bytes()
    try:
        return tomllib.loads(text.decode()) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMetadataError(f"{path} is no JSON or TOML: {error}.") from None


def _one(name: str, value: Any, options: Collection[str], place: str) -> Wanted:
    fields = {"source": value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping) or not isinstance(fields.get("source"), str):
        raise InvalidMetadataError(f"Column {name!r} of the mapping{place}: expected {_EXPECTED}; found {value!r:.80}.")
    typed = {key: one for key, one in fields.items() if key != "source" and key not in options}
    if typed and "type" not in typed:
        known = ", ".join(["source", "type", *options])
        raise InvalidMetadataError(
            f"Column {name!r} of the mapping{place} has {', '.join(map(repr, typed))}: expected {known}, and beside a "
            "type its fields."
        )
    return Wanted(
        column=name,
        source=fields["source"],
        type=ColumnType.from_json(typed) if typed else None,
        options={key: fields[key] for key in options if key in fields},
    )

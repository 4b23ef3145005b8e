"""Cells, column types and metadata as they are typed on a command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.spec.schema import Column


def cell_of(text: str, column: Column, /) -> Any:
    """A cell: `null`, `@FILE` for a file to take in, text as it is, all else as JSON or as Arrow reads it.

    Raises:
        UsageError: It is none of the column's type.
    """
    import pyarrow as pa

    from seqlake.dataset.writing import values
    from seqlake.dataset.writing.ingest import File
    from seqlake.errors import SchemaMismatchError, ValidationError
    from seqlake.spec.schema import is_text

    if text == "null":
        return None
    if column.category == "file" and text.startswith("@"):
        return File(text[1:])
    if is_text(column.arrow):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        try:
            return pa.scalar(text).cast(column.arrow).as_py()
        except (pa.ArrowException, ValueError):
            raise click.UsageError(f"Column {column.name!r} holds {column.arrow}; found {text!r}.") from None
    try:
        values.cell(value, column, column.logical, where=f"Column {column.name!r}")
    except (SchemaMismatchError, ValidationError) as error:
        raise click.UsageError(str(error)) from None
    return value


def guessed(text: str, /) -> Any:
    """A value for a column that is not there yet: a number or a truth value where it reads as one, else text."""
    value = json_or_text(text)
    return value if isinstance(value, bool | int | float) else text


def types(option: str, texts: Iterable[str], /) -> dict[str, dict[str, Any] | None]:
    """Column types by column, as `column_types` has them; None for a plain column.

    Args:
        option: What the option is called, for messages.
        texts: `cam=video,fps=30`, or `cam={"type": "video", "fps": 30}`; `cam=` for a plain column.
    """
    declared: dict[str, dict[str, Any] | None] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{option} wants COLUMN=TYPE,FIELD=VALUE,..., got {text!r}.")
        declared[name] = _kind(option, name, value) if value else None
    return declared


def _kind(option: str, name: str, value: str) -> dict[str, Any]:
    if value.startswith("{"):
        try:
            kind: dict[str, Any] = json.loads(value)
        except json.JSONDecodeError as error:
            raise click.UsageError(f"{option} {name}: not JSON: {error}.") from error
        return kind
    kind_name, *fields = value.split(",")
    pairs = dict(field.partition("=")[::2] for field in fields)
    if not kind_name or "=" in kind_name or "" in pairs or not all("=" in field for field in fields):
        raise click.UsageError(
            f"{option} {name}: expected a type and its fields, as in video,fps=30, got {value!r}. "
            'Fields with commas are given as JSON: {"type": "trajectory", "names": ["x", "y"]}.'
        )
    return {"type": kind_name, **{field: json_or_text(text) for field, text in pairs.items()}}


def metadata(option: str, texts: Iterable[str], /) -> dict[str, Any]:
    """Keys and values of the metadata: `license=MIT`, `rate=30`, `tags=["a", "b"]`; `license=` removes the key."""
    values = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise click.UsageError(f"{option} wants KEY=VALUE, got {text!r}.")
        values[key] = json_or_text(value) if value else None
    return values


def json_or_text(text: str, /) -> Any:
    """A JSON value where it is one, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
